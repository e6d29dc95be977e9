"""Demonstrations by the scripted searcher: questions played in step with a retriever, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Retriever, Search
from mrsearch.core.protocol import parse_action
from mrsearch.core.rewards import exact_match, normalize
from mrsearch.core.types import Passage, Question
from mrsearch.data.scripted.searcher import GuidedSearcher, SearchHabits, check_plan

QUESTIONS_AT_ONCE = 256
"""Questions that are played in step: their searches go to the retriever in one call."""


class _Play:
    """One demonstration while it is made."""

    def __init__(self, question: Question, plan: Plan, rng: Random, habits: SearchHabits | None) -> None:
        self._question = question
        self._plan = plan
        self._searcher = GuidedSearcher(question, plan, rng, habits)
        self._episodes: list[list[dict[str, Any]]] = [[]]

    def advance(self, passages: Sequence[Passage] | None = None) -> Search | None:
        """Write turns up to the next search, and return it; None at the end of the last episode."""
        if passages is not None:
            self._episodes[-1][-1]["passages"] = [asdict(passage) for passage in passages]
        while True:
            text = self._searcher.next_turn(passages)
            action, passages = parse_action(text), None
            self._episodes[-1].append({"text": text, "passages": None})
            if action.kind == "search":
                assert len(self._episodes[-1]) <= self._plan.searches, "more searches than the plan has"
                return Search(action.text, self._plan.top_k)
            if len(self._episodes) == self._plan.episodes:
                return None
            self._episodes.append([])

    def record(self) -> dict[str, Any]:
        return {"question": asdict(self._question), "episodes": [{"turns": turns} for turns in self._episodes]}


def demonstrations(
    questions: Sequence[Question],
    retriever: Retriever,
    plan: Plan,
    *,
    habits: SearchHabits | None = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One demonstration a question, in their order, as plain JSON data that `load_demonstrations` reads.

    Each is `{"question": ..., "episodes": [{"turns": [{"text": ..., "passages": [...] or None}, ...]}, ...]}`. What
    the scripted searcher decides depends on the seed, the question and what the retriever brings, and on no other
    question. Every question must be fit (`unfit`); `ConfigError` for a plan that cannot be played.
    """
    check_plan(plan)
    for start in range(0, len(questions), QUESTIONS_AT_ONCE):
        plays = [
            _Play(question, plan, Random(f"{seed} {question.id} {question.question}"), habits)
            for question in questions[start : start + QUESTIONS_AT_ONCE]
        ]
        searching = [(play, search) for play in plays if (search := play.advance())]
        while searching:
            found = retriever.search([search for _, search in searching])
            searching = [
                (play, search)
                for (play, _), passages in zip(searching, found, strict=True)
                if (search := play.advance(passages))
            ]
        yield from (play.record() for play in plays)


@dataclass
class DemoReport:
    """What demonstrations hold, counted one by one."""

    demonstrations: int = 0
    episodes: int = 0
    searches: int = 0
    turns: int = 0
    words: int = 0
    """Words of turns, tags included; what is imitated."""
    passage_words: int = 0
    complete: int = 0
    """Demonstrations in which a passage of every supporting title was found."""
    right: list[int] = field(default_factory=list)
    """Demonstrations whose answer is right, for each episode."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one demonstration, as `demonstrations` makes it."""
        episodes = [episode["turns"] for episode in record["episodes"]]
        turns = [turn for episode in episodes for turn in episode]
        passages = [passage for turn in turns for passage in turn["passages"] or ()]
        titles = {normalize(passage["title"]) for passage in passages}
        self.demonstrations += 1
        self.episodes += len(episodes)
        self.searches += sum(turn["passages"] is not None for turn in turns)
        self.turns += len(turns)
        self.words += sum(len(turn["text"].split()) for turn in turns)
        self.passage_words += sum(len(f"{passage['title']} {passage['text']}".split()) for passage in passages)
        self.complete += all(normalize(title) in titles for title in record["question"]["supporting_titles"])
        self.right += [0] * (len(episodes) - len(self.right))
        for number, episode in enumerate(episodes):
            answer = parse_action(episode[-1]["text"]).text
            self.right[number] += int(exact_match(answer, record["question"]["golden_answers"]))

    def as_dict(self) -> dict[str, Any]:
        """Means and shares: searches an episode, words a turn, and of demonstrations those right in each episode."""
        return {
            "demonstrations": self.demonstrations,
            "searches_per_episode": _ratio(self.searches, self.episodes),
            "right": [_ratio(count, self.demonstrations) for count in self.right],
            "all_titles_found": _ratio(self.complete, self.demonstrations),
            "words_per_turn": _ratio(self.words, self.turns),
            "share_of_words_written": _ratio(self.words, self.words + self.passage_words),
        }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
