"""The mini model: a two-layer Qwen3 of the mini world's size, initialised so that it learns there in minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def build_mini_model(settings: Mapping[str, Any], seed: int) -> Qwen3ForCausalLM:
    """An untrained model in float32 from settings of Qwen3Config; one seed gives one set of weights, always."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**settings))
        _rescale(model)
    return model


@torch.no_grad()
def _rescale(model: Qwen3ForCausalLM) -> None:
    """Embeddings of unit size, an output layer that begins as their copy, and residual branches scaled by their number.

    With the usual small embeddings the model stays for long at naming a random name of the passage; an output layer
    of its own would have to learn first, name by name, how to repeat what it sees.
    """
    embeddings = model.model.embed_tokens.weight.normal_(0.0, 1.0)
    model.lm_head.weight.copy_(embeddings * model.config.hidden_size**-0.5)
    layers = model.model.layers
    for layer in layers:
        for branch in (layer.self_attn.o_proj, layer.mlp.down_proj):
            branch.weight.mul_((2 * len(layers)) ** -0.5)
