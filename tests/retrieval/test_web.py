"""Web search against a stand-in for a SearXNG instance."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverDown, RetrieverError
from mrsearch.retrieval.web import WebRetriever, plain_text

Reply = tuple[int, bytes]
RESULTS = [
    {
        "url": "https://a",
        "title": "The <b>A</b>",
        "content": "All  about\n&lt;a&gt; &amp; b.",
        "score": 2.5,
        "engine": "x",
    },
    {"url": "https://b", "title": "No excerpt", "content": "", "score": 2.0},
    {"url": "https://c", "title": "No excerpt either", "score": 2.0},
    {"url": "https://d", "title": None, "content": "Of d.", "score": None},
    {"title": "E", "content": "Of e."},
]


def found(*results: dict[str, Any], **more: Any) -> Reply:
    return 200, json.dumps({"query": "q", "results": results, "answers": [], **more}).encode()


class Instance:
    """Answers `/search` with what it is given, and remembers what it was asked."""

    def __init__(self, answer: Callable[[dict[str, str]], Reply]) -> None:
        self.answer = answer
        self.asked: list[dict[str, str]] = []
        self.url = ""


@contextmanager
def instance(answer: Callable[[dict[str, str]], Reply] = lambda asked: found(*RESULTS)) -> Iterator[Instance]:
    stand_in = Instance(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            stand_in.asked.append(asked)
            status, body = stand_in.answer(asked) if url.path == "/search" else (404, b"")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reading those of the system takes longer than most of these tests, and none of them needs any."""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


def web(searched: Instance, **settings: Any) -> WebRetriever:
    quick = {"pause": 0.005, "longest_pause": 0.05, "deadline": 20, "random": random.Random(0)}
    return WebRetriever(searched.url, **{**quick, **settings})


def test_results_become_passages() -> None:
    with instance() as searched, web(searched) as retriever:
        assert retriever.search([Search("who", 5)]) == [
            [
                Passage("https://a", "The A", "All about <a> & b.", 2.5),
                Passage("https://d", "", "Of d."),
                Passage("", "E", "Of e."),
            ]
        ]
        assert searched.asked == [{"q": "who", "format": "json"}]


def test_there_are_no_more_than_top_k_and_equal_queries_are_sent_once() -> None:
    with instance() as searched, web(searched) as retriever:
        counts = [len(passages) for passages in retriever.search([Search("a", 1), Search("a", 2), Search("b", 9)])]
        assert counts == [1, 2, 3]
        assert sorted(asked["q"] for asked in searched.asked) == ["a", "b"]


def test_settings_go_into_the_request() -> None:
    with instance() as searched, web(searched, language="de", categories="general,science", engines="x") as retriever:
        retriever.search([Search("a&b=c \ud800é", 1)])
        assert searched.asked == [
            {
                "q": "a&b=c \ufffdé",
                "format": "json",
                "language": "de",
                "categories": "general,science",
                "engines": "x",
            }
        ]


def test_nothing_found_is_an_answer() -> None:
    with instance(lambda asked: found()) as searched, web(searched) as retriever:
        assert retriever.search([Search("a", 1)]) == [[]]


def test_nothing_found_because_no_engine_answered_is_none() -> None:
    silent = found(unresponsive_engines=[["duckduckgo", "CAPTCHA"]])
    with (
        instance(lambda asked: silent) as searched,
        web(searched, deadline=0.3) as retriever,
        pytest.raises(RetrieverDown, match=r"engines that did not answer.*duckduckgo"),
    ):
        retriever.search([Search("a", 1)])
    with (
        instance(lambda asked: silent if len(searched.asked) == 1 else found(*RESULTS)) as searched,
        web(searched) as retriever,
    ):
        assert len(retriever.search([Search("a", 1)])[0]) == 1


def test_an_instance_without_json_is_told_what_to_set() -> None:
    with instance(lambda asked: (403, b"<html>Forbidden")) as searched, web(searched) as retriever:
        with pytest.raises(
            RetrieverDown, match=r"answered 403; search\.formats in .*settings\.yml has to contain json"
        ):
            retriever.search([Search("a", 1)])
        assert len(searched.asked) == 1


@pytest.mark.parametrize("reply", [(429, b""), (500, b""), (200, b"<html>"), (200, b""), (200, b'{"results": 3}')])
def test_faults_are_tried_again(reply: Reply) -> None:
    with (
        instance(lambda asked: reply if len(searched.asked) == 1 else found(*RESULTS)) as searched,
        web(searched) as retriever,
    ):
        assert len(retriever.search([Search("a", 1)])[0]) == 1
        assert retriever.counters["retries"] == 1
        assert retriever.waited_s > 0


def test_a_query_that_the_instance_cannot_take_is_no_outage() -> None:
    with instance(lambda asked: (500, b"") if asked["q"] == "poison" else found(*RESULTS)) as searched:
        with web(searched) as retriever, pytest.raises(RetrieverError, match="answers other requests") as caught:
            retriever.search([Search("a", 1), Search("poison", 1)])
        assert not isinstance(caught.value, RetrieverDown)


def test_a_url_may_end_in_search() -> None:
    with instance() as searched, WebRetriever(f"{searched.url}/search/") as retriever:
        assert retriever.search([Search("a", 1)])[0]
    with pytest.raises(ConfigError, match=r"retrieval\.web is 'searx\.example'"):
        WebRetriever("searx.example")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<p class='x'>a</p><!-- no --> b<br/>c", "a bc"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("&#39;a&#39;&nbsp;b", "'a' b"),
        ("&lt;b&gt;", "<b>"),
        (None, ""),
        (7, ""),
    ],
)
def test_tags_are_taken_out_of_texts(text: object, plain: str) -> None:
    assert plain_text(text) == plain
