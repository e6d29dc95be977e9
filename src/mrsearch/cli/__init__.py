"""The command `mrsearch`: finds the module of a subcommand, and turns errors into exit codes.

A subcommand is one module with a `command`: a function with Typer parameters,
or a Typer app where it has subcommands of its own. Its module is imported when
the command is used or listed; what is heavy it imports inside the function, so
that `mrsearch --help` loads no torch.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mrsearch import __version__
from mrsearch.cli.output import EXIT_CODES, exit_codes

COMMANDS: Mapping[str, str] = {
    "quickstart": "mrsearch.cli.quickstart",
    "train": "mrsearch.cli.train",
    "eval": "mrsearch.cli.eval",
    "compare": "mrsearch.cli.compare",
    "ask": "mrsearch.cli.ask",
    "index": "mrsearch.cli.index",
    "serve": "mrsearch.cli.serve",
    "data": "mrsearch.cli.data",
    "settings": "mrsearch.cli.settings",
    "doctor": "mrsearch.cli.doctor",
}
"""Subcommands in the order in which `--help` lists them, with their modules."""


def main(arguments: Sequence[str] | None = None, commands: Mapping[str, str] = COMMANDS) -> None:
    """Run one command line (that of the process, unless given) and exit with its code."""
    group = typer.main.get_command(_app)
    assert isinstance(group, TyperGroup)
    group.commands = _LazyCommands(commands)
    group.main(args=arguments, prog_name="mrsearch")


class _LazyCommands(UserDict[str, Any]):
    """Commands by name; holds the name of a module until somebody asks for the command in it."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.data[name], str):
            self.data[name] = _load(self.data[name], name)
        return self.data[name]


def _load(module: str, name: str) -> Any:
    command = import_module(module).command
    if not isinstance(command, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, context_settings=_HELP)(command)
        command = app
    loaded = typer.main.get_command(command)
    loaded.name = name
    return loaded


class _Group(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # People add --debug to the end of the line that just failed; take it from there too.
        options = args[: args.index("--")] if "--" in args else args
        if "--debug" in options:
            args = ["--debug", *(text for text in options if text != "--debug"), *args[len(options) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with exit_codes(debug=ctx.params["debug"]):
            return super().invoke(ctx)


_HELP = {"help_option_names": ["-h", "--help"]}
_app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_HELP,
    epilog=EXIT_CODES,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"mrsearch {__version__}")
        raise typer.Exit


@_app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train and evaluate search agents that get better by retrying.

    \b
    Example:
      mrsearch quickstart
    """
