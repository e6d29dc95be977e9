"""Runs that are killed and gone on with: they end with the numbers and the weights of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from killed_runs import RUNS, UPDATES
from mrsearch import build
from mrsearch.config import from_dict
from mrsearch.data.questions import save_questions
from mrsearch.runs import RunFolder
from mrsearch.train import train
from tiny_models import PLACES, PROMPTS, questions, tiny_codec, tiny_module

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"


def write_settings(folder: Path, steps: int) -> Path:
    """A tiny model, its questions and passages, and the settings of a run with them."""
    tiny_module("qwen3").save_pretrained(folder / "model")
    tiny_codec().save(folder / "model")
    # Many words are right a little (F1), so that a random model has episodes that differ.
    asked = [replace(question, golden_answers=(" ".join(PLACES),)) for question in questions(12)]
    save_questions(folder / "questions.jsonl", asked)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for place in PLACES:
            file.write(json.dumps({"id": place, "contents": f'"{place}"\n{place} again last'}) + "\n")
    settings = {
        "model": {"path": str(folder / "model")},
        "engine": {"device": "cpu"},
        "data": {"train": str(folder / "questions.jsonl"), "validation": str(folder / "questions.jsonl")},
        "retrieval": {"corpus": str(folder / "corpus.jsonl"), "language": ""},
        "plan": {
            "episodes": 2,
            "searches": 1,
            "top_k": 1,
            "turn_tokens": 10,
            "observation_tokens": 12,
            "window_tokens": 120,
        },
        "prompts": asdict(PROMPTS),
        "reward": "f1",
        "optimizer": {"lr": 0.003, "schedule": "cosine", "warmup": 3},
        "train": {"steps": steps, "questions": 4, "group_size": 8, "updates": UPDATES},
        "eval": {"every": 2},
        "checkpoint": {"every": 2, "keep": 1},
    }
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    """The folder of all runs, each killed once and gone on with, and of the one that was not."""
    folder = tmp_path_factory.mktemp("runs")
    write_settings(folder, steps=4)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    found = subprocess.run(
        [sys.executable, TESTS / "killed_runs.py", folder], env=environment, capture_output=True, text=True, timeout=110
    )
    assert found.returncode == 0, found.stderr
    return folder


def numbers(run: RunFolder) -> list[dict[str, float]]:
    """All metrics but those that measure time."""
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "rate/"))} for row in run.metrics()]


def learner_state(run: RunFolder) -> dict[str, Any]:
    checkpoint = run.last_checkpoint()
    assert checkpoint is not None
    state: dict[str, Any] = torch.load(checkpoint.folder / "learner.pt", weights_only=True)
    return state


def assert_equal(one: Any, other: Any) -> None:
    """Equal to the last bit, tensors within included."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def test_the_run_that_is_compared_with_learns_something_in_every_step(played):
    rows = numbers(RunFolder.open(played / "whole"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["updates"] == UPDATES for row in rows)
    assert [row["step"] for row in rows if "validation/em/2" in row] == [2, 4]


@pytest.mark.parametrize("moment", RUNS)
def test_a_run_that_was_killed_ends_as_if_nothing_had_happened(played, moment):
    whole, killed = RunFolder.open(played / "whole"), RunFolder.open(played / moment)
    assert numbers(killed) == numbers(whole)
    assert_equal(learner_state(killed), learner_state(whole))
    last, reference = killed.last_checkpoint(), whole.last_checkpoint()
    assert last is not None
    assert reference is not None
    assert (last.step, last.state) == (reference.step, reference.state)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (last.folder / name).read_bytes() == (reference.folder / name).read_bytes()


@pytest.mark.parametrize("moment", RUNS)
def test_every_meta_episode_of_it_is_recorded_once(played, moment):
    whole, killed = RunFolder.open(played / "whole"), RunFolder.open(played / moment)
    for step in range(1, 5):
        found = [trajectory.to_record() for trajectory in killed.trajectories(step)]
        assert found == [trajectory.to_record() for trajectory in whole.trajectories(step)]
    assert not list((played / moment).rglob("*.partial"))


def test_a_warm_start_that_was_killed_is_built_anew_with_the_same_weights(played):
    for name in ("warm-start/model.safetensors", "world/train.jsonl", "world/corpus.jsonl"):
        assert (played / "cold" / name).read_bytes() == (played / "warm" / name).read_bytes()
    assert not list((played / "cold").glob(".*"))


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(tmp_path):
    settings, folder = write_settings(tmp_path, steps=1000), tmp_path / "run"
    command = [sys.executable, "-m", "mrsearch", "train", settings, "--out", folder]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 90
        while not ((folder / "metrics.jsonl").exists() and RunFolder.open(folder).metrics()):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors
    assert f"mrsearch train --resume {folder}" in " ".join(errors.split())

    run = RunFolder.open(folder)
    checkpoint = run.last_checkpoint()
    assert checkpoint is not None
    stopped = checkpoint.step
    assert [row["step"] for row in run.metrics()] == [*range(1, stopped + 1)]  # nothing of the step is lost
    config = from_dict(run.settings())
    training = build.training(config)
    further = replace(config, train=replace(config.train, steps=stopped + 1))
    train(run, further, training.stage, training.learner, training.hooks)
    assert [row["step"] for row in run.metrics()] == [*range(1, stopped + 2)]
