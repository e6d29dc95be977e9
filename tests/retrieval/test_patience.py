"""What is done in an outage: waiting, with a word now and then; failing; stopping."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import MrsearchError, Outage, RetrieverDown, RetrieverError
from mrsearch.retrieval.patience import LONGEST_NAP_S, OutagePolicy, PatientRetriever

FOUND = Passage("1", "", "found")


class Failing:
    """Raises these errors, one a call, and then finds the same passage for everything."""

    def __init__(self, *errors: MrsearchError) -> None:
        self.errors = list(errors)
        self.calls = 0

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return [[FOUND] for _ in requests]


class Lab:
    """A patient retriever whose clock goes on only while it sleeps."""

    def __init__(self, policy: OutagePolicy, *errors: MrsearchError, cancelled_at: float = 1e9) -> None:
        self.now = 0.0
        self.naps: list[float] = []
        self.said: list[tuple[float, str]] = []
        self.inner = Failing(*errors)
        self.patient = PatientRetriever(
            self.inner,
            policy,
            report=lambda line: self.said.append((self.now, line)),
            cancelled=lambda: self.now >= cancelled_at,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    def ask(self) -> list[list[Passage]]:
        return self.patient.search([Search("a", 1)])


DOWN = RetrieverDown("no answer from http://a")


class TestWait:
    def test_waits_until_there_is_an_answer(self) -> None:
        lab = Lab("wait", DOWN, DOWN, DOWN)
        assert lab.ask() == [[FOUND]]
        assert lab.now == 1 + 2 + 4  # pauses double
        assert (lab.patient.outages, lab.patient.waited_s) == (1, 7)

    def test_says_for_what_and_when_it_is_over(self) -> None:
        lab = Lab("wait", DOWN, DOWN)
        lab.ask()
        assert lab.said == [
            (0, "waiting for the retriever: no answer from http://a"),
            (3, "the retriever answers again after 3 s"),
        ]

    def test_says_so_again_ever_more_rarely(self) -> None:
        lab = Lab("wait", *[DOWN] * 200)
        lab.ask()
        times = [time for time, _ in lab.said[:-1]]
        # Tries after 1, 3, 7, 15 and 31 s and then every 30 s. After a minute, and then when the wait has doubled: the
        # first try at 122 s or later, at 302, at 662, and after that every ten minutes.
        assert times[:5] == [0, 61, 151, 331, 691]
        assert {later - earlier for earlier, later in pairwise(times[4:])} == {600}
        assert lab.said[1][1] == "waiting for the retriever for 1 min: no answer from http://a"
        assert lab.said[-1][1].startswith("the retriever answers again after 1 h 3")

    def test_pauses_grow_to_half_a_minute_and_can_be_ended_soon(self) -> None:
        lab = Lab("wait", *[DOWN] * 10)
        lab.ask()
        assert lab.now == 1 + 2 + 4 + 8 + 16 + 5 * 30
        assert max(lab.naps) == LONGEST_NAP_S

    def test_is_given_up_when_the_user_says_so(self) -> None:
        lab = Lab("wait", *[DOWN] * 9, cancelled_at=5)
        with pytest.raises(Outage, match="gave up waiting for the retriever: no answer from http://a"):
            lab.ask()
        assert lab.now == 5

    def test_can_be_interrupted(self) -> None:
        lab = Lab("wait", *[DOWN] * 9)

        def interrupt(seconds: float) -> None:
            raise KeyboardInterrupt

        patient = PatientRetriever(lab.inner, "wait", report=lambda line: None, sleep=interrupt)
        with pytest.raises(KeyboardInterrupt):
            patient.search([Search("a", 1)])

    def test_a_second_outage_is_told_as_the_first_was(self) -> None:
        lab = Lab("wait", DOWN)
        lab.ask()
        lab.inner.errors = [DOWN]
        lab.ask()
        assert [line.split()[0] for _, line in lab.said] == ["waiting", "the", "waiting", "the"]
        assert lab.patient.outages == 2

    def test_an_error_of_a_search_ends_the_outage_too(self) -> None:
        lab = Lab("wait", DOWN, RetrieverError("too long a query"))
        with pytest.raises(RetrieverError, match="too long"):
            lab.ask()
        assert lab.said[-1][1] == "the retriever answers again after 1 s"

    def test_threads_that_wait_for_one_server_tell_it_once(self) -> None:
        waiting: set[str] = set()

        class BackWhenAllWait:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                if len(waiting) < 4:
                    waiting.add(requests[0].query)
                    raise DOWN
                return [[FOUND] for _ in requests]

        said: list[str] = []
        patient = PatientRetriever(BackWhenAllWait(), "wait", report=said.append, pause=0.001)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda query: patient.search([Search(query, 1)]), "abcd"))
        assert found == [[[FOUND]]] * 4
        assert [line.split()[0] for line in said] == ["waiting", "the"]


class TestOtherPolicies:
    def test_fail_lets_the_error_pass(self) -> None:
        lab = Lab("fail", DOWN)
        with pytest.raises(RetrieverDown):
            lab.ask()
        assert lab.ask() == [[FOUND]]
        assert (lab.naps, lab.said) == ([], [])

    def test_stop_ends_the_run(self) -> None:
        lab = Lab("stop", DOWN)
        with pytest.raises(Outage, match="no answer from http://a") as caught:
            lab.ask()
        assert not isinstance(caught.value, RetrieverError)  # which a driver would take for a failed search
        assert lab.naps == []

    @pytest.mark.parametrize("policy", ["wait", "fail", "stop"])
    def test_an_error_that_is_no_outage_passes_under_each(self, policy: OutagePolicy) -> None:
        lab = Lab(policy, RetrieverError("no"))
        with pytest.raises(RetrieverError, match="no"):
            lab.ask()
        assert lab.inner.calls == 1
