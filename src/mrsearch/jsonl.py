"""JSON lines, plain or `.gz`: the one reader of all files that come in this form.

A row is read when it is asked for, so that a file may be larger than memory.
What a row should hold is the caller's business.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrsearch.errors import DataError

BOM = b"\xef\xbb\xbf"
"""Some editors put it in front of UTF-8."""


def read_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """JSON values of the lines that are not blank, with their numbers from 1; `DataError` names what cannot be read."""
    for row, content, _ in read_lines(path):
        try:
            value = json_value(content)
        except ValueError as error:
            raise DataError(f"{path}, row {row}: {error}") from None
        yield row, value


def read_lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Lines that are not blank, with their numbers from 1 and how many bytes of the file were read for it.

    Lines end at line feeds alone: a JSON text may hold other line separators as
    they are. `DataError` for a file that cannot be read to its end.
    """
    try:
        with path.open("rb") as raw, gzip.open(raw) if path.suffix.lower() == ".gz" else raw as file:
            for row, line in enumerate(file, start=1):
                content = line.removeprefix(BOM) if row == 1 else line
                if content.strip():
                    yield row, content, raw.tell()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; check its path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch or write it again") from error


def json_value(content: bytes) -> Any:
    """The value of one line; `ValueError` says what is wrong with it."""
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, and brackets without end
        raise ValueError(f"is not JSON in UTF-8 ({error}); write one object a line") from None
