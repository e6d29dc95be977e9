"""The server under load: concurrent searches in batches, against a route that loops over its queries.

Three servers over the same passages, each a process of its own, take turns
under the same load from one more process: `ours` is this package's; `loop` is
a plain FastAPI route, a pydantic model and a loop that searches one query after
the other, with the same scorer; `loop-bm25s` is that route with the library
bm25s and its numpy scorer. Clients keep their connection and send a question as
soon as the last one is answered. A refusal with 503 is no error: the client
comes back when it was told to. At the end `ours` answers many questions more,
from an index of few passages, which takes less time and shows as well what
memory stays behind.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import Row, arguments, repetitions, report
from pydantic import BaseModel

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Where questions and passages are looked for, unless they are named."""

WAYS = ("ours", "loop", "loop-bm25s")
TOP_K = 3
DRAIN = 60
"""Seconds that answers may take after the last question."""

_SERVE, _LOAD = "--serve", "--load"


# -- the servers ----------------------------------------------------------------------------------


class QueryRequest(BaseModel):
    """The body of a request, as the route of a loop declares it."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def serve(way: str, index: str) -> None:
    """Be one of the servers, on a port that is told on stdout."""
    import socket

    import uvicorn

    from mrsearch.retrieval.index import open_index
    from mrsearch.retrieval.server import create_app
    from mrsearch.retrieval.server import serve as serve_ours

    opened = open_index(index)
    if way == "ours":
        info = {"identity": opened.identity, "passages": opened.manifest.passages, "kind": opened.kind}
        serve_ours(
            create_app(opened, info=info),
            "127.0.0.1",
            0,
            on_listening=lambda url: print(url.split(":")[-1], flush=True),
        )
        return
    app = loop_app(same_scorer(opened) if way == "loop" else numpy_scorer(list(opened.passages)))
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])


def loop_app(search: Callable[[str, int], list[Any]]) -> Any:
    """A route that searches its queries one by one."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: QueryRequest) -> dict[str, Any]:
        result = []
        for query in request.queries:
            found = search(query, request.topk or TOP_K)
            result.append(
                [{"document": {"id": p.id, "contents": f'"{p.title}"\n{p.text}'}, "score": score} for p, score in found]
            )
        return {"result": result}

    return app


def same_scorer(index: Any) -> Callable[[str, int], list[Any]]:
    """Passages and scores of one query, from the index that `ours` has."""
    from mrsearch.core.ports import Search

    return lambda query, top_k: [(p, p.score) for p in index.search([Search(query, top_k)])[0]]


def numpy_scorer(passages: Sequence[Any]) -> Callable[[str, int], list[Any]]:
    """Passages and scores of one query, from bm25s; with stems where PyStemmer is installed."""
    import bm25s

    try:
        import Stemmer

        stemmer = Stemmer.Stemmer("english")
    except ImportError:
        stemmer = None

    def words(texts: list[str]) -> Any:
        return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)

    scorer = bm25s.BM25(method="lucene", k1=1.2, b=0.75, backend="numpy")
    scorer.index(words([f"{p.title}\n{p.text}" for p in passages]), show_progress=False)

    def search(query: str, top_k: int) -> list[Any]:
        rows, scores = scorer.retrieve(
            words([query]), k=min(top_k, len(passages)), show_progress=False, backend_selection="numpy"
        )
        return [(passages[row], float(score)) for row, score in zip(rows[0], scores[0], strict=True)]

    return search


