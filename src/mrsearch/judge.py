"""A language model as judge, of answers beside exact match and of turns: what it sees, what counts as its verdict."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from mrsearch.core.process import TurnScores
from mrsearch.core.types import Trajectory, Turn
from mrsearch.runs import whole_lines

PROMPT = """\
You are grading an answer to a question. It is correct if it means the same as one of the accepted answers; a \
longer wording, another spelling or another form of a name, number or date is no fault. It is incorrect if it \
names something else, contradicts them, or does not decide. Judge by the accepted answers alone, not by what you know.

Question: {question}
Accepted answers: {golds}
Answer to grade: {answer}

End with a line of one word: CORRECT or INCORRECT."""
"""What the judge is asked. The answer is what a policy wrote, and may say anything."""

TURN_PROMPT = """\
You are judging one turn of an agent that answers a question by searching. First name the principles by which a good \
turn at this place is told from a bad one: whether it takes the right facts from what was found, whether its query is \
likely to bring what is missing, whether it was right to search or to answer now. Then judge turn {number}, and no \
other, by each of them.

Question: {question}
{turns}

End with a line "SCORE: n", n from 0 (useless or harmful) to 10 (as good as can be)."""
"""What the judge of turns is asked. Turns and passages may say anything."""

AT_ONCE = 64
"""Answers that are judged before their verdicts are kept."""

_THOUGHT = re.compile(r"\A.*</think>", re.DOTALL)


class Chat(Protocol):
    """What answers messages; None where an answer was cut short."""

    model: str

    def ask(self, messages: Sequence[str]) -> list[str | None]:
        """An answer to each message, in order."""
        ...


class Case(NamedTuple):
    """An answer to judge."""

    question: str
    golds: tuple[str, ...]
    answer: str | None


class CachedChat:
    """A chat model that is asked each thing once; with a file what it said outlasts a kill and serves later calls."""

    def __init__(self, chat: Chat, kept: Path | None = None) -> None:
        self.model = chat.model
        self._chat = chat
        self._kept = kept
        self._said: dict[str, str | None] = {}
        for line in whole_lines(kept) if kept else ():
            self._said |= json.loads(line)

    def ask(
        self, messages: Sequence[str], progress: Callable[[int, int], None] = lambda done, of: None
    ) -> list[str | None]:
        """The answer to each message, in order; None for one that was cut short."""
        keys = [self._key(text) for text in messages]
        missing = {key: text for key, text in zip(keys, messages, strict=True) if key not in self._said}
        for first in range(0, len(missing), AT_ONCE):
            progress(first, len(missing))
            some = dict(list(missing.items())[first : first + AT_ONCE])
            self._keep(dict(zip(some, self._chat.ask(list(some.values())), strict=True)))
        return [self._said[key] for key in keys]

    def _key(self, text: str) -> str:
        return hashlib.sha256(json.dumps([self.model, text]).encode()).hexdigest()[:32]

    def _keep(self, found: dict[str, str | None]) -> None:
        self._said |= found
        if self._kept is None:
            return
        whole = "".join(f"{line}\n" for line in whole_lines(self._kept))
        with self._kept.open("r+" if self._kept.exists() else "w", encoding="utf-8") as file:
            file.seek(len(whole.encode()))
            file.truncate()  # what a crash cut short
            file.write(json.dumps(found) + "\n")
            file.flush()
            os.fsync(file.fileno())


class Judge:
    """Gives verdicts on answers; with a file each is asked for once over all evaluations."""

    def __init__(self, chat: Chat, kept: Path | None = None) -> None:
        self._chat = CachedChat(chat, kept)

    def verdicts(
        self, cases: Sequence[Case], progress: Callable[[int, int], None] = lambda done, of: None
    ) -> list[bool | None]:
        """Whether each answer is right; None where the judge came to no verdict.

        A blank answer is wrong and is not shown. A verdict is the last line of what
        the judge says, and nothing else is.
        """
        said = iter(self._chat.ask([message(case) for case in cases if said_something(case)], progress))
        return [verdict(next(said)) if said_something(case) else False for case in cases]


class TurnJudge:
    """Scores turns between 0 and 1 against principles that the judge finds for each (PPRM, arXiv 2509.25598)."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[TurnScores]:
        """A score for each turn but the last of each episode, which its answer's reward judges; None without one."""
        asked = [
            turn_message(one.question.question, episode.turns[: place + 1])
            for one in trajectories
            for episode in one.episodes
            for place in range(len(episode.turns) - 1)
        ]
        # Known for this call alone: the next one has other turns, and a run would keep all of them.
        said = iter(CachedChat(self._chat).ask(asked))
        return [
            [
                [score(next(said)) if place + 1 < len(episode.turns) else None for place in range(len(episode.turns))]
                for episode in one.episodes
            ]
            for one in trajectories
        ]


def said_something(case: Case) -> bool:
    """Whether there is anything to judge."""
    return bool((case.answer or "").strip())


def message(case: Case) -> str:
    """What the judge is told of a case: texts as JSON, so that none can pass for the end of its line."""
    golds = json.dumps(list(case.golds), ensure_ascii=False)
    answer = json.dumps(case.answer, ensure_ascii=False)
    return PROMPT.format(question=json.dumps(case.question, ensure_ascii=False), golds=golds, answer=answer)


def verdict(said: str | None) -> bool | None:
    """What a judge decided: the one word of its last line, after what it thought aloud; None if there is no such word.

    >>> [verdict(said) for said in ("It fits.\\nCORRECT", "**Incorrect.**", "It is not correct", "", None)]
    [True, False, None, None, None]
    """
    lines = _THOUGHT.sub("", said or "").strip().splitlines()
    word = re.sub(r"\W", "", lines[-1]).lower() if lines else ""
    return {"correct": True, "incorrect": False}.get(word)


def turn_message(question: str, turns: Sequence[Turn]) -> str:
    """What the judge is told of a turn: the question, the turns before it and itself, each text as JSON on a line."""
    lines = []
    for number, turn in enumerate(turns, start=1):
        lines.append(f"Turn {number}: {json.dumps(turn.text, ensure_ascii=False)}")
        found = [f"{passage.title}: {passage.text}" for passage in turn.passages or ()]
        lines.append(f"Found by turn {number}: {json.dumps(found, ensure_ascii=False)}")
    return TURN_PROMPT.format(
        question=json.dumps(question, ensure_ascii=False), turns="\n".join(lines), number=len(turns)
    )


def score(said: str | None) -> float | None:
    """The score on a judge's last line, between 0 and 1; None where there is none.

    >>> [score(said) for said in ("Good.\nSCORE: 7", "score: 2.5/10", "SCORE: 11", "7", None)]
    [0.7, 0.25, None, None, None]
    """
    lines = _THOUGHT.sub("", said or "").strip().splitlines()
    found = (
        re.fullmatch(r"\W*score[\s:*]*(\d+(?:\.\d+)?)(?:\s*/\s*10)?\W*", lines[-1], re.IGNORECASE) if lines else None
    )
    value = float(found.group(1)) / 10 if found else 2.0
    return value if value <= 1 else None
