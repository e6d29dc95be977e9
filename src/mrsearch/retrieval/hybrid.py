"""Several retrievers as one: their lists are fused by ranks, since their scores cannot be compared."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverError


class HybridRetriever:
    """Reciprocal rank fusion (Cormack et al., 2009): the score is the sum of 1 / (k + rank) over the lists.

    Each retriever is asked for `depth` passages, or for `top_k` where that is
    more. They search at the same time; the error of one is the error of all.
    For use from many threads where the retrievers are.
    """

    def __init__(self, retrievers: Sequence[Retriever], *, k: int = 60, depth: int = 100) -> None:
        if not retrievers:
            raise ConfigError("there are no retrievers to fuse; give one at least")
        if k < 0 or depth < 1:
            raise ConfigError(f"fusion has k {k} and depth {depth}; k must be 0 or more and depth 1 or more")
        self.retrievers = tuple(retrievers)
        self.k = k
        self.depth = depth
        # The last retriever works in the caller's thread.
        self._threads = ThreadPoolExecutor(max(1, 8 * (len(retrievers) - 1)), thread_name_prefix="hybrid")

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages for each request, best first, with the fused score.

        Of equal sums the one with the better best rank comes first, then the
        one of the earlier retriever.
        """
        if not requests:
            return []
        deep = [Search(request.query, max(request.top_k, self.depth)) for request in requests]
        *others, last = self.retrievers
        running = [self._threads.submit(retriever.search, deep) for retriever in others]
        own = last.search(deep)
        lists = [*(each.result() for each in running), own]
        for found in lists:
            if len(found) != len(requests):
                raise RetrieverError(f"a retriever gave {len(found)} lists of passages for {len(requests)} searches")
        return [
            fuse([found[i] for found in lists], self.k)[: max(0, request.top_k)] for i, request in enumerate(requests)
        ]


def fuse(lists: Sequence[Sequence[Passage]], k: int = 60) -> list[Passage]:
    """The passages of ranked lists in one order; told apart by id, or by their words where there is none.

    >>> a, b, c = (Passage(name, "", name) for name in "abc")
    >>> [passage.id for passage in fuse([[a, b], [b, c]])]
    ['b', 'a', 'c']
    """
    places: dict[Hashable, dict[int, int]] = defaultdict(dict)
    passages: dict[Hashable, Passage] = {}
    for number, found in enumerate(lists):
        for rank, passage in enumerate(found, start=1):
            key = passage.id or (passage.title, passage.text)
            passages.setdefault(key, passage)
            places[key].setdefault(number, rank)
    # fsum: the order of the retrievers must not make a difference in the last bit.
    scores = {key: math.fsum(1 / (k + rank) for rank in ranks.values()) for key, ranks in places.items()}

    def order(key: Hashable) -> tuple[float, int, int]:
        best = min(places[key].values())
        return -scores[key], best, min(number for number, rank in places[key].items() if rank == best)

    return [Passage(p.id, p.title, p.text, scores[key]) for key in sorted(places, key=order) for p in [passages[key]]]
