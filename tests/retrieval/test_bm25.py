"""BM25: the formula, and what a search promises beyond it."""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, MissingExtra
from mrsearch.retrieval.bm25 import BM25Retriever

ADA = Passage("ada", "Ada Lovelace", "She wrote the first program for the Analytical Engine.")
BABBAGE = Passage("babbage", "Charles Babbage", "He designed the Analytical Engine and the Difference Engine.")
PARIS = Passage("paris", "Paris", "Paris is the capital of France.")
CORPUS = [ADA, BABBAGE, PARIS]

WORDS = st.lists(st.sampled_from("abcdef"), max_size=6)


def find(retriever: BM25Retriever, query: str, top_k: int = 3) -> list[str]:
    return [passage.id for passage in retriever.search([Search(query, top_k)])[0]]


def bm25_by_hand(documents: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    """Lucene's BM25, as in the literature."""
    mean_length = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in query:
            if not counts[word]:
                continue
            containing = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            score += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(document) / mean_length))
        scores.append(score)
    return scores


class TestSearch:
    def test_the_passage_that_shares_the_rarest_words_comes_first(self) -> None:
        retriever = BM25Retriever(CORPUS)
        assert find(retriever, "Who designed the Difference Engine?") == ["babbage", "ada"]
        assert find(retriever, "capital of FRANCE") == ["paris"]

    def test_many_queries_in_one_call_are_answered_in_order(self) -> None:
        requests = [Search("Paris", 1), Search("nothing of it", 3), Search("engine", 1), Search("Ada", 2)]
        found = BM25Retriever(CORPUS).search(requests)
        assert [[passage.id for passage in passages] for passages in found] == [["paris"], [], ["babbage"], ["ada"]]

    def test_passages_come_back_as_they_were_with_their_score(self) -> None:
        (found,) = BM25Retriever(CORPUS).search([Search("Paris", 1)])[0]
        assert (found.id, found.title, found.text) == (PARIS.id, PARIS.title, PARIS.text)
        assert found.score is not None
        assert found.score > 0
        assert PARIS.score is None

    @pytest.mark.parametrize("query", ["", "   ", "the of and", "?!...", "xyzzy"])
    def test_a_query_that_matches_nothing_finds_nothing(self, query: str) -> None:
        assert find(BM25Retriever(CORPUS), query) == []

    def test_top_k_may_be_larger_than_the_corpus(self) -> None:
        assert sorted(find(BM25Retriever(CORPUS), "engine paris", 99)) == ["ada", "babbage", "paris"]

    def test_top_k_0_finds_nothing(self) -> None:
        assert find(BM25Retriever(CORPUS), "engine", 0) == []

    @pytest.mark.parametrize("corpus", [[], [Passage("0", "", "the ?!")]])
    def test_in_a_corpus_without_words_nothing_is_found(self, corpus: list[Passage]) -> None:
        retriever = BM25Retriever(corpus)
        assert retriever.search([Search("the engine", 3), Search("", 3)]) == [[], []]
        assert retriever.search([]) == []

    @pytest.mark.parametrize("top_k", [1, 2, 3, 5])
    def test_ties_are_in_the_order_of_the_corpus(self, top_k: int) -> None:
        twins = [Passage(str(row), "", "engine") for row in range(4)]
        better = Passage("better", "", "engine engine")
        ids = find(BM25Retriever([*twins, better]), "engine", top_k)
        assert ids == ["better", "0", "1", "2", "3"][:top_k]


@given(
    documents=st.lists(WORDS, min_size=1, max_size=7).filter(any),
    query=WORDS,
    top_k=st.integers(1, 8),
    k1=st.sampled_from([0.9, 1.2]),
    b=st.sampled_from([0.0, 0.75, 1.0]),
)
def test_scores_are_those_of_the_formula(
    documents: list[list[str]], query: list[str], top_k: int, k1: float, b: float
) -> None:
    corpus = [Passage(str(row), "", " ".join(document)) for row, document in enumerate(documents)]
    retriever = BM25Retriever(corpus, k1=k1, b=b, stopwords=None)
    (found,) = retriever.search([Search(" ".join(query), top_k)])
    expected = bm25_by_hand(documents, query, k1, b)
    assert [passage.score for passage in found] == pytest.approx(
        sorted((score for score in expected if score > 0), reverse=True)[:top_k], rel=1e-5
    )
    for passage in found:
        assert passage.score == pytest.approx(expected[int(passage.id)], rel=1e-5)
    ranks = [(-(passage.score or 0), int(passage.id)) for passage in found]
    assert ranks == sorted(ranks)
    (all_found,) = retriever.search([Search(" ".join(query), len(documents))])
    assert found == all_found[:top_k]


