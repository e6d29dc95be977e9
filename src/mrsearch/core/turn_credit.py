"""Credit by turn: returns with two discounts, within an episode and across episodes, and rewards of single turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mrsearch.core.credit import discounted_sum, episode_mask
from mrsearch.core.groups import Groups, leave_one_out, member_counts, settle
from mrsearch.core.types import MetaEnd
from mrsearch.errors import DataError

TurnValues = Sequence[Sequence[Sequence[float]]]
"""A number for each turn of each episode of each meta-episode."""


def turn_credit(
    rewards: npt.ArrayLike,
    turns: TurnValues,
    *,
    groups: Groups | None = None,
    lengths: npt.ArrayLike | None = None,
    ended: Sequence[MetaEnd] | None = None,
    gamma: float = 1.0,
    step_gamma: float = 1.0,
    mask: npt.ArrayLike | None = None,
    cost: float = 0.0,
) -> list[list[list[float]]]:
    """Advantage of every turn: [B, N] rewards of episodes and rewards of their turns to values of the turns' shape.

    g[n,s] = sum over l >= s of step_gamma^(l-s) p[n,l], where the episode's own reward is added to its last turn's;
    G[n,s] = g[n,s] + sum over m > n of gamma^(m-n) g[m,1];  A[i,n,s] = G[i,n,s] - mean over j != i of G[j,n,1].

    The two discounts are LaMer's (arXiv 2512.16848, in the form of its paper). The
    baseline is the peers' return at the first turn of the same episode, which no
    turn of this one has a part in. Missing episodes count as 0. With step_gamma 1 and no
    rewards of turns this is MR-Search's rule.

    >>> turn_credit([[0, 1], [0, 0]], [[[0], [0, 0]], [[0], [0]]], gamma=0.6, step_gamma=0.95)[0]
    [[0.57], [0.95, 1.0]]
    """
    settled = settle(rewards, groups=groups, lengths=lengths, ended=ended, cost=cost)
    rows, episodes = settled.rewards.shape
    if len(turns) != rows:
        raise DataError(f"rewards of turns for {len(turns)} meta-episodes, of which there are {rows}")
    own = settled.rewards * episode_mask(mask, episodes)
    within = [
        [_returns(of_turns, own[row, n], step_gamma) for n, of_turns in enumerate(turns[row])] for row in range(rows)
    ]
    first = own.copy()  # of an episode without a turn, its reward
    for row, of_episodes in enumerate(within):
        for n, values in enumerate(of_episodes):
            if values:
                first[row, n] = values[0]
    later = gamma * np.pad(discounted_sum(first, gamma)[:, 1:], ((0, 0), (0, 1)))[:, :episodes]
    whole = first + later
    above = leave_one_out(replace(settled, rewards=np.where(settled.counts, whole, 0.0)))
    compared = settled.played & (member_counts(settled) > 1)
    return [
        [
            [
                float(value + later[row, n] - whole[row, n] + above[row, n]) if compared[row, n] else 0.0
                for value in values
            ]
            for n, values in enumerate(of_episodes)
        ]
        for row, of_episodes in enumerate(within)
    ]


def _returns(turns: Sequence[float], reward: float, step_gamma: float) -> list[float]:
    """Discounted rewards to come of each turn of an episode, whose own reward comes with its last."""
    found: list[float] = []
    after = 0.0
    for place, value in enumerate(reversed(turns)):
        after = value + (reward if place == 0 else 0.0) + step_gamma * after
        found.append(after)
    return found[::-1]
