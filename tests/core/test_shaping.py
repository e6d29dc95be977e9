"""Rewards beyond the score of an answer: the tables of the papers, and what repeats or improves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.rewards import exact_match, token_f1
from mrsearch.core.shaping import Shaping, shaped_rewards
from mrsearch.core.types import Action, Episode, Passage, Question, Trajectory, Turn
from mrsearch.errors import ConfigError

GOLDS = ("Jane Austen",)
EMMA = Passage("1", "Emma", "A novel by JANE AUSTEN!")
KIM = Passage("2", "Kim", "A novel.")


def episode(number: int, answer: str | None, *, valid: bool = True, passages: tuple[Passage, ...] = (KIM,)) -> Episode:
    """An episode that searched once and then answered, or did not."""
    turns = [Turn("<search>x</search>", Action("search", "x"), "stop", valid, 0, 0, 1, passages)]  # type: ignore[arg-type]
    return Episode(number, turns, "no_answer" if answer is None else "answer", answer)


def played(*episodes: Episode) -> Trajectory:
    return Trajectory(Question("1", "Who wrote Emma?", GOLDS), 0, 0, list(episodes), [], "complete")


def rewards(*answers: str | None, **shaping: float | str) -> list[float]:
    episodes = [episode(number, answer) for number, answer in enumerate(answers, start=1)]
    return shaped_rewards(played(*episodes), exact_match, Shaping(**shaping))  # type: ignore[arg-type]


def test_all_off_it_is_the_score_of_each_answer() -> None:
    assert rewards("Bronte", "Jane Austen", None) == [0, 1, 0]


@pytest.mark.parametrize(
    ("answer", "valid", "passage", "expected"),
    [
        # Right or wrong, with the format or without: 1, 1 - .2, .2 (.3 where a passage holds the gold), .1
        ("Jane Austen", True, KIM, 1.0),
        ("Jane Austen", False, EMMA, 0.8),
        ("Bronte", True, KIM, 0.2),
        ("Bronte", True, EMMA, 0.3),
        ("Bronte", False, EMMA, 0.1),
        ("", False, EMMA, 0.1),
        (None, True, EMMA, 0.0),
    ],
)
def test_search_r1(answer: str | None, valid: bool, passage: Passage, expected: float) -> None:
    shaping = Shaping(rule="search_r1", format=0.2, retrieval=0.1, floor=0.1)
    found = shaped_rewards(played(episode(1, answer, valid=valid, passages=(passage,))), exact_match, shaping)
    assert found == pytest.approx([expected])


@pytest.mark.parametrize(
    ("answer", "valid", "expected"),
    [
        ("Miss Jane Austen", True, 0.8),  # F1: 2 * 2 / (3 + 2)
        ("Bronte", True, 0.1),
        ("Jane Austen", False, 0.0),
        (None, True, 0.0),
    ],
)
def test_research(answer: str | None, valid: bool, expected: float) -> None:
    shaping = Shaping(rule="research", format=0.1)
    assert shaped_rewards(played(episode(1, answer, valid=valid)), token_f1, shaping) == pytest.approx([expected])


def test_a_wrong_answer_that_comes_again_pays() -> None:
    assert rewards("Bronte", "the Bronte!", "Kipling", "Bronte", repetition=0.1) == [0, -0.1, 0, -0.1]
    assert rewards("Jane Austen", "Jane Austen", repetition=0.1) == [1, 1]
    assert rewards(None, None, "", repetition=0.1) == [0, 0, 0]


def test_improvement_is_against_the_episode_before() -> None:
    assert rewards("Bronte", "Jane Austen", "Jane Austen", "Bronte", improvement=0.5) == [0, 1.5, 1, -0.5]


@given(st.lists(st.sampled_from(["Bronte", "Jane Austen", None]), max_size=5))
def test_improvements_sum_to_what_the_last_is_above_the_first(answers: list[str | None]) -> None:
    plain, shaped = rewards(*answers), rewards(*answers, improvement=1.0)
    gained = sum(shaped) - sum(plain)
    assert gained == (plain[-1] - plain[0] if plain else 0)


@pytest.mark.parametrize(
    "wrong",
    [{"format": 0.1}, {"floor": 0.1}, {"rule": "research", "retrieval": 0.1}],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_part_without_its_rule_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"shaping\.rule=search_r1"):
        Shaping(**wrong)  # type: ignore[arg-type]
