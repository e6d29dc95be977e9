"""`mrsearch quickstart`: what its table and its curve say."""

from __future__ import annotations

from mrsearch.cli.quickstart import _ceiling, draw_curve
from mrsearch.core.plan import Plan
from mrsearch.core.types import Question


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
