"""Agents that know the questions, each played through the machine: what they write and what they score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Generate, Sampling
from mrsearch.core.protocol import STOP, THOUGHT_STOP, Prompts
from mrsearch.core.rewards import exact_match
from mrsearch.core.types import Passage, Question, Trajectory
from mrsearch.rollout.driver import SimpleDriver
from mrsearch.rollout.known import KNOWING, KnowingPolicy, gold, null, titles
from mrsearch.rollout.play import Player
from plain_codec import PassageBook, PlainCodec

PROMPTS = Prompts(question="{question}\n", reflection="Again.\n", last_call="")
LOUVRE = Question("1", "In which city is it?", ("Paris", "Lutetia"), supporting_titles=("Louvre", "Seine"))
ROME = Question("2", "Where is the forum?", ("Rome",), supporting_titles=("Forum",))
SAME = Question("3", "Are both in Paris?", ("yes",), supporting_titles=("Louvre", "Seine"))
BOOK = {
    "Louvre": [Passage("7", "Louvre", "a museum by the river")],
    "Seine": [Passage("8", "Seine", "runs through Lutetia")],
    "Forum": [Passage("9", "Forum", "a square")],
}


def play(
    agent: str,
    questions: Sequence[Question] = (LOUVRE, ROME),
    *,
    members: int = 1,
    book: Mapping[str, Sequence[Passage]] = BOOK,
    **plan: Any,
) -> list[Trajectory]:
    codec = PlainCodec(PROMPTS)
    policy = KnowingPolicy(codec, codec, questions, KNOWING[agent])
    player = Player(SimpleDriver(policy, PassageBook(book)), codec, PROMPTS)
    shape = {"episodes": 1, "searches": 2, "window_tokens": 4000, **plan}
    found, _ = player.play(questions, Plan(**shape), group_size=members, sampling=Sampling(), seed=(0, 0))
    return found


def answers(trajectories: Sequence[Trajectory]) -> list[list[str | None]]:
    return [[episode.answer for episode in trajectory.episodes] for trajectory in trajectories]


def queries(trajectory: Trajectory) -> list[list[str]]:
    return [[turn.action.text for turn in episode.turns[:-1]] for episode in trajectory.episodes]


class TestGold:
    def test_answers_its_own_question_at_once_in_every_episode(self) -> None:
        found = play("gold", episodes=2, members=2)
        assert answers(found) == [["Paris", "Paris"]] * 2 + [["Rome", "Rome"]] * 2
        assert all(len(episode.turns) == 1 for trajectory in found for episode in trajectory.episodes)

    def test_writes_turns_of_the_form_that_the_protocol_asks_for(self) -> None:
        assert [turn.format_valid for turn in play("gold")[0].episodes[0].turns] == [True]

    @pytest.mark.parametrize("golden", ["A", "The", "!!!", "C++", "<b>", "the who?", "Ångström's"])
    def test_scores_1_with_an_answer_of_any_kind(self, golden: str) -> None:
        question = Question("1", "Where?", (golden,))
        (trajectory,) = play("gold", [question])
        assert exact_match(trajectory.episodes[0].answer, question.golden_answers) == 1.0

    def test_needs_no_searches(self) -> None:
        assert answers(play("gold", searches=0)) == [["Paris"], ["Rome"]]


class TestNull:
    def test_answers_nothing_in_every_episode(self) -> None:
        found = play("null", episodes=2)
        assert answers(found) == [["", ""], ["", ""]]
        assert [trajectory.counters["blank_answers"] for trajectory in found] == [2, 2]

    @given(golds=st.lists(st.text(max_size=6), min_size=1, max_size=3))
    def test_scores_0_whatever_is_right(self, golds: list[str]) -> None:
        question = Question("1", "Where?", tuple(golds))
        (trajectory,) = play("null", [question])
        assert exact_match(trajectory.episodes[0].answer, golds) == 0.0


class TestTitles:
    def test_searches_for_each_title_and_answers_what_the_passages_hold(self) -> None:
        found = play("titles", searches=2)
        assert [queries(trajectory) for trajectory in found] == [[["Louvre", "Seine"]], [["Forum"]]]
        # The passages have the second golden answer and not the first; for the forum they have none.
        assert answers(found) == [["Lutetia"], [""]]

    def test_begins_anew_in_each_episode_and_remembers_what_it_read(self) -> None:
        (trajectory,) = play("titles", [LOUVRE], episodes=2)
        assert queries(trajectory) == [["Louvre", "Seine"]] * 2
        assert answers([trajectory]) == [["Lutetia", "Lutetia"]]

    def test_members_of_a_group_do_not_count_each_others_turns(self) -> None:
        found = play("titles", [LOUVRE, LOUVRE], members=3)
        assert [queries(trajectory) for trajectory in found] == [[["Louvre", "Seine"]]] * 6

    def test_says_nothing_where_the_passages_say_nothing(self) -> None:
        assert answers(play("titles", book={})) == [[""], [""]]

    def test_does_not_take_a_part_of_a_word_for_an_answer(self) -> None:
        book = {"Forum": [Passage("9", "Forum", "a square of Romeo")]}
        assert answers(play("titles", [ROME], book=book)) == [[""]]
        book = {"Forum": [Passage("9", "Forum", "a square of ROME.")]}
        assert answers(play("titles", [ROME], book=book)) == [["Rome"]]

    def test_says_yes_where_every_title_was_found_and_not_before(self) -> None:
        assert answers(play("titles", [SAME])) == [["yes"]]
        assert answers(play("titles", [SAME], book={"Louvre": BOOK["Louvre"]})) == [[""]]

    def test_a_yes_that_stands_in_a_passage_is_no_evidence(self) -> None:
        book = {"Louvre": [Passage("7", "Louvre", "yes")]}
        assert answers(play("titles", [SAME], book=book)) == [[""]]

    def test_reads_passages_of_all_lengths_and_all_of_them(self) -> None:
        book = {"Forum": [Passage("9", "Forum", "Rome " + "x " * 100), Passage("10", "", "y " * 100)]}
        assert answers(play("titles", [ROME], book=book)) == [["Rome"]]

    def test_does_not_read_what_it_wrote_itself_or_was_asked(self) -> None:
        # The gold stands in the question and in a title, so in its own thought and query, and in no passage.
        question = Question("1", "Is Rome where Rome is?", ("Rome",), supporting_titles=("Rome",))
        assert answers(play("titles", [question])) == [[""]]

    def test_without_titles_answers_at_once_what_a_lookup_brought(self) -> None:
        question = Question("1", "Where?", ("Rome",))
        found = {"Where?": [Passage("9", "", "It is Rome.")]}
        assert answers(play("titles", [question], book=found, lookup=True, searches=0)) == [["Rome"]]
        assert answers(play("titles", [question], book=found, searches=0)) == [[""]]


class TestTurns:
    def test_gold_is_the_first_golden_answer(self) -> None:
        assert gold(LOUVRE, 0, "") == gold(LOUVRE, 7, "Rome") == "<think> I know. </think> <answer> Paris </answer>"

    def test_null_is_a_blank_answer(self) -> None:
        assert null(LOUVRE, 0, "Paris") == "<think> I do not know. </think> <answer> </answer>"

    @pytest.mark.parametrize(("turns", "title"), [(0, "Louvre"), (1, "Seine"), (3, "Louvre"), (4, "Seine")])
    def test_titles_come_in_order_and_from_the_start_after_each_answer(self, turns: int, title: str) -> None:
        assert titles(LOUVRE, turns, "") == f"<think> I need {title}. </think> <search> {title} </search>"


class TestWhereAThoughtIsAQuery:
    def test_the_title_is_the_thought_and_the_answer_stands_alone(self) -> None:
        (trajectory,) = play("titles", [LOUVRE], query="thought")
        assert [turn.text for turn in trajectory.episodes[0].turns] == [
            "<think> Louvre </think>",
            "<think> Seine </think>",
            "<answer> Lutetia </answer>",
        ]
        assert all(turn.format_valid for turn in trajectory.episodes[0].turns)
        assert trajectory.counters["searches"] == 2

    @pytest.mark.parametrize(("agent", "answer"), [("gold", "Paris"), ("null", "")])
    def test_the_others_answer_as_ever(self, agent: str, answer: str) -> None:
        assert answers(play(agent, [LOUVRE], query="thought", lookup=True)) == [[answer]]


def test_a_completion_has_a_log_probability_of_0_for_each_token() -> None:
    codec = PlainCodec(PROMPTS)
    policy = KnowingPolicy(codec, codec, [LOUVRE, ROME], gold)
    for stop, text in (
        (STOP, "<think> I know. </think> <answer> Rome </answer>"),
        (THOUGHT_STOP, "<answer> Rome </answer>"),
    ):
        (found,) = policy.generate([Generate((1, 0, 0), [], 0, 100, stop, Sampling(), 0)])
        assert codec.decode(found.ids) == text
        assert (list(found.logprobs), found.finish_reason) == ([0.0] * len(found.ids), "stop")


def test_a_blank_golden_answer_is_not_the_one_that_is_given() -> None:
    assert gold(Question("1", "?", ("", " ", "Paris")), 0, "") == "<think> I know. </think> <answer> Paris </answer>"


def test_an_article_as_golden_answer_is_found_where_it_stands_alone() -> None:
    graded = Question("1", "?", ("A",))
    assert "<answer> A </answer>" in titles(graded, 0, "His grade was a , she said")
    assert "<answer> </answer>" in titles(graded, 0, "His grade was bad")
    assert "<answer> </answer>" in titles(graded, 0, "")
