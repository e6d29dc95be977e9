"""The client against a real server that fails as it is told: what is tried again, what is not, and for how long."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import faulty_server as faulty
from faulty_server import Fault, FaultyServer, at, serving
from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, RetrieverDown, RetrieverError
from mrsearch.retrieval.client import RemoteRetriever
from mrsearch.transport import Transport, _Failure, back_off, shorten

SECOND = 0.01
"""What stands for a second here: a deadline of 30 of them, a fault of 60."""


@pytest.fixture(autouse=True)
def _no_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reading those of the system takes longer than most of these tests, and none of them needs any."""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


class Echo:
    """Finds `top_k` passages that say the query."""

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        return [
            [
                Passage(f"{request.query}-{rank}", "Echo", request.query, 1.0 / (1 + rank))
                for rank in range(request.top_k)
            ]
            for request in requests
        ]


class Blunt(Echo):
    """Sends one passage more than it was asked for."""

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        return super().search([Search(request.query, request.top_k + 1) for request in requests])


def client(*servers: FaultyServer, deadline: float = 20, **settings: object) -> RemoteRetriever:
    """A client whose pauses are short; the same in every run."""
    quick = {"pause": 0.2 * SECOND, "longest_pause": 2 * SECOND, "rest": SECOND, "random": random.Random(0)}
    return RemoteRetriever([server.url for server in servers], deadline=deadline, **{**quick, **settings})  # type: ignore[arg-type]


def ask(retriever: RemoteRetriever, *queries: str, top_k: int = 1) -> list[list[str]]:
    return [[p.text for p in found] for found in retriever.search([Search(query, top_k) for query in queries])]


