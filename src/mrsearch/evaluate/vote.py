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
        if says := _said(answer):
            votes.setdefault(says, []).append(answer or "")
    return max(votes.values(), key=len)[0] if votes else None


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Chance that one of k samples is right, estimated without bias from `samples` of which `right` are right.

    >>> [round(pass_at_k(5, 2, k), 4) for k in (1, 2, 3, 4)]
    [0.4, 0.7, 0.9, 1.0]
    """
    if not 0 < k <= samples:
        raise ValueError(f"k is {k}; it must lie between 1 and the {samples} samples")
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def most_confident(answers: Sequence[str | None], logprobs: Sequence[float | None]) -> str | None:
    """The answer whose sample has the highest mean log-probability; blank answers and unknown ones do not stand.

    >>> most_confident(["Rome", "Paris", None], [-0.9, -0.2, -0.1])
    'Paris'
    """
    standing = [
        (logprob, -place)
        for place, (answer, logprob) in enumerate(zip(answers, logprobs, strict=True))
        if _said(answer) and logprob is not None
    ]
    return answers[-max(standing)[1]] if standing else None


def _said(answer: str | None) -> str:
    """What answers are compared by; the letter or band "A" keeps what normalising would leave nothing of."""
    text = answer or ""
    return normalize(text) or " ".join(text.casefold().split())
