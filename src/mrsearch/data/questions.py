"""Question sets: files to `Question` and back, in our own layout and in those of FlashRAG and Search-R1.

A row that cannot be used stops the reading with its number, since a question
set that silently lost rows gives another result. Knows nothing of passages.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mrsearch.core.types import Question
from mrsearch.errors import DataError, MissingExtra
from mrsearch.jsonl import BOM, read_rows


def load_questions(path: str | Path) -> list[Question]:
    """Read a question set: JSON lines or a JSON list (also `.gz`), or `.parquet`.

    Ids are unique afterwards. Merged sets, as Search-R1 makes them, repeat
    "test_0" for each of their sources: such ids get the source in front.
    Questions may repeat.
    """
    path = Path(path)
    questions, problems = scan_questions(path)
    if problems:
        raise DataError(problems[0])
    if not questions:
        raise DataError(
            f"{path} holds no questions; it needs one JSON object a line with: id, question, golden_answers"
        )
    return questions


def scan_questions(path: str | Path) -> tuple[list[Question], list[str]]:
    """The usable questions of a file, as `load_questions` reads them, and what is wrong with each other row.

    `DataError` only where the file itself cannot be read.
    """
    path = Path(path)
    found = _read_parquet(path) if path.suffix == ".parquet" else _read_json(path)
    return questions_from_records(found, str(path))


def questions_from_records(records: Iterable[tuple[int, Any]], source: str) -> tuple[list[Question], list[str]]:
    """Questions of numbered records, whose ids are unique, and a sentence for each record that is none."""
    numbered: list[tuple[int, Question]] = []
    problems: list[str] = []
    for row, record in records:
        try:
            numbered.append((row, _question(record)))
        except DataError as error:
            problems.append(f"{source}, row {row}: {error}")
    kept: list[Question] = []
    seen: dict[str, int] = {}
    apart = _tell_sources_apart([question for _, question in numbered])
    for (row, _), question in zip(numbered, apart, strict=True):
        if question.id in seen:
            problems.append(
                f"{source}, row {row}: id {question.id!r} is that of row {seen[question.id]} too; give each row its own"
            )
            continue
        seen[question.id] = row
        kept.append(question)
    return kept, problems


def digest_of(questions: Iterable[Question]) -> str:
    """A short hash of questions, golden answers and their order, wherever they were read from."""
    digest = hashlib.sha256()
    for question in questions:
        digest.update(json.dumps(asdict(question), sort_keys=True).encode())
    return digest.hexdigest()[:16]


def save_questions(path: str | Path, questions: Iterable[Question]) -> None:
    """Write a question set as JSON lines (compressed if the name ends in `.gz`), for `load_questions` to read."""
    path = Path(path)
    if path.suffix == ".parquet":
        raise DataError(f"{path}: questions are written as JSON lines; choose a name that ends in .jsonl or .jsonl.gz")
    lines = []
    for row, question in enumerate(questions, start=1):
        record = {name: value for name, value in asdict(question).items() if name != "supporting_titles" or value}
        try:
            lines.append(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        except UnicodeEncodeError:
            raise DataError(f"{path}, row {row}: {_SURROGATE.format(name=f'question {question.id!r}')}") from None
    content = b"".join(lines)
    # No time in the header: the same questions give the same file.
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _question(record: Any) -> Question:
    if not isinstance(record, Mapping):
        raise DataError(f"is {_shown(record)}; a row must be an object with: id, question, golden_answers")
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"'question' is {_shown(question)}; it must be a text that is not blank")
    read = Question(
        id=_id(record),
        question=question,
        golden_answers=_golds(record),
        data_source=_text(record.get("data_source"), "data_source"),
        supporting_titles=_titles(record),
    )
    for name, value in asdict(read).items():
        for text in [value] if isinstance(value, str) else value:
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise DataError(_SURROGATE.format(name=repr(name)))
    return read


def _id(record: Mapping[str, Any]) -> str:
    value = _first(record, ("id",), ("extra_info", "index"))
    if isinstance(value, float) and value.is_integer():  # a column of ints with a gap comes out of pandas as floats
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"the id is {_shown(value)}; 'id' (or 'extra_info.index') must be a text or a whole number")
    return str(value)


def _golds(record: Mapping[str, Any]) -> tuple[str, ...]:
    value = _first(record, ("golden_answers",), ("reward_model", "ground_truth", "target"))
    if value is None:
        raise DataError("has no 'golden_answers' and no 'reward_model.ground_truth.target'; add the right answers")
    golds = _texts(value, "golden_answers")
    if not any(gold.strip() for gold in golds):
        raise DataError(f"'golden_answers' is {_shown(value)}; it needs at least one answer that is not blank")
    return golds


def _titles(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Our own field, or where FlashRAG keeps the sentences that HotpotQA and 2WikiMultihopQA point to."""
    own = record.get("supporting_titles")
    if own is not None:
        return _texts(own, "supporting_titles")
    sentences = _first(record, ("metadata", "supporting_facts", "title"))
    return () if sentences is None else tuple(dict.fromkeys(_texts(sentences, "metadata.supporting_facts.title")))


def _first(record: Mapping[str, Any], *places: Sequence[str]) -> Any:
    """The value at the first of some places, each a path of keys, where there is one."""
    for place in places:
        value: Any = record
        for key in place:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """Texts from a list, an array, a list written as JSON in a string, or one bare string."""
    if hasattr(value, "tolist"):  # a numpy array, as pandas gives for a column of lists
        value = value.tolist()
    if isinstance(value, str):
        value = _listed(value)
    if not isinstance(value, list | tuple):
        raise DataError(f"{name!r} is {_shown(value)}; it must be a list of texts")
    return tuple(_text(item, name) for item in value)


def _listed(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            return [text]
        if isinstance(items, list):
            return items
    return [text]


def _text(value: Any, name: str) -> str:
    if value is None and name == "data_source":
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):  # a year, say
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{name!r} holds {_shown(value)}; only texts and numbers can stand there")
    return value


def _tell_sources_apart(questions: list[Question]) -> list[Question]:
    sources: dict[str, set[str]] = {}
    for question in questions:
        sources.setdefault(question.id, set()).add(question.data_source)
    return [
        replace(question, id=f"{question.data_source}_{question.id}") if len(sources[question.id]) > 1 else question
        for question in questions
    ]


_SURROGATE = "{name} holds half of a UTF-16 pair (a lone surrogate), which no file can hold; repair the text"


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _read_json(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers from 1: lines, or items of one list."""
    if not _is_list(path):
        yield from read_rows(path)
        return
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        items = json.loads(content.removeprefix(BOM))
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        raise DataError(f"{path} opens a JSON list but is not one ({error}); repair it or write JSON lines") from None
    yield from enumerate(items, start=1)


def _is_list(path: Path) -> bool:
    """Whether the file opens a JSON list; what cannot be read at all is told by the reader of lines."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return bytes(file.read(256)).removeprefix(BOM).lstrip().startswith(b"[")
    except (OSError, EOFError, zlib.error):
        return False


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(f"reading {path} needs pyarrow; install it with: pip install 'mrsearch[data]'") from error
    if not path.exists():
        raise DataError(f"there is no file {path}; check the path of the questions")
    try:
        records = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these two kinds
        raise DataError(f"{path} cannot be read as Parquet ({error}); fetch or write it again") from error
    yield from enumerate(records, start=1)