class Server:
    """A server in a process of its own."""

    def __init__(self, way: str, index: Path) -> None:
        command = [sys.executable, __file__, _SERVE, way, str(index)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._port = 0

    @property
    def port(self) -> int:
        """Where it listens; waits until it does."""
        if not self._port:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if not line:
                raise SystemExit("a server ended before it listened; its error stands above")
            self._port = int(line)
        return self._port

    def mib(self) -> float:
        """Memory that is resident; not a number where the system does not tell."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
            return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
        except (OSError, StopIteration):
            return math.nan

    def end(self) -> None:
        """Stop it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


@contextmanager
def servers(ways: Sequence[str], index: Path) -> Iterator[dict[str, Server]]:
    """All of them, listening."""
    started = {way: Server(way, index) for way in ways}
    try:
        for server in started.values():
            _ = server.port
        yield started
    finally:
        for server in started.values():
            server.end()


# -- the load -------------------------------------------------------------------------------------


class Load:
    """Clients on raw sockets, so that they cost little beside a server. Ends after `seconds` or so many questions."""

    def __init__(
        self, port: int, questions: Sequence[str], clients: int, seconds: float, most: int, batch: int
    ) -> None:
        self.requests = itertools.cycle(
            _request(questions[first : first + batch]) for first in range(0, len(questions) - batch + 1, batch)
        )
        # Made beforehand: encoding them takes time that belongs to no server.
        self.requests = itertools.cycle([next(self.requests) for _ in range(len(questions) // batch)])
        self.port = port
        self.clients = clients
        self.seconds = seconds
        self.left = most // batch
        self.latencies: list[float] = []
        self.counts: Counter[str] = Counter()
        self.last = 0.0

    async def run(self) -> dict[str, Any]:
        """Put the load on, and tell what came of it."""
        loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.active = self.clients
        connections = [
            loop.create_connection(lambda: Client(self), "127.0.0.1", self.port) for _ in range(self.clients)
        ]
        # Connected before the time begins; a client asks when it is told.
        clients = [protocol for _, protocol in await asyncio.gather(*connections)]
        self.start = time.perf_counter()
        self.end = self.start + self.seconds
        for client in clients:
            client.ask()
        try:
            await asyncio.wait_for(self.ended.wait(), self.seconds + DRAIN)
        except TimeoutError:
            self.counts["no answer"] += self.active
        return {
            "answered": len(self.latencies),
            "seconds": self.last - self.start if self.latencies else math.inf,
            "p50": _percentile(self.latencies, 0.5),
            "p99": _percentile(self.latencies, 0.99),
            "counts": self.counts,
        }

    def next_request(self) -> bytes | None:
        """What to send next; nothing when it is time to end."""
        if time.perf_counter() >= self.end or self.left <= 0:
            return None
        self.left -= 1
        return next(self.requests)

    def leave(self) -> None:
        """One client less."""
        self.active -= 1
        if not self.active:
            self.ended.set()


class Client(asyncio.Protocol):
    """One connection, on which a question is asked when the last one is answered."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._answer = bytearray()
        self._size = 0
        self._wait = 0
        self._asking = False
        self._left = False

    def connection_made(self, transport: Any) -> None:
        """Wait to be told."""
        self._transport = transport

    def ask(self) -> None:
        """Send the next question, or leave."""
        request = self._load.next_request()
        if request is None:
            self._leave()
            return
        self._answer.clear()
        self._size, self._asking, self._start = 0, True, time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Take in a part of the answer."""
        self._answer += data
        if not self._size:
            end = self._answer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._answer[:end]).lower()
            self._size = end + 4 + _header(head, b"content-length")
            self._wait = _header(head, b"retry-after")
        if len(self._answer) >= self._size:
            self._take_answer()

    def _take_answer(self) -> None:
        self._asking = False
        status = bytes(self._answer[9:12]).decode()
        self._load.counts[status] += 1
        if status == "503":
            asyncio.get_running_loop().call_later(max(1, self._wait), self.ask)
            return
        if status == "200":
            self._load.last = time.perf_counter()
            self._load.latencies.append(self._load.last - self._start)
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        """An error, if an answer was due."""
        if self._asking:
            self._load.counts["connection lost"] += 1
        self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._load.leave()
        self._transport.close()


def _header(head: bytes, name: bytes) -> int:
    """A number in the head of an answer, in small letters; 0 where it is not there."""
    _, _, rest = head.partition(name + b":")
    return int(rest.split(b"\r\n")[0] or 0)


def _request(queries: Sequence[str]) -> bytes:
    body = json.dumps({"queries": list(queries), "topk": TOP_K, "return_scores": True}).encode()
    head = f"POST /retrieve HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else math.nan


def put_load(case: str) -> None:
    """In a process of its own: one load, described as JSON; prints what came of it."""
    settings = json.loads(case)
    questions = json.loads(Path(settings.pop("questions")).read_text(encoding="utf-8"))
    print(json.dumps(asyncio.run(Load(questions=questions, **settings).run())))


def under_load(server: Server, questions: Path, **settings: Any) -> dict[str, Any]:
    """What came of one load on a server, with its memory before and after."""
    before = server.mib()
    case = json.dumps({"port": server.port, "questions": str(questions), **settings})
    done = subprocess.run([sys.executable, __file__, _LOAD, case], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load failed:\n{done.stderr}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome | {"before": before, "after": server.mib()}


# -- questions and passages -----------------------------------------------------------------------

TESTS = ("2wikimultihopqa_dev", "asearcher_test", "bamboogle", "hotpotqa_dev", "musique_dev", "nq_test", "popqa_test",
         "triviaqa_test")  # fmt: skip
"""The question sets whose questions are asked."""


def load_questions(folder: Path | None, passages: Sequence[str]) -> list[str]:
    """The questions of the sets in a folder, in one shuffled order; else words of the passages."""
    rng = random.Random(0)
    questions = []
    for name in TESTS if folder else ():
        path = folder / f"{name}.jsonl" if folder else Path()
        if path.exists():
            with path.open(encoding="utf-8") as file:
                questions += [json.loads(line)["question"] for line in file]
    if not questions:
        for _ in range(5000):
            words = json.loads(rng.choice(passages))["contents"].split()
            questions.append(" ".join(rng.choices(words, k=8)))
    rng.shuffle(questions)
    return questions


def load_passages(corpus: Path | None, most: int) -> list[str]:
    """The first rows of a corpus; without one, made of words as frequent as those of a language."""
    if corpus:
        with (
            gzip.open(corpus, "rt", encoding="utf-8")
            if corpus.suffix == ".gz"
            else corpus.open(encoding="utf-8") as file
        ):
            return [line.rstrip("\n") for line in itertools.islice(file, most or None)]
    rng = random.Random(0)
    words = [f"word{rank}" for rank in range(50_000)]
    frequencies = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    rows = []
    for row in range(most or 50_000):
        drawn = rng.choices(words, cum_weights=frequencies, k=100)
        rows.append(json.dumps({"id": str(row), "contents": f'"{drawn[0]}"\n{" ".join(drawn)}'}))
    return rows


def build(rows: Sequence[str], folder: Path) -> Path:
    """An index of the rows."""
    from mrsearch.retrieval.indexing import build_index

    corpus = folder.with_suffix(".jsonl")
    corpus.write_text("\n".join(rows) + "\n", encoding="utf-8")
    build_index(corpus, folder)
    return folder


# -- measuring ------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, index: Path, questions: Path) -> list[Row]:
    """Each way under each number of clients; the ways take turns."""
    rows = []
    with servers(options.ways, index) as started:
        for server in started.values():
            under_load(server, questions, clients=4, seconds=1, most=10**9, batch=1)  # warm up
        for clients in options.clients:
            runs: dict[str, list[dict[str, Any]]] = {way: [] for way in started}
            for _ in range(repetitions(options)):
                for way, server in started.items():
                    runs[way].append(
                        under_load(server, questions, clients=clients, seconds=options.seconds, most=10**9, batch=1)
                    )
            rates = {way: _median(run["answered"] / run["seconds"] for run in taken) for way, taken in runs.items()}
            for way, taken in runs.items():
                rows.append(_row(clients, way, taken) | {"ours / this": rates.get("ours", math.nan) / rates[way]})
    return rows


def measure_memory(options: argparse.Namespace, index: Path, questions: Path) -> Row:
    """`ours` before and after many questions."""
    with servers(["ours"], index) as started:
        server = started["ours"]
        under_load(server, questions, clients=16, seconds=DRAIN, most=options.questions_in_all // 10, batch=10)
        after = under_load(server, questions, clients=16, seconds=600, most=options.questions_in_all, batch=10)
    after["answered"] *= 10
    return _row(16, f"ours, {options.questions_in_all:,} questions in tens", [after]) | {"ours / this": math.nan}


def _row(clients: int, way: str, runs: Sequence[dict[str, Any]]) -> Row:
    counts = sum((Counter(run["counts"]) for run in runs), Counter[str]())
    errors = {name: count for name, count in counts.items() if name not in {"200", "503"}}
    return {
        "clients": clients,
        "server": way,
        "answered/s": _median(run["answered"] / run["seconds"] for run in runs),
        "p50 ms": 1000 * _median(run["p50"] for run in runs),
        "p99 ms": 1000 * _median(run["p99"] for run in runs),
        "503": counts["503"],
        "errors": ", ".join(f"{count} {name}" for name, count in errors.items()) or "none",
        "MiB before": runs[0]["before"],
        "MiB after": runs[-1]["after"],
    }


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)


def main() -> None:
    """Measure and report."""
    if sys.argv[1:2] == [_SERVE]:
        serve(*sys.argv[2:])
        return
    if sys.argv[1:2] == [_LOAD]:
        put_load(sys.argv[2])
        return
    parser = arguments(__doc__)
    corpus = DATA / "wiki-mini.jsonl.gz"
    parser.add_argument(
        "--corpus", type=Path, default=corpus if corpus.exists() else None, help="passages (.jsonl, .gz)"
    )
    parser.add_argument("--passages", type=int, default=0, help="take so many of them (default: all)")
    parser.add_argument("--index", type=Path, help="an index that exists, instead of building one of the corpus")
    parser.add_argument(
        "--questions", type=Path, default=DATA if DATA.exists() else None, help="folder of question sets"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 16, 128, 1000])
    parser.add_argument("--seconds", type=float, default=0, help="time of each load (default: 1.5, or 1 with --quick)")
    parser.add_argument("--questions-in-all", type=int, default=0, help="for memory (default: 100000, or 5000)")
    options = parser.parse_args()
    options.seconds = options.seconds or (1 if options.quick else 1.5)
    options.questions_in_all = options.questions_in_all or (5000 if options.quick else 100_000)
    options.passages = options.passages or (20_000 if options.quick else 0)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with TemporaryDirectory() as folder:
        passages = load_passages(options.corpus, options.passages)
        questions = Path(folder) / "questions.json"
        questions.write_text(json.dumps(load_questions(options.questions, passages)), encoding="utf-8")
        rows = measure(options, options.index or build(passages, Path(folder) / "all"), questions)
        rows.append(measure_memory(options, build(passages[:20_000], Path(folder) / "few"), questions))
    report(options, rows)


if __name__ == "__main__":
    main()
