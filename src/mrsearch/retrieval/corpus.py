"""The corpus: files of passages to `Passage`, in the layout of Search-R1's wiki-18.

A passage is `{"id", "contents"}`, its contents the title in quotes, a line
break and the text. The retrieval protocol sends the same form over the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrsearch.core.types import Passage, split_contents
from mrsearch.errors import DataError
from mrsearch.jsonl import read_rows


def load_corpus(path: str | Path) -> list[Passage]:
    """Read a corpus of JSON lines (also `.gz`); `DataError` names the row of what cannot be used."""
    path = Path(path)
    passages: list[Passage] = []
    rows: dict[str, int] = {}
    for row, record in read_rows(path):
        try:
            passage = _passage(record)
        except DataError as error:
            raise DataError(f"{path}, row {row}: {error}") from None
        if passage.id in rows:
            raise DataError(
                f"{path}, row {row}: id {passage.id!r} is that of row {rows[passage.id]} too; make it unique"
            )
        rows[passage.id] = row
        passages.append(passage)
    if not passages:
        raise DataError(
            f'{path} holds no passages; it needs lines such as {{"id": "0", "contents": "\\"Title\\"\\ntext"}}'
        )
    return passages


def _passage(record: Any) -> Passage:
    if not isinstance(record, Mapping):
        raise DataError(f"is {ascii(record)[:60]}; a row must be an object with: id, contents")
    id_, contents = record.get("id"), record.get("contents")
    if isinstance(id_, bool) or not isinstance(id_, str | int) or id_ == "":
        raise DataError(f"the id is {ascii(id_)[:60]}; 'id' must be a text or a whole number")
    if contents is None:
        raise DataError("has no 'contents'; it holds the title in quotes, a line break, and the text")
    if not isinstance(contents, str) or not contents.strip():
        raise DataError(f"'contents' is {ascii(contents)[:60]}; it must be a text that is not blank")
    if any("\ud800" <= character <= "\udfff" for character in f"{id_}{contents}"):
        raise DataError("holds half of a UTF-16 pair (a lone surrogate), which no file can hold; repair the text")
    title, text = split_contents(contents)
    return Passage(str(id_), title, text)
