"""`mrsearch eval`: under which name a result is kept, and what is said of losses."""

from __future__ import annotations

from itertools import combinations

from mrsearch.cli.eval import LOSSES, evaluation_name, losses
from mrsearch.config import load_config
from mrsearch.evaluate.scores import COUNTED

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


def test_only_what_was_cut_or_failed_has_a_line() -> None:
    values: dict[str, float] = {f"count/{name}": 0 for name in COUNTED}
    assert losses(values, 8) == []
    values |= {"count/invalid_turns": 5, "count/context_full": 8, "count/late_searches": 2}
    full = "8 of 8 meta-episodes ended with a full window; raise plan.window_tokens"
    assert losses(values, 8) == [full, "count/late_searches: 2"]
    assert set(LOSSES) <= set(COUNTED)
