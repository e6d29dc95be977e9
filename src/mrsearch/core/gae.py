"""Generalised advantage estimation over the policy's own tokens, where a critic gives a value for each (PPO)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def token_advantages(
    rewards: npt.ArrayLike, values: npt.ArrayLike, episodes: npt.ArrayLike, *, gamma: float, lam: float
) -> tuple[FloatArray, FloatArray]:
    """Advantages and returns [K] of the K tokens that the policy wrote in one meta-episode, in order.

    Observations are left out before: a token is followed by the next that the policy
    wrote. `rewards` [N] are those of the episodes, each placed on its last token;
    `values` [K] are the critic's before each token; `episodes` [K] number the episode of
    each from 1. `gamma` discounts from one episode to the next, and nothing within one:

    d[k] = r[k] + g[k] V[k+1] - V[k];  A[k] = d[k] + g[k] lam A[k+1];  return = A + V.

    >>> token_advantages([1.0], [0.2, 0.4, 0.6], [1, 1, 1], gamma=1.0, lam=0.9)[0].round(3).tolist()
    [0.704, 0.56, 0.4]
    """
    value = np.asarray(values, dtype=np.float64)
    episode = np.asarray(episodes, dtype=np.intp)
    reward = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros_like(value)
    following = after = 0.0
    for k in reversed(range(len(value))):
        last = k + 1 == len(value) or episode[k + 1] != episode[k]
        discount = gamma if last else 1.0
        delta = (reward[episode[k] - 1] if last else 0.0) + discount * after - value[k]
        following = delta + discount * lam * following
        advantages[k], after = following, value[k]
    return advantages, advantages + value
