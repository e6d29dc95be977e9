"""Recipes by name and by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrsearch.errors import ConfigError
from mrsearch.recipe import recipe_path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_bare_name_is_the_packaged_recipe_whatever_lies_in_the_working_directory(here: Path) -> None:
    packaged = recipe_path("quickstart")
    assert packaged.name == "quickstart.yaml"
    (here / "quickstart").mkdir()
    assert recipe_path("quickstart") == packaged
    (here / "quickstart").rmdir()
    (here / "quickstart").write_text("seed: 1")
    assert recipe_path("quickstart") == packaged


@pytest.mark.parametrize("name", ["mine.yaml", "./quickstart", "deep/quickstart", "mine"])
def test_a_file_is_taken_by_its_path(here: Path, name: str) -> None:
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("seed: 1")
    assert recipe_path(name) == Path(name)


@pytest.mark.parametrize("name", ["folder.yaml", "./quickstart", "nowhere.yaml", "unheard-of"])
def test_what_is_no_file_is_refused_with_the_names_there_are(here: Path, name: str) -> None:
    (here / "folder.yaml").mkdir()
    with pytest.raises(
        ConfigError, match=rf"there is no recipe '{name}'; it is neither a file nor one of .*quickstart"
    ):
        recipe_path(name)
