"""`mrsearch compare`: whether agents differ, on the questions that all of them were asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console
from mrsearch.errors import ConfigError, DataError


def command(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT...", help="Results of mrsearch eval, or run folders (their latest).")
    ],
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
    """
    from mrsearch.runs import read_evaluation

    if len(results) < 2:
        raise ConfigError("one result has nothing to be compared with; name two or more")
    first, *others = map(read_evaluation, results)
    console = stderr_console()
    compared: list[dict[str, Any]] = []
    for other in others:
        if other["data"] != first["data"]:
            console.print(
                f"{first['file']} and {other['file']} were asked different questions; those of both are compared.",
                soft_wrap=True,
            )
        compared.append({"first": first["file"], "other": other["file"], **compare(first, other)})
    rows = [
        (
            Path(pair["other"]).stem,
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
    print_table((title, "episode", Path(first["file"]).stem, "other", "difference (95 %)", "McNemar p"), rows)
    if as_json:
        print_json({"compared": compared})


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
