"""Passages from a retrieval server, or from several that serve the same index.

Speaks the protocol of `wire`; `transport` sees to faults. Knows nothing of what
the server searches in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from threading import Lock
from types import TracebackType

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverDown, RetrieverError
from mrsearch.retrieval.wire import encode, read_answer, request_body
from mrsearch.transport import Ask, Transport, base_url, read_json


class RemoteRetriever:
    """A retriever over HTTP. For use from many threads, and in forked processes.

    `urls` are the servers, with or without `/retrieve`; a text may name several
    with commas between them. Equal searches of a call are sent once, in requests
    of at most `batch` queries, over at most `connections` connections. A call takes
    at most `deadline` seconds, all tries on all servers included; a try is given
    up when it has taken half of what is left.

    Raises `RetrieverDown` when no server answers in that time or every one turns
    requests away, and `RetrieverError` when it is these searches that a server
    will not take. Of what a server sends beyond `top_k`, nothing is returned.
    Half a UTF-16 pair in a query is sent as U+FFFD.

    `counters` has `requests`, `retries`, `failovers`, `deduplicated`; `waited_s` is the
    seconds spent in pauses between tries. Tests set the pauses and their `random`.
    """

    def __init__(
        self,
        urls: Sequence[str] | str,
        *,
        token: str = "",
        deadline: float = 30.0,
        connections: int = 8,
        batch: int = 64,
        pause: float = 0.25,
        longest_pause: float = 8.0,
        rest: float = 1.0,
        random: Random | None = None,
    ) -> None:
        if batch < 1:
            raise ConfigError(f"the queries of a request are {batch}; there must be 1 or more")
        named = urls.split(",") if isinstance(urls, str) else list(urls)
        servers = dict.fromkeys(base_url(url, "retrieval.url", "/retrieve") for url in named)
        if not servers:
            raise ConfigError("no URL of a retrieval server is given; write one as http://127.0.0.1:8000")
        self._batch = batch
        self._lock = Lock()
        self._deduplicated = 0
        self._transport = Transport(
            list(servers),
            plain=_ask(["test"], 1),
            hint="start one with: mrsearch serve INDEX",
            token=token,
            deadline=deadline,
            connections=connections,
            pause=pause,
            longest_pause=longest_pause,
            rest=rest,
            random=random,
        )

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Passages for each request, in order."""
        by_top_k: dict[int, list[str]] = {}
        for request in dict.fromkeys(requests):
            by_top_k.setdefault(request.top_k, []).append(request.query)
        parts = [
            (top_k, queries[first : first + self._batch])
            for top_k, queries in by_top_k.items()
            for first in range(0, len(queries), self._batch)
        ]
        answers = self._transport.call([_ask(queries, top_k) for top_k, queries in parts])
        found = {
            Search(query, top_k): passages[:top_k]
            for (top_k, queries), answer in zip(parts, answers, strict=True)
            for query, passages in zip(queries, answer, strict=True)
        }
        with self._lock:
            self._deduplicated += len(requests) - len(found)
        return [list(found[request]) for request in requests]

    @property
    def identity(self) -> str | None:
        """Which index the servers serve, asked at `/health`; None where they do not say.

        Raises `RetrieverDown` when none answers, and when they serve different
        ones: passages would come from here or there by chance.
        """
        said = self._transport.call_each(Ask("GET", "/health", _read_identity))
        down = [answer for answer in said.values() if type(answer) is RetrieverDown]
        if len(down) == len(said):
            raise down[0]
        # One that turns /health away, or has no JSON there, is a server that does not say.
        identities = {
            url: None if isinstance(answer, RetrieverError) else answer
            for url, answer in said.items()
            if type(answer) is not RetrieverDown
        }
        if len(set(identities.values())) > 1:
            listed = ", ".join(f"{url}: {identity or 'unknown'}" for url, identity in identities.items())
            raise RetrieverDown(f"the servers do not serve one index ({listed}); name those that serve the same")
        return next(iter(identities.values()))

    @property
    def breaks(self) -> int:
        """How often contact with a server was lost or new: it may serve another index since."""
        return self._transport.breaks

    @property
    def counters(self) -> Counter[str]:
        """What was done so far, as a copy."""
        return self._transport.counters + Counter(deduplicated=self._deduplicated)

    @property
    def waited_s(self) -> float:
        """Seconds that requests spent in pauses between tries."""
        return self._transport.waited_s

    def close(self) -> None:
        """Close the connections; a search after that opens new ones."""
        self._transport.close()

    def __enter__(self) -> RemoteRetriever:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ask(queries: Sequence[str], top_k: int) -> Ask[list[list[Passage]]]:
    return Ask(
        "POST",
        "/retrieve",
        lambda body: read_answer(read_json(body), len(queries)),
        content=encode(request_body(queries, top_k)),
    )


def _read_identity(body: bytes) -> str | None:
    told = read_json(body)
    identity = told.get("identity") if isinstance(told, dict) else None
    return identity if isinstance(identity, str) and identity else None
