"""Retrieval at real scale: what BM25 and dense indexes cost at 0.3, 1 and 3 million passages, and how well they find.

Size: each corpus beyond the given one is grown by putting sentences of it together
anew, with lengths and titles drawn from it, so that no passage stands twice; the
vocabulary stays that of the given corpus. BM25 is measured against bm25s with its
numba and its numpy scorer, over the same stemmed words. Dense indexes hold random
unit vectors here: good for time and memory, not for recall, and the time of the
model that encodes a query is not in it.
Each build and each search runs in a fresh process.

Quality: `--index` names a finished index of the corpus whose parts are compared;
a supporting title, or a right answer, among the first three passages.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import Row, arguments, growth, peak_bytes, print_table
from numpy.typing import NDArray

from mrsearch.cli.output import print_json
from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage, Question
from mrsearch.data.hits import answer_rank, found_for, hit_rate, title_rank
from mrsearch.data.questions import load_questions
from mrsearch.data.sample import keep_ids, read_ids
from mrsearch.retrieval.bm25 import ALSO_STOPPED
from mrsearch.retrieval.dense import DenseRetriever
from mrsearch.retrieval.vector_index import build_faiss
from mrsearch.retrieval.vectors import PART, write_vectors

SHARED = Path(__file__).parents[2] / "shared" / "data"
SIZES = (286_535, 1_000_000, 3_000_000)
WIKI_18 = 21_015_324
DIMENSION = 384
HNSW_UP_TO = 300_000
WAYS = ("bm25", "bm25s", "flat", "hnsw", "ivfpq")
LISTS_SEARCHED = 32
"""Lists of an IVF-PQ index that a search looks into; recall, which random vectors do not tell, would choose it."""
TITLES = ("hotpotqa_dev", "2wikimultihopqa_dev", "musique_dev")
ANSWERS = ("nq_test", "triviaqa_test", "popqa_test")
TOP_K = 3


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--corpus", type=Path, default=SHARED / "wiki-mini.jsonl.gz", help="passages to grow from")
    parser.add_argument("--questions", type=Path, default=SHARED, help="folder with the question sets")
    parser.add_argument("--index", type=Path, action="append", default=[], help="a finished index, to tell its quality")
    parser.add_argument("--sizes", type=int, nargs="*", default=None, help="passages (default: 286535 1000000 3000000)")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--asked", type=int, default=500, help="questions of each set, those first that count")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for corpora and indexes, kept afterwards")
    parser.add_argument("--stage", nargs="*", default=None, help="used by the script itself")
    options = parser.parse_args()
    if options.stage:
        STAGES[options.stage[0]](options, *options.stage[1:])
        return
    sizes = options.sizes if options.sizes is not None else ([20_000, 60_000] if options.quick else list(SIZES))
    rows = scale(options, sizes) if sizes else []
    found = quality(options)
    if options.json:
        print_json({"scale": rows, "growth": growths(rows), "quality": found})
        return
    for table in (rows, growths(rows), found):
        if table:
            print_table(list(table[0]), [[str(value) for value in row.values()] for row in table])
            print()


# -- scale ------------------------------------------------------------------------------------


def scale(options: Any, sizes: Sequence[int]) -> list[Row]:
    """Build, disk, memory, start and search of every way at every size."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        for size in sizes:
            corpus = scratch / f"corpus-{size}.jsonl"
            if not corpus.exists():
                grow(options.corpus, size, corpus)
            for way in options.ways:
                if way in ("flat", "hnsw") and size > HNSW_UP_TO:
                    continue
                folder = scratch / f"{way}-{size}"
                built = stage(options, "build", way, str(size), str(corpus), str(folder))
                for scorer in ("numba", "numpy") if way == "bm25s" else ("",):
                    asked = stage(options, "ask", way, str(size), str(folder), scorer)
                    rows.append({"way": f"{way} {scorer}".strip(), "passages": size, **built, **asked})
                    print(rows[-1], file=sys.stderr, flush=True)
    return rows


