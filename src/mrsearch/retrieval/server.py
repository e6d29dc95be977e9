"""A retriever over HTTP: `POST /retrieve`, `GET /health`, `GET /metrics`.

The protocol is that of `wire`; this module adds what HTTP needs: limits, a
token, an answer to everything that may come in, and numbers for Prometheus.
Every error has one shape, `{"error": "what happened; what to do"}`, and the
one error of the server's own making is 503 with Retry-After: come back later.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from mrsearch import __version__
from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, MissingExtra, RetrieverDown, RetrieverError
from mrsearch.retrieval.batching import Batcher, Outcome, QueueFull
from mrsearch.retrieval.wire import DEFAULT_TOP_K, answer_body, clean_text, encode, read_request

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.types import Receive, Scope, Send
except ImportError as error:
    raise MissingExtra(
        f"the server needs {error.name}; install what it needs with: pip install 'mrsearch[server]'"
    ) from error

GRACE = 5
"""Seconds that requests have to end when the server is told to stop."""

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than clients keep one, so that none is closed under a request."""

DOWN_RETRY = 5
"""Seconds after which to try again when what stands behind the retriever is down."""

PATIENCE = 0.2
"""Seconds after which it is looked whether a client still waits."""

_BOM = b"\xef\xbb\xbf"
_JSON = "application/json"

_log = logging.getLogger(__name__)

