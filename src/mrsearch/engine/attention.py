"""Attention over grouped KV heads without expanding them.

Decoding with grouped-query attention spends most of its time copying each KV
head to all query heads that share it. Here the query heads of one KV head are
folded into the query axis instead, so that keys and values are read once, where
they lie. Registered with transformers under the name in `NAME`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from mrsearch.errors import ModelError

NAME = "mrsearch_folded"


def register() -> None:
    """Make the attention known to transformers; calling it again changes nothing."""
    AttentionInterface.register(NAME, folded_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def folded_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [B, H, T, D] queries over [B, Hkv, L, D] keys and values; returns [B, T, H, D].

    The mask is additive or boolean, [B or 1, 1, T, L]; without one attention is causal.
    """
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise ModelError(
            f"{type(module).__name__} needs attention with sinks or a position bias, which the embedded engine does "
            "not compute; choose another model"
        )
    if kwargs.get("softcap") is not None:
        return _capped(query, key, value, attention_mask, scaling, kwargs["softcap"]), None
    batch, heads, length, width = query.shape
    kv_heads = key.shape[1]
    if attention_mask is None:
        grouped = kv_heads != heads
        if grouped and query.device.type == "cpu":
            key = key.repeat_interleave(heads // kv_heads, dim=1)
            value = value.repeat_interleave(heads // kv_heads, dim=1)
        output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=dropout,
            scale=scaling,
            is_causal=length > 1,
            enable_gqa=grouped and query.device.type != "cpu",
        )
        return output.transpose(1, 2).contiguous(), None

    scaling = width**-0.5 if scaling is None else scaling
    if query.device.type == "cpu" and length == 1:
        return decode_by_products(query, key, value, attention_mask, scaling), None
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        return read_by_products(query, key, value, attention_mask, scaling), None
    folds = heads // kv_heads
    folded = query.reshape(batch, kv_heads, folds * length, width)
    if folds > 1 and length > 1:
        mask_rows = attention_mask.shape[0]
        attention_mask = attention_mask.unsqueeze(2).expand(mask_rows, 1, folds, length, key.shape[2])
        attention_mask = attention_mask.reshape(mask_rows, 1, folds * length, key.shape[2])
    output = F.scaled_dot_product_attention(
        folded, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return output.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def decode_by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """One query a row, by two batched products: there the fused CPU kernel is slower (bench/bench_attention.py).

    Keys and values are slices of a larger store; merging their first two axes keeps them views.
    """
    batch, heads, _, width = query.shape
    kv_heads, length = key.shape[1], key.shape[2]
    folds = heads // kv_heads
    queries = (query * scaling).reshape(batch * kv_heads, folds, width)
    keys = key.reshape(batch * kv_heads, length, width)
    if query.dtype == torch.bfloat16:
        # Products in bfloat16 are quick only with the long axis in front.
        scores = torch.bmm(keys, queries.transpose(1, 2).contiguous()).transpose(1, 2).contiguous()
    else:
        scores = torch.bmm(queries, keys.transpose(1, 2))
    scores.view(batch, heads, length).add_(_additive(mask, scores.dtype)[:, 0])
    output = torch.bmm(scores.softmax(dim=-1), value.reshape(batch * kv_heads, length, -1))
    return output.reshape(batch, 1, heads, -1)


def read_by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """New context in bfloat16, row by row and head by head: the fused CPU kernel with a mask takes twice as long."""
    batch, heads, length, _ = query.shape
    folds = heads // key.shape[1]
    output = query.new_empty(batch, length, heads, value.shape[3])
    bias = _additive(mask, query.dtype)
    for row in range(batch):
        for head in range(heads):
            kv_head = head // folds
            scores = torch.addmm(bias[min(row, len(bias) - 1), 0], query[row, head], key[row, kv_head].T, alpha=scaling)
            output[row, :, head] = scores.softmax(dim=-1) @ value[row, kv_head]
    return output


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    cap: float,
) -> torch.Tensor:
    """Attention whose scores are bent towards +-cap (Gemma 2), which no fused call computes."""
    folds, length = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(folds, dim=1), value.repeat_interleave(folds, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scaling is None else scaling)
    scores = cap * torch.tanh(scores / cap)
    if mask is None:
        mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
    scores = scores + _additive(mask, scores.dtype)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2).contiguous()


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to be added to scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
