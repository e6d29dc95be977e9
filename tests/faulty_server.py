"""A real retrieval server on loopback that fails as it is told: each fault is what a client may meet on a bad day."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

from mrsearch.core.ports import Retriever
from mrsearch.retrieval.wire import answer_body, encode, read_request


class FaultyServer:
    """Answers `/retrieve` from a retriever and `/health` with an identity, except where it is told to fail.

    `faults` is asked for each request to `/retrieve` with its number, from 0;
    None is no fault. `health_faults` are those of the next requests to
    `/health`. It can be stopped, which breaks every connection, and started
    again at the same port.
    """

    def __init__(
        self,
        retriever: Retriever,
        faults: Callable[[int], Fault | None] = lambda number: None,
        *,
        identity: str | None = "abc",
    ) -> None:
        self.retriever = retriever
        self.faults = faults
        self.identity = identity
        self.health_faults: list[Fault] = []
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.health_requests = 0
        self.stopped = Event()
        self._lock = Lock()
        self._numbers = 0
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._sockets: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> FaultyServer:
        owner = self

        class Handler(_Handler):
            server_owner = owner

        self.stopped.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        """As a killed process: whoever is connected sees the connection break."""
        self.stopped.set()
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        with self._lock:
            for connection in self._sockets:
                _break(connection)
            self._sockets.clear()

    @property
    def queries(self) -> list[str]:
        """What was asked for, over all requests to `/retrieve` with a body."""
        return [query for body in self.bodies for query in body["queries"]]

    def next_fault(self, body: Any, headers: dict[str, str]) -> Fault | None:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self._numbers += 1
            return self.faults(self._numbers - 1)

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(connection)


class _Handler(BaseHTTPRequestHandler):
    server_owner: FaultyServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for an answer
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server_owner.opened(self.connection)

    def finish(self) -> None:
        self.server_owner.closed(self.connection)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):
            self.close_connection = True

    def do_GET(self) -> None:
        owner = self.server_owner
        owner.health_requests += 1
        if owner.health_faults:
            owner.health_faults.pop(0)(self, b"")
        elif owner.identity is None:
            self.reply(404, b"not found")
        else:
            self.reply(200, json.dumps({"status": "ok", "identity": owner.identity}).encode())

    def do_POST(self) -> None:
        owner = self.server_owner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = owner.next_fault(body, dict(self.headers))
        answer = encode(answer_body(owner.retriever.search(read_request(body))))
        if fault is None:
            self.reply(200, answer)
        else:
            fault(self, answer)

    def reply(self, status: int, body: bytes, *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


Fault = Callable[[_Handler, bytes], None]
"""What is done with the right answer instead of sending it."""


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    """Another status than 200."""
    return lambda handler, answer: handler.reply(code, body, **headers)


def body(content: bytes) -> Fault:
    """Status 200, and this for a body."""
    return lambda handler, answer: handler.reply(200, content)


def html(handler: _Handler, answer: bytes) -> None:
    """The page of a proxy that means well."""
    handler.reply(200, b"<html><body><h1>Bad gateway</h1></body></html>", Content_Type="text/html")


def empty(handler: _Handler, answer: bytes) -> None:
    """No body, and no word about it."""
    handler.reply(200, b"")


def half_json(handler: _Handler, answer: bytes) -> None:
    """Half of the answer, as if it were all."""
    handler.reply(200, answer[: len(answer) // 2])


def truncated(handler: _Handler, answer: bytes) -> None:
    """Half of the answer, and the connection ends."""
    handler.reply(200, answer[: len(answer) // 2], length=len(answer))
    handler.close_connection = True


def reset(handler: _Handler, answer: bytes) -> None:
    """The connection is reset before there is an answer."""
    _break(handler.connection)
    handler.close_connection = True


def die(handler: _Handler, answer: bytes) -> None:
    """The server is killed under the request."""
    handler.server_owner.stop()
    handler.close_connection = True


def delay(seconds: float) -> Fault:
    """The right answer, late (or never, where the server is stopped before)."""

    def wait(handler: _Handler, answer: bytes) -> None:
        if not handler.server_owner.stopped.wait(seconds):
            handler.reply(200, answer)

    return wait


def drip(seconds: float, *, head: bool = False) -> Fault:
    """The right answer byte by byte with so long between them; with `head`, its status line and headers too."""

    def send(handler: _Handler, answer: bytes) -> None:
        start = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n".encode()
        rest = start + answer
        if not head:
            handler.wfile.write(start)
            rest = answer
        for place in range(len(rest)):
            handler.wfile.write(rest[place : place + 1])
            handler.wfile.flush()
            if handler.server_owner.stopped.wait(seconds):
                return

    return send


def _break(connection: socket.socket) -> None:
    """End a connection with a reset in place of a goodbye."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(
    retriever: Retriever,
    faults: Callable[[int], Fault | None] = lambda number: None,
    *,
    identity: str | None = "abc",
) -> Iterator[FaultyServer]:
    """A server that runs, and is stopped at the end."""
    server = FaultyServer(retriever, faults, identity=identity).start()
    try:
        yield server
    finally:
        server.stop()


def at(numbers: dict[int, Fault]) -> Callable[[int], Fault | None]:
    """Faults of the requests with these numbers."""
    return numbers.get


def always(fault: Fault) -> Callable[[int], Fault | None]:
    """The same fault for every request."""
    return lambda number: fault