_CLIENT_LEFT = 499
"""The status under which a request is counted whose client did not wait; it is not sent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for, and how much may wait."""

    queries: int = 8192
    """Queries in a request; a trainer may send those of a whole batch at once."""
    query_characters: int = 32_768
    """Characters in a query; a longer one is refused (422) and never cut."""
    top_k: int = 1000
    """Passages a query."""
    passages: int = 100_000
    """Passages a request, which is its queries times its `topk`."""
    body_bytes: int = 16 * 2**20
    """Bytes of a request's body; reading stops there (413)."""
    queue: int = 16_384
    """Searches that may wait; what comes beyond is refused (503) with the seconds after which to try again."""
    batch: int = 128
    """Searches that are carried out in one call."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"the server's limit {name} is {getattr(self, name)}; it must be 1 or more")


class _Refusal(Exception):
    """A request that gets no passages: the status, the reason, and headers of the answer."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class _Metrics:
    """The numbers of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        seconds = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
        self.requests = Counter(
            "mrsearch_requests", "Requests to /retrieve by status; 499 is a client that left.", ["status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "mrsearch_request_seconds", "Time from a request to its answer.", buckets=seconds, registry=self.registry
        )
        self.searches = Counter("mrsearch_searches", "Searches that were carried out.", registry=self.registry)
        self.refused = Counter(
            "mrsearch_refused_searches", "Searches that found the queue full.", registry=self.registry
        )
        self.failed = Counter(
            "mrsearch_failed_searches", "Searches for which the retriever failed.", registry=self.registry
        )
        self.waiting = Gauge("mrsearch_waiting_searches", "Searches that wait.", registry=self.registry)
        self.batch = Histogram(
            "mrsearch_batch_searches", "Searches in one call of the retriever.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512), registry=self.registry,
        )  # fmt: skip
        self.batch_seconds = Histogram(
            "mrsearch_batch_seconds", "Time of one call of the retriever.", buckets=seconds, registry=self.registry
        )

    def on_batch(self, searches: int, seconds: float) -> None:
        """Count one call of the retriever."""
        self.searches.inc(searches)
        self.batch.observe(searches)
        self.batch_seconds.observe(seconds)


class _App(FastAPI):
    """FastAPI with a short way to /retrieve: its own, for any route, would be half of the work for a request."""

    retrieve: Callable[[Request], Awaitable[Response]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/retrieve" or scope["method"] != "POST":
            await super().__call__(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self.retrieve(request)
        except Exception as error:
            _log.exception("a request failed")
            response = await _bug(request, error)
        await response(scope, receive, send)


def create_app(
    retriever: Retriever, *, info: Mapping[str, Any], limits: Limits | None = None, token: str = ""
) -> FastAPI:
    """A server for one retriever. `info` is told at /health: `identity`, `passages`, `kind`.

    With a token, `/retrieve` and `/metrics` ask for it (`Authorization: Bearer`).
    Scores are always sent, also to a request that says `return_scores: false`, so
    that an answer has one shape. A body is read as JSON whatever its content type says.
    """
    limits = limits or Limits()
    metrics = _Metrics()
    batcher = Batcher(retriever, batch=limits.batch, queue=limits.queue, on_batch=metrics.on_batch)
    metrics.waiting.set_function(lambda: batcher.waiting)
    healthy = encode({"status": "ok", **info, "version": __version__})

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    app = _App(
        title="mrsearch", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    documents = _Documents(limits, secured=bool(token))

    @app.post("/retrieve", **documents.retrieve)
    async def retrieve(request: Request) -> Response:
        """Passages for each query, best first."""
        start = time.perf_counter()
        try:
            _check_token(request, token)
            searches = _searches(await _body(request, limits.body_bytes), limits)
            outcomes = await _carried_out(request, batcher, searches, metrics)
            response = Response(encode(answer_body(_passages(outcomes, searches, metrics))), media_type=_JSON)
        except _Refusal as refusal:
            response = _error(refusal.status, str(refusal), refusal.headers)
        except ClientDisconnect:
            response = Response(status_code=_CLIENT_LEFT)
        metrics.requests.labels(response.status_code).inc()
        metrics.seconds.observe(time.perf_counter() - start)
        return response

    app.retrieve = retrieve

    @app.get("/health", **documents.health)
    async def health() -> Response:
        """What is served, as soon as it is served."""
        return Response(healthy, media_type=_JSON)

    @app.get("/metrics", **documents.metrics)
    async def prometheus(request: Request) -> Response:
        """Counts and times, in the text format of Prometheus."""
        try:
            _check_token(request, token)
        except _Refusal as refusal:
            return _error(refusal.status, str(refusal), refusal.headers)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    documents.complete(app.openapi())
    return app


# -- from a request to searches -------------------------------------------------------------------


def _check_token(request: Request, token: str) -> None:
    if not token:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    # In the same time whatever was given, so that the token cannot be found letter by letter.
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), token.encode()):
        reason = "this server asks for a token; send it in the header: Authorization: Bearer TOKEN"
        raise _Refusal(401, reason, WWW_Authenticate="Bearer")


async def _body(request: Request, limit: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in {"", "identity"}:
        reason = f"the body is encoded ({ascii(encoding)[:40]}); send it as plain JSON"
        raise _Refusal(415, reason, Accept_Encoding="identity")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _Refusal(413, f"the body has more than {limit} bytes; send the queries in several requests")
        parts.append(part)
    return b"".join(parts)


def _searches(body: bytes, limits: Limits) -> list[Search]:
    try:
        value = _DECODER.decode(body.removeprefix(_BOM).decode())
    except RecursionError:
        raise _Refusal(400, "the body is nested too deeply to be read") from None
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        raise _Refusal(400, f"the body is not JSON in UTF-8 ({error})") from None
    try:
        searches = read_request(value, most=limits.top_k)
    except ValueError as error:
        raise _Refusal(422, str(error)) from None
    if excess := _excess(searches, limits):
        raise _Refusal(422, excess)
    return searches


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _excess(searches: Sequence[Search], limits: Limits) -> str:
    """Which limit a request is above, or nothing."""
    if len(searches) > limits.queries:
        allowed = f"{limits.queries} are allowed"
        return f"the request has {len(searches)} queries, and {allowed}; send them in several requests"
    for row, search in enumerate(searches):
        if len(search.query) > limits.query_characters:
            allowed = f"{limits.query_characters} are allowed"
            return f"queries[{row}] has {len(search.query)} characters, and {allowed}; shorten it"
    if searches and len(searches) * searches[0].top_k > limits.passages:
        many = f"{searches[0].top_k} passages for each of {len(searches)} queries"
        return f"{many} are above {limits.passages} passages in all; send the queries in several requests"
    return ""


# -- from searches to an answer -------------------------------------------------------------------


async def _carried_out(
    request: Request, batcher: Batcher, searches: Sequence[Search], metrics: _Metrics
) -> list[Outcome]:
    """What comes of the searches; they are given up, with `ClientDisconnect`, when nobody waits for them any more."""
    try:
        answer = batcher.submit(searches)
    except QueueFull as full:
        metrics.refused.inc(len(searches))
        raise _Refusal(503, str(full), Retry_After=str(full.retry_after)) from None
    watch = _Watch(request, answer)
    try:
        return await answer
    except asyncio.CancelledError:
        if watch.client_left:
            raise ClientDisconnect from None
        raise
    finally:
        watch.end()


class _Watch:
    """Cancels an answer when its client leaves. Begins after a moment, since most answers take less."""

    def __init__(self, request: Request, answer: asyncio.Future[list[Outcome]]) -> None:
        self._request = request
        self._answer = answer
        self._leaving: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._begin)

    @property
    def client_left(self) -> bool:
        """Whether that is why the answer was cancelled."""
        return self._leaving is not None and self._leaving.done()

    def end(self) -> None:
        """Look no longer."""
        self._timer.cancel()
        if self._leaving:
            self._leaving.cancel()

    def _begin(self) -> None:
        self._leaving = asyncio.ensure_future(_gone(self._request))
        self._leaving.add_done_callback(lambda _: self._answer.cancel())


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _passages(outcomes: Sequence[Outcome], searches: Sequence[Search], metrics: _Metrics) -> list[list[Passage]]:
    failed = {row: outcome for row, outcome in enumerate(outcomes) if isinstance(outcome, RetrieverError)}
    if failed:
        metrics.failed.inc(len(failed))
        for error in failed.values():
            if isinstance(error, RetrieverDown):
                raise _Refusal(503, str(error), Retry_After=str(DOWN_RETRY))
        row, error = next(iter(failed.items()))
        others = f"; {len(failed) - 1} others fail too" if len(failed) > 1 else ""
        reason = f"queries[{row}], {ascii(searches[row].query)[:80]}, cannot be searched: {error}{others}"
        raise _Refusal(422, reason)
    return [outcome for outcome in outcomes if not isinstance(outcome, RetrieverError)]


# -- errors ---------------------------------------------------------------------------------------


def _error(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode({"error": clean_text(reason)}), status, headers, media_type=_JSON)


async def _http_error(request: Request, error: Exception) -> Response:
    """Another path or method."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {ascii(request.url.path)[1:-1]}"
    reason = f"{asked}: {error.detail}; there are POST /retrieve, GET /health and GET /metrics"
    return _error(error.status_code, reason, error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    return _error(500, f"unexpected {type(error).__name__}; the log of the server shows where")


# -- the OpenAPI document -------------------------------------------------------------------------


class _Documents:
    """What the OpenAPI document says of each route, as arguments of the route."""

    def __init__(self, limits: Limits, *, secured: bool) -> None:
        security: dict[str, Any] = {"security": [{"bearer": []}]} if secured else {}
        refused = {401: _documented("No token, or a wrong one.")} if secured else {}
        self._secured = secured
        self.retrieve: dict[str, Any] = {
            "response_class": Response,
            "openapi_extra": {"requestBody": _request_document(limits), **security},
            "responses": {
                200: {"description": "For each query its passages.", "content": {_JSON: {"schema": _ANSWER}}},
                400: _documented("The body is not JSON in UTF-8."),
                **refused,
                413: _documented(f"The body has more than {limits.body_bytes} bytes."),
                415: _documented("The body is encoded, perhaps compressed."),
                422: _documented(
                    f"The body has another shape, is above a limit ({limits.passages} passages in all), "
                    "or holds a query that cannot be searched."
                ),
                503: _documented("The queue is full, or what is searched is down.")
                | {"headers": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}},
            },
        }
        self.health: dict[str, Any] = {
            "response_class": Response,
            "responses": {200: {"description": "The server answers.", "content": {_JSON: {"schema": _HEALTH}}}},
        }
        self.metrics: dict[str, Any] = {
            "response_class": Response,
            "openapi_extra": security,
            "responses": {
                200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
                **refused,
            },
        }

    def complete(self, document: dict[str, Any]) -> None:
        """Add what belongs to no route."""
        if self._secured:
            document["components"] = {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}}


