"""FAISS indexes that were built elsewhere: used where they lie, or taken for their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mrsearch.core.types import Passage
from mrsearch.errors import DataError
from mrsearch.retrieval.encode import DeviceVectors, TextEncoder, fingerprint, passage_text
from mrsearch.retrieval.vector_index import load_faiss, map_index
from mrsearch.retrieval.vectors import (
    BLOCK,
    FORMAT,
    PART,
    STATE,
    Progress,
    append,
    sample_passages,
    state_of,
    vectors_from,
    write_json,
)

_USUAL_BREADTH = {"efSearch": 128, "nprobe": 64}


def adopt_faiss(index_file: Path, passages: Sequence[Passage], folder: Path, encoder: TextEncoder) -> dict[str, Any]:
    """Use a FAISS index that was built elsewhere over these passages, where it lies; describes it in `dense.json`.

    Checked: its number and size of vectors, its measure, and, where it can
    give vectors back, that some passages encoded anew lie nearest their own.
    An index that approximates is searched at least as broadly as is usual,
    since files are saved with the library's narrow defaults; its recall is not known.
    """
    index_file = index_file.resolve()
    index = map_index(index_file)
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
        "faiss": load_faiss().__version__,
        "checked": checked,
        "search": _broad_search(index),
        "recall": None,
    }
    write_json(folder / PART, part)
    return part


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
    index = map_index(index_file)
    _check_foreign(index, index_file, passages, encoder)
    if not isinstance(index, load_faiss().IndexFlat) or index.metric_type != DeviceVectors.metric_type:
        raise DataError(
            f"{index_file} is an {type(index).__name__}; vectors can be taken from a flat index of inner products "
            "alone; use it as it is"
        )
    state = state_of(passages, encoder, BLOCK)
    with vectors_from(folder, 0) as file:
        for start in range(0, len(passages), BLOCK):
            count = min(BLOCK, len(passages) - start)
            append(file, index.reconstruct_n(start, count))
            if progress:
                progress("taking vectors", start + count, len(passages))
    write_json(folder / STATE, {**state, "done": len(passages), "cut": 0})


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
    faiss = load_faiss()
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
