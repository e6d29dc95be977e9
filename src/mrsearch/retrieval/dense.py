"""Dense retrieval: passages as vectors on disk, a FAISS index over them, and the search by nearest vectors.

A folder holds `vectors.f16` (float16 little-endian, [n, d], rows in the order
of the passages), `vectors.json` (how far the encoding is, and with what), the
index `vectors.faiss`, and, written last, `dense.json`, which describes the
whole. A FAISS index that was built elsewhere is used where it lies. Which
texts become which vectors is the encoder's business.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, DataError, MissingExtra
from mrsearch.retrieval.encode import (
    DeviceVectors,
    Encoder,
    EncoderSettings,
    TextEncoder,
    Vectors,
    choose_device,
    fingerprint,
    passage_text,
)
from mrsearch.retrieval.wire import clean_text

_log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the files in a folder."""
PART, VECTORS, STATE, INDEX = "dense.json", "vectors.f16", "vectors.json", "vectors.faiss"

KINDS = ("flat", "hnsw", "ivfpq")
FLAT_UP_TO = 50_000
"""Passages up to which every vector is compared: exact, and some milliseconds a query on one core."""
HNSW_UP_TO = 300_000
"""Passages up to which a graph is built: all vectors in memory, a millisecond a query; beyond, codes of d/8 bytes."""

RECALL_AT = 10
TARGET = 0.95
"""Share of the true nearest ten that an index is set to find."""

