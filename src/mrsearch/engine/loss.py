"""The loss of trained tokens, and its gradient without the vocabulary in memory.

Three quarters of a search trajectory are observations. States are therefore
gathered at trained positions before the output layer, and that layer is run
over them in chunks, each of which goes backward at once: the largest tensor
ever held is one chunk of logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mrsearch.config import LossConfig
from mrsearch.engine.model import LanguageModel


class _TokenLogprobs(torch.autograd.Function):
    """Log-probabilities of targets and entropies from [M, V] logits, keeping one [M, V] tensor for the way back."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normaliser = logits.logsumexp(dim=-1)
        logprobs = logits.gather(1, targets[:, None])[:, 0] - normaliser
        probabilities = (logits - normaliser[:, None]).exp_()
        entropy = normaliser - torch.linalg.vecdot(probabilities, logits)
        ctx.save_for_backward(probabilities, targets, entropy)
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        probabilities, targets, entropy = ctx.saved_tensors
        grad_logprobs, grad_entropy = grads
        grad = torch.zeros_like(probabilities) if grad_logprobs is None else probabilities * -grad_logprobs[:, None]
        if grad_logprobs is not None:
            grad.scatter_add_(1, targets[:, None], grad_logprobs[:, None])
        if grad_entropy is not None:
            # dH/dlogit = -p (log p + H); p log p is 0 where p has underflowed to 0
            surprise = torch.xlogy(probabilities, probabilities) + probabilities * entropy[:, None]
            grad -= grad_entropy[:, None] * surprise
        return grad, None


def token_logprobs(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target and entropy of each distribution: [M, V], [M] to [M], [M]."""
    result: tuple[torch.Tensor, torch.Tensor] = _TokenLogprobs.apply(logits, targets)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class Tokens:
    """Trained tokens of one chunk, [M] each; `reference` is there only when the divergence is on.

    `old` are log-probabilities under the policy that the ratio is taken against, by
    default those with which the tokens were `sampled`; `weights` multiply the policy term.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    advantages: torch.Tensor
    sampled: torch.Tensor
    reference: torch.Tensor | None = None
    old: torch.Tensor | None = None
    weights: torch.Tensor | None = None


def token_losses(tokens: Tokens, config: LossConfig) -> torch.Tensor:
    """The loss of every token, [M]: clipped surrogate with dual clip, plus divergence, less entropy bonus."""
    advantages = tokens.advantages
    ratio = (tokens.logprobs - (tokens.sampled if tokens.old is None else tokens.old)).exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = torch.maximum(-ratio * advantages, -clipped * advantages)
    if config.dual_clip:
        bounded = torch.minimum(losses, -config.dual_clip * advantages)
        losses = torch.where(advantages < 0, bounded, losses)
    if tokens.weights is not None:
        losses = losses * tokens.weights
    if config.kl:
        assert tokens.reference is not None
        losses = losses + config.kl * k3(tokens.logprobs, tokens.reference)
    if config.entropy:
        losses = losses - config.entropy * tokens.entropy
    return losses


ROUNDING = 1e-6
"""A sum of log-probabilities that is no more than this is none."""


def likelihood_gates(
    falls: torch.Tensor, parts: torch.Tensor, gate: Literal["action", "token", "response"]
) -> torch.Tensor:
    """Whether each token's fall in likelihood counts, [M] of 0 and 1: where those of its action or episode sum above 0.

    `falls` [M] are old less new log-probabilities, `parts` [M] numbers of actions or
    episodes. With "token" each counts for itself.
    """
    if gate == "token":
        return torch.ones_like(falls)
    sums = torch.zeros(int(parts.max()) + 1, dtype=falls.dtype, device=falls.device).index_add_(0, parts, falls)
    return (sums > ROUNDING).to(falls.dtype)[parts]


def supervised_losses(tokens: Tokens) -> torch.Tensor:
    """Negative log-likelihood of every token, [M], weighted by its advantage (1 in a plain demonstration)."""
    return -tokens.advantages * tokens.logprobs


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The low-variance estimate of the divergence from the reference, token by token: exp(-d) + d - 1."""
    difference = logprobs - reference
    return (-difference).exp() + difference - 1


def states_at(model: LanguageModel, ids: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The states [M, D] that predict the tokens at these rows and positions of [B, T] ids."""
    return model.hidden(ids)[rows, positions - 1]


def backward_in_chunks(
    model: LanguageModel,
    states: torch.Tensor,
    targets: torch.Tensor,
    loss_of: Callable[[slice, torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    temperature: float,
    chunk: int,
) -> None:
    """Add the gradient of a loss that is a sum over tokens.

    `loss_of(which, logprobs, entropy)` gives the summed loss of one chunk of
    the M tokens. Equal to one backward pass over all logits at once.
    """
    leaf = states.detach().requires_grad_()
    for start in range(0, len(targets), chunk):
        which = slice(start, start + chunk)
        logits = model.logits(leaf[which])
        loss_of(which, *token_logprobs(_tempered(logits, temperature), targets[which])).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    states.backward(leaf.grad)  # type: ignore[no-untyped-call]


@torch.no_grad()
def logprobs_in_chunks(
    model: LanguageModel, states: torch.Tensor, targets: torch.Tensor, *, temperature: float, chunk: int
) -> torch.Tensor:
    """Log-probabilities [M] of targets from states [M, D], without gradient."""
    parts = [
        token_logprobs(
            _tempered(model.logits(states[start : start + chunk]), temperature), targets[start : start + chunk]
        )[0]
        for start in range(0, len(targets), chunk)
    ]
    return torch.cat(parts)


def _tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits if temperature == 1 else logits / temperature
