"""Curves of results over episodes and over tokens: the numbers, and a picture of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from mrsearch.errors import ConfigError, MissingExtra
from mrsearch.evaluate.intervals import bootstrap
from mrsearch.runs import write_atomically

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Those of Okabe and Ito, which the colour-blind can tell apart."""

MARKERS = "osD^vPX"


def result_curve(result: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The curve of a result of `mrsearch eval` that has answers.

    `em` at each place (an episode, or a number of samples voting) with the bounds
    `low` and `high` (95 %, bootstrap over questions); `any` is the share of
    questions of which one place so far was right, a bound that knows the gold;
    `tokens` are generated ones, the mean a question, of all places so far.
    """
    rows, places = result["answers"], result["episodes"]
    bounds = [bootstrap([row["em"][place] for row in rows]) for place in range(places)]
    right = [row.get("right", row["em"]) for row in rows]
    return {
        "label": label,
        "set": result.get("set", ""),
        "questions": len(rows),
        "place": "samples" if result.get("mode") == "parallel" else "episodes",
        "em": [bound.mean for bound in bounds],
        "low": [round(bound.low, 4) for bound in bounds],
        "high": [round(bound.high, 4) for bound in bounds],
        "any": [sum(any(row[: place + 1]) for row in right) / len(rows) for place in range(places)],
        "tokens": [round(tokens, 1) for tokens in cumulative_tokens(rows)],
    }


def cumulative_tokens(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Mean generated tokens a question of the first n places, for each n, out of the answers of a result."""
    totals = [list(accumulate(row["tokens"])) for row in rows]
    return [sum(column) / len(rows) for column in zip(*totals, strict=True)]


def draw(curves: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw curves to a picture, of the kind that its name ends with, and write their numbers beside it, as JSON.

    A row of panels for each set: over episodes (or samples), and over tokens.
    Gives the path of the numbers. `ConfigError` for a name that no picture has.
    """
    sets = list(dict.fromkeys(curve["set"] for curve in curves))
    figure = figure_class()(figsize=(10, 3.8 * len(sets)), layout="constrained")
    for axes, name in zip(figure.subplots(len(sets), 2, sharey="row", squeeze=False), sets, strict=True):
        of_set = [curve for curve in curves if curve["set"] == name]
        for axis, unit in zip(axes, ("places", "tokens"), strict=True):
            _panel(axis, of_set, unit)
        axes[0].set_ylabel("exact match")
        axes[0].set_title(f"{name}, {_questions(of_set)} questions", loc="left", fontsize=10)
        axes[1].legend(fontsize=8, frameon=False, loc="best")
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be drawn ({error}); name a file that ends with .png, .svg or .pdf") from None
    numbers = path.with_suffix(".json")
    write_atomically(numbers, json.dumps({"curves": list(curves)}, indent=1, ensure_ascii=False))
    return numbers


def figure_class() -> Any:
    """matplotlib's `Figure`, which needs no display; `MissingExtra` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("a plot needs matplotlib; install it with: pip install 'mrsearch[plot]'") from error
    return Figure


def _panel(axis: Any, curves: Sequence[Mapping[str, Any]], unit: str) -> None:
    for place, curve in enumerate(curves):
        color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
        x = curve["tokens"] if unit == "tokens" else range(1, len(curve["em"]) + 1)
        axis.plot(x, curve["em"], color=color, marker=marker, markersize=4, label=curve["label"])
        axis.fill_between(x, curve["low"], curve["high"], color=color, alpha=0.15, linewidth=0)
        if curve["place"] == "samples":
            axis.plot(x, curve["any"], color=color, linestyle=":", label=f"{curve['label']}, any right")
    kinds = sorted({curve["place"] for curve in curves})
    axis.set_xlabel("generated tokens a question" if unit == "tokens" else " or ".join(kinds))
    axis.set_ylim(-0.02, 1.02) if max(max(curve["high"]) for curve in curves) > 0.5 else axis.set_ylim(bottom=0)
    if unit == "places":
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _questions(curves: Sequence[Mapping[str, Any]]) -> str:
    counts = sorted({curve["questions"] for curve in curves})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
