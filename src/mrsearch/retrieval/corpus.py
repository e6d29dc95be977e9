r"""The corpus: files of passages to `Passage`, row by row, with what is wrong with a row that is none.

A corpus is a file or a folder of files:

    .jsonl, .jsonl.gz, .parquet   rows, in one of two layouts: wiki-18's `{"id", "contents"}`, the contents being
                                  the title in quotes, a line break and the text; or `{"id", "title", "text"}`
                                  (or "_id"), as BEIR and DPR have it
    .txt, .md                     documents, which are cut into passages

However it came, a passage has one form, that of `split_contents`: no whitespace
around title and text, and no line break in the title. Memory does not grow with
the corpus: it is that of the longest row or document.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mrsearch.core.types import Passage, split_contents
from mrsearch.errors import DataError, MissingExtra
from mrsearch.jsonl import json_value, read_lines
from mrsearch.retrieval.documents import split_document

DOCUMENTS = (".txt", ".md")
ROWS = (".jsonl", ".jsonl.gz", ".parquet")

_EXAMPLE = '{"id": "0", "contents": "\\"Title\\"\\ntext"}'
_FIELDS = ("id", "_id", "contents", "title", "text")
_BATCH = 512
Source = TypeVar("Source")


class Row(NamedTuple):
    """A row that is a passage."""

    file: Path
    row: int
    passage: Passage


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no passage. Rows count from 1; 0 is the whole file."""

    file: str
    row: int
    reason: str
    """In two or three words, to count by."""
    problem: str
    """In a sentence that follows the name of the row."""

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}: {self.problem}" if self.row else f"{self.file} {self.problem}"


class Corpus:
    """The rows of a corpus in the order of its files, each read when it is asked for.

    Iterating again begins anew. Whether ids are unique is not looked at here. A
    file that cannot be read to its end is a `DataError`, whatever becomes of bad rows.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.left_out: Counter[str] = Counter()
        """What of a folder is not read, by ending. Hidden files are not counted."""
        self.files = self._find()
        self.size = sum(file.stat().st_size for file in self.files)
        """Bytes of all files."""
        self.position = 0
        """Bytes that were read so far."""

    def _find(self) -> list[Path]:
        if not self.path.is_dir():
            if not self.path.exists():
                raise DataError(f"there is no file {self.path}; check its path")
            return [self.path]
        files = []
        for folder, folders, names in os.walk(self.path, onerror=_refuse_folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            self.left_out["link to a folder"] += sum(Path(folder, name).is_symlink() for name in folders)
            for file in (Path(folder, name) for name in names if not name.startswith(".")):
                if not file.is_file():
                    self.left_out["broken link"] += 1
                elif file.name.lower().endswith(ROWS + DOCUMENTS):
                    files.append(file)
                else:
                    self.left_out[file.suffix.lower() or file.name] += 1
        self.left_out = +self.left_out
        if not files:
            raise DataError(f"{self.path} has no files of passages; their names end in {', '.join(ROWS + DOCUMENTS)}")
        return sorted(files)

    def name(self, file: Path) -> str:
        """A file's name in this corpus, the same wherever the corpus lies."""
        return file.relative_to(self.path).as_posix() if file != self.path else file.name

    def __iter__(self) -> Iterator[Row | BadRow]:
        before = 0
        for file in self.files:
            empty = True
            for row, read, position in self._read(file):
                empty = False
                self.position = before + position
                if isinstance(read, Passage):
                    yield Row(file, row, read)
                else:
                    yield BadRow(str(file), row, read.reason, str(read))
            if empty:
                yield BadRow(str(file), 0, "empty file", f"holds no passages; it needs lines such as {_EXAMPLE}")
            before += file.stat().st_size
            self.position = before

    def _read(self, file: Path) -> Iterator[tuple[int, Passage | _Flaw, int]]:
        if file.suffix.lower() in DOCUMENTS:
            return _document(file, self.name(file))
        return _parquet(file) if file.suffix.lower() == ".parquet" else _json_lines(file)


def load_corpus(path: str | Path) -> list[Passage]:
    """Read a whole corpus into memory; `DataError` names the row of what cannot be used."""
    passages: list[Passage] = []
    places: dict[str, str] = {}
    corpus = Corpus(path)
    for read in corpus:
        if isinstance(read, BadRow):
            raise DataError(str(read))
        file, row, passage = read
        if passage.id in places:
            raise DataError(
                f"{file}, row {row}: id {passage.id!r:.80} is that of {places[passage.id]} too; make it unique"
            )
        places[passage.id] = f"row {row}" if len(corpus.files) == 1 else f"{file}, row {row},"
        passages.append(passage)
    return passages


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read ({error}); check its permissions") from error