_BLOCK = 8192
_LINKS, _BUILD_BREADTH = 32, 128
_MOST_LISTS = 16384
_TRAIN_A_LIST = 40
_FEWEST_FOR_CODES = 256
_CANDIDATES = 100
"""Passages that codes propose for a query and true vectors put in order; ten times `top_k` where that is more."""
_SPARE = 8
"""Passages that are fetched beyond `top_k`, to see the ties of the last place."""
_GPU_SHARE = 0.25
"""Share of a GPU's free memory that vectors may take unasked: a policy may live there too. Asked, all but a tenth."""
_USUAL_BREADTH = {"efSearch": 128, "nprobe": 64}
_TEST_QUERIES = 1000
_MANY_ROWS, _FEW_TEST_QUERIES = 1_000_000, 200
"""So many vectors are compared with fewer test queries, since all are compared with each."""
_ROUNDING = 1e-5
_SAMPLED = 64

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and of how much."""
Hit: TypeAlias = tuple[float, int]
"""Score and row."""
HalfVectors: TypeAlias = NDArray[np.float16]


# -- vectors ----------------------------------------------------------------------------------


def write_vectors(
    passages: Sequence[Passage],
    encoder: TextEncoder,
    folder: Path,
    *,
    progress: Progress | None = None,
    block: int = _BLOCK,
) -> None:
    """Encode all passages into `folder`, which exists; goes on after the last whole block of a killed call.

    The bytes are the same then as without the kill. `DataError` where the
    folder holds vectors of other passages or of another encoder.
    """
    state = _state(passages, encoder, block)
    done, cut = _resume(folder, state)
    with _vectors_from(folder, done * encoder.dimension * 2) as file:
        while done < len(passages):
            before = encoder.cut_passages
            rows = range(done, min(done + block, len(passages)))
            _append(file, encoder.passages([passage_text(passages[row]) for row in rows]))
            done, cut = rows.stop, cut + encoder.cut_passages - before
            _write_json(folder / STATE, {**state, "done": done, "cut": cut})
            if progress:
                progress("encoding", done, len(passages))
    _write_json(folder / STATE, {**state, "done": done, "cut": cut})
    if cut:
        _log.warning("of %d of %d passages only the first tokens were encoded", cut, len(passages))


def take_vectors(
    index_file: Path,
    passages: Sequence[Passage],
    folder: Path,
    encoder: TextEncoder,
    *,
    progress: Progress | None = None,
) -> None:
    """Write the vectors of a flat FAISS index that was built elsewhere, in place of encoding the passages.

    What is checked is what `adopt_faiss` checks. `build_faiss` can then make
    a smaller or faster index of them.
    """
    index = _map_index(index_file)
    _check_foreign(index, index_file, passages, encoder)
    if not isinstance(index, _faiss().IndexFlat) or index.metric_type != DeviceVectors.metric_type:
        raise DataError(
            f"{index_file} is an {type(index).__name__}; vectors can be taken from a flat index of inner products "
            "alone; use it as it is"
        )
    state = _state(passages, encoder, _BLOCK)
    with _vectors_from(folder, 0) as file:
        for start in range(0, len(passages), _BLOCK):
            count = min(_BLOCK, len(passages) - start)
            _append(file, index.reconstruct_n(start, count))
            if progress:
                progress("taking vectors", start + count, len(passages))
    _write_json(folder / STATE, {**state, "done": len(passages), "cut": 0})


def _state(passages: Sequence[Passage], encoder: TextEncoder, block: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "rows": len(passages),
        "dimension": encoder.dimension,
        "dtype": "float16",
        "block": block,
        "passages": sample_passages(passages),
        "encoder": encoder.describe(),
    }


@contextmanager
def _vectors_from(folder: Path, size: int) -> Iterator[BinaryIO]:
    """The file of vectors, cut to so many bytes and open at their end."""
    with (folder / VECTORS).open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        yield file


def _append(file: BinaryIO, vectors: Vectors) -> None:
    file.write(vectors.astype("<f2").tobytes())
    file.flush()
    os.fsync(file.fileno())


def _resume(folder: Path, state: Mapping[str, Any]) -> tuple[int, int]:
    """Rows that an earlier call finished, and how many of their texts were too long."""
    if not (folder / STATE).exists():
        return 0, 0
    found = _read_json(folder / STATE)
    for key, value in state.items():
        if found.get(key) != value:
            raise DataError(
                f"{folder} holds {found.get('done')} vectors of another build: its {key} was "
                f"{ascii(found.get(key))[:200]} and is {ascii(value)[:200]}; delete the folder to begin anew"
            )
    done, size = int(found["done"]), int(state["dimension"]) * 2
    if not (folder / VECTORS).exists() or (folder / VECTORS).stat().st_size < done * size:
        raise DataError(f"{folder / VECTORS} has fewer than the {done} vectors it is said to have; delete the folder")
    return done, int(found["cut"])


def sample_passages(passages: Sequence[Passage]) -> str:
    """A short hash of the number of passages and of some of their texts, evenly spread."""
    digest = hashlib.sha256(str(len(passages)).encode())
    last = len(passages) - 1
    for row in sorted({last * i // (_SAMPLED - 1) for i in range(_SAMPLED)}) if passages else []:
        passage = passages[row]
        digest.update(clean_text(f"\n{passage.id}\n{passage_text(passage)}").encode())
    return digest.hexdigest()[:16]


def open_vectors(folder: Path) -> HalfVectors:
    """The vectors of a folder, memory-mapped; `DataError` where the encoding is not finished."""
    state = _read_json(folder / STATE)
    rows, dimension = state["rows"], state["dimension"]
    if state["done"] < rows:
        raise DataError(f"{folder} has vectors of {state['done']} of {rows} passages; finish the encoding first")
    if not rows:
        return np.zeros((0, dimension), dtype=np.float16)
    try:
        return np.memmap(folder / VECTORS, dtype="<f2", mode="r", shape=(rows, dimension))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / VECTORS} cannot be read ({error}); build the index again") from None


# -- index ------------------------------------------------------------------------------------


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
    state = _read_json(folder / STATE)
    rows, dimension = vectors.shape
    if kind == "auto":
        kind = choose_kind(rows)
    if kind not in KINDS:
        raise ConfigError(f"the index kind is {kind!r}; choose one of: auto, {', '.join(KINDS)}")
    if kind == "ivfpq" and rows < _FEWEST_FOR_CODES:
        raise ConfigError(f"an ivfpq index learns from {_FEWEST_FOR_CODES} passages or more, not {rows}; choose flat")
    faiss = _faiss()
    with _using_threads(threads):
        index = _new_index(faiss, kind, rows, dimension, seed)
        if not index.is_trained:
            if progress:
                progress("training", 0, None)
            index.train(_training_sample(vectors, index, seed))
        for start in range(0, rows, _BLOCK):
            index.add(vectors[start : start + _BLOCK].astype(np.float32))
            if progress:
                progress("indexing", min(start + _BLOCK, rows), rows)
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
    _write_json(folder / PART, part)
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
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK].astype(np.float32)
        scores = np.hstack([scores, queries @ block.T])
        rows = np.hstack([rows, np.broadcast_to(np.arange(start, start + len(block)), (len(queries), len(block)))])
        if scores.shape[1] > top_k:
            best = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
            rows, scores = np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1)
        if progress:
            progress("measuring recall", min(start + _BLOCK, len(vectors)), len(vectors))
    return scores, rows


# -- an index of others -----------------------------------------------------------------------


def adopt_faiss(index_file: Path, passages: Sequence[Passage], folder: Path, encoder: TextEncoder) -> dict[str, Any]:
    """Use a FAISS index that was built elsewhere over these passages, where it lies; describes it in `dense.json`.

    Checked: its number and size of vectors, its measure, and, where it can
    give vectors back, that some passages encoded anew lie nearest their own.
    An index that approximates is searched at least as broadly as is usual,
    since files are saved with the library's narrow defaults; its recall is not known.
    """
    index_file = index_file.resolve()
    index = _map_index(index_file)
    checked = _check_foreign(index, index_file, passages, encoder)
    part = {
        "format": FORMAT,
        "kind": "adopted",
        "rows": len(passages),
        "dimension": index.d,
        "encoder": encoder.describe(),
        "passages": sample_passages(passages),
        "file": str(index_file),
        "bytes": index_file.stat().st_size,
        "fingerprint": fingerprint(index_file),
        "type": type(index).__name__,
        "faiss": _faiss().__version__,
        "checked": checked,
        "search": _broad_search(index),
        "recall": None,
    }
    _write_json(folder / PART, part)
    return part


def _check_foreign(index: Any, index_file: Path, passages: Sequence[Passage], encoder: TextEncoder) -> dict[str, Any]:
    """What a sample shows of the index; `DataError` where it does not fit the passages or the encoder."""
    rows = len(passages)
    if index.ntotal != rows:
        raise DataError(
            f"{index_file} has {index.ntotal} vectors and the corpus {rows} passages; name the corpus it was built from"
        )
    if index.d != encoder.dimension:
        raise DataError(
            f"{index_file} has vectors of {index.d} numbers and the encoder makes {encoder.dimension}; name the model "
            "that it was built with"
        )
    faiss = _faiss()
    if index.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
        raise DataError(
            f"{index_file} compares vectors by FAISS's measure {index.metric_type}; only inner product and L2 rank "
            "passages here"
        )
    if hasattr(index, "id_map") and rows:
        ids = faiss.vector_to_array(index.id_map)
        if ids.min() < 0 or ids.max() >= rows:
            raise DataError(f"{index_file} has ids from {ids.min()} to {ids.max()}; they must be rows of the corpus")
    return _check_sample(index, index_file, passages, encoder)


def _broad_search(index: Any) -> dict[str, int]:
    if hasattr(index, "hnsw"):
        return {"efSearch": max(int(index.hnsw.efSearch), _USUAL_BREADTH["efSearch"])}
    if hasattr(index, "nprobe"):
        return {"nprobe": min(int(index.nlist), max(int(index.nprobe), _USUAL_BREADTH["nprobe"]))}
    return {}


def _check_sample(index: Any, index_file: Path, passages: Sequence[Passage], encoder: TextEncoder) -> dict[str, Any]:
    """Whether passages encoded anew lie nearest their own vectors, and how near; empty where it cannot be seen."""
    last = len(passages) - 1
    if last < 1:
        return {}
    # Texts that occur twice lie equally near.
    rows = list({passage_text(passages[row]): row for row in sorted({last * i // 7 for i in range(8)})}.values())
    try:
        stored = np.stack([index.reconstruct(row) for row in rows])
    except RuntimeError:  # not all kinds can
        return {}
    stored /= np.maximum(np.linalg.norm(stored, axis=1, keepdims=True), 1e-12)
    cosines = encoder.passages([passage_text(passages[row]) for row in rows]) @ stored.T
    right = int((cosines.argmax(axis=1) == np.arange(len(rows))).sum())
    own = float(np.diag(cosines).mean())
    if right < 0.75 * len(rows):
        raise DataError(
            f"{index_file} is not this model's over this corpus: of {len(rows)} passages encoded anew {right} lie "
            f"nearest their own vectors (mean cosine {own:.2f}); check the model, its prefixes, and the corpus's order"
        )
    return {"passages": len(rows), "right": right, "cosine": round(own, 4)}


# -- search -----------------------------------------------------------------------------------


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
        faiss = _faiss()
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


class DenseRetriever:
    """Finds the passages whose vectors lie nearest the query's. For use from many threads."""

    def __init__(self, passages: Sequence[Passage], encoder: TextEncoder, index: VectorIndex) -> None:
        self._passages = passages
        self._encoder = encoder
        self._index = index

    @classmethod
    def open(
        cls,
        folder: Path,
        passages: Sequence[Passage],
        *,
        device: str = "auto",
        model: str | None = None,
        encoder: TextEncoder | None = None,
    ) -> DenseRetriever:
        """Open what `build_faiss` or `adopt_faiss` left in a folder, memory-mapped.

        With a GPU all vectors are compared there instead, where they fit. The
        encoder is loaded as it was; `model` says where it lies now.
        """
        part = _read_json(folder / PART)
        if part.get("format") != FORMAT:
            raise DataError(f"{folder / PART} has format {part.get('format')!r}; this version reads {FORMAT}")
        if part["rows"] != len(passages) or part["passages"] != sample_passages(passages):
            raise DataError(
                f"{folder} is a dense index of {part['rows']} passages that are not the {len(passages)} given; "
                "build it again"
            )
        adopted = part["kind"] == "adopted"
        file = Path(part["file"]) if adopted else folder / INDEX
        if adopted and (not file.exists() or file.stat().st_size != part["bytes"]):
            raise DataError(f"the index {file} was moved or changed since it was taken into use; take it in again")
        if adopted and fingerprint(file) != part["fingerprint"]:
            raise DataError(f"the index {file} has changed since it was taken into use; take it in again")
        index = _map_index(file)
        if index.ntotal != part["rows"] or index.d != part["dimension"]:
            raise DataError(f"{file} has {index.ntotal} vectors, not {part['rows']}; build the index again")
        if encoder is None:
            encoder = Encoder.load(EncoderSettings.from_description(part["encoder"], model=model), device)
        _check_encoder(encoder, part["encoder"], folder)
        on_gpu = _on_gpu(index, None if adopted else open_vectors(folder), device)
        if on_gpu is not None:
            return cls(passages, encoder, VectorIndex(on_gpu, {}))
        vectors = open_vectors(folder) if part["kind"] == "ivfpq" else None
        return cls(passages, encoder, VectorIndex(index, part["search"], vectors))

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages for each query, nearest first, ties in the order of the corpus.

        None for a blank query.
        """
        wanted = {
            (request.query, min(request.top_k, len(self._passages))): None
            for request in requests
            if request.query.strip() and request.top_k > 0 and self._passages
        }
        queries = list(dict.fromkeys(query for query, _ in wanted))
        vectors = dict(zip(queries, self._encoder.queries(queries), strict=True)) if queries else {}
        found: dict[tuple[str, int], list[Hit]] = {}
        for top_k in dict.fromkeys(top_k for _, top_k in wanted):
            group = [query for query, size in wanted if size == top_k]
            hits = self._index.nearest(np.stack([vectors[query] for query in group]), top_k)
            found.update({(query, top_k): near for query, near in zip(group, hits, strict=True)})
        return [
            [self._passage(hit) for hit in found.get((request.query, min(request.top_k, len(self._passages))), ())]
            for request in requests
        ]

    def _passage(self, hit: Hit) -> Passage:
        score, row = hit
        passage = self._passages[row]
        return Passage(passage.id, passage.title, passage.text, score)


def _on_gpu(index: Any, vectors: HalfVectors | None, device: str) -> DeviceVectors | None:
    """The vectors, or those of the index, on the GPU that is meant; None where they do not fit or there is none."""
    chosen = choose_device(device)
    if not chosen.startswith("cuda") or not index.ntotal:
        return None
    rows, dimension = int(index.ntotal), int(index.d)
    if not DeviceVectors.fit(rows, dimension, chosen, _GPU_SHARE if device == "auto" else 0.9):
        _log.info("%d vectors are too many for the free memory of %s; they are searched on the processor", rows, chosen)
        return None
    starts = range(0, rows, _BLOCK)
    if vectors is not None:
        return DeviceVectors((vectors[start : start + _BLOCK] for start in starts), rows, dimension, chosen)
    if not isinstance(index, _faiss().IndexFlat) or index.metric_type != DeviceVectors.metric_type:
        return None
    blocks = (index.reconstruct_n(start, min(_BLOCK, rows - start)) for start in starts)
    return DeviceVectors(blocks, rows, dimension, chosen)


def _check_encoder(encoder: TextEncoder, expected: Mapping[str, Any], folder: Path) -> None:
    described = encoder.describe()
    for key in ("dimension", "weights", "pooling", "passage_prefix"):
        if key == "weights" and not (described.get(key) and expected.get(key)):
            continue  # a hub's cache does not always tell where the files lie
        if described.get(key) != expected.get(key):
            raise DataError(
                f"{folder} holds vectors of another encoder: its {key} was {expected.get(key)!r} and is "
                f"{described.get(key)!r}; use the model {expected.get('model')!r} as it was, or build the index again"
            )


# -- FAISS and files --------------------------------------------------------------------------


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("dense retrieval needs faiss; install it with: pip install 'mrsearch[dense]'") from error
    return faiss


@contextmanager
def _using_threads(threads: int) -> Iterator[None]:
    """Let FAISS use so many threads for a while; 0 changes nothing."""
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _map_index(file: Path) -> Any:
    """An index on disk, of which pages are read as searches need them."""
    faiss = _faiss()
    if not file.exists():
        raise DataError(f"there is no FAISS index {file}; check its path")
    try:
        # This flag maps all kinds; IO_FLAG_MMAP reads flat and graph indexes into memory.
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        reason = str(error).rpartition("Error: ")[2] or str(error)
        raise DataError(f"{file} is no readable FAISS index ({reason[:200]}); fetch or build it again") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no {path}: it is no finished dense index; build it first") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}); build the index again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no object; build the index again")
    return found


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)
