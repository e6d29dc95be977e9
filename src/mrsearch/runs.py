"""The run folder: the only writer and reader of its files.

    config.yaml                                resolved settings
    metrics.jsonl                              one line a step
    trajectories/step-000012.<writer>.jsonl.gz one record a meta-episode
    checkpoints/step-000012/                   model, learner state, state.json
    eval/*.json                                evaluations

A checkpoint appears whole or not at all. After a crash the folder is rewound to
its last checkpoint, so that a resumed run writes every later line once. A number
that is not finite is written as null, since JSON has no other word for it.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mrsearch.core.types import Trajectory
from mrsearch.errors import ConfigError, DataError
from mrsearch.jsonl import read_rows

STATE_VERSION = 1
_STEP = re.compile(r"step-(\d{6,})")
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
"""What a model may be called on a hub: owner/model, or model alone."""

_WARM_START = "warm-start"
_OWN = ("config.yaml", "metrics.jsonl", "trajectories", "checkpoints", "eval", "world", _WARM_START)
"""What a run puts into its folder; each may also stand there half written, as `.NAME.partial`."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A finished checkpoint: its step, its folder, and the loop's state as it was saved."""

    step: int
    folder: Path
    state: Mapping[str, Any]


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics = path / "metrics.jsonl"
        self._trajectories = path / "trajectories"
        self._checkpoints = path / "checkpoints"
        self._evaluations = path / "eval"
        self._made: frozenset[Path] = frozenset()

    @classmethod
    def create(cls, path: Path, settings: Mapping[str, Any]) -> RunFolder:
        """A new run with its resolved settings; refuses a folder that already holds one."""
        if (path / "config.yaml").exists():
            raise ConfigError(
                f"{path} already holds a run; go on with it by: mrsearch train --resume {path}, or choose another --out"
            )
        run = cls(path)
        parts = (path / name for own in _OWN for name in (own, f".{own}.partial"))
        run._made = frozenset(part for part in (path, *path.parents, *parts) if not part.exists())
        for folder in (path, run._trajectories, run._checkpoints, run._evaluations):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "config.yaml", yaml.safe_dump(dict(settings), sort_keys=False))
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run that exists."""
        if not (path / "config.yaml").exists():
            raise DataError(f"{path} is no run folder: it has no config.yaml")
        return cls(path)

    def discard(self) -> bool:
        """Remove a run that `create` has just made and that came to nothing; returns whether it did.

        A run that has taken a step or has a finished warm start is kept, and so is
        all that stood in the folder before.
        """
        warm_start = self.path / _WARM_START
        worth_keeping = self.metrics() or self.checkpoint_steps() or (warm_start in self._made and warm_start.exists())
        if not self._made or worth_keeping:
            return False
        for part in self._made:
            if part.parent == self.path:
                shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        for folder in (self.path, *self.path.parents):
            if folder not in self._made or any(folder.iterdir()):
                break
            folder.rmdir()
        return True

    def way_on(self) -> str:
        """What goes on with this run, and from where, to end a message with."""
        steps = self.checkpoint_steps()
        if steps:
            where = f"from step {steps[-1]}"
        elif (self.path / f".{_WARM_START}.partial").exists():
            where = "the warm start begins anew"
        else:
            where = "from the first step"
        return f"go on with: mrsearch train --resume {shlex.quote(str(self.path))} ({where})"

    def settings(self) -> dict[str, Any]:
        """The resolved settings of the run, as plain data."""
        settings: dict[str, Any] = yaml.safe_load((self.path / "config.yaml").read_text(encoding="utf-8"))
        return settings

    # -- metrics, trajectories, evaluations ----------------------------------------------------

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line of metrics."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(_line({"step": step, **values}))

    def metrics(self) -> list[dict[str, float]]:
        """All whole lines of metrics, null read as NaN; a line that a crash cut short is left out."""
        if not self._metrics.exists():
            return []
        rows = []
        for line in self._metrics.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                break
            rows.append({name: math.nan if value is None else value for name, value in row.items()})
        return rows

    def write_trajectories(self, step: int, trajectories: Iterable[Trajectory], *, writer: str = "main") -> Path:
        """Write the meta-episodes of one step; each writing process has its own file."""
        path = self._trajectories / f"step-{step:06d}.{writer}.jsonl.gz"
        aside = path.with_suffix(".partial")
        with gzip.open(aside, "wt", encoding="utf-8", compresslevel=1) as file:
            for trajectory in trajectories:
                file.write(json.dumps({"step": step, **trajectory.to_record()}, separators=(",", ":")) + "\n")
        aside.replace(path)
        return path

    def trajectories(self, step: int) -> Iterator[Trajectory]:
        """The meta-episodes of one step, of all writers."""
        for path in sorted(self._trajectories.glob(f"step-{step:06d}.*.jsonl.gz")):
            yield from read_trajectories(path)

    def trajectory_steps(self) -> list[int]:
        """Steps of which trajectories are there, in order."""
        return sorted({_step_of(path) for path in self._trajectories.glob("step-*.jsonl.gz")})

    def write_evaluation(self, name: str, data: Mapping[str, Any]) -> Path:
        """Write one evaluation as `eval/NAME.json`."""
        path = self._evaluations / f"{name}.json"
        self._evaluations.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(finite(data), indent=1, ensure_ascii=False, allow_nan=False))
        return path

    # -- checkpoints ---------------------------------------------------------------------------

    def save_checkpoint(
        self, step: int, state: Mapping[str, Any], write: Callable[[Path], None], *, keep: int, best: int | None
    ) -> Path:
        """Write a checkpoint aside, sync it to the disk, put it in place, then prune the old ones.

        `write` fills the folder, the run's settings are copied in as run.yaml, and
        `state` is the loop's own. The last `keep` checkpoints stay, and the one of
        step `best`.
        """
        final = self._checkpoints / f"step-{step:06d}"
        aside = self._checkpoints / f".{final.name}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        write(aside)
        shutil.copy(self.path / "config.yaml", aside / "run.yaml")
        (aside / "state.json").write_text(json.dumps({"version": STATE_VERSION, "step": step, **state}))
        # The lines up to this step must be on the disk before the checkpoint that stands for them.
        for path in (self._metrics, *self._trajectories.glob(f"step-{step:06d}.*"), *aside.rglob("*"), aside):
            if path.exists():
                _sync(path)
        if final.exists():
            final.rename(final.with_name(f".{final.name}.replaced"))
        aside.rename(final)
        _sync(self._checkpoints)
        shutil.rmtree(final.with_name(f".{final.name}.replaced"), ignore_errors=True)
        for old in self.checkpoint_steps()[:-keep]:
            if old != best:
                shutil.rmtree(self._checkpoints / f"step-{old:06d}")
        return final

    def checkpoint_steps(self) -> list[int]:
        """Steps of which there is a checkpoint, in order."""
        return sorted(
            _step_of(path) for path in self._checkpoints.glob("step-*") if path.is_dir() and _STEP.fullmatch(path.name)
        )

    def last_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint."""
        steps = self.checkpoint_steps()
        return self._checkpoint(self._checkpoints / f"step-{steps[-1]:06d}") if steps else None

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint of a step that has one."""
        return self._checkpoint(self._checkpoints / f"step-{step:06d}")

    def best_checkpoint(self) -> Checkpoint | None:
        """The checkpoint that validation chose, or the newest where nothing was validated."""
        last = self.last_checkpoint()
        best = last.state.get("best") if last else None
        if best is None:
            return last
        return self.checkpoint(best["step"])

    def rewind(self, step: int) -> None:
        """Drop the records of later steps and what was left half written; the step's checkpoint is the newest."""
        kept = [row for row in self.metrics() if row["step"] <= step]
        write_atomically(self._metrics, "".join(_line(row) for row in kept))
        for folder in (self._trajectories, self._evaluations):
            for path in folder.glob("step-*"):
                if path.suffix == ".partial" or (_STEP.match(path.name) and _step_of(path) > step):
                    path.unlink()
        for path in self._checkpoints.glob(".step-*"):
            if path.is_dir():
                shutil.rmtree(path)

    def _checkpoint(self, folder: Path) -> Checkpoint:
        try:
            state = json.loads((folder / "state.json").read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise DataError(f"{folder} is no checkpoint: its state.json cannot be read ({error})") from error
        if state.get("version") != STATE_VERSION:
            raise DataError(f"{folder} has state version {state.get('version')!r}; this version reads {STATE_VERSION}")
        return Checkpoint(state["step"], folder, state)


SCALING = "scaling-"
"""What the names of scaling curves begin with, which lie beside the results that they are made of."""


def read_evaluation(path: Path) -> dict[str, Any]:
    """A result of `mrsearch eval`: that of a file, or the latest of a run; `DataError` where there is none."""
    if path.is_dir():
        files = (file for file in (path / "eval").glob("*.json") if not file.name.startswith(SCALING))
        found = sorted(files, key=lambda file: file.stat().st_mtime_ns)
        if not found:
            raise DataError(f"{path} has no evaluations; make one with: mrsearch eval {path}")
        path = found[-1]
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; name a result of mrsearch eval, or a run folder") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); evaluate again") from None
    if not isinstance(result, dict) or not {"answers", "episodes", "data"} <= set(result):
        raise DataError(f"{path} is no result of this version of mrsearch eval; evaluate again")
    return {"file": str(path), **result}


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """The meta-episodes of one file of records, plain or .gz; `DataError` names the row."""
    for row, record in read_rows(path):
        try:
            yield Trajectory.from_record(record)
        except (DataError, AttributeError) as error:
            raise DataError(f"{path}, row {row}: no trajectory ({error})") from error


