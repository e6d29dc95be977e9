"""From meta-episodes to padded micro-batches: which tokens are trained, with which advantage.

A row is one window. The positions of its trained tokens are read from the mask
that was set when they were sampled, never from token values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from mrsearch.core.types import Trajectory

NOTHING = 1e-12
"""An advantage within so much of 0 is 0: terms that cancel leave about 1e-16 behind."""

FILL = 0
"""The id that stands where a row is shorter than its batch: any will do, since nothing can see it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One window for training: T ids, and an entry for each of its M trained tokens in all other arrays."""

    ids: list[int]
    positions: np.ndarray
    advantages: np.ndarray
    logprobs: np.ndarray
    """As the sampler drew them."""
    episodes: np.ndarray
    """Number of the episode, from 1."""
    turns: np.ndarray
    """Number of the turn in its meta-episode, from 0."""
    answers: np.ndarray
    """Whether that turn gave an answer."""
    old: np.ndarray
    """Log-probabilities under the policy that the ratio is taken against."""
    weights: np.ndarray
    """Importance weights of the policy term."""
    scales: np.ndarray
    """What a token's loss counts in the sum of the step."""
    preserve: np.ndarray
    """What its fall in likelihood counts there (LLDS)."""
    values: np.ndarray
    """The critic's, before the token."""
    returns: np.ndarray
    """What the critic learns."""
    group: int
    sample: int
    """Number of the meta-episode in the batch."""

    def take(self, which: np.ndarray) -> Row:
        """The row with these of its trained tokens alone, cut behind the last of them."""
        kept = {name: getattr(self, name)[which] for name in PER_TOKEN}
        return replace(self, ids=self.ids[: self.positions[which[-1]] + 1], **kept)

    def with_gradient(self) -> Row | None:
        """The row with those tokens alone whose policy term is not zero, cut behind the last of them; None for none."""
        moving = np.flatnonzero(self.advantages * self.weights)
        return self.take(moving) if len(moving) else None


PER_TOKEN = (
    "positions",
    "advantages",
    "logprobs",
    "episodes",
    "turns",
    "answers",
    "old",
    "weights",
    "scales",
    "preserve",
    "values",
    "returns",
)
"""The arrays of a row that have an entry for each trained token."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded on the right: ids [B, T]; of the M trained tokens of all rows: row, position, target, values [M]."""

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    advantages: torch.Tensor
    logprobs: torch.Tensor
    old: torch.Tensor
    weights: torch.Tensor
    scales: torch.Tensor
    preserve: torch.Tensor
    values: torch.Tensor
    returns: torch.Tensor
    actions: torch.Tensor
    """Number of the turn, from 0 over the whole micro-batch."""
    episodes: torch.Tensor
    """Number of the episode, from 0 over the whole micro-batch."""


def rows_of(trajectories: Sequence[Trajectory]) -> list[Row]:
    """All windows with trained tokens; each token gets the advantage of its turn, or else of its episode."""
    rows = []
    for sample, trajectory in enumerate(trajectories):
        by_episode = np.zeros(max((episode.number for episode in trajectory.episodes), default=0) + 1)
        by_episode[1 : len(trajectory.advantages) + 1] = trajectory.advantages
        turns, answers = _turns(trajectory)
        by_turn = np.array([value for episode in trajectory.turn_advantages for value in episode])
        for number, window in enumerate(trajectory.windows):
            positions = np.flatnonzero(window.loss_mask)
            if not len(positions):
                continue
            episodes = np.asarray(window.episode_ids)[positions]
            logprobs = np.asarray(window.logprobs)[positions]
            rows.append(
                Row(
                    ids=window.ids,
                    positions=positions,
                    advantages=by_turn[turns[number][positions]] if len(by_turn) else by_episode[episodes],
                    logprobs=logprobs,
                    episodes=episodes,
                    turns=turns[number][positions],
                    answers=answers[number][positions],
                    old=logprobs,
                    weights=np.ones(len(positions)),
                    scales=np.ones(len(positions)),
                    preserve=np.zeros(len(positions)),
                    values=np.zeros(len(positions)),
                    returns=np.zeros(len(positions)),
                    group=trajectory.group,
                    sample=sample,
                )
            )
    return rows


