"""What a question set is like, seen before anything is trained on it or scored by it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mrsearch.core.ports import Retriever
from mrsearch.core.rewards import normalize
from mrsearch.core.types import Question
from mrsearch.data.hits import answer_rank, found_for, hit_rate, is_yes_no, title_rank
from mrsearch.data.questions import digest_of

LONGEST = 10
"""Words of a golden answer beyond which exact match is hardly ever reached."""

PLACES = (1, 3, 10)
"""Among so many passages a gold is looked for."""


def check_questions(questions: Sequence[Question], *, longest: int = LONGEST) -> dict[str, Any]:
    """Counts of what a set holds and of what is odd about it. All counts are of questions, but those of golds."""
    texts: dict[str, set[tuple[str, ...]]] = {}
    repeated = 0
    for question in questions:
        before = texts.setdefault(_text(question), set())
        repeated += bool(before)
        before.add(tuple(sorted(map(normalize, question.golden_answers))))
    golds = [gold for question in questions for gold in question.golden_answers]
    words = [_fewest_words(question) for question in questions]
    return {
        "questions": len(questions),
        "digest": digest_of(questions),
        "sources": dict(Counter(question.data_source for question in questions)),
        "repeated": repeated,
        "repeated_with_other_golds": sum(len(others) > 1 for others in texts.values()),
        "golds": len(golds),
        "blank_golds": sum(not gold.strip() for gold in golds),
        # Such a gold is compared in a form that keeps its articles or signs; other scorers can never match it.
        "golds_normalised_to_nothing": sum(bool(gold.strip()) and not normalize(gold) for gold in golds),
        "long": sum(count > longest for count in words),
        "longest": longest,
        "median_words": statistics.median(words) if words else 0,
        "yes_no": sum(map(is_yes_no, questions)),
        "with_titles": sum(bool(question.supporting_titles) for question in questions),
    }


def check_overlap(questions: Sequence[Question], others: Sequence[Question]) -> int:
    """How many questions stand in the other set too, whatever their case and punctuation."""
    texts = set(map(_text, others))
    return sum(_text(question) in texts for question in questions)


def check_hits(
    questions: Sequence[Question],
    retriever: Retriever,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """How often the passages found for the question itself hold a supporting title, or a right answer.

    Titles over the questions that have some, answers over those that are not
    yes or no.
    """
    titles: list[int | None] = []
    answers: list[int | None] = []
    for done, (question, passages) in enumerate(
        zip(questions, found_for(retriever, questions, max(PLACES)), strict=True), 1
    ):
        if question.supporting_titles:
            titles.append(title_rank(passages, question))
        if not is_yes_no(question):
            answers.append(answer_rank(passages, question))
        progress(done, len(questions))
    return {
        "title_questions": len(titles),
        "answer_questions": len(answers),
        "title_at": {str(place): round(hit_rate(titles, place), 4) for place in PLACES},
        "answer_at": {str(place): round(hit_rate(answers, place), 4) for place in PLACES},
    }


def _text(question: Question) -> str:
    return normalize(question.question) or question.question


def _fewest_words(question: Question) -> int:
    """Words of the shortest gold that can be matched."""
    counts = [len(words) for gold in question.golden_answers if (words := (normalize(gold) or gold).split())]
    return min(counts, default=0)
