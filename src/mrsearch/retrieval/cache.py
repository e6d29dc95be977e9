"""Remembering what a retriever found: in training, one question's searches are much alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverError


class CachedRetriever:
    """A retriever that keeps the last `size` different searches of another one; 0 keeps none.

    For use from many threads. `hits` and `misses` count searches; one that
    stands twice in a call is asked for once, and is a hit the second time.
    Errors pass through and are not kept.
    """

    def __init__(self, inner: Retriever, size: int) -> None:
        if size < 0:
            raise ConfigError(f"the cache of searches has size {size}; it must be 0 (keep none) or more")
        self.inner = inner
        self.size = size
        self.hits = 0
        self.misses = 0
        self._kept: OrderedDict[Search, tuple[Passage, ...]] = OrderedDict()
        self._lock = Lock()

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Passages for each request, from memory where it was made before."""
        found: dict[Search, tuple[Passage, ...]] = {}
        missing: dict[Search, None] = {}
        with self._lock:
            for request in requests:
                if request in self._kept:
                    self._kept.move_to_end(request)
                    found[request] = self._kept[request]
                elif request not in missing:
                    missing[request] = None
                    self.misses += 1
                    continue
                self.hits += 1
        if missing:
            # Not under the lock: other threads can go on while this one waits for passages.
            fetched = self.inner.search(list(missing))
            if len(fetched) != len(missing):
                raise RetrieverError(f"the retriever gave {len(fetched)} lists of passages for {len(missing)} searches")
            new = {request: tuple(passages) for request, passages in zip(missing, fetched, strict=True)}
            found |= new
            with self._lock:
                self._kept |= new
                while len(self._kept) > self.size:
                    self._kept.popitem(last=False)
        return [list(found[request]) for request in requests]
