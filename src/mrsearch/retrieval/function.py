"""A user's own search: a Python callable as a retriever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import MrsearchError, RetrieverDown, RetrieverError
from mrsearch.functions import load_function
from mrsearch.retrieval.wire import read_answer

CONTRACT = "it must return a list with a list of passages for each query"


class FunctionRetriever:
    """A retriever that calls `function(queries, top_k)`, named as `module:function` or given as it is.

    The function gets a list of texts and a number, and returns for each query a
    list of its passages, best first: `Passage`s, texts without a title, or
    dicts with `text` or `contents` and, where there are any, `id`, `title` and `score`.
    In a file `my_search.py`, for `retrieval.function=my_search:find`:

        def find(queries: list[str], top_k: int) -> list[list[dict]]:
            return [[{"id": n.id, "title": n.title, "text": n.body} for n in notes(query)[:top_k]] for query in queries]

    The module is looked for where Python looks, and in the current directory
    last. Each call has different queries with one `top_k`; it may come from
    several threads. What goes beyond `top_k` is left out. An error of the function
    means that these searches have no answer; an `OSError` (no connection, say) or
    a `RetrieverDown` that nobody would have one now, so that waiting may help.
    """

    def __init__(self, function: str | Callable[[list[str], int], Any]) -> None:
        self._function = load_function(function, "retrieval.function") if isinstance(function, str) else function
        self._name = function if isinstance(function, str) else getattr(function, "__qualname__", repr(function))

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Passages for each request, in order."""
        by_top_k: dict[int, list[str]] = {}
        for request in dict.fromkeys(requests):
            by_top_k.setdefault(request.top_k, []).append(request.query)
        found: dict[Search, list[Passage]] = {}
        for top_k, queries in by_top_k.items():
            for query, passages in zip(queries, self._call(queries, top_k), strict=True):
                found[Search(query, top_k)] = passages[:top_k]
        return [list(found[request]) for request in requests]

    def _call(self, queries: list[str], top_k: int) -> list[list[Passage]]:
        try:
            # A list of its own, since the function may change it.
            returned = self._function(list(queries), top_k)
            answers = [list(_each(answer, f"answer {row}")) for row, answer in enumerate(_each(returned, "it"))]
        except MrsearchError:
            raise
        except OSError as error:
            raise RetrieverDown(f"{self._name} failed ({type(error).__name__}: {error})") from error
        except _Unlike as error:
            raise RetrieverError(f"{self._name} returned something else: {error}; {CONTRACT}") from None
        except Exception as error:
            raise RetrieverError(f"{self._name} failed ({type(error).__name__}: {error})") from error
        if len(answers) != len(queries):
            raise RetrieverError(f"{self._name} returned {len(answers)} lists for {len(queries)} queries; {CONTRACT}")
        try:
            return [[_passage(item) for item in answer] for answer in answers]
        except RetrieverError as error:
            raise RetrieverError(f"{self._name} returned something else: {error}") from None


class _Unlike(Exception):
    """A value that is no list."""


def _each(value: object, name: str) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _Unlike(f"{name} is of type {type(value).__name__}")
    return value


def _passage(item: object) -> Passage:
    if isinstance(item, Passage):
        return item
    if isinstance(item, str):
        return Passage("", "", item.strip())
    if isinstance(item, Mapping) and "document" not in item:
        item = {"document": item, "score": item.get("score")}
    if isinstance(item, Mapping) and isinstance(score := item.get("score"), Real):
        item = {**item, "score": float(score)}  # the number may be of another library
    return read_answer({"result": [[item]]}, 1)[0][0]
