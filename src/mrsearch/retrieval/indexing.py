"""Building an index: whole or not at all.

A build works in `.INDEX.building-<digest>` next to the index, where the digest
is that of corpus and settings, and renames it at the end. A build that was
killed is gone on with by the next one of the same corpus and settings: the texts
and the vectors that are there are kept.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from mrsearch import __version__
from mrsearch.errors import ConfigError, DataError
from mrsearch.retrieval.bm25 import BM25Writer, Words
from mrsearch.retrieval.corpus import BadRow, Corpus
from mrsearch.retrieval.manifest import (
    BAD_ROWS,
    FORMAT,
    MANIFEST,
    PARTS,
    PASSAGES,
    Hashing,
    Kind,
    Manifest,
    Progress,
    digest_of,
)
from mrsearch.retrieval.store import TEXTS, PassageStore, StoreWriter

if TYPE_CHECKING:
    from mrsearch.retrieval.encode import EncoderSettings

OnBad: TypeAlias = Literal["stop", "skip"]

EXAMPLES = 20
"""Bad rows that the manifest itself shows."""

_READ = "read.json"
_LIBRARIES = ("numpy", "tantivy", "faiss-cpu", "faiss-gpu", "sentence-transformers", "transformers", "torch")
_REPORT_EVERY = 512

_log = logging.getLogger(__name__)


def build_index(
    corpus: str | Path,
    out: str | Path,
    *,
    kind: Kind = "bm25",
    words: Words | None = None,
    encoder: EncoderSettings | None = None,
    vectors: str = "auto",
    faiss: Path | None = None,
    device: str = "auto",
    on_bad: OnBad = "stop",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Index a corpus into a folder, which appears whole at the end or not at all.

    Bad rows stop the build, or are skipped, counted and listed. `faiss` takes an
    index of vectors that exists, made of the same passages by `encoder`: as it is
    where `vectors` is "auto", else its vectors into an index of that kind. Memory
    does not grow with the texts: it is some 16 bytes a passage, and what a part needs.
    """
    if kind not in PARTS:
        raise ConfigError(f"kind is {kind!r}; choose one of: {', '.join(PARTS)}")
    if "dense" in PARTS[kind] and encoder is None:
        raise ConfigError(f"an index of kind {kind} needs a model that makes vectors of texts; name it with --model")
    started = time.monotonic()
    out = Path(out).resolve()
    source = Corpus(corpus)
    settings: dict[str, Any] = {}
    if "bm25" in PARTS[kind]:
        settings["words"] = asdict(words or Words())
    if "dense" in PARTS[kind] and encoder is not None:
        # Not the batch: who runs out of memory takes a smaller one and goes on.
        settings |= {"encoder": asdict(replace(encoder, batch=0)), "vectors": vectors, "faiss": str(faiss or "")}
    with _alone(out):
        _mend(out)
        _refuse(out, overwrite=overwrite)
        stamps = _stamps(source)
        files = _hashed(source, progress)
        digest = digest_of([FORMAT, [[file["name"], file["sha256"]] for file in files], kind, settings, on_bad])
        building = out.with_name(f".{out.name}.building-{digest}")
        _remove_worthless(out, building)
        building.mkdir(exist_ok=True)
        try:
            reading = _Reading.saved(building) or _read(source, building, on_bad, progress)
            if _stamps(source) != stamps:
                shutil.rmtree(building)
                raise DataError(f"{source.path} was changed while it was read; build again when it is finished")
            reading.save(building)
            passages = PassageStore.open(building / PASSAGES)
            used: dict[str, dict[str, Any]] = {}
            reports: dict[str, dict[str, Any]] = {}
            for part in PARTS[kind]:
                if part == "bm25":
                    used[part] = _build_bm25(passages, building / part, words or Words(), progress)
                else:
                    assert encoder is not None
                    used[part], reports[part] = _build_dense(
                        passages, building / part, encoder, vectors, faiss, device, progress
                    )
            manifest = Manifest(
                kind=kind,
                passages=reading.passages,
                content=reading.content,
                settings=used,
                corpus={"path": str(source.path.resolve()), "files": files},
                bad_rows=reading.bad_rows,
                bad_row_examples=reading.examples,
                left_out=dict(source.left_out),
                reports=reports,
                files=_sealed(building, {f"{PASSAGES}/{TEXTS}": reading.content}, progress),
                libraries=_versions(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - started, 1),
            )
            (building / MANIFEST).write_text(json.dumps(manifest.as_dict(), indent=1), encoding="utf-8")
            _sync(building / MANIFEST)
            _sync(building)
            _put(building, out)
        except OSError as error:
            raise DataError(
                f"{out} cannot be built ({error}); make room or choose another place, and the same command goes on"
            ) from error
        finally:
            if building.exists() and not (building / _READ).exists():
                shutil.rmtree(building, ignore_errors=True)
    return manifest


