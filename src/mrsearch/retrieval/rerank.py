"""A second look: a cross-encoder reads the query with each of the first passages and puts them in its own order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, MissingExtra, ModelError, RetrieverError
from mrsearch.retrieval.encode import choose_device, choose_dtype, count_longer, passage_text
from mrsearch.retrieval.wire import clean_text

Pair = tuple[str, str]
"""A query and the contents of a passage."""


class PairScorer(Protocol):
    """What a cross-encoder of sentence-transformers offers."""

    def predict(self, pairs: list[Pair], *, batch_size: int, show_progress_bar: bool) -> Any:
        """One score a pair, higher is better."""
        ...


class RerankingRetriever:
    """Passages of another retriever in the order of a cross-encoder, each with its score.

    The inner retriever is asked for `depth` passages, or for `top_k` where
    that is more; passages with equal scores stay in its order. For use from
    many threads, which take turns at the model. `cut` counts the pairs of which
    only the first tokens were read.
    """

    def __init__(
        self,
        inner: Retriever,
        model: str | PairScorer,
        *,
        depth: int = 100,
        batch: int = 32,
        device: str = "auto",
    ) -> None:
        if depth < 1 or batch < 1:
            raise ConfigError(f"reranking has depth {depth} and batch {batch}; both must be 1 or more")
        self.inner = inner
        self.depth = depth
        self.cut = 0
        self._name = model if isinstance(model, str) else type(model).__name__
        self._batch = batch
        self._model = load_cross_encoder(model, device) if isinstance(model, str) else model
        self._limit = getattr(self._model, "max_seq_length", None)
        self._lock = Lock()

    @property
    def identity(self) -> str | None:
        """What tells these passages in this order from others; None where the inner retriever does not say."""
        inner = getattr(self.inner, "identity", None)
        return None if inner is None else f"{inner} first {self.depth} by {self._name}"

    @property
    def breaks(self) -> int:
        """How often the inner retriever was out of reach."""
        return int(getattr(self.inner, "breaks", 0))

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages for each request, best first."""
        if not requests:
            return []
        found = self.inner.search([Search(request.query, max(request.top_k, self.depth)) for request in requests])
        if len(found) != len(requests):
            raise RetrieverError(f"the retriever gave {len(found)} lists of passages for {len(requests)} searches")
        pairs = [
            (clean_text(request.query), clean_text(passage_text(passage)))
            for request, passages in zip(requests, found, strict=True)
            for passage in passages
            if request.top_k > 0
        ]
        scores = iter(self._scores(pairs))
        reranked: list[list[Passage]] = []
        for request, passages in zip(requests, found, strict=True):
            if request.top_k <= 0:
                reranked.append([])
                continue
            scored = [Passage(p.id, p.title, p.text, next(scores)) for p in passages]
            scored.sort(key=lambda passage: passage.score or 0.0, reverse=True)  # a stable sort
            reranked.append(scored[: request.top_k])
        return reranked

    def _scores(self, pairs: list[Pair]) -> list[float]:
        if not pairs:
            return []
        # One at a time: a tokenizer that two threads set up at once refuses to work.
        with self._lock:
            self.cut += count_longer(self._model, [pair[0] for pair in pairs], self._limit, [pair[1] for pair in pairs])
            predicted = self._model.predict(pairs, batch_size=self._batch, show_progress_bar=False)
        scores = [float(score) for score in predicted]
        if len(scores) != len(pairs) or not all(map(math.isfinite, scores)):
            raise ModelError(
                f"the cross-encoder gave {len(scores)} scores for {len(pairs)} pairs, of which "
                f"{sum(map(math.isfinite, scores))} are finite; use another model"
            )
        return scores


def load_cross_encoder(name: str, device: str = "auto") -> PairScorer:
    """A cross-encoder of sentence-transformers, by folder or hub name."""
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise MissingExtra(
            "reranking needs sentence-transformers; install it with: pip install 'mrsearch[dense]'"
        ) from error
    device = choose_device(device)
    try:
        model = CrossEncoder(name, device=device, model_kwargs={"dtype": choose_dtype("auto", device)})
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"the cross-encoder {name!r} cannot be loaded on {device} ({reason}); give a folder, or a name on the hub "
            "that can be reached"
        ) from error
    if model.num_labels != 1:
        raise ModelError(
            f"the model {name!r} gives {model.num_labels} scores a pair; a cross-encoder that ranks gives one"
        )
    model.tokenizer.split_special_tokens = True
    scorer: PairScorer = model
    return scorer
