"""One step of reinforcement learning in the mini world: where its processor time goes.

Runs the quickstart recipe, of 72 meta-episodes a step, from a run folder's warm
start; without a folder the recipe's warm start is trained first, which takes
minutes (a shorter one earns no rewards, and then nothing is trained). Settings
given as KEY=VALUE are measured against the recipe's own, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import Row, arguments, report

from mrsearch import build, prepare
from mrsearch.config import Config, load_config
from mrsearch.core.ports import Batch, Learner, Retriever, Search, StepMetrics
from mrsearch.core.types import Passage
from mrsearch.train import ReinforcementStage

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"


class TimedRetriever:
    """A retriever that adds up its processor time."""

    def __init__(self, inner: Retriever) -> None:
        self._inner = inner
        self.seconds = 0.0

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Search, timed."""
        started = time.process_time()
        found = self._inner.search(requests)
        self.seconds += time.process_time() - started
        return found


class TimedLearner:
    """A learner that adds up its processor time."""

    def __init__(self, inner: Learner) -> None:
        self._inner = inner
        self.seconds = 0.0

    def step(self, batch: Batch) -> StepMetrics:
        """Train, timed."""
        started = time.process_time()
        metrics = self._inner.step(batch)
        self.seconds += time.process_time() - started
        return metrics

    def save(self, folder: Path) -> None:
        """Not timed."""
        self._inner.save(folder)

    def load(self, folder: Path) -> None:
        """Not timed."""
        self._inner.load(folder)


@dataclass(frozen=True)
class Step:
    """Processor time of a step's parts, its time on the clock, and its tokens."""

    rollout: float
    retrieval: float
    training: float
    wall: float
    tokens: float


class Run:
    """One set of settings, at work."""

    def __init__(self, config: Config) -> None:
        model, codec = build.language_model(config), build.codec(config)
        self._retriever = TimedRetriever(build.retriever(config.retrieval))
        self._learner = TimedLearner(build.embedded_learner(config, model, codec))
        player = build.player(config, model, codec, self._retriever)
        asked = build.questions(config.data.train, "data.train")
        self._stage = ReinforcementStage(config, asked, player, self._learner)

    def step(self, number: int) -> Step:
        """Carry out one step."""
        before = self._retriever.seconds, self._learner.seconds
        cpu, wall = time.process_time(), time.perf_counter()
        values = self._stage.step(number).values
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        retrieval, training = self._retriever.seconds - before[0], self._learner.seconds - before[1]
        return Step(cpu - retrieval - training, retrieval, training, wall, values["count/generated_tokens"])


def measure(settings: Sequence[tuple[str, Config]], steps: int, threads: int) -> list[Row]:
    """A line for each set of settings."""
    runs = {name: Run(config) for name, config in settings}
    torch.set_num_threads(threads)
    taken: dict[str, list[Step]] = {name: [] for name in runs}
    for number in range(1, steps + 2):
        for name, run in runs.items():
            taken[name].append(run.step(number))
    medians = {name: _median(steps_[1:]) for name, steps_ in taken.items()}
    base = next(iter(medians.values()))
    return [_row(name, step, base) for name, step in medians.items()]


def _median(steps: Sequence[Step]) -> Step:
    return Step(
        *(
            statistics.median(getattr(step, part) for step in steps)
            for part in ("rollout", "retrieval", "training", "wall", "tokens")
        )
    )


def _row(name: str, step: Step, base: Step) -> Row:
    total = step.rollout + step.retrieval + step.training
    return {
        "settings": name,
        "wall s": step.wall,
        "cpu s": total,
        "generation cpu s": step.rollout,
        "retrieval cpu s": step.retrieval,
        "training cpu s": step.training,
        "generation %": 100 * step.rollout / total,
        "retrieval %": 100 * step.retrieval / total,
        "training %": 100 * step.training / total,
        "tokens sampled": step.tokens,
        "times faster": (base.rollout + base.retrieval + base.training) / total,
    }


def main() -> None:
    """Measure and report."""
    parser = arguments(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a run folder whose warm start is used")
    parser.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE", help="compare with these settings")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as aside:
        report(options, measure(_settings(options, Path(aside)), _steps(options), options.threads))


def _steps(options: argparse.Namespace) -> int:
    return int(options.repetitions) or (4 if options.quick else 10)


def _settings(options: argparse.Namespace, aside: Path) -> list[tuple[str, Config]]:
    """The recipe, and the recipe with other settings, from one warm start."""
    always = ["eval.every=0"]
    recipe = prepare.mini_world(load_config(RECIPE, always), options.folder or aside)
    if not options.settings:
        return [("recipe", recipe)]
    changed = prepare.mini_world(load_config(RECIPE, [*always, *options.settings]), options.folder or aside)
    return [("recipe", recipe), (" ".join(options.settings), changed)]


if __name__ == "__main__":
    main()