@dataclass(frozen=True)
class _Reading:
    """What came of reading a corpus; saved once its store is whole on the disk."""

    passages: int
    content: str
    bad_rows: dict[str, int]
    examples: list[dict[str, Any]]

    def save(self, building: Path) -> None:
        (building / _READ).write_text(json.dumps(asdict(self)), encoding="utf-8")
        _sync(building / _READ)

    @classmethod
    def saved(cls, building: Path) -> _Reading | None:
        """What a build before this one has read, if all of it is there."""
        try:
            found = cls(**json.loads((building / _READ).read_text(encoding="utf-8")))
            whole = len(PassageStore.open(building / PASSAGES)) == found.passages
        except (OSError, ValueError, TypeError):
            return None
        return found if whole else None


class _BadRows:
    """Counts bad rows and lists them in a file; or stops at the first one."""

    def __init__(self, file: TextIO, on_bad: OnBad) -> None:
        self._file = file
        self._stops = on_bad == "stop"
        self.counts: Counter[str] = Counter()
        self.examples: list[dict[str, Any]] = []

    def take(self, row: BadRow) -> None:
        if self._stops:
            raise DataError(f"{row}; or leave bad rows out, counted and listed, with --on-bad skip")
        self.counts[row.reason] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(asdict(row))
        self._file.write(json.dumps(asdict(row)) + "\n")


def _read(corpus: Corpus, building: Path, on_bad: OnBad, progress: Progress | None) -> _Reading:
    """Write the store and the list of bad rows. Where ids repeat, a second time without the later ones."""
    (building / _READ).unlink(missing_ok=True)
    writer, bad = _write_store(corpus, building, on_bad, "reading", progress)
    if not len(writer):
        reasons = ", ".join(f"{count} {reason}" for reason, count in bad.counts.most_common())
        first = f"; the first: {BadRow(**bad.examples[0])}" if bad.examples else ""
        raise DataError(f"{corpus.path} holds no passages (bad rows: {reasons or 'none'}){first}")
    repeated = writer.repeated()
    if len(repeated):
        writer, bad = _write_store(corpus, building, on_bad, "reading without repeated ids", progress, repeated)
    _sync(building / BAD_ROWS)
    return _Reading(len(writer), writer.sha256, dict(bad.counts), bad.examples)


def _write_store(
    corpus: Corpus, building: Path, on_bad: OnBad, stage: str, progress: Progress | None, repeated: Iterable[int] = ()
) -> tuple[StoreWriter, _BadRows]:
    """One pass over the corpus; `repeated` are passages, by number, whose id an earlier one has."""
    left = iter(repeated)
    next_repeated = next(left, -1)
    number = 0
    with (
        (building / BAD_ROWS).open("w", encoding="utf-8") as listed,
        StoreWriter(_fresh(building / PASSAGES)) as writer,
    ):
        bad = _BadRows(listed, on_bad)
        for seen, read in enumerate(corpus):
            if progress and seen % _REPORT_EVERY == 0:
                progress(stage, corpus.position, corpus.size)
            if isinstance(read, BadRow):
                bad.take(read)
                continue
            file, row, passage = read
            if number == next_repeated:
                next_repeated = next(left, -1)
                problem = f"id {passage.id!r:.80} is that of an earlier row too; make it unique"
                bad.take(BadRow(str(file), row, "duplicate id", problem))
            else:
                writer.add(passage)
            number += 1
    if progress:
        progress(stage, corpus.size, corpus.size)
    return writer, bad


def _build_bm25(passages: PassageStore, folder: Path, words: Words, progress: Progress | None) -> dict[str, Any]:
    writer = BM25Writer(_fresh(folder), words)
    try:
        for row, passage in enumerate(passages):
            if progress and row % _REPORT_EVERY == 0:
                progress("indexing words", row, len(passages))
            writer.add(row, passage)
        writer.close()
    except DataError:
        raise
    except ValueError as error:
        # The library has one kind of error for all; of what it writes here, a full disk is what can go wrong.
        raise OSError(f"the words cannot be written: {error}") from error
    if progress:
        progress("indexing words", len(passages), len(passages))
    return asdict(words)


