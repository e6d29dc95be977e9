"""The fast driver: caches kept across turns and episodes, searches overlapped with generation.

It gives the same trajectories as the simple driver over the same model. The
meta-episodes are dealt into fixed parts before anything runs, so that who is
computed together depends on the data and never on which reply came first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mrsearch.codec import HFCodec
from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.ports import Completion, Generate, Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.engine.generate import Session
from mrsearch.engine.model import LanguageModel
from mrsearch.rollout.driver import PlayStats, counted, feed_passages, find


class EmbeddedPolicy:
    """The `Policy` port over a model with its present weights: each call reads its whole context anew."""

    def __init__(self, model: LanguageModel, codec: HFCodec) -> None:
        self._model = model.generator()
        self._codec = codec

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        """One completion for each request, in order."""
        return Session(self._model, self._codec, rows=len(requests)).run(requests)


class EmbeddedDriver:
    """Plays meta-episodes in parts of at most `rows` windows.

    With `overlap` each part is dealt into two halves: while one generates, the
    searches of the other are carried out. It pays when the retriever is slow.
    """

    def __init__(
        self,
        model: LanguageModel,
        codec: HFCodec,
        retriever: Retriever,
        *,
        rows: int = 256,
        overlap: bool = False,
    ) -> None:
        self._model = model
        self._codec = codec
        self._retriever = retriever
        self._rows = rows
        self._overlap = overlap

    def play(self, metas: Sequence[MetaEpisode]) -> PlayStats:
        """Carry out what the machines need until none needs anything."""
        stats = PlayStats()
        before = counted(self._retriever)
        generator = self._model.generator()
        with ThreadPoolExecutor(max_workers=1) as searcher:
            for first in range(0, len(metas), self._rows):
                part = metas[first : first + self._rows]
                cut = (len(part) + 1) // 2 if self._overlap else len(part)
                halves = [
                    _Half(half, Session(generator, self._codec, rows=len(half)), self._retriever)
                    for half in (part[:cut], part[cut:])
                    if half
                ]
                while any(half.playing for half in halves):
                    for half in halves:
                        half.advance(searcher if len(halves) > 1 else None, stats)
                for half in halves:
                    stats.counters.update(half.session.counters)
        stats.counters.update(counted(self._retriever) - before)
        return stats


class _Half:
    """Machines that are generated for together, and their searches under way."""

    def __init__(self, metas: Sequence[MetaEpisode], session: Session, retriever: Retriever) -> None:
        self.session = session
        self._metas = metas
        self._retriever = retriever
        self._searching: list[MetaEpisode] = []
        self._found: Future[tuple[list[list[Passage] | None], float]] | None = None
        self._open: set[tuple[int, ...]] = set()

    @property
    def playing(self) -> bool:
        return any(meta.need is not None for meta in self._metas)

    def advance(self, searcher: ThreadPoolExecutor | None, stats: PlayStats) -> None:
        """Take in the searches that were under way, generate one round, start the next searches."""
        if self._found is not None:
            self._take_in(*self._found.result(), stats)
            self._found = None
        self._generate(stats)
        self._searching = [meta for meta in self._metas if isinstance(meta.need, Search)]
        if not self._searching:
            return
        needs = [meta.need for meta in self._searching if isinstance(meta.need, Search)]
        if searcher is None:
            self._take_in(*_timed_find(self._retriever, needs), stats)
        else:
            self._found = searcher.submit(_timed_find, self._retriever, needs)

    def _take_in(self, found: Sequence[list[Passage] | None], seconds: float, stats: PlayStats) -> None:
        stats.retrieval_s += seconds
        feed_passages(self._searching, found)

    def _generate(self, stats: PlayStats) -> None:
        started = time.perf_counter()
        writing = [(meta, meta.need) for meta in self._metas if isinstance(meta.need, Generate)]
        windows = {need.window for _, need in writing}
        # A window that is not asked for again is done with: machines in a half move in step.
        self.session.release(self._open - windows)
        self._open = windows
        for (meta, _), completion in zip(writing, self.session.run([need for _, need in writing]), strict=True):
            meta.feed(completion)
        stats.generation_s += time.perf_counter() - started


def _timed_find(retriever: Retriever, needs: Sequence[Search]) -> tuple[list[list[Passage] | None], float]:
    started = time.perf_counter()
    return find(retriever, needs), time.perf_counter() - started
