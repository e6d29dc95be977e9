"""Question sets by name: where each is published, and how many rows it has there.

Names are joined by `+` into a mix. The seven sets of Search-R1 come from
FlashRAG's collection; ASearcher's questions are cut into training and test as
the MR-Search code does it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mrsearch.core.types import Question
from mrsearch.data.questions import load_questions, questions_from_records
from mrsearch.errors import DataError, MissingExtra

_log = logging.getLogger(__name__)

FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
ASEARCHER = "aidenjhwu/ASearcher_en_no-math_Qwen3-8B-reject-sample"
ASEARCHER_TEST, ASEARCHER_SEED = 0.1, 42
"""Share of ASearcher's rows that are its test set, and the seed by which they are drawn."""


@dataclass(frozen=True)
class PublishedSet:
    """Where a set is published, under which name there, and the rows that it had when it was last looked at."""

    repository: str
    config: str
    split: str
    rows: int


SETS: Mapping[str, PublishedSet] = {
    "nq": PublishedSet(FLASHRAG, "nq", "test", 3_610),
    "triviaqa": PublishedSet(FLASHRAG, "triviaqa", "test", 11_313),
    "popqa": PublishedSet(FLASHRAG, "popqa", "test", 14_267),
    "hotpotqa": PublishedSet(FLASHRAG, "hotpotqa", "dev", 7_405),
    "2wikimultihopqa": PublishedSet(FLASHRAG, "2wikimultihopqa", "dev", 12_576),
    "musique": PublishedSet(FLASHRAG, "musique", "dev", 2_417),
    "bamboogle": PublishedSet(FLASHRAG, "bamboogle", "test", 125),
    "asearcher": PublishedSet(ASEARCHER, "", "test", 1_399),
    "nq-train": PublishedSet(FLASHRAG, "nq", "train", 79_168),
    "hotpotqa-train": PublishedSet(FLASHRAG, "hotpotqa", "train", 90_447),
    "asearcher-train": PublishedSet(ASEARCHER, "", "train", 12_591),
}
"""The eight benchmarks of the paper, then what it trains on."""


def read_questions(name: str) -> list[Question]:
    """Questions of a file, or of published sets by name (`hotpotqa`, `nq-train+hotpotqa-train`); files go first."""
    path = Path(name)
    names = name.split("+")
    if path.exists() or not all(part in SETS for part in names):
        if not path.exists() and not path.suffix:
            raise DataError(f"there is no file {name} and no question set of that name; sets: {', '.join(SETS)}")
        return load_questions(path)
    return [question for part in names for question in load_set(part)]


def load_set(name: str, *, repository: str = "") -> list[Question]:
    """A published set, fetched once by `datasets` and kept in its cache; `DataError` where a row cannot be used.

    `repository` names another home of the same layout: a mirror, or a folder.
    """
    published = SETS[name]
    source = name.removesuffix("-train")
    if published.repository == ASEARCHER:
        records = _asearcher(repository or ASEARCHER, published.split)
    else:
        records = _rows(repository or FLASHRAG, published.config, published.split)
    questions, problems = questions_from_records(enumerate(records, start=1), f"{name} of {published.repository}")
    if problems:
        raise DataError(f"{problems[0]} ({len(problems)} such rows)")
    if len(questions) != published.rows:
        _log.warning(
            "%s has %d questions, not the %d of the literature; figures on it are not quite comparable",
            name,
            len(questions),
            published.rows,
        )
    return [replace(question, id=f"{source}_{question.id}", data_source=source) for question in questions]


def _rows(repository: str, config: str, split: str) -> Iterator[Mapping[str, Any]]:
    yield from _load(repository, config, split)


def _asearcher(repository: str, split: str) -> Iterator[Mapping[str, Any]]:
    """Rows in FlashRAG's layout; a question ends in a question mark, as in the published test file."""
    halves = _load(repository, "", "train").train_test_split(ASEARCHER_TEST, seed=ASEARCHER_SEED)
    for row, record in enumerate(halves[split]):
        extra = record["extra_info"]
        question = str(extra["question"]).strip()
        yield {
            "id": f"{split}_{row}",
            "question": question if question.endswith("?") else f"{question}?",
            "golden_answers": [str(extra["ground_truth"])],
        }


def _load(repository: str, config: str, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra(
            f"fetching {repository} needs datasets; install it with: pip install 'mrsearch[data]'"
        ) from error
    try:
        return datasets.load_dataset(repository, config or None, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # what the library and the hub raise, and all mean one thing
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{repository} {config} cannot be fetched ({reason}); check the network, or read the set from a file"
        ) from error
