"""Rewards of ragged groups: who counts where, and what a reward is compared with.

The axes: B meta-episodes (rows) of all groups of a step, N episodes (columns).
Knows no rule; the rules are in `credit`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

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
    rewards = matrix(rewards, "rewards")
    rows, episodes = rewards.shape
    group, number = number_groups(groups, rows)
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
    above, members = _above_least(settled)
    others = (_per_group(settled, above) - above) / np.maximum(members - 1, 1)
    return np.where(settled.counts & (members > 1), above - others, 0.0)


def member_counts(settled: Settled) -> FloatArray:
    """How many rows count in the group of each row, in each episode [B, N]."""
    return _per_group(settled, settled.counts.astype(np.float64))


def above_mean(settled: Settled) -> FloatArray:
    """Each reward less the mean of its group in the same episode, its own included; 0 where it does not count."""
    above, members = _above_least(settled)
    total = _per_group(settled, above)
    return np.where(settled.counts, above - total / np.maximum(members, 1), 0.0)


def standardized(settled: Settled, eps: float) -> FloatArray:
    """Each reward less its group's mean, over the group's sample standard deviation plus `eps`; 0 without a peer."""
    centred = above_mean(settled)
    _, members = _above_least(settled)
    deviation = np.sqrt(_per_group(settled, centred**2) / np.maximum(members - 1, 1))
    return np.where(members > 1, centred / (deviation + eps), 0.0)


def last_rewards(settled: Settled) -> Settled:
    """The same rows with one reward each, their last, in every episode.

    With `ragged` "zero" that of the last episode of the plan, which is 0 where it
    is missing, with "present" that of the last that took place; a carried answer
    stands.
    """
    columns = settled.rewards.shape[1]
    if not columns:
        return settled
    last = np.where(settled.counts, np.arange(columns), -1).max(axis=1)
    counts = np.repeat(last[:, None] >= 0, columns, axis=1)
    rewards = np.take_along_axis(settled.rewards, np.maximum(last, 0)[:, None], axis=1)
    return replace(settled, rewards=np.where(counts, rewards, 0.0), counts=counts)


def number_groups(groups: Groups | None, rows: int) -> tuple[IntArray, int]:
    """The groups of rows, numbered from 0, and how many there are."""
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


def _above_least(settled: Settled) -> tuple[FloatArray, FloatArray]:
    """Rewards above the least of their group and episode, and how many count there, both [B, N].

    From the least, since a sum of equal decimals is not exactly their multiple: where
    all rewards are equal, all advantages have to be exactly 0.
    """
    least = np.full((settled.groups, settled.rewards.shape[1]), np.inf)
    np.minimum.at(least, settled.group, np.where(settled.counts, settled.rewards, np.inf))
    above = np.where(settled.counts, settled.rewards - least[settled.group], 0.0)
    return above, member_counts(settled)


def _per_group(settled: Settled, values: FloatArray) -> FloatArray:
    """For each row and episode the sum over its group."""
    total = np.zeros((settled.groups, settled.rewards.shape[1]))
    np.add.at(total, settled.group, values)
    return total[settled.group]


def matrix(values: npt.ArrayLike, name: str) -> FloatArray:
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2:
        raise DataError(f"{name} have shape {matrix.shape}; they must be [meta-episodes, episodes]")
    return matrix


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
