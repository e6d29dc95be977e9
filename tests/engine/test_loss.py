"""The loss of single tokens by hand, its gradients against autograd, and chunks against the whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mrsearch.config import LossConfig
from mrsearch.engine.loss import (
    Tokens,
    backward_in_chunks,
    k3,
    likelihood_gates,
    logprobs_in_chunks,
    states_at,
    supervised_losses,
    token_logprobs,
    token_losses,
)
from tiny_models import VOCABULARY, tiny_model

CONFIG = LossConfig()
"""Clip 0.2 on both sides, dual clip 3."""


def loss(advantage: float, ratio: float, config: LossConfig = CONFIG, **more: float) -> float:
    """The loss of one token whose probability is `ratio` times what it was at sampling."""
    return float(token_losses(tokens([math.log(ratio) - 1.0], [-1.0], [advantage], **more), config))


def tokens(logprobs, sampled, advantages, *, reference: float | None = None, entropy: float = 0.0) -> Tokens:
    def tensor(values):
        return torch.tensor(values, dtype=torch.float64)

    return Tokens(
        tensor(logprobs),
        torch.full((len(logprobs),), entropy, dtype=torch.float64),
        tensor(advantages),
        tensor(sampled),
        None if reference is None else tensor([reference]),
    )


# -- the surrogate ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected"),
    [
        (1.0, 1.0, -1.0),
        (1.0, 1.1, -1.1),  # inside the clip: -ratio * A
        (1.0, 1.5, -1.2),  # clipped above: nothing more to gain
        (1.0, 0.5, -0.5),  # a good token that became rarer is not clipped
        (-1.0, 1.0, 1.0),
        (-1.0, 0.9, 0.9),
        (-1.0, 0.5, 0.8),  # clipped below
        (-1.0, 1.5, 1.5),  # a bad token that became likelier is not clipped
        (-1.0, 5.0, 3.0),  # but its loss is bounded by dual clip times |A|
        (-2.0, 5.0, 6.0),
        (2.0, 5.0, -2.4),  # the bound is for negative advantages only
        (0.0, 5.0, 0.0),
    ],
)
def test_the_clipped_surrogate_by_hand(advantage, ratio, expected):
    assert loss(advantage, ratio) == pytest.approx(expected, abs=1e-12)


def test_without_dual_clip_a_bad_token_has_no_bound():
    assert loss(-1.0, 5.0, LossConfig(dual_clip=0.0)) == pytest.approx(5.0)


def test_the_ratio_is_against_the_old_policy_and_the_weight_multiplies_the_policy_term_alone():
    made = tokens([-1.0], [-3.0], [1.0], entropy=2.0)
    old = torch.tensor([-1.0 - math.log(1.1)], dtype=torch.float64)
    weighted = replace(made, old=old, weights=torch.tensor([0.5], dtype=torch.float64))
    assert float(token_losses(weighted, LossConfig(entropy=0.1))) == pytest.approx(-1.1 * 0.5 - 0.2)


@pytest.mark.parametrize(
    ("gate", "parts", "expected"),
    [
        # Two actions (.2, -.1, .1) and (-.3, .1): the first falls as a whole, the second and both together do not.
        ("action", [0, 0, 0, 1, 1], 0.3),
        ("token", [0, 0, 0, 1, 1], 0.4),
        ("response", [0, 0, 0, 0, 0], 0.0),
    ],
)
def test_what_falls_as_a_whole_is_held(gate, parts, expected):
    falls = torch.tensor([0.2, -0.1, 0.1, -0.3, 0.1], dtype=torch.float64)
    gates = likelihood_gates(falls, torch.tensor(parts), gate)
    assert float((torch.relu(falls) * gates).sum()) == pytest.approx(expected)


def test_the_two_sides_of_the_clip_are_set_apart():
    wide = LossConfig(clip_low=0.1, clip_high=0.3)
    assert loss(1.0, 1.5, wide) == pytest.approx(-1.3)
    assert loss(-1.0, 0.5, wide) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected"),
    [(1.0, 1.1, -1.1), (1.0, 1.5, 0.0), (1.0, 0.5, -0.5), (-1.0, 0.5, 0.0), (-1.0, 1.5, 1.5), (-1.0, 5.0, 0.0)],
)
def test_a_clipped_token_has_no_gradient(advantage, ratio, expected):
    logprobs = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    one = tokens([0.0], [-1.0], [advantage])
    token_losses(Tokens(logprobs, one.entropy, one.advantages, one.sampled), CONFIG).sum().backward()
    # d(-ratio * A)/d log p = -ratio * A where it is not clipped
    assert float(logprobs.grad) == pytest.approx(expected, abs=1e-12)


# -- divergence and entropy -------------------------------------------------------------------


def test_the_divergence_estimate_by_hand():
    assert float(k3(torch.tensor(-1.0), torch.tensor(-1.0))) == 0.0
    # d = log p - log reference = 0.1: exp(-0.1) + 0.1 - 1 = 0.00484
    assert float(k3(torch.tensor(-0.9), torch.tensor(-1.0))) == pytest.approx(0.0048374, abs=1e-6)
    assert float(k3(torch.tensor(-1.0), torch.tensor(-0.9))) == pytest.approx(0.0051709, abs=1e-6)


def test_the_divergence_is_estimated_without_bias():
    """Its mean over the policy's own draws is the divergence itself: sum p (log p - log q)."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(float((p * (p / q).log()).sum()))


