"""Concurrent searches in batches: while one batch is searched, what arrives forms the next.

A retriever is quicker with many searches in one call, and this waits for none:
a search that comes while nothing runs is carried out at once. Lives on one
event loop; the retriever works in a thread of its own. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import RetrieverDown, RetrieverError

Outcome: TypeAlias = list[Passage] | RetrieverError
"""What came of one search."""

LONGEST_WAIT = 60
"""Seconds: nobody is told to come back later than that."""

_log = logging.getLogger(__name__)


class QueueFull(Exception):
    """So many searches are waiting that these were not taken in; `retry_after` is in whole seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} searches are waiting, more than the queue holds; try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(slots=True, eq=False)
class _Entry:
    """Searches that came together, with what has come of them so far. `taken` of them are in a batch or done."""

    searches: Sequence[Search]
    outcomes: list[Outcome]
    answer: asyncio.Future[list[Outcome]]
    missing: int
    taken: int = 0


@dataclass(slots=True, eq=False)
class _Batch:
    """Searches to be carried out, the places where their outcomes belong, and the loop that waits for them."""

    searches: list[Search]
    places: list[tuple[_Entry, int]]
    loop: asyncio.AbstractEventLoop


class Batcher:
    """Collects searches for one retriever.

    At most `batch` searches go into one call, equal ones once. At most `queue`
    may wait besides those that are being carried out; a caller that has the
    queue to itself may bring more. `on_batch` is told the size and the seconds
    of each call.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        batch: int = 128,
        queue: int = 16_384,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> None:
        self._retriever = retriever
        self._batch = batch
        self._queue = queue
        self._on_batch = on_batch
        self._entries: deque[_Entry] = deque()
        self._work: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._busy = False
        self._seconds_a_search = 0.0
        self.waiting = 0

    def submit(self, searches: Sequence[Search]) -> asyncio.Future[list[Outcome]]:
        """What comes of each search; one that fails leaves the others alone. `QueueFull` if they have to come back.

        Cancelled, it takes those out of the queue that are not being carried out yet.
        """
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        if not searches:
            answer.set_result([])
            return answer
        if self.waiting and self.waiting + len(searches) > self._queue:
            raise QueueFull(self.waiting, self._retry_after())
        entry = _Entry(searches, [[] for _ in searches], answer, missing=len(searches))
        answer.add_done_callback(partial(self._leave, entry))
        self._entries.append(entry)
        self.waiting += len(searches)
        self._start_batch()
        return answer

    def _leave(self, entry: _Entry, _: object) -> None:
        if entry.taken < len(entry.searches):
            self._entries.remove(entry)
            self.waiting -= len(entry.searches) - entry.taken
            entry.taken = len(entry.searches)

    def close(self) -> None:
        """Let the thread end, after what it is carrying out."""
        if self._thread is not None:
            self._work.put(None)
            self._thread = None

    def _start_batch(self) -> None:
        if self._busy or not self._entries:
            return
        batch = _Batch([], [], asyncio.get_running_loop())
        while self._entries and len(batch.searches) < self._batch:
            entry = self._entries.popleft()
            rows = range(entry.taken, min(len(entry.searches), entry.taken + self._batch - len(batch.searches)))
            batch.searches += [entry.searches[row] for row in rows]
            batch.places += [(entry, row) for row in rows]
            entry.taken = rows.stop
            if entry.taken < len(entry.searches):
                self._entries.append(entry)  # behind the others, so that few searches need not wait for very many
        self.waiting -= len(batch.searches)
        self._busy = True
        if self._thread is None:
            # A daemon: a search that never ends must not keep the process from ending.
            self._thread = Thread(target=self._carry_out_all, name="searches", daemon=True)
            self._thread.start()
        self._work.put(batch)

    def _carry_out_all(self) -> None:
        while (batch := self._work.get()) is not None:
            start = time.perf_counter()
            outcomes = carry_out(self._retriever, batch.searches)
            seconds = time.perf_counter() - start
            with suppress(RuntimeError):  # the loop was closed, and nobody waits any more
                batch.loop.call_soon_threadsafe(self._hand_out, batch, outcomes, seconds)

    def _hand_out(self, batch: _Batch, outcomes: Sequence[Outcome], seconds: float) -> None:
        for (entry, row), outcome in zip(batch.places, outcomes, strict=True):
            entry.outcomes[row] = outcome
            entry.missing -= 1
            if not entry.missing and not entry.answer.done():
                entry.answer.set_result(entry.outcomes)
        size = len(batch.searches)
        # Recent calls count more, since what is slow now need not be slow for long.
        self._seconds_a_search += 0.2 * (seconds / size - self._seconds_a_search)
        if self._on_batch:
            self._on_batch(size, seconds)
        self._busy = False
        self._start_batch()

    def _retry_after(self) -> int:
        """About how long it takes until those that wait now are done."""
        return min(LONGEST_WAIT, max(1, math.ceil(self.waiting * self._seconds_a_search)))


def carry_out(retriever: Retriever, searches: Sequence[Search]) -> list[Outcome]:
    """What comes of each search: all in one call and, where that fails, one by one. Raises nothing."""
    distinct = list(dict.fromkeys(searches))
    outcomes: dict[Search, Outcome]
    try:
        outcomes = dict(zip(distinct, _found(retriever, distinct), strict=True))
    except RetrieverDown as error:
        outcomes = dict.fromkeys(distinct, error)
    except RetrieverError as error:
        outcomes = {distinct[0]: error} if len(distinct) == 1 else _one_by_one(retriever, distinct)
    return [outcomes[search] for search in searches]


def _one_by_one(retriever: Retriever, searches: Sequence[Search]) -> dict[Search, Outcome]:
    outcomes: dict[Search, Outcome] = {}
    for search in searches:
        try:
            outcomes[search] = _found(retriever, [search])[0]
        except RetrieverDown as error:
            # The rest would fail alike, each perhaps after a long wait.
            return dict.fromkeys(searches, error) | outcomes
        except RetrieverError as error:
            outcomes[search] = error
    return outcomes


def _found(retriever: Retriever, searches: Sequence[Search]) -> list[list[Passage]]:
    """One call; whatever goes wrong in it is an error of ours."""
    try:
        found = retriever.search(searches)
        if len(found) != len(searches):
            raise RetrieverError(f"the retriever gave {len(found)} lists of passages for {len(searches)} searches")
    except RetrieverError:
        raise
    except (OSError, MemoryError) as error:
        _log.exception("a search failed")
        raise RetrieverDown(f"the retriever failed ({type(error).__name__}: {error})") from error
    except BaseException as error:  # a panic of a library in Rust is no Exception; it must not end the thread
        _log.exception("a search failed")
        raise RetrieverError(f"the retriever failed ({type(error).__name__}: {error})") from error
    return found
