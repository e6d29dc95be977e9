"""Reciprocal rank fusion: the sum by hand, one order of ties, one call a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverError
from mrsearch.retrieval.bm25 import BM25Retriever
from mrsearch.retrieval.hybrid import HybridRetriever, fuse


class Listed:
    """Gives the same ids for every query, and remembers what it was asked."""

    def __init__(self, ids: str) -> None:
        self.ids = ids
        self.calls: list[list[Search]] = []

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append(list(requests))
        return [[Passage(id_, f"title {id_}", "text", 9.5) for id_ in self.ids[: r.top_k]] for r in requests]


class Meeting:
    """Finds something only while another one searches too."""

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.barrier.wait(timeout=10)
        return [[Passage("met", "", "")] for _ in requests]


class Failing:
    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        raise RetrieverError("gone")


class Miscounting:
    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        return []


def ids(passages: Sequence[Passage]) -> str:
    return "".join(passage.id for passage in passages)


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    (found,) = HybridRetriever([Listed("abc"), Listed("cbd")]).search([Search("any", 4)])
    # a 1/61; b 1/62 + 1/62; c 1/63 + 1/61; d 1/63
    assert ids(found) == "cbad"
    assert [passage.score for passage in found] == pytest.approx([1 / 63 + 1 / 61, 2 / 62, 1 / 61, 1 / 63])
    assert (found[0].title, found[0].text) == ("title c", "text")


def test_k_sets_how_much_the_first_ranks_count() -> None:
    # k 0: a 1 + 1/3, b 1/2 + 1/2, c 1/3 + 1
    (found,) = HybridRetriever([Listed("abc"), Listed("cba")], k=0).search([Search("any", 3)])
    assert ids(found) == "acb"


def test_of_equal_sums_the_better_best_rank_and_then_the_earlier_retriever_comes_first() -> None:
    # x and a once at rank 1, y and b once at rank 2
    assert ids(HybridRetriever([Listed("xy"), Listed("ab")]).search([Search("any", 4)])[0]) == "xayb"


def test_each_retriever_is_asked_once_for_all_requests_and_deep_enough() -> None:
    first, second = Listed("abcdef"), Listed("fedcba")
    found = HybridRetriever([first, second], depth=4).search([Search("q", 2), Search("r", 5), Search("s", 0)])
    assert first.calls == second.calls == [[Search("q", 4), Search("r", 5), Search("s", 4)]]
    assert [len(passages) for passages in found] == [2, 5, 0]


def test_retrievers_search_at_the_same_time() -> None:
    barrier = Barrier(3)
    retriever = HybridRetriever([Meeting(barrier), Meeting(barrier), Meeting(barrier)])
    assert ids(retriever.search([Search("any", 1)])[0]) == "met"


def test_a_passage_that_stands_twice_in_a_list_counts_once() -> None:
    (found,) = HybridRetriever([Listed("aab")]).search([Search("any", 9)])
    assert [(passage.id, passage.score) for passage in found] == [("a", 1 / 61), ("b", 1 / 63)]


def test_passages_without_ids_are_told_apart_by_their_words() -> None:
    lists = [[Passage("", "", "one"), Passage("", "", "two")], [Passage("", "", "two"), Passage("", "t", "two")]]
    assert [(passage.title, passage.text) for passage in fuse(lists)] == [("", "two"), ("", "one"), ("t", "two")]


def test_nothing_found_and_nothing_asked_are_empty() -> None:
    assert HybridRetriever([Listed(""), Listed("")]).search([Search("any", 3)]) == [[]]
    assert HybridRetriever([Listed("a"), Listed("a")]).search([]) == []
    assert ids(HybridRetriever([Listed(""), Listed("ab")]).search([Search("any", 3)])[0]) == "ab"


@pytest.mark.parametrize("others", [[Failing()], [Failing(), Listed("a")], [Listed("a"), Failing()]])
def test_the_error_of_one_is_the_error_of_all(others: list[Failing | Listed]) -> None:
    with pytest.raises(RetrieverError, match="gone"):
        HybridRetriever(others).search([Search("any", 1)])


def test_a_retriever_that_loses_count_is_an_error() -> None:
    with pytest.raises(RetrieverError, match="0 lists of passages for 1"):
        HybridRetriever([Listed("a"), Miscounting()]).search([Search("any", 1)])


def test_settings_out_of_range_are_refused() -> None:
    for retrievers, k, depth in (([], 60, 100), ([Listed("a")], -1, 100), ([Listed("a")], 60, 0)):
        with pytest.raises(ConfigError):
            HybridRetriever(retrievers, k=k, depth=depth)


def test_real_retrievers_can_be_fused() -> None:
    corpus = [Passage("0", "Ada", "the first program"), Passage("1", "Paris", "the capital of France")]
    hybrid = HybridRetriever([BM25Retriever(corpus), BM25Retriever(corpus)])
    assert [ids(found) for found in hybrid.search([Search("capital", 2), Search("", 2)])] == ["1", ""]


@given(
    st.lists(st.permutations("abcde").flatmap(lambda p: st.integers(0, 5).map(lambda n: "".join(p[:n]))), max_size=4)
)
def test_each_passage_comes_once_by_its_sum_whatever_the_order_of_the_retrievers(lists: list[str]) -> None:
    given_lists = [[Passage(id_, "", "") for id_ in found] for found in lists]
    fused, backwards = fuse(given_lists), fuse(given_lists[::-1])
    assert sorted(ids(fused)) == sorted(set("".join(lists)))
    assert [passage.score for passage in fused] == [passage.score for passage in backwards]
    assert [passage.score for passage in fused] == sorted((passage.score or 0 for passage in fused), reverse=True)
