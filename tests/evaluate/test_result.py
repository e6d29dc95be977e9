"""From what was played to figures, intervals and rows: small sets, counted by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Sampling
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Action, Episode, MetaEnd, Passage, Question, Trajectory, Turn
from mrsearch.evaluate.journal import Played
from mrsearch.evaluate.modes import Mode, mode_of
from mrsearch.evaluate.result import add_verdicts, answers_by_place, figures, macro_average

PARIS = Question("p", "Where is the tower?", ("Paris",))
OSLO = Question("o", "Where is the fjord?", ("Oslo", "Christiania"))

ANSWERS = st.one_of(
    st.none(), st.sampled_from(["", " ", "A", "The", "the Paris!", "Paris France", "Oslo", "..."]), st.text(max_size=12)
)
GOLDS = st.lists(st.sampled_from(["Paris", "A", "The", "...", "Paris France", "the"]), min_size=1, max_size=3)


def reflect(episodes: int) -> Mode:
    return mode_of("reflect", Plan(episodes=episodes), Prompts(), Sampling())


def parallel(samples: int) -> Mode:
    return mode_of("parallel", Plan(episodes=samples), Prompts(), Sampling())


def episode(number: int, answer: str | None, *, tokens: int = 5, searches: int = 0) -> Episode:
    """One turn of so many tokens that answers or does not, behind searches of one token each."""
    turns = [Turn("", Action("search", "q"), "search", True, 0, 0, 1, (Passage("7", "", "x"),))] * searches
    last = Turn("", Action("invalid"), "invalid", False, 0, 0, tokens - searches)
    return Episode(number, [*turns, last], "no_answer" if answer is None else "answer", answer)


def in_sequence(question: Question, answers: Sequence[str | None], ended: MetaEnd = "complete") -> Played:
    episodes = [episode(number, answer) for number, answer in enumerate(answers, start=1)]
    trajectory = Trajectory(question, 0, 0, episodes, [], ended, Counter(turns=len(answers)))
    return Played(0, [trajectory], [[-1.0] * len(answers)])


def drawn(question: Question, answers: Sequence[str | None], logprobs: Sequence[float | None] | None = None) -> Played:
    """A sample of each answer; the nth has 10 n tokens and n - 1 searches."""
    samples = [
        Trajectory(
            question,
            0,
            member,
            [episode(1, answer, tokens=10 * (member + 1), searches=member)],
            [],
            "complete",
            Counter(turns=2, valid_turns=1, late_searches=1),
        )
        for member, answer in enumerate(answers)
    ]
    return Played(0, samples, [[logprob] for logprob in logprobs or [-1.0] * len(answers)])


def over(values: dict[str, float], metric: str, places: int) -> list[float]:
    return [values[f"{metric}/{n}"] for n in range(1, places + 1)]


class TestSequence:
    PLAYED = (in_sequence(PARIS, ["Rome", "the Paris!"]), in_sequence(OSLO, ["Oslo Norway", None], "context_full"))

    def test_figures_are_means_over_questions_at_each_episode(self) -> None:
        values = figures(self.PLAYED, reflect(2))["values"]
        assert over(values, "em", 2) == [0.0, 0.5]
        # First: "Oslo Norway" shares one word of three with "Oslo", 2 / 3; and none of Paris.
        assert over(values, "f1", 2) == pytest.approx([1 / 3, 1 / 2])
        assert over(values, "sub_em", 2) == [0.5, 0.5]
        assert values["wrong_to_right/2"] == 0.5

    def test_an_answer_row_tells_what_was_asked_and_what_came_of_it(self) -> None:
        first, second = figures(self.PLAYED, reflect(2))["answers"]
        assert first == {
            "id": "p",
            "question": "Where is the tower?",
            "golden_answers": ["Paris"],
            "answers": ["Rome", "the Paris!"],
            "em": [0.0, 1.0],
            "f1": [0.0, 1.0],
            "searches": [0, 0],
            "tokens": [5, 5],
            "ended": "complete",
        }
        assert (second["golden_answers"], second["answers"]) == (["Oslo", "Christiania"], ["Oslo Norway", None])
        assert second["ended"] == "context_full"

    def test_tokens_of_an_episode_that_was_not_played_are_0_and_its_answer_is_not_there(self) -> None:
        (row,) = figures([in_sequence(PARIS, ["Paris"], "stopped")], reflect(3))["answers"]
        assert (row["tokens"], row["answers"], row["em"]) == ([5, 0, 0], ["Paris"], [1.0, 1.0, 1.0])

    def test_intervals_are_those_of_the_three_scores_at_each_episode(self) -> None:
        intervals = figures(self.PLAYED, reflect(2))["intervals"]
        # Resampling two questions of which one is right gives means of 0, 1/2 and 1, the outer ones a quarter each.
        assert intervals["em"] == [(0.0, 0.0), (0.0, 1.0)]
        assert intervals["sub_em"] == [(0.0, 1.0), (0.0, 1.0)]
        assert set(intervals) == {"em", "f1", "sub_em"}

    def test_bounds_are_tight_where_all_questions_score_alike(self) -> None:
        played = [in_sequence(PARIS, ["Paris France"])] * 5
        # One word of two: F1 is 2 / 3, in four digits.
        assert figures(played, reflect(1))["intervals"] == {
            "em": [(0.0, 0.0)],
            "f1": [(0.6667, 0.6667)],
            "sub_em": [(1.0, 1.0)],
        }

    def test_intervals_can_be_left_out(self) -> None:
        with_them, without = (figures(self.PLAYED, reflect(2), intervals=told) for told in (True, False))
        assert without["intervals"] == {}
        assert without["values"] == with_them["values"]


class TestReach:
    @pytest.mark.parametrize("answer", [None, "", "  ", "\n"])
    def test_a_blank_answer_scores_0(self, answer: str | None) -> None:
        values = figures([in_sequence(PARIS, [answer])], reflect(1))["values"]
        assert (values["em/1"], values["f1/1"], values["sub_em/1"]) == (0.0, 0.0, 0.0)

    @pytest.mark.parametrize("gold", ["A", "The"])
    def test_a_gold_that_is_an_article_is_reached_by_itself_and_by_no_other(self, gold: str) -> None:
        question = Question("1", "Which grade?", (gold,))
        values = figures([in_sequence(question, [gold, "an", "Paris", ""])], reflect(4))["values"]
        assert over(values, "em", 4) == [1.0, 0.0, 0.0, 0.0]
        assert over(values, "f1", 4) == [1.0, 0.0, 0.0, 0.0]

    @pytest.mark.parametrize(("answer", "em"), [("Oslo", 1.0), ("the christiania", 1.0), ("Oslo Christiania", 0.0)])
    def test_one_of_several_golds_is_enough_but_not_two_at_once(self, answer: str, em: float) -> None:
        assert figures([in_sequence(OSLO, [answer])], reflect(1))["values"]["em/1"] == em
        assert figures([drawn(OSLO, [answer])], parallel(1))["values"]["em/1"] == em


class TestParallel:
    PLAYED = (
        drawn(PARIS, ["Rome", "Paris", "the Paris!"], [-0.5, -0.1, -2.0]),
        drawn(OSLO, ["Oslo", None, "Bergen"], [-1.0, -0.2, -0.3]),
    )

    def values(self) -> dict[str, float]:
        return dict(figures(self.PLAYED, parallel(3))["values"])

    def test_exact_match_is_that_of_the_majority_of_the_first_n(self) -> None:
        # Paris: Rome; Rome before Paris; Paris twice. Oslo: alone, alone (None does not vote), before Bergen.
        assert over(self.values(), "em", 3) == [0.5, 0.5, 1.0]

    def test_f1_is_that_of_the_same_answer(self) -> None:
        played = [drawn(PARIS, ["Paris France", "Rome", "Rome"])]
        assert over(figures(played, parallel(3))["values"], "f1", 3) == pytest.approx([2 / 3, 2 / 3, 0.0])

    def test_best_of_is_the_answer_with_the_highest_mean_log_probability(self) -> None:
        # Paris: Rome; Paris (-0.1); Paris. Oslo: alone; alone (no answer stands at -0.2); Bergen (-0.3).
        assert over(self.values(), "best_of", 3) == [0.5, 1.0, 0.5]

    def test_without_log_probabilities_there_is_no_best_of(self) -> None:
        untold = drawn(PARIS, ["Paris", "Rome"], [None, None])
        found = figures([untold], parallel(2))
        assert not [name for name in found["values"] if name.startswith("best_of")]
        assert found["answers"][0]["logprobs"] == [None, None]
        assert over(found["values"], "em", 2) == [1.0, 1.0]

    def test_pass_at_k_is_over_all_subsets_of_k_samples(self) -> None:
        # Of three samples two are right, and one: 2/3 and 1/3; of the three pairs all hold one, and two of three do.
        assert over(self.values(), "pass_at", 3) == pytest.approx([1 / 2, (1 + 2 / 3) / 2, 1.0])

    def test_effort_is_that_of_each_sample(self) -> None:
        assert over(self.values(), "tokens", 3) == [10.0, 20.0, 30.0]
        assert over(self.values(), "searches", 3) == [0.0, 1.0, 2.0]

    def test_what_single_samples_do_is_a_mean_over_all_of_them(self) -> None:
        values = self.values()
        assert values["sample_em"] == 3 / 6
        assert values["answered/1"] == pytest.approx(5 / 6)
        assert values["format_valid"] == 6 / 12
        assert values["count/late_searches"] == 6

    def test_an_answer_row_has_every_sample(self) -> None:
        row = figures(self.PLAYED, parallel(3))["answers"][0]
        assert row == {
            "id": "p",
            "question": "Where is the tower?",
            "golden_answers": ["Paris"],
            "answers": ["Rome", "Paris", "the Paris!"],
            "em": [0.0, 0.0, 1.0],
            "f1": [0.0, 0.0, 1.0],
            "right": [0.0, 1.0, 1.0],
            "searches": [0.0, 1.0, 2.0],
            "tokens": [10, 20, 30],
            "logprobs": [-0.5, -0.1, -2.0],
            "ended": ["complete"] * 3,
        }

    def test_intervals_are_those_of_the_vote(self) -> None:
        intervals = figures(self.PLAYED, parallel(3))["intervals"]
        assert set(intervals) == {"em", "f1"}
        assert intervals["em"] == [(0.0, 1.0), (0.0, 1.0), (1.0, 1.0)]

    def test_more_samples_than_the_plan_has_episodes_all_count(self) -> None:
        mode = Mode("parallel", Plan(episodes=1), Prompts(), Sampling(), samples=3)
        assert over(figures(self.PLAYED, mode)["values"], "em", 3) == [0.5, 0.5, 1.0]


class TestNothingPlayed:
    @pytest.mark.parametrize("mode", [reflect(2), parallel(2)], ids=["sequence", "samples"])
    def test_is_0_everywhere_and_no_error(self, mode: Mode) -> None:
        found = figures([], mode)
        assert set(found["values"].values()) == {0.0}
        assert over(found["values"], "em", 2) == [0.0, 0.0]
        assert found["intervals"]["em"] == [(0.0, 0.0), (0.0, 0.0)]
        assert found["answers"] == []


class TestMacroAverage:
    def test_counts_each_set_alike_however_many_questions_it_has(self) -> None:
        large = figures([in_sequence(PARIS, ["Paris"])] * 9, reflect(1))
        small = figures([in_sequence(PARIS, ["Rome"])], reflect(1))
        assert macro_average([large, small])["em/1"] == 0.5

    def test_sums_counts(self) -> None:
        sets: list[dict[str, Any]] = [
            {"values": {"count/cut_passages": 3, "em/1": 0.5}},
            {"values": {"count/cut_passages": 4, "em/1": 1.0}},
        ]
        assert macro_average(sets) == {"count/cut_passages": 7, "em/1": 0.75}

    def test_leaves_out_what_a_set_lacks(self) -> None:
        assert macro_average([{"values": {"em/1": 0.5, "best_of/1": 1.0}}, {"values": {"em/1": 0.5}}]) == {"em/1": 0.5}

    def test_of_no_sets_has_nothing(self) -> None:
        assert macro_average([]) == {}


class TestAnswersByPlace:
    def test_are_those_of_the_episodes_and_none_where_an_episode_is_missing(self) -> None:
        (row,) = figures([in_sequence(PARIS, [None, "Rome"], "context_full")], reflect(4))["answers"]
        assert answers_by_place(row, "reflect") == [None, "Rome", None, None]

    def test_carry_on_the_answer_that_stood(self) -> None:
        (row,) = figures([in_sequence(PARIS, ["Rome", "Paris"], "stopped")], reflect(4))["answers"]
        assert answers_by_place(row, "reflect") == ["Rome", "Paris", "Paris", "Paris"]

    def test_of_samples_are_their_votes(self) -> None:
        (row,) = figures([drawn(PARIS, ["Rome", "Paris", "the Paris!"])], parallel(3))["answers"]
        assert answers_by_place(row, "parallel") == ["Rome", "Rome", "Paris"]


class TestVerdicts:
    def judged(self, verdicts: Sequence[Sequence[bool | None]]) -> dict[str, Any]:
        played = [in_sequence(PARIS, ["Rome", "Paris"])] * len(verdicts)
        result = {**figures(played, reflect(2)), "episodes": 2}
        add_verdicts(result, verdicts)
        return result

    def test_stand_beside_exact_match_with_their_interval(self) -> None:
        result = self.judged([[True, False], [True, True]])
        assert over(result["values"], "judge", 2) == [1.0, 0.5]
        assert over(result["values"], "em", 2) == [0.0, 1.0]
        assert result["intervals"]["judge"] == [(1.0, 1.0), (0.0, 1.0)]
        assert [row["judge"] for row in result["answers"]] == [[True, False], [True, True]]

    def test_that_are_missing_count_as_wrong_and_are_counted(self) -> None:
        result = self.judged([[None, True], [None, None]])
        assert over(result["values"], "judge", 2) == [0.0, 0.5]
        assert result["values"]["count/unjudged"] == 3

    def test_of_nothing_are_nothing(self) -> None:
        result = self.judged([])
        assert (result["values"]["count/unjudged"], result["intervals"]["judge"]) == (0, [])


@given(rows=st.lists(st.tuples(GOLDS, st.lists(ANSWERS, min_size=3, max_size=3)), min_size=1, max_size=4))
def test_exact_match_never_lies_above_f1_and_both_lie_between_0_and_1(
    rows: list[tuple[list[str], list[str | None]]],
) -> None:
    questions = [Question(str(n), "Where?", tuple(golds)) for n, (golds, _) in enumerate(rows)]
    asked = list(zip(questions, (answers for _, answers in rows), strict=True))
    for found in (
        figures([in_sequence(question, answers) for question, answers in asked], reflect(3), intervals=False),
        figures([drawn(question, answers) for question, answers in asked], parallel(3), intervals=False),
    ):
        for row in found["answers"]:
            assert all(0.0 <= em <= f1 <= 1.0 for em, f1 in zip(row["em"], row["f1"], strict=True))
        for em, f1 in zip(over(found["values"], "em", 3), over(found["values"], "f1", 3), strict=True):
            assert 0.0 <= em <= f1 <= 1.0


@given(answers=st.lists(st.lists(st.sampled_from(["Paris", "Rome", None]), min_size=3, max_size=3), max_size=5))
def test_bounds_hold_their_mean_between_them(answers: list[list[str | None]]) -> None:
    found = figures([in_sequence(PARIS, row) for row in answers], reflect(3))
    for n, (low, high) in enumerate(found["intervals"]["em"], start=1):
        assert 0.0 <= low <= round(found["values"][f"em/{n}"], 4) <= high <= 1.0


@given(answers=st.lists(st.sampled_from(["Paris", "the paris", "Rome", "Oslo", None]), min_size=1, max_size=5))
def test_all_samples_pass_together_if_one_is_right_and_one_passes_as_often_as_it_is_right(
    answers: list[str | None],
) -> None:
    right = sum(answer in ("Paris", "the paris") for answer in answers)
    values = figures([drawn(PARIS, answers)], parallel(len(answers)), intervals=False)["values"]
    assert values["pass_at/1"] == pytest.approx(right / len(answers))
    assert values["sample_em"] == pytest.approx(right / len(answers))
    assert values[f"pass_at/{len(answers)}"] == (right > 0)
