"""What every driver offers, and the simple one: collect needs, call, feed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.ports import Generate, Policy, Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import RetrieverDown, RetrieverError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PlayStats:
    """Where the time of a rollout went, in seconds, and what its engine counted."""

    generation_s: float = 0.0
    retrieval_s: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)

    def add(self, other: PlayStats) -> None:
        """Take in another rollout's."""
        self.generation_s += other.generation_s
        self.retrieval_s += other.retrieval_s
        self.counters.update(other.counters)


class Driver(Protocol):
    """Something that plays meta-episodes to their end."""

    def play(self, metas: Sequence[MetaEpisode]) -> PlayStats:
        """Carry out what the machines need until none needs anything."""
        ...


class SimpleDriver:
    """The reference: all generations that are needed in one call, then all searches, until nothing is needed."""

    def __init__(self, policy: Policy, retriever: Retriever) -> None:
        self._policy = policy
        self._retriever = retriever

    def play(self, metas: Sequence[MetaEpisode]) -> PlayStats:
        """Carry out what the machines need until none needs anything."""
        stats = PlayStats()
        before = counted(self._retriever)
        while any(meta.need is not None for meta in metas):
            started = time.perf_counter()
            writing = [(meta, meta.need) for meta in metas if isinstance(meta.need, Generate)]
            completions = self._policy.generate([need for _, need in writing])
            for (meta, _), completion in zip(writing, completions, strict=True):
                meta.feed(completion)
            stats.generation_s += time.perf_counter() - started
            started = time.perf_counter()
            answer_searches(metas, self._retriever)
            stats.retrieval_s += time.perf_counter() - started
        stats.counters.update(counted(self._retriever) - before)
        return stats


def answer_searches(metas: Sequence[MetaEpisode], retriever: Retriever) -> None:
    """Search for all machines that need it; those whose search has no answer end as `retrieval_failed`."""
    searching = [(meta, meta.need) for meta in metas if isinstance(meta.need, Search)]
    feed_passages([meta for meta, _ in searching], find(retriever, [need for _, need in searching]))


def find(retriever: Retriever, searches: Sequence[Search]) -> list[list[Passage] | None]:
    """The passages of each search, None for those that have no answer (which is logged).

    When a call fails its searches are tried one by one, so that one that the
    retriever cannot take costs its own meta-episode only. When the retriever is
    down nothing is tried again. An `Outage`, which is to end the run, passes.
    """
    if not searches:
        return []
    try:
        return list(retriever.search(searches))
    except RetrieverDown as error:
        logger.warning("%d searches had no answer, and the retriever is down: %s", len(searches), error)
        return [None] * len(searches)
    except RetrieverError as error:
        logger.warning("a call of %d searches had no answer: %s", len(searches), error)
    return [None] if len(searches) == 1 else _find_one_by_one(retriever, searches)


def _find_one_by_one(retriever: Retriever, searches: Sequence[Search]) -> list[list[Passage] | None]:
    found: list[list[Passage] | None] = []
    for search in searches:
        try:
            found += retriever.search([search])
        except RetrieverError as error:
            logger.warning("a search had no answer: %s", error)
            found.append(None)
            if isinstance(error, RetrieverDown):
                break
    return found + [None] * (len(searches) - len(found))


def counted(retriever: Retriever) -> Counter[str]:
    """What a retriever has counted so far, and those that it stands before (`inner`)."""
    counters: Counter[str] = Counter()
    part: object = retriever
    while part is not None:
        counters.update({f"retrieval_{name}": count for name, count in getattr(part, "counters", {}).items()})
        part = getattr(part, "inner", None)
    return counters


def feed_passages(metas: Sequence[MetaEpisode], results: Sequence[list[Passage] | None]) -> None:
    """Give machines the outcome of their searches; one without an answer ends its meta-episode."""
    for meta, passages in zip(metas, results, strict=True):
        if passages is None:
            meta.fail_search()
        else:
            meta.feed(passages)
