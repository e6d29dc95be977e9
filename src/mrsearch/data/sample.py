"""Which questions of a set are taken: a seeded sample, or those with given ids."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from mrsearch.core.types import Question
from mrsearch.errors import DataError


def sample_questions(questions: Sequence[Question], limit: int, *, seed: int) -> list[Question]:
    """A seeded sample in the set's own order; all of them where `limit` is 0 or larger than the set."""
    if not 0 < limit < len(questions):
        return list(questions)
    chosen = np.random.default_rng(seed).choice(len(questions), size=limit, replace=False)
    return [questions[index] for index in sorted(chosen)]


def read_ids(path: Path, name: str) -> set[str]:
    """Ids from a JSON list, or from an object of lists by the name of the question file, with or without its ending."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); it should be a JSON list of ids") from None
    if isinstance(found, dict):
        file = Path(name).name
        lists = [found[key] for key in (file, file.partition(".")[0]) if key in found]
        if not lists:
            raise DataError(f"{path} has no ids for {file}; it has: {', '.join(map(str, found))}")
        found = lists[0]
    if not isinstance(found, list):
        raise DataError(f"{path} holds {type(found).__name__}; it should be a JSON list of ids")
    return set(map(str, found))


def keep_ids(questions: Sequence[Question], ids: Collection[str]) -> list[Question]:
    """The questions with these ids, in the set's own order; `DataError` where an id is not in the set."""
    kept = [question for question in questions if question.id in ids]
    if len(kept) < len(ids):
        missing = sorted(set(ids) - {question.id for question in kept})
        raise DataError(
            f"{len(missing)} ids are not in the set, among them {missing[0]!r}; name the set they belong to"
        )
    return kept
