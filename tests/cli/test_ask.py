"""`mrsearch ask`: what is said of turns and of the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mrsearch.cli.ask import _as_text, _verdict
from mrsearch.core.types import Action, Passage, Turn, TurnEnd


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        (["Rome", "Rome"], "Answer: Rome (that of the last episode with one; the episodes agree)"),
        (["Oslo", "Rome"], "Answer: Rome (that of the last episode with one; the episodes differ)"),
        (["Rome", None], "Answer: Rome (that of the last episode with one; the episodes differ)"),
        (["Rome", ""], "Answer: Rome (that of the last episode with one; the episodes differ)"),
        ([None, ""], "No answer."),
        ([], "No answer."),
    ],
)
def test_an_episode_without_an_answer_differs_from_one_with(answers: Sequence[str | None], verdict: str) -> None:
    assert _verdict(answers) == verdict


def turn(text: str, end: TurnEnd, passages: tuple[Passage, ...] | None = None) -> Turn:
    return Turn(text, Action("invalid"), end, False, 0, 0, 1, passages)


def test_a_turn_that_was_cut_or_meant_nothing_says_so() -> None:
    assert _as_text(1, turn("Hm", "invalid")) == "[episode 1] Hm [neither a search nor an answer]"
    assert _as_text(1, turn("Hm", "length")) == "[episode 1] Hm [cut at plan.turn_tokens]"
    assert _as_text(2, turn("Hm", "context_full")) == "[episode 2] Hm [cut by the full window]"
    found = turn("<search>a</search>", "search", (Passage("1", "T", "x"),))
    assert _as_text(2, found) == "[episode 2] <search>a</search>\n    1. T: x"