def test_the_library_does_not_talk_while_it_builds(caplog: pytest.LogCaptureFixture) -> None:
    BM25Retriever(CORPUS)
    assert caplog.records == []


class TestOptions:
    def test_title_weight_counts_the_title_more_often(self) -> None:
        # k1 1.2, b .75; the idf is one for both. Once: 2 / (2 + 1.2 * (.25 + .75 * 4 / 3.5)) = .61 against
        # 1 / (1 + 1.2 * (.25 + .75 * 3 / 3.5)) = .48; four times: .66 against 4 / (4 + 1.2 * (.25 + .75 * 6 / 5)) = .74
        corpus = [Passage("0", "", "Zasen Zasen star Koben"), Passage("1", "Zasen", "star Doten")]
        assert find(BM25Retriever(corpus, stopwords=None), "Zasen")[0] == "0"
        assert find(BM25Retriever(corpus, stopwords=None, title_weight=3), "Zasen")[0] == "1"

    def test_title_weight_is_the_title_written_more_often(self) -> None:
        weighted = BM25Retriever(CORPUS, title_weight=3)
        written = BM25Retriever([Passage(p.id, "", f"{p.title} " * 4 + p.text) for p in CORPUS])
        for query in ("ada engine", "paris france", "charles"):
            scores = [passage.score for passage in weighted.search([Search(query, 3)])[0]]
            assert scores == [passage.score for passage in written.search([Search(query, 3)])[0]]

    def test_without_stop_words_every_word_counts(self) -> None:
        assert find(BM25Retriever(CORPUS), "is") == []
        assert find(BM25Retriever(CORPUS, stopwords=None), "is") == ["paris"]
        assert find(BM25Retriever(CORPUS, stopwords=""), "is") == ["paris"]
        assert find(BM25Retriever(CORPUS, stopwords=["Paris"]), "paris is") == ["paris"]
        assert find(BM25Retriever(CORPUS, stopwords=["Paris"]), "paris") == []

    def test_stop_words_of_another_language(self) -> None:
        corpus = [Passage("0", "", "der Turm und die Stadt")]
        assert find(BM25Retriever(corpus, stopwords="de"), "und") == []
        assert find(BM25Retriever(corpus, stopwords="en"), "und") == ["0"]

    def test_a_stemmer_joins_the_forms_of_a_word(self) -> None:
        def cut(words: list[str]) -> list[str]:
            return [word.removesuffix("s") for word in words]

        assert find(BM25Retriever(CORPUS), "engines") == []
        assert find(BM25Retriever(CORPUS, stemmer=cut), "engines") == ["babbage", "ada"]

    def test_a_stemmer_by_language(self) -> None:
        pytest.importorskip("Stemmer", reason="PyStemmer is not installed")
        assert find(BM25Retriever(CORPUS, stemmer="english"), "engines designing") == ["babbage", "ada"]
        with pytest.raises(ConfigError, match="no stemmer for 'klingon'"):
            BM25Retriever(CORPUS, stemmer="klingon")

    def test_a_stemmer_that_is_not_installed_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "Stemmer", None)
        with pytest.raises(MissingExtra, match="pip install PyStemmer"):
            BM25Retriever(CORPUS, stemmer="english")

    def test_one_spelling_of_an_accent(self) -> None:
        corpus = [Passage("0", "", "Caf\u00e9 de Flore")]
        assert find(BM25Retriever(corpus), "cafe\u0301") == ["0"]
        assert find(BM25Retriever(corpus), "cafe") == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"stopwords": "xx"}, "no stop words for 'xx'; choose one of: da, de, en"), ({"title_weight": -1}, "is -1")],
    )
    def test_what_does_not_fit_is_said(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            BM25Retriever(CORPUS, **options)
