"""What a run does when its retriever is down: wait for it, fail these searches, or stop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Literal

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import Outage, RetrieverDown, RetrieverError
from mrsearch.transport import Refused

OutagePolicy = Literal["wait", "fail", "stop"]

FIRST_REPORT_S = 60.0
"""Seconds of an outage after which it is reported again; then after twice as many, and so on."""

LONGEST_SILENCE_S = 600.0
"""Seconds between two reports of one outage, at most."""

LONGEST_NAP_S = 0.5
"""Seconds after which a waiting thread looks whether it is to give up."""


class PatientRetriever:
    """A retriever that does in an outage what the settings say. For use from many threads.

    wait: tells `report` what it waits for, at growing intervals, and tries again
    until there is an answer; when `cancelled` says so, it raises `Outage` instead.
    A server that turns away the very first request is not waited for.
    fail: lets `RetrieverDown` pass, so that these searches have no answer.
    stop: raises `Outage`, which ends the run.

    An outage is a `RetrieverDown`; every other error passes. `outages` counts them,
    and `waited_s` the seconds from their beginning to their end.
    """

    def __init__(
        self,
        inner: Retriever,
        policy: OutagePolicy,
        *,
        report: Callable[[str], None],
        cancelled: Callable[[], bool] = lambda: False,
        pause: float = 1.0,
        longest_pause: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self.outages = 0
        self.waited_s = 0.0
        self._policy = policy
        self._report = report
        self._cancelled = cancelled
        self._pause, self._longest_pause = pause, longest_pause
        self._clock, self._sleep = clock, sleep
        self._lock = Lock()
        self._answered = False
        self._since: float | None = None
        self._next_report = 0.0

    @property
    def counters(self) -> Counter[str]:
        """Outages so far, and the whole seconds of those that are over."""
        return Counter(outages=self.outages, outage_s=round(self.waited_s))

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Passages for each request, as soon as there are any."""
        pause = self._pause
        while True:
            try:
                found = self.inner.search(requests)
            except RetrieverDown as error:
                if self._policy == "fail":
                    raise
                if self._policy == "stop" or (isinstance(error, Refused) and not self._answered):
                    # A server that turns away the first request of all is one that the settings do not fit.
                    raise Outage(str(error)) from error
                self._tell(error)
                self._wait(pause, error)
                pause = min(2 * pause, self._longest_pause)
            except RetrieverError:
                self._back()  # somebody answers, if only that these searches are wrong
                raise
            else:
                self._answered = True
                self._back()
                return found

    def _tell(self, error: RetrieverDown) -> None:
        """Report the outage, if it is new or the time has come; threads that wait for one thing report it once."""
        with self._lock:
            now = self._clock()
            if self._since is None:
                self.outages += 1
                self._since, self._next_report = now, now + FIRST_REPORT_S
                self._report(f"waiting for the retriever: {error}")
            elif now >= self._next_report:
                waited = now - self._since
                self._next_report = now + min(max(waited, FIRST_REPORT_S), LONGEST_SILENCE_S)
                self._report(f"waiting for the retriever for {_duration(waited)}: {error}")

    def _back(self) -> None:
        if self._since is None:  # without the lock, in the usual case
            return
        with self._lock:
            if self._since is not None:
                waited = self._clock() - self._since
                self.waited_s += waited
                self._since = None
                self._report(f"the retriever answers again after {_duration(waited)}")

    def _wait(self, seconds: float, error: RetrieverDown) -> None:
        until = self._clock() + seconds
        while True:
            if self._cancelled():
                raise Outage(f"gave up waiting for the retriever: {error}") from error
            left = until - self._clock()
            if left <= 0:
                return
            self._sleep(min(left, LONGEST_NAP_S))


def _duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> _duration(7.4), _duration(125), _duration(7500)
    ('7 s', '2 min', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
