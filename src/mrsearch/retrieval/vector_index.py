"""A FAISS index over vectors on disk: its kind chosen by size, its recall measured against the exact search."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mrsearch.errors import ConfigError, DataError, MissingExtra
from mrsearch.retrieval.encode import Vectors
from mrsearch.retrieval.vectors import (
    BLOCK,
    FORMAT,
    INDEX,
    PART,
    STATE,
    HalfVectors,
    Progress,
    open_vectors,
    read_json,
    write_json,
)

_log = logging.getLogger(__name__)

KINDS = ("flat", "hnsw", "ivfpq")
FLAT_UP_TO = 50_000
"""Passages up to which every vector is compared: exact, and some milliseconds a query on one core."""
HNSW_UP_TO = 300_000
"""Passages up to which a graph is built: all vectors in memory, a millisecond a query; beyond, codes of d/8 bytes."""

RECALL_AT = 10
TARGET = 0.95
"""Share of the true nearest ten that an index is set to find."""

_LINKS, _BUILD_BREADTH = 32, 128
_MOST_LISTS = 16384
_TRAIN_A_LIST = 40
_FEWEST_FOR_CODES = 256
_CANDIDATES = 100
"""Passages that codes propose for a query and true vectors put in order; ten times `top_k` where that is more."""
_SPARE = 8
"""Passages that are fetched beyond `top_k`, to see the ties of the last place."""
_TEST_QUERIES = 1000
_MANY_ROWS, _FEW_TEST_QUERIES = 1_000_000, 200
"""So many vectors are compared with fewer test queries, since all are compared with each."""
_ROUNDING = 1e-5

Hit: TypeAlias = tuple[float, int]
"""Score and row."""


def choose_kind(rows: int) -> str:
    """The kind of index that fits so many passages on a machine without a GPU."""
    return "flat" if rows <= FLAT_UP_TO else "hnsw" if rows <= HNSW_UP_TO else "ivfpq"


def build_faiss(
    folder: Path,
    *,
    kind: str = "auto",
    seed: int = 0,
    threads: int = 0,
    queries: Vectors | None = None,
    target: float = TARGET,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Index the vectors of a folder, set the search to the recall asked for, and describe it all in `dense.json`.

    `flat` compares float16 vectors one by one, `hnsw` walks a graph of them,
    `ivfpq` compares codes of d/8 bytes in the nearest lists and puts the best
    candidates in order by their float16 vectors. Recall of the first ten is
    measured against the exact search with `queries`; without any, with
    sampled passages, each drawn half-way towards another one, which proved as
    hard as real questions. `threads` 0 takes all cores; a graph is the same
    every time with 1 alone.
    """
    vectors = open_vectors(folder)
    state = read_json(folder / STATE)
    rows, dimension = vectors.shape
    if kind == "auto":
        kind = choose_kind(rows)
    if kind not in KINDS:
        raise ConfigError(f"the index kind is {kind!r}; choose one of: auto, {', '.join(KINDS)}")
    if kind == "ivfpq" and rows < _FEWEST_FOR_CODES:
        raise ConfigError(f"an ivfpq index learns from {_FEWEST_FOR_CODES} passages or more, not {rows}; choose flat")
    faiss = load_faiss()
    with _using_threads(threads):
        index = _new_index(faiss, kind, rows, dimension, seed)
        if not index.is_trained:
            if progress:
                progress("training", 0, None)
            index.train(_training_sample(vectors, index, seed))
        for start in range(0, rows, BLOCK):
            index.add(vectors[start : start + BLOCK].astype(np.float32))
            if progress:
                progress("indexing", min(start + BLOCK, rows), rows)
        report: dict[str, Any] = {"search": {}, "recall": None}
        if kind != "flat" and rows:
            report = _tune(index, kind, vectors, queries, seed, target, progress)
    unfinished = folder / f"{INDEX}.part"
    faiss.write_index(index, str(unfinished))
    unfinished.replace(folder / INDEX)
    part = {
        "format": FORMAT,
        "kind": kind,
        "rows": rows,
        "dimension": dimension,
        "encoder": state["encoder"],
        "passages": state["passages"],
        "cut": state["cut"],
        "faiss": faiss.__version__,
        "seed": seed,
        **report,
    }
    write_json(folder / PART, part)
    return part


