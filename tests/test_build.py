"""Settings to objects: what is chosen, and what does not fit together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mrsearch import build
from mrsearch.codec import HFCodec
from mrsearch.config import Config, EngineConfig, ModelConfig, RetrievalConfig
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Search
from mrsearch.core.types import Passage, Question
from mrsearch.data.demonstrations import Demonstration
from mrsearch.data.mini_world import MINI_PROMPTS, mini_model_config, mini_tokenizer
from mrsearch.engine.mini_model import build_mini_model
from mrsearch.errors import ConfigError, DataError, Outage, RetrieverDown, RetrieverError
from mrsearch.retrieval.bm25 import BM25Retriever
from mrsearch.retrieval.corpus import load_corpus
from mrsearch.retrieval.indexing import build_index
from serving import serving

PLAN = Plan(episodes=2, searches=1, top_k=1, turn_tokens=16, observation_tokens=24, window_tokens=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained mini model with its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tokenizer: Any = mini_tokenizer(60)
    module: Any = build_mini_model(mini_model_config(len(tokenizer)), 0)
    module.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("parameters", "cores", "threads"),
    [(400_000, 16, 1), (19_999_999, 64, 1), (135_000_000, 16, 8), (135_000_000, 2, 1), (135_000_000, 1, 1)],
)
def test_a_tiny_model_gets_one_thread_and_another_half_of_the_cores(parameters: int, cores: int, threads: int) -> None:
    assert build.choose_threads(parameters, cores) == threads


def test_configured_threads_are_taken_as_they_are(folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        build.language_model(Config(model=ModelConfig(path=str(folder)), engine=EngineConfig(threads=2), plan=PLAN))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_device_that_is_named_is_taken() -> None:
    assert build.choose_device(EngineConfig(device="mps")) == "mps"


def test_a_model_that_is_not_named_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"model\.path is empty"):
        build.language_model(Config())


def test_a_window_longer_than_the_model_can_see_is_a_config_error(folder: Path) -> None:
    config = Config(model=ModelConfig(path=str(folder)), plan=replace(PLAN, window_tokens=4096))
    with pytest.raises(ConfigError, match="more than the 2048 positions"):
        build.language_model(config)


def test_passages_from_nowhere_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"nothing says where passages come from; set retrieval\.corpus or"):
        build.retriever(RetrievalConfig())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    texts = [("Zasen", "star Koben ."), ("Koben", "employer Doten .")]
    lines = [json.dumps({"id": str(row), "contents": f'"{title}"\n{text}'}) for row, (title, text) in enumerate(texts)]
    path.write_text("\n".join(lines))
    return path


def find_zasen(queries: list[str], top_k: int) -> list[list[dict[str, str]]]:
    """A user's own search."""
    return [[{"id": "0", "contents": '"Zasen"\nstar Koben .'}] for _ in queries]


def titles(config: RetrievalConfig, query: str = "Zasen", top_k: int = 1) -> list[str]:
    return [passage.title for passage in build.retriever(config).search([Search(query, top_k)])[0]]


