"""Recipes by name and by path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mrsearch.config import check_training, load_config
from mrsearch.errors import ConfigError
from mrsearch.evaluate.modes import mode_of
from mrsearch.recipe import recipe_path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_bare_name_is_the_packaged_recipe_whatever_lies_in_the_working_directory(here: Path) -> None:
    packaged = recipe_path("quickstart")
    assert packaged.name == "quickstart.yaml"
    (here / "quickstart").mkdir()
    assert recipe_path("quickstart") == packaged
    (here / "quickstart").rmdir()
    (here / "quickstart").write_text("seed: 1")
    assert recipe_path("quickstart") == packaged


@pytest.mark.parametrize("name", ["mine.yaml", "./quickstart", "deep/quickstart", "mine"])
def test_a_file_is_taken_by_its_path(here: Path, name: str) -> None:
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("seed: 1")
    assert recipe_path(name) == Path(name)


@pytest.mark.parametrize("name", ["folder.yaml", "./quickstart", "nowhere.yaml", "unheard-of"])
def test_what_is_no_file_is_refused_with_the_names_there_are(here: Path, name: str) -> None:
    (here / "folder.yaml").mkdir()
    with pytest.raises(
        ConfigError, match=rf"there is no recipe '{name}'; it is neither a file nor one of .*quickstart"
    ):
        recipe_path(name)


PAPER = {
    "qwen2.5-3b-nq-hotpotqa": ("Qwen/Qwen2.5-3B", "nq-train+hotpotqa-train", 512, 3, 8192),
    "qwen2.5-7b-nq-hotpotqa": ("Qwen/Qwen2.5-7B", "nq-train+hotpotqa-train", 512, 3, 8192),
    "qwen2.5-7b-asearcher": ("Qwen/Qwen2.5-7B", "asearcher-train", 64, 5, 16384),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_recipes_of_the_paper_carry_its_values(name: str) -> None:
    config = load_config(recipe_path(name))
    check_training(config)
    plan, train = config.plan, config.train
    told = (config.model.path, config.data.train, train.questions, plan.searches, plan.window_tokens)
    assert told == PAPER[name]
    assert (plan.episodes, plan.top_k, plan.turn_tokens, plan.observation_tokens) == (3, 3, 1024, 1024)
    assert (train.steps, train.group_size, train.questions // train.updates) == (300, 5, train.questions // 2)
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.optimizer.warmup) == (1e-6, 0.01, 0)
    assert (config.sampling.temperature, config.sampling.top_p, config.credit.gamma) == (1, 1, 1)


def test_a_baseline_differs_from_the_main_recipe_by_what_it_says_alone() -> None:
    main = load_config(recipe_path("qwen2.5-3b-nq-hotpotqa"))
    r1 = load_config(recipe_path("r1"))
    mode = mode_of("cot", main.plan, main.prompts, main.sampling)
    assert (r1.plan, r1.prompts) == (mode.plan, mode.prompts)
    assert replace(r1, plan=main.plan, prompts=main.prompts) == main
    rejecting = load_config(recipe_path("rejection-sampling"))
    assert rejecting.train.kind == "supervised"
    changed = {"data": main.data, "optimizer": main.optimizer, "plan": main.plan, "train": main.train}
    assert replace(rejecting, **changed) == main  # type: ignore[arg-type]


def test_every_packaged_recipe_can_be_trained_with() -> None:
    recipes = sorted(recipe_path("quickstart").parent.glob("*.yaml"))
    assert len(recipes) >= 5
    for recipe in recipes:
        check_training(load_config(recipe))
