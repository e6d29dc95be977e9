"""The protocol's JSON: what is written is strict, what is read may vary, and what is wrong is named."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import RetrieverError
from mrsearch.retrieval.wire import answer_body, encode, read_answer, read_request, request_body

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates and control characters too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def strictly(body: dict[str, Any]) -> Any:
    """The body after a crossing, as a reader sees it that knows no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(encode(body).decode(), parse_constant=refuse)


# -- requests -------------------------------------------------------------------------------------


def test_a_request_is_that_of_the_protocol() -> None:
    body = {"queries": ["who", "where"], "topk": 5, "return_scores": True}
    assert request_body(["who", "where"], 5) == body
    assert read_request(body) == [Search("who", 5), Search("where", 5)]


@given(st.lists(ANY_TEXT, max_size=4), st.integers(1, 10**6))
def test_any_query_makes_a_request_that_can_be_read_again(queries: list[str], top_k: int) -> None:
    read = read_request(strictly(request_body(queries, top_k)))
    assert [search.top_k for search in read] == [top_k] * len(queries)
    for search, query in zip(read, queries, strict=True):
        assert search.query == query.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_topk_may_be_missing_null_or_a_whole_float() -> None:
    assert read_request({"queries": ["a"]}) == [Search("a", 3)]
    assert read_request({"queries": ["a"], "topk": None}) == [Search("a", 3)]
    assert read_request({"queries": ["a"], "topk": 2.0}) == [Search("a", 2)]


def test_more_passages_than_allowed_are_refused_even_for_no_queries() -> None:
    assert read_request({"queries": ["a"], "topk": 5}, most=5) == [Search("a", 5)]
    for top_k in (6, 10**400):
        with pytest.raises(ValueError, match=r"^'topk' is above 5, the most"):
            read_request({"queries": [], "topk": top_k}, most=5)


