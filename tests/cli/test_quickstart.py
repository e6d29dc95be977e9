"""`mrsearch quickstart`: what its table and its curve say."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mrsearch import build
from mrsearch.cli import COMMANDS, _load
from mrsearch.cli.quickstart import LONG, _ceiling, draw_curve, next_commands, rivals
from mrsearch.codec import HFCodec
from mrsearch.config import Config, load_config
from mrsearch.core.plan import Plan
from mrsearch.core.types import Question
from mrsearch.data.demonstrations import demonstration_from_record
from mrsearch.data.mini_world import (
    MINI_PROMPTS,
    DemoHabits,
    build_world,
    chain_questions,
    demonstrations,
    mini_tokenizer,
)
from mrsearch.recipe import recipe_path


def chain(hops: int) -> Question:
    return Question(str(hops), "?", ("x",), supporting_titles=("t",) * hops)


def test_the_ceiling_is_the_share_of_chains_that_the_searches_so_far_can_walk() -> None:
    asked = [chain(1), chain(2), chain(3), chain(4)]
    # two searches an episode: chains of 1 and 2 in the first, all four from the second on
    assert _ceiling(asked, Plan(episodes=3, searches=2)) == [0.5, 1.0, 1.0]


def test_a_curve_stands_as_high_as_its_values() -> None:
    lines = draw_curve({"a": [0.0, 0.5, 1.0]}, {"a": "agent"}).splitlines()
    assert lines[0].startswith("1.00 |")
    assert lines[0].rstrip().endswith("a")
    assert lines[4].startswith("0.50 |")
    assert "a" in lines[4]
    assert lines[8].startswith("0.00 |")
    assert lines[-1].strip() == "episode; a = agent"


def settings_of(command: str) -> Config | None:
    """Parse a command line as the program would; its settings, if it names a recipe."""
    _, name, *arguments = shlex.split(command)
    click: Any = _load(COMMANDS[name], name)
    context = click.make_context(name, list(arguments))
    settings = context.params.get("settings") or ()
    return load_config(recipe_path(settings[0]), settings[1:]) if name == "train" else load_config(overrides=settings)


def test_every_command_that_is_shown_at_the_end_can_be_given_outside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = next_commands(Path("runs/my run"))
    assert [command.split()[1] for command in commands] == ["quickstart", "train", "eval"]
    assert shlex.split(commands[-1])[2] == "runs/my run"
    for command in commands:
        settings_of(command)


def test_the_window_of_the_training_that_is_shown_holds_demonstrations_of_twice_its_episodes() -> None:
    config = settings_of(next_commands(Path("run"))[1])
    assert config is not None
    world = build_world(100, config.world.entities)
    asked = chain_questions(world, "tr", 100, hops=config.world.hops, seed=0)
    shown = demonstrations(
        world, asked, episodes=2 * config.plan.episodes, searches=config.plan.searches, habits=DemoHabits(), seed=0
    )
    # refuses demonstrations that do not fit
    build.replay_demonstrations(
        [demonstration_from_record(record) for record in shown],
        config.plan,
        MINI_PROMPTS,
        HFCodec(mini_tokenizer(config.world.entities), MINI_PROMPTS),
    )


def test_all_rivals_may_search_equally_often_in_a_step() -> None:
    config = load_config(recipe_path("quickstart"))
    trained = {"MR-Search": config, **rivals(config)}
    searches = {
        name: c.train.questions * c.train.group_size * c.plan.episodes * c.plan.searches for name, c in trained.items()
    }
    # 12 questions, 6 members, 3 episodes, 2 searches
    assert searches == {"MR-Search": 432, "gamma 0": 432, "single episodes": 432, LONG: 432}
    assert rivals(config)[LONG].train == config.train


@pytest.mark.slow
def test_the_quickstart_teaches_the_agent_to_build_on_its_earlier_episodes(tmp_path: Path) -> None:
    # Measured with seeds 0, 1, 2 at episode 3: from .59, .64, .60 to 1.00, .98, .99, in two minutes of one core.
    command = [sys.executable, "-m", "mrsearch", "quickstart", "--json", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    before, after = report["em_before"], report["em_after"]
    assert len(before) == len(after) == 6
    assert after[2] >= 0.90
    assert after[2] - before[2] >= 0.20
    # what one episode of two searches can answer, and no more
    assert after[0] <= report["ceiling"][0] + 0.05
