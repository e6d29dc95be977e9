"""A language model as judge of answers, for beside exact match: what it may see, what counts as its verdict."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

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


class Judge:
    """Gives verdicts, each asked for once; with a file they outlast a kill and serve later evaluations."""

    def __init__(self, chat: Chat, kept: Path | None = None) -> None:
        self._chat = chat
        self._kept = kept
        self._verdicts: dict[str, bool | None] = {}
        for line in whole_lines(kept) if kept else ():
            self._verdicts |= json.loads(line)

    def verdicts(
        self, cases: Sequence[Case], progress: Callable[[int, int], None] = lambda done, of: None
    ) -> list[bool | None]:
        """Whether each answer is right; None where the judge came to no verdict.

        A blank answer is wrong and is not shown. A verdict is the last line of what
        the judge says, and nothing else is.
        """
        asked = {self._key(case): case for case in cases if said_something(case)}
        missing = [key for key in asked if key not in self._verdicts]
        for first in range(0, len(missing), AT_ONCE):
            progress(first, len(missing))
            keys = missing[first : first + AT_ONCE]
            said = self._chat.ask([message(asked[key]) for key in keys])
            self._keep({key: verdict(text) for key, text in zip(keys, said, strict=True)})
        return [self._verdicts[self._key(case)] if said_something(case) else False for case in cases]

    def _key(self, case: Case) -> str:
        told = json.dumps([self._chat.model, PROMPT, case], ensure_ascii=True)
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def _keep(self, found: dict[str, bool | None]) -> None:
        self._verdicts |= found
        if self._kept is None:
            return
        whole = "".join(f"{line}\n" for line in whole_lines(self._kept))
        with self._kept.open("r+" if self._kept.exists() else "w", encoding="utf-8") as file:
            file.seek(len(whole.encode()))
            file.truncate()  # what a crash cut short
            file.write(json.dumps(found) + "\n")
            file.flush()
            os.fsync(file.fileno())


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
