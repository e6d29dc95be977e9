"""What all commands share: where text goes, and which exit code an error has.

    0    success
    1    the run failed: a model, retriever or package that is not there, or an unexpected error
    2    wrong use: the command line, a setting, or a file (questions, passages, demonstrations, a
         run's own) that cannot be used as it is, even where that shows only during a run
    130  interrupted by Ctrl-C; the message says how to go on

Data goes to stdout, everything else to stderr. Only commands use this module;
library code logs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.errors import ConfigError, DataError, Interrupted, MrsearchError

if TYPE_CHECKING:
    from rich.console import Console

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on one line, last on stdout.")]
"""The type of a command's parameter `as_json`."""

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

EXIT_CODES = """\b
Exit codes:
  0    success
  1    a failed run
  2    wrong use: the command line, a setting, or a file that cannot be used
  130  interrupted
"""
"""The table above in short, for `--help`."""


@contextmanager
def exit_codes(*, debug: bool) -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code; with `debug`, into its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        _report("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        # Usage errors and exits are the command line library's own, and it shows them; a closed pipe is silent.
        if hasattr(error, "exit_code") or isinstance(error, (typer.Abort, BrokenPipeError)):
            raise
        if debug:
            import traceback

            traceback.print_exc()
        elif isinstance(error, MrsearchError):
            _report(str(error))
        else:
            _report(f"unexpected {type(error).__name__}: {error}; --debug shows where")
        raise typer.Exit(_exit_code(error)) from None


def _exit_code(error: Exception) -> int:
    if isinstance(error, Interrupted):
        return INTERRUPTED
    return WRONG_USE if isinstance(error, (ConfigError, DataError)) else FAILED


def _report(message: str) -> None:
    print("mrsearch: error:", " ".join(message.split()), file=sys.stderr)


def stderr_console() -> Console:
    """A rich console on stderr, for progress and hints."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of stdout. JSON knows no infinities and no NaN; they become null."""
    from mrsearch.runs import finite

    print(json.dumps(finite(value), allow_nan=False), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: drawn by rich on a terminal, otherwise columns of plain text."""
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console(highlight=False).print(table)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
