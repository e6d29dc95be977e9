"""`mrsearch index`: from a corpus to a folder that can be searched and served."""

from __future__ import annotations

import shlex
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, stderr_console
from mrsearch.errors import ConfigError, DataError, Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from mrsearch.retrieval.encode import EncoderSettings
    from mrsearch.retrieval.manifest import Manifest

SHOWN = 5
"""Bad rows that are shown at the end; the index lists all."""
_EVERY_S = 10.0
"""Time between lines of progress where there is no terminal."""


class Kind(StrEnum):
    """What an index finds passages by: their words, their vectors, or both."""

    bm25 = "bm25"
    dense = "dense"
    hybrid = "hybrid"


class Vectors(StrEnum):
    """How vectors are kept; `auto` chooses by their number."""

    auto = "auto"
    flat = "flat"
    ivfpq = "ivfpq"
    hnsw = "hnsw"


class OnBad(StrEnum):
    """What becomes of bad rows."""

    stop = "stop"
    skip = "skip"


def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS",
            help="Passages (.jsonl, .jsonl.gz, .parquet), a document (.txt, .md), or a folder of them; "
            "with --check, an index.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder of the index.")] = None,
    kind: Annotated[Kind, typer.Option(help="Find passages by their words, their vectors, or both.")] = Kind.bm25,
    language: Annotated[
        str, typer.Option(help="Stop words and stems of this language; empty keeps every word as it is.")
    ] = "en",
    stemming: Annotated[bool, typer.Option(help="Compare words by their stems.")] = True,
    title_weight: Annotated[int, typer.Option(help="How many more times the title counts.")] = 1,
    model: Annotated[str, typer.Option(help="Model that makes the vectors, by folder or hub name.")] = "",
    query_prefix: Annotated[
        str | None, typer.Option(help="Put before each query; by default what the model says itself.")
    ] = None,
    passage_prefix: Annotated[
        str | None, typer.Option(help="Put before each passage; by default what the model says itself.")
    ] = None,
    vectors: Annotated[Vectors, typer.Option(help="How vectors are kept; auto chooses by number.")] = Vectors.auto,
    faiss: Annotated[
        Path | None,
        typer.Option(
            help="A FAISS index of these passages that exists, made by the model: used as it is, or, with --vectors, "
            "for its vectors."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where vectors are made: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    batch: Annotated[int, typer.Option(min=0, help="Passages that are encoded at once; 0 chooses by device.")] = 0,
    on_bad: Annotated[
        OnBad, typer.Option(help="Stop at a row that is no passage, or skip such rows, counted and listed.")
    ] = OnBad.stop,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Read all of an index and tell what is wrong.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Index a corpus, or check an index.

    The folder appears whole at the end. A build that was interrupted goes on
    when the same command is given again.

    \b
    Examples:
      mrsearch index wiki-18.jsonl.gz --out wiki
      mrsearch index my-documents/ --out mine --language de --on-bad skip
      mrsearch index passages.jsonl --out both --kind hybrid --model intfloat/e5-base-v2
      mrsearch index wiki-18.jsonl --out e5 --kind dense --model intfloat/e5-base-v2 --faiss e5_Flat.index
      mrsearch index wiki-18.jsonl --out small --kind dense --model intfloat/e5-base-v2 --faiss e5_Flat.index \\
        --vectors ivfpq
      mrsearch index wiki --check
    """
    from mrsearch.retrieval.bm25 import Words
    from mrsearch.retrieval.indexing import build_index

    console = stderr_console()
    if check:
        _check(source, console, as_json=as_json)
        return
    if out is None:
        raise ConfigError(f"--out is missing; name the folder of the index: mrsearch index {source} --out DIR")
    encoder = _encoder(kind, model, query_prefix, passage_prefix, batch)
    if kind is Kind.bm25 and faiss is not None:
        raise ConfigError("--faiss gives vectors, which an index of kind bm25 has not; add --kind dense or hybrid")
    try:
        with Stages(console) as stages:
            manifest = build_index(
                source,
                out,
                kind=kind.value,
                words=Words(language, stemming, title_weight),
                encoder=encoder,
                vectors=vectors.value,
                faiss=faiss,
                device=device,
                on_bad=on_bad.value,
                overwrite=overwrite,
                progress=stages.show,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on from what was finished") from None
    for line in summary(out, manifest):
        print(line)
    console.print(f"Serve it with: mrsearch serve {shlex.quote(str(out))}", soft_wrap=True)
    if as_json:
        print_json(_result(out, manifest))


def _encoder(
    kind: Kind, model: str, query_prefix: str | None, passage_prefix: str | None, batch: int
) -> EncoderSettings | None:
    if kind is Kind.bm25:
        if model:
            raise ConfigError("--model makes vectors, which an index of kind bm25 has not; add --kind dense or hybrid")
        return None
    if not model:
        raise ConfigError(f"an index of kind {kind} needs --model, the model that makes its vectors")
    from mrsearch.retrieval.encode import EncoderSettings

    return EncoderSettings(model, query_prefix=query_prefix, passage_prefix=passage_prefix, batch=batch)


def _check(folder: Path, console: Console, *, as_json: bool) -> None:
    from mrsearch.retrieval.index import check_index

    with Stages(console) as stages:
        problems = check_index(folder, stages.show)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{folder} is whole, and its corpus, where it is still there, is what was indexed")
    if as_json:
        print_json({"index": str(folder), "problems": problems})
    if problems:
        raise DataError(f"{folder} has {len(problems)} problems: {problems[0]}" if len(problems) > 1 else problems[0])


def summary(out: Path, manifest: Manifest) -> list[str]:
    """What was built and what was left out, a line each."""
    from mrsearch.retrieval.corpus import BadRow
    from mrsearch.retrieval.manifest import BAD_ROWS

    lines = [
        f"{out}: {manifest.passages:,} passages, {manifest.kind}, {_bytes(manifest.size)}, {_time(manifest.seconds)}"
    ]
    if manifest.bad_rows:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in manifest.bad_rows.items())
        lines.append(f"bad rows that were left out: {reasons}; all are listed in {out / BAD_ROWS}")
        lines.extend(f"  {BadRow(**row)}" for row in manifest.bad_row_examples[:SHOWN])
    if manifest.left_out:
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in manifest.left_out.items())
        lines.append(f"of the folder, not read: {kinds}")
    return lines


def _result(out: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "index": str(out),
        "kind": manifest.kind,
        "identity": manifest.identity,
        "passages": manifest.passages,
        "bytes": manifest.size,
        "seconds": manifest.seconds,
        "bad_rows": manifest.bad_rows,
        "bad_row_examples": manifest.bad_row_examples,
        "left_out": manifest.left_out,
        "reports": manifest.reports,
    }


class Stages:
    """Progress of one stage after the other on stderr: bars on a terminal, else a line now and then."""

    def __init__(self, console: Console, every_s: float = _EVERY_S) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._console = console
        self._every_s = every_s
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(show_speed=True),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._stage = ""
        self._began = self._told = 0.0
        self._task: Any = None

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._progress.stop()

    def show(self, stage: str, done: int, total: int | None) -> None:
        """Show how far a stage is; the time that is left is what the rest takes at the speed so far."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._told = stage, now, now
            self._task = self._progress.add_task(stage, total=total)
        self._progress.update(self._task, completed=done, total=total)
        if self._console.is_terminal:
            return
        passed = now - self._began
        if total is not None and done >= total:
            if self._told < float("inf"):
                self._console.print(f"{stage}: done in {_time(passed)}")
            self._told = float("inf")
        elif now - self._told >= self._every_s:
            self._told = now
            left = (
                f"{100 * done / total:.0f} %, {_time(passed * (total - done) / done)} left"
                if total and done
                else f"{done:,}"
            )
            self._console.print(f"{stage}: {left}")


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