class TestSearch:
    def test_passages_come_as_the_retriever_behind_the_server_gives_them(self) -> None:
        searches = [Search("a", 2), Search("b", 1), Search("a", 1)]
        with serving(Echo()) as server, client(server) as remote:
            assert remote.search(searches) == Echo().search(searches)

    def test_equal_searches_are_sent_once_and_each_has_its_own_list(self) -> None:
        with serving(Echo()) as server, client(server) as remote:
            first, second, third = remote.search([Search("a", 1), Search("b", 1), Search("a", 1)])
            assert server.queries == ["a", "b"]
            assert remote.counters["deduplicated"] == 1
        assert first == third
        first.clear()
        assert third
        assert [p.text for p in second] == ["b"]

    def test_searches_go_out_in_parts_and_come_back_in_order(self) -> None:
        queries = [str(number) for number in range(50)]
        with serving(Echo()) as server, client(server, batch=7, connections=3) as remote:
            assert ask(remote, *queries) == [[query] for query in queries]
            assert sorted(len(body["queries"]) for body in server.bodies) == [1, 7, 7, 7, 7, 7, 7, 7]

    def test_no_more_connections_are_used_than_allowed(self) -> None:
        running, most = 0, 0

        class Slow(Echo):
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                nonlocal running, most
                running += 1
                most = max(most, running)
                time.sleep(0.005)
                running -= 1
                return super().search(requests)

        with serving(Slow()) as server, client(server, batch=1, connections=3, deadline=5) as remote:
            ask(remote, *(str(number) for number in range(20)))
        assert 2 <= most <= 3

    def test_nothing_to_search_asks_nobody(self) -> None:
        assert RemoteRetriever("http://127.0.0.1:1").search([]) == []

    def test_what_comes_beyond_top_k_is_not_returned(self) -> None:
        with serving(Blunt()) as server, client(server) as remote:
            assert ask(remote, "a", top_k=2) == [["a", "a"]]

    def test_half_of_a_utf16_pair_can_be_sent_and_gets_its_answer(self) -> None:
        with serving(Echo()) as server, client(server) as remote:
            assert ask(remote, "a\ud800", "b\x00", "") == [["a\ufffd"], ["b\x00"], [""]]

    def test_the_token_goes_along(self) -> None:
        with serving(Echo()) as server, client(server, token="s3cret") as remote:
            ask(remote, "a")
            assert server.headers[0]["Authorization"] == "Bearer s3cret"

    def test_proxies_of_the_environment_are_not_for_this_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        with serving(Echo()) as server, client(server) as remote:
            assert ask(remote, "a") == [["a"]]

    def test_many_threads_share_a_client(self) -> None:
        with serving(Echo()) as server, client(server, deadline=10) as remote, ThreadPoolExecutor(16) as pool:
            queries = [str(number) for number in range(200)]
            assert list(pool.map(lambda query: ask(remote, query), queries)) == [[[query]] for query in queries]
            assert remote.counters["requests"] == 200

    def test_a_closed_client_opens_again(self) -> None:
        with serving(Echo()) as server, client(server) as remote:
            ask(remote, "a")
            remote.close()
            assert ask(remote, "b") == [["b"]]

    def test_closing_ends_the_searches_of_other_threads(self) -> None:
        with serving(Echo(), faulty.always(faulty.delay(60))) as server, ThreadPoolExecutor(1) as pool:
            remote = client(server, deadline=60)
            waiting = pool.submit(ask, remote, "a")
            while not server.bodies:
                time.sleep(0.001)
            remote.close()
            with pytest.raises(RetrieverError, match="closed during a call"):
                waiting.result(timeout=5)

    def test_an_interrupted_search_ends_at_once_and_leaves_nothing_running(self) -> None:
        def interrupt(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        def wait(handler: Any, answer: bytes) -> None:
            os.kill(os.getpid(), signal.SIGALRM)
            faulty.delay(60)(handler, answer)

        with serving(Echo(), at({0: wait})) as server, client(server, deadline=60, connections=1) as remote:
            before = signal.signal(signal.SIGALRM, interrupt)
            try:
                with pytest.raises(KeyboardInterrupt):
                    ask(remote, "a")
            finally:
                signal.signal(signal.SIGALRM, before)
            started = time.perf_counter()
            assert ask(remote, "b") == [["b"]]  # over the one connection that there is
            assert time.perf_counter() - started < 10

    def test_a_forked_process_has_connections_of_its_own(self) -> None:
        with serving(Echo()) as server, client(server, deadline=10) as remote:
            ask(remote, "a")
            fork = multiprocessing.get_context("fork")
            queue = fork.SimpleQueue()
            child = fork.Process(target=lambda: queue.put(ask(remote, "child")))
            child.start()
            assert queue.get() == [["child"]]
            child.join()
            assert ask(remote, "parent") == [["parent"]]


PASSING: dict[str, Fault] = {
    "html": faulty.html,
    "an empty body": faulty.empty,
    "half json": faulty.half_json,
    "a truncated body": faulty.truncated,
    "a reset": faulty.reset,
    "a delay": faulty.delay(60),
    "bytes that drip": faulty.drip(SECOND),
    "headers that drip": faulty.drip(SECOND, head=True),
    "500": faulty.status(500),
    "502": faulty.status(502, b"<html>"),
    "503": faulty.status(503, Retry_After="0"),
    "429": faulty.status(429),
    "204": faulty.status(204),
    "no object": faulty.body(b"[]"),
    "no result": faulty.body(b'{"error": "no"}'),
    "too few results": faulty.body(b'{"result": []}'),
    "too many results": faulty.body(b'{"result": [[], []]}'),
    "no documents": faulty.body(b'{"result": [["a"]]}'),
    "bytes that are no text": faulty.body(b"\xff\xfe"),
    "nesting without end": faulty.body(b"[" * 100_000),
}


class TestFaults:
    @pytest.mark.parametrize("name", PASSING)
    def test_what_passes_is_tried_again(self, name: str) -> None:
        with serving(Echo(), at({0: PASSING[name]})) as server, client(server, deadline=1) as remote:
            assert ask(remote, "a") == [["a"]]
            assert len(server.bodies) == 2
            assert remote.counters["retries"] == 1
            assert remote.waited_s > 0

    @pytest.mark.parametrize("name", PASSING)
    def test_what_does_not_pass_ends_at_the_deadline(self, name: str) -> None:
        with serving(Echo(), faulty.always(PASSING[name])) as server, client(server, deadline=30 * SECOND) as remote:
            started = time.perf_counter()
            with pytest.raises(RetrieverDown) as caught:
                ask(remote, "a")
            assert time.perf_counter() - started < 30 * SECOND + 1  # the machine may be busy
            for part in (server.url, "tries in", "start one with: mrsearch serve INDEX"):
                assert part in str(caught.value)
            assert len(server.bodies) > 1

    def test_a_server_that_is_not_there_is_down(self) -> None:
        server = FaultyServer(Echo()).start()
        server.stop()
        refused = "no connection: Connection refused"
        with client(server, deadline=0.1) as remote, pytest.raises(RetrieverDown, match=refused):
            ask(remote, "a")

    def test_a_try_that_had_no_time_left_does_not_hide_the_cause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        failures = iter([_Failure("no connection: refused")])

        async def exchange(self: Transport, *_: object) -> object:
            raise next(failures, _Failure("nothing within 0.0 s", brief=True))

        monkeypatch.setattr(Transport, "_exchange", exchange)
        remote = RemoteRetriever("http://127.0.0.1:1", deadline=0.1, pause=0.01)
        with remote, pytest.raises(RetrieverDown, match="no connection: refused"):
            ask(remote, "a")

    def test_a_name_that_nobody_has_is_down(self) -> None:
        remote = RemoteRetriever("http://no-such-host.invalid", deadline=0.2, pause=0.01)
        with remote, pytest.raises(RetrieverDown, match=r"no answer from http://no-such-host\.invalid"):
            ask(remote, "a")

    def test_a_server_that_is_started_anew_during_a_call_answers_it(self) -> None:
        server = FaultyServer(Echo()).start()
        with client(server, deadline=20) as remote, ThreadPoolExecutor(1) as pool:
            ask(remote, "a")
            server.stop()
            waiting = pool.submit(ask, remote, "b")
            while not remote.counters["retries"]:
                time.sleep(0.001)
            server.start()
            assert waiting.result() == [["b"]]
            server.stop()

    def test_after_calls_that_were_given_up_connections_are_free_for_others(self) -> None:
        late = faulty.delay(60)
        with (
            serving(Echo(), lambda number: late if number < 30 else None) as server,
            client(server, batch=1, connections=2, deadline=10 * SECOND) as remote,
        ):
            while len(server.bodies) < 30:
                with suppress(RetrieverError):
                    ask(remote, "a", "b", "c")
            assert ask(remote, "d", "e", "f") == [["d"], ["e"], ["f"]]

    def test_a_server_that_is_busy_gets_the_pause_that_it_asks_for(self) -> None:
        with (
            serving(Echo(), at({0: faulty.status(503, Retry_After="1")})) as server,
            client(server, deadline=10) as remote,
        ):
            started = time.perf_counter()
            ask(remote, "a")
            assert 1 <= time.perf_counter() - started < 5

    @pytest.mark.parametrize("when", ["3600", "Wed, 21 Oct 2099 07:28:00 GMT"])
    def test_a_pause_beyond_the_deadline_is_not_waited_for(self, when: str) -> None:
        with (
            serving(Echo(), faulty.always(faulty.status(429, Retry_After=when))) as server,
            client(server) as remote,
            pytest.raises(RetrieverDown, match="after 1 try in 0"),
        ):
            ask(remote, "a")

    @pytest.mark.parametrize("when", ["soon", "-1", "1e9", ""])
    def test_a_pause_that_cannot_be_read_is_none(self, when: str) -> None:
        with serving(Echo(), at({0: faulty.status(503, Retry_After=when)})) as server, client(server) as remote:
            assert ask(remote, "a") == [["a"]]

    def test_ten_percent_of_resets_lose_nothing(self) -> None:
        chance = random.Random(1)
        queries = [str(number) for number in range(300)]
        with (
            serving(Echo(), lambda number: faulty.reset if chance.random() < 0.1 else None) as server,
            client(server, batch=2, deadline=20) as remote,
        ):
            assert ask(remote, *queries) == [[query] for query in queries]
            assert remote.counters["retries"] > 5


class TestWhoIsAtFault:
    @pytest.mark.parametrize("code", [400, 413, 422])
    def test_a_request_that_the_server_refuses_is_not_sent_again(self, code: int) -> None:
        reason = b'{"error": "queries[0] has \\u001b[31m40000 characters"}'
        with serving(Echo(), faulty.always(faulty.status(code, reason))) as server, client(server) as remote:
            with pytest.raises(RetrieverError) as caught:
                ask(remote, "a")
            assert not isinstance(caught.value, RetrieverDown)
            url = f"{server.url}/retrieve"
            assert str(caught.value) == f"{url} answered {code} (queries[0] has [31m40000 characters)"
            assert len(server.bodies) == 1

    def test_the_reason_may_be_fastapis(self) -> None:
        reason = b'{"detail": [{"loc": ["body", "queries"], "msg": "field required"}]}'
        with (
            serving(Echo(), faulty.always(faulty.status(422, reason))) as server,
            client(server) as remote,
            pytest.raises(RetrieverError, match="field required"),
        ):
            ask(remote, "a")

    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            (faulty.status(401), "answered 401; give the token"),
            (faulty.status(403, b'{"error": "not you"}'), r"answered 403 \(not you\)"),
            (faulty.status(404, b"no such page"), "answered 404; something else may be running"),
            (faulty.status(405), "answered 405"),
            (faulty.status(307, Location="https://there/retrieve"), "redirects to https://there/retrieve"),
            (faulty.status(302), "redirects to nowhere"),
        ],
    )
    def test_a_server_that_turns_every_request_away_is_down_at_once(self, fault: Fault, said: str) -> None:
        with serving(Echo(), faulty.always(fault)) as server, client(server, deadline=60) as remote:
            with pytest.raises(RetrieverDown, match=said):
                ask(remote, "a")
            assert len(server.bodies) == 1

    @pytest.mark.parametrize("name", ["500", "html", "a reset", "too few results"])
    def test_a_request_that_fails_where_others_do_not_is_at_fault(self, name: str) -> None:
        with serving(Echo()) as server, client(server, deadline=20) as remote:
            server.faults = lambda number: PASSING[name] if "poison" in server.bodies[number]["queries"] else None
            with pytest.raises(RetrieverError, match="answers other requests, and not this one in 5 tries") as caught:
                ask(remote, "a", "poison")
            assert not isinstance(caught.value, RetrieverDown)
            assert ask(remote, "a") == [["a"]]

    def test_so_is_one_that_takes_longer_than_the_deadline(self) -> None:
        with serving(Echo()) as server, client(server, deadline=1) as remote:
            late = faulty.delay(60)
            server.faults = lambda number: late if "poison" in server.bodies[number]["queries"] else None
            started = time.perf_counter()
            with pytest.raises(RetrieverError, match="answers other requests") as caught:
                ask(remote, "a", "poison")
            assert not isinstance(caught.value, RetrieverDown)
            assert time.perf_counter() - started < 2


