"""From meta-episodes to padded micro-batches: which tokens are trained, with which advantage.

A row is one window. The positions of its trained tokens are read from the mask
that was set when they were sampled, never from token values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mrsearch.core.types import Trajectory

FILL = 0
"""The id that stands where a row is shorter than its batch: any will do, since nothing can see it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One window for training: T ids, and of its M trained tokens position, advantage and sampled log-probability."""

    ids: list[int]
    positions: np.ndarray
    advantages: np.ndarray
    logprobs: np.ndarray
    group: int

    def with_gradient(self) -> Row | None:
        """The row with those tokens alone whose policy term is not zero, cut behind the last of them; None for none."""
        moving = np.flatnonzero(self.advantages)
        if not len(moving):
            return None
        return Row(
            self.ids[: self.positions[moving[-1]] + 1],
            self.positions[moving],
            self.advantages[moving],
            self.logprobs[moving],
            self.group,
        )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded on the right: ids [B, T]; of the M trained tokens of all rows: row, position, target, values [M]."""

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    advantages: torch.Tensor
    logprobs: torch.Tensor


def rows_of(trajectories: Sequence[Trajectory]) -> list[Row]:
    """All windows with trained tokens; each token gets the advantage of the episode in which it was sampled."""
    rows = []
    for trajectory in trajectories:
        by_episode = np.zeros(max((episode.number for episode in trajectory.episodes), default=0) + 1)
        by_episode[1 : len(trajectory.advantages) + 1] = trajectory.advantages
        for window in trajectory.windows:
            positions = np.flatnonzero(window.loss_mask)
            if not len(positions):
                continue
            rows.append(
                Row(
                    ids=window.ids,
                    positions=positions,
                    advantages=by_episode[np.asarray(window.episode_ids)[positions]],
                    logprobs=np.asarray(window.logprobs)[positions],
                    group=trajectory.group,
                )
            )
    return rows


def split_by_group(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Share rows among the updates of one rollout, whole groups at a time, in the order of the groups."""
    order = {group: index for index, group in enumerate(dict.fromkeys(row.group for row in rows))}
    shares: list[list[Row]] = [[] for _ in range(parts)]
    for row in rows:
        shares[order[row.group] % parts].append(row)
    return shares


def micro_batches(rows: Sequence[Row], token_budget: int, *, device: torch.device) -> Iterator[MicroBatch]:
    """Rows sorted by length, in batches of at most `token_budget` tokens with padding (one row always goes)."""
    ordered = sorted(rows, key=lambda row: len(row.ids))
    batch: list[Row] = []
    for row in ordered:
        if batch and len(row.ids) * (len(batch) + 1) > token_budget:
            yield pad_rows(batch, device=device)
            batch = []
        batch.append(row)
    if batch:
        yield pad_rows(batch, device=device)


def pad_rows(rows: Sequence[Row], *, device: torch.device) -> MicroBatch:
    """Put rows side by side, padded on the right, where causal attention cannot see the padding."""
    width = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), width), FILL, dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
    which = np.concatenate([np.full(len(row.positions), index) for index, row in enumerate(rows)])
    positions = np.concatenate([row.positions for row in rows])

    def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    return MicroBatch(
        ids=tensor(ids, torch.long),
        rows=tensor(which, torch.long),
        positions=tensor(positions, torch.long),
        targets=tensor(ids[which, positions], torch.long),
        advantages=tensor(np.concatenate([row.advantages for row in rows]), torch.float32),
        logprobs=tensor(np.concatenate([row.logprobs for row in rows]), torch.float32),
    )
