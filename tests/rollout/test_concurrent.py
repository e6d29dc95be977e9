"""The driver for policies that are asked one turn at a time: the same as the simple one, and errors end it."""

from __future__ import annotations

from threading import Barrier, current_thread, main_thread

import pytest

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Completion, Generate, Search
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Passage, Question
from mrsearch.errors import ModelError, Outage
from mrsearch.rollout.concurrent import ConcurrentDriver
from mrsearch.rollout.driver import SimpleDriver
from plain_codec import CompletionPolicy, PassageBook, PlainCodec, write

PROMPTS = Prompts(question="{question}\n", reflection="Again.\n", last_call="")
PLAN = Plan(episodes=2, searches=1)
TOWER = Passage("7", "Tower", "It is in Paris.")


def metas(codec: PlainCodec, count: int) -> list[MetaEpisode]:
    return [
        MetaEpisode(Question(str(n), f"q {n}", ("Paris",)), PLAN, codec, PROMPTS, group=n, seed=(1, 2))
        for n in range(count)
    ]


def turn(codec: PlainCodec, request: Generate) -> Completion:
    text = codec.decode(request.ids)
    episode = text.rpartition("Again.")[2]
    if "<information>" not in episode:
        return write(codec, f"<search>tower {request.window[0] % 3}</search>")
    return write(codec, f"<answer>{request.seed % 5}</answer>")


def test_it_gives_the_trajectories_of_the_simple_driver() -> None:
    codec = PlainCodec(PROMPTS)
    codec.encode("tower 0 1 2 3 4 5 6 7 8 9 <search></search><answer></answer>")
    found = {f"tower {n}": [TOWER] * n for n in range(3)}
    played = []
    for driver in (SimpleDriver, ConcurrentDriver):
        machines = metas(codec, 12)
        policy = CompletionPolicy(lambda request: turn(codec, request))
        driver(policy, PassageBook(found)).play(machines)
        played.append([machine.trajectory() for machine in machines])
    assert played[0] == played[1]


def test_searches_that_wait_together_go_in_one_call_from_one_thread() -> None:
    codec = PlainCodec(PROMPTS)
    together = Barrier(4)
    threads = set()

    class Book(PassageBook):
        def search(self, requests: list[Search]) -> list[list[Passage]]:  # type: ignore[override]
            threads.add(current_thread())
            return super().search(requests)

    def write_together(request: Generate) -> Completion:
        if "<information>" not in codec.decode(request.ids):
            together.wait(timeout=10)
        return turn(codec, request)

    book = Book({})
    ConcurrentDriver(CompletionPolicy(write_together), book, rows=4).play(metas(codec, 4))
    assert sum(map(len, book.calls)) == 8
    assert len(threads) == 1
    assert main_thread() not in threads


def test_a_search_without_an_answer_ends_its_own_machine_alone() -> None:
    codec = PlainCodec(PROMPTS)
    machines = metas(codec, 3)
    policy = CompletionPolicy(lambda request: turn(codec, request))
    ConcurrentDriver(policy, PassageBook({}, broken=["tower 1"])).play(machines)
    ends = [machine.trajectory().finish_reason for machine in machines]
    assert ends == ["complete", "retrieval_failed", "complete"]


@pytest.mark.parametrize("error", [ModelError("gone"), Outage("down")])
def test_an_error_of_the_policy_or_an_outage_ends_all(error: Exception) -> None:
    codec = PlainCodec(PROMPTS)

    class Down(PassageBook):
        def search(self, requests: list[Search]) -> list[list[Passage]]:  # type: ignore[override]
            raise error

    def fail(request: Generate) -> Completion:
        raise error

    retriever = Down({}) if isinstance(error, Outage) else PassageBook({})
    write_turn = fail if isinstance(error, ModelError) else lambda request: turn(codec, request)
    with pytest.raises(type(error), match=str(error)):
        ConcurrentDriver(CompletionPolicy(write_turn), retriever, rows=2).play(metas(codec, 5))
