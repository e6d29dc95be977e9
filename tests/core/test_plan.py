"""Plans: the published shape by default, the prompt of every episode, and refusals that name the setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.plan import Plan
from mrsearch.core.protocol import Prompts
from mrsearch.errors import ConfigError

PROMPTS = Prompts(question="first", reflection="reflect", explore="explore", continuation="go on")


def test_the_default_is_three_episodes_with_one_more_turn_than_searches_in_one_window() -> None:
    plan = Plan()
    assert (plan.episodes, plan.searches, plan.turns, plan.context) == (3, 3, 4, "full")
    assert plan.credit_mask == (1.0, 1.0, 1.0)


def test_exploration_episodes_come_first_and_have_no_credit_of_their_own() -> None:
    assert Plan(episodes=4, explore=2).credit_mask == (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("openings", "prompts"),
    [
        (("reflection",), ["first", "reflect", "reflect", "reflect"]),
        (("explore", "reflection"), ["first", "explore", "reflect", "reflect"]),
        (("explore", "continuation", "reflection", "explore"), ["first", "explore", "go on", "reflect"]),
    ],
)
def test_each_episode_has_its_opening_and_the_last_named_serves_the_rest(
    openings: tuple[str, ...], prompts: list[str]
) -> None:
    plan = Plan(episodes=4, openings=openings)  # type: ignore[arg-type]
    assert [plan.prompt(PROMPTS, episode) for episode in (1, 2, 3, 4)] == prompts


@pytest.mark.parametrize(
    ("setting", "value", "least"),
    [
        ("episodes", 0, 1),
        ("searches", -1, 0),
        ("top_k", 0, 1),
        ("turn_tokens", 0, 1),
        ("observation_tokens", 0, 1),
        ("window_tokens", 1, 2),
        ("explore", -1, 0),
    ],
)
def test_a_number_below_its_least_is_refused_by_name(setting: str, value: int, least: int) -> None:
    with pytest.raises(ConfigError, match=rf"plan\.{setting} is {value}; it must be at least {least}"):
        Plan(**{setting: value})  # type: ignore[arg-type]


def test_at_least_one_episode_must_exploit() -> None:
    with pytest.raises(ConfigError, match=r"plan\.explore is 3 of 3 episodes"):
        Plan(episodes=3, explore=3)


def test_later_episodes_need_an_opening() -> None:
    with pytest.raises(ConfigError, match=r"plan\.openings is empty"):
        Plan(openings=())


@given(episodes=st.integers(1, 6), data=st.data())
def test_the_credit_mask_has_one_value_an_episode_and_ends_with_credit(episodes: int, data: st.DataObject) -> None:
    explore = data.draw(st.integers(0, episodes - 1))
    mask = Plan(episodes=episodes, explore=explore).credit_mask
    assert len(mask) == episodes
    assert sum(mask) == episodes - explore
    assert mask[-1] == 1.0