def _documented(description: str) -> dict[str, Any]:
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {"description": description, "content": {_JSON: {"schema": error}}}


def _request_document(limits: Limits) -> dict[str, Any]:
    query = {"type": "string", "maxLength": limits.query_characters}
    top_k = {"type": ["integer", "null"], "minimum": 1, "maximum": limits.top_k, "default": DEFAULT_TOP_K}
    schema = {
        "type": "object",
        "required": ["queries"],
        "properties": {
            "queries": {"type": "array", "items": query, "maxItems": limits.queries},
            "topk": top_k,
            "return_scores": {"type": ["boolean", "null"], "description": "Scores are sent in any case."},
        },
    }
    example = {"queries": ["Who wrote the first program?"], "topk": 3, "return_scores": True}
    return {"required": True, "content": {_JSON: {"schema": schema, "example": example}}}


_DOCUMENT = {
    "type": "object",
    "required": ["id", "contents"],
    "properties": {"id": {"type": "string"}, "contents": {"type": "string", "description": "Title, line break, text."}},
}
_ITEM = {
    "type": "object",
    "required": ["document", "score"],
    "properties": {"document": _DOCUMENT, "score": {"type": ["number", "null"]}},
}
_ANSWER = {
    "type": "object",
    "required": ["result"],
    "properties": {"result": {"type": "array", "items": {"type": "array", "items": _ITEM}}},
}
_HEALTH = {
    "type": "object",
    "required": ["status", "version"],
    "properties": {"status": {"const": "ok"}, "version": {"type": "string"}, "identity": {"type": "string"}},
}