def test_divergence_and_entropy_are_added_with_their_weights():
    with_both = LossConfig(kl=0.5, entropy=0.1)
    # surrogate -1.1; k3 of d = 0.1 is 0.0048374; entropy 2
    assert loss(1.0, 1.1, with_both, reference=math.log(1.1) - 1.1, entropy=2.0) == pytest.approx(
        -1.1 + 0.5 * 0.0048374 - 0.1 * 2.0, abs=1e-6
    )


def test_a_demonstrated_token_costs_its_negative_log_likelihood():
    found = supervised_losses(tokens([-0.5, -2.0, -3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.5]))
    assert found.tolist() == pytest.approx([0.5, 2.0, 1.5])


# -- log-probabilities and their gradient -----------------------------------------------------


def random_logits(rows: int = 5, vocabulary: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(0, vocabulary, (rows,), generator=generator)


def plain(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    every = logits.log_softmax(dim=-1)
    return every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(dim=-1)


def test_log_probabilities_and_entropies_are_those_of_the_softmax():
    logits, targets = random_logits()
    for found, expected in zip(token_logprobs(logits, targets), plain(logits, targets), strict=True):
        torch.testing.assert_close(found, expected)


def test_entropy_by_hand():
    _, entropy = token_logprobs(torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -1e4, -1e4, -1e4]]), torch.tensor([0, 0]))
    assert entropy.tolist() == pytest.approx([math.log(4), 0.0], abs=1e-6)


def test_the_gradient_is_the_numerical_one():
    logits, targets = random_logits()
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, targets), (logits,))


@pytest.mark.parametrize("which", [0, 1])
def test_the_gradient_of_either_output_alone_is_the_numerical_one(which):
    logits, targets = random_logits()
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, targets)[which], (logits,))


def test_the_gradient_stays_finite_where_a_probability_underflows():
    logits = torch.tensor([[0.0, -2000.0, 3.0]], dtype=torch.float64, requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([0]))
    (logprobs + entropy).sum().backward()
    found = logits.grad.clone()
    logits.grad = None
    first, second = plain(logits[:, [0, 2]], torch.tensor([0]))
    (first + second).sum().backward()
    torch.testing.assert_close(found, logits.grad)


# -- chunks -----------------------------------------------------------------------------------


def test_chunks_give_the_gradient_of_the_whole():
    model = tiny_model(double=True)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, VOCABULARY, (3, 12), generator=generator)
    rows = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    positions = torch.tensor([4, 5, 9, 1, 11, 2, 3, 4, 8])
    targets = ids[rows, positions]
    weights = torch.linspace(-1, 1, len(rows), dtype=torch.float64)

    def gradient(chunk: int) -> list[torch.Tensor]:
        model.module.zero_grad()
        backward_in_chunks(
            model,
            states_at(model, ids, rows, positions),
            targets,
            lambda which, logprobs, entropy: (weights[which] * (logprobs + 0.3 * entropy)).sum(),
            temperature=0.7,
            chunk=chunk,
        )
        return [parameter.grad.clone() for _, parameter in model.trainable()]

    model.module.zero_grad()
    logits = model.module(input_ids=ids, use_cache=False).logits[rows, positions - 1] / 0.7
    logprobs, entropy = plain(logits, targets)
    (weights * (logprobs + 0.3 * entropy)).sum().backward()
    expected = [parameter.grad.clone() for _, parameter in model.trainable()]
    for chunk in (1, 4, 9, 1000):
        for found, reference in zip(gradient(chunk), expected, strict=True):
            torch.testing.assert_close(found, reference, rtol=1e-9, atol=1e-12)


def test_log_probabilities_depend_on_no_chunk():
    model = tiny_model(double=True)
    states = torch.randn(9, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    targets = torch.arange(9)
    whole = logprobs_in_chunks(model, states, targets, temperature=0.5, chunk=100)
    torch.testing.assert_close(logprobs_in_chunks(model, states, targets, temperature=0.5, chunk=2), whole)
    torch.testing.assert_close(whole, (model.logits(states) / 0.5).log_softmax(dim=-1).detach()[range(9), range(9)])
