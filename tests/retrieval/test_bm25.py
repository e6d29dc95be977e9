"""BM25: the formula, and what a search promises beyond it."""

from __future__ import annotations

import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, DataError
from mrsearch.retrieval.bm25 import BM25Retriever, BM25Writer, Words

ADA = Passage("ada", "Ada Lovelace", "She wrote the first program for the Analytical Engine.")
BABBAGE = Passage("babbage", "Charles Babbage", "He designed the Analytical Engine and the Difference Engine.")
PARIS = Passage("paris", "Paris", "Paris is the capital of France.")
CORPUS = [ADA, BABBAGE, PARIS]

WORDS = st.lists(st.sampled_from("abcdef"), max_size=6)


def find(retriever: BM25Retriever, query: str, top_k: int = 3) -> list[str]:
    return [passage.id for passage in retriever.search([Search(query, top_k)])[0]]


EVERY_WORD = Words(language="", title_weight=0)


def indexed(folder: Path, passages: list[Passage], words: Words | None = None) -> BM25Retriever:
    """The same as an index in memory, on disk."""
    folder.mkdir()
    writer = BM25Writer(folder, words or Words())
    for row, passage in enumerate(passages):
        writer.add(row, passage)
    writer.close()
    return BM25Retriever.open(folder, passages, words or Words())


def bm25_by_hand(documents: list[list[str]], query: list[str], k1: float = 1.2, b: float = 0.75) -> list[float]:
    """BM25 as in the literature, with the factor k1 + 1 and an idf that is never negative."""
    mean_length = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in query:
            if not counts[word]:
                continue
            containing = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            score += idf * (k1 + 1) * counts[word] / (counts[word] + k1 * (1 - b + b * len(document) / mean_length))
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
)
def test_scores_are_those_of_the_formula(documents: list[list[str]], query: list[str], top_k: int) -> None:
    corpus = [Passage(str(row), "", " ".join(document)) for row, document in enumerate(documents)]
    retriever = BM25Retriever(corpus, EVERY_WORD)
    (found,) = retriever.search([Search(" ".join(query), top_k)])
    expected = bm25_by_hand(documents, query)
    assert [passage.score for passage in found] == pytest.approx(
        sorted((score for score in expected if score > 0), reverse=True)[:top_k], rel=1e-5
    )
    for passage in found:
        assert passage.score == pytest.approx(expected[int(passage.id)], rel=1e-5)
    ranks = [(-(passage.score or 0), int(passage.id)) for passage in found]
    assert ranks == sorted(ranks)
    (all_found,) = retriever.search([Search(" ".join(query), len(documents))])
    assert found == all_found[:top_k]


