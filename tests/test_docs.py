"""What the documentation shows is true: commands parse, recipes load, metrics are those that are written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mrsearch.cli import COMMANDS, _load
from mrsearch.cli.settings import command as list_settings
from mrsearch.config import from_dict, load_config
from mrsearch.data.demonstrations import demonstration_from_record
from mrsearch.evaluate.scores import COUNTED

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def blocks(page: Path, language: str) -> Iterator[str]:
    yield from re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def shown_commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in blocks(page, "console") for line in block.splitlines()]
        lines += re.findall(r"^ {4}(mrsearch .*)$", text, re.MULTILINE)
        lines += re.findall(r"`(mrsearch [^`\n]+)`", text)
        found += [(page.name, line.partition(" #")[0].strip()) for line in lines if line.startswith("mrsearch ")]
    return found


def parse(command: str) -> None:
    """Parse a command line as the program would, without running it."""
    _, name, *arguments = shlex.split(command)
    assert name in COMMANDS, f"there is no command {name}"
    click: Any = _load(COMMANDS[name], name)
    if not isinstance(click, typer.core.TyperGroup):
        click.make_context(name, arguments)


@pytest.mark.parametrize(("page", "command"), shown_commands())
def test_a_command_that_is_shown_can_be_given(page: str, command: str) -> None:
    parse(command)


@pytest.mark.parametrize(("page", "command"), shown_commands())
def test_the_settings_of_a_command_that_is_shown_exist(page: str, command: str) -> None:
    words = shlex.split(command)[2:]
    settings = [word for word in words if re.fullmatch(r"[a-z_.]+=.*", word)]
    model = [] if any(word.startswith("model.path=") for word in settings) else ["model.path=somewhere"]
    load_config(overrides=[*settings, *model])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_recipe_that_is_shown_loads(page: Path) -> None:
    for block in blocks(page, "yaml"):
        from_dict(yaml.safe_load(block))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_to_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_loads_and_opens_with_its_command(recipe: Path) -> None:
    load_config(recipe)
    text = recipe.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"mrsearch train recipes/{recipe.name}" in text
    assert "Expect:" in text


def test_the_page_of_settings_is_the_one_that_the_code_makes(capsys: pytest.CaptureFixture[str]) -> None:
    list_settings(markdown=True)
    made = capsys.readouterr().out
    page = ROOT / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == made, "make it anew: mrsearch settings --markdown > docs/settings.md"
    assert all(line.split("|")[3].strip() for line in made.splitlines()[8:]), "a setting has no meaning"


def test_the_demonstration_that_is_shown_is_one() -> None:
    (block,) = blocks(ROOT / "docs" / "training.md", "json")
    shown = demonstration_from_record(json.loads(block))
    assert [len(episode) for episode in shown.episodes] == [2, 2]
    _, passages = shown.episodes[0][0]
    assert passages is not None
    assert passages[0].title == "Emma (novel)"


def test_everything_that_is_counted_has_a_line_on_the_metrics_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in COUNTED if f"`count/{name}`" not in page] == []
