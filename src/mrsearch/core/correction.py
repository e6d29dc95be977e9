"""Importance weights for tokens that one engine sampled and another trains: truncated or masked.

Sampler and trainer give the same token slightly different probabilities. With
w = exp(log-probability of the trainer before its first update - that of the
sampler), the clipped loss of a token is multiplied by a bounded w.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Correction = Literal["none", "token_tis", "token_mis", "episode_tis", "episode_mis"]
"""By token or by the product over an episode; truncated from above (tis), or 0 outside the bounds (mis)."""

LARGEST = 20.0
"""Log-ratios are held within this before they are put into an exponential."""


def unbounded_weights(
    log_ratios: npt.ArrayLike, units: npt.ArrayLike, correction: Correction
) -> npt.NDArray[np.float64]:
    """w [M] for each token, from log-ratios [M]; `units` [M] numbers the episode of each.

    The episode forms take the product over an episode's tokens, and never over a
    meta-episode's, which would drift with its length.
    """
    logs = np.asarray(log_ratios, dtype=np.float64)
    if correction == "none":
        return np.ones_like(logs)
    if correction.startswith("episode"):
        _, unit = np.unique(np.asarray(units), return_inverse=True)
        logs = np.bincount(unit, weights=logs).astype(np.float64)[unit]
    return np.exp(np.clip(logs, -LARGEST, LARGEST))


def bounded_weights(
    weights: npt.NDArray[np.float64], correction: Correction, *, low: float, high: float
) -> npt.NDArray[np.float64]:
    """The weights within their bounds: min(w, high) for tis; w within [low, high], else 0, for mis.

    >>> logs = [0.5, -0.2, 1.0]
    >>> weights = unbounded_weights(logs, [0, 0, 0], "token_tis")
    >>> bounded_weights(weights, "token_tis", low=0.5, high=2.0).round(4).tolist()
    [1.6487, 0.8187, 2.0]
    """
    if correction == "none":
        return weights
    if correction.endswith("tis"):
        return np.minimum(weights, high)
    return np.where((weights >= low) & (weights <= high), weights, 0.0)
