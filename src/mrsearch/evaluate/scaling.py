"""Test-time scaling: reflecting once more against drawing more samples, at equal cost.

Equal cost is taken in two ways: as many samples as episodes, and as many
samples as fit into the tokens that the episodes took.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mrsearch.errors import DataError
from mrsearch.evaluate.intervals import bootstrap
from mrsearch.evaluate.plot import cumulative_tokens

MOST_SAMPLES = 4
"""Samples are drawn up to so many times the number of episodes; beyond, the curve says that tokens were left over."""


def samples_for(reflect: Mapping[str, Any]) -> int:
    """How many single episodes take as many tokens as all episodes of a result, by its own first episodes."""
    tokens = cumulative_tokens(reflect["answers"])
    episodes = len(tokens)
    if not tokens or not tokens[0]:
        return max(1, episodes)
    return max(episodes, min(MOST_SAMPLES * episodes, math.ceil(tokens[-1] / tokens[0])))


def scaling_curve(reflect: Mapping[str, Any], parallel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each number of episodes n of a `reflect` result, what `parallel` reaches at equal episodes and tokens.

    `em` and `tokens` (mean generated tokens a question, of all n together) of
    reflecting; `equal_episodes` with the majority of n samples; `equal_tokens` with
    that of as many samples as take no more tokens, at least one. Both with the
    paired difference and its interval at 95 %; `any` is the bound that knows the
    gold. Over the questions that both have: one whose search had no answer may be
    missing in either. `DataError` where there are none, or samples fewer than episodes.
    """
    drawn = {row["id"]: row for row in parallel["answers"]}
    one = [row for row in reflect["answers"] if row["id"] in drawn]
    other = [drawn[row["id"]] for row in one]
    if not one:
        raise DataError("the results to compare were asked different questions; evaluate both on one set")
    if len(other[0]["tokens"]) < len(one[0]["tokens"]):
        raise DataError(
            f"{len(other[0]['tokens'])} samples are fewer than the {len(one[0]['tokens'])} episodes that they are "
            "compared with; draw as many"
        )
    spent, costs = cumulative_tokens(one), cumulative_tokens(other)
    rows = []
    for n, tokens in enumerate(spent):
        reflected = bootstrap([row["em"][n] for row in one])
        fitting = max(1, sum(cost <= tokens for cost in costs))
        rows.append(
            {
                "episodes": n + 1,
                "em": reflected.mean,
                "interval": (round(reflected.low, 4), round(reflected.high, 4)),
                "tokens": round(tokens, 1),
                "equal_episodes": _against(one, other, n, n + 1, costs),
                "equal_tokens": {
                    **_against(one, other, n, fitting, costs),
                    "tokens_left_over": fitting == len(costs) and costs[-1] + costs[0] <= tokens,
                },
            }
        )
    return rows


def _against(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], episode: int, samples: int, costs: list[float]
) -> dict[str, Any]:
    differences = [a["em"][episode] - b["em"][samples - 1] for a, b in zip(one, other, strict=True)]
    difference = bootstrap(differences)
    majority = bootstrap([row["em"][samples - 1] for row in other])
    return {
        "samples": samples,
        "em": majority.mean,
        "interval": (round(majority.low, 4), round(majority.high, 4)),
        "any": sum(any(row["right"][:samples]) for row in other) / len(other),
        "tokens": round(costs[samples - 1], 1),
        "difference": round(difference.mean, 4),
        "low": round(difference.low, 4),
        "high": round(difference.high, 4),
    }