class TestSourcesOfPassages:
    def test_a_corpus_in_memory(self, corpus: Path) -> None:
        assert titles(RetrievalConfig(corpus=str(corpus), language="")) == ["Zasen"]

    def test_an_index(self, corpus: Path, tmp_path: Path) -> None:
        build_index(corpus, tmp_path / "index")
        assert titles(RetrievalConfig(index=str(tmp_path / "index"))) == ["Zasen"]
        with pytest.raises(ConfigError, match="cannot be searched as 'dense'"):
            titles(RetrievalConfig(index=str(tmp_path / "index"), part="dense"))

    def test_a_function(self) -> None:
        assert titles(RetrievalConfig(function=f"{__name__}:find_zasen")) == ["Zasen"]

    def test_a_server(self, corpus: Path) -> None:
        with serving(BM25Retriever(load_corpus(corpus))) as url:
            assert titles(RetrievalConfig(url=url)) == ["Zasen"]

    def test_a_server_that_asks_for_a_token(self, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OUR_TOKEN", "s3cret")
        with serving(BM25Retriever(load_corpus(corpus)), token="s3cret") as url:
            assert titles(RetrievalConfig(url=url, token_env="OUR_TOKEN")) == ["Zasen"]
            with pytest.raises(RetrieverError, match="401"):
                titles(RetrievalConfig(url=url, on_outage="fail", deadline_s=1))


class TestRecordedSearches:
    def test_are_replayed_without_the_server(self, corpus: Path, tmp_path: Path) -> None:
        kept = RetrievalConfig(url="", cache_file=str(tmp_path / "searches.sqlite"), deadline_s=1, on_outage="fail")
        with serving(BM25Retriever(load_corpus(corpus))) as url:
            recorded = build.retriever(replace(kept, url=url)).search([Search("Zasen", 2)])
        replayed = build.retriever(replace(kept, url=url, replay=True))
        assert replayed.search([Search("Zasen", 2)]) == recorded
        with pytest.raises(RetrieverError, match="no passages for 'Koben'"):
            replayed.search([Search("Koben", 2)])
        assert build.retriever(replace(kept, url=url)).search([Search("Zasen", 2)]) == recorded

    def test_of_a_changed_corpus_are_not_taken(self, corpus: Path, tmp_path: Path) -> None:
        config = RetrievalConfig(corpus=str(corpus), cache_file=str(tmp_path / "searches.sqlite"))
        assert titles(config, "Doten") == ["Koben"]
        corpus.write_text('{"id": "9", "contents": "\\"Lunet\\"\\nemployer Doten ."}')
        assert titles(config, "Doten") == ["Lunet"]


class TestOutage:
    DOWN = RetrievalConfig(url="http://127.0.0.1:9", deadline_s=0.3)

    def test_fails_the_searches_or_stops_as_is_set(self) -> None:
        with pytest.raises(RetrieverDown):
            build.retriever(replace(self.DOWN, on_outage="fail")).search([Search("x", 1)])
        with pytest.raises(Outage):
            build.retriever(replace(self.DOWN, on_outage="stop")).search([Search("x", 1)])

    def test_is_waited_for_until_that_is_given_up(self) -> None:
        told: list[str] = []
        waiting = build.Waiting(told.append, lambda: bool(told))
        with pytest.raises(Outage):
            build.retriever(self.DOWN, waiting).search([Search("x", 1)])
        assert "http://127.0.0.1:9" in told[0]


def test_an_unnamed_question_set_is_a_config_error_with_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"data\.train is empty"):
        build.questions("", "data.train")


QUESTION = Question("q", "Zasen 's star ?", ("Koben",))
SEARCH = ("<think> need star </think> <search> Zasen </search>", (Passage("0", "Zasen", "star Koben ."),))
ANSWER = ("<think> done </think> <answer> Koben </answer>", None)


def codec() -> HFCodec:
    return HFCodec(mini_tokenizer(60), MINI_PROMPTS)


def test_a_demonstration_trains_its_turns_and_nothing_else() -> None:
    shown = codec()
    demonstration = Demonstration(QUESTION, ((SEARCH, ANSWER), (ANSWER,)))
    (trajectory,) = build.replay_demonstrations([demonstration], PLAN, MINI_PROMPTS, shown)
    (window,) = trajectory.windows
    trained = [token for token, mask in zip(window.ids, window.loss_mask, strict=True) if mask]
    assert trained == [token for text, _ in (SEARCH, ANSWER, ANSWER) for token in shown.encode_reply(text)]
    assert trajectory.advantages == [1.0, 1.0]


def test_a_demonstration_with_another_budget_is_refused_with_its_number() -> None:
    fits = Demonstration(QUESTION, ((SEARCH, ANSWER),))
    unfinished = Demonstration(QUESTION, ((SEARCH,),))
    with pytest.raises(DataError, match=r"demonstration 2 .* still needs Generate"):
        build.replay_demonstrations([fits, unfinished], PLAN, MINI_PROMPTS, codec())


def test_a_demonstration_of_which_the_plan_would_drop_turns_is_refused() -> None:
    # with one search the second turn is the last: the third would be lost, and a late search be imitated
    searching_on = Demonstration(QUESTION, ((SEARCH, SEARCH, ANSWER), (ANSWER,)))
    with pytest.raises(DataError, match=r"its episodes have \[3, 1\] turns, of which the plan takes \[2, 1\]"):
        build.replay_demonstrations([searching_on], PLAN, MINI_PROMPTS, codec())


def test_a_demonstration_longer_than_the_window_is_refused() -> None:
    long = Demonstration(QUESTION, ((SEARCH, ANSWER),) * 20)
    with pytest.raises(DataError, match=r"does not fit plan\.window_tokens=256"):
        build.replay_demonstrations([long], PLAN, MINI_PROMPTS, codec())
