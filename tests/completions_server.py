"""A completions endpoint on loopback that writes by a script, in one dialect or another, and fails when told."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

KNOWN = {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "logprobs"}


@dataclass
class Endpoint:
    """`write` gives the whole text that the model would write for a prompt, up to `[end]`, its end of the turn.
    `chat` answers a message, at `/v1/chat/completions`; an empty answer is one that was cut at the limit.

    `fault` is asked for each completion with its number, from 0: a status, "reset",
    "cut" (half of the body), "html", or None.
    """

    write: Callable[[str], str]
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    takes_ids: bool = True
    refuses_ids: int = 422
    gives_logprobs: bool = True
    strict: bool = False
    keeps_stop: bool = False
    says_stop: bool = False
    gives_ids: bool = False
    honours_stop: bool = True
    adds_bos: bool = False
    models: Sequence[str] = ("small",)
    fault: Callable[[int], int | str | None] = lambda number: None
    chat: Callable[[str], str] = lambda message: ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)

    def answer(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status and JSON of a completion."""
        if "messages" in body:
            said = self.chat(body["messages"][-1]["content"])
            message = {"role": "assistant", "content": said}
            return 200, {"choices": [{"message": message, "finish_reason": "stop" if said else "length"}]}
        if self.strict and set(body) - KNOWN:
            return 400, {"error": {"message": f"unknown: {sorted(set(body) - KNOWN)}"}}
        prompt = body["prompt"]
        if not isinstance(prompt, str) and not self.takes_ids:
            return self.refuses_ids, {"detail": "prompt must be a string"}
        if "logprobs" in body and not self.gives_logprobs:
            return 500 if not self.strict else 400, {"error": "logprobs are off"}
        text = prompt if isinstance(prompt, str) else self.decode(prompt)
        written, end, stopped = self._stopped(self.write(text), body)
        ids = list(self.encode(written))
        if len(ids) > body["max_tokens"]:
            ids, end, stopped = ids[: body["max_tokens"]], "length", None
            written = self.decode(ids)
        choice: dict[str, Any] = {"index": 0, "text": written, "finish_reason": end}
        if self.says_stop:
            choice["stop_reason"] = stopped
        if self.gives_ids and body.get("return_token_ids"):
            choice["token_ids"] = ids
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids), "tokens": [self.decode([i]) for i in ids]}
        read = len(self.encode(text)) if isinstance(prompt, str) else len(prompt)
        return 200, {"choices": [choice], "usage": {"prompt_tokens": read + self.adds_bos}}

    def _stopped(self, text: str, body: Mapping[str, Any]) -> tuple[str, str, str | None]:
        text, ended, _ = text.partition("[end]")
        if self.honours_stop and body["stop"]:
            found = re.search("|".join(map(re.escape, body["stop"])), text)
            if found:
                keeps = self.keeps_stop or body.get("include_stop_str_in_output")
                return text[: found.end() if keeps else found.start()], "stop", found.group()
        return text, "stop" if ended or not self.honours_stop else "length", None


@contextmanager
def endpoint(server: Endpoint) -> Iterator[str]:
    """Serve it; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            self.reply(200, json.dumps({"data": [{"id": name} for name in server.models]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                server.bodies.append(body)
                fault = server.fault(len(server.bodies) - 1)
            status, said = server.answer(body)
            answer = json.dumps(said).encode()
            if isinstance(fault, int):
                self.reply(fault, b'{"error": "busy"}')
            elif fault == "html":
                self.reply(200, b"<html>bad gateway</html>")
            elif fault in ("cut", "reset"):
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer[: len(answer) // 2] if fault == "cut" else b"")
                self.wfile.flush()
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self.reply(status, answer)

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}"
    finally:
        listening.shutdown()
        listening.server_close()
