"""The embedded learner: from a batch of credited meta-episodes to one or more optimiser steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from mrsearch.codec import HFCodec
from mrsearch.config import LossConfig, OptimizerConfig
from mrsearch.core.correction import bounded_weights, unbounded_weights
from mrsearch.core.ports import Batch, StepMetrics
from mrsearch.engine.critic import Critic, explained_variance
from mrsearch.engine.loss import (
    Tokens,
    backward_in_chunks,
    k3,
    likelihood_gates,
    logprobs_in_chunks,
    states_at,
    supervised_losses,
    token_losses,
)
from mrsearch.engine.model import LanguageModel, read_weights
from mrsearch.engine.pack import (
    MicroBatch,
    Row,
    batches,
    micro_batches,
    pad_rows,
    preserving,
    rows_of,
    scaled,
    split_by_group,
)
from mrsearch.engine.schedule import learning_rate
from mrsearch.errors import DataError

logger = logging.getLogger(__name__)

_LOGITS_AT_ONCE = 2**25
"""Logits of one chunk where the config does not say: 128 MiB in float32."""


class EmbeddedLearner:
    """Trains a `LanguageModel` on one machine; implements the `Learner` port.

    `total_updates` sets the end of the schedule, `temperature` is the one at
    which turns were sampled, `updates` the number of optimiser steps a rollout. With a
    `critic` the advantages of a batch are rewards of episodes, and the critic makes
    advantages of tokens from them (PPO).
    """

    def __init__(
        self,
        model: LanguageModel,
        codec: HFCodec,
        *,
        kind: Literal["rl", "supervised"],
        loss: LossConfig,
        optimizer: OptimizerConfig,
        total_updates: int,
        updates: int = 1,
        temperature: float = 1.0,
        micro_batch_tokens: int = 16384,
        logit_chunk: int = 0,
        reference: LanguageModel | None = None,
        critic: Critic | None = None,
    ) -> None:
        self._model = model
        self._codec = codec
        self._kind = kind
        self._loss = loss
        self._config = optimizer
        self._total_updates = total_updates
        self._updates = updates
        self._temperature = temperature
        self._micro_batch_tokens = micro_batch_tokens
        self._chunk = logit_chunk or max(64, _LOGITS_AT_ONCE // model.vocabulary)
        self._reference = reference
        self._critic = critic
        self._names, parameters = zip(*model.trainable(), strict=True)
        self._parameters = list(parameters)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=optimizer.lr,
            betas=optimizer.betas,
            weight_decay=optimizer.weight_decay,
            fused=model.device.type in ("cpu", "cuda"),
        )
        self._done = 0

    def step(self, batch: Batch) -> StepMetrics:
        """Train on one batch in `updates` optimiser steps; what has nothing to train is skipped and counted."""
        tally = _Tally()
        rows = rows_of(batch.trajectories)
        if self._kind == "rl" and (self._loss.correction != "none" or self._loss.llds > 0):
            rows = self._with_old(rows, tally)
        if self._critic is not None:
            rows = self._critic.judge(rows)
            tally.extra["critic/explained_variance"] = explained_variance(rows)
        for share in split_by_group(rows, self._updates):
            self._update(share, tally)
            if self._critic is not None:
                tally.extra |= self._critic.update(share)
            self._done += 1  # planned updates, so that one that is skipped does not stretch the schedule
        return StepMetrics(tally.metrics())

    def _update(self, rows: Sequence[Row], tally: _Tally) -> None:
        """One optimiser step: the mean over all trained tokens of its rows, however they are batched."""
        tally.begin_update()
        trained = sum(len(row.positions) for row in rows)
        loss = self._loss
        every_row = self._kind == "rl" and (loss.kl > 0 or loss.entropy > 0 or loss.llds > 0)
        rows = scaled(rows, loss.mean, loss.length) if self._kind == "rl" else scaled(rows, "tokens")
        if self._kind == "rl" and loss.llds:
            rows = preserving(rows, loss.llds_gate, loss.llds_answer)
        active = list(rows) if every_row else [kept for row in rows if (kept := row.with_gradient())]
        tally.trained_tokens += trained
        tally.idle_tokens += trained - sum(len(row.positions) for row in active)
        if not active:
            tally.skipped_updates += 1
            return
        self._optimizer.zero_grad(set_to_none=True)
        for micro in micro_batches(active, self._micro_batch_tokens, device=self._model.device):
            with self._model.computing():
                self._accumulate(micro, tally, first_update=tally.updates == 0)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm))
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            tally.skipped_updates += 1
            logger.warning("an update was skipped: its gradient is not finite (norm %s)", norm)
            return
        rate = learning_rate(self._config, self._done, self._total_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        # Not only before the next backward pass: gradients would take their memory all through the rollout.
        self._optimizer.zero_grad(set_to_none=True)
        tally.took_update(norm, rate)

    def _with_old(self, rows: Sequence[Row], tally: _Tally) -> list[Row]:
        """The rows with this model's log-probabilities before it moves, and weights between it and the sampler."""
        corrected: dict[int, Row] = {}
        for batch in batches(rows, self._micro_batch_tokens):
            micro = pad_rows(batch, device=self._model.device)
            with self._model.computing(), torch.no_grad():
                states = states_at(self._model, micro.ids, micro.rows, micro.positions)
                every = self._logprobs(self._model, states, micro).cpu().double().numpy()
            ends = np.cumsum([len(row.positions) for row in batch])
            for row, old in zip(batch, np.split(every, ends[:-1]), strict=True):
                loss = self._loss
                free = unbounded_weights(old - row.logprobs, row.episodes, loss.correction)
                weights = bounded_weights(free, loss.correction, low=loss.correction_low, high=loss.correction_high)
                if loss.correction != "none":
                    tally.add_weights(free, weights)
                corrected[id(row)] = replace(row, old=old, weights=weights)
        return [corrected[id(row)] for row in rows]

    def _logprobs(self, model: LanguageModel, states: torch.Tensor, micro: MicroBatch) -> torch.Tensor:
        return logprobs_in_chunks(model, states, micro.targets, temperature=self._temperature, chunk=self._chunk)

    def _accumulate(self, micro: MicroBatch, tally: _Tally, *, first_update: bool) -> None:
        states = states_at(self._model, micro.ids, micro.rows, micro.positions)
        reference = None
        if self._kind == "rl" and self._loss.kl:
            assert self._reference is not None
            with torch.no_grad():
                kept = states_at(self._reference, micro.ids, micro.rows, micro.positions)
            reference = self._logprobs(self._reference, kept, micro)
        held = None
        # Before the first update nothing has fallen; what rounding makes of that would have a whole gradient.
        if self._kind == "rl" and self._loss.llds and not first_update:
            # Whether a turn as a whole became less likely is known only when all of its tokens are.
            falls = micro.old - self._logprobs(self._model, states.detach(), micro)
            parts = micro.episodes if self._loss.llds_gate == "response" else micro.actions
            held = micro.preserve * likelihood_gates(falls, parts, self._loss.llds_gate) * self._loss.llds

        def loss_of(which: slice, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
            tokens = Tokens(
                logprobs,
                entropy,
                micro.advantages[which],
                micro.logprobs[which],
                None if reference is None else reference[which],
                micro.old[which],
                micro.weights[which],
            )
            losses = token_losses(tokens, self._loss) if self._kind == "rl" else supervised_losses(tokens)
            loss = (losses * micro.scales[which]).sum()
            if held is not None:
                fall = torch.relu(micro.old[which] - logprobs) * held[which]
                tally.add_fall(fall)
                loss = loss + fall.sum()
            tally.add_loss(tokens, loss)
            if self._kind == "rl":
                tally.add_ratios(tokens, self._loss, first_update=first_update)
            return loss

        backward_in_chunks(
            self._model, states, micro.targets, loss_of, temperature=self._temperature, chunk=self._chunk
        )

    def save(self, folder: Path) -> None:
        """Write model and tokenizer, optimiser state, number of updates and random state."""
        self._model.save(folder)
        self._codec.save(folder)
        state = {
            "updates": self._done,
            "parameters": list(self._names),
            "adapters": self._adapters(),
            "optimizer": self._optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        torch.save(state, folder / "learner.pt")
        if self._critic is not None:
            self._critic.save(folder)

    def _adapters(self) -> dict[str, torch.Tensor]:
        """Weights that the saved model does not hold as they are: those of adapters, which it has merged."""
        if not self._model.adapted:
            return {}
        return {name: weight.detach().cpu() for name, weight in zip(self._names, self._parameters, strict=True)}

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, weights included."""
        path = folder / "learner.pt"
        if not path.exists():
            raise DataError(f"{folder} has no learner.pt: it is no checkpoint to go on from")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["parameters"] != list(self._names):
            raise DataError(f"{path} belongs to a model with other parameters than the one configured")
        weights = state["adapters"] or read_weights(folder)
        with torch.no_grad():
            for name, parameter in zip(self._names, self._parameters, strict=True):
                parameter.copy_(weights[name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._done = state["updates"]
        if self._critic is not None:
            self._critic.load(folder)
        torch.set_rng_state(state["random"])
        if state["random_cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["random_cuda"])


class _Tally:
    """Sums over the tokens of a step that had a forward pass, and what became of its updates."""

    def __init__(self) -> None:
        self.trained_tokens = 0
        self.idle_tokens = 0
        self.skipped_updates = 0
        self.updates = 0
        self.rate = 0.0
        self.grad_norms: list[float] = []
        self.extra: dict[str, float] = {}
        self._loss = 0.0
        self._pending_loss = 0.0
        self._count = 0
        self._sums = np.zeros(4)  # entropy, ratio, clipped, divergence from the reference
        self._has_ratios = False
        self._has_reference = False
        self._first_count = 0
        self._fall: float | None = None
        self._weights = np.zeros(3)  # number, sum, how many were bounded
        self._mismatch = np.zeros(2)  # sum and maximum of |sampled - recomputed|, before the weights move

    @torch.no_grad()
    def add_fall(self, fall: torch.Tensor) -> None:
        """Take in the penalty on falling likelihood of one chunk of tokens."""
        self._fall = (self._fall or 0.0) + float(fall.sum())

    def add_weights(self, free: np.ndarray, weights: np.ndarray) -> None:
        """Take in the importance weights of one row: their sum, and how many were bounded."""
        self._weights += (len(weights), weights.sum(), (weights != free).sum())

    @torch.no_grad()
    def add_loss(self, tokens: Tokens, loss: torch.Tensor) -> None:
        """Take in the loss and the entropy of one chunk of tokens."""
        self._pending_loss += float(loss)
        self._count += len(tokens.logprobs)
        self._sums[0] += float(tokens.entropy.sum())

    @torch.no_grad()
    def add_ratios(self, tokens: Tokens, config: LossConfig, *, first_update: bool) -> None:
        """Take in how far the policy is from the one that sampled, for one chunk of tokens."""
        self._has_ratios = True
        difference = tokens.logprobs - tokens.sampled
        ratio = difference.exp()
        held = ratio if tokens.old is None else (tokens.logprobs - tokens.old).exp()  # as the loss has it
        clipped = ((tokens.advantages > 0) & (held > 1 + config.clip_high)) | (
            (tokens.advantages < 0) & (held < 1 - config.clip_low)
        )
        self._sums[1] += float(ratio.sum())
        self._sums[2] += float(clipped.sum())
        if tokens.reference is not None:
            self._sums[3] += float(k3(tokens.logprobs, tokens.reference).sum())
            self._has_reference = True
        if first_update:
            self._first_count += len(difference)
            self._mismatch[0] += float(difference.abs().sum())
            self._mismatch[1] = max(self._mismatch[1], float(difference.abs().max()))

    def begin_update(self) -> None:
        """Forget the loss of an update that was not taken."""
        self._pending_loss = 0.0

    def took_update(self, norm: float, rate: float) -> None:
        """An optimiser step was taken: the loss since the one before counts."""
        self._loss += self._pending_loss
        self.updates += 1
        self.grad_norms.append(norm)
        self.rate = rate

    def metrics(self) -> dict[str, float]:
        """The learner's part of a line of metrics."""
        values: dict[str, float] = {
            "loss": self._loss / max(1, self.updates),
            "trained_tokens": self.trained_tokens,
            "idle_tokens": self.idle_tokens,
            "updates": self.updates,
            "skipped_updates": self.skipped_updates,
            "grad_norm": float(np.mean(self.grad_norms)) if self.grad_norms else 0.0,
            "lr": self.rate,
            **self.extra,
        }
        if self._count:
            entropy, ratio, clipped, divergence = (float(value) for value in self._sums / self._count)
            values["entropy"] = entropy
            if self._has_ratios:
                values |= {"ratio": ratio, "clip_share": clipped}
            if self._has_reference:
                values["kl"] = divergence
        if self._fall is not None:
            values["llds"] = self._fall / max(1, self.updates)
        if self._weights[0]:
            values["weight"], values["weight_bounded"] = (float(v) for v in self._weights[1:] / self._weights[0])
        if self._first_count:
            values |= {
                "logprob_mismatch_mean": self._mismatch[0] / self._first_count,
                "logprob_mismatch_max": self._mismatch[1],
            }
        return values
