"""What an evaluation has done so far, on disk, so that one that is killed goes on where it was.

One line a chunk of questions, written and synced when all of them are played;
a line that a crash cut short counts as not there. The first line says of what
evaluation they are: other settings, data, weights or passages begin anew.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrsearch.core.types import Trajectory
from mrsearch.errors import DataError
from mrsearch.runs import finite, whole_lines


@dataclass(frozen=True)
class Played:
    """A question's meta-episodes, one a sample, with the mean log-probability of each episode's tokens.

    None where the engine tells no log-probabilities. The token ids are not kept.
    """

    index: int
    samples: list[Trajectory]
    logprobs: list[list[float | None]]


@dataclass(frozen=True)
class Chunk:
    """Questions that were played together, the seconds that took, and what the engine counted."""

    played: list[Played]
    seconds: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)


def mean_logprobs(trajectory: Trajectory) -> list[float | None]:
    """Mean log-probability of the tokens that were sampled in each episode; None where they are not known."""
    means: list[float | None] = []
    for episode in trajectory.episodes:
        found = [
            logprob
            for turn in episode.turns
            for logprob in trajectory.windows[turn.window].logprobs[turn.start : turn.end]
        ]
        mean = sum(found) / len(found) if found else None
        means.append(finite(mean))
    return means


class Journal:
    """A file of chunks. Without a path nothing is kept."""

    def __init__(self, path: Path | None, evaluation: Mapping[str, Any]) -> None:
        """Open it to go on, or begin it anew if it is of another evaluation."""
        self._path = path
        self.chunks: list[Chunk] = []
        if path is None:
            return
        first = json.dumps({"evaluation": finite(evaluation)}, sort_keys=True)
        whole = whole_lines(path)
        if whole[:1] == [first]:
            self.chunks = [_chunk(json.loads(line)) for line in whole[1:]]
        else:
            whole = [first]
        # Also drops what a crash cut short, so that the next line begins on its own.
        aside = path.with_name(f".{path.name}.partial")
        aside.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
        aside.replace(path)

    @property
    def done(self) -> set[int]:
        """The indices of the questions that are done."""
        return {played.index for chunk in self.chunks for played in chunk.played}

    @property
    def played(self) -> list[Played]:
        """What is done, in the order of the questions."""
        every = (played for chunk in self.chunks for played in chunk.played)
        return sorted(every, key=lambda played: played.index)

    @property
    def seconds(self) -> float:
        """The seconds that it took."""
        return sum(chunk.seconds for chunk in self.chunks)

    @property
    def counters(self) -> Counter[str]:
        """What the engine counted."""
        counted: Counter[str] = Counter()
        for chunk in self.chunks:
            counted.update(chunk.counters)
        return counted

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk."""
        self.chunks.append(chunk)
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_record(chunk), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_played(path: Path) -> Iterator[Played]:
    """What a file of chunks holds, whichever evaluation it is of; `DataError` for another file."""
    lines = whole_lines(path)
    try:
        if "evaluation" not in json.loads(lines[0]):
            raise KeyError("evaluation")
        for line in lines[1:]:
            yield from _chunk(json.loads(line)).played
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} holds nothing that mrsearch eval played ({error!r})") from None


def _record(chunk: Chunk) -> dict[str, Any]:
    return {
        "seconds": round(chunk.seconds, 3),
        "counters": dict(chunk.counters),
        "played": [
            {
                "index": played.index,
                "logprobs": finite(played.logprobs),
                "samples": [finite({**sample.to_record(), "windows": []}) for sample in played.samples],
            }
            for played in chunk.played
        ],
    }


def _chunk(record: Mapping[str, Any]) -> Chunk:
    played = [
        Played(row["index"], [Trajectory.from_record(sample) for sample in row["samples"]], row["logprobs"])
        for row in record["played"]
    ]
    return Chunk(played, record["seconds"], record["counters"])
