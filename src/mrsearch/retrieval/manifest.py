"""What an index says of itself: `manifest.json`, with hashes of all that belongs to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mrsearch.errors import DataError

FORMAT = 1
"""Version of the folder; raised when a reader of the old form would misread the new one."""

Kind: TypeAlias = Literal["bm25", "dense", "hybrid"]
Progress: TypeAlias = Callable[[str, int, "int | None"], None]
"""Told of a stage, how much of it is done, and of how much, where that is known."""

PARTS: Mapping[str, tuple[str, ...]] = {"bm25": ("bm25",), "dense": ("dense",), "hybrid": ("bm25", "dense")}
"""Kinds of index, with the parts that each holds."""

MANIFEST, BAD_ROWS, PASSAGES = "manifest.json", "bad_rows.jsonl", "passages"
_BUFFER = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """What an index holds and where it came from."""

    kind: str
    passages: int
    content: str
    """SHA-256 of all passages in order, in the form in which they are stored."""
    settings: dict[str, dict[str, Any]]
    """By part, all that its results depend on besides the passages."""
    corpus: dict[str, Any]
    """Path and files of the corpus, with sizes, times and hashes."""
    bad_rows: dict[str, int]
    """Rows that were left out, by reason."""
    bad_row_examples: list[dict[str, Any]]
    left_out: dict[str, int]
    """What of a corpus folder was not read, by ending."""
    reports: dict[str, dict[str, Any]]
    """By part, what its build had to say."""
    files: dict[str, dict[str, Any]]
    """Sizes and hashes of all files of the index but this one."""
    libraries: dict[str, str]
    created: str
    seconds: float
    format: int = FORMAT

    @property
    def identity(self) -> str:
        """What tells this index from others: the same passages and settings have the same, wherever and whenever."""
        return self.identity_of(self.kind)

    def identity_of(self, kind: str) -> str:
        """The identity of one kind of search in this index; that of an index built for this kind alone."""
        settings = {part: self.settings[part] for part in PARTS[kind]}
        return digest_of([self.format, kind, self.content, settings])

    def as_dict(self) -> dict[str, Any]:
        """The manifest as JSON data."""
        return {"format": self.format, "identity": self.identity, **asdict(self)}

    @property
    def size(self) -> int:
        """Bytes of all files of the index but the manifest."""
        return sum(int(file["size"]) for file in self.files.values())


def read_manifest(folder: Path) -> Manifest:
    """What an index says of itself; `DataError` if the folder is none that this version reads."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder} is no index: it has no {MANIFEST}; build one with: mrsearch index CORPUS --out DIR"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / MANIFEST} cannot be read ({error}); build the index again") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise DataError(f"{folder} is an index of format {found}; this version reads {FORMAT}; build the index again")
    try:
        manifest = Manifest(**{field.name: content[field.name] for field in fields(Manifest)})
        identity = manifest.identity
        complete = manifest.size > 0 and {"path", "files"} <= set(manifest.corpus)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder / MANIFEST} is incomplete or of an unknown kind ({error}); build the index again"
        ) from error
    if not complete or identity != content.get("identity"):
        raise DataError(f"{folder / MANIFEST} was changed: it does not fit its own identity; build the index again")
    return manifest


def digest_of(value: Any) -> str:
    """A short hash of JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class Hashing:
    """Hashes files one after the other, telling how far it is."""

    def __init__(self, stage: str, total: int, progress: Progress | None) -> None:
        self._stage, self._total, self._progress = stage, total, progress
        self._done = 0

    def sha256(self, path: Path) -> str:
        """The hash of one file, in hexadecimal digits."""
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BUFFER):
                digest.update(block)
                self._done += len(block)
                if self._progress:
                    self._progress(self._stage, self._done, self._total)
        return digest.hexdigest()
