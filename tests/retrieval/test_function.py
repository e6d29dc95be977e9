"""A user's own function as a retriever: what it may return, and what is said of one that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverDown, RetrieverError
from mrsearch.retrieval.function import FunctionRetriever

A = Search("a", 2)


def returning(value: Any) -> FunctionRetriever:
    return FunctionRetriever(lambda queries, top_k: value)


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes a module into the current directory, which is forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield lambda name, source: (tmp_path / f"{name}.py").write_text(source) and None
    for name in set(sys.modules) - before:
        del sys.modules[name]


class TestSearch:
    def test_gives_the_function_its_queries_and_returns_its_passages(self) -> None:
        asked: list[tuple[list[str], int]] = []

        def find(queries: list[str], top_k: int) -> list[list[Passage]]:
            asked.append((list(queries), top_k))
            answers = [[Passage(str(rank), "", query) for rank in range(top_k)] for query in queries]
            queries.clear()  # its own list
            return answers

        searches = [Search("a", 2), Search("b", 1), Search("c", 2), Search("a", 2)]
        found = FunctionRetriever(find).search(searches)
        assert [[p.text for p in passages] for passages in found] == [["a", "a"], ["b"], ["c", "c"], ["a", "a"]]
        assert asked == [(["a", "c"], 2), (["b"], 1)]
        assert FunctionRetriever(find).search([]) == []

    @pytest.mark.parametrize(
        ("item", "passage"),
        [
            (Passage("1", "T", "text", 0.5), Passage("1", "T", "text", 0.5)),
            ("text\nand more ", Passage("", "", "text\nand more")),
            ({"text": "text"}, Passage("", "", "text")),
            ({"id": 7, "title": "T", "text": "text", "score": 2}, Passage("7", "T", "text", 2.0)),
            ({"text": "text", "score": np.float32(0.5)}, Passage("", "", "text", 0.5)),
            ({"id": "1", "contents": '"T"\ntext'}, Passage("1", "T", "text")),
            ({"document": {"id": "1", "contents": '"T"\ntext'}, "score": 1.5}, Passage("1", "T", "text", 1.5)),
        ],
    )
    def test_a_passage_may_have_several_forms(self, item: object, passage: Passage) -> None:
        assert returning([[item]]).search([A]) == [[passage]]

    def test_any_sequence_will_do(self) -> None:
        assert returning(iter([("b", "c")])).search([A]) == [[Passage("", "", "b"), Passage("", "", "c")]]

    def test_what_goes_beyond_top_k_is_left_out(self) -> None:
        assert len(returning([["a", "b", "c"]]).search([A])[0]) == 2

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (None, "it is of type NoneType"),
            ("text", "it is of type str"),
            ({"a": []}, "it is of type dict"),
            ([None], "answer 0 is of type NoneType"),
            (["text"], "answer 0 is of type str"),
            ([], "returned 0 lists for 1 queries"),
            ([[], []], "returned 2 lists for 1 queries"),
            ([[7]], "must be a document"),
            ([[{"title": "T"}]], "it must have 'contents', or a 'text'"),
            ([[{"text": "a", "score": "high"}]], "must be a number"),
        ],
    )
    def test_what_it_must_not_return_is_said(self, value: object, said: str) -> None:
        with pytest.raises(RetrieverError, match=said) as caught:
            returning(value).search([A])
        assert "lambda" in str(caught.value)  # which function it was

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (KeyError("k"), RetrieverError),
            (ConnectionError("refused"), RetrieverDown),
            (TimeoutError("late"), RetrieverDown),
            (RetrieverDown("mine"), RetrieverDown),
            (RetrieverError("mine"), RetrieverError),
        ],
    )
    def test_its_errors_are_those_of_a_retriever(self, error: Exception, kind: type[Exception]) -> None:
        def fail(queries: list[str], top_k: int) -> list[list[str]]:
            raise error

        with pytest.raises(RetrieverError) as caught:
            FunctionRetriever(fail).search([A])
        assert type(caught.value) is kind
        assert str(error) in str(caught.value)

    def test_so_are_those_of_its_generators(self) -> None:
        def fail(queries: list[str], top_k: int) -> Iterator[list[str]]:
            yield ["a"]
            raise KeyError

        with pytest.raises(RetrieverError, match="KeyError"):
            FunctionRetriever(fail).search([A])  # type: ignore[arg-type]


class TestLoading:
    def test_finds_a_module_in_the_current_directory(self, write_module: Callable[[str, str], None]) -> None:
        write_module("my_search", "def find(queries, top_k):\n    return [[query] for query in queries]\n")
        assert FunctionRetriever("my_search:find").search([A]) == [[Passage("", "", "a")]]

    def test_an_installed_module_comes_first(self, write_module: Callable[[str, str], None]) -> None:
        write_module("colorsys", "def find(queries, top_k): ...")
        with pytest.raises(ConfigError, match=r"there is no 'find' in .*colorsys"):
            FunctionRetriever("colorsys:find")

    def test_the_callable_may_lie_in_an_object(self, write_module: Callable[[str, str], None]) -> None:
        find = "    def find(self, queries, top_k):\n        return [['x'] for _ in queries]\n"
        source = f"class Engine:\n{find}\nengine = Engine()\n"
        write_module("my_engine", source)
        assert FunctionRetriever("my_engine:engine.find").search([A]) == [[Passage("", "", "x")]]

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("my_module", "write it as module:function"),
            ("my_module:", "write it as module:function"),
            (":find", "write it as module:function"),
            ("no_such_module:find", "there is no module 'no_such_module'"),
            ("no_such_package.module:find", "there is no module 'no_such_package.module'"),
            ("my_module:search", "there is no 'search' in"),
            ("my_module:number", "is no function but of type int"),
            ("my_broken:find", "cannot be imported .SyntaxError"),
            ("my_needy:find", "needs a module that is not there: No module named 'no_such_library'"),
            ("my_raising:find", "cannot be imported .ZeroDivisionError"),
        ],
    )
    def test_what_cannot_be_loaded_is_said(
        self, write_module: Callable[[str, str], None], name: str, said: str
    ) -> None:
        write_module("my_module", "number = 1\n")
        write_module("my_broken", "def find(:\n")
        write_module("my_needy", "import no_such_library\n")
        write_module("my_raising", "1 / 0\n")
        with pytest.raises(ConfigError, match=said):
            FunctionRetriever(name)
