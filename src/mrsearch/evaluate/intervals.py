"""How sure a mean over questions is, and whether two agents differ on the same questions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
RESAMPLES = 10_000
_BLOCK = 2**22


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds between which it lies at a level of confidence."""

    mean: float
    low: float
    high: float


def bootstrap(values: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The mean of one score a question [Q], with its percentile bootstrap interval over questions.

    Seeded: the same scores give the same bounds. For the difference of two
    agents give the differences of their scores. `ValueError` for no scores.
    """
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not scores.size:
        raise ValueError(f"an interval needs scores of questions, one each; these have shape {scores.shape}")
    rng = np.random.default_rng(seed)
    means: list[NDArray[np.float64]] = []
    rows = max(1, _BLOCK // scores.size)
    for start in range(0, resamples, rows):
        drawn = rng.integers(0, scores.size, (min(rows, resamples - start), scores.size))
        means.append(scores[drawn].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(scores.mean()), float(low), float(high))


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """The exact two-sided p-value of McNemar's test on right (1) and wrong (0) answers to the same questions [Q].

    Of the questions on which two agents differ each is as likely to be won by
    the one as by the other, if they are equally good: a binomial test. 1 where they
    never differ. `ValueError` where the scores are not 0 and 1, or not as many.

    >>> round(mcnemar([1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]), 5)
    0.03125
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != other.shape or not np.isin([*one.ravel(), *other.ravel()], (0, 1)).all():
        raise ValueError("McNemar's test compares as many scores with as many, all of them 0 or 1")
    wins, losses = int((one > other).sum()), int((one < other).sum())
    differing = wins + losses
    if not differing:
        return 1.0
    tail = sum(math.exp(_log_binomial(differing, k)) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail)


def _log_binomial(n: int, k: int) -> float:
    """Logarithm of the chance of k heads in n throws."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
