"""A driver for policies that answer one request at a time: many machines at once, each in a thread of its own.

A machine that is done gives its place to the next, so that none waits for the
slowest. Searches of all of them that wait at the same time go to the retriever
in one call, from one thread. What a machine writes does not depend on the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from threading import Lock, Thread

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.ports import Generate, Policy, Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.rollout.driver import PlayStats, counted, feed_passages, find

_Found = list[Passage] | None


class ConcurrentDriver:
    """Plays at most `rows` meta-episodes at a time over one policy, which is asked from as many threads."""

    def __init__(self, policy: Policy, retriever: Retriever, *, rows: int = 64) -> None:
        self._policy = policy
        self._retriever = retriever
        self._rows = rows

    def play(self, metas: Sequence[MetaEpisode]) -> PlayStats:
        """Carry out what the machines need until none needs anything; the first error ends all."""
        stats, lock = PlayStats(), Lock()
        before = counted(self._retriever) + _counters(self._policy)
        searches = _Searches(self._retriever)
        stopping: list[bool] = []

        def play_one(meta: MetaEpisode) -> None:
            while meta.need is not None and not stopping:
                started = time.perf_counter()
                if isinstance(meta.need, Generate):
                    meta.feed(self._policy.generate([meta.need])[0])
                    with lock:
                        stats.generation_s += time.perf_counter() - started
                else:
                    feed_passages([meta], [searches.ask(meta.need)])
                    with lock:
                        stats.retrieval_s += time.perf_counter() - started

        with searches, ThreadPoolExecutor(max_workers=self._rows) as pool:
            futures = [pool.submit(play_one, meta) for meta in metas]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                for future in futures:
                    if future.done() and (error := future.exception()) is not None:
                        raise error
            finally:
                stopping.append(True)
                for future in futures:
                    future.cancel()
        stats.counters.update(counted(self._retriever) + _counters(self._policy) - before)
        return stats


class _Searches:
    """Takes searches from many threads and carries out together those that wait together."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._waiting: SimpleQueue[tuple[Search, Future[_Found]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, daemon=True)

    def __enter__(self) -> _Searches:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    def ask(self, search: Search) -> _Found:
        """The passages of one search, None where it has no answer."""
        future: Future[_Found] = Future()
        self._waiting.put((search, future))
        return future.result()

    def _work(self) -> None:
        ended = False
        while not ended:
            taken = [self._waiting.get()]
            while not self._waiting.empty():
                taken.append(self._waiting.get())
            ended = None in taken
            asked = [entry for entry in taken if entry is not None]
            try:
                found = find(self._retriever, [search for search, _ in asked])
            except BaseException as error:  # every thread that waits is told, and the caller raises it
                for _, future in asked:
                    future.set_exception(error)
            else:
                for (_, future), passages in zip(asked, found, strict=True):
                    future.set_result(passages)


def _counters(policy: Policy) -> Counter[str]:
    return Counter(getattr(policy, "counters", {}))
