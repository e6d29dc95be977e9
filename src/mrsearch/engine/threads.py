"""How many threads torch should use on the CPU. Needs no torch, so that anybody may ask."""

from __future__ import annotations

import os

SMALL = 20_000_000
"""Models with fewer parameters run faster on one thread than on several."""


def allowed_cores() -> int:
    """Logical cores that this process may use; a container or a batch system may allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """The same, within OMP_NUM_THREADS where that is set."""
    allowed = allowed_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(allowed, int(asked)) if asked.isdigit() and int(asked) else allowed


def choose_threads(parameters: int, cores: int) -> int:
    """Threads for a model of so many parameters: one for a tiny model, else half of the logical cores.

    Tiny operations lose more to waiting for each other than they gain; on a
    busy machine too many threads make them slower a hundred times.
    """
    return 1 if parameters < SMALL else max(1, cores // 2)
