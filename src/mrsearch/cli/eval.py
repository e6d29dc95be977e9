"""`mrsearch eval`: how well an agent answers a question set, episode by episode."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console
from mrsearch.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from mrsearch.config import Config

LOSSES = (
    "context_full",
    "retrieval_failed",
    "length_turns",
    "cut_passages",
    "tokens_after_stop",
    "empty_turns",
    "late_searches",
    "blank_answers",
)
"""The counters of an evaluation that mean that something was cut or failed."""


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A run folder (its best checkpoint), a checkpoint of a run, a model folder, or a hub name."
        ),
    ],
    settings: Annotated[list[str] | None, typer.Argument(help="key=value settings that go over the run's.")] = None,
    data: Annotated[str, typer.Option(help="Questions (JSON lines); by default the run's validation set.")] = "",
    corpus: Annotated[str, typer.Option(help="Passages (JSON lines); by default where the run has them from.")] = "",
    index: Annotated[str, typer.Option(help="An index made by mrsearch index, in place of a corpus.")] = "",
    retriever: Annotated[str, typer.Option(help="URL of a retrieval server, in place of a corpus.")] = "",
    episodes: Annotated[int, typer.Option(help="Episodes to play; by default as many as the plan has.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Questions, as a seeded sample; 0 takes all.")] = 0,
    temperature: Annotated[float, typer.Option(help="Short for sampling.temperature; 0 is greedy.")] = 0.0,
    out: Annotated[Path | None, typer.Option(help="File for the result, settings and answers (JSON).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Play every question of a set once, and show scores by episode.

    Greedy unless told otherwise. With a run folder, or a checkpoint in it, the
    result is also kept in the run's eval/ folder, every setting and every answer
    with it; other settings give another file; mrsearch compare takes two of them.
    Bounds of EM and F1 are those of a bootstrap over questions, at 95 %. What was
    cut or failed is counted under the table.

    \b
    Examples:
      mrsearch eval runs/quickstart-20261201-120000 --episodes 6
      mrsearch eval runs/mine/checkpoints/step-000020
      mrsearch eval my-model --data questions.jsonl --corpus passages.jsonl plan.searches=4
      mrsearch eval my-model --data questions.jsonl --retriever http://127.0.0.1:8000
      mrsearch eval runs/mine --temperature 0.7 sampling.top_p=0.9 plan.stop_when_stable=true
    """
    from mrsearch import __version__, build
    from mrsearch.cli.running import chosen_source, ready_config, silence_loading, waiting
    from mrsearch.config import load_config
    from mrsearch.data.questions import digest_of
    from mrsearch.data.sample import sample_questions
    from mrsearch.evaluate.run import evaluate
    from mrsearch.evaluate.scores import score
    from mrsearch.runs import finite, model_folder, run_of, write_atomically

    console = stderr_console()
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"there is no folder {out.parent} for --out {out}; make it first")
    folder = model_folder(Path(model))
    run = run_of(Path(model))
    base: dict[str, dict[str, Any]] = ready_config(run, console).as_dict() if run else {}
    # Names and paths are data, not YAML: a folder may be called 123.
    options: dict[str, dict[str, Any]] = {
        "model": {"path": str(folder)},
        "data": {"validation": data} if data else {},
        "retrieval": chosen_source(corpus=corpus, index=index, url=retriever),
        "plan": {"episodes": episodes} if episodes else {},
        "sampling": {"temperature": temperature},
    }
    for section, values in options.items():
        base[section] = {**base.get(section, {}), **values}
    silence_loading()
    config = load_config(overrides=settings or (), base=base)
    plan, sampling = config.plan, config.sampling
    asked = sample_questions(build.questions(config.data.validation, "data.validation"), limit, seed=config.seed)
    with waiting(console) as patience:
        player = build.player_of(config, patience)
        found = evaluate(player, asked, plan, sampling=sampling, seed=config.seed)

    metrics = ("em", "f1", "success_at", "answered", "searches", "tokens")
    curves = {metric: found.curve(metric) for metric in metrics}
    scores = score(found.trajectories, plan.episodes)
    intervals = {metric: by_episode(getattr(scores, metric)) for metric in ("em", "f1")}
    rows = []
    for metric, curve in curves.items():
        rows.append((metric, *(f"{value:.3f}" for value in curve)))
        if metric in intervals:
            rows.append(("  95 %", *(f"{low:.3f}-{high:.3f}" for low, high in intervals[metric])))
    print_table((f"{len(asked)} questions", *(f"ep {n + 1}" for n in range(plan.episodes))), rows)
    for line in losses(found.values, len(asked)):
        print(line)
    result = {
        "version": __version__,
        "model": config.model.path,
        "questions": len(asked),
        "limit": limit,
        "temperature": sampling.temperature,
        "episodes": plan.episodes,
        "values": found.values,
        "intervals": intervals,
        "data": digest_of(asked),
        "settings": config.as_dict(),
        "answers": [
            {
                "id": played.question.id,
                "question": played.question.question,
                "golden_answers": played.question.golden_answers,
                "answers": [episode.answer for episode in played.episodes],
                "em": scores.em[row].tolist(),
                "f1": scores.f1[row].tolist(),
                "searches": [episode.searches for episode in played.episodes],
                "ended": played.finish_reason,
            }
            for row, played in enumerate(found.trajectories)
        ],
    }
    if run:
        path = run.write_evaluation(evaluation_name(config, limit), result)
        console.print(f"Kept in {path}.", soft_wrap=True)
    if out is not None:
        write_atomically(out, json.dumps(finite(result), indent=1, ensure_ascii=False, allow_nan=False))
    if as_json:
        print_json(result)


def by_episode(scores: np.ndarray) -> list[tuple[float, float]]:
    """Bounds of the mean of scores [B, N] at each episode, at 95 %."""
    from mrsearch.evaluate.intervals import bootstrap

    found = [bootstrap(column) for column in scores.T] if len(scores) else []
    return [(round(interval.low, 4), round(interval.high, 4)) for interval in found]


def losses(values: Mapping[str, float], played: int) -> list[str]:
    """A line for everything that was cut or failed in so many meta-episodes."""
    lines = []
    for name in LOSSES:
        count = int(values[f"count/{name}"])
        if count and name == "context_full":
            lines.append(f"{count} of {played} meta-episodes ended with a full window; raise plan.window_tokens")
        elif count:
            lines.append(f"count/{name}: {count}")
    return lines


def evaluation_name(config: Config, limit: int) -> str:
    """A name that tells set, episodes and temperature, and in its digest all else: other settings, another name."""
    asked = Path(config.data.validation).name.partition(".")[0]
    everything = json.dumps([config.as_dict(), limit], sort_keys=True)
    digest = hashlib.sha256(everything.encode()).hexdigest()[:8]
    return f"{asked}-{config.plan.episodes}-episodes-t{config.sampling.temperature:g}-{digest}"