# -- listening ------------------------------------------------------------------------------------


def serve(
    app: FastAPI, host: str, port: int, *, grace: int = GRACE, on_listening: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running requests end, for `grace` seconds at most.

    `on_listening` is told the address; port 0 takes any that is free. `ConfigError` if there is no listening there.
    """
    listening = listen(host, port)
    _allow_many_connections()
    # What was loaded is there to stay: looking through all of it again and again would make requests wait.
    gc.freeze()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
    )
    server = uvicorn.Server(config)
    if on_listening:
        on_listening(_url(listening))
    with _terminating(server):
        server.run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A socket on which to serve; `ConfigError` where the port is taken or there is no such host."""
    if not 0 <= port <= 65_535:  # the system would listen on another one
        raise ConfigError(f"there is no port {port}; choose one of 1 to 65535, or 0 for any that is free")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address, family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        # The standard library tells the address once more.
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise ConfigError(
            f"cannot listen on port {port} of {host} ({reason}); choose another host, or port (0 takes any free one)"
        ) from None
    # Connections inherit it. Without it, the end of an answer waits 40 ms for the client to confirm its beginning:
    # asyncio sets it for sockets that name their protocol only, which `create_server` makes none of.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _allow_many_connections() -> None:
    """Each connection is an open file, and often no more than 1024 are allowed unless one asks."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def _terminating(server: uvicorn.Server) -> Iterator[None]:
    """SIGTERM ends the server, and is no failure: uvicorn raises it once more when all is done."""

    def stop(*_: object) -> None:
        server.should_exit = True

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread, where signals are another's business
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