class _Flaw(Exception):
    """What is wrong with a row."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


def _tried(read: Callable[[Source], Passage], source: Source) -> Passage | _Flaw:
    try:
        return read(source)
    except _Flaw as flaw:
        return flaw


def _json_lines(file: Path) -> Iterator[tuple[int, Passage | _Flaw, int]]:
    for row, line, position in read_lines(file):
        yield row, _tried(_from_json, line), position


def _from_json(line: bytes) -> Passage:
    try:
        record = json_value(line)
    except ValueError as error:
        raise _Flaw("broken JSON", str(error)) from None
    return _passage(record)


def _parquet(file: Path) -> Iterator[tuple[int, Passage | _Flaw, int]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(f"reading {file} needs pyarrow; install it with: pip install 'mrsearch[data]'") from error
    try:
        size, row = file.stat().st_size, 0
        with pyarrow.parquet.ParquetFile(file) as table:
            total = table.metadata.num_rows
            columns = [name for name in table.schema_arrow.names if name in _FIELDS]
            for batch in table.iter_batches(_BATCH, columns=columns):
                # As bytes, so that one text that is not UTF-8 is one bad row and not a bad file.
                values = [_as_bytes(pyarrow, column).to_pylist() for column in batch.columns]
                for record in zip(*values, strict=True) if values else [()] * batch.num_rows:
                    row += 1
                    yield row, _tried(_from_columns, dict(zip(columns, record, strict=True))), size * row // total
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these two kinds
        raise DataError(f"{file} cannot be read as Parquet ({error}); fetch or write it again") from error


def _as_bytes(pyarrow: Any, column: Any) -> Any:
    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pyarrow.types.is_string(column.type):
        return column.cast(pyarrow.binary())
    return column.cast(pyarrow.large_binary()) if pyarrow.types.is_large_string(column.type) else column


def _from_columns(record: dict[str, Any]) -> Passage:
    for name, value in record.items():
        if isinstance(value, bytes):
            try:
                record[name] = value.decode()
            except UnicodeDecodeError as error:
                raise _Flaw("broken UTF-8", f"{name!r} is not UTF-8 ({error}); write it as UTF-8") from None
    return _passage(record)


def _document(file: Path, name: str) -> Iterator[tuple[int, Passage | _Flaw, int]]:
    """Passages of a document, with their numbers as rows; of one that is not UTF-8, the line that shows it."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error}); check its permissions") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        flaw = _Flaw("broken UTF-8", f"is not UTF-8 ({error}); save the document as UTF-8")
        yield content.count(b"\n", 0, error.start) + 1, flaw, len(content)
        return
    title, passages = split_document(text, markdown=file.suffix.lower() == ".md")
    for number, passage in enumerate(passages, start=1):
        record = {"id": f"{name}#{number}", "title": title or file.stem, "text": passage}
        yield number, _tried(_passage, record), len(content)


def _passage(record: Any) -> Passage:
    if not isinstance(record, Mapping):
        raise _Flaw("not an object", f"is {_shown(record)}; a row must be an object with: id, contents")
    id_ = _id(record)
    contents = record.get("contents")
    if contents is not None:
        title, text = split_contents(_text(contents, "contents"))
    elif record.get("text") is not None:
        title, text = _title(record.get("title")), _text(record["text"], "text").strip()
    else:
        raise _Flaw(
            "no text",
            "has no 'contents' (the title in quotes, a line break, and the text) and no 'text'; add one of them",
        )
    try:
        f"{id_}{title}{text}".encode()
    except UnicodeEncodeError:
        raise _Flaw(
            "lone surrogate", "holds half of a UTF-16 pair (a lone surrogate), which no file can hold; repair the text"
        ) from None
    return Passage(id_, title, text)


def _id(record: Mapping[str, Any]) -> str:
    value = record.get("id")
    if value is None:
        value = record.get("_id")
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with a gap is one of floats
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise _Flaw("no id", f"the id is {_shown(value)}; 'id' must be a text or a whole number")
    return str(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Flaw("no text", f"{name!r} is {_shown(value)}; it must be a text that is not blank")
    return value


def _title(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _Flaw("broken title", f"'title' is {_shown(value)}; it must be a text, or left out")
    return " ".join(str(value).split("\n")).strip()


def _shown(value: Any) -> str:
    return ascii(value)[:60]
