"""The server: one shape of answer to every valid request, a clear refusal of every other, and no way to break it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from mrsearch import __version__
from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverDown, RetrieverError
from mrsearch.retrieval.bm25 import BM25Retriever
from mrsearch.retrieval.server import Limits, create_app, serve

PASSAGES = [
    Passage("0", "Ada Lovelace", "She wrote the first program."),
    Passage("1", "Oslo", "Oslo is the capital of Norway."),
    Passage("2", "東京", "東京は日本の首都です。"),
]
INFO = {"identity": "abc123", "passages": 3, "kind": "bm25"}


class Echo:
    """Finds `top_k` passages that say the query; "bad" cannot be searched, "down" finds nobody there."""

    def __init__(self) -> None:
        self.calls: list[list[Search]] = []
        self.called = Event()
        self.gate = Event()
        self.gate.set()

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append(list(requests))
        self.called.set()
        assert self.gate.wait(10)
        for request in requests:
            if request.query == "bad":
                raise RetrieverError("no word of it is known")
            if request.query == "down":
                raise RetrieverDown("no reply from http://127.0.0.1:1")
        return [[Passage(str(i), "", request.query, 1.0) for i in range(request.top_k)] for request in requests]


def app_of(retriever: Retriever | None = None, *, limits: Limits | None = None, token: str = "") -> FastAPI:
    return create_app(retriever or Echo(), info=INFO, limits=limits, token=token)


def talk(app: FastAPI, conversation: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """Hold a conversation with the app, in this process."""

    async def run() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await conversation(client)

    return asyncio.run(run())


def send(app: FastAPI, method: str, path: str, **request: Any) -> httpx.Response:
    response: httpx.Response = talk(app, lambda client: client.request(method, path, **request))
    return response


def retrieve(app: FastAPI, body: Any, **request: Any) -> httpx.Response:
    """Send a body as it is when it is text or bytes, and else as JSON."""
    how = {"content": body} if isinstance(body, str | bytes) else {"json": body}
    return send(app, "POST", "/retrieve", **how, **request)


def refusal(response: httpx.Response) -> str:
    """The reason in an error, which has one shape."""
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    reason: str = response.json()["error"]
    assert isinstance(reason, str)
    return reason


def counted(app: FastAPI, name: str) -> float:
    """A number of /metrics."""
    lines = send(app, "GET", "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split()[0] == name)


@pytest.fixture(scope="module")
def bm25() -> BM25Retriever:
    return BM25Retriever(PASSAGES)


# -- answers --------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_protocol(bm25: BM25Retriever) -> None:
    body = {"queries": ["Who wrote the first program?", "capital"], "topk": 1, "return_scores": True}
    response = retrieve(app_of(bm25), body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    (ada,), (oslo,) = response.json()["result"]
    assert ada["document"] == {"id": "0", "contents": '"Ada Lovelace"\nShe wrote the first program.'}
    assert ada["score"] > 0
    assert oslo["document"]["id"] == "1"


def test_three_passages_is_the_default_and_scores_always_come() -> None:
    (found,) = retrieve(app_of(), {"queries": ["a"], "return_scores": False}).json()["result"]
    assert [item["score"] for item in found] == [1.0] * 3


def test_more_passages_than_there_are_gives_all_that_match(bm25: BM25Retriever) -> None:
    (found,) = retrieve(app_of(bm25), {"queries": ["Oslo program"], "topk": 1000}).json()["result"]
    assert {item["document"]["id"] for item in found} == {"0", "1"}


def test_no_queries_have_no_results() -> None:
    assert retrieve(app_of(), {"queries": []}).json() == {"result": []}


ODD_QUERIES = {
    "blank": '""',
    "spaces": '" \\t\\n "',
    "stop words": '"of the and"',
    "nul": '"a\\u0000b"',
    "raw control characters escaped": '"\\u0001\\u001f\\u007f\\u0085"',
    "control tokens": '"<|endoftext|></search><answer>Oslo</answer>[INST]"',
    "lone surrogate": '"Oslo \\ud800"',
    "surrogates the wrong way round": '"\\ude00\\ud83d"',
    "emoji": '"\\ud83d\\ude00"',
    "Japanese": '"日本の首都"',
    "Arabic": '"ما هي عاصمة النرويج"',
    "query syntax": '"words:(Oslo AND row:[0 TO *]) \\"" ',
    "long": json.dumps("Oslo " * 6000),
    "one long word": json.dumps("a" * 32_768),
}


@pytest.mark.parametrize("query", ODD_QUERIES.values(), ids=list(ODD_QUERIES))
def test_an_odd_query_gets_an_answer_of_the_same_shape(bm25: BM25Retriever, query: str) -> None:
    response = retrieve(app_of(bm25), f'{{"queries": ["Norway", {query}], "topk": 2}}')
    assert response.status_code == 200, response.text
    norway, odd = response.json()["result"]
    assert [item["document"]["id"] for item in norway] == ["1"]
    for item in odd:
        assert sorted(item) == ["document", "score"]
        assert sorted(item["document"]) == ["contents", "id"]


def test_a_lone_surrogate_reaches_no_retriever() -> None:
    (found,) = retrieve(app_of(), '{"queries": ["a\\ud800"], "topk": 1}').json()["result"]
    assert found[0]["document"]["contents"] == '""\na\ufffd'


def test_a_byte_order_mark_and_a_wrong_content_type_are_no_obstacle() -> None:
    body = b'\xef\xbb\xbf{"queries": ["a"], "topk": 1}'
    response = retrieve(app_of(), body, headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert response.status_code == 200


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    assert retrieve(app_of(), '{"queries": 1, "queries": [], "topk": 1}').json() == {"result": []}


# -- refusals -------------------------------------------------------------------------------------

MALFORMED = {
    "nothing": (b"", 400, "not JSON in UTF-8"),
    "half JSON": (b'{"queries": ["a"', 400, "not JSON in UTF-8"),
    "NaN": (b'{"queries": ["a"], "topk": NaN}', 400, "NaN is no JSON value"),
    "infinity": (b'{"queries": ["a"], "topk": -Infinity}', 400, "-Infinity is no JSON value"),
    "a float out of range": (b'{"queries": ["a"], "topk": 1e999}', 422, "'topk' is inf"),
    "a number of too many digits": (b'{"queries": ["a"], "topk": ' + b"9" * 5000 + b"}", 400, "not JSON"),
    "a huge number": (b'{"queries": ["a"], "topk": ' + b"9" * 400 + b"}", 422, "'topk' is above 1000"),
    "bytes that are no UTF-8": (b'{"queries": ["\xff"]}', 400, "not JSON in UTF-8"),
    "UTF-16": ('{"queries": ["a"]}'.encode("utf-16"), 400, "not JSON in UTF-8"),
    "a surrogate as UTF-8": (b'{"queries": ["\xed\xa0\x80"]}', 400, "not JSON in UTF-8"),
    "a raw control character": (b'{"queries": ["a\x00"]}', 400, "not JSON in UTF-8"),
    "deep nesting": (b'{"queries": ["a"], "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 400, "nested too deeply"),
    "deep nesting in place of queries": (b'{"queries": ' + b"[" * 900 + b"]" * 900 + b"}", 422, "must be a text"),
    "a list": (b"[]", 422, "the body is []"),
    "no queries": (b'{"query": "a"}', 422, "has no 'queries'"),
    "one query": (b'{"queries": "a"}', 422, "'queries' is 'a'"),
    "a number as a query": (b'{"queries": ["a", 1]}', 422, "queries[1] is 1"),
    "topk 0": (b'{"queries": ["a"], "topk": 0}', 422, "'topk' is 0"),
    "topk below 0": (b'{"queries": ["a"], "topk": -3}', 422, "'topk' is -3"),
    "topk true": (b'{"queries": ["a"], "topk": true}', 422, "'topk' is True"),
    "topk as text": (b'{"queries": ["a"], "topk": "3"}', 422, "'topk' is '3'"),
    "return_scores as text": (b'{"queries": ["a"], "return_scores": "no"}', 422, "'return_scores' is 'no'"),
    "gzip without its header": (gzip.compress(b'{"queries": ["a"]}'), 400, "not JSON in UTF-8"),
}


@pytest.mark.parametrize(("body", "status", "reason"), MALFORMED.values(), ids=list(MALFORMED))
def test_a_malformed_body_is_refused_with_the_reason(body: bytes, status: int, reason: str) -> None:
    response = retrieve(app_of(), body)
    assert response.status_code == status
    assert reason in refusal(response)
    assert len(response.content) < 500


def test_a_compressed_body_is_refused_with_what_would_do() -> None:
    body = gzip.compress(b'{"queries": ["a"]}')
    response = retrieve(app_of(), body, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "identity"
    assert "plain JSON" in refusal(response)


SMALL = Limits(queries=3, query_characters=10, top_k=5, passages=10, body_bytes=1000)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"queries": ["a"] * 4}, "the request has 4 queries, and 3 are allowed"),
        ({"queries": ["a", "b" * 11]}, "queries[1] has 11 characters, and 10 are allowed"),
        ({"queries": ["a"], "topk": 6}, "'topk' is above 5"),
        ({"queries": [], "topk": 6}, "'topk' is above 5"),
        ({"queries": ["a"] * 3, "topk": 4}, "4 passages for each of 3 queries are above 10 passages in all"),
    ],
)
def test_what_is_above_a_limit_is_refused(body: Any, reason: str) -> None:
    response = retrieve(app_of(limits=SMALL), body)
    assert response.status_code == 422
    assert reason in refusal(response)


def test_what_is_at_the_limits_is_answered() -> None:
    assert retrieve(app_of(limits=SMALL), {"queries": ["a" * 10] * 2, "topk": 5}).status_code == 200
    assert retrieve(app_of(limits=SMALL), {"queries": ["a"] * 3, "topk": 3}).status_code == 200
    assert retrieve(app_of(limits=SMALL), f'{{"queries": []}}{" " * 985}').status_code == 200


def test_a_body_is_read_up_to_its_limit_and_no_further() -> None:
    sent = []

    async def endless() -> AsyncIterator[bytes]:
        for number in range(1000):
            sent.append(number)
            yield b" " * 400

    response = talk(app_of(limits=SMALL), lambda client: client.post("/retrieve", content=endless()))
    assert response.status_code == 413
    assert "more than 1000 bytes" in refusal(response)
    assert len(sent) <= 4


def test_a_limit_below_one_is_a_setting_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="limit top_k is 0"):
        Limits(top_k=0)


def test_other_paths_and_methods_are_refused_in_the_same_shape() -> None:
    response = send(app_of(), "GET", "/retrieve")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert refusal(response).startswith("GET /retrieve: Method Not Allowed; there are POST /retrieve")
    response = send(app_of(), "POST", "/search")
    assert response.status_code == 404
    assert refusal(response).startswith("POST /search: Not Found")


@settings(max_examples=100)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_get_an_answer(body: bytes) -> None:
    response = retrieve(FUZZED, body)
    assert response.status_code in {200, 400, 422}
    assert "result" in response.json() or refusal(response)


FUZZED = app_of()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("queries", "topk", "return_scores", "x"), VALUES)))
def test_any_json_gets_an_answer(body: dict[str, Any]) -> None:
    response = retrieve(FUZZED, body)
    assert response.status_code in {200, 422}
    assert "result" in response.json() or refusal(response)


# -- failures of the retriever --------------------------------------------------------------------


def test_a_query_that_cannot_be_searched_is_named() -> None:
    app = app_of()
    response = retrieve(app, {"queries": ["a", "bad", "b", "bad"]})
    assert response.status_code == 422
    reason = "queries[1], 'bad', cannot be searched: no word of it is known; 1 others fail too"
    assert refusal(response) == reason
    assert counted(app, "mrsearch_failed_searches_total") == 2


def test_a_query_that_cannot_be_searched_fails_no_other_request() -> None:
    async def together(client: httpx.AsyncClient) -> list[int]:
        queries = ["a", "b", "bad", "c"]
        responses = await asyncio.gather(*(client.post("/retrieve", json={"queries": [query]}) for query in queries))
        return [response.status_code for response in responses]

    assert talk(app_of(), together) == [200, 200, 422, 200]


def test_a_search_engine_that_is_down_is_worth_waiting_for() -> None:
    response = retrieve(app_of(), {"queries": ["a", "down"]})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert refusal(response) == "no reply from http://127.0.0.1:1"


def test_a_bug_is_an_error_of_the_same_shape_and_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Strange:
        def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
            return [[Passage("1", "", "text", "high")] for _ in requests]  # type: ignore[arg-type]

    response = retrieve(app_of(Strange()), {"queries": ["a"]})
    assert response.status_code == 500
    assert refusal(response) == "unexpected ValueError; the log of the server shows where"
    assert "could not convert string to float: 'high'" in caplog.text


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    echo = Echo()
    echo.gate.clear()
    app = app_of(echo, limits=Limits(queue=2))

    async def crowd(client: httpx.AsyncClient) -> tuple[list[httpx.Response], httpx.Response]:
        first = asyncio.create_task(client.post("/retrieve", json={"queries": ["a"]}))
        assert await asyncio.to_thread(echo.called.wait, 10)
        second = asyncio.create_task(client.post("/retrieve", json={"queries": ["b", "c"]}))
        while not (await client.get("/metrics")).text.count("mrsearch_waiting_searches 2.0"):
            await asyncio.sleep(0.01)
        refused = await client.post("/retrieve", json={"queries": ["d"]})
        echo.gate.set()
        return [await first, await second], refused

    answered, refused = talk(app, crowd)
    assert [response.status_code for response in answered] == [200, 200]
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert "searches are waiting" in refusal(refused)
    assert counted(app, "mrsearch_refused_searches_total") == 1
    assert counted(app, 'mrsearch_requests_total{status="503"}') == 1
    assert counted(app, "mrsearch_waiting_searches") == 0


# -- together -------------------------------------------------------------------------------------


def test_requests_that_come_together_are_searched_together() -> None:
    echo = Echo()

    async def crowd(client: httpx.AsyncClient) -> list[str]:
        bodies = [{"queries": [f"q{number}"], "topk": 1} for number in range(50)]
        responses = await asyncio.gather(*(client.post("/retrieve", json=body) for body in bodies))
        return [response.json()["result"][0][0]["document"]["contents"] for response in responses]

    app = app_of(echo)
    assert talk(app, crowd) == [f'""\nq{number}' for number in range(50)]
    assert len(echo.calls) < 25
    assert counted(app, "mrsearch_searches_total") == 50
    assert counted(app, "mrsearch_batch_searches_count") == len(echo.calls)
    assert counted(app, "mrsearch_request_seconds_count") == 50


def test_a_client_that_leaves_is_not_searched_for() -> None:
    echo = Echo()
    echo.gate.clear()
    app = app_of(echo)
    sent: list[Any] = []

    async def leave(client: httpx.AsyncClient) -> None:
        first = asyncio.create_task(client.post("/retrieve", json={"queries": ["a"]}))
        assert await asyncio.to_thread(echo.called.wait, 10)
        messages = [
            {"type": "http.request", "body": b'{"queries": ["b"]}', "more_body": False},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Any:
            return messages.pop(0)

        async def answer(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/retrieve", "query_string": b"", "headers": []}
        await app(scope, receive, answer)
        echo.gate.set()
        assert (await first).status_code == 200
        assert (await client.post("/retrieve", json={"queries": ["c"]})).status_code == 200

    talk(app, leave)
    assert [[search.query for search in call] for call in echo.calls] == [["a"], ["c"]]
    assert counted(app, 'mrsearch_requests_total{status="499"}') == 1


# -- health, token --------------------------------------------------------------------------------


def test_health_tells_what_is_served() -> None:
    told = send(app_of(), "GET", "/health").json()
    assert told == {"status": "ok", **INFO, "version": __version__}


def test_apps_count_each_for_themselves() -> None:
    one, other = app_of(), app_of()
    retrieve(one, {"queries": ["a"]})
    assert counted(one, 'mrsearch_requests_total{status="200"}') == 1
    assert counted(other, 'mrsearch_requests_total{status="200"}') == 0


@pytest.mark.parametrize("given", ["", "secret", "Bearer", "Bearer wrong", "Bearer secre", "Basic secret", "Bearer é"])
def test_without_the_token_there_are_no_passages_and_no_metrics(given: str) -> None:
    app = app_of(token="secret")
    headers = {"Authorization": given.encode("latin-1")} if given else {}
    for method, path in (("POST", "/retrieve"), ("GET", "/metrics")):
        response = send(app, method, path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer TOKEN" in refusal(response)
    assert send(app, "GET", "/health").status_code == 200


def test_with_the_token_there_is_everything() -> None:
    app = app_of(token="secret")
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} secret"}
        assert retrieve(app, {"queries": ["a"]}, headers=headers).status_code == 200
        assert send(app, "GET", "/metrics", headers=headers).status_code == 200


# -- its own description --------------------------------------------------------------------------

# Small limits, so that what is above them stays below the limit of the body.
described = schemathesis.openapi.from_asgi(
    "/openapi.json", app_of(limits=Limits(queries=4, query_characters=50, top_k=5), token="secret")
)


@described.parametrize()
@settings(max_examples=50, database=None)
def test_the_server_does_what_its_openapi_document_says(case: schemathesis.Case) -> None:
    case.call_and_validate(headers={"Authorization": "Bearer secret"})


# -- on a port ------------------------------------------------------------------------------------

SLOW_SERVER = """
import time
from mrsearch.core.types import Passage
from mrsearch.retrieval.server import create_app, serve