class TestReplicas:
    def test_searches_are_spread_over_them(self) -> None:
        with serving(Echo()) as one, serving(Echo()) as two, client(one, two, batch=1) as remote:
            ask(remote, *(str(number) for number in range(20)))
            assert len(one.bodies) == len(two.bodies) == 10

    def test_another_one_answers_for_one_that_fails_without_a_pause(self) -> None:
        with serving(Echo(), faulty.always(faulty.status(500))) as one, serving(Echo()) as two:
            with client(one, two, pause=60, longest_pause=60, rest=60) as remote:
                for number in range(10):
                    assert ask(remote, str(number)) == [[str(number)]]
                assert remote.counters["failovers"] == 1
                assert remote.counters["retries"] == 0
            assert len(one.bodies) == 1  # it rests

    def test_another_one_answers_for_one_that_is_stuck(self) -> None:
        with (
            serving(Echo(), faulty.always(faulty.delay(60))) as one,
            serving(Echo()) as two,
            client(one, two, deadline=1) as remote,
        ):
            for number in range(4):
                assert ask(remote, str(number)) == [[str(number)]]

    def test_one_that_turns_requests_away_is_left_for_another(self) -> None:
        with (
            serving(Echo(), faulty.always(faulty.status(404))) as one,
            serving(Echo()) as two,
            client(one, two) as remote,
        ):
            assert [ask(remote, str(number)) for number in range(4)] == [[[str(number)]] for number in range(4)]

    def test_one_that_is_busy_is_left_for_another(self) -> None:
        busy = faulty.always(faulty.status(503, Retry_After="60"))
        with serving(Echo(), busy) as one, serving(Echo()) as two, client(one, two) as remote:
            for number in range(6):
                assert ask(remote, str(number)) == [[str(number)]]
            assert len(one.bodies) == 1

    def test_one_that_works_again_is_tested_first_and_then_used(self) -> None:
        with (
            serving(Echo(), at({0: faulty.reset, 1: faulty.reset})) as one,
            serving(Echo()) as two,
            client(one, two, deadline=20) as remote,
        ):
            number = 0
            while len(one.bodies) < 4:
                number += 1
                assert ask(remote, str(number)) == [[str(number)]]
                time.sleep(0.002)
        # a search that failed, a test that failed, one that did not, and then a search
        assert [body["queries"] == ["test"] for body in one.bodies[:4]] == [False, True, True, False]

    def test_when_all_have_failed_the_one_that_is_due_first_is_tried(self) -> None:
        with (
            serving(Echo(), at({0: faulty.reset})) as one,
            serving(Echo(), faulty.always(faulty.reset)) as two,
            client(one, two, rest=60, deadline=20) as remote,
        ):
            assert ask(remote, "a") == [["a"]]

    def test_when_all_are_down_each_is_named(self) -> None:
        servers = [FaultyServer(Echo()).start() for _ in range(2)]
        for server in servers:
            server.stop()
        with client(*servers, deadline=0.1) as remote, pytest.raises(RetrieverDown) as caught:
            ask(remote, "a")
        assert all(server.url in str(caught.value) for server in servers)

    def test_when_all_turn_requests_away_the_client_does_not_go_on(self) -> None:
        away = faulty.always(faulty.status(401))
        with serving(Echo(), away) as one, serving(Echo(), away) as two, client(one, two, deadline=60) as remote:
            with pytest.raises(RetrieverDown, match="answered 401"):
                ask(remote, "a")
            assert len(one.bodies) == len(two.bodies) == 1


