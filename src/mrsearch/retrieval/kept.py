"""Passages kept in a file over runs: a search is made once, and a replay needs no retriever.

Kept under the index's identity, the query and the number of passages, so that
another index has other entries. The file is SQLite, for many threads and several
processes on one machine; a file system over a network may not keep its locks.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Literal, TypeVar

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import DataError, RetrieverDown, RetrieverError

FORMAT = 1
"""Version of the file, its `user_version`; raised when a reader of the old form would misread the new one."""

APPLICATION = 0x6D727372
"""The file's `application_id`, by which it is known from the SQLite files of others."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class KeptRetriever:
    """A retriever that keeps in a file what another one found. For use from many threads.

    Entries are those of `inner.identity` where it has one, which is asked for once,
    and again when contact was lost or new (`inner.breaks`); a retriever
    without one is known by `source`. When it is down, the identity that it last
    had is taken, so that what is in the file is found all the same.

    With mode `replay` nothing but the file is asked: a search that is not in it is
    a `RetrieverError`, and an empty `source` is the only one that the file knows.

    `hits` and `misses` count searches as in `CachedRetriever`; `unkept` those whose
    passages could not be written (a full disk, a file locked for too long), which
    is told in the log once and stops nobody. Errors pass through and are not kept.
    A file that cannot be used is a `DataError` at the start.
    """

    def __init__(
        self,
        inner: Retriever | None,
        path: Path,
        *,
        source: str,
        mode: Literal["use", "replay"] = "use",
        patience: float = 10.0,
    ) -> None:
        self.inner = inner
        self.hits = 0
        self.misses = 0
        self.unkept = 0
        self._source = source
        self._replay = mode == "replay"
        assert self._replay or inner is not None, "only a replay goes without a retriever"
        self._identity: str | None = None
        self._assumed = False
        self._checked_at = 0
        self._told = False
        self._lock = Lock()
        self._file = _File(path, reading=self._replay, patience=patience)
        if self._replay:
            self._identity = self._recorded_identity()

    @property
    def counters(self) -> Counter[str]:
        """Searches whose passages could not be written, so far."""
        return Counter(unkept=self.unkept)

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Passages for each request, from the file where it was made before."""
        while True:
            identity = self._current_identity()
            wanted = list(dict.fromkeys(requests))
            found = self._look_up(identity, wanted)
            missing = [request for request in wanted if request not in found]
            if missing and (self._replay or self.inner is None):
                raise RetrieverError(
                    f"{self._file.path} has no passages for {missing[0].query!r} (top {missing[0].top_k}) of "
                    f"{self._source}, and a replay asks nobody else; record it by a run without replay"
                )
            fetched = self._fetch(missing)
            if fetched and self._current_identity(surely=True) != identity:
                continue  # another index since: what is from the one and what from the other cannot be told
            self._keep(identity, fetched)
            break
        with self._lock:
            self.misses += len(missing)
            self.hits += len(requests) - len(missing)
        found |= fetched
        return [list(found[request]) for request in requests]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> KeptRetriever:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _current_identity(self, *, surely: bool = False) -> str:
        """Under what passages are kept: asked anew where the retriever may have changed since it was asked last.

        One that is down is taken to be what it was, which does unless `surely`.
        """
        with self._lock:
            breaks = getattr(self.inner, "breaks", 0)
            settled = breaks == self._checked_at and not (surely and self._assumed)
            if self._identity is not None and (self._replay or settled):
                return self._identity
            try:
                told = getattr(self.inner, "identity", None)
            except RetrieverDown:
                known = self._identity or self._read(lambda: self._file.identity(self._source))
                if known is None or surely:
                    raise
                # Not asked again before there is a new sign, which costs a deadline each time.
                self._identity, self._assumed = known, True
                self._checked_at = getattr(self.inner, "breaks", 0)
                return known
            # A space, which no digest has, so that a source never meets an index of its name.
            identity = told or f"source {self._source}"
            self._identity, self._assumed, self._checked_at = identity, False, breaks
            self._write(lambda: self._file.set_identity(self._source, identity))
            return identity

    def _recorded_identity(self) -> str:
        sources = self._file.sources()
        if not self._source and len(sources) == 1:
            self._source = next(iter(sources))
        if self._source not in sources:
            listed = ", ".join(sorted(sources)) or "no source at all"
            raise DataError(f"{self._file.path} has no passages of {self._source or 'no name'}, but of {listed}")
        return sources[self._source]

    def _look_up(self, identity: str, wanted: Sequence[Search]) -> dict[Search, list[Passage]]:
        found = self._read(lambda: self._file.passages(identity, wanted))
        return found or {}

    def _fetch(self, missing: Sequence[Search]) -> dict[Search, list[Passage]]:
        if not missing or self.inner is None:
            return {}
        fetched = self.inner.search(missing)
        if len(fetched) != len(missing):
            raise RetrieverError(f"the retriever gave {len(fetched)} lists of passages for {len(missing)} searches")
        return dict(zip(missing, fetched, strict=True))

    def _keep(self, identity: str, fetched: dict[Search, list[Passage]]) -> None:
        if fetched and not self._write(lambda: self._file.keep(identity, fetched)):
            with self._lock:
                self.unkept += len(fetched)

    def _read(self, read: Callable[[], T]) -> T | None:
        """What is read, or None if the file fails and there is a retriever to ask instead."""
        try:
            return read()
        except DataError as error:
            if self._replay:
                raise RetrieverError(str(error)) from error
            self._tell(error)
            return None

    def _write(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except DataError as error:
            self._tell(error)
            return False
        return True

    def _tell(self, error: DataError) -> None:
        if not self._told:
            self._told = True
            _log.warning("%s; the run goes on, and passages may not be kept", error)


class _File:
    """The SQLite file. Everything that SQLite finds wrong with it is a `DataError`."""

    def __init__(self, path: Path, *, reading: bool, patience: float) -> None:
        self.path = path
        self._reading = reading
        self._patience = patience
        self._lock = Lock()
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._inherited: sqlite3.Connection | None = None
        if reading and not path.is_file():
            raise DataError(f"there is no file {path} to replay from; record it first by a run without replay")
        if not path.parent.is_dir():
            raise DataError(f"there is no folder {path.parent} for {path.name}; make it first")
        self._do(lambda connection: None)

    def close(self) -> None:
        """Close the connection; it is opened anew when it is needed."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def sources(self) -> dict[str, str]:
        """The identity that each source last had."""
        return self._do(lambda connection: dict(connection.execute("SELECT source, identity FROM sources")))

    def identity(self, source: str) -> str | None:
        """The identity that a source last had, if it is known."""
        return self.sources().get(source)

    def set_identity(self, source: str, identity: str) -> None:
        """Remember the identity of a source."""
        if self.identity(source) != identity:
            row = (source, identity)
            self._change(lambda db: db.execute("INSERT OR REPLACE INTO sources VALUES (?, ?)", row))

    def passages(self, identity: str, searches: Sequence[Search]) -> dict[Search, list[Passage]]:
        """Those searches that are in the file, with their passages."""
        statement = "SELECT passages, checksum FROM kept WHERE identity = ? AND query = ? AND top_k = ?"

        def read(connection: sqlite3.Connection) -> dict[Search, list[Passage]]:
            found = {}
            for search in searches:
                key = (identity, _bytes(search.query), search.top_k)
                if row := connection.execute(statement, key).fetchone():
                    found[search] = self._unpack(key, *row)
            return found

        return self._do(read)

    def keep(self, identity: str, found: dict[Search, list[Passage]]) -> None:
        """Write searches and their passages, all of them or none."""
        rows = []
        for search, passages in found.items():
            key = (identity, _bytes(search.query), search.top_k)
            packed = _pack(passages)
            rows.append((*key, packed, _checksum(key, packed)))
        self._change(lambda db: db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", rows))

    def _unpack(self, key: tuple[str, bytes, int], packed: object, checksum: object) -> list[Passage]:
        if not isinstance(packed, bytes) or _checksum(key, packed) != checksum:
            raise sqlite3.DatabaseError("an entry differs from what was written")
        return [Passage(*values) for values in json.loads(packed.decode("utf-8", "surrogatepass"))]

    def _change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        def carry_out(connection: sqlite3.Connection) -> None:
            with connection:  # commits, or takes all back
                connection.execute("BEGIN IMMEDIATE")
                change(connection)

        self._do(carry_out)

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._process != os.getpid():
            # A fork copies the connection, which two processes must not share, and not who holds the lock.
            self._inherited, self._connection = self._connection, None  # not to be closed here, by nobody's hand
            self._lock, self._process = Lock(), os.getpid()
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                return work(self._connection)
            except sqlite3.Error as error:
                raise DataError(f"{self.path} {_meaning(error)}") from error

    def _open(self) -> sqlite3.Connection:
        if not self._reading:
            connection = self._connect("")
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            return connection
        try:
            connection = self._connect("?mode=ro")
            self._check(connection)
        except sqlite3.OperationalError:
            if self.path.with_name(f"{self.path.name}-wal").exists():
                raise
            # In a folder that may not be written SQLite has no place for its lock; nobody writes the file either.
            connection = self._connect("?immutable=1")
            self._check(connection)
        return connection

    def _connect(self, options: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.resolve().as_uri()}{options}",
            uri=True,
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables, if the file is new."""
        if not self._is_new(connection):
            self._check(connection)
        self._write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            if self._is_new(connection):  # still, now that no other process can make them
                connection.execute("CREATE TABLE sources (source TEXT PRIMARY KEY, identity TEXT NOT NULL)")
                connection.execute(
                    "CREATE TABLE kept (identity TEXT NOT NULL, query BLOB NOT NULL, top_k INTEGER NOT NULL, "
                    "passages BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (identity, query, top_k))"
                )
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
        self._check(connection)

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Set the mode of the journal. While another process sets it, SQLite fails at once and has no patience."""
        end = time.monotonic() + self._patience
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= end:
                    raise
                time.sleep(0.01)

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        return _number(connection, "SELECT count(*) FROM sqlite_master") == 0

    def _check(self, connection: sqlite3.Connection) -> None:
        version = _number(connection, "PRAGMA user_version")
        if _number(connection, "PRAGMA application_id") != APPLICATION:
            raise DataError(f"{self.path} is an SQLite file of something else; name another file for the passages")
        if version != FORMAT:
            raise DataError(
                f"{self.path} has format {version}, and this version of mrsearch reads format {FORMAT}; "
                "name another file for the passages, or delete this one"
            )


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _meaning(error: sqlite3.Error) -> str:
    """What an error of SQLite says to a person: what to do hangs on which it is."""
    if _is_busy(error):
        return f"is locked by another process ({error}); end it, or name another file for the passages"
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return f"cannot grow ({error}); make room on its disk"
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM):
        return f"cannot be opened or written ({error}); look at its rights, and at its disk"
    return f"is damaged, or no file of kept passages ({error}); delete it, or name another one"


def _bytes(query: str) -> bytes:
    # As it is, halves of UTF-16 pairs included: queries that differ have entries of their own.
    return query.encode("utf-8", "surrogatepass")


def _pack(passages: Sequence[Passage]) -> bytes:
    # Python writes a float so that reading gives it back to the last bit.
    rows = [[p.id, p.title, p.text, None if p.score is None else float(p.score)] for p in passages]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _checksum(key: tuple[str, bytes, int], packed: bytes) -> int:
    identity, query, top_k = key
    return zlib.crc32(packed, zlib.crc32(f"{identity} {top_k} ".encode() + query))