def whole_lines(path: Path) -> list[str]:
    """The lines of a file of JSON lines, up to one that a crash cut short; none where there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")[:-1]  # what follows the last line break is cut short, or nothing
    for number, line in enumerate(lines):
        try:
            json.loads(line)
        except ValueError:
            return lines[:number]
    return lines


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content in one step: a crash leaves the old or the new, never a part."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def run_of(path: Path) -> RunFolder | None:
    """The run that a path belongs to, as its folder or as one of its checkpoints; None for any other path."""
    if (path / "config.yaml").exists():
        return RunFolder.open(path)
    if not ((path / "run.yaml").exists() and (path / "state.json").exists()):
        return None
    above = Path(os.path.normpath(path / ".." / ".."))
    return RunFolder.open(above) if (above / "config.yaml").exists() else None


def model_folder(path: Path) -> Path:
    """The model that a path stands for: a run's best checkpoint, the folder itself, or a name on a hub.

    `DataError` for a folder that holds neither, and for what can only be a path and is not there.
    """
    if (path / "config.yaml").exists():
        best = RunFolder.open(path).best_checkpoint()
        if best is None:
            raise DataError(f"{path} has no checkpoint yet")
        return best.folder
    if path.exists():
        if not (path / "config.json").exists():
            raise DataError(f"{path} is neither a run nor a model folder")
    # A name on a hub has at most one slash as well; where its first part is a folder here, a path is meant.
    elif not HUB_NAME.fullmatch(path.as_posix()) or (len(path.parts) > 1 and path.parent.exists()):
        raise DataError(f"there is no run or model folder {path}")
    return path


def finite(value: Any) -> Any:
    """Plain data that JSON can hold: it knows no infinities and no NaN, which become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(row), allow_nan=False) + "\n"


def _step_of(path: Path) -> int:
    found = _STEP.match(path.name)
    assert found is not None, f"{path} is not named after a step"
    return int(found.group(1))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
