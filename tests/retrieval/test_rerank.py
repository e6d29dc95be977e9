"""Reranking: the mechanics with a scorer written by hand, and a real cross-encoder with random weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, MissingExtra, ModelError, RetrieverError
from mrsearch.retrieval.rerank import Pair, RerankingRetriever

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]


class Letters:
    """Passages a, b, c, ... with falling scores."""

    def __init__(self, ids: str = "abcdefgh") -> None:
        self.ids = ids
        self.calls: list[list[Search]] = []

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append(list(requests))
        return [
            [Passage(id_, "", f"{id_} " * (1 + n), 1 / (1 + n)) for n, id_ in enumerate(self.ids[: r.top_k])]
            for r in requests
        ]


class Scores:
    """Scores a pair by a table of letters, 0 for the others; remembers the pairs."""

    def __init__(self, table: dict[str, float]) -> None:
        self.table = table
        self.pairs: list[Pair] = []

    def predict(self, pairs: list[Pair], *, batch_size: int, show_progress_bar: bool) -> Any:
        self.pairs += pairs
        return np.array([self.table.get(text[0], 0.0) for _, text in pairs], dtype=np.float32)


class Forgetful:
    def predict(self, pairs: list[Pair], *, batch_size: int, show_progress_bar: bool) -> Any:
        return []


def ids(passages: Sequence[Passage]) -> str:
    return "".join(passage.id for passage in passages)


def save_cross_encoder(folder: Path, *, labels: int = 1) -> str:
    """A random BERT of one layer that scores pairs, with letters for words."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.5,
        num_labels=labels,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=16,
    ).save_pretrained(folder)
    return str(folder)


class TestOrder:
    def test_passages_come_in_the_order_of_the_scores_with_them(self) -> None:
        (found,) = RerankingRetriever(Letters("abcd"), Scores({"c": 2.0, "d": 0.5, "b": -1.0})).search([Search("q", 3)])
        assert [(passage.id, passage.score) for passage in found] == [("c", 2.0), ("d", 0.5), ("a", 0.0)]
        assert found[1].text == "d d d d "

    def test_equal_scores_stay_in_the_order_of_the_first_retriever(self) -> None:
        assert ids(RerankingRetriever(Letters(), Scores({"c": 1.0})).search([Search("q", 5)])[0]) == "cabde"

    def test_so_many_passages_are_read_as_the_depth_says_or_top_k_where_that_is_more(self) -> None:
        inner = Letters()
        found = RerankingRetriever(inner, Scores({"f": 1.0}), depth=4).search([Search("q", 2), Search("r", 6)])
        assert inner.calls == [[Search("q", 4), Search("r", 6)]]
        assert [ids(passages) for passages in found] == ["ab", "fabcde"]

    def test_the_scorer_reads_the_query_with_the_contents(self) -> None:
        class Titled:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                return [[Passage("0", "Ada", "wrote"), Passage("1", "", "\ud800 alone")] for _ in requests]

        scores = Scores({})
        RerankingRetriever(Titled(), scores).search([Search("who \udfff", 1), Search("nobody", 0)])
        assert scores.pairs == [("who \ufffd", '"Ada"\nwrote'), ("who \ufffd", "\ufffd alone")]

    def test_nothing_found_and_nothing_asked_are_empty(self) -> None:
        assert RerankingRetriever(Letters(""), Scores({})).search([Search("q", 3)]) == [[]]
        assert RerankingRetriever(Letters(), Scores({})).search([]) == []
        assert RerankingRetriever(Letters(), Scores({})).search([Search("q", 0), Search("q", -1)]) == [[], []]

    @pytest.mark.parametrize("model", [Scores({"b": float("nan")}), Forgetful()])
    def test_scores_that_are_none_are_an_error(self, model: Any) -> None:
        with pytest.raises(ModelError, match="for 8 pairs, of which"):
            RerankingRetriever(Letters(), model).search([Search("q", 3)])

    def test_a_retriever_that_loses_count_is_an_error(self) -> None:
        class Miscounting:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                return []

        with pytest.raises(RetrieverError, match="0 lists of passages for 1"):
            RerankingRetriever(Miscounting(), Scores({})).search([Search("q", 3)])

    def test_settings_out_of_range_are_refused(self) -> None:
        for depth, batch in ((0, 32), (100, 0)):
            with pytest.raises(ConfigError):
                RerankingRetriever(Letters(), Scores({}), depth=depth, batch=batch)


class TestCrossEncoder:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("sentence_transformers", reason="the extra `dense` is not installed")

    def test_a_model_scores_each_pair_whatever_the_batch(self, tmp_path: Path) -> None:
        model = save_cross_encoder(tmp_path / "model")
        retriever = RerankingRetriever(Letters(), model, device="cpu")
        (found,) = retriever.search([Search("a b", 8)])
        assert sorted(ids(found)) == list("abcdefgh")
        assert len({passage.score for passage in found}) > 1
        scores = [passage.score for passage in found]
        assert scores == sorted(scores, reverse=True)
        (alone,) = RerankingRetriever(Letters(), model, batch=1, device="cpu").search([Search("a b", 8)])
        assert ids(alone) == ids(found)
        assert [passage.score for passage in alone] == pytest.approx(scores, abs=1e-5)

    def test_pairs_that_are_too_long_are_counted(self, tmp_path: Path) -> None:
        retriever = RerankingRetriever(Letters("ab"), save_cross_encoder(tmp_path / "model"), device="cpu")
        retriever.search([Search("a " * 10, 2)])  # 10 + 1 or 2 + 3
        assert retriever.cut == 0
        retriever.search([Search("a " * 12, 2)])
        assert retriever.cut == 1
        retriever.search([Search("a" * 100_000, 1), Search("\0 [SEP]", 1), Search("", 1)])

    def test_many_threads_may_search(self, tmp_path: Path) -> None:
        retriever = RerankingRetriever(Letters(), save_cross_encoder(tmp_path / "model"), device="cpu")
        queries = [" ".join("abcdefgh"[: 1 + i % 5]) for i in range(24)]
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(lambda query: ids(retriever.search([Search(query, 8)])[0]), queries))
        assert together == [ids(retriever.search([Search(query, 8)])[0]) for query in queries]

    def test_a_model_of_several_scores_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="gives 3 scores a pair"):
            RerankingRetriever(Letters(), save_cross_encoder(tmp_path / "model", labels=3), device="cpu")

    def test_a_model_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="nowhere"):
            RerankingRetriever(Letters(), str(tmp_path / "nowhere"), device="cpu")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"mrsearch\[dense\]"):
        RerankingRetriever(Letters(), "any")


def test_the_identity_is_that_of_the_inner_retriever_and_of_the_order() -> None:
    class Known(Letters):
        identity = "abc123"
        breaks = 2

    assert RerankingRetriever(Letters(), Scores({})).identity is None
    known = [RerankingRetriever(Known(), Scores({}), depth=depth) for depth in (5, 6)]
    assert known[0].breaks == 2
    assert len({"abc123", *(retriever.identity for retriever in known)}) == 3
