"""`mrsearch eval`: how well an agent answers a question set, episode by episode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console


def command(
    model: Annotated[str, typer.Argument(help="A run folder (its best checkpoint), a model folder, or a hub name.")],
    settings: Annotated[list[str] | None, typer.Argument(help="key=value settings that go over the run's.")] = None,
    data: Annotated[str, typer.Option(help="Questions (JSON lines); by default the run's validation set.")] = "",
    corpus: Annotated[str, typer.Option(help="Passages (JSON lines); by default the run's corpus.")] = "",
    episodes: Annotated[int, typer.Option(help="Episodes to play; by default as many as the plan has.")] = 0,
    limit: Annotated[int, typer.Option(help="Questions, as a seeded sample; 0 takes all.")] = 0,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Play every question of a set once, and show scores by episode.

    Greedy unless told otherwise. With a run folder the result is also kept in
    its eval/ folder, every setting and every answer with it.

    \b
    Examples:
      mrsearch eval runs/quickstart-20261201-120000 --episodes 6
      mrsearch eval my-model --data questions.jsonl --corpus passages.jsonl plan.searches=4
    """
    from dataclasses import replace

    from mrsearch import __version__, build
    from mrsearch.cli.running import ready_config, silence_loading
    from mrsearch.config import load_config
    from mrsearch.core.ports import Sampling
    from mrsearch.evaluate.run import evaluate, sample_questions
    from mrsearch.runs import RunFolder, model_folder

    console = stderr_console()
    run = RunFolder.open(Path(model)) if (Path(model) / "config.yaml").exists() else None
    base = ready_config(run, console).as_dict() if run else {}
    given = [
        f"model.path={model_folder(Path(model)) if run else model}",
        *([f"data.validation={data}"] if data else []),
        *([f"retrieval.corpus={corpus}"] if corpus else []),
        *(settings or ()),
    ]
    silence_loading()
    config = load_config(overrides=given, base=base)
    asked = sample_questions(build.questions(config.data.validation, "data.validation"), limit, seed=config.seed)
    plan = replace(config.plan, episodes=episodes or config.plan.episodes)
    sampling = Sampling(temperature=temperature)
    found = evaluate(build.player_of(config), asked, plan, sampling=sampling, seed=config.seed)

    metrics = ("em", "f1", "success_at", "answered", "searches", "tokens")
    curves = {metric: found.curve(metric) for metric in metrics}
    rows = [(metric, *(f"{value:.3f}" for value in curve)) for metric, curve in curves.items()]
    print_table((f"{len(asked)} questions", *(f"ep {n + 1}" for n in range(plan.episodes))), rows)
    result = {
        "version": __version__,
        "model": config.model.path,
        "questions": len(asked),
        "limit": limit,
        "temperature": temperature,
        "settings": config.as_dict(),
        "episodes": plan.episodes,
        "values": found.values,
        "answers": [
            {"id": t.question.id, "answers": [episode.answer for episode in t.episodes], "ended": t.finish_reason}
            for t in found.trajectories
        ],
    }
    if run:
        path = run.write_evaluation(f"{Path(config.data.validation).stem}-{plan.episodes}-episodes", result)
        console.print(f"Kept in {path}.")
    if as_json:
        print_json(result)
