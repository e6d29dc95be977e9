"""Requests that outlast faults: one deadline over all tries, growing pauses between them, several equal servers.

What may pass (nobody there, no answer in time, a broken or unusable answer, a
server that is too busy or has an error) is tried again, on another server
where there is one. What will not pass is said at once. A server that fails a
request again and again is asked something plain: if it answers that, the
request is at fault and not the server. Knows nothing of passages.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from threading import Lock, Thread
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import httpx

from mrsearch import __version__
from mrsearch.errors import ConfigError, RetrieverDown, RetrieverError

T = TypeVar("T")

CONNECT_S = 5.0
"""Seconds that opening a connection may take, at most."""

KEEP_ALIVE_S = 4.0
"""Seconds that an idle connection is kept: less than servers keep one, so that none is closed under a request."""

LONGEST_REST_S = 60.0
"""A server that fails rests for a second, then two, then four, and never longer than this."""

SUSPECT_AFTER = 5
"""Failures of a request after which the server is asked something plain, to know which of the two is at fault."""

LARGEST_ANSWER = 2**28
"""Bytes of an answer; one that goes on beyond is given up."""

LONGEST_CAUSE = 200
"""Characters of what a server says that are shown in an error."""

_ABOUT_THE_REQUEST = {400, 411, 413, 414, 415, 422, 431}
_BUSY = {408, 425, 429, 503}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Ask(Generic[T]):
    """A request, and how the body of its answer is read: `read` raises `RetrieverError` where it cannot be used."""

    method: str
    path: str
    read: Callable[[bytes], T]
    content: bytes | None = None
    params: Mapping[str, str] | None = None


class Refused(RetrieverDown):
    """Every server turns requests away (a redirect, 401, 404): it will go on so until somebody changes something."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Transport:
    """Sends requests to one of several equal servers, from any number of threads.

    The work is done on an event loop in a thread of its own, so that a deadline
    holds whatever a server does, byte by byte if need be. The thread starts at
    the first use, after `close`, and in a forked process, which opens
    connections of its own. Proxies are those of the environment, except for
    this machine's own addresses.

    `counters` has `requests` (tries included), `retries`, `failovers`; `waited_s` the
    seconds spent in pauses; `breaks` how often contact was lost or new (a connection
    was opened, a proxy had no server): another server may be there since.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        plain: Ask[Any],
        hint: str,
        token: str = "",
        deadline: float = 30.0,
        connections: int = 8,
        pause: float = 0.25,
        longest_pause: float = 8.0,
        rest: float = 1.0,
        suspect_after: int = SUSPECT_AFTER,
        random: Random | None = None,
    ) -> None:
        if not deadline > 0:
            raise ConfigError(f"the deadline of a call is {deadline} s; it must be more than 0")
        if connections < 1:
            raise ConfigError(f"the number of connections is {connections}; it must be 1 or more")
        if not re.fullmatch(r"[\x21-\x7e]*", token):
            raise ConfigError("the token for the server holds spaces or signs beyond ASCII, which no server takes")
        self.urls = tuple(urls)
        # All names from the start, since other threads read this while it changes.
        self.counters: Counter[str] = Counter(requests=0, retries=0, failovers=0)
        self.waited_s = 0.0
        self.breaks = 0
        self._plain = plain
        self._hint = hint
        self._headers = {"User-Agent": f"mrsearch/{__version__}", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._deadline = deadline
        self._connections = connections
        self._pause, self._longest_pause, self._rest = pause, longest_pause, rest
        self._suspect_after = suspect_after
        self._random = random or Random()
        self._replicas = [_Replica(url) for url in self.urls]
        self._lock = Lock()
        self._live: _Live | None = None

    def call(self, asks: Sequence[Ask[T]]) -> list[T]:
        """The answers to some requests, which are sent at once and share a deadline; the first that fails ends all."""
        return self._run(lambda live: self._all(live, asks))

    def call_each(self, ask: Ask[T]) -> dict[str, T | RetrieverError]:
        """What each server for itself answers to a request."""
        return self._run(lambda live: self._each(live, ask))

    def close(self) -> None:
        """Close the connections; calls that are under way fail."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None and live.process == os.getpid():
            live.close()

    def _run(self, work: Callable[[_Live], Coroutine[Any, Any, T]]) -> T:
        live = self._running()
        future = asyncio.run_coroutine_threadsafe(work(live), live.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RetrieverError("the connections were closed during a call") from None
        finally:
            future.cancel()  # a caller that is interrupted leaves nothing running

    def _running(self) -> _Live:
        if self._live is not None and self._live.process != os.getpid():
            # A fork copies neither the thread nor who holds the lock, and the connections are the parent's.
            self._live, self._lock = None, Lock()
            self._replicas = [_Replica(url) for url in self.urls]
        with self._lock:
            if self._live is None:
                self._live = _Live(self._connections, self._headers)
            return self._live

    async def _all(self, live: _Live, asks: Sequence[Ask[T]]) -> list[T]:
        until = live.loop.time() + self._deadline
        tasks = [asyncio.create_task(self._send(live, ask, until, self._replicas)) for ask in asks]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _each(self, live: _Live, ask: Ask[T]) -> dict[str, T | RetrieverError]:
        async def one(replica: _Replica) -> T | RetrieverError:
            try:
                return await self._send(live, ask, until, [replica])
            except RetrieverError as error:
                return error

        until = live.loop.time() + self._deadline
        answers = await asyncio.gather(*(one(replica) for replica in self._replicas))
        return {replica.url: answer for replica, answer in zip(self._replicas, answers, strict=True)}

    async def _send(self, live: _Live, ask: Ask[T], until: float, replicas: Sequence[_Replica]) -> T:
        """Try until there is an answer, the request turns out to be at fault, or time is up."""
        now = live.loop.time
        started = now()
        # The last tenth is for finding out what is at fault.
        last_try = until - self._deadline / 10
        tries = rounds = suspicious = 0
        tried: set[_Replica] = set()
        refused: set[_Replica] = set()
        told: _Failure | None = None
        while True:
            replica = self._choose(live, replicas, tried)
            tries += 1
            try:
                answer = await self._try(live, ask, replica, last_try)
            except _Failure as error:
                failure = error
            else:
                replica.works()
                return answer
            if failure.final:
                raise RetrieverError(f"{replica.shown}{ask.path} {failure}")
            replica.failed(now(), self._rest, failure)
            self.breaks += failure.status in (502, 503, 504)
            tried.add(replica)
            if failure.refused:
                refused.add(replica)
                if len(refused) == len(replicas):
                    raise Refused(f"{replica.shown}{ask.path} {failure}", failure.status)
            if told is None or not failure.brief:
                told = failure
            suspicious += failure.suspicious
            if failure.suspicious and suspicious % self._suspect_after == 0:
                await self._blame(live, ask, replica, tries, failure, until)
            if any(other.free(now()) for other in replicas if other not in tried):
                self.counters["failovers"] += 1
                continue
            pause = back_off(rounds, self._pause, self._longest_pause, self._random) + failure.retry_after
            if now() + pause >= last_try:
                if failure.suspicious:
                    await self._blame(live, ask, replica, tries, failure, until)
                where = ", ".join(replica.shown for replica in replicas)
                raise RetrieverDown(
                    f"no answer from {where} after {tries} {'try' if tries == 1 else 'tries'} in "
                    f"{now() - started:.1f} s (the last: {told}); {self._hint}"
                )
            rounds += 1
            self.counters["retries"] += 1
            self.waited_s += pause
            tried = set(refused)
            await asyncio.sleep(pause)

    def _choose(self, live: _Live, replicas: Sequence[_Replica], tried: set[_Replica]) -> _Replica:
        """The least busy server of those that work, or else the one that has to rest the least."""
        now = live.loop.time()
        left = [replica for replica in replicas if replica not in tried]
        free = [replica for replica in left if replica.free(now)]
        if not free:
            return min(left, key=lambda replica: replica.rests_until)
        for replica in left:
            if replica.failures and replica.rests_until <= now and not replica.probed:
                replica.probed = True
                live.start(self._probe(live, replica))
        return min(free, key=lambda replica: (replica.running, replica.served))

    async def _probe(self, live: _Live, replica: _Replica) -> None:
        """Let a server that failed show that it works again, before it gets what matters."""
        try:
            await self._try(live, self._plain, replica, live.loop.time() + CONNECT_S)
        except _Failure as failure:
            replica.failed(live.loop.time(), self._rest, failure)
        else:
            replica.works()
        finally:
            replica.probed = False

    async def _blame(
        self, live: _Live, ask: Ask[T], replica: _Replica, tries: int, failure: _Failure, until: float
    ) -> None:
        """Raise `RetrieverError` if the server answers something plain: then it is the request that it cannot take."""
        with suppress(_Failure):
            await self._try(live, self._plain, replica, until)
            replica.works()
            raise RetrieverError(
                f"{replica.shown}{ask.path} answers other requests, and not this one in {tries} tries "
                f"(the last: {failure})"
            )

    async def _try(self, live: _Live, ask: Ask[T], replica: _Replica, until: float) -> T:
        """One exchange with one server, as soon as a connection is free; whatever goes wrong is a `_Failure`."""
        replica.running += 1  # from here on, so that those that wait for a connection are spread as well
        replica.served += 1
        try:
            if ask is self._plain:
                return await self._exchange(live, ask, replica, until)
            try:
                async with asyncio.timeout_at(until):
                    await live.free.acquire()
            except TimeoutError:
                raise _Failure(f"all {self._connections} connections were busy", suspicious=True) from None
            try:
                # Not all that is left: an answer may be lost on its way, and another server may have one.
                left = until - live.loop.time()
                share = min(left, max(left / 2, self._deadline / 10))
                return await self._exchange(live, ask, replica, live.loop.time() + share)
            finally:
                live.free.release()
        finally:
            replica.running -= 1

    async def _exchange(self, live: _Live, ask: Ask[T], replica: _Replica, until: float) -> T:
        self.counters["requests"] += 1
        started = live.loop.time()
        try:
            async with asyncio.timeout_at(until), _failures():
                response, body = await self._receive(live, ask, replica.url)
        except TimeoutError:
            waited = live.loop.time() - started
            # A try gets a tenth of the deadline, unless less was left.
            brief = waited < 0.09 * self._deadline
            cause = f"nothing, or not all of an answer, within {waited:.1f} s"
            raise _Failure(cause, suspicious=not brief, brief=brief) from None
        if response.status_code != 200:
            raise _status_failure(response.status_code, response.headers, body)
        try:
            return ask.read(body)
        except RetrieverError as error:
            raise _Failure(f"an unusable answer: {shorten(str(error))}", suspicious=True) from None

    async def _receive(self, live: _Live, ask: Ask[Any], url: str) -> tuple[httpx.Response, bytes]:
        headers = {"Content-Type": "application/json"} if ask.content is not None else None
        async with live.client.stream(
            ask.method, url + ask.path, content=ask.content, params=ask.params, headers=headers
        ) as response:
            stream = response.extensions["network_stream"]
            if stream not in live.streams:
                live.streams.add(stream)
                self.breaks += 1
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > LARGEST_ANSWER:
                    raise _Failure(f"an answer of more than {LARGEST_ANSWER >> 20} MiB", suspicious=True)
            return response, bytes(body)


@dataclass(eq=False)
class _Replica:
    """One of several equal servers. Lives on the event loop."""

    url: str
    running: int = 0
    served: int = 0
    failures: int = 0
    rests_until: float = 0.0
    probed: bool = False

    @property
    def shown(self) -> str:
        """The URL without what may be a password."""
        return re.sub(r"//[^/@]*@", "//", self.url)

    def free(self, now: float) -> bool:
        return not self.failures and self.rests_until <= now

    def works(self) -> None:
        self.failures = 0
        self.rests_until = 0.0

    def failed(self, now: float, rest: float, failure: _Failure) -> None:
        if failure.retry_after:
            self.rests_until = now + failure.retry_after  # busy, which is no failure
            return
        self.rests_until = now + min(LONGEST_REST_S, rest * 2.0 ** min(self.failures, 30))
        self.failures += 1


class _Failure(Exception):
    """A try without an answer, and what that says: of the request, of the server, of when to come back.

    final: the server says that the request is wrong. refused: it turns any away.
    suspicious: it may be the request. brief: it had too little time to tell. status: that of the answer, if there
    was one.
    """

    def __init__(
        self,
        cause: str,
        *,
        final: bool = False,
        refused: bool = False,
        suspicious: bool = False,
        brief: bool = False,
        status: int = 0,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(cause)
        self.final = final
        self.refused = refused
        self.suspicious = suspicious
        self.brief = brief
        self.status = status
        self.retry_after = retry_after


@dataclass
class _Live:
    """What one process has open: an event loop in a thread, and the connections that live on it."""

    connections: int
    headers: Mapping[str, str]
    process: int = field(default_factory=os.getpid)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    streams: WeakSet[Any] = field(default_factory=WeakSet)

    def __post_init__(self) -> None:
        self.free = asyncio.Semaphore(self.connections)
        self.client = httpx.AsyncClient(
            headers=dict(self.headers),
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_keepalive_connections=self.connections, keepalive_expiry=KEEP_ALIVE_S),
            mounts={f"all://{host}": None for host in _LOOPBACK},
        )
        # A daemon: a command ends when it has to, whatever a server is doing.
        self.thread = Thread(target=self.loop.run_forever, name="retriever connections", daemon=True)
        self.thread.start()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; called on the loop."""
        task = asyncio.create_task(work)
        self.tasks.add(task)  # the loop itself keeps no hold of it
        task.add_done_callback(self.tasks.discard)

    def close(self) -> None:
        """Cancel what runs, close the connections, end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.client.aclose()


@asynccontextmanager
async def _failures() -> AsyncIterator[None]:
    """Turn what httpx raises into `_Failure`."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise _Failure(f"no connection within {CONNECT_S:.0f} s") from None
    except (httpx.ConnectError, httpx.ProxyError) as error:
        raise _Failure(f"no connection: {_root(error)}") from None
    except httpx.DecodingError as error:
        raise _Failure(f"an unusable answer: {shorten(str(error))}", suspicious=True) from None
    except httpx.TransportError as error:
        raise _Failure(f"the connection broke: {_root(error)}", suspicious=True) from None


def _root(error: BaseException) -> str:
    """What the operating system says, which lies below what libraries make of it; else what they say."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, BaseExceptionGroup):
            below = below.exceptions[0]  # one for each address of a name
        if isinstance(below, OSError) and (below.errno or 0) > 0:
            return os.strerror(below.errno or 0)
        below = below.__cause__ or below.__context__
    return shorten(str(error)) or type(error).__name__


def _status_failure(status: int, headers: httpx.Headers, body: bytes) -> _Failure:
    said = f"answered {status}{_said(body)}"
    if status in _BUSY:
        return _Failure(said, status=status, retry_after=_retry_after(headers))
    if status >= 500 or status < 300:
        return _Failure(said, status=status, suspicious=True)
    if status < 400:
        where = shorten(headers.get("location", "")) or "nowhere"
        said += f" and redirects to {where}; if that is right, use its URL"
        return _Failure(said, status=status, refused=True)
    if status in _ABOUT_THE_REQUEST:
        return _Failure(said, status=status, final=True)
    if status == 401:
        said += "; give the token that the server was started with"
    elif status == 404:
        said += "; something else may be running at this URL"
    return _Failure(said, status=status, refused=True)


def _said(body: bytes) -> str:
    """What a server gives as its reason, in brackets; nothing where it gives none."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    reason = (values.get("error") or values.get("detail") or "") if isinstance(values, dict) else ""
    text = shorten(reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False))
    return f" ({text})" if text else ""


def _retry_after(headers: httpx.Headers) -> float:
    """Seconds that a server asks to stay away, which it gives as a number or as a date."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", value):
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def back_off(rounds: int, pause: float, longest: float, random: Random) -> float:
    """Seconds before the next try, drawn from 0 to a bound that doubles with every round, up to the longest.

    Drawn, so that many clients that failed together do not come back together.
    """
    return random.uniform(0, min(longest, pause * 2.0 ** min(rounds, 30)))


