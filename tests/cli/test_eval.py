"""`mrsearch eval`: under which name a result is kept."""

from __future__ import annotations

from itertools import combinations

from mrsearch.cli.eval import evaluation_name
from mrsearch.config import load_config

VALIDATION = "data.validation=sets/test.jsonl.gz"


def test_a_name_tells_set_episodes_and_temperature() -> None:
    name = evaluation_name(load_config(overrides=[VALIDATION, "plan.episodes=4", "sampling.temperature=0.5"]), 0)
    assert name.startswith("test-4-episodes-t0.5-")
    assert len(name.rpartition("-")[2]) == 8


def test_other_settings_or_another_limit_never_share_a_name_and_the_same_ones_do() -> None:
    changes = ["seed=0", "sampling.temperature=0", "sampling.top_p=0.9", "plan.searches=1", "model.path=other"]
    names = [evaluation_name(load_config(overrides=[VALIDATION, change]), 0) for change in changes]
    names.append(evaluation_name(load_config(overrides=[VALIDATION]), 5))
    assert all(one != other for one, other in combinations(names, 2))
    assert names[0] == evaluation_name(load_config(overrides=[VALIDATION, "seed=0"]), 0)
