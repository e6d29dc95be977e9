"""Python callables that a user names in a setting, as `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrsearch.errors import ConfigError


def load_function(name: str, setting: str) -> Callable[..., Any]:
    """The callable that a setting names; `ConfigError` says what is wrong with it.

    The module is looked for where Python looks, and in the current directory last.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError(f"{setting} is {name!r}; write it as module:function")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        # For good, since the function may import more when it is called; last, so that it hides nothing.
        sys.path.append(here)
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{module_name} of {setting} needs a module that is not there: {error}") from error
        raise ConfigError(
            f"there is no module {module_name!r} ({setting}={name}); it must be installed or lie in {here}"
        ) from None
    except Exception as error:
        raise ConfigError(f"{module_name} of {setting} cannot be imported ({type(error).__name__}: {error})") from error
    where = getattr(value, "__file__", None) or module_name
    for part in path.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"there is no {part!r} in {where} ({setting}={name})")
        value = getattr(value, part)
    if not callable(value):
        raise ConfigError(f"{path} in {where} is no function but of type {type(value).__name__}")
    found: Callable[..., Any] = value
    return found
