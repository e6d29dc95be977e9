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
    """JSON values of the lines that are not blank, with their numbers from 1; `DataError` names what cannot be read.

    Lines end at line feeds alone: a JSON text may hold other line separators as they are.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for row, line in enumerate(file, start=1):
                content = line.removeprefix(BOM) if row == 1 else line
                if content.strip():
                    yield row, _value(content, path, row)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; check its path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch or write it again") from error


def _value(content: bytes, path: Path, row: int) -> Any:
    try:
        return json.loads(content.decode())
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        raise DataError(f"{path}, row {row}: is not JSON in UTF-8 ({error}); write one object a line") from None
