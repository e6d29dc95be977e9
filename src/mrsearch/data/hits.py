"""Whether passages hold what a question needs: a supporting title, or a right answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.rewards import normalize
from mrsearch.core.types import Passage, Question

YES_NO = frozenset({"yes", "no"})
_BATCH = 64


def title_rank(passages: Sequence[Passage], question: Question) -> int | None:
    """The place, from 1, of the first passage with a supporting title; None if there is none."""
    return next(
        (place for place, passage in enumerate(passages, 1) if passage.title in question.supporting_titles), None
    )


def answer_rank(passages: Sequence[Passage], question: Question) -> int | None:
    """The place, from 1, of the first passage in which a golden answer stands as a run of words.

    As the metrics compare them. Weak evidence: a short answer occurs by chance.
    """
    golds = [f" {gold} " for gold in map(normalize, question.golden_answers) if gold]
    for place, passage in enumerate(passages, 1):
        text = f" {normalize(f'{passage.title} {passage.text}')} "
        if any(gold in text for gold in golds):
            return place
    return None


def is_yes_no(question: Question) -> bool:
    """Whether all golden answers are yes or no, which stand in any text and say nothing of it."""
    return all(normalize(gold) in YES_NO for gold in question.golden_answers)


def found_for(retriever: Retriever, questions: Sequence[Question], top_k: int) -> Iterator[list[Passage]]:
    """The passages of each question, with its text as the query."""
    for start in range(0, len(questions), _BATCH):
        yield from retriever.search(
            [Search(question.question, top_k) for question in questions[start : start + _BATCH]]
        )


def hit_rate(ranks: Sequence[int | None], top_k: int) -> float:
    """Share of ranks among the first so many places.

    >>> hit_rate([1, 5, None, 2], 3)
    0.5
    """
    return sum(rank is not None and rank <= top_k for rank in ranks) / len(ranks) if ranks else 0.0
