"""Batches of searches: what goes together, who waits, and that a failing search fails alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import RetrieverDown, RetrieverError
from mrsearch.retrieval.batching import Batcher, Outcome, QueueFull, carry_out


class Gated:
    """Finds one passage that says the query, once its gate is open; remembers what each call asked."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.calls: list[list[str]] = []
        self.called = Event()
        self.gate = Event()
        if is_open:
            self.gate.set()

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append([request.query for request in requests])
        self.called.set()
        assert self.gate.wait(10)
        return [[Passage("1", "", request.query)] for request in requests]


class Panic(BaseException):
    """What a library in another language may raise."""


class Moody:
    """Fails on queries that name an error; remembers what each call asked."""

    errors: dict[str, BaseException] = {  # noqa: RUF012
        "bad": RetrieverError("no such word"),
        "bug": KeyError("row"),
        "panic": Panic("index out of bounds"),
        "gone": RetrieverDown("no reply"),
        "disk": OSError("input/output error"),
    }

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append([request.query for request in requests])
        for request in requests:
            if request.query in self.errors:
                raise self.errors[request.query]
        return [[Passage("1", "", request.query)] for request in requests]


def searches(*queries: str) -> list[Search]:
    return [Search(query, 1) for query in queries]


def told(outcomes: Sequence[Outcome]) -> list[str]:
    """The texts that were found, or the errors."""
    return [str(outcome) if isinstance(outcome, RetrieverError) else outcome[0].text for outcome in outcomes]


async def started(gated: Gated) -> None:
    """Wait until the retriever is at work."""
    assert await asyncio.to_thread(gated.called.wait, 10)
    gated.called.clear()


def test_a_search_that_comes_alone_goes_at_once_and_the_rest_goes_together() -> None:
    async def run() -> None:
        gated = Gated(is_open=False)
        batcher = Batcher(gated)
        first = batcher.submit(searches("a"))
        await started(gated)
        others = [batcher.submit(searches(*queries)) for queries in ("bc", "d", "ef")]
        await asyncio.sleep(0)
        assert batcher.waiting == 5
        gated.gate.set()
        assert told(await first) == ["a"]
        assert [told(await other) for other in others] == [["b", "c"], ["d"], ["e", "f"]]
        assert gated.calls == [["a"], ["b", "c", "d", "e", "f"]]
        assert batcher.waiting == 0
        batcher.close()

    asyncio.run(run())


def test_a_batch_holds_no_more_than_it_may_and_requests_are_split_for_that() -> None:
    async def run() -> None:
        gated, sizes = Gated(), []
        batcher = Batcher(gated, batch=3, on_batch=lambda size, seconds: sizes.append((size, seconds >= 0)))
        found = await asyncio.gather(*(batcher.submit(searches(*queries)) for queries in ("abcde", "fg")))
        assert [told(outcomes) for outcomes in found] == [["a", "b", "c", "d", "e"], ["f", "g"]]
        assert gated.calls == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
        assert sizes == [(3, True), (3, True), (1, True)]
        batcher.close()

    asyncio.run(run())


def test_few_searches_do_not_wait_until_many_are_done() -> None:
    async def run() -> None:
        gated = Gated()
        batcher = Batcher(gated, batch=2)
        found = await asyncio.gather(batcher.submit(searches(*"abcdef")), batcher.submit(searches(*"gh")))
        assert [told(outcomes) for outcomes in found] == [[*"abcdef"], [*"gh"]]
        assert gated.calls == [["a", "b"], ["c", "d"], ["g", "h"], ["e", "f"]]
        batcher.close()

    asyncio.run(run())


def test_equal_searches_in_a_batch_are_carried_out_once() -> None:
    moody = Moody()
    assert told(carry_out(moody, searches("a", "b", "a"))) == ["a", "b", "a"]
    assert moody.calls == [["a", "b"]]
    assert [len(outcome) for outcome in carry_out(moody, [Search("a", 1), Search("a", 2)])] == [1, 1]  # type: ignore[arg-type]
    assert moody.calls[1:] == [["a", "a"]]


def test_no_searches_need_no_call() -> None:
    gated = Gated(is_open=False)

    async def run() -> None:
        assert await Batcher(gated).submit([]) == []

    asyncio.run(run())
    assert gated.calls == []


