"""Passages that the policy itself condenses before it reads on, after Search-o1's reasoning in documents.

The search stays what it was; what comes back is one passage, written by the
policy in a window of its own, where it sees the query and what was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from threading import Lock

from mrsearch.core.meta_episode import derive_seed
from mrsearch.core.ports import Codec, Generate, Policy, Retriever, Sampling, Search
from mrsearch.core.types import Passage, Question


class CondensingRetriever:
    """A retriever whose passages the policy has read and put into at most `tokens` tokens of its own words.

    Greedy, so that the same search brings the same text. `counters` has
    `condense_tokens`, what the policy wrote for it. Where nothing was found, or
    nothing was written, the passages stay as they are.
    """

    def __init__(
        self, inner: Retriever, policy: Policy, codec: Codec, *, prompt: str, tokens: int, observation_tokens: int
    ) -> None:
        self.inner = inner
        self.counters: Counter[str] = Counter(condense_tokens=0)
        self._policy = policy
        self._codec = codec
        self._prompt = prompt
        self._tokens = tokens
        self._observation_tokens = observation_tokens
        self._lock = Lock()

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """One condensed passage for each request."""
        found = list(self.inner.search(requests))
        reading = [place for place, passages in enumerate(found) if passages]
        asked = [self._ask(place, requests[place], found[place]) for place in reading]
        for place, completion in zip(reading, self._policy.generate(asked) if asked else (), strict=True):
            ids = list(completion.ids)[: self._tokens]
            written = ids[:-1] if ids and self._codec.ends_turn(ids[-1]) else ids
            with self._lock:
                self.counters["condense_tokens"] += len(ids)
            text = self._codec.decode(written).strip()
            if text:
                found[place] = [Passage("+".join(passage.id for passage in found[place]), "", text)]
        return found

    def _ask(self, place: int, request: Search, passages: Sequence[Passage]) -> Generate:
        question = Question("query", request.query, ("",))
        ids = [
            *self._codec.opening(self._prompt, question),
            *self._codec.observation(passages, self._observation_tokens).ids,
        ]
        return Generate((-1, place), ids, 0, self._tokens, (), Sampling(temperature=0.0), derive_seed(0))
