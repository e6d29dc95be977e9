"""The folded attention against the formula, written out with every KV head expanded."""

from __future__ import annotations

import pytest
import torch

from mrsearch.engine.attention import folded_attention
from mrsearch.errors import ModelError

B, T, L, D = 3, 4, 9, 8


def expanded_attention(query, key, value, mask, scaling):
    """softmax(q k' * scaling + mask) v, with each KV head repeated for the query heads that share it."""
    folds = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(folds, dim=1), value.repeat_interleave(folds, dim=1)
    scores = query @ key.transpose(2, 3) * scaling + mask
    return (scores.softmax(dim=-1) @ value).transpose(1, 2)


def random_heads(heads: int, kv_heads: int, length: int, *, gradient: bool = False):
    generator = torch.Generator().manual_seed(heads + kv_heads)
    shapes = (B, heads, length, D), (B, kv_heads, L, D), (B, kv_heads, L, D)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_(gradient) for s in shapes]


def causal_mask(rows: int, length: int, *, starts: tuple[int, ...]) -> torch.Tensor:
    positions = torch.tensor(starts)[:, None] + torch.arange(length)
    ahead = torch.arange(L)[None, None] > positions[:, :, None]
    return torch.zeros(rows, 1, length, L, dtype=torch.float64).masked_fill_(ahead[:, None], float("-inf"))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("length", [1, T])
def test_grouped_heads_give_what_expanded_heads_give(heads, kv_heads, length):
    query, key, value = random_heads(heads, kv_heads, length)
    mask = causal_mask(B, length, starts=(0, 3, 5))
    output, weights = folded_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)
    assert weights is None
    assert output.shape == (B, length, heads, D)
    torch.testing.assert_close(output, expanded_attention(query, key, value, mask, 0.3), rtol=1e-12, atol=1e-12)


def test_one_mask_may_serve_all_rows():
    query, key, value = random_heads(6, 2, T)
    one = causal_mask(1, T, starts=(2,))
    output, _ = folded_attention(torch.nn.Identity(), query, key, value, one, scaling=0.3)
    torch.testing.assert_close(output, expanded_attention(query, key, value, one.expand(B, -1, -1, -1), 0.3))


def test_a_boolean_mask_says_what_may_be_seen():
    query, key, value = random_heads(6, 2, T)
    mask = causal_mask(B, T, starts=(0, 3, 5))
    boolean, _ = folded_attention(torch.nn.Identity(), query, key, value, mask == 0, scaling=0.3)
    additive, _ = folded_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(boolean, additive)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_without_a_mask_attention_is_causal(heads, kv_heads):
    query, key, value = random_heads(heads, kv_heads, L)
    output, _ = folded_attention(torch.nn.Identity(), query, key, value, None, scaling=0.3)
    expected = expanded_attention(query, key, value, causal_mask(B, L, starts=(0, 0, 0)), 0.3)
    torch.testing.assert_close(output, expected)


def test_the_scale_is_one_over_the_root_of_the_width_unless_given():
    query, key, value = random_heads(4, 2, T)
    mask = causal_mask(B, T, starts=(0, 3, 5))
    output, _ = folded_attention(torch.nn.Identity(), query, key, value, mask)
    torch.testing.assert_close(output, expanded_attention(query, key, value, mask, D**-0.5))


@pytest.mark.parametrize("masked", [True, False])
def test_gradients_are_those_of_expanded_heads(masked):
    query, key, value = random_heads(6, 2, L, gradient=True)
    mask = causal_mask(B, L, starts=(0, 0, 0))
    output, _ = folded_attention(torch.nn.Identity(), query, key, value, mask if masked else None, scaling=0.3)
    weight = torch.arange(output.numel(), dtype=torch.float64).reshape(output.shape).cos()
    found = torch.autograd.grad((output * weight).sum(), (query, key, value))
    expected = torch.autograd.grad(
        (expanded_attention(query, key, value, mask, 0.3) * weight).sum(), (query, key, value)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("extra", ["s_aux", "position_bias"])
def test_what_is_not_computed_is_refused_and_not_left_out(extra):
    query, key, value = random_heads(4, 2, T)
    with pytest.raises(ModelError, match="Identity needs attention with sinks or a position bias"):
        folded_attention(torch.nn.Identity(), query, key, value, None, **{extra: 50.0})
