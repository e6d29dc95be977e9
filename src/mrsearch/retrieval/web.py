"""Web search through a SearXNG instance, or anything that speaks its JSON.

A result's page is not fetched: its passage is the excerpt that the search engine shows.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from types import TracebackType

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import RetrieverError
from mrsearch.retrieval.wire import clean_text
from mrsearch.transport import Ask, Refused, Transport, base_url, read_json, shorten

_TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>", re.DOTALL)


class WebRetriever:
    """A retriever over `GET {url}/search?q=...&format=json`. For use from many threads, and in forked processes.

    The passage of a result has its URL as id, its title, and its excerpt as text
    (tags taken out, spaces single); results without an excerpt are left out. The order
    is the instance's. There are as many as fit on its first page, up to `top_k`.

    `language`, `categories` and `engines` go into the request where they are given
    (several with commas between them); at most `connections` requests run at a
    time. Deadline and errors are as for `RemoteRetriever`, with which it shares
    the way of retrying. That nothing was found because the engines behind the instance
    did not answer is no answer.
    """

    def __init__(
        self,
        url: str,
        *,
        language: str = "",
        categories: str = "",
        engines: str = "",
        token: str = "",
        deadline: float = 30.0,
        connections: int = 2,
        pause: float = 0.5,
        longest_pause: float = 8.0,
        random: Random | None = None,
    ) -> None:
        settings = {"language": language, "categories": categories, "engines": engines}
        self._settings = {name: value for name, value in settings.items() if value}
        self._transport = Transport(
            [base_url(url, "retrieval.web", "/search")],
            plain=self._ask("wikipedia"),
            hint="look whether the search engine runs, and whether its own log says why not",
            token=token,
            deadline=deadline,
            connections=connections,
            pause=pause,
            longest_pause=longest_pause,
            random=random,
        )

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Passages for each request, in order."""
        queries = list(dict.fromkeys(request.query for request in requests))
        try:
            answers = self._transport.call([self._ask(query) for query in queries])
        except Refused as error:
            if error.status != 403:
                raise
            needed = "search.formats in the instance's settings.yml has to contain json"
            raise Refused(f"{error}; {needed}", error.status) from None
        found = dict(zip(queries, answers, strict=True))
        return [found[request.query][: request.top_k] for request in requests]

    @property
    def counters(self) -> Counter[str]:
        """What was done so far, as a copy."""
        return self._transport.counters.copy()

    @property
    def waited_s(self) -> float:
        """Seconds that requests spent in pauses between tries."""
        return self._transport.waited_s

    def close(self) -> None:
        """Close the connections; a search after that opens new ones."""
        self._transport.close()

    def __enter__(self) -> WebRetriever:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, query: str) -> Ask[list[Passage]]:
        return Ask("GET", "/search", _read_results, params={"q": clean_text(query), "format": "json", **self._settings})


def _read_results(body: bytes) -> list[Passage]:
    answer = read_json(body)
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise RetrieverError("the answer has no list of 'results'")
    if not results and (silent := answer.get("unresponsive_engines")):
        raise RetrieverError(f"nothing found, and engines that did not answer: {shorten(str(silent))}")
    passages = (
        Passage(
            _text(result.get("url")), plain_text(result.get("title")), plain_text(result.get("content")), _score(result)
        )
        for result in results
    )
    return [passage for passage in passages if passage.text]


def plain_text(value: object) -> str:
    """A text of HTML without its tags, with single spaces; nothing for what is no text.

    >>> plain_text("a <b>bold</b>\\n&amp; 1 < 2")
    'a bold & 1 < 2'
    """
    return " ".join(html.unescape(_TAG.sub("", _text(value))).split())


def _text(value: object) -> str:
    return clean_text(value) if isinstance(value, str) else ""


def _score(result: dict[str, object]) -> float | None:
    score = result.get("score")
    return float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
