"""`import mrsearch`: quick, without side effects, and with the names that the documentation lists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import mrsearch

ROOT = Path(__file__).parents[1]
DOCUMENTED = dict(re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", (ROOT / "docs/reference.md").read_text("utf-8"), re.M))


def run_python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def exists(module: str) -> bool:
    return find_spec(module) is not None


def test_public_names_are_the_documented_ones() -> None:
    assert list(DOCUMENTED) == mrsearch.__all__


@pytest.mark.parametrize(("name", "module"), DOCUMENTED.items())
def test_public_name_comes_from_the_documented_module(name: str, module: str) -> None:
    if not exists(module):
        pytest.skip(f"{module} does not exist yet")
    value = getattr(mrsearch, name)
    assert (value.__module__, value.__name__) == (module, name)
    assert name in dir(mrsearch)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Questoin'"):
        _ = mrsearch.Questoin


def test_import_loads_neither_torch_nor_transformers() -> None:
    loaded = set(run_python("import sys, mrsearch; print(*sys.modules)").split())
    assert "mrsearch" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "numpy", "pydantic"})


def test_public_names_load_neither_torch_nor_transformers() -> None:
    names = [name for name, module in DOCUMENTED.items() if exists(module)]
    loaded = set(run_python(f"import sys; from mrsearch import {', '.join(names)}; print(*sys.modules)").split())
    assert loaded.isdisjoint({"torch", "transformers"})


def test_import_changes_no_environment_variable_and_no_logging() -> None:
    names = [name for name, module in DOCUMENTED.items() if exists(module)]
    look = "(dict(os.environ), root.level, root.handlers[:], ours.level, ours.handlers[:])"
    code = f"""
import logging, os
root, ours = logging.getLogger(), logging.getLogger("mrsearch")
before = {look}
from mrsearch import {", ".join(names)}
import mrsearch.cli
print(before == {look})
"""
    assert run_python(code) == "True\n"
