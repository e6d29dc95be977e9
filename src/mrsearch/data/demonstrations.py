"""Demonstrations: finished meta-episodes as text, to be imitated.

A line is JSON with a question and, for each episode, its turns: the text that
the policy writes and the passages that its search brought. A trajectory record
is one too, so that what an agent did well can be learnt by another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrsearch.core.types import Passage, Question, question_from_record, split_contents
from mrsearch.errors import DataError
from mrsearch.jsonl import read_rows

DemoTurn = tuple[str, tuple[Passage, ...] | None]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A question and the turns of each episode: text, and passages where the turn searched."""

    question: Question
    episodes: tuple[tuple[DemoTurn, ...], ...]

    @property
    def turns(self) -> list[DemoTurn]:
        """The turns of all episodes, in order."""
        return [turn for episode in self.episodes for turn in episode]


def demonstration_from_record(record: Mapping[str, Any]) -> Demonstration:
    """Read a demonstration or a trajectory record."""
    return Demonstration(
        question_from_record(record["question"]),
        tuple(tuple(_turn(turn) for turn in episode["turns"]) for episode in record["episodes"]),
    )


def load_demonstrations(path: Path) -> list[Demonstration]:
    """Read JSON lines, plain or .gz; `DataError` names the row that cannot be used."""
    demonstrations = []
    for row, record in read_rows(path):
        try:
            demonstrations.append(demonstration_from_record(record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, row {row}: no demonstration ({type(error).__name__}: {error}); a line needs "
                '"question" and "episodes", each with "turns" of "text" and "passages" (docs/training.md has one)'
            ) from error
    if not demonstrations:
        raise DataError(f"{path} holds no demonstrations")
    return demonstrations


def _turn(record: Mapping[str, Any]) -> DemoTurn:
    passages: Sequence[Mapping[str, Any]] | None = record.get("passages")
    return record["text"], None if passages is None else tuple(map(_passage, passages))


def _passage(record: Mapping[str, Any]) -> Passage:
    """A passage as a corpus writes it (`contents`) or as a trajectory does (`title`, `text`); the id may be missing."""
    if "contents" in record:
        title, text = split_contents(record["contents"])
    else:
        title, text = record.get("title", ""), record["text"]
    return Passage(str(record.get("id", "")), title, text, record.get("score"))
