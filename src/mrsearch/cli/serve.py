"""`mrsearch serve`: an index, or a corpus, as a retriever over HTTP."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrsearch.cli.output import stderr_console
from mrsearch.errors import ConfigError

if TYPE_CHECKING:
    from mrsearch.core.ports import Retriever
    from mrsearch.core.types import Passage


def command(
    index: Annotated[
        Path,
        typer.Argument(
            metavar="INDEX", help="Folder made by mrsearch index; or a file of passages, indexed in memory."
        ),
    ],
    port: Annotated[int, typer.Option(help="Port; 0 takes any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    kind: Annotated[
        str, typer.Option(help="Search as bm25, dense or hybrid; by default as the index was built for.")
    ] = "",
    token_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with a token that clients have to send.")
    ] = "",
    max_queries: Annotated[int | None, typer.Option(help="Most queries in a request [default: 8192].")] = None,
    max_topk: Annotated[int | None, typer.Option(help="Most passages a query [default: 1000].")] = None,
    queue: Annotated[
        int | None, typer.Option(help="Searches that may wait; more are refused (503) [default: 16384].")
    ] = None,
    device: Annotated[str, typer.Option(help="Where models run: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    rerank: Annotated[
        str, typer.Option(metavar="MODEL", help="Cross-encoder that reorders the best hundred passages.")
    ] = "",
) -> None:
    """Serve passages over HTTP, in the protocol that Search-R1 and others speak.

    POST /retrieve {"queries": ["..."], "topk": 3}, GET /health, GET /metrics.
    Ctrl-C or SIGTERM ends it, after the requests that are running.

    \b
    Examples:
      mrsearch serve wiki --port 8000
      mrsearch serve passages.jsonl.gz --port 0
      MRSEARCH_TOKEN=secret mrsearch serve wiki --host 0.0.0.0 --token-env MRSEARCH_TOKEN
    """
    from mrsearch.retrieval.server import Limits, create_app, listen, serve

    chosen = {"queries": max_queries, "top_k": max_topk, "queue": queue}
    limits = Limits(**{name: value for name, value in chosen.items() if value is not None})
    token = _token(token_env)
    listen(host, port).close()  # what is wrong here should not show only after a large index was opened
    source = open_source(index, kind, device, rerank)
    console = stderr_console()
    if not token and not _is_local(host):
        console.print(
            f"warning: everybody who can reach {host} can search here; --token-env NAME asks for a token",
            markup=False,
            soft_wrap=True,
        )

    def tell(url: str) -> None:
        what = f"{source.passages:,} passages ({source.kind}) of {index}"
        console.print(f"Serving {what} at {url}; Ctrl-C ends it", markup=False, soft_wrap=True)

    info = {"identity": source.identity, "passages": source.passages, "kind": source.kind}
    serve(create_app(source.retriever, info=info, limits=limits, token=token), host, port, on_listening=tell)


@dataclass(frozen=True)
class Source:
    """What is served, with what /health tells of it."""

    retriever: Retriever
    identity: str
    passages: int
    kind: str


def open_source(path: Path, kind: str, device: str, rerank: str) -> Source:
    """An index on disk, or a file of passages as an index in memory; reranked where a model is named."""
    source = _corpus(path, kind) if path.is_file() else _index(path, kind, device)
    if not rerank:
        return source
    from mrsearch.retrieval.rerank import RerankingRetriever

    return Source(
        RerankingRetriever(source.retriever, rerank, device=device),
        hashlib.sha256(f"{source.identity} {rerank}".encode()).hexdigest()[:16],
        source.passages,
        f"{source.kind}, reranked",
    )


def _index(folder: Path, kind: str, device: str) -> Source:
    from mrsearch.retrieval.index import open_index

    opened = open_index(folder, kind=kind, device=device)
    return Source(opened, opened.identity, opened.manifest.passages, opened.kind)


def _corpus(file: Path, kind: str) -> Source:
    from mrsearch.retrieval.bm25 import BM25Retriever
    from mrsearch.retrieval.corpus import load_corpus

    if kind not in {"", "bm25"}:
        raise ConfigError(
            f"{file} is a file of passages, which is indexed in memory as bm25; for {kind!r} make an index with: "
            "mrsearch index CORPUS --out DIR"
        )
    passages = load_corpus(file)
    return Source(BM25Retriever(passages), _identity(passages), len(passages), "bm25")


def _identity(passages: Sequence[Passage]) -> str:
    digest = hashlib.sha256(b"bm25 in memory")
    for passage in passages:
        digest.update(f"{passage.id}\0{passage.title}\0{passage.text}\0".encode())
    return digest.hexdigest()[:16]


def _token(name: str) -> str:
    if not name:
        return ""
    token = os.environ.get(name, "").strip()
    if not token:
        raise ConfigError(f"--token-env names {name}, which is not set or empty; set it to the token")
    return token


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
