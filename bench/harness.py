"""What all benchmarks share: interleaved repetition, medians, memory of one run, one table.

Machines are noisy, so that a number stands for nothing alone: the ways that are
compared take turns (A B A B), and what is told is the ratio of their medians.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mrsearch.cli.output import print_json, print_table

Row: TypeAlias = dict[str, Any]
"""One line of results, by column."""

_MEASURE = "--measure-memory"


@dataclass(frozen=True)
class Seconds:
    """Time of one run on the clock, and on the processors that it used."""

    wall: float
    cpu: float


def timed(run: Callable[[], object]) -> Seconds:
    """Run once."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(
    ways: Mapping[str, Callable[[], object]], *, repetitions: int, warm_up: bool = True
) -> dict[str, Seconds]:
    """Median times of each way; the ways take turns, after one untimed turn."""
    if warm_up:
        for run in ways.values():
            run()
    times: dict[str, list[Seconds]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, run in ways.items():
            times[name].append(timed(run))
    return {name: median(taken) for name, taken in times.items()}


def median(times: Sequence[Seconds]) -> Seconds:
    """Wall and processor time, each its own median."""
    return Seconds(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))


def growth(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The exponent by which time grows between the first and the last size: 1 is linear.

    >>> growth([1, 2, 4], [3.0, 12.0, 48.0])
    2.0
    """
    return math.log(times[-1] / times[0]) / math.log(sizes[-1] / sizes[0])


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    try:
        # Unlike ru_maxrss this does not go on counting what the parent of a process held.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_in_subprocess(script: str, case: Sequence[str], *, threads: int) -> int:
    """Bytes that one run adds to the peak after its model was built, measured by `script` in a fresh process."""
    command = [sys.executable, script, _MEASURE, *case, "--threads", str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{Path(script).name} {' '.join(case)} failed:\n{done.stderr}")
    return int(json.loads(done.stdout.splitlines()[-1])["bytes"])


def measuring_memory(arguments: Sequence[str]) -> list[str] | None:
    """The case that this process was started to measure, if it was."""
    return list(arguments[1:]) if arguments[:1] == [_MEASURE] else None


def tell_added_memory(run: Callable[[], object]) -> None:
    """Run once and print how far the peak rose, for `memory_in_subprocess`. The model must be built before."""
    with suppress(OSError):
        # Linux: the peak begins anew, so that what building the model took for a moment is no part of it.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = peak_bytes()
    run()
    print(json.dumps({"bytes": peak_bytes() - before}))


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small run, of a minute or so")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--repetitions", type=int, default=0, help="turns of each way (default: 3, or 2 with --quick)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    return parser


def repetitions(options: argparse.Namespace) -> int:
    """How often each way takes its turn."""
    return int(options.repetitions) or (2 if options.quick else 3)


def report(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Print the results: one table, or one JSON object on one line."""
    if options.json:
        print_json({"rows": list(rows)})
        return
    print_table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
