r"""The retrieval protocol as JSON data: searches and passages, to and from the bodies of `POST /retrieve`.

    {"queries": ["who wrote it"], "topk": 3, "return_scores": true}
    {"result": [[{"document": {"id": "7", "contents": "\"Title\"\ntext"}, "score": 1.5}, ...]]}

Strict in what is written and lenient in what is read, since servers of other
projects differ in their documents. What crosses in either direction is always
JSON that any reader takes: half a UTF-16 pair, which UTF-8 cannot hold, becomes
U+FFFD, and a score that is not finite becomes null. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage, join_contents, split_contents
from mrsearch.errors import RetrieverError

DEFAULT_TOP_K = 3
"""Passages a query, when a request does not say."""


def request_body(queries: Sequence[str], top_k: int) -> dict[str, Any]:
    """What a client sends: one body for queries that ask for equally many passages."""
    return {"queries": [clean_text(query) for query in queries], "topk": top_k, "return_scores": True}


def read_request(body: object, *, most: int | None = None) -> list[Search]:
    """The searches that a body asks for, of at most so many passages each; `ValueError` says what is wrong with it.

    Keys of others are passed over.

    >>> read_request({"queries": ["who wrote it"], "topk": 2, "model": "mine"})
    [Search(query='who wrote it', top_k=2)]
    """
    if not isinstance(body, Mapping):
        raise ValueError(f'the body is {_shown(body)}; send an object such as {{"queries": ["..."], "topk": 3}}')
    if "queries" not in body:
        raise ValueError(f"the body has no 'queries', only {_shown(list(body))}; it must be a list of texts")
    queries = body["queries"]
    if not isinstance(queries, list):
        raise ValueError(f"'queries' is {_shown(queries)}; it must be a list of texts")
    for number, query in enumerate(queries):
        if not isinstance(query, str):
            raise ValueError(f"queries[{number}] is {_shown(query)}; it must be a text")
    top_k = body.get("topk")
    if top_k is None:
        top_k = DEFAULT_TOP_K
    # 3.0 is the number 3 to JSON; True is an int to Python only.
    whole = (isinstance(top_k, int) and not isinstance(top_k, bool)) or (isinstance(top_k, float) and top_k % 1 == 0)
    if not whole or top_k < 1:
        raise ValueError(f"'topk' is {_shown(top_k)}; it must be a whole number, 1 or more")
    if most is not None and top_k > most:
        raise ValueError(f"'topk' is above {most}, the most passages that a query can have here")
    if not isinstance(body.get("return_scores"), bool | None):
        raise ValueError(f"'return_scores' is {_shown(body['return_scores'])}; it must be true or false")
    return [Search(clean_text(query), int(top_k)) for query in queries]


def answer_body(results: Sequence[Sequence[Passage]]) -> dict[str, Any]:
    """What a server sends: for each query its passages, each with its score."""
    return {"result": [[_item(passage) for passage in passages] for passages in results]}


def read_answer(body: object, queries: int) -> list[list[Passage]]:
    """The passages in an answer to so many queries; `RetrieverError` says what is wrong with it.

    An item is a document with its score or, as servers send it that were told
    to return no scores, the document alone. A document has `contents`, or a
    `text` and perhaps a `title`; its `id` may be a number, and is "" where there is none.
    """
    if not isinstance(body, Mapping) or "result" not in body:
        raise RetrieverError(f"the answer is {_shown(body)}; it must be an object with a 'result'")
    results = body["result"]
    if not isinstance(results, list):
        raise RetrieverError(f"'result' is {_shown(results)}; it must be a list with a list for each query")
    if len(results) != queries:
        raise RetrieverError(f"'result' has {len(results)} lists of passages for {queries} queries")
    found = []
    for row, items in enumerate(results):
        if not isinstance(items, list):
            raise RetrieverError(f"result[{row}] is {_shown(items)}; it must be a list of documents")
        found.append([_passage(item, f"result[{row}][{rank}]") for rank, item in enumerate(items)])
    return found


def encode(body: Mapping[str, Any]) -> bytes:
    """One of the bodies above as JSON in UTF-8."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def clean_text(text: str) -> str:
    r"""The text as UTF-8 can hold it: halves of UTF-16 pairs that belong together are joined, a lone one is U+FFFD.

    >>> clean_text("\ud83d\ude00 \ud83d")
    '😀 \ufffd'
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _item(passage: Passage) -> dict[str, Any]:
    if "\n" in passage.title:
        # A title is the first line of the contents: a line break in it would end it there.
        passage = replace(passage, title=passage.title.replace("\n", " "))
    document = {"id": clean_text(passage.id), "contents": clean_text(join_contents(passage))}
    return {"document": document, "score": _finite(passage.score)}


def _finite(score: float | None) -> float | None:
    if score is None:
        return None
    score = float(score)  # the float of another library is none to JSON
    return score if math.isfinite(score) else None


def _passage(item: object, where: str) -> Passage:
    document, score = item, None
    if isinstance(item, Mapping) and "document" in item:
        document, score = item["document"], item.get("score")
    if not isinstance(document, Mapping):
        raise RetrieverError(f"{where} is {_shown(item)}; it must be a document with 'contents'")
    if isinstance(score, bool) or not isinstance(score, int | float | None):
        raise RetrieverError(f"the score of {where} is {_shown(score)}; it must be a number")
    title, text = _title_and_text(document, where)
    try:
        return Passage(_id(document.get("id"), where), clean_text(title), clean_text(text), _finite(score))
    except OverflowError:
        raise RetrieverError(f"the score of {where} is a number of more digits than a float can hold") from None


def _title_and_text(document: Mapping[str, object], where: str) -> tuple[str, str]:
    contents, title, text = document.get("contents"), document.get("title"), document.get("text")
    if isinstance(contents, str):
        return split_contents(contents)
    if contents is None and isinstance(text, str) and isinstance(title, str | None):
        return (title or "").strip(), text.strip()
    raise RetrieverError(
        f"the document of {where} is {_shown(document)}; it must have 'contents', or a 'text' and perhaps a 'title'"
    )


def _id(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise RetrieverError(f"the id of {where} is {_shown(value)}; it must be a text or a whole number")
    try:
        return "" if value is None else clean_text(str(value))
    except ValueError:  # Python writes no number of more than some thousand digits
        raise RetrieverError(f"the id of {where} is a number of too many digits") from None


def _shown(value: object) -> str:
    """The start of a value, as one line of ASCII."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a huge number"
    try:
        text = ascii(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}..."
