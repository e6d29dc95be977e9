"""Vectors of passages on disk: `vectors.f16` (float16 little-endian, [n, d], rows in the order of the passages).

`vectors.json` beside it says how far the encoding is, and with what. Which texts
become which vectors is the encoder's business.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mrsearch.core.types import Passage
from mrsearch.errors import DataError
from mrsearch.retrieval.encode import TextEncoder, Vectors, passage_text
from mrsearch.retrieval.wire import clean_text

_log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the files in a folder."""
PART, VECTORS, STATE, INDEX = "dense.json", "vectors.f16", "vectors.json", "vectors.faiss"

BLOCK = 8192
"""Passages that are encoded, or vectors that are read, at once."""
_SAMPLED = 64

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and of how much."""
HalfVectors: TypeAlias = NDArray[np.float16]


def write_vectors(
    passages: Sequence[Passage],
    encoder: TextEncoder,
    folder: Path,
    *,
    progress: Progress | None = None,
    block: int = BLOCK,
) -> None:
    """Encode all passages into `folder`, which exists; goes on after the last whole block of a killed call.

    The bytes are the same then as without the kill. `DataError` where the
    folder holds vectors of other passages or of another encoder.
    """
    state = state_of(passages, encoder, block)
    done, cut = _resume(folder, state)
    with vectors_from(folder, done * encoder.dimension * 2) as file:
        while done < len(passages):
            before = encoder.cut_passages
            rows = range(done, min(done + block, len(passages)))
            append(file, encoder.passages([passage_text(passages[row]) for row in rows]))
            done, cut = rows.stop, cut + encoder.cut_passages - before
            write_json(folder / STATE, {**state, "done": done, "cut": cut})
            if progress:
                progress("encoding", done, len(passages))
    write_json(folder / STATE, {**state, "done": done, "cut": cut})
    if cut:
        _log.warning("of %d of %d passages only the first tokens were encoded", cut, len(passages))


def open_vectors(folder: Path) -> HalfVectors:
    """The vectors of a folder, memory-mapped; `DataError` where the encoding is not finished."""
    state = read_json(folder / STATE)
    rows, dimension = state["rows"], state["dimension"]
    if state["done"] < rows:
        raise DataError(f"{folder} has vectors of {state['done']} of {rows} passages; finish the encoding first")
    if not rows:
        return np.zeros((0, dimension), dtype=np.float16)
    try:
        return np.memmap(folder / VECTORS, dtype="<f2", mode="r", shape=(rows, dimension))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / VECTORS} cannot be read ({error}); build the index again") from None


def sample_passages(passages: Sequence[Passage]) -> str:
    """A short hash of the number of passages and of some of their texts, evenly spread."""
    digest = hashlib.sha256(str(len(passages)).encode())
    last = len(passages) - 1
    for row in sorted({last * i // (_SAMPLED - 1) for i in range(_SAMPLED)}) if passages else []:
        passage = passages[row]
        digest.update(clean_text(f"\n{passage.id}\n{passage_text(passage)}").encode())
    return digest.hexdigest()[:16]


def state_of(passages: Sequence[Passage], encoder: TextEncoder, block: int) -> dict[str, Any]:
    """What `vectors.json` says of these passages and this encoder, but for how far it is."""
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
def vectors_from(folder: Path, size: int) -> Iterator[BinaryIO]:
    """The file of vectors, cut to so many bytes and open at their end."""
    with (folder / VECTORS).open("r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        yield file


def append(file: BinaryIO, vectors: Vectors) -> None:
    """Write more vectors, onto the disk itself."""
    file.write(vectors.astype("<f2").tobytes())
    file.flush()
    os.fsync(file.fileno())


def _resume(folder: Path, state: Mapping[str, Any]) -> tuple[int, int]:
    """Rows that an earlier call finished, and how many of their texts were too long."""
    if not (folder / STATE).exists():
        return 0, 0
    found = read_json(folder / STATE)
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


def read_json(path: Path) -> dict[str, Any]:
    """An object from one of the files here; `DataError` if it is not whole."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no {path}: it is no finished dense index; build it first") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read ({error}); build the index again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no object; build the index again")
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Put an object in place of the one before, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)