class TestIdentity:
    def test_is_what_the_server_says(self) -> None:
        with serving(Echo(), identity="d1ce") as server, client(server) as remote:
            assert remote.identity == "d1ce"

    def test_is_none_for_a_server_that_says_none(self) -> None:
        with serving(Echo(), identity=None) as server, client(server) as remote:
            assert remote.identity is None

    @pytest.mark.parametrize("page", [b"<html>", b'"ok"', b'{"identity": 3}', b'{"identity": ""}'])
    def test_is_none_where_health_is_something_else(self, page: bytes) -> None:
        with serving(Echo()) as server, client(server, deadline=20) as remote:
            server.health_faults = [faulty.body(page)] * 99
            assert remote.identity is None

    def test_is_asked_again_after_a_fault(self) -> None:
        faults = [faulty.html, faulty.reset, faulty.status(500)]
        with serving(Echo()) as server, client(server, deadline=20) as remote:
            server.health_faults = faults
            assert remote.identity == "abc"
            assert server.health_requests == 4

    def test_of_servers_that_do_not_serve_one_index_there_is_none(self) -> None:
        with serving(Echo(), identity="a1") as one, serving(Echo(), identity=None) as two, client(one, two) as remote:
            with pytest.raises(RetrieverDown, match="do not serve one index") as caught:
                remote.identity  # noqa: B018
            assert f"{one.url}: a1, {two.url}: unknown" in str(caught.value)

    def test_one_that_is_down_does_not_count(self) -> None:
        gone = FaultyServer(Echo(), identity="b2").start()
        gone.stop()
        with serving(Echo(), identity="a1") as server, client(server, gone, deadline=0.5) as remote:
            assert remote.identity == "a1"

    def test_without_a_server_it_cannot_be_told(self) -> None:
        gone = FaultyServer(Echo()).start()
        gone.stop()
        with client(gone, deadline=0.1) as remote, pytest.raises(RetrieverDown):
            remote.identity  # noqa: B018


