"""Rejection sampling: which meta-episodes are kept, and that what is kept can be learnt from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.rewards import exact_match, token_f1
from mrsearch.core.types import Action, Episode, MetaEnd, Passage, Question, Trajectory, Turn
from mrsearch.data.demonstrations import demonstration_from_record
from mrsearch.data.keep import as_demonstration, keep_right

EMMA = Passage("1", "Emma", "By Jane Austen.", 2.5)


def played(
    *answers: str, question: str = "q", said: str = "", end: MetaEnd = "complete", valid: bool = True
) -> Trajectory:
    """A meta-episode whose episodes search once and then answer."""
    episodes = []
    for number, answer in enumerate(answers, start=1):
        texts = [("search", f"<search>Emma{said}</search>"), ("answer", f"<answer>{answer}</answer>")]
        turns = [
            Turn(text, Action(kind, "x"), "stop", True, 0, 0, 0, (EMMA,) if kind == "search" else None)  # type: ignore[arg-type]
            for kind, text in texts
        ]
        episodes.append(Episode(number, turns, "answer", answer))
    counters = Counter(turns=2 * len(answers), valid_turns=2 * len(answers) - (not valid))
    asked = Question(question, question, ("Austen", "Jane Austen"))
    return Trajectory(asked, 0, 0, episodes, [], end, counters)


def answers(kept: Sequence[Trajectory]) -> list[str | None]:
    return [one.episodes[-1].answer for one in kept]


def test_the_last_answer_decides() -> None:
    kept, dropped = keep_right([played("Bronte", "Austen"), played("Austen", "Bronte")], exact_match)
    assert answers(kept) == ["Austen"]
    assert dropped == Counter(wrong=1)


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (played("Austen", end="context_full"), "cut"),
        (played("Austen", end="retrieval_failed"), "cut"),
        (played("Austen", valid=False), "invalid"),
        (played("Bronte"), "wrong"),
        (played("Bronte", valid=False), "wrong"),
    ],
)
def test_what_is_not_worth_imitating_is_counted(one: Trajectory, reason: str) -> None:
    assert keep_right([one], exact_match) == ([], Counter({reason: 1}))


def test_one_whose_passages_were_looked_up_beforehand_would_lack_them() -> None:
    one = played("Austen")
    one.lookup = (EMMA,)
    assert keep_right([one], exact_match) == ([], Counter(cut=1))


def test_at_most_so_many_of_a_question_and_none_twice() -> None:
    several = [played("Austen", said=str(number % 4)) for number in range(6)] + [played("Austen", question="other")]
    kept, dropped = keep_right(several, exact_match, each=3)
    assert [one.question.id for one in kept] == ["q", "q", "q", "other"]
    assert len({one.episodes[0].turns[0].text for one in kept[:3]}) == 3
    assert dropped == Counter(repeated=2, beyond=1)


def test_the_choice_is_seeded_and_is_a_choice() -> None:
    several = [played("Austen", said=str(number)) for number in range(9)]
    chosen = [keep_right(several, exact_match, seed=seed)[0][0].episodes[0].turns[0].text for seed in range(30)]
    assert chosen == [keep_right(several, exact_match, seed=seed)[0][0].episodes[0].turns[0].text for seed in range(30)]
    assert len(set(chosen)) > 4


def test_a_score_that_is_good_enough() -> None:
    near = played("Miss Jane Austen")
    assert answers(keep_right([near], token_f1, at_least=0.8)[0]) == ["Miss Jane Austen"]
    assert keep_right([near], token_f1, at_least=0.81)[1] == Counter(wrong=1)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["Austen", "Bronte"]), st.integers(0, 2))))
def test_every_one_is_kept_or_counted(drawn: list[tuple[str, str, int]]) -> None:
    several = [played(answer, question=question, said=str(said)) for question, answer, said in drawn]
    kept, dropped = keep_right(several, exact_match, each=2)
    assert len(kept) + dropped.total() == len(several)
    assert all(exact_match(one.episodes[-1].answer, ["Austen"]) for one in kept)


def test_what_is_kept_is_a_demonstration() -> None:
    demonstration = demonstration_from_record(as_demonstration(played("Bronte", "Austen")))
    assert demonstration.question.golden_answers == ("Austen", "Jane Austen")
    assert demonstration.turns == [
        ("<search>Emma</search>", (EMMA,)),
        ("<answer>Bronte</answer>", None),
        ("<search>Emma</search>", (EMMA,)),
        ("<answer>Austen</answer>", None),
    ]
