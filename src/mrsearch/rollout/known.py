"""Agents that know the questions: what an evaluation is checked with before any model is.

They write turns as a model would and go through the same machine, retriever and
scorer. Each knows its question by the window's group, the question's place in the set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from mrsearch.core.ports import Codec, Completion, Generate
from mrsearch.core.rewards import normalize
from mrsearch.core.types import Question
from mrsearch.rollout.scripted import Encoder

_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_UNKNOWN = "<think> I do not know. </think> <answer> </answer>"

Turn = Callable[[Question, int, str], str]
"""(question, turns written before, text of all passages so far) -> the next turn."""


def gold(question: Question, turns: int, read: str) -> str:
    """Answers a golden answer at once: scores 1 wherever a golden answer can be reached at all."""
    answer = next(filter(str.strip, question.golden_answers), "")
    return f"<think> I know. </think> <answer> {answer} </answer>"


def null(question: Question, turns: int, read: str) -> str:
    """Answers nothing: scores 0."""
    return _UNKNOWN


def titles(question: Question, turns: int, read: str) -> str:
    """Searches for each supporting title, then answers what the passages hold of the golden answers, else nothing.

    A yes or no is given where every title stands in the passages. An episode has
    as many searches as there are titles, so the plan must allow them.
    """
    place = turns % (len(question.supporting_titles) + 1)
    if place < len(question.supporting_titles):
        title = question.supporting_titles[place]
        return f"<think> I need {title}. </think> <search> {title} </search>"
    found = all(_stands_in(title, read) for title in question.supporting_titles)
    for golden in question.golden_answers:
        if found if normalize(golden) in ("yes", "no") else _stands_in(golden, read):
            return f"<think> It is there. </think> <answer> {golden} </answer>"
    return _UNKNOWN


def _stands_in(phrase: str, read: str) -> bool:
    """Whether a phrase stands in a text as whole words; one of articles alone with its articles."""
    plain = normalize(phrase)
    if not plain:
        phrase = " ".join(phrase.casefold().split())
        return bool(phrase) and f" {phrase} " in f" {' '.join(read.casefold().split())} "
    return f" {plain} " in f" {normalize(read)} "


KNOWING: Mapping[str, Turn] = {"gold": gold, "null": null, "titles": titles}
"""The agents by name."""


def _as_thought(text: str) -> str:
    if "<answer>" in text:
        return text[text.index("<answer>") :]
    return text[text.index("<search>") :].replace("search>", "think>")


class KnowingPolicy:
    """Writes what one of these agents would, for the questions of one set."""

    def __init__(self, codec: Codec, encoder: Encoder, questions: Sequence[Question], turn: Turn) -> None:
        self._codec = codec
        self._encoder = encoder
        self._questions = questions
        self._turn = turn
        self._turns: Counter[tuple[int, ...]] = Counter()
        self._read: dict[tuple[int, ...], str] = {}

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        """One turn for each request."""
        return [self._write(request) for request in requests]

    def _write(self, request: Generate) -> Completion:
        which = request.window[:2]
        new = self._codec.decode(request.ids[request.new_from :])
        self._read[which] = self._read.get(which, "") + " ".join(_INFORMATION.findall(new))
        text = self._turn(self._questions[request.window[0]], self._turns[which], self._read[which])
        self._turns[which] += 1
        if "</think>" in request.stop:  # where a thought is a query, it ends the turn
            text = _as_thought(text)
        ids = self._encoder.encode_reply(text)
        return Completion(ids, [0.0] * len(ids), "stop")
