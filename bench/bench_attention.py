"""Attention of one decoding step over grouped KV heads: three ways to compute the same.

`expanded` copies each KV head to the query heads that share it, as Hugging
Face's sdpa attention does with a mask when several queries are new; `folded`
puts these query heads into the query axis of one fused call; `products` does
the same by two batched products, as engine/attention.py does on a CPU; this is
why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from harness import Row, Seconds, arguments, interleaved, repetitions, report

from mrsearch.engine.attention import decode_by_products

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """Attention of one layer."""

    name: str
    rows: int
    kv_heads: int
    query_heads: int
    width: int
    contexts: tuple[int, ...]


SHAPES = (
    Shape("tiny", rows=72, kv_heads=8, query_heads=8, width=16, contexts=(64, 256)),
    Shape("135M", rows=8, kv_heads=3, query_heads=9, width=64, contexts=(250, 1000, 4000)),
)
SPARE_COLUMNS = 100
"""Room behind the context: keys and values of a kept cache are slices of a larger store."""
AT_LEAST = 64 * 2**20
"""Bytes of keys and values in turn, so that no cache of the processor holds them, as in a model of many layers."""


def expanded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[B, H, 1, D] queries; every KV head copied to its query heads."""
    folds = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(folds, dim=1), value.repeat_interleave(folds, dim=1)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)


def folded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same, with query heads in the query axis."""
    output = F.scaled_dot_product_attention(_fold(query, key), key, value, attn_mask=mask)
    return output.reshape(query.shape)


def products(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same by two batched products."""
    return decode_by_products(query, key, value, mask, query.shape[3] ** -0.5).transpose(1, 2)


WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "expanded": expanded,
    "folded": folded,
    "products": products,
}


def _fold(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])


def layers(shape: Shape, context: int, dtype: torch.dtype) -> list[Tensors]:
    """Query, keys, values and mask of several layers; rows have lengths of their own, as they do in a rollout."""
    size = (shape.rows, shape.kv_heads, context + SPARE_COLUMNS, shape.width)
    bytes_a_layer = 2 * torch.Size(size).numel() * dtype.itemsize
    lengths = torch.linspace(0.8 * context, context, shape.rows).long()
    beyond = torch.arange(context) >= lengths[:, None]
    mask = torch.zeros(shape.rows, context, dtype=dtype).masked_fill_(beyond, float("-inf"))[:, None, None]
    return [
        (
            torch.randn(shape.rows, shape.query_heads, 1, shape.width, dtype=dtype),
            torch.randn(size, dtype=dtype)[:, :, :context],
            torch.randn(size, dtype=dtype)[:, :, :context],
            mask,
        )
        for _ in range(max(2, AT_LEAST // bytes_a_layer))
    ]


def check(tensors: Tensors) -> None:
    """All ways must agree."""
    outputs = [way(*tensors).float() for way in WAYS.values()]
    worst = max(float((output - outputs[0]).abs().max()) for output in outputs)
    assert worst < (1e-4 if tensors[0].dtype == torch.float32 else 0.05), f"the ways differ by {worst:.3g}"


def measure(shape: Shape, context: int, dtype: torch.dtype, *, turns: int) -> Row:
    """One line: time of a layer, and how many times slower or faster than `expanded`."""
    cases = layers(shape, context, dtype)
    check(cases[0])

    def run(way: Callable[..., torch.Tensor]) -> None:
        for tensors in cases:
            way(*tensors)

    times: dict[str, Seconds] = interleaved({name: partial(run, way) for name, way in WAYS.items()}, repetitions=turns)
    base = times["expanded"].cpu
    return {
        "shape": shape.name,
        "rows x kv x query x width": f"{shape.rows} x {shape.kv_heads} x {shape.query_heads} x {shape.width}",
        "dtype": str(dtype).removeprefix("torch."),
        "context": context,
        "expanded ms": 1000 * base / len(cases),
        "folded": base / times["folded"].cpu,
        "products": base / times["products"].cpu,
    }


def main() -> None:
    """Measure and report."""
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with torch.no_grad():
        rows = [
            measure(shape, context, dtype, turns=4 * repetitions(options))
            for shape in SHAPES
            for dtype in (torch.float32, torch.bfloat16)
            for context in (shape.contexts[:-1] if options.quick else shape.contexts)
        ]
    report(options, rows)


if __name__ == "__main__":
    main()