class TestSettings:
    @pytest.mark.parametrize("end", ["", "/", "/retrieve", "/retrieve/"])
    def test_a_url_is_taken_with_and_without_its_path(self, end: str) -> None:
        with serving(Echo()) as server, RemoteRetriever(f" {server.url}{end} ") as remote:
            assert ask(remote, "a") == [["a"]]

    def test_several_urls_may_stand_in_one_text(self) -> None:
        with serving(Echo()) as one, serving(Echo()) as two:
            with RemoteRetriever(f"{one.url}, {two.url}/retrieve,{one.url}", batch=1) as remote:
                ask(remote, "a", "b")
            assert len(one.bodies) == len(two.bodies) == 1

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("127.0.0.1:8000", "must begin with http:// or https://, as http://127.0.0.1:8000"),
            ("ftp://host", "must begin with http:// or https://, as http://127.0.0.1:8000"),
            ("", "must begin with http"),
            ("http://a,", "must begin with http"),
            ("http://", "must begin with http"),
            ("http://host:port", "no URL"),
            ("http://host/?k=1", "leave out what stands behind"),
        ],
    )
    def test_what_is_no_url_is_refused(self, url: str, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            RemoteRetriever(url)

    def test_so_are_settings_that_make_no_sense(self) -> None:
        for settings in ({"deadline": 0}, {"connections": 0}, {"batch": 0}, {"token": "a b"}, {"token": "a\n"}):
            with pytest.raises(ConfigError):
                RemoteRetriever("http://127.0.0.1", **settings)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no URL"):
            RemoteRetriever([])

    def test_a_password_in_a_url_is_not_shown(self) -> None:
        with (
            RemoteRetriever("http://me:pass@127.0.0.1:1", deadline=0.05, pause=0.01) as remote,
            pytest.raises(RetrieverDown, match=r"from http://127\.0\.0\.1:1 ") as caught,
        ):
            ask(remote, "a")
        assert "pass" not in str(caught.value)


def test_pauses_are_drawn_below_a_bound_that_doubles_up_to_the_longest() -> None:
    draws = random.Random(0)
    for rounds, bound in ((0, 1.0), (1, 2.0), (2, 4.0), (3, 5.0), (10_000, 5.0)):
        drawn = [back_off(rounds, 1.0, 5.0, draws) for _ in range(200)]
        assert 0 <= min(drawn) < 0.2 * bound
        assert 0.8 * bound < max(drawn) <= bound


def test_what_a_server_says_is_one_short_line() -> None:
    assert shorten("a\x00\x1b[1m\r\n\tb " + "c" * 300) == "a [1m b " + "c" * 192 + "..."
