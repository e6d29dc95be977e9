"""`mrsearch compare`: whether agents differ, on the questions that all of them were asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console
from mrsearch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console


def command(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT...", help="Results of mrsearch eval, or run folders (their latest).")
    ],
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw all of them over episodes and tokens (.png, .svg, .pdf), with the numbers in a .json."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare results of mrsearch eval, question by question; the first is what the others are compared with.

    At each episode that both have: exact match of both, the difference with the
    bounds of a paired bootstrap over questions (95 %), and the p-value of McNemar's
    exact test. Only questions that both were asked count.

    \b
    Examples:
      mrsearch compare runs/single runs/mr-search
      mrsearch compare before.json after.json --json
      mrsearch compare results/my-model-dev-parallel.json results/my-model-dev-reflect.json --plot scaling.png
    """
    from mrsearch.runs import read_evaluation

    if len(results) < 2:
        raise ConfigError("one result has nothing to be compared with; name two or more")
    check_plot(plot, results)
    first, *others = found = [read_evaluation(path) for path in results]
    names = labels([Path(result["file"]) for result in found])
    console = stderr_console()
    compared: list[dict[str, Any]] = []
    for name, other in zip(names[1:], others, strict=True):
        if other["data"] != first["data"]:
            console.print(
                f"{first['file']} and {other['file']} were asked different questions; those of both are compared.",
                soft_wrap=True,
            )
        pair = {"first": first["file"], "other": other["file"], "label": name}
        compared.append({**pair, **compare(first, other)})
    rows = [
        (
            pair["label"],
            str(row["episode"]),
            f"{row['first']:.3f}",
            f"{row['other']:.3f}",
            f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})",
            f"{row['p']:.4f}",
        )
        for pair in compared
        for row in pair["episodes"]
    ]
    title = f"{compared[0]['questions']} questions; EM"
    print_table((title, "episode", names[0], "other", "difference (95 %)", "McNemar p"), rows)
    if plot is not None:
        from mrsearch.evaluate.plot import result_curve

        draw([result_curve(result, name) for name, result in zip(names, found, strict=True)], plot, console)
    if as_json:
        print_json({"compared": compared})


def check_plot(plot: Path | None, results: Sequence[Path] = ()) -> None:
    """See before anything is played that a picture and its numbers can be drawn, and replace no result."""
    if plot is None:
        return
    from mrsearch.evaluate.plot import figure_class

    figure_class()
    if plot.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--plot {plot} has no ending of a picture; name a file that ends with .png, .svg or .pdf")
    if not plot.parent.is_dir():
        raise ConfigError(f"there is no folder {plot.parent} for --plot {plot}; make it first")
    if plot.with_suffix(".json").resolve() in {path.resolve() for path in results}:
        raise ConfigError(f"the numbers of --plot {plot} would replace {plot.with_suffix('.json')}; name another file")


def draw(curves: Sequence[Mapping[str, Any]], plot: Path, console: Console) -> None:
    """Draw curves, and tell where they are."""
    from mrsearch.evaluate import plot as drawing

    numbers = drawing.draw(curves, plot)
    console.print(f"Drawn in {plot}, its numbers in {numbers}.", soft_wrap=True)


def labels(paths: Sequence[Path]) -> list[str]:
    """Names for tables that tell files apart: the file's own, with as many of its folders as that takes.

    >>> labels([Path("runs/a/eval/dev.json"), Path("runs/b/eval/dev.json"), Path("mine.json")])
    ['a/eval/dev', 'b/eval/dev', 'mine']
    """
    found = []
    for path in paths:
        parts = path.with_suffix("").parts
        others = [other.with_suffix("").parts for other in paths if other != path]
        size = 1
        while size < len(parts) and any(other[-size:] == parts[-size:] for other in others):
            size += 1
        found.append("/".join(parts[-size:]))
    return found


def compare(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """EM of two results at each episode of both, over the questions that both have."""
    from mrsearch.evaluate.intervals import bootstrap, mcnemar

    scores = [_scores(result) for result in (first, other)]
    both = [question for question in scores[0] if question in scores[1]]
    if not both:
        raise DataError(f"{first['file']} and {other['file']} share no question; evaluate both on one set")
    episodes = []
    for episode in range(min(first["episodes"], other["episodes"])):
        one, two = ([found[question][episode] for question in both] for found in scores)
        difference = bootstrap([b - a for a, b in zip(one, two, strict=True)])
        episodes.append(
            {
                "episode": episode + 1,
                "first": sum(one) / len(both),
                "other": sum(two) / len(both),
                "difference": difference.mean,
                "low": difference.low,
                "high": difference.high,
                "p": mcnemar(one, two),
            }
        )
    return {"questions": len(both), "episodes": episodes}


def _scores(result: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """EM by question; the golden answers belong to its name, since other golds make it another question."""
    return {f"{row['id']} {sorted(row['golden_answers'])}": row["em"] for row in result["answers"]}
