"""The loss and its gradient: states gathered at trained tokens and logits in chunks, against logits of everything.

`full` is the usual way: logits of all positions in float32, `log_softmax`, the
targets gathered, the clipped surrogate, the mask, one backward pass. The others
are this package's `states_at` and `backward_in_chunks` with so many trained
tokens a chunk; `default` is the learner's choice. A quarter of the tokens is
trained, as in a search trajectory. Memory is what one step adds to that of the
weights, gradients included, each measured in a fresh process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from harness import (
    Row,
    arguments,
    interleaved,
    measuring_memory,
    memory_in_subprocess,
    repetitions,
    report,
    tell_added_memory,
)
from transformers import LlamaConfig, LlamaForCausalLM

from mrsearch.config import LossConfig
from mrsearch.engine.learner import _LOGITS_AT_ONCE
from mrsearch.engine.loss import Tokens, backward_in_chunks, states_at, token_losses
from mrsearch.engine.model import LanguageModel

VOCABULARIES = (49_152, 151_936)
CHUNKS, QUICK_CHUNKS = ("64", "256", "default", "1024"), ("64", "default")
TRAINED_RUN = 32
"""Tokens of a turn; three times as many tokens of the environment come before it."""


@dataclass(frozen=True)
class Data:
    """Ids [B, T]; of the M trained tokens: row, position, advantage and sampled log-probability [M]."""

    ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    advantages: torch.Tensor
    sampled: torch.Tensor


def data(vocabulary: int, rows: int, length: int) -> Data:
    """Random ids, a quarter of them trained."""
    generator = torch.Generator().manual_seed(0)
    trained = (torch.arange(length) // TRAINED_RUN % 4 == 3).expand(rows, length)
    where = trained.nonzero()
    return Data(
        ids=torch.randint(vocabulary, (rows, length), generator=generator),
        rows=where[:, 0],
        positions=where[:, 1],
        advantages=torch.randn(len(where), generator=generator),
        sampled=torch.full((len(where),), -float(torch.tensor(vocabulary).log())),
    )


def build_module(vocabulary: int, layers: int) -> Any:
    """A model of width 576 with random weights and tied output layer, in float32."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": layers,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "attn_implementation": "sdpa",
    }
    return LlamaForCausalLM(LlamaConfig(**settings))


def full(module: Any, batch: Data) -> float:
    """One step by logits of all positions; returns the loss."""
    module.zero_grad(set_to_none=True)
    logits = module(input_ids=batch.ids, use_cache=False).logits[:, :-1].float()
    logprobs = logits.log_softmax(dim=-1).gather(2, batch.ids[:, 1:, None])[..., 0]
    advantages, sampled, mask = (torch.zeros_like(logprobs) for _ in range(3))
    at = batch.rows, batch.positions - 1
    advantages[at], sampled[at], mask[at] = batch.advantages, batch.sampled, 1.0
    losses = token_losses(Tokens(logprobs, logprobs, advantages, sampled), LossConfig())
    loss = (losses * mask).sum() / mask.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def chunked(model: LanguageModel, batch: Data, chunk: int) -> float:
    """One step by this package's loss; returns the loss."""
    model.module.zero_grad(set_to_none=True)
    losses: list[float] = []
    targets = batch.ids[batch.rows, batch.positions]

    def loss_of(which: slice, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        tokens = Tokens(logprobs, entropy, batch.advantages[which], batch.sampled[which])
        loss = token_losses(tokens, LossConfig()).sum() / len(targets)
        losses.append(float(loss.detach()))
        return loss

    states = states_at(model, batch.ids, batch.rows, batch.positions)
    backward_in_chunks(model, states, targets, loss_of, temperature=1.0, chunk=chunk)
    return sum(losses)


def chunk_size(name: str, vocabulary: int) -> int:
    """Trained tokens a chunk; `default` as the learner chooses it."""
    return max(64, _LOGITS_AT_ONCE // vocabulary) if name == "default" else int(name)


def way(name: str, vocabulary: int, layers: int, batch: Data) -> Callable[[], float]:
    """One way, over a model of its own."""
    module = build_module(vocabulary, layers).train()
    if name == "full":
        return partial(full, module, batch)
    return partial(chunked, LanguageModel(module), batch, chunk_size(name, vocabulary))


def measure(options: argparse.Namespace, vocabulary: int) -> list[Row]:
    """The lines of one vocabulary."""
    rows, length, layers = (2, 512, 4) if options.quick else (4, 1024, 8)
    batch = data(vocabulary, rows, length)
    names = ["full", *(options.chunks or (QUICK_CHUNKS if options.quick else CHUNKS))]
    memory = {
        name: memory_in_subprocess(__file__, [name, str(vocabulary), str(int(options.quick))], threads=options.threads)
        for name in names
    }
    module = build_module(vocabulary, layers).train()
    model = LanguageModel(build_module(vocabulary, layers).train())
    runs: dict[str, Callable[[], float]] = {
        name: partial(full, module, batch)
        if name == "full"
        else partial(chunked, model, batch, chunk_size(name, vocabulary))
        for name in names
    }
    losses = [run() for run in runs.values()]
    assert max(losses) - min(losses) < 1e-4, f"the ways differ: {losses}"
    times = interleaved(runs, repetitions=repetitions(options), warm_up=False)
    return [
        {
            "vocabulary": vocabulary,
            "way": name if name == "full" else f"chunks of {chunk_size(name, vocabulary)}",
            "wall s": times[name].wall,
            "cpu s": times[name].cpu,
            "times faster": times["full"].cpu / times[name].cpu,
            "memory MiB": memory[name] / 2**20,
            "times less memory": memory["full"] / memory[name],
        }
        for name in names
    ]


def main() -> None:
    """Measure and report."""
    case = measuring_memory(sys.argv[1:])
    if case is not None:
        measure_memory(case)
        return
    parser = arguments(__doc__)
    parser.add_argument("--vocabularies", nargs="+", type=int, default=list(VOCABULARIES))
    parser.add_argument("--chunks", nargs="+", help="trained tokens a chunk, or 'default' (default: several)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report(options, [row for vocabulary in options.vocabularies for row in measure(options, vocabulary)])


def measure_memory(case: Sequence[str]) -> None:
    """In a fresh process: the memory of one way."""
    name, vocabulary, quick, _, threads = case
    torch.set_num_threads(int(threads))
    rows, length, layers = (2, 512, 4) if quick == "1" else (4, 1024, 8)
    batch = data(int(vocabulary), rows, length)
    tell_added_memory(way(name, int(vocabulary), layers, batch))


if __name__ == "__main__":
    main()