def test_what_comes_when_the_queue_is_full_has_to_come_back() -> None:
    async def run() -> None:
        gated = Gated(is_open=False)
        batcher = Batcher(gated, queue=3)
        running = batcher.submit(searches("a"))
        await started(gated)
        waiting = batcher.submit(searches("b", "c"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match=r"^2 searches are waiting, .* try again in 1 s$") as caught:
            batcher.submit(searches("d", "e"))
        assert caught.value.retry_after == 1
        last = batcher.submit(searches("f"))  # there is room for one
        gated.gate.set()
        assert [told(await task) for task in (running, waiting, last)] == [["a"], ["b", "c"], ["f"]]
        # Alone, a request may be larger than the queue: it would never be taken in otherwise.
        assert told(await batcher.submit(searches(*"ghijk"))) == [*"ghijk"]
        batcher.close()

    asyncio.run(run())


def test_a_caller_that_leaves_takes_its_waiting_searches_along() -> None:
    async def run() -> None:
        gated = Gated(is_open=False)
        batcher = Batcher(gated, batch=2)
        first = batcher.submit(searches("a", "b", "c"))  # c waits
        await started(gated)
        second = batcher.submit(searches("d"))
        await asyncio.sleep(0)
        assert batcher.waiting == 2
        first.cancel()
        await asyncio.wait([first])
        assert batcher.waiting == 1
        gated.gate.set()
        assert told(await second) == ["d"]
        assert gated.calls == [["a", "b"], ["d"]]
        batcher.close()

    asyncio.run(run())


def test_a_search_that_fails_leaves_the_others_alone() -> None:
    moody = Moody()
    assert told(carry_out(moody, searches("a", "bad", "b"))) == ["a", "no such word", "b"]
    assert moody.calls == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


def test_a_search_that_fails_alone_is_not_tried_twice() -> None:
    moody = Moody()
    assert told(carry_out(moody, searches("bad", "bad"))) == ["no such word"] * 2
    assert moody.calls == [["bad"]]


@pytest.mark.parametrize("query", ["bug", "panic"])
def test_a_bug_or_a_panic_is_an_error_of_its_search_and_goes_to_the_log(
    query: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = told(carry_out(Moody(), searches("a", query)))
    assert found[0] == "a"
    assert found[1].startswith("the retriever failed (")
    assert type(Moody.errors[query]).__name__ in found[1]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2  # together, and then alone


def test_nobody_is_asked_one_by_one_when_nobody_answers() -> None:
    moody = Moody()
    assert told(carry_out(moody, searches("gone", "a", "b"))) == ["no reply"] * 3
    assert moody.calls == [["gone", "a", "b"]]
    assert told(carry_out(moody, searches("a", "bad", "gone", "b"))) == ["a", "no such word", "no reply", "no reply"]
    assert moody.calls[1:] == [["a", "bad", "gone", "b"], ["a"], ["bad"], ["gone"]]


def test_a_machine_that_fails_is_down() -> None:
    (outcome,) = carry_out(Moody(), searches("disk"))
    assert isinstance(outcome, RetrieverDown)
    assert str(outcome) == "the retriever failed (OSError: input/output error)"


class Answers:
    """Answers everything with the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        found: list[list[Passage]] = self.answer
        return found


def test_what_is_no_answer_is_noticed() -> None:
    few = "the retriever gave 0 lists of passages for 1 searches"
    assert told(carry_out(Answers([]), searches("a", "b"))) == [few] * 2
    (nothing,) = told(carry_out(Answers(None), searches("a")))
    assert nothing.startswith("the retriever failed (TypeError: ")


def test_a_failure_is_handed_out_like_any_outcome() -> None:
    async def run() -> None:
        batcher = Batcher(Moody())
        assert told(await batcher.submit(searches("a", "bad"))) == ["a", "no such word"]
        assert told(await batcher.submit(searches("b"))) == ["b"]
        batcher.close()

    asyncio.run(run())


def test_the_thread_ends_when_the_batcher_is_closed() -> None:
    async def run() -> None:
        batcher = Batcher(Gated())
        batcher.close()  # nothing was started
        await batcher.submit(searches("a"))
        thread = batcher._thread
        batcher.close()
        assert thread is not None
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()

    asyncio.run(run())
