"""The critic of PPO: a value head on a copy of the policy's backbone, with an optimiser of its own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mrsearch.config import CriticConfig, OptimizerConfig
from mrsearch.core.credit import whitened
from mrsearch.core.gae import token_advantages
from mrsearch.engine.loss import states_at
from mrsearch.engine.model import LanguageModel, read_weights
from mrsearch.engine.pack import Row, batches, micro_batches, pad_rows
from mrsearch.engine.schedule import learning_rate
from mrsearch.errors import DataError

FOLDER = "critic"
"""Where it lies in a checkpoint."""


class Critic:
    """Values of the tokens of meta-episodes, and what follows from them.

    `gamma` is the discount from one episode to the next (`credit.gamma`). The
    head begins at 0, so that all values do.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        config: CriticConfig,
        optimizer: OptimizerConfig,
        gamma: float,
        total_updates: int,
        micro_batch_tokens: int = 16384,
    ) -> None:
        self._model = model
        self._config = config
        self._rates = replace(optimizer, lr=config.lr, warmup=config.warmup)
        self._gamma = gamma
        self._total_updates = total_updates
        self._micro_batch_tokens = micro_batch_tokens
        self._head = torch.nn.Linear(model.width, 1, device=model.device)
        torch.nn.init.zeros_(self._head.weight)
        torch.nn.init.zeros_(self._head.bias)
        # The output layer of the copy has no gradient where it is not tied to the embeddings.
        self._parameters = [*(parameter for _, parameter in model.trainable()), *self._head.parameters()]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.lr, betas=optimizer.betas, weight_decay=optimizer.weight_decay
        )
        self._done = 0

    def judge(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with values, returns and advantages for their tokens, whose advantages until now are rewards.

        Of each episode the reward stands on all of its tokens, as a credit rule leaves it.
        """
        valued = self._valued(rows)
        samples: dict[int, list[int]] = defaultdict(list)
        for place, row in enumerate(valued):
            samples[row.sample].append(place)
        found = list(valued)
        for places in samples.values():
            whole = [valued[place] for place in places]
            episodes = np.concatenate([row.episodes for row in whole])
            rewards = np.zeros(episodes.max())
            rewards[episodes - 1] = np.concatenate([row.advantages for row in whole])
            advantages, returns = token_advantages(
                rewards,
                np.concatenate([row.values for row in whole]),
                episodes,
                gamma=self._gamma,
                lam=self._config.lam,
            )
            ends = np.cumsum([len(row.positions) for row in whole])[:-1]
            for place, own, target in zip(places, np.split(advantages, ends), np.split(returns, ends), strict=True):
                found[place] = replace(valued[place], advantages=own, returns=target)
        return _whitened(found) if self._config.whiten else found

    def update(self, rows: Sequence[Row]) -> dict[str, float]:
        """One optimiser step on the clipped value loss, the mean over the tokens of the rows; its metrics."""
        count = sum(len(row.positions) for row in rows)
        rate = learning_rate(self._rates, self._done, self._total_updates)
        self._done += 1
        if not count:
            return {}
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for micro in micro_batches(rows, self._micro_batch_tokens, device=self._model.device):
            with self._model.computing():
                values = self._values(micro.ids, micro.rows, micro.positions)
            loss = value_losses(values, micro.values, micro.returns, self._config.clip).sum() / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._rates.max_grad_norm))
        if math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {"critic/loss": total, "critic/grad_norm": norm}

    def save(self, folder: Path) -> None:
        """Write backbone, head and optimiser into a folder of a checkpoint."""
        self._model.save(folder / FOLDER)
        state = {"head": self._head.state_dict(), "optimizer": self._optimizer.state_dict(), "updates": self._done}
        torch.save(state, folder / FOLDER / "critic.pt")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""
        path = folder / FOLDER / "critic.pt"
        if not path.exists():
            raise DataError(f"{folder} has no {FOLDER}/critic.pt: it is no checkpoint of a run with a critic")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        weights = read_weights(folder / FOLDER)
        with torch.no_grad():
            for name, parameter in self._model.trainable():
                parameter.copy_(weights[name])
        self._head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._done = state["updates"]

    def _values(self, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self._head(states_at(self._model, ids, rows, positions))
        return values[:, 0].float()

    @torch.no_grad()
    def _valued(self, rows: Sequence[Row]) -> list[Row]:
        valued: dict[int, Row] = {}
        for batch in batches(rows, self._micro_batch_tokens):
            micro = pad_rows(batch, device=self._model.device)
            with self._model.computing():
                values = self._values(micro.ids, micro.rows, micro.positions).cpu().double().numpy()
            ends = np.cumsum([len(row.positions) for row in batch])[:-1]
            for row, own in zip(batch, np.split(values, ends), strict=True):
                valued[id(row)] = replace(row, values=own)
        return [valued[id(row)] for row in rows]


def value_losses(values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float) -> torch.Tensor:
    """The clipped value loss of each token, [M]: 0.5 max((V - R)^2, (V held within `clip` of the old V - R)^2)."""
    losses = (values - returns) ** 2
    if clip:
        held = old + (values - old).clamp(-clip, clip)
        losses = torch.maximum(losses, (held - returns) ** 2)
    return 0.5 * losses


def explained_variance(rows: Sequence[Row]) -> float:
    """1 less the share of the variance of returns that the values leave over; 0 where returns do not vary."""
    returns = np.concatenate([row.returns for row in rows]) if rows else np.zeros(0)
    if not returns.size or not returns.var():
        return 0.0
    left = returns - np.concatenate([row.values for row in rows])
    return float(1 - left.var() / returns.var())


def _whitened(rows: Sequence[Row]) -> list[Row]:
    """The rows with advantages of mean 0 and variance 1 over all their tokens."""
    if not rows:
        return []
    every = np.concatenate([row.advantages for row in rows])
    ends = np.cumsum([len(row.positions) for row in rows])[:-1]
    parts = np.split(whitened(every, np.ones_like(every)), ends)
    return [replace(row, advantages=part) for row, part in zip(rows, parts, strict=True)]
