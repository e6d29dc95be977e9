"""An index on disk, opened only if everything in it fits.

    INDEX/
      manifest.json    what was indexed, how, with which libraries; sizes and hashes of all files
      bad_rows.jsonl   rows of the corpus that were left out
      passages/        the texts (store.py)
      bm25/, dense/    what finds them (bm25.py, dense.py)

It is built by `indexing`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from mrsearch.core.ports import Retriever, Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, DataError
from mrsearch.retrieval.bm25 import BM25Retriever, Words
from mrsearch.retrieval.corpus import Corpus
from mrsearch.retrieval.manifest import PARTS, PASSAGES, Hashing, Manifest, Progress, read_manifest
from mrsearch.retrieval.store import PassageStore

_log = logging.getLogger(__name__)


class Index:
    """An opened index. For use from many threads."""

    def __init__(
        self, folder: Path, manifest: Manifest, kind: str, passages: PassageStore, retriever: Retriever
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.kind = kind
        """How it searches, which is one of the kinds that it holds."""
        self.identity = manifest.identity_of(kind)
        self.passages = passages
        self.retriever = retriever

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages for each request, best first."""
        return self.retriever.search(requests)


def open_index(folder: str | Path, *, kind: str = "", device: str = "auto", model: str = "") -> Index:
    """Open an index to search it, by default as what it was built for; `DataError` says what does not fit.

    `model` says where the model of the vectors lies, if it is no longer where it was.
    Sizes are checked here and hashes by `check_index`. A corpus that seems to
    have changed since is logged as a warning: the index holds its own texts.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    kind = kind or manifest.kind
    if kind not in PARTS or not set(PARTS[kind]) <= set(PARTS[manifest.kind]):
        held = [name for name, parts in PARTS.items() if set(parts) <= set(PARTS[manifest.kind])]
        raise ConfigError(
            f"{folder} is an index of kind {manifest.kind}, which cannot be searched as {kind!r}; it can as: "
            f"{', '.join(held)}"
        )
    for problem in _wrong_sizes(folder, manifest):
        raise DataError(f"{problem}; build the index again, or copy it whole")
    passages = PassageStore.open(folder / PASSAGES)
    if len(passages) != manifest.passages:
        raise DataError(
            f"{folder} has {len(passages)} passages, but its manifest says {manifest.passages}; build the index again"
        )
    retrievers = [
        _open_bm25(folder, manifest, passages) if part == "bm25" else _open_dense(folder, passages, device, model)
        for part in PARTS[kind]
    ]
    for change in _changes(manifest, thorough=False):
        _log.warning("%s since %s was built; the index holds its own texts; to see: mrsearch index %s --check",
                     change, folder, folder)  # fmt: skip
        break
    return Index(folder, manifest, kind, passages, retrievers[0] if len(retrievers) == 1 else _fused(retrievers))


def check_index(folder: str | Path, progress: Progress | None = None) -> list[str]:
    """Read every byte of an index, and of its corpus if that is still there; what is wrong, a sentence each."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    problems = _wrong_sizes(folder, manifest)
    if problems:
        return problems
    hashing = Hashing("checking files", manifest.size, progress)
    for name, file in manifest.files.items():
        if hashing.sha256(folder / name) != file["sha256"]:
            problems.append(f"{folder / name} is not what was written: its hash differs")
    if not problems and "bm25" in PARTS[manifest.kind]:
        _open_bm25(folder, manifest, PassageStore.open(folder / PASSAGES))
    adopted = manifest.reports.get("dense", {}).get("file")
    if adopted:
        problems.extend(_wrong_adopted(Path(adopted), manifest.reports["dense"]["fingerprint"]))
    problems.extend(
        f"{change} since the index was built" for change in _changes(manifest, thorough=True, progress=progress)
    )
    return problems


def _open_bm25(folder: Path, manifest: Manifest, passages: PassageStore) -> Retriever:
    return BM25Retriever.open(folder / "bm25", passages, Words(**manifest.settings["bm25"]))


def _open_dense(folder: Path, passages: PassageStore, device: str, model: str) -> Retriever:
    from mrsearch.retrieval.dense import DenseRetriever

    return DenseRetriever.open(folder / "dense", passages, device=device, model=model or None)


def _fused(retrievers: Sequence[Retriever]) -> Retriever:
    from mrsearch.retrieval.hybrid import HybridRetriever

    return HybridRetriever(retrievers)


def _changes(manifest: Manifest, *, thorough: bool, progress: Progress | None = None) -> Iterator[str]:
    """How the corpus differs from what was indexed, by sizes and times or by hashes; nothing if it is not here."""
    root = Path(manifest.corpus["path"])
    if not root.exists():
        return
    hashing = Hashing("checking the corpus", sum(file["size"] for file in manifest.corpus["files"]), progress)
    for file in manifest.corpus["files"]:
        path = root / file["name"] if root.is_dir() else root
        try:
            found = path.stat()
            if thorough and (found.st_size != file["size"] or hashing.sha256(path) != file["sha256"]):
                yield f"the corpus file {path} has changed"
            elif not thorough and (found.st_size, found.st_mtime_ns) != (file["size"], file["mtime_ns"]):
                yield f"the corpus file {path} seems to have changed"
        except FileNotFoundError:
            yield f"the corpus file {path} was taken away"
        except OSError as error:
            yield f"the corpus file {path} cannot be read any more ({error})"
    if thorough and root.is_dir():
        known = {file["name"] for file in manifest.corpus["files"]}
        try:
            corpus = Corpus(root)
        except DataError:
            return
        yield from (f"the corpus file {file} was added" for file in corpus.files if corpus.name(file) not in known)


def _wrong_sizes(folder: Path, manifest: Manifest) -> list[str]:
    problems = []
    for name, file in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            problems.append(f"{folder} lacks the file {name}")
            continue
        if size != file["size"]:
            problems.append(f"{folder / name} has {size} bytes, but {file['size']} were written")
    return problems


def _wrong_adopted(file: Path, expected: str) -> list[str]:
    from mrsearch.retrieval.encode import fingerprint

    try:
        return [] if fingerprint(file) == expected else [f"the FAISS index {file} has changed since it was taken in"]
    except OSError as error:
        return [f"the FAISS index {file} cannot be read any more ({error})"]
