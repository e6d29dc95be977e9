"""Dense retrieval: the search by nearest vectors in a finished folder.

A folder holds the vectors (vectors.py), the index `vectors.faiss` over them
(vector_index.py) unless that lies elsewhere (adopted.py), and, written last,
`dense.json`, which describes the whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import DataError
from mrsearch.retrieval.encode import DeviceVectors, Encoder, EncoderSettings, TextEncoder, choose_device, fingerprint
from mrsearch.retrieval.vector_index import Hit, VectorIndex, load_faiss, map_index
from mrsearch.retrieval.vectors import BLOCK, FORMAT, INDEX, PART, HalfVectors, open_vectors, read_json, sample_passages

_log = logging.getLogger(__name__)

_GPU_SHARE = 0.25
"""Share of a GPU's free memory that vectors may take unasked: a policy may live there too. Asked, all but a tenth."""


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
        part = read_json(folder / PART)
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
        index = map_index(file)
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
    starts = range(0, rows, BLOCK)
    if vectors is not None:
        return DeviceVectors((vectors[start : start + BLOCK] for start in starts), rows, dimension, chosen)
    if not isinstance(index, load_faiss().IndexFlat) or index.metric_type != DeviceVectors.metric_type:
        return None
    blocks = (index.reconstruct_n(start, min(BLOCK, rows - start)) for start in starts)
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