def _build_dense(
    passages: PassageStore,
    folder: Path,
    settings: EncoderSettings,
    vectors: str,
    faiss: Path | None,
    device: str,
    progress: Progress | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Goes on with the vectors that are there; returns what the results depend on, and the part's report."""
    from mrsearch.retrieval.adopted import adopt_faiss, take_vectors
    from mrsearch.retrieval.encode import Encoder
    from mrsearch.retrieval.vector_index import build_faiss
    from mrsearch.retrieval.vectors import STATE, write_vectors

    folder.mkdir(exist_ok=True)
    encoder = Encoder.load(settings, device)
    if faiss is not None and vectors == "auto":
        report = adopt_faiss(faiss, passages, folder, encoder)
    else:
        if faiss is not None and not (folder / STATE).exists():
            take_vectors(faiss, passages, folder, encoder, progress=progress)
        write_vectors(passages, encoder, folder, progress=progress)
        report = build_faiss(folder, kind=vectors, progress=progress)
    described = dict(report["encoder"])
    if described["weights"]:
        # The weights tell the model; where it lies makes no difference.
        del described["model"]
    return {"encoder": described, "kind": report["kind"], "fingerprint": report.get("fingerprint", "")}, report


def _stamps(corpus: Corpus) -> list[tuple[int, int]]:
    try:
        return [(found.st_size, found.st_mtime_ns) for found in (file.stat() for file in corpus.files)]
    except FileNotFoundError as error:
        raise DataError(f"{error.filename} was taken away while it was read; put it back") from None


def _hashed(corpus: Corpus, progress: Progress | None) -> list[dict[str, Any]]:
    hashing = Hashing("hashing the corpus", corpus.size, progress)
    files = []
    for file, (size, time_ns) in zip(corpus.files, _stamps(corpus), strict=True):
        try:
            sha256 = hashing.sha256(file)
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error}); check its permissions") from error
        files.append({"name": corpus.name(file), "size": size, "mtime_ns": time_ns, "sha256": sha256})
    return files


def _sealed(building: Path, known: Mapping[str, str], progress: Progress | None) -> dict[str, dict[str, Any]]:
    """Sizes and hashes of all that was built, once it is on the disk itself."""
    paths = sorted(
        path
        for path in building.rglob("*")
        # The library of BM25 locks by empty files, which come and go.
        if path.is_file() and path.name not in (_READ, MANIFEST) and path.suffix != ".lock"
    )
    names = {path: path.relative_to(building).as_posix() for path in paths}
    unknown = (path.stat().st_size for path, name in names.items() if name not in known)
    hashing = Hashing("hashing what was built", sum(unknown), progress)
    files = {}
    for path, name in names.items():
        _sync(path)
        files[name] = {"size": path.stat().st_size, "sha256": known.get(name) or hashing.sha256(path)}
    for folder in {path.parent for path in paths}:
        _sync(folder)
    return files


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _versions() -> dict[str, str]:
    found = {"mrsearch": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _fresh(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    return folder


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the lock of an index; the system lets go of it when a process ends, however it ends."""
    try:
        import fcntl
    except ImportError as error:
        raise ConfigError("an index is built on Linux or macOS; it can be opened and served on any system") from error
    path = out.with_name(f".{out.name}.lock")
    while True:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
        except OSError as error:
            raise DataError(f"{out} cannot be built there ({error}); choose another --out") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise ConfigError(
                f"{out} is being built already, by process {holder}; wait for it, or choose another --out"
            ) from None
        # The builder before may have removed this file since it was opened: then it locks nothing.
        if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            break
        file.close()
    with file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _refuse(out: Path, *, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise ConfigError(f"{out} exists and is no index; choose another --out")
    if not overwrite:
        raise ConfigError(f"{out} already holds an index; replace it with --overwrite, or choose another --out")


def _replaced(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _put(building: Path, out: Path) -> None:
    """Make what was built the index."""
    if out.exists():
        out.rename(_replaced(out))
    building.rename(out)
    _sync(out.parent)
    (out / _READ).unlink()
    if _replaced(out).exists():
        shutil.rmtree(_replaced(out))


def _mend(out: Path) -> None:
    """Finish or undo what a build that was killed while it replaced an index has left."""
    if not _replaced(out).exists():
        return
    if out.exists():
        shutil.rmtree(_replaced(out))
    else:
        _replaced(out).rename(out)


def _remove_worthless(out: Path, building: Path) -> None:
    """Clear away other builds of this index that were killed before they had read all; tell of the rest."""
    for other in out.parent.glob(f".{glob.escape(out.name)}.building-*"):
        if other == building:
            (other / MANIFEST).unlink(missing_ok=True)
        elif (other / _READ).exists():
            _log.warning(
                "%s is an unfinished build of another corpus or other settings; remove it to free the disk", other
            )
        else:
            shutil.rmtree(other)
