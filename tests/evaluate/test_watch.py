"""The watch on collapse: what it counts, when it is alarmed, and that it forgets nothing over a resume."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.config import WatchConfig
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Action, Episode, Passage, Question, Trajectory, Turn, Window
from mrsearch.evaluate.signs import signs
from mrsearch.evaluate.watch import SIGNS, Watch

FOUND = (Passage("1", "a", "b"),)


def episode(number: int, *queries: str, answer: str | None = "x") -> Episode:
    turns = [Turn("", Action("search", query), "stop", True, 0, 0, 0, FOUND) for query in queries]  # type: ignore[arg-type]
    return Episode(number, turns, "answer", answer)


def played(*episodes: Episode, rewards: list[float] | None = None) -> Trajectory:
    earned = [0.0] * len(episodes) if rewards is None else rewards
    return Trajectory(Question("1", "q", ("a",)), 0, 0, list(episodes), [], "complete", rewards=earned)


class TestSigns:
    def test_a_query_that_comes_again_in_any_episode_and_case(self) -> None:
        one = played(episode(1, "Emma", "emma "), episode(2, "EMMA", "Kim"))
        assert signs([one, played(episode(1, "Emma"))], Prompts())["repeated_queries"] == pytest.approx(2 / 5)

    def test_the_example_of_the_prompt_as_an_answer(self) -> None:
        given_answers = [played(episode(1, answer=answer)) for answer in ("Beijing", "the beijing!", "and", "Paris")]
        assert signs(given_answers, Prompts())["copied_answers"] == 0.5

    def test_a_wrong_answer_that_stays_without_a_search(self) -> None:
        idle = played(episode(1, "q", answer="x"), episode(2, answer="X."))
        searched = played(episode(1, answer="x"), episode(2, "q", answer="x"))
        changed = played(episode(1, answer="x"), episode(2, answer="y"))
        right = played(episode(1, answer="x"), episode(2, answer="x"), rewards=[1.0, 1.0])
        assert signs([idle, searched, changed, right], Prompts())["idle_reflections"] == pytest.approx(1 / 3)

    def test_the_likelihood_of_what_earned_something(self) -> None:
        window = Window()
        window.sample([5, 6, 7], [-1.0, -2.0, -9.0], episode=1)
        turns = [Turn("", Action("answer", "x"), "stop", True, 0, start, end) for start, end in ((0, 2), (2, 3))]  # type: ignore[arg-type]
        one = played(Episode(1, turns[:1], "answer", "x"), Episode(2, turns[1:], "answer", "y"), rewards=[1.0, 0.0])
        one.windows.append(window)
        assert signs([one], Prompts())["rewarded_logprob"] == -1.5

    def test_what_was_not_there_has_no_value(self) -> None:
        assert signs([played(Episode(1))], Prompts()) == {}
        assert signs([], Prompts()) == {}


def alarms(watch: Watch, metric: str, *values: float) -> list[int]:
    """How many alarms each step gave."""
    return [len(watch.look({metric: value})) for value in values]


class TestWatch:
    def test_it_takes_so_many_bad_steps_in_a_row(self) -> None:
        watch = Watch(WatchConfig(memory=3))
        assert alarms(watch, "repeated_queries", 0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9, 0.1) == [0, 0, 0, 0, 0, 1, 1, 0]

    def test_the_reference_is_the_mean_of_the_first_steps(self) -> None:
        watch = Watch(WatchConfig(memory=2))
        # Reference 2: bad below .2 or above 6.5
        assert alarms(watch, "entropy", 1.0, 3.0, 0.1, 0.1, 0.3, 6.4, 6.6, 6.6) == [0, 0, 0, 1, 0, 0, 0, 1]

    def test_likelihood_that_falls_by_a_nat(self) -> None:
        watch = Watch(WatchConfig(memory=1))
        assert alarms(watch, "rewarded_logprob", -0.5, -1.4, -1.6) == [0, 0, 1]

    def test_steps_that_trained_nothing_have_no_gradient_to_compare_with(self) -> None:
        watch = Watch(WatchConfig(memory=2))
        for _ in range(4):
            assert watch.look({"grad_norm": 0.0, "updates": 0.0}) == []
        steps = [watch.look({"grad_norm": norm, "updates": 1.0}) for norm in (0.3, 0.3, 0.4, 2.9, 3.1, 3.1)]
        assert [len(alarm) for alarm in steps] == [0, 0, 0, 0, 0, 1]

    def test_an_alarm_says_what_and_why(self) -> None:
        (said,) = Watch(WatchConfig(memory=1)).look({"copied_answers": 0.5})
        assert said == "copied_answers is 0.5, above 0.2: the example of the prompt is given as the answer"

    def test_a_metric_that_is_missing_leaves_its_count(self) -> None:
        watch = Watch(WatchConfig(memory=2))
        assert alarms(watch, "repeated_queries", 0.9) == [0]
        assert watch.look({}) == []
        assert alarms(watch, "repeated_queries", 0.9) == [1]

    def test_forgetting_begins_the_count_anew_and_keeps_the_reference(self) -> None:
        watch = Watch(WatchConfig(memory=2))
        assert alarms(watch, "format_valid", 1.0, 1.0, 0.5, 0.5) == [0, 0, 0, 1]
        watch.forget()
        assert alarms(watch, "format_valid", 0.5, 0.5) == [0, 1]

    @given(
        st.lists(
            st.fixed_dictionaries({}, optional={sign.metric: st.floats(-3, 3) for sign in SIGNS}),
            max_size=12,
        ),
        st.integers(0, 12),
    )
    def test_restored_at_any_step_it_goes_on_as_if_nothing_had_been(
        self, steps: list[dict[str, float]], cut: int
    ) -> None:
        whole, first, second = (Watch(WatchConfig(memory=2)) for _ in range(3))
        expected = [whole.look(values) for values in steps]
        found = [first.look(values) for values in steps[:cut]]
        second.restore(json.loads(json.dumps(first.state())))
        assert [*found, *(second.look(values) for values in steps[cut:])] == expected
