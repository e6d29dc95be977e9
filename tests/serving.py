"""A retrieval server on loopback, in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from mrsearch.core.ports import Retriever
from mrsearch.retrieval.server import create_app, listen


@contextmanager
def serving(retriever: Retriever, *, port: int = 0, token: str = "") -> Iterator[str]:
    """Serve a retriever; gives the server's URL."""
    info = {"identity": identity} if (identity := getattr(retriever, "identity", "")) else {}
    listening = listen("127.0.0.1", port)
    app = create_app(retriever, info=info, token=token)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
