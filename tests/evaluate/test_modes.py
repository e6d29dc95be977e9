"""The ways in which an agent is asked: what each plays, and what of the plan it leaves as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Sampling
from mrsearch.core.protocol import Prompts
from mrsearch.errors import ConfigError
from mrsearch.evaluate.modes import MODES, Mode, mode_of

PLAN = Plan(
    episodes=4,
    searches=3,
    top_k=5,
    turn_tokens=11,
    observation_tokens=12,
    window_tokens=13,
    explore=2,
    stop_when_stable=True,
)
PROMPTS = Prompts(
    question="usual", direct="direct", cot="cot", rag="rag", ircot="ircot", last_call="last call", reflection="again"
)
GREEDY = Sampling(temperature=0.0, top_p=0.9, top_k=7)


def mode(name: str, plan: Plan = PLAN, sampling: Sampling = GREEDY) -> Mode:
    return mode_of(name, plan, PROMPTS, sampling)


def test_every_name_is_a_mode_and_another_is_refused_with_the_known_ones() -> None:
    assert [mode(name).name for name in MODES] == list(MODES)
    with pytest.raises(ConfigError, match=r"there is no mode 'refect'; known are reflect, single, parallel, long, "):
        mode("refect")


def test_reflect_is_the_agent_as_it_is() -> None:
    assert mode("reflect") == Mode("reflect", PLAN, PROMPTS, GREEDY, samples=1, condense=False)


def test_single_is_the_first_episode_under_its_own_budget() -> None:
    first = replace(PLAN, episodes=1, explore=0, stop_when_stable=False)
    assert mode("single") == Mode("single", first, PROMPTS, GREEDY)


@pytest.mark.parametrize("name", [name for name in MODES if name != "reflect"])
def test_one_episode_neither_explores_nor_waits_for_a_stable_answer(name: str) -> None:
    plan = mode(name).plan
    assert (plan.episodes, plan.explore, plan.stop_when_stable) == (1, 0, False)


@pytest.mark.parametrize("name", MODES)
def test_no_mode_touches_what_a_turn_a_search_or_a_window_may_hold(name: str) -> None:
    plan = mode(name).plan
    assert (plan.top_k, plan.turn_tokens, plan.observation_tokens, plan.window_tokens) == (5, 11, 12, 13)


class TestParallel:
    def test_has_a_single_episode_for_each_episode_of_the_plan(self) -> None:
        parallel = mode("parallel")
        assert (parallel.plan, parallel.prompts, parallel.samples) == (mode("single").plan, PROMPTS, 4)

    def test_draws_at_temperature_1_where_all_samples_would_be_equal(self) -> None:
        assert mode("parallel").sampling == Sampling(temperature=1.0, top_p=0.9, top_k=7)

    def test_keeps_a_temperature_that_was_given(self) -> None:
        warm = Sampling(temperature=0.3, top_p=0.8)
        assert mode("parallel", sampling=warm).sampling == warm

    @pytest.mark.parametrize("name", [name for name in MODES if name != "parallel"])
    def test_alone_has_several_samples_and_another_sampling(self, name: str) -> None:
        assert (mode(name).samples, mode(name).sampling) == (1, GREEDY)


class TestLong:
    def test_has_the_searches_of_all_episodes_in_one(self) -> None:
        assert mode("long").plan == replace(mode("single").plan, searches=12)
        assert mode("long").prompts == PROMPTS

    @given(episodes=st.integers(1, 9), searches=st.integers(0, 9))
    def test_may_search_as_often_as_reflect(self, episodes: int, searches: int) -> None:
        plan = Plan(episodes=episodes, searches=searches)
        reflect, long = mode("reflect", plan).plan, mode("long", plan).plan
        assert long.episodes * long.searches == reflect.episodes * reflect.searches


class TestBaselines:
    @pytest.mark.parametrize(
        ("name", "searches", "lookup", "query"),
        [
            ("direct", 0, False, "search"),
            ("cot", 0, False, "search"),
            ("rag", 0, True, "search"),
            ("ircot", 3, True, "thought"),
            ("search-o1", 3, False, "search"),
        ],
    )
    def test_find_passages_each_in_their_way(self, name: str, searches: int, lookup: bool, query: str) -> None:
        plan = mode(name).plan
        assert (plan.searches, plan.lookup, plan.query) == (searches, lookup, query)

    @pytest.mark.parametrize("name", ["direct", "cot", "rag"])
    def test_without_a_search_have_a_prompt_of_their_own_and_no_last_call(self, name: str) -> None:
        # "No searches are left" would tell of searches that there never were.
        assert mode(name).prompts == replace(PROMPTS, question=name, last_call="")

    def test_ircot_has_a_prompt_of_its_own_and_is_told_of_its_last_turn(self) -> None:
        prompts = mode("ircot").prompts
        assert (prompts.question, prompts.last_call) == ("ircot", "last call")

    def test_search_o1_alone_condenses_and_is_single_otherwise(self) -> None:
        assert [name for name in MODES if mode(name).condense] == ["search-o1"]
        assert mode("search-o1") == replace(mode("single"), name="search-o1", condense=True)


def test_scores_run_over_episodes_or_samples() -> None:
    columns = {name: mode(name).columns for name in MODES}
    assert columns == {**dict.fromkeys(MODES, 1), "reflect": 4, "parallel": 4}


def test_scores_of_parallel_run_over_all_samples_that_are_drawn() -> None:
    assert replace(mode("parallel"), samples=9).columns == 9


@pytest.mark.parametrize(("name", "lookup"), [("direct", False), ("cot", False), ("rag", True)])
def test_what_the_plan_looks_up_by_itself_does_not_reach_the_baselines(name: str, lookup: bool) -> None:
    plan = mode_of(name, Plan(lookup=True, query="thought"), Prompts(), Sampling()).plan
    assert (plan.lookup, plan.query, plan.searches) == (lookup, "search", 0)


def test_ircot_is_told_of_thoughts_after_an_invalid_turn() -> None:
    asked = mode_of("ircot", Plan(), Prompts(), Sampling()).prompts
    assert asked.invalid == Prompts().ircot_invalid
    assert "<search>" not in asked.invalid