class TestWords:
    def test_title_weight_counts_the_title_more_often(self) -> None:
        # k1 1.2, b .75; the idf is one for both. Once: 2 / (2 + 1.2 * (.25 + .75 * 4 / 3.5)) = .61 against
        # 1 / (1 + 1.2 * (.25 + .75 * 3 / 3.5)) = .48; four times: .66 against 4 / (4 + 1.2 * (.25 + .75 * 6 / 5)) = .74
        corpus = [Passage("0", "", "Zasen Zasen star Koben"), Passage("1", "Zasen", "star Doten")]
        assert find(BM25Retriever(corpus, EVERY_WORD), "Zasen")[0] == "0"
        assert find(BM25Retriever(corpus, Words("", title_weight=3)), "Zasen")[0] == "1"

    def test_title_weight_is_the_title_written_more_often(self) -> None:
        weighted = BM25Retriever(CORPUS, Words(title_weight=3))
        written = BM25Retriever([Passage(p.id, "", f"{p.title} " * 4 + p.text) for p in CORPUS])
        for query in ("ada engine", "paris france", "charles"):
            scores = [passage.score for passage in weighted.search([Search(query, 3)])[0]]
            assert scores == [passage.score for passage in written.search([Search(query, 3)])[0]]

    def test_without_a_language_every_word_counts_as_it_is(self) -> None:
        assert find(BM25Retriever(CORPUS), "is") == []
        assert find(BM25Retriever(CORPUS, EVERY_WORD), "is") == ["paris"]
        assert find(BM25Retriever(CORPUS, EVERY_WORD), "engines") == []

    def test_stemming_joins_the_forms_of_a_word(self) -> None:
        assert find(BM25Retriever(CORPUS), "engines designing") == ["babbage", "ada"]
        assert find(BM25Retriever(CORPUS, Words(stemming=False)), "engines designing") == []
        assert find(BM25Retriever(CORPUS, Words(stemming=False)), "is") == []

    def test_words_of_another_language(self) -> None:
        corpus = [Passage("0", "", "der Turm und die Stadt")]
        assert find(BM25Retriever(corpus, Words("de")), "und") == []
        assert find(BM25Retriever(corpus, Words("de")), "Türme") == ["0"]
        assert find(BM25Retriever(corpus), "und") == ["0"]

    def test_one_spelling_of_an_accent(self) -> None:
        corpus = [Passage("0", "", "Caf\u00e9 de Flore")]
        assert find(BM25Retriever(corpus), "cafe\u0301") == ["0"]
        assert find(BM25Retriever(corpus), "cafe") == []

    @pytest.mark.parametrize(
        ("text", "query", "elsewhere"),
        [
            ("Москва — столица России", "столица", "река"),
            ("Αθήνα, η πρωτεύουσα", "ΑΘΉΝΑ", "νησί"),
            ("東京都は日本の首都です", "日本", "北西"),
            ("กรุงเทพเป็นเมืองหลวง", "เมือง", "ฎฏ"),
            ("القاهرة عاصمة مصر", "عاصمة", "نهر"),
            ("서울은 대한민국의 수도이다", "서울은", "부산"),
            ("नई दिल्ली भारत की राजधानी है", "राजधानी", "नदी"),
        ],
    )
    def test_scripts_other_than_latin(self, text: str, query: str, elsewhere: str) -> None:
        retriever = BM25Retriever([Passage("0", "", text), PARIS])
        assert find(retriever, query) == ["0"]
        assert find(retriever, elsewhere) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"language": "xx"}, "for the language 'xx'; choose one of: da, de, en"), ({"title_weight": -1}, "is -1")],
    )
    def test_what_does_not_fit_is_said(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Words(**options)


class TestIdentity:
    def test_is_that_of_passages_and_words(self) -> None:
        assert BM25Retriever(CORPUS).identity == BM25Retriever(list(CORPUS)).identity
        others = [BM25Retriever(CORPUS, EVERY_WORD), BM25Retriever(CORPUS[:2]), BM25Retriever(CORPUS[::-1])]
        assert len({BM25Retriever(CORPUS).identity, *(other.identity for other in others)}) == 4


class TestOddTexts:
    @pytest.mark.parametrize(
        "query",
        [
            "engine\0Paris",
            "\ud800 engine Paris",
            "engine <|endoftext|> </search> Paris",
            'engine AND (Paris OR "',
            "words:engine row:1 +Paris -x ~ ^2 * [a TO b]",
        ],
    )
    def test_in_a_query_are_words_or_nothing(self, query: str) -> None:
        assert sorted(find(BM25Retriever(CORPUS), query)) == ["ada", "babbage", "paris"]

    def test_of_any_length_are_searched_for(self) -> None:
        long = "engine " * 14_000 + "x" * 100_000 + " ".join(map(str, range(10_000)))
        assert find(BM25Retriever(CORPUS), long) == ["babbage", "ada"]

    def test_in_a_corpus_can_be_found(self) -> None:
        texts = ["engine \0 zero", "a\ud800b surrogate", "x" * 70_000 + " longest", "<|im_end|> control"]
        corpus = [Passage(str(row), "", text) for row, text in enumerate(texts)]
        retriever = BM25Retriever(corpus)
        assert [find(retriever, word) for word in ("zero", "surrogate", "longest", "control")] == [
            ["0"], ["1"], ["2"], ["3"],
        ]  # fmt: skip

    @given(query=st.text(max_size=40), top_k=st.integers(-1, 9))
    def test_none_is_an_error(self, query: str, top_k: int) -> None:
        found = find(ENGINES, query, top_k)
        assert len(found) == len(set(found)) <= max(0, top_k)


ENGINES = BM25Retriever(CORPUS)


class TestOnDisk:
    @settings(max_examples=20)  # each writes files and syncs them
    @given(
        documents=st.lists(WORDS, min_size=1, max_size=30),
        queries=st.lists(WORDS, min_size=1, max_size=4),
        top_k=st.integers(1, 8),
    )
    def test_an_index_finds_what_memory_finds(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        documents: list[list[str]],
        queries: list[list[str]],
        top_k: int,
    ) -> None:
        corpus = [Passage(str(row), "", " ".join(document)) for row, document in enumerate(documents)]
        requests = [Search(" ".join(query), top_k) for query in queries]
        on_disk = indexed(tmp_path_factory.mktemp("bm25") / "index", corpus, EVERY_WORD)
        assert on_disk.search(requests) == BM25Retriever(corpus, EVERY_WORD).search(requests)

    def test_ties_do_not_depend_on_the_parts_of_an_index(self, tmp_path: Path) -> None:
        corpus = [Passage(str(row), "", f"engine {row % 3}") for row in range(300)]
        folder = tmp_path / "index"
        folder.mkdir()
        for part in range(3):  # a writer that is closed leaves a part of its own
            writer = BM25Writer(folder, EVERY_WORD)
            for row in range(300)[part::3][::-1]:
                writer.add(row, corpus[row])
            writer.close()
        found = BM25Retriever.open(folder, corpus, EVERY_WORD)
        assert found.search([Search("engine", 120)]) == BM25Retriever(corpus, EVERY_WORD).search(
            [Search("engine", 120)]
        )
        assert find(found, "engine", 5) == ["0", "1", "2", "3", "4"]

    def test_one_that_does_not_belong_to_the_passages_is_refused(self, tmp_path: Path) -> None:
        indexed(tmp_path / "index", CORPUS)
        with pytest.raises(DataError, match="3 passages and the store 2"):
            BM25Retriever.open(tmp_path / "index", CORPUS[:2], Words())

    def test_a_folder_that_holds_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no readable BM25 index"):
            BM25Retriever.open(tmp_path, CORPUS, Words())

    def test_a_damaged_one_is_refused(self, tmp_path: Path) -> None:
        indexed(tmp_path / "index", CORPUS)
        (tmp_path / "index" / "meta.json").write_text("{")
        with pytest.raises(DataError, match="no readable BM25 index"):
            BM25Retriever.open(tmp_path / "index", CORPUS, Words())

    def test_many_threads_may_search(self, tmp_path: Path) -> None:
        retriever = indexed(tmp_path / "index", CORPUS)
        expected = retriever.search([Search("engine", 3), Search("paris", 1)])
        found: list[bool] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(
                    all(retriever.search([Search("engine", 3), Search("paris", 1)]) == expected for _ in range(50))
                )
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 4


def test_words_that_every_question_has_are_no_words_but_names_are() -> None:
    words = Words().analyzer()
    assert words.analyze("which was it from, and whose were the others") == ["other"]
    assert words.analyze("the who") == ["who"]
    assert Words(language="").analyzer().analyze("which was") == ["which", "was"]
