"""`mrsearch settings`: every setting with its default and its meaning, read from where they are written."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from mrsearch.cli.output import print_table
from mrsearch.errors import ConfigError


def command(
    prefix: Annotated[str, typer.Argument(help="Only settings whose names begin so, for example `plan`.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="As the page docs/settings.md.")] = False,
) -> None:
    """List every setting with its default and its meaning.

    \b
    Examples:
      mrsearch settings
      mrsearch settings plan
    """
    from mrsearch.config import Config

    rows = [row for row in describe(Config) if row[0].startswith(prefix)]
    if not rows:
        raise ConfigError(f"no setting begins with {prefix!r}; mrsearch settings lists them all")
    if markdown:
        print(as_page(rows))
    else:
        print_table(("setting", "default", "meaning"), rows)


def describe(section: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Name, default and meaning of every setting of a tree of dataclasses; meanings are the docstrings below them."""
    types, meanings = get_type_hints(section), _docstrings(section)
    for setting in fields(section):
        here = (*path, setting.name)
        if is_dataclass(types[setting.name]):
            yield from describe(types[setting.name], here)
        else:
            yield ".".join(here), repr(_default(setting)), meanings.get(setting.name, "")


def as_page(rows: list[tuple[str, str, str]]) -> str:
    """The page docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Made from the code by `mrsearch settings --markdown`. A recipe names what differs from these defaults, as a",
        "tree (`plan: {episodes: 3}`); on the command line it is `plan.episodes=3`.",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for cells in rows:
        lines.append("| " + " | ".join(_cell(text, code=n < 2) for n, text in enumerate(cells)) + " |")
    return "\n".join(lines)


def _cell(text: str, *, code: bool) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return f"`{text}`" if code else text


def _default(setting: Field[Any]) -> Any:
    if setting.default is not MISSING:
        return setting.default
    return setting.default_factory() if setting.default_factory is not MISSING else None


def _docstrings(section: Any) -> dict[str, str]:
    """What stands as a string below each field of a class."""
    (body,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field_, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field_, ast.AnnAssign) and isinstance(field_.target, ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value) if isinstance(below.value, ast.Constant) else ""
            found[field_.target.id] = inspect.cleandoc(str(text))
    return found
