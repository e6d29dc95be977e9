"""Where the recipes are: beside the package in a checkout, inside it when installed."""

from __future__ import annotations

from pathlib import Path

from mrsearch.errors import ConfigError

_PLACES = (Path(__file__).parent / "recipes", Path(__file__).parents[2] / "recipes")


def recipe_path(name: str) -> Path:
    """The file of a recipe by its name, or the path itself where one is given."""
    if Path(name).exists():
        return Path(name)
    for place in _PLACES:
        if (place / f"{name}.yaml").exists():
            return place / f"{name}.yaml"
    known = sorted({path.stem for place in _PLACES for path in place.glob("*.yaml")})
    raise ConfigError(f"there is no recipe {name!r}; it is neither a file nor one of {', '.join(known)}")
