"""How the learning rate runs over the updates of a run."""

from __future__ import annotations

import math

from mrsearch.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, update: int, total: int) -> float:
    """Learning rate of one update of `total`, counted from 0."""
    rising = min(1.0, (update + 1) / config.warmup) if config.warmup else 1.0
    start = config.decay_from * total
    done = min(1.0, max(0.0, (update - start) / max(1.0, total - start)))
    falling = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return config.lr * rising * falling[config.schedule]
