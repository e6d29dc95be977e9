"""A command for tests of the command line: each of its subcommands fails in its own way."""

from __future__ import annotations

import typer

from mrsearch.errors import ConfigError, DataError, Interrupted, MissingExtra, RetrieverError

ERRORS: dict[str, BaseException] = {
    "config": ConfigError("unknown setting 'train.group_sise'; did you mean 'train.group_size'?"),
    "data": DataError("questions.jsonl, line 3:\n  no field 'golden_answers'"),
    "retriever": RetrieverError("no reply from http://127.0.0.1:1 after 3 tries"),
    "extra": MissingExtra("adapters need peft: pip install 'mrsearch[lora]'"),
    "interrupted": Interrupted("stopped at step 3; go on with: mrsearch train run=runs/a"),
    "ctrl-c": KeyboardInterrupt(),
    "bug": KeyError("answer"),
    "usage": typer.BadParameter("give a folder"),
}

command = typer.Typer(help="Fail in one way or another.", rich_markup_mode=None)


def _add(name: str, error: BaseException) -> None:
    @command.command(name)
    def fail() -> None:
        print("some data")
        raise error


for _name, _error in ERRORS.items():
    _add(_name, _error)
