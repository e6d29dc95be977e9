"""A policy that writes what it is told: for tests, demonstrations and oracles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.ports import Completion, Generate, Search
from mrsearch.core.types import Passage


class Encoder(Protocol):
    """Text to the ids that a policy would write it in."""

    def encode_reply(self, text: str) -> list[int]:
        """Ids of a turn's text."""
        ...


class ScriptedPolicy:
    """Writes the text that `script` gives for a request, with log-probability 0 for each token."""

    def __init__(self, codec: Encoder, script: Callable[[Generate], str]) -> None:
        self._codec = codec
        self._script = script

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        """One scripted turn for each request."""
        return [self._turn(self._script(request)) for request in requests]

    def _turn(self, text: str) -> Completion:
        ids = self._codec.encode_reply(text)
        return Completion(ids, [0.0] * len(ids), "stop")


def replay(meta: MetaEpisode, codec: Encoder, turns: Sequence[tuple[str, Sequence[Passage] | None]]) -> None:
    """Drive one machine through recorded turns: each a text and the passages that its search brought.

    It stops where the machine is done; the caller compares what was played with what was recorded.
    """
    for text, passages in turns:
        if not isinstance(meta.need, Generate):
            return
        ids = codec.encode_reply(text)
        meta.feed(Completion(ids, [0.0] * len(ids), "stop"))
        if isinstance(meta.need, Search):
            meta.feed(list(passages or ()))