def _new_index(faiss: Any, kind: str, rows: int, dimension: int, seed: int) -> Any:
    half, product = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    if kind == "flat":
        return faiss.IndexScalarQuantizer(dimension, half, product)
    if kind == "hnsw":
        index = faiss.IndexHNSWSQ(dimension, half, _LINKS, product)
        index.hnsw.efConstruction = _BUILD_BREADTH
        index.hnsw.rng = faiss.RandomGenerator(seed)
        return index
    lists = max(1, min(int(4 * rows**0.5), rows // _TRAIN_A_LIST, _MOST_LISTS))
    codes = max(size for size in range(1, max(1, dimension // 8) + 1) if dimension % size == 0)
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(dimension), dimension, lists, codes, 8, product)
    for clustering in (index.cp, index.pq.cp):
        clustering.seed = seed
        clustering.min_points_per_centroid = 1  # it would print a warning about small corpora
    return index


def _training_sample(vectors: HalfVectors, index: Any, seed: int) -> Vectors:
    size = max(_TRAIN_A_LIST * getattr(index, "nlist", 1), _TRAIN_A_LIST * 256)
    if size >= len(vectors):
        return vectors.astype(np.float32)
    rows = np.random.default_rng(seed).choice(len(vectors), size, replace=False)
    return vectors[np.sort(rows)].astype(np.float32)


def _tune(
    index: Any,
    kind: str,
    vectors: HalfVectors,
    queries: Vectors | None,
    seed: int,
    target: float,
    progress: Progress | None,
) -> dict[str, Any]:
    """The narrowest search that reaches the target, with the recall of all that were tried."""
    measured_on = "queries" if queries is not None else "mixed passages"
    if queries is None:
        queries = _mixed_passages(vectors, seed)
    top_k = min(RECALL_AT, len(vectors))
    scores, _ = exact_nearest(vectors, queries, top_k, progress=progress)
    # By scores and not by rows: of passages with the same text, each is as near as the other.
    lowest = (scores.min(axis=1) - _ROUNDING).tolist()
    name, first, most = ("efSearch", 16, 1024) if kind == "hnsw" else ("nprobe", 1, int(index.nlist))
    tried: dict[str, float] = {}
    value = min(first, most)
    while True:
        searched = VectorIndex(index, {name: value}, vectors if kind == "ivfpq" else None)
        found = searched.nearest(queries, top_k)
        hits = sum(score >= least for near, least in zip(found, lowest, strict=True) for score, _ in near)
        recall = round(hits / scores.size, 4)
        tried[str(value)] = recall
        if recall >= target or value >= most:
            break
        value = min(2 * value, most)
    if recall < target:
        _log.warning("the %s index finds %.3f of the nearest %d, not %s; see %s", kind, recall, top_k, target, PART)
    return {
        "search": {name: value},
        "recall": {
            "at": top_k,
            "value": recall,
            "target": target,
            "tried": tried,
            "queries": len(queries),
            "measured_on": measured_on,
        },
    }


def _mixed_passages(vectors: HalfVectors, seed: int) -> Vectors:
    rng = np.random.default_rng(seed)
    count = _TEST_QUERIES if len(vectors) <= _MANY_ROWS else _FEW_TEST_QUERIES
    rows, others = rng.integers(0, len(vectors), (2, count))
    mixed = vectors[rows].astype(np.float32) + 0.5 * vectors[others].astype(np.float32)
    lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
    return np.asarray(mixed / np.maximum(lengths, 1e-12), dtype=np.float32)


def exact_nearest(
    vectors: HalfVectors, queries: Vectors, top_k: int, *, progress: Progress | None = None
) -> tuple[Vectors, NDArray[np.int64]]:
    """Scores and rows of the `top_k` nearest vectors of each query, in no order, by comparing all."""
    rows = np.zeros((len(queries), 0), dtype=np.int64)
    scores = np.zeros((len(queries), 0), dtype=np.float32)
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float32)
        scores = np.hstack([scores, queries @ block.T])
        rows = np.hstack([rows, np.broadcast_to(np.arange(start, start + len(block)), (len(queries), len(block)))])
        if scores.shape[1] > top_k:
            best = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
            rows, scores = np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1)
        if progress:
            progress("measuring recall", min(start + BLOCK, len(vectors)), len(vectors))
    return scores, rows


@dataclass(frozen=True)
class VectorIndex:
    """A FAISS index and how to search it."""

    index: Any
    search: Mapping[str, int]
    """The breadth of the search; empty leaves it as the index has it."""
    vectors: HalfVectors | None = None
    """With these, hits of the index are candidates only, and their order is that of the true vectors."""

    def nearest(self, queries: Vectors, top_k: int, *, spare: int = _SPARE) -> list[list[Hit]]:
        """Up to `top_k` rows for each query with their scores, best first, the earlier row first where they tie."""
        faiss = load_faiss()
        total = int(self.index.ntotal)
        limit = top_k + spare if self.vectors is None else max(_CANDIDATES, 10 * top_k)
        limit = min(limit, total)
        if limit <= 0:
            return [[] for _ in queries]
        parameters = None
        if "efSearch" in self.search:
            parameters = faiss.SearchParametersHNSW(efSearch=self.search["efSearch"])
        elif "nprobe" in self.search:
            parameters = faiss.SearchParametersIVF(nprobe=self.search["nprobe"])
        scores, rows = self.index.search(np.ascontiguousarray(queries), limit, params=parameters)
        if self.index.metric_type == faiss.METRIC_L2:
            scores = -scores
        found = []
        for query, near, at in zip(queries, scores, rows, strict=True):
            filled = at >= 0
            near, at = near[filled], at[filled]
            if self.vectors is not None:
                at = np.sort(at)
                near = (self.vectors[at].astype(np.float32) * query).sum(axis=1)
            elif len(at) == limit < total and top_k < limit and near[-1] == near[top_k - 1]:
                # The tie goes on beyond what was fetched, and the index took any of its rows.
                found += self.nearest(query[None], top_k, spare=4 * spare)
                continue
            found.append(
                sorted(zip(near.tolist(), at.tolist(), strict=True), key=lambda hit: (-hit[0], hit[1]))[:top_k]
            )
        return found


def load_faiss() -> Any:
    """The library, or one line on how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("dense retrieval needs faiss; install it with: pip install 'mrsearch[dense]'") from error
    return faiss


def map_index(file: Path) -> Any:
    """An index on disk, of which pages are read as searches need them."""
    faiss = load_faiss()
    if not file.exists():
        raise DataError(f"there is no FAISS index {file}; check its path")
    try:
        # This flag maps all kinds; IO_FLAG_MMAP reads flat and graph indexes into memory.
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        reason = str(error).rpartition("Error: ")[2] or str(error)
        raise DataError(f"{file} is no readable FAISS index ({reason[:200]}); fetch or build it again") from None


@contextmanager
def _using_threads(threads: int) -> Iterator[None]:
    """Let FAISS use so many threads for a while; 0 changes nothing."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