def _turns(trajectory: Trajectory) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each position of each window the number of its turn (-1 where there is none), and whether it answers."""
    turns = [np.full(len(window.ids), -1) for window in trajectory.windows]
    answers = [np.zeros(len(window.ids), dtype=bool) for window in trajectory.windows]
    for number, turn in enumerate(turn for episode in trajectory.episodes for turn in episode.turns):
        turns[turn.window][turn.start : turn.end] = number
        answers[turn.window][turn.start : turn.end] = turn.action.kind == "answer"
    return turns, answers


def scaled(rows: Sequence[Row], mean: Literal["tokens", "sequences", "constant"], length: int = 0) -> list[Row]:
    """The rows with the scales by which the sum over their tokens is a mean.

    tokens: over all of them. sequences: over the tokens of a meta-episode, then over
    meta-episodes. constant: sums of meta-episodes over `length`, then over these.
    """
    tokens: dict[int, int] = {}
    for row in rows:
        tokens[row.sample] = tokens.get(row.sample, 0) + len(row.positions)
    found = []
    for row in rows:
        match mean:
            case "tokens":
                scale = 1 / sum(tokens.values())
            case "sequences":
                scale = 1 / (tokens[row.sample] * len(tokens))
            case "constant":
                scale = 1 / (length * len(tokens))
        found.append(replace(row, scales=np.full(len(row.positions), scale)))
    return found


def preserving(rows: Sequence[Row], gate: Literal["action", "token", "response"], answer: float) -> list[Row]:
    """The rows with the weights of LLDS (arXiv 2512.04220) for tokens whose advantage is not negative.

    Each episode that has some is a member of the preserving set, over which and over whose
    such tokens the mean is taken; with `gate` "token" the mean is over all of them. Tokens
    of turns that answer have the weight `answer`.
    """
    members = []
    for row in rows:
        kept_up = row.advantages >= -NOTHING
        members.append([(n, kept_up & (row.episodes == n)) for n in np.unique(row.episodes[kept_up])])
    count = sum(len(found) for found in members)
    total = sum(int(which.sum()) for found in members for _, which in found)
    kept = []
    for row, found in zip(rows, members, strict=True):
        preserve = np.zeros(len(row.positions))
        for _, which in found:
            preserve[which] = 1 / total if gate == "token" else 1 / (which.sum() * count)
        kept.append(replace(row, preserve=preserve * np.where(row.answers, answer, 1.0)))
    return kept


def split_by_group(rows: Sequence[Row], parts: int) -> list[list[Row]]:
    """Share rows among the updates of one rollout, whole groups at a time, in the order of the groups."""
    order = {group: index for index, group in enumerate(dict.fromkeys(row.group for row in rows))}
    shares: list[list[Row]] = [[] for _ in range(parts)]
    for row in rows:
        shares[order[row.group] % parts].append(row)
    return shares


def batches(rows: Sequence[Row], token_budget: int) -> Iterator[list[Row]]:
    """Rows sorted by length, in batches of at most `token_budget` tokens with padding (one row always goes)."""
    ordered = sorted(rows, key=lambda row: len(row.ids))
    batch: list[Row] = []
    for row in ordered:
        if batch and len(row.ids) * (len(batch) + 1) > token_budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def micro_batches(rows: Sequence[Row], token_budget: int, *, device: torch.device) -> Iterator[MicroBatch]:
    """The batches of rows as tensors."""
    for batch in batches(rows, token_budget):
        yield pad_rows(batch, device=device)


def pad_rows(rows: Sequence[Row], *, device: torch.device) -> MicroBatch:
    """Put rows side by side, padded on the right, where causal attention cannot see the padding."""
    width = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), width), FILL, dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
    which = np.concatenate([np.full(len(row.positions), index) for index, row in enumerate(rows)])
    joined = {name: np.concatenate([getattr(row, name) for row in rows]) for name in PER_TOKEN}
    positions = joined["positions"]

    def tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    return MicroBatch(
        ids=tensor(ids, torch.long),
        rows=tensor(which, torch.long),
        positions=tensor(positions, torch.long),
        targets=tensor(ids[which, positions], torch.long),
        advantages=tensor(joined["advantages"], torch.float32),
        logprobs=tensor(joined["logprobs"], torch.float32),
        old=tensor(joined["old"], torch.float32),
        weights=tensor(joined["weights"], torch.float32),
        scales=tensor(joined["scales"], torch.float32),
        preserve=tensor(joined["preserve"], torch.float32),
        values=tensor(joined["values"], torch.float32),
        returns=tensor(joined["returns"], torch.float32),
        actions=tensor(_numbered(which, joined["turns"]), torch.long),
        episodes=tensor(_numbered(which, joined["episodes"]), torch.long),
    )


def _numbered(rows: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Numbers from 0 for the parts of rows, each a pair of a row and what it calls the part."""
    return np.unique(np.stack([rows, parts]), axis=1, return_inverse=True)[1].ravel()
