"""The mini world made ready: files like any other, the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrsearch import prepare
from mrsearch.config import Config, load_config
from mrsearch.data.mini_world import MINI_PROMPTS
from mrsearch.data.questions import load_questions
from mrsearch.errors import ConfigError
from mrsearch.retrieval.corpus import load_corpus


def settings(*more: str) -> Config:
    return load_config(
        overrides=[
            "world.entities=60",
            "world.hops=[1,2]",
            "world.train_questions=30",
            "world.validation_questions=10",
            "world.warm_start.reading_steps=2",
            "world.warm_start.single_steps=2",
            "world.warm_start.steps=2",
            "plan.searches=1",
            "plan.window_tokens=512",
            "plan.turn_tokens=16",
            "plan.observation_tokens=24",
            *more,
        ]
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_world_and_warm_start_are_files_of_the_usual_forms(tmp_path: Path) -> None:
    ready = prepare.mini_world(settings(), tmp_path)
    assert len(load_questions(ready.data.train)) == 30
    assert len(load_questions(ready.data.validation)) == 10
    assert len(load_corpus(ready.retrieval.corpus)) == 60
    assert (Path(ready.model.path) / "model.safetensors").exists()
    assert ready.prompts == MINI_PROMPTS


def test_the_same_settings_build_the_same_files_and_weights(tmp_path: Path) -> None:
    prepare.mini_world(settings(), tmp_path / "one")
    prepare.mini_world(settings(), tmp_path / "other")
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_what_is_there_is_not_built_again_and_what_was_cut_short_is(tmp_path: Path) -> None:
    prepare.mini_world(settings(), tmp_path)
    before = files(tmp_path)
    (tmp_path / "warm-start").rename(tmp_path / ".warm-start.partial")
    stages: list[str] = []
    prepare.mini_world(settings(), tmp_path, lambda stage, step, steps: stages.append(stage))
    assert set(stages) == {"reading", "demonstrations"}
    assert files(tmp_path) == before
    stages.clear()
    prepare.mini_world(settings(), tmp_path, lambda stage, step, steps: stages.append(stage))
    assert stages == []


def test_a_model_that_is_named_is_not_warm_started(tmp_path: Path) -> None:
    ready = prepare.mini_world(settings("model.path=somewhere"), tmp_path)
    assert ready.model.path == "somewhere"
    assert not (tmp_path / "warm-start").exists()


def test_a_world_of_the_warm_start_cannot_be_trained_in(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"world\.seed 104 is one of the worlds of the warm start"):
        prepare.mini_world(settings("world.seed=104"), tmp_path)
