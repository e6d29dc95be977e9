"""Rewards of episodes to their advantages: who is compared with whom, and what flows back to whom.

Pure functions on arrays. The axes: B meta-episodes (rows) of all groups of a
step, N episodes (columns). A rule is one function, listed in `RULES`; what the
rules share, ragged groups and their baselines, is `settle` and `leave_one_out`.
Nothing here knows of tokens or models.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from mrsearch.core.types import MetaEnd
from mrsearch.errors import ConfigError, DataError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

Groups = Sequence[Hashable] | npt.NDArray[Any]
"""For each row the id of its group: anything hashable, in any order."""

Ragged = Literal["zero", "present"]
"""A missing episode has reward 0 and stays in the baseline, or baselines are over those that have the episode."""


class CreditRule(Protocol):
    """The shape of every rule, so that they can be exchanged by name; one that has no use for a setting ignores it."""

    def __call__(
        self,
        rewards: npt.ArrayLike,
        *,
        groups: Groups | None = None,
        lengths: npt.ArrayLike | None = None,
        ended: Sequence[MetaEnd] | None = None,
        gamma: float = 1.0,
        mask: npt.ArrayLike | None = None,
        ragged: Ragged = "zero",
        cost: float = 0.0,
    ) -> FloatArray:
        """Advantage of every episode: [B, N] rewards to [B, N] advantages, 0 past the length of a row."""
        ...


def mr_search(
    rewards: npt.ArrayLike,
    *,
    groups: Groups | None = None,
    lengths: npt.ArrayLike | None = None,
    ended: Sequence[MetaEnd] | None = None,
    gamma: float = 1.0,
    mask: npt.ArrayLike | None = None,
    ragged: Ragged = "zero",
    cost: float = 0.0,
) -> FloatArray:
    """The paper's rule: leave-one-out against peers of the same episode, then the discounted sum of what follows.

    rt[i,n] = r[i,n] - mean over j != i of r[j,n];  A[i,n] = sum over n' >= n of gamma^(n'-n) m[n'] rt[i,n'].

    >>> mr_search([[0, 1, 1], [0, 0, 1], [1, 1, 0]]).tolist()
    [[0.5, 1.0, 0.5], [-1.0, -0.5, 0.5], [0.5, -0.5, -1.0]]

    `mask` holds m, 0 at exploration episodes: they lose their own term and keep
    what later ones send back. By default all rows are one group of complete
    meta-episodes.
    """
    settled = settle(rewards, groups=groups, lengths=lengths, ended=ended, ragged=ragged, cost=cost)
    relative = leave_one_out(settled) * _episode_mask(mask, settled.rewards.shape[1])
    return np.where(settled.played, discounted_sum(relative, gamma), 0.0)


RULES: dict[str, CreditRule] = {"mr_search": mr_search}
"""The rules by the name that a config gives them."""


def signal(advantages: npt.ArrayLike, groups: Groups | None = None) -> BoolArray:
    """For each row [B], whether anyone in its group has an advantage other than 0, so that there is something to learn.

    >>> signal([[0.5], [-0.5], [0.0]], groups=["q1", "q1", "q2"]).tolist()
    [True, True, False]
    """
    advantages = _matrix(advantages, "advantages")
    group, number = _number_groups(groups, len(advantages))
    found = np.zeros(number, dtype=np.bool_)
    # Terms that cancel leave about 1e-16 behind.
    found[group[(np.abs(advantages) > 1e-12).any(axis=1)]] = True
    return found[group]


@dataclass(frozen=True, slots=True)
class Settled:
    """Rewards of ragged groups with every question of who counts answered; what a rule starts from.

    `rewards` [B, N] are after cost and carrying, 0 where there is nothing;
    `counts` [B, N] says who is in the baseline of an episode, `played` [B, N]
    which episodes took place in a meta-episode that stays in its group;
    `group` [B] numbers the groups from 0 to `groups` - 1.
    """

    rewards: FloatArray
    counts: BoolArray
    played: BoolArray
    group: IntArray
    groups: int


def settle(
    rewards: npt.ArrayLike,
    *,
    groups: Groups | None = None,
    lengths: npt.ArrayLike | None = None,
    ended: Sequence[MetaEnd] | None = None,
    ragged: Ragged = "zero",
    cost: float = 0.0,
) -> Settled:
    """Take costs, carry what stands, drop what failed, and say who counts where.

    - a played episode n >= 2 pays `cost`;
    - after `stopped`, the last reward stands for the missing episodes, without cost, and counts;
    - after `retrieval_failed`, the whole row leaves its group;
    - other missing episodes are 0 and count (`ragged` "zero"), or do not count ("present").
    """
    if ragged not in get_args(Ragged):
        raise ConfigError(f"ragged is {ragged!r}; choose one of: {', '.join(get_args(Ragged))}")
    rewards = _matrix(rewards, "rewards")
    rows, episodes = rewards.shape
    group, number = _number_groups(groups, rows)
    length = _lengths(lengths, rows, episodes)
    stopped, failed = _endings(ended, rows)
    if np.any(stopped & (length == 0)):
        row = int(np.flatnonzero(stopped & (length == 0))[0])
        raise DataError(
            f"row {row} of the rewards ended 'stopped' with no episode; there is no answer that could stand"
        )

    index = np.arange(episodes)
    played = (index < length[:, None]) & ~failed[:, None]
    if not np.isfinite(rewards[played]).all():
        row, episode = (int(axis[0]) for axis in np.nonzero(played & ~np.isfinite(rewards)))
        raise DataError(f"reward of row {row}, episode {episode + 1} is {rewards[row, episode]}; it must be finite")

    missing = (index >= length[:, None]) & ~failed[:, None]
    carried = missing & stopped[:, None]
    last = np.take_along_axis(rewards, np.maximum(length - 1, 0)[:, None], axis=1) if episodes else rewards
    settled = np.where(played, rewards - cost * (index > 0), 0.0)
    settled = np.where(carried, last, settled)
    counts = played | carried | (missing if ragged == "zero" else np.zeros_like(missing))
    return Settled(settled, counts, played, group, number)


def leave_one_out(settled: Settled) -> FloatArray:
    """Each reward less the mean of its peers in the same group and episode; 0 without a peer or where none counts."""
    shape = (settled.groups, settled.rewards.shape[1])
    # From the least reward of the column, since a sum of equal decimals is not exactly their multiple: where all
    # rewards are equal, all advantages have to be exactly 0.
    least = np.full(shape, np.inf)
    np.minimum.at(least, settled.group, np.where(settled.counts, settled.rewards, np.inf))
    above = np.where(settled.counts, settled.rewards - least[settled.group], 0.0)

    total, members = np.zeros(shape), np.zeros(shape)
    np.add.at(total, settled.group, above)
    np.add.at(members, settled.group, settled.counts)
    peers = members[settled.group] - 1
    others = (total[settled.group] - above) / np.maximum(peers, 1)
    return np.where(settled.counts & (peers > 0), above - others, 0.0)


def discounted_sum(values: FloatArray, gamma: float) -> FloatArray:
    """For each episode its value and, discounted by `gamma` a step, those of the later ones."""
    collected = values.copy()
    for n in reversed(range(values.shape[1] - 1)):
        collected[:, n] += gamma * collected[:, n + 1]
    return collected


def _matrix(values: npt.ArrayLike, name: str) -> FloatArray:
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2:
        raise DataError(f"{name} have shape {matrix.shape}; they must be [meta-episodes, episodes]")
    return matrix


def _number_groups(groups: Groups | None, rows: int) -> tuple[IntArray, int]:
    if groups is None:
        return np.zeros(rows, dtype=np.intp), min(rows, 1)
    if len(groups) != rows:
        raise DataError(f"{len(groups)} group ids for {rows} meta-episodes; there must be one for each")
    if isinstance(groups, np.ndarray) and groups.ndim == 1 and groups.dtype != object:
        unique, group = np.unique(groups, return_inverse=True)
        return group.astype(np.intp), len(unique)
    # Numbered by a dict, since numpy would take the ids 1 and "1" of a list for one.
    numbers: dict[Hashable, int] = {}
    group = np.fromiter((numbers.setdefault(id_, len(numbers)) for id_ in groups), dtype=np.intp, count=rows)
    return group, len(numbers)


def _lengths(lengths: npt.ArrayLike | None, rows: int, episodes: int) -> IntArray:
    if lengths is None:
        return np.full(rows, episodes, dtype=np.intp)
    given = np.asarray(lengths)
    length = given.astype(np.intp)
    if given.shape != (rows,):
        raise DataError(f"lengths have shape {given.shape}; there must be one for each of {rows} meta-episodes")
    if np.any(length != given) or np.any((length < 0) | (length > episodes)):
        raise DataError(f"lengths {given.tolist()} must be whole numbers from 0 to {episodes}, the episodes of a row")
    return length


def _endings(ended: Sequence[MetaEnd] | None, rows: int) -> tuple[BoolArray, BoolArray]:
    """Which rows stopped, and which failed in retrieval."""
    if ended is None:
        return np.zeros(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
    if len(ended) != rows:
        raise DataError(f"{len(ended)} endings for {rows} meta-episodes; there must be one for each")
    unknown = set(ended) - set(get_args(MetaEnd))
    if unknown:
        raise DataError(
            f"a meta-episode cannot end {sorted(map(str, unknown))}; endings are: {', '.join(get_args(MetaEnd))}"
        )
    endings = np.asarray(ended, dtype=np.str_)
    return endings == "stopped", endings == "retrieval_failed"


def _episode_mask(mask: npt.ArrayLike | None, episodes: int) -> FloatArray:
    if mask is None:
        return np.ones(episodes)
    given = np.asarray(mask, dtype=np.float64)
    if given.shape != (episodes,):
        raise DataError(f"the mask has shape {given.shape}; it must have one value for each of {episodes} episodes")
    return given