class Slow:
    def search(self, requests):
        print("searching", *(request.query for request in requests), flush=True)
        time.sleep(max(float(request.query) for request in requests))
        return [[Passage("1", "", request.query)] for request in requests]

app = create_app(Slow(), info={"identity": "x", "passages": 1, "kind": "slow"})
serve(app, "127.0.0.1", 0, grace=1, on_listening=lambda url: print(url, flush=True))
print("ended", flush=True)
"""


class Running:
    """A server in a process of its own, whose queries are the seconds that they take."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        command = [sys.executable, "-c", SLOW_SERVER]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.url = self.says()

    def says(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ends(self) -> int:
        """Tell it to end, and wait for its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@pytest.fixture
def server() -> Iterator[Running]:
    running = Running()
    with running.process:
        yield running
        running.process.kill()


def search(server: Running, seconds: float, *, timeout: float = 20) -> httpx.Response:
    return httpx.post(f"{server.url}/retrieve", json={"queries": [str(seconds)]}, timeout=timeout)


def test_told_to_end_it_answers_what_it_has_and_takes_nothing_new(server: Running) -> None:
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(search, server, 0.7)
        assert server.says() == "searching 0.7"
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        assert answer.result().json()["result"][0][0]["document"]["contents"] == '""\n0.7'
    assert server.process.wait(20) == 0
    assert server.says() == "ended"


def test_a_search_that_takes_too_long_does_not_keep_it_from_ending(server: Running) -> None:
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(search, server, 600)
        assert server.says() == "searching 600"
        assert server.ends() == 0
        assert isinstance(answer.exception(), httpx.HTTPError) or answer.result().status_code >= 500


def test_over_a_socket_too_a_client_that_left_is_not_searched_for(server: Running) -> None:
    with ThreadPoolExecutor() as threads:
        first = threads.submit(search, server, 0.9)
        assert server.says() == "searching 0.9"
        with pytest.raises(httpx.ReadTimeout):
            search(server, 0.2, timeout=0.3)
        assert search(server, 0.1).status_code == first.result().status_code == 200
        assert server.says() == "searching 0.1"


def test_over_a_socket_too_a_large_body_gets_its_refusal(server: Running) -> None:
    response = httpx.post(f"{server.url}/retrieve", content=b" " * 20_000_000)
    assert response.status_code == 413
    assert search(server, 0).status_code == 200


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^cannot listen on port {port} of 127.0.0.1 \(Address already in use\)"
        ):
            serve(app_of(), "127.0.0.1", port)
    for port in (-1, 65_536):
        with pytest.raises(ConfigError, match=f"^there is no port {port}; choose one of 1 to 65535"):
            serve(app_of(), "127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"of no.such.host.invalid \("):
        serve(app_of(), "no.such.host.invalid", 0)


def test_without_its_packages_the_extra_is_named() -> None:
    script = "import sys; sys.modules['fastapi'] = None; import mrsearch.retrieval.server"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("install what it needs with: pip install 'mrsearch[server]'")
