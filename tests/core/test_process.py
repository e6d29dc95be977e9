"""Rewards of turns: what a search brought that was new, what a score comes to beside the outcome."""

from __future__ import annotations

import pytest

from mrsearch.core.process import Process, gain_rewards, information_gain, renormalized, rule_scores
from mrsearch.core.types import Action, Episode, Passage, Question, Trajectory, Turn
from mrsearch.errors import ConfigError

EMMA = Passage("1", "Emma", "A novel by Jane Austen.")
KIM = Passage("2", "Kim", "A novel.")
PUCK = Passage("3", "Puck", "A spirit.")
QUESTION = Question("1", "Who wrote Emma, not Kim?", ("Jane Austen",), supporting_titles=("Emma", "KIM"))


def turn(*passages: Passage, valid: bool = True) -> Turn:
    return Turn("", Action("search", "x"), "stop", valid, 0, 0, 0, passages)  # type: ignore[arg-type]


ANSWER = Turn("", Action("answer", "x"), "stop", True, 0, 0, 0)  # type: ignore[arg-type]


def played(*episodes: list[Turn]) -> Trajectory:
    numbered = [Episode(number, turns, "answer", "x") for number, turns in enumerate(episodes, start=1)]
    return Trajectory(QUESTION, 0, 0, numbered, [], "complete")


def test_gain_less_redundancy_by_hand() -> None:
    # Gains (.8 + .1) / 2, (0 + .6) / 2, 0; of three passages none, one and all had been brought before
    coverage = [[0.8, 0.1], [0.6, 0.7], [0.8, 0.7]]
    assert information_gain(coverage, ["abc", "ade", "abd"]) == pytest.approx([0.45, 0.3 - 1 / 3, -1.0])
    assert information_gain([], []) == []
    assert information_gain([[1.0]], [[]]) == [1.0]


def test_references_are_titles_and_the_answer_and_are_known_once_found() -> None:
    found = gain_rewards(played([turn(EMMA, PUCK), ANSWER], [turn(EMMA, KIM), turn(), ANSWER]))
    # Emma and the answer are new: 2 of 3. Then Kim is: 1 of 3, and one of two passages is not.
    assert found == [pytest.approx([2 / 3, 0.0]), pytest.approx([1 / 3 - 1 / 2, 0.0, 0.0])]


def test_rule_scores_are_form_and_hit() -> None:
    one = played([turn(EMMA), turn(PUCK), turn(KIM, valid=False), ANSWER])
    assert rule_scores([one]) == [[[1.0, 0.5, 0.5, 0.5]]]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(1.0, [0.5, 1.0, 0.0]), (0.0, [-0.5, 0.0, 0.0])],
)
def test_scores_beside_the_outcome(outcome: float, expected: list[float]) -> None:
    assert renormalized([[0.5, 1.0, 0.9]], [outcome], 1.0) == [expected]


def test_a_turn_that_nobody_scored_gets_nothing_and_each_episode_has_its_own_outcome() -> None:
    assert renormalized([[None, 0.25, None], [0.5, None], []], [0.0, 1.0, 0.0], 1.0) == [[0, -0.75, 0], [0.5, 0], []]


def test_a_judge_needs_an_endpoint() -> None:
    with pytest.raises(ConfigError, match=r"process\.url is empty"):
        Process(kind="judge")
