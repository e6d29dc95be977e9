"""Training runs that are killed at a chosen moment: `python killed_runs.py FOLDER`, each run in a process of its own.

Settings are in FOLDER/settings.yaml. Every run is played in a folder named after its moment and, where it was
killed, gone on with there; `whole` is the run that nobody disturbs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from mrsearch import build, prepare
from mrsearch.config import Config, from_dict, load_config
from mrsearch.core.ports import Batch, StepMetrics
from mrsearch.runs import RunFolder
from mrsearch.train import train

UPDATES = 2
"""Optimiser steps of a step in the settings."""


def die() -> None:
    """End this process as a machine that loses power would."""
    os.kill(os.getpid(), signal.SIGKILL)


class SavedHalf:
    """A learner that dies while it saves for the n-th time, with its last file cut."""

    def __init__(self, learner: Any, saves: int) -> None:
        self._learner = learner
        self._left = saves

    def step(self, batch: Batch) -> StepMetrics:
        """As the learner itself."""
        metrics: StepMetrics = self._learner.step(batch)
        return metrics

    def load(self, folder: Path) -> None:
        """As the learner itself."""
        self._learner.load(folder)

    def save(self, folder: Path) -> None:
        """Save, or die in the middle of it."""
        self._learner.save(folder)
        self._left -= 1
        if not self._left:
            os.truncate(folder / "learner.pt", 1000)
            die()


def run(folder: Path, config: Config, *, updates: int = 0, recorded: int = 0, saves: int = 0) -> None:
    """Train to the end, or die after so many updates, before the checkpoint of a recorded step, or while saving."""
    exists = (folder / "config.yaml").exists()
    opened = RunFolder.open(folder) if exists else RunFolder.create(folder, config.as_dict())
    training = build.training(from_dict(opened.settings()))
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done == updates:
            die()

    register_optimizer_step_post_hook(count)

    def on_step(step: int, values: object) -> None:
        if step == recorded:
            die()

    learner = SavedHalf(training.learner, saves) if saves else training.learner
    train(opened, config, training.stage, learner, replace(training.hooks, on_step=on_step))


def warm_up(folder: Path, config: Config, *, dies_at: int = 0) -> None:
    """Build a mini world and its warm start, or die in its second stage."""

    def progress(stage: str, step: int, steps: int) -> None:
        if (stage, step) == ("demonstrations", dies_at):
            die()

    prepare.mini_world(config, folder, progress)


WORLD = from_dict(
    {
        "world": {
            "entities": 40,
            "hops": [1],
            "train_questions": 10,
            "validation_questions": 6,
            "warm_start": {"reading_steps": 3, "single_steps": 2, "steps": 2, "batch": 4},
        },
        "engine": {"device": "cpu"},
        "plan": {"searches": 1, "top_k": 1, "turn_tokens": 16, "observation_tokens": 24, "window_tokens": 512},
    }
)

RUNS: dict[str, dict[str, int]] = {
    "between the updates of a step": {"updates": 2 * UPDATES + 1},
    "between metrics and checkpoint, before there is any": {"recorded": 2},
    "writing the second checkpoint": {"saves": 2},
}


def in_a_process(work: Callable[..., None], *parts: Any, **moment: int) -> int:
    """Do this in a process of its own; returns 0, or the negative number of the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            work(*parts, **moment)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path) -> None:
    """Play every run: once to its death, and again from what it left."""
    config = load_config(folder / "settings.yaml")
    assert in_a_process(run, folder / "whole", config) == 0
    for name, moment in RUNS.items():
        assert in_a_process(run, folder / name, config, **moment) == -signal.SIGKILL, name
        assert in_a_process(run, folder / name, config) == 0, name
    assert in_a_process(warm_up, folder / "warm", WORLD) == 0
    assert in_a_process(warm_up, folder / "cold", WORLD, dies_at=2) == -signal.SIGKILL
    assert in_a_process(warm_up, folder / "cold", WORLD) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
