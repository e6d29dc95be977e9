"""Passages on disk, read by row without loading them: a folder with two files.

    passages.jsonl   one passage a line, in the layout of wiki-18, so that a store is a corpus too
    offsets.npy      where each line begins, and where the last one ends

Both are memory-mapped: opening costs nothing, and all processes on a machine share what was read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from mrsearch.core.types import Passage, join_contents, split_contents
from mrsearch.errors import DataError

TEXTS, OFFSETS = "passages.jsonl", "offsets.npy"
_json = json.JSONEncoder(ensure_ascii=False).encode
_NATIVE = np.dtype(np.uint64).str
_HEADER = 128
_BUFFER = 1 << 20
_PENDING = 1 << 16


class PassageStore(Sequence[Passage]):
    """The passages of a folder by row, without scores. Safe for many threads and processes; pickles as its folder."""

    def __init__(self, folder: Path, texts: mmap.mmap | bytes, offsets: NDArray[np.uint64]) -> None:
        self.folder = folder
        self._texts = texts
        self._offsets = offsets

    @classmethod
    def open(cls, folder: Path) -> PassageStore:
        """Map what a `StoreWriter` left; `DataError` if that is not whole."""
        try:
            # A plain view: the subclass for mapped arrays is slow to take single numbers from.
            offsets = np.asarray(np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False))
            with (folder / TEXTS).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{folder} holds no readable passages ({error}); build the index again") from error
        if offsets.dtype != np.uint64 or offsets.ndim != 1 or not len(offsets) or offsets[-1] != size:
            raise DataError(f"{folder} is not whole: {TEXTS} and {OFFSETS} do not fit; build the index again")
        return cls(folder, texts, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, row: SupportsIndex) -> Passage: ...
    @overload
    def __getitem__(self, row: slice) -> list[Passage]: ...
    def __getitem__(self, row: SupportsIndex | slice) -> Passage | list[Passage]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        at = index(row)
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(f"row {index(row)} of {len(self)} passages")
        begin, end = self._offsets[at : at + 2].tolist()
        return self._parsed(self._texts[begin:end])

    def __iter__(self) -> Iterator[Passage]:
        # Read, not mapped: pages that a whole pass maps would count as memory of this process.
        with (self.folder / TEXTS).open("rb", buffering=_BUFFER) as file:
            yield from map(self._parsed, file)

    def __reduce__(self) -> tuple[Any, ...]:
        return PassageStore.open, (self.folder,)

    def _parsed(self, line: bytes) -> Passage:
        try:
            record = json.loads(line.decode())
            return Passage(record["id"], *split_contents(record["contents"]))
        except (ValueError, TypeError, KeyError):
            raise DataError(f"{self.folder / TEXTS} is damaged ({ascii(line)[:60]}); build the index again") from None


class StoreWriter:
    """Writes the passages of a store as they come, in an empty folder that exists.

    Of each id it keeps eight bytes, and nothing else. Closed by `close`, or at
    the end of a `with` that goes well; a store that was not closed does not open.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts = (folder / TEXTS).open("xb", buffering=_BUFFER)
        self._offsets = (folder / OFFSETS).open("xb")
        self._offsets.write(_header(0))
        self._pending = array("Q", [0])
        self._end = 0
        self._hash = hashlib.sha256()
        self._ids = array("q")

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._texts.close()
            self._offsets.close()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, passage: Passage) -> int:
        """Write one passage, in the form that a corpus gives it; returns its row."""
        contents = join_contents(passage)
        assert split_contents(contents) == (passage.title, passage.text), f"{passage} would not come back as it is"
        line = _json({"id": passage.id, "contents": contents}).encode() + b"\n"
        self._texts.write(line)
        self._hash.update(line)
        self._end += len(line)
        self._pending.append(self._end)
        if len(self._pending) >= _PENDING:
            self._write_offsets()
        self._ids.append(hash(passage.id))
        return len(self._ids) - 1

    def close(self) -> None:
        """Write out all, to the disk itself."""
        self._write_offsets()
        self._offsets.seek(0)
        self._offsets.write(_header(len(self) + 1))
        for file in (self._texts, self._offsets):
            file.flush()
            os.fsync(file.fileno())
            file.close()

    @property
    def sha256(self) -> str:
        """Of all lines so far, which is that of `passages.jsonl`."""
        return self._hash.hexdigest()

    def repeated(self) -> NDArray[np.int64]:
        """Rows whose id an earlier row has, in order; after `close`. Takes eight bytes more for each passage."""
        hashes = np.frombuffer(self._ids, dtype=np.int64)
        ordered = np.sort(hashes)
        shared = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        del ordered
        if not len(shared):
            return np.empty(0, np.int64)
        near = np.searchsorted(shared, hashes).clip(max=len(shared) - 1)
        rows = np.flatnonzero(shared[near] == hashes)
        rows = rows[np.argsort(hashes[rows], kind="stable")]
        store = PassageStore.open(self._folder)
        # Equal hashes are equal ids but for a chance; the ids themselves decide.
        repeated = array("q")
        before, ids = None, set[str]()
        for row in rows.tolist():
            if hashes[row] != before:
                before, ids = hashes[row], set()
            id_ = store[row].id
            if id_ in ids:
                repeated.append(row)
            ids.add(id_)
        return np.sort(np.frombuffer(repeated, dtype=np.int64))

    def _write_offsets(self) -> None:
        self._pending.tofile(self._offsets)
        del self._pending[:]


def _header(rows: int) -> bytes:
    """The head of an array file, as long for any number of rows, so that it can be written last."""
    shape = f"{{'descr': '{_NATIVE}', 'fortran_order': False, 'shape': ({rows},), }}"
    head = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    return head + shape.encode().ljust(_HEADER - 11) + b"\n"
