"""`mrsearch eval`: how well agents answer question sets, episode by episode, in one mode or several."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console
from mrsearch.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from mrsearch.build import Waiting
    from mrsearch.cli.evaluations import Asked, Evaluated, Place
    from mrsearch.cli.running import Bar
    from mrsearch.rollout.chat import ChatEndpoint

JUDGE_TOKEN = "MRSEARCH_JUDGE_TOKEN"
"""Environment variable that holds the judge's bearer token, where it asks for one."""

LOSSES = (
    "context_full",
    "length_turns",
    "cut_passages",
    "tokens_after_stop",
    "retokenized_prompts",
    "empty_turns",
    "late_searches",
    "blank_answers",
    "near_ties",
    "unjudged",
)
"""The counters of an evaluation that mean that something was cut, failed or hung by a hair."""

_SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)*=")


def command(
    agents: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [key=value]...",
            help="Run folders (their best checkpoint), checkpoints of runs, model folders, hub names, or known:gold, "
            "known:titles, known:null; and settings that go over those of a run.",
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(help="Questions (a file, or a set by name); repeatable. By default the run's validation set."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="reflect (default), single, parallel, long, direct, cot, rag, ircot, search-o1; repeatable."),
    ] = None,
    corpus: Annotated[str, typer.Option(help="Passages (JSON lines); by default where the run has them from.")] = "",
    index: Annotated[str, typer.Option(help="An index made by mrsearch index, in place of a corpus.")] = "",
    retriever: Annotated[str, typer.Option(help="URL of a retrieval server, in place of a corpus.")] = "",
    endpoint: Annotated[
        str, typer.Option(help="URL of a completions endpoint that has the model; MODEL then names its tokenizer.")
    ] = "",
    episodes: Annotated[
        int, typer.Option(help="Episodes to play, or samples of parallel; by default as many as the plan has.")
    ] = 0,
    only: Annotated[
        Path | None, typer.Option(help="Ask these ids: a JSON list, or an object of lists by name of the file.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Questions of a set, as a seeded sample; 0 takes all.")] = 0,
    concurrency: Annotated[
        int, typer.Option(min=0, help="Short for engine.rows: meta-episodes in play at once, kept when all are done.")
    ] = 0,
    temperature: Annotated[float, typer.Option(help="Short for sampling.temperature; 0 is greedy.")] = 0.0,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Reflecting against parallel samples, at equal episodes and tokens.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="With --scaling: draw the curves (.png, .svg, .pdf), with their numbers in a .json."),
    ] = None,
    judge: Annotated[
        str,
        typer.Option(help="URL of a chat endpoint that judges answers, beside exact match; MRSEARCH_JUDGE_TOKEN."),
    ] = "",
    judge_model: Annotated[str, typer.Option(help="The judge's name at its endpoint; by default its only one.")] = "",
    out: Annotated[Path | None, typer.Option(help="Where to keep the result (.json), or a folder for several.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate agents on question sets, and show scores by episode with their intervals.

    Greedy unless told otherwise (samples of parallel are drawn at temperature 1).
    Results hold every setting and every answer; a run keeps its own in eval/, and
    --out keeps any. What was played so far lies beside the result, so that the same
    command goes on after a kill; other settings, weights or data begin anew.
    Without a run and --out nothing is kept.

    Bounds are those of a bootstrap over questions, at 95 %. With several sets the
    macro average follows. What was cut or failed is counted under the table.

    \b
    Examples:
      mrsearch eval runs/quickstart-20261201-120000 --episodes 6
      mrsearch eval runs/mine/checkpoints/step-000020
      mrsearch eval my-model runs/mine --data hotpotqa --data nq --index wiki --limit 500 --out results
      mrsearch eval my-model --data dev.jsonl --index wiki --mode direct --mode rag --mode reflect --out results
      mrsearch eval my-model --data dev.jsonl --retriever http://127.0.0.1:8000 --endpoint http://127.0.0.1:8001
      mrsearch eval my-model --data dev.jsonl --index wiki --judge http://127.0.0.1:8002 --out results
      mrsearch eval runs/mine --scaling --episodes 6 --plot scaling.png
      mrsearch eval known:titles --data dev.jsonl --index wiki plan.searches=4
    """
    from mrsearch.cli.compare import check_plot, draw
    from mrsearch.cli.evaluations import Asked, Place
    from mrsearch.cli.running import Bar, silence_loading, waiting
    from mrsearch.evaluate.modes import MODES

    console = stderr_console()
    models = [given for given in agents if not _SETTING.match(given)]
    settings = [given for given in agents if _SETTING.match(given)]
    modes = list(dict.fromkeys(mode or ["reflect"]))
    if not models:
        raise ConfigError("name what to evaluate, for example: mrsearch eval runs/mine")
    for name in modes:
        if name not in MODES:
            raise ConfigError(f"there is no mode {name!r}; known are {', '.join(MODES)}")
    if scaling and mode:
        raise ConfigError("--scaling plays the modes reflect and parallel; leave out --mode")
    if plot and not scaling:
        raise ConfigError("--plot draws the curves of --scaling; mrsearch compare draws results")
    check_plot(plot)
    place = Place(out)
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"there is no folder {out.parent} for --out {out}; make it first")
    if place.is_file and (scaling or len(models) * len(modes) * max(1, len(data or ())) > 1):
        raise ConfigError(f"--out {out} has room for one result; name a folder for several")
    options = {"corpus": corpus, "index": index, "url": retriever}
    short = {"endpoint": endpoint, "episodes": episodes, "concurrency": concurrency, "temperature": temperature}
    if judge_model and not judge:
        raise ConfigError("--judge-model names a model of the endpoint --judge, which is not given")
    asked = Asked(limit, only, _judge(judge, judge_model) if judge else None)
    silence_loading()
    results: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    try:
        with waiting(console) as patience:
            for evaluated in _agents(models, settings, options, short, patience, console):
                with Bar(console) as bar:
                    for set_name in data or [evaluated.config.data.validation]:
                        if scaling:
                            curves.append(_scale(evaluated, set_name, asked, place, bar, console))
                        else:
                            results += _evaluate(evaluated, set_name, modes, asked, place, bar, console)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; where results are kept, the same command goes on") from None
    macro = _macro(results)
    _show(results, macro)
    _show_scaling(curves)
    if plot is not None:
        draw([line for found in curves for line in found["lines"]], plot, console)
    if as_json:
        print_json({"results": results, "macro": macro, "scaling": curves})


def _judge(url: str, model: str) -> ChatEndpoint:
    from mrsearch.rollout.chat import ChatEndpoint

    token = os.environ.get(JUDGE_TOKEN, "").strip()
    return ChatEndpoint(url, model=model, token=token, setting="--judge", model_setting="--judge-model")


def _agents(
    models: Sequence[str],
    settings: Sequence[str],
    sources: Mapping[str, str],
    short: Mapping[str, Any],
    patience: Waiting,
    console: Console,
) -> list[Evaluated]:
    from mrsearch.build import KNOWING_PREFIX
    from mrsearch.cli.evaluations import Evaluated
    from mrsearch.cli.running import chosen_source, ready_config
    from mrsearch.config import load_config
    from mrsearch.runs import model_folder, run_of

    found: list[Evaluated] = []
    for model in models:
        known = model.startswith(KNOWING_PREFIX)
        folder = model if known else str(model_folder(Path(model)))
        run = None if known else run_of(Path(model))
        base: dict[str, dict[str, Any]] = ready_config(run, console).as_dict() if run else {}
        # Names and paths are data, not YAML: a folder may be called 123.
        endpoint = {"kind": "endpoint", "url": short["endpoint"]} if short["endpoint"] else {}
        options: dict[str, dict[str, Any]] = {
            "model": {"path": folder},
            "engine": {**endpoint, **({"rows": short["concurrency"]} if short["concurrency"] else {})},
            "retrieval": chosen_source(**sources),
            "plan": {"episodes": short["episodes"]} if short["episodes"] else {},
            "sampling": {"temperature": short["temperature"]},
        }
        for section, values in options.items():
            base[section] = {**base.get(section, {}), **values}
        label = _label(model, [one.label for one in found])
        found.append(Evaluated(label, load_config(overrides=settings, base=base), run, patience))
    return found


def _label(model: str, taken: Sequence[str]) -> str:
    """A short name for tables and files: a checkpoint has that of its run in front."""
    path = Path(model)
    parts = [part for part in path.parts if part not in ("/", "..", ".", "checkpoints")]
    name = "-".join(parts[-2:] if path.name.startswith("step-") or not path.exists() else parts[-1:])
    label = re.sub(r"[^\w.-]", "-", name) or "model"
    return label if label not in taken else f"{label}-{len(taken) + 1}"


def _evaluate(
    evaluated: Evaluated,
    set_name: str,
    modes: Sequence[str],
    asked: Asked,
    place: Place,
    bar: Bar,
    console: Console,
) -> list[dict[str, Any]]:
    from mrsearch.cli.evaluations import evaluate_set
    from mrsearch.evaluate.modes import mode_of

    config = evaluated.config
    return [
        evaluate_set(
            evaluated, mode_of(name, config.plan, config.prompts, config.sampling), set_name, asked, place, bar, console
        )
        for name in modes
    ]


def _scale(
    evaluated: Evaluated, set_name: str, asked: Asked, place: Place, bar: Bar, console: Console
) -> dict[str, Any]:
    """Reflecting against as many samples as its tokens pay for."""
    from dataclasses import replace

    from mrsearch.cli.evaluations import evaluate_set, keep
    from mrsearch.evaluate.modes import mode_of
    from mrsearch.evaluate.plot import result_curve
    from mrsearch.evaluate.scaling import samples_for, scaling_curve
    from mrsearch.runs import SCALING

    config = evaluated.config
    reflecting = mode_of("reflect", config.plan, config.prompts, config.sampling)
    reflect = evaluate_set(evaluated, reflecting, set_name, asked, place, bar, console)
    drawing = mode_of("parallel", config.plan, config.prompts, config.sampling)
    drawing = replace(drawing, samples=samples_for(reflect))
    parallel = evaluate_set(evaluated, drawing, set_name, asked, place, bar, console)
    curve = {
        "agent": evaluated.label,
        "set": reflect["set"],
        "questions": len({row["id"] for row in reflect["answers"]} & {row["id"] for row in parallel["answers"]}),
        "context": config.plan.context,
        "temperature": {"reflect": reflecting.sampling.temperature, "parallel": drawing.sampling.temperature},
        "curve": scaling_curve(reflect, parallel),
        "lines": [result_curve(result, f"{evaluated.label} {result['mode']}") for result in (reflect, parallel)],
    }
    name = f"{SCALING}{Path(set_name).name.partition('.')[0]}-{config.plan.episodes}"
    keep(curve, place.paths(evaluated.run, name, evaluated.label))
    return curve


def _macro(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean over sets of each agent and mode that was asked several."""
    from mrsearch.evaluate.result import macro_average

    by_agent: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        by_agent.setdefault((result["agent"], result["mode"]), []).append(result)
    return [
        {"agent": agent, "mode": mode, "sets": [one["set"] for one in found], "values": macro_average(found)}
        for (agent, mode), found in by_agent.items()
        if len(found) > 1
    ]


def _show(results: Sequence[Mapping[str, Any]], macro: Sequence[Mapping[str, Any]]) -> None:
    if len(results) == 1:
        _show_one(results[0])
    elif results:
        judged = any("judge" in result for result in results)
        columns = ["agent", "mode", "set", "questions", "EM by episode", "95 % of the last"]
        columns += [*(["judge by episode"] if judged else []), "F1", "answered", "searches", "tokens", "s each"]
        rows = [_summary(result, judged) for result in results]
        rows += [_summary({**average, "set": "macro average"}, judged) for average in macro]
        print_table(columns, rows)
    for result in results:
        name = f"{result['agent']} {result['mode']} {result['set']}: " if len(results) > 1 else ""
        for line in losses(result["values"], result["questions"]):
            print(f"{name}{line}")


def _show_one(result: Mapping[str, Any]) -> None:
    from mrsearch.evaluate.scores import curve

    parallel = result["mode"] == "parallel"
    alone = ["sub_em", "success_at", "answered", "wrong_to_right", "right_to_wrong"]
    metrics = ["em", "judge", "f1", *(["best_of", "pass_at"] if parallel else alone), "searches", "tokens"]
    rows: list[tuple[str, ...]] = []
    for metric in metrics:
        # What turns from one episode to the next has no value at the first.
        values = curve(result["values"], metric)
        if metric.endswith(("to_right", "to_wrong")):
            values = [result["values"][f"{metric}/{n}"] for n in range(2, result["episodes"] + 1)]
        cells = [f"{value:.3f}" for value in values]
        if cells:
            rows.append((metric, *[""] * (result["episodes"] - len(cells)), *cells))
        if metric in result["intervals"]:
            rows.append(("  95 %", *(f"{low:.3f}-{high:.3f}" for low, high in result["intervals"][metric])))
    place = "n =" if parallel else "ep"
    print_table((f"{result['questions']} questions", *(f"{place} {n + 1}" for n in range(result["episodes"]))), rows)
    if result["questions"]:
        print(
            f"format valid {result['values']['format_valid']:.3f}; {result['seconds'] / result['questions']:.2g} s a "
            "question"
        )


def _summary(result: Mapping[str, Any], judged: bool) -> tuple[str, ...]:
    from mrsearch.evaluate.scores import curve

    values = result["values"]
    answered = curve(values, "answered")
    cells = [" ".join(f"{value:.3f}" for value in curve(values, "em"))]
    interval = result.get("intervals", {}).get("em")
    cells.append(f"{interval[-1][0]:.3f}-{interval[-1][1]:.3f}" if interval else "")
    if judged:
        cells.append(" ".join(f"{value:.3f}" for value in curve(values, "judge")))
    cells.append(f"{curve(values, 'f1')[-1]:.3f}")
    cells.append(f"{answered[-1]:.2f}" if answered else "")
    cells += [f"{sum(curve(values, 'searches')):.2f}", f"{sum(curve(values, 'tokens')):.0f}"]
    cells.append(f"{result['seconds'] / max(1, result['questions']):.2g}" if "seconds" in result else "")
    return (result["agent"], result["mode"], result["set"], str(result.get("questions", "")), *cells)


def _show_scaling(curves: Sequence[Mapping[str, Any]]) -> None:
    for found in curves:
        title = f"{found['agent']}, {found['set']}, {found['questions']} questions"
        columns = [title, "tokens", "reflect EM", "95 %", "as many samples", "difference (95 %)"]
        columns += ["samples of as many tokens", "difference (95 %)", "any of them"]
        rows = []
        for row in found["curve"]:
            episodes, tokens = row["equal_episodes"], row["equal_tokens"]
            over = " (tokens left over)" if tokens["tokens_left_over"] else ""
            rows.append(
                (
                    f"n = {row['episodes']}",
                    f"{row['tokens']:.0f}",
                    f"{row['em']:.3f}",
                    f"{row['interval'][0]:.3f}-{row['interval'][1]:.3f}",
                    f"{episodes['em']:.3f}",
                    f"{episodes['difference']:+.3f} ({episodes['low']:+.3f} to {episodes['high']:+.3f})",
                    f"{tokens['samples']}: {tokens['em']:.3f}{over}",
                    f"{tokens['difference']:+.3f} ({tokens['low']:+.3f} to {tokens['high']:+.3f})",
                    f"{tokens['any']:.3f}",
                )
            )
        print_table(columns, rows)


def losses(values: Mapping[str, float], played: int) -> list[str]:
    """A line for everything that was cut or failed in so many meta-episodes."""
    lines = []
    for name in LOSSES:
        count = int(values.get(f"count/{name}", 0))
        if count and name == "context_full":
            lines.append(f"{count} of {played} meta-episodes ended with a full window; raise plan.window_tokens")
        elif count:
            lines.append(f"count/{name}: {count}")
    return lines
