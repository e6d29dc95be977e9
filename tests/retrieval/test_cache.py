"""The cache of searches: what it keeps, what it forgets, what it never keeps."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverError
from mrsearch.retrieval.cache import CachedRetriever


class Echo:
    """Finds `top_k` passages that say the query, and remembers what it was asked; fails on "down"."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.asked.append([request.query for request in requests])
        if any(request.query == "down" for request in requests):
            raise RetrieverError("down")
        return [[Passage(str(rank), "", request.query) for rank in range(request.top_k)] for request in requests]


def ask(retriever: CachedRetriever, *queries: str, top_k: int = 1) -> list[list[str]]:
    return [[p.text for p in found] for found in retriever.search([Search(query, top_k) for query in queries])]


def test_a_search_is_made_once() -> None:
    echo = Echo()
    cached = CachedRetriever(echo, size=10)
    assert ask(cached, "a", "b") == [["a"], ["b"]]
    assert ask(cached, "b", "c", "a") == [["b"], ["c"], ["a"]]
    assert echo.asked == [["a", "b"], ["c"]]
    assert (cached.hits, cached.misses) == (2, 3)
    assert ask(cached, "a") == [["a"]]
    assert ask(cached) == []
    assert len(echo.asked) == 2


def test_the_same_search_twice_in_a_call_is_asked_once() -> None:
    echo = Echo()
    cached = CachedRetriever(echo, size=10)
    assert ask(cached, "a", "b", "a") == [["a"], ["b"], ["a"]]
    assert echo.asked == [["a", "b"]]
    assert (cached.hits, cached.misses) == (1, 2)


def test_another_top_k_is_another_search() -> None:
    cached = CachedRetriever(Echo(), size=10)
    assert ask(cached, "a", top_k=1) == [["a"]]
    assert ask(cached, "a", top_k=2) == [["a", "a"]]


def test_the_search_that_was_used_longest_ago_is_forgotten() -> None:
    echo = Echo()
    cached = CachedRetriever(echo, size=2)
    ask(cached, "a", "b")
    ask(cached, "a")  # now "b" is the oldest
    ask(cached, "c")
    ask(cached, "a", "c")
    ask(cached, "b")
    assert echo.asked == [["a", "b"], ["c"], ["b"]]


@pytest.mark.parametrize("size", [0, 1])
def test_a_call_may_be_larger_than_the_cache(size: int) -> None:
    echo = Echo()
    cached = CachedRetriever(echo, size=size)
    for _ in range(2):
        assert ask(cached, "a", "b", "a") == [["a"], ["b"], ["a"]]
    assert echo.asked == [["a", "b"], ["a", "b"] if size == 0 else ["a"]]


def test_an_error_is_not_kept() -> None:
    echo = Echo()
    cached = CachedRetriever(echo, size=10)
    for _ in range(2):
        with pytest.raises(RetrieverError):
            ask(cached, "a", "down")
    assert ask(cached, "a") == [["a"]]
    assert echo.asked == [["a", "down"], ["a", "down"], ["a"]]


def test_what_a_caller_does_to_its_list_stays_with_it() -> None:
    cached = CachedRetriever(Echo(), size=10)
    cached.search([Search("a", 1)])[0].clear()
    cached.search([Search("a", 1)])[0].clear()
    assert ask(cached, "a") == [["a"]]


def test_a_retriever_that_answers_too_little_is_an_error() -> None:
    class Silent:
        def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
            return []

    with pytest.raises(RetrieverError, match="0 lists of passages for 1 searches"):
        ask(CachedRetriever(Silent(), size=10), "a")


def test_many_threads_get_their_own_passages() -> None:
    cached = CachedRetriever(Echo(), size=5)
    queries = [str(number % 9) for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda query: ask(cached, query), queries))
    assert found == [[[query]] for query in queries]
    assert cached.hits + cached.misses == 400


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="size -1"):
        CachedRetriever(Echo(), size=-1)
