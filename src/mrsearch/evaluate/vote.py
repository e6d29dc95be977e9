"""Answers of independent samples put together: majority vote, and the bound that knows the gold."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from mrsearch.core.rewards import normalize


def majority_vote(answers: Sequence[str | None]) -> str | None:
    """The answer whose normalised form occurs most often; the first of those that tie. Blank answers do not vote.

    >>> majority_vote(["Paris", None, "the Paris!", "Rome"])
    'Paris'
    """
    votes: dict[str, list[str]] = {}
    for answer in answers:
        if answer and normalize(answer):
            votes.setdefault(normalize(answer), []).append(answer)
    return max(votes.values(), key=len)[0] if votes else None


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Chance that one of k samples is right, estimated without bias from `samples` of which `right` are right.

    >>> [round(pass_at_k(5, 2, k), 4) for k in (1, 2, 3, 4)]
    [0.4, 0.7, 0.9, 1.0]
    """
    if not 0 < k <= samples:
        raise ValueError(f"k is {k}; it must lie between 1 and the {samples} samples")
    return 1.0 - comb(samples - right, k) / comb(samples, k)