def grow(corpus: Path, size: int, target: Path) -> None:
    """A corpus of so many passages: that of the file first, then its sentences put together anew."""
    chance = random.Random(0)
    titles: list[str] = []
    sentences: list[str] = []
    lengths: list[int] = []
    with gzip.open(corpus, "rt", encoding="utf-8") as file, target.open("w", encoding="utf-8") as grown:
        for row, line in enumerate(file):
            contents = json.loads(line)["contents"]
            title, _, text = contents.partition("\n")
            titles.append(title)
            sentences += re.split(r"(?<=[.!?])\s+(?=[A-Z\"(])", text)
            lengths.append(len(text.split()))
            if row < size:
                grown.write(json.dumps({"id": str(row), "contents": contents}) + "\n")
        for row in range(len(titles), size):
            text, wanted = "", chance.choice(lengths)
            while len(text.split()) < wanted:
                text += " " + chance.choice(sentences)
            grown.write(json.dumps({"id": str(row), "contents": f"{chance.choice(titles)}\n{text.strip()}"}) + "\n")


def stage(options: Any, *case: str) -> Row:
    """One case in a fresh process, with what it prints."""
    command = [sys.executable, __file__, "--questions", str(options.questions), "--stage", *case]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(case)} failed")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def build(options: Any, way: str, size: str, corpus: str, folder: str) -> None:
    """Build one index and tell seconds, disk and the peak of memory."""
    target = Path(folder)
    started = time.perf_counter()
    if target.exists():
        raise SystemExit(f"{target} is there already; a build is measured from nothing")
    if way == "bm25":
        from mrsearch.retrieval.indexing import build_index

        build_index(Path(corpus), target, kind="bm25")
    elif way == "bm25s":
        build_bm25s(Path(corpus), target)
    else:
        build_vectors(int(size), way, target)
    seconds = time.perf_counter() - started
    disk = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    tell({"build_s": round(seconds, 1), "disk_mb": disk // 2**20, "build_peak_mb": peak_bytes() // 2**20})


def ask(options: Any, way: str, size: str, folder: str, scorer: str = "") -> None:
    """Open one index and search: time to the first answer, latencies one by one, throughput of a batch, memory."""
    queries = list(asked_questions(options, 1000))
    started = time.perf_counter()
    if way == "bm25":
        from mrsearch.retrieval.index import open_index

        index = open_index(Path(folder))

        def search(texts: Sequence[str]) -> object:
            return index.search([Search(text, TOP_K) for text in texts])

    elif way == "bm25s":
        search = open_bm25s(Path(folder), scorer)
    else:
        search = open_vectors(int(size), Path(folder))
    search(queries[:1])
    start = time.perf_counter() - started
    for query in queries[:50]:
        search([query])
    times = []
    for query in queries[50:450]:
        begun = time.perf_counter()
        search([query])
        times.append(1000 * (time.perf_counter() - begun))
    begun = time.perf_counter()
    search(queries[450:])
    batch = len(queries[450:]) / (time.perf_counter() - begun)
    tell(
        {
            "start_s": round(start, 3),
            "p50_ms": round(statistics.median(times), 2),
            "p99_ms": round(statistics.quantiles(times, n=100)[-1], 2),
            "batch_per_s": round(batch),
            "memory_mb": memory_mb("RssAnon"),
            "resident_mb": memory_mb("VmRSS"),
        }
    )


def memory_mb(kind: str) -> int:
    """Memory of this process: `RssAnon` of its own, `VmRSS` with pages of mapped files, which can be given back."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(kind):
            return int(line.split()[1]) // 1024
    raise SystemExit("this system does not tell a process's memory")


def tell(row: Row) -> None:
    print(json.dumps(row))


def build_bm25s(corpus: Path, folder: Path) -> None:
    import bm25s

    tokenizer = _bm25s_tokenizer()
    with corpus.open(encoding="utf-8") as file:
        texts = [json.loads(line)["contents"] for line in file]
    ids = tokenizer.tokenize(texts, return_as="tuple", show_progress=False)
    index = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    index.index(ids, create_empty_token=False, show_progress=False)
    index.save(folder)
    tokenizer.save_vocab(folder)


def open_bm25s(folder: Path, scorer: str) -> Callable[[Sequence[str]], object]:
    import bm25s

    tokenizer = _bm25s_tokenizer()
    tokenizer.load_vocab(folder)
    index = bm25s.BM25.load(folder, mmap=True)
    index.backend = scorer
    if scorer == "numba":
        index.activate_numba_scorer()

    def search(texts: Sequence[str]) -> object:
        ids = tokenizer.tokenize(texts, update_vocab=False, return_as="ids", show_progress=False)
        return index.retrieve(ids, k=TOP_K, show_progress=False)

    return search


def _bm25s_tokenizer() -> Any:
    import tantivy
    from bm25s.stopwords import STOPWORDS_EN
    from bm25s.tokenization import Tokenizer

    stem = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).filter(tantivy.Filter.stemmer("english")).build()
    return Tokenizer(stopwords=[*STOPWORDS_EN, *ALSO_STOPPED["en"]], stemmer=lambda word: stem.analyze(word)[0])


class RandomEncoder:
    """Unit vectors in place of those of texts."""

    dimension = DIMENSION
    cut_passages = 0

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = self._chance.standard_normal((len(texts), DIMENSION), dtype=np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    queries = passages

    def describe(self) -> dict[str, Any]:
        return {"model": "random unit vectors", "dimension": DIMENSION}


class NumberedPassages(Sequence[Passage]):
    """As many passages as one likes, none of which is kept."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: Any) -> Any:
        return Passage(str(row), "", "text")


def build_vectors(rows: int, kind: str, folder: Path) -> None:
    """A dense part over random unit vectors."""
    folder.mkdir()
    encoder = RandomEncoder()
    write_vectors(NumberedPassages(rows), encoder, folder)
    build_faiss(folder, kind=kind, queries=encoder.queries([""] * 20), target=0.0)
    if kind == "ivfpq":
        described = json.loads((folder / PART).read_text())
        (folder / PART).write_text(json.dumps({**described, "search": {"nprobe": LISTS_SEARCHED}}))


def open_vectors(rows: int, folder: Path) -> Callable[[Sequence[str]], object]:
    retriever = DenseRetriever.open(folder, NumberedPassages(rows), encoder=RandomEncoder())
    return lambda texts: retriever.search([Search(text, TOP_K) for text in texts])


# -- quality ----------------------------------------------------------------------------------


def quality(options: Any) -> list[Row]:
    """What the parts of finished indexes find."""
    from mrsearch.retrieval.index import open_index

    rows: list[Row] = []
    for folder in options.index:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        kinds = ("bm25", "dense", "hybrid") if manifest["kind"] == "hybrid" else (manifest["kind"],)
        for kind in kinds:
            retriever: Retriever = open_index(folder, kind=kind)
            row: Row = {"index": folder.name, "kind": kind}
            for name in (*TITLES, *ANSWERS):
                row[name] = round(share_found(retriever, covered(options, name), titles=name in TITLES), 3)
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    return rows


def covered(options: Any, name: str) -> list[Question]:
    """The first questions of a set whose evidence the corpus holds."""
    path = options.questions / f"{name}.jsonl"
    questions = keep_ids(load_questions(path), read_ids(options.questions / "covered_ids.json", path.name))
    return [question for question in questions if name not in TITLES or question.supporting_titles][: options.asked]


def share_found(retriever: Retriever, questions: Sequence[Question], *, titles: bool) -> float:
    """Share of questions with a supporting title, or else with a right answer, in the first passages."""
    rank = title_rank if titles else answer_rank
    found = found_for(retriever, questions, TOP_K)
    ranks = [rank(passages, question) for question, passages in zip(questions, found, strict=True)]
    return hit_rate(ranks, TOP_K)


def asked_questions(options: Any, count: int) -> Iterator[str]:
    with (options.questions / "hotpotqa_dev.jsonl").open(encoding="utf-8") as file:
        for _, line in zip(range(count), file, strict=False):
            yield json.loads(line)["question"]


def growths(rows: Sequence[Row]) -> list[Row]:
    """By what exponent each number grows with the passages, and what it would come to for wiki-18."""
    told: list[Row] = []
    for way in dict.fromkeys(row["way"] for row in rows):
        same = [row for row in rows if row["way"] == way]
        if len(same) < 2:
            continue
        for column in ("build_s", "disk_mb", "build_peak_mb", "start_s", "p50_ms", "memory_mb", "resident_mb"):
            values = [max(1e-3, float(row[column])) for row in same]
            exponent = growth([row["passages"] for row in same], values)
            expected = values[-1] * (WIKI_18 / same[-1]["passages"]) ** max(0.0, exponent)
            told.append(
                {"way": way, "number": column, "exponent": round(exponent, 2), "at 21 million": round(expected, 1)}
            )
    return told


STAGES = {"build": build, "ask": ask}

if __name__ == "__main__":
    main()