def test_keys_of_others_are_passed_over() -> None:
    assert read_request({"queries": [], "model": 1, "return_scores": False}) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (["a"], "the body is ['a']; send an object"),
        ("a", "the body is 'a'"),
        (None, "the body is None"),
        ({"query": "a"}, "has no 'queries', only ['query']"),
        ({"queries": "a"}, "'queries' is 'a'; it must be a list"),
        ({"queries": None}, "'queries' is None"),
        ({"queries": ["a", 7]}, "queries[1] is 7; it must be a text"),
        ({"queries": [None]}, "queries[0] is None"),
        ({"queries": ["a"], "topk": 0}, "'topk' is 0; it must be a whole number, 1 or more"),
        ({"queries": ["a"], "topk": -1}, "'topk' is -1"),
        ({"queries": ["a"], "topk": 2.5}, "'topk' is 2.5"),
        ({"queries": ["a"], "topk": float("inf")}, "'topk' is inf"),
        ({"queries": ["a"], "topk": True}, "'topk' is True"),
        ({"queries": ["a"], "topk": "3"}, "'topk' is '3'"),
        ({"queries": ["a"], "topk": -(10**5000)}, "'topk' is a huge number"),
        ({"queries": ["a"], "return_scores": "yes"}, "'return_scores' is 'yes'; it must be true or false"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(body: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_request(body)


@given(JSON | st.fixed_dictionaries({"queries": JSON}, optional={"topk": JSON, "return_scores": JSON}))
def test_any_request_body_is_read_or_refused_in_one_line(body: object) -> None:
    refusal = ""
    try:
        assert all(search.top_k >= 1 for search in read_request(body))
    except ValueError as error:
        refusal = str(error)
    assert len(refusal) < 300
    assert refusal.isprintable()


# -- answers --------------------------------------------------------------------------------------

ADA = Passage("7", "Ada Lovelace", "She wrote the first program.", 1.5)


def test_an_answer_is_that_of_the_protocol() -> None:
    document = {"id": "7", "contents": '"Ada Lovelace"\nShe wrote the first program.'}
    body = {"result": [[{"document": document, "score": 1.5}], []]}
    assert answer_body([[ADA], []]) == body
    assert read_answer(body, 2) == [[ADA], []]


@given(
    st.builds(Passage, ANY_TEXT, ANY_TEXT, ANY_TEXT, st.none() | st.floats() | st.integers(-5, 5)).map(
        lambda passage: [[passage]]
    )
)
def test_any_passage_makes_an_answer_that_can_be_read_again(results: list[list[Passage]]) -> None:
    once = read_answer(strictly(answer_body(results)), 1)
    again = read_answer(strictly(answer_body(once)), 1)
    assert [len(found) for found in once] == [1]
    assert again[0][0].text == once[0][0].text
    assert "\n" not in once[0][0].title


def test_a_title_stays_one_line() -> None:
    crossed = read_answer(answer_body([[Passage("1", "Two\nlines", "text")]]), 1)
    assert crossed == [[Passage("1", "Two lines", "text")]]


def test_a_passage_without_a_title_crosses() -> None:
    untitled = Passage("1", "", 'A text\nof "two" lines', 0.0)
    assert read_answer(strictly(answer_body([[untitled]])), 1) == [[untitled]]


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf"), None])
def test_a_score_that_is_no_number_is_null(score: float | None) -> None:
    body = answer_body([[Passage("1", "", "text", score)]])
    assert strictly(body)["result"][0][0]["score"] is None
    body["result"][0][0]["score"] = score  # as a laxer server sends it
    assert read_answer(body, 1)[0][0].score is None


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    crossed = read_answer(strictly(answer_body([[Passage("\udc00", "a\ud800", "b\udfff")]])), 1)
    assert crossed == [[Passage("\ufffd", "a\ufffd", "b\ufffd")]]
    received = {"result": [[{"document": {"contents": "a\ud800\nb\ud83d\ude00"}}]]}
    assert read_answer(received, 1) == [[Passage("", "a\ufffd", "b😀")]]


@pytest.mark.parametrize(
    ("item", "passage"),
    [
        ({"id": "1", "contents": '"T"\nx'}, Passage("1", "T", "x")),
        ({"id": "1", "contents": "T\nx"}, Passage("1", "T", "x")),
        ({"id": "1", "contents": "x"}, Passage("1", "", "x")),
        ({"document": {"id": 1, "contents": '"T"\nx'}, "score": 2}, Passage("1", "T", "x", 2.0)),
        ({"document": {"title": '"T"', "text": "x", "contents": '"T"\nx'}, "score": 2.5}, Passage("", "T", "x", 2.5)),
        ({"document": {"title": "T", "text": "x"}}, Passage("", "T", "x")),
        ({"text": "x", "title": None, "id": None, "url": "there"}, Passage("", "", "x")),
    ],
)
def test_documents_of_other_servers_are_read(item: object, passage: Passage) -> None:
    assert read_answer({"result": [[item]]}, 1) == [[passage]]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "the answer is None; it must be an object with a 'result'"),
        ({"detail": "Not Found"}, "the answer is {'detail': 'Not Found'}"),
        ({"result": "none"}, "'result' is 'none'"),
        ({"result": []}, "'result' has 0 lists of passages for 1 queries"),
        ({"result": [[], []]}, "'result' has 2 lists of passages for 1 queries"),
        ({"result": [None]}, "result[0] is None; it must be a list of documents"),
        ({"result": [["x"]]}, "result[0][0] is 'x'; it must be a document"),
        ({"result": [[{"document": None}]]}, "result[0][0] is {'document': None}"),
        ({"result": [[{"id": "1"}]]}, "the document of result[0][0] is {'id': '1'}; it must have 'contents'"),
        ({"result": [[{"contents": 7}]]}, "the document of result[0][0] is {'contents': 7}"),
        ({"result": [[{"text": "x", "title": 7}]]}, "the document of result[0][0]"),
        ({"result": [[{"contents": "x", "id": [1]}]]}, "the id of result[0][0] is [1]"),
        ({"result": [[{"contents": "x", "id": True}]]}, "the id of result[0][0] is True"),
        ({"result": [[{"contents": "x", "id": 10**5000}]]}, "the id of result[0][0] is a number of too many digits"),
        ({"result": [[{"document": {"contents": "x"}, "score": "2"}]]}, "the score of result[0][0] is '2'"),
        ({"result": [[{"document": {"contents": "x"}, "score": True}]]}, "the score of result[0][0] is True"),
        ({"result": [[{"document": {"contents": "x"}, "score": 10**400}]]}, "the score of result[0][0] is a number of"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(body: object, said: str) -> None:
    with pytest.raises(RetrieverError, match=re.escape(said)):
        read_answer(body, 1)


ITEM = st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "contents", "title", "text", "document", "score"), JSON))


@given(JSON | st.fixed_dictionaries({"result": JSON | st.lists(st.lists(JSON | ITEM, max_size=2), max_size=2)}))
def test_any_answer_is_read_or_refused_in_one_line(body: object) -> None:
    refusal = ""
    try:
        strictly(answer_body(read_answer(body, 1)))
    except RetrieverError as error:
        refusal = str(error)
    assert len(refusal) < 300
    assert refusal.isprintable()
