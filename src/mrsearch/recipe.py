"""Where the recipes are: beside the package in a checkout, inside it when installed."""

from __future__ import annotations

import os
from pathlib import Path

from mrsearch.errors import ConfigError

_PLACES = (Path(__file__).parent / "recipes", Path(__file__).parents[2] / "recipes")


def recipe_path(name: str) -> Path:
    """The file of a recipe: that of a path (with a separator or an ending), or the packaged one of a bare name.

    A name may have dots in it (`qwen2.5-...`); the ending of a file is never added twice.
    """
    given = Path(name)
    if not any(separator in name for separator in (os.sep, os.altsep or os.sep)):
        for place in _PLACES:
            if (place / f"{name}.yaml").is_file():
                return place / f"{name}.yaml"
    if given.is_file():
        return given
    known = sorted({path.stem for place in _PLACES for path in place.glob("*.yaml")})
    raise ConfigError(f"there is no recipe {name!r}; it is neither a file nor one of {', '.join(known)}")