def read_json(body: bytes) -> Any:
    """The JSON value of a body; `RetrieverError` says what it is instead."""
    if not body.strip():
        raise RetrieverError("the body is empty")
    if body.lstrip()[:1] == b"<":
        raise RetrieverError(f"the body is HTML and no JSON: {shorten(body[:400].decode(errors='replace'))}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RetrieverError(f"the body is no JSON, or not all of it ({error})") from None


def shorten(text: str, limit: int = LONGEST_CAUSE) -> str:
    """The text on one line, without control characters, cut (and marked so) at a limit.

    >>> shorten("no\\n\\x1b[31m index", 6)
    'no [31...'
    """
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= limit else f"{line[:limit]}..."


def base_url(url: str, setting: str, suffix: str) -> str:
    """A server's URL without its last slash and without `suffix`; `ConfigError` if it is none."""
    cleaned = url.strip().rstrip("/").removesuffix(suffix).rstrip("/")
    try:
        parsed = httpx.URL(cleaned)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{setting} is {url!r}, which is no URL ({error}); write it as http://host:port") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        example = f"http://{cleaned}" if cleaned and "://" not in cleaned else "http://127.0.0.1:8000"
        raise ConfigError(f"{setting} is {url!r}; it must begin with http:// or https://, as {example}")
    if parsed.query or parsed.fragment:
        raise ConfigError(f"{setting} is {url!r}; leave out what stands behind its '?' or '#'")
    return cleaned
