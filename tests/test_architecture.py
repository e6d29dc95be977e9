"""Imports point one way. The table below says who may import whom; every module under src/mrsearch must obey it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "mrsearch"

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "jsonl": set(),
    "functions": set(),
    "core": set(),
    "config": {"core"},
    "runs": {"core"},
    "data": {"core", "config"},
    "retrieval": {"core", "config", "transport"},
    "codec": {"core"},
    "transport": set(),
    "rollout": {"core", "codec", "transport"},
    "engine": {"core", "codec", "config", "runs", "rollout"},
    "evaluate": {"core", "config", "data", "rollout", "runs"},
    "train": {"core", "config", "data", "rollout", "evaluate", "runs"},
    "cluster": {"core", "codec", "config", "rollout", "retrieval", "runs"},
    "judge": {"core", "config", "rollout", "retrieval", "runs"},
    "tracking": {"core", "config", "rollout", "retrieval", "runs"},
    "agent": {"core", "config", "rollout", "retrieval", "runs"},
    "report": {"core", "runs", "evaluate"},
    "recipe": set(),
    "__init__": {"core", "config"},
    "__main__": {"cli"},
}
"""Parts of mrsearch that a part may import, besides itself and `errors` (which imports nothing)."""

LEAVES = {"errors", "jsonl", "functions"}
"""Parts that import no other and that all but the core may import; the core may import `errors` alone."""

EVERYTHING = {"build", "prepare", "cli"}
"""Parts that may import any other: where implementations are chosen and put together, and the commands."""

HEAVY = {
    "accelerate", "bm25s", "datasets", "faiss", "fastapi", "httpx", "matplotlib", "numba", "pandas", "peft",
    "prometheus_client", "pyarrow", "ray", "safetensors", "scipy", "sentence_transformers", "sglang", "sklearn",
    "starlette", "tantivy", "tokenizers", "torch", "transformers", "uvicorn", "verl", "vllm",
}  # fmt: skip
"""Third-party packages that a part must be allowed by name."""

MAY_LOAD: dict[str, set[str]] = {
    "data": {"datasets", "pyarrow"},
    "data.mini_world": {"tokenizers", "transformers"},
    "retrieval.bm25": {"tantivy"},
    "retrieval.corpus": {"pyarrow"},
    "retrieval.encode": {"sentence_transformers", "torch", "transformers"},
    "retrieval.rerank": {"sentence_transformers", "torch"},
    "retrieval.server": {"fastapi", "prometheus_client", "starlette", "uvicorn"},
    "transport": {"httpx"},
    "evaluate.plot": {"matplotlib"},
    "retrieval.vector_index": {"faiss"},
    "codec": {"tokenizers", "transformers"},
    "engine": {"peft", "safetensors", "tokenizers", "torch", "transformers"},
    "cluster": {"ray", "torch", "verl"},
}
"""Heavy packages that a part may import; a module with a line of its own may import those of both."""

ONLY: dict[str, set[str]] = {
    "__init__": set(),
    "errors": set(),
    "core": {"numpy"},
    "config": {"pydantic", "yaml"},
}
"""Parts that may import these third-party packages and no others, heavy or not."""


def modules() -> list[str]:
    """Names of all modules, without the leading `mrsearch.`; the package itself is `__init__`."""
    paths = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


def source_of(module: str) -> str:
    path = SOURCE.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def imports(module: str, tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Every imported name, at any depth and in full: `from mrsearch.core import plan` gives `mrsearch.core.plan`."""
    package = ["mrsearch", *module.split(".")]
    if not (SOURCE.joinpath(*module.split("."))).is_dir():
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node, f"{start}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node, first.value


def violations(module: str, source: str) -> list[str]:
    """What a module imports and may not, one sentence each."""
    part = module.split(".")[0]
    if part not in MAY_IMPORT and part not in EVERYTHING:
        return [f"the part {part!r} of mrsearch is not in the table of tests/test_architecture.py"]
    tree = ast.parse(source)
    return [
        f"line {node.lineno}: {part} may not import {name}"
        for node, name in imports(module, tree)
        if not may_import(module, part, name, at_top=node in tree.body)
    ]


def may_import(module: str, part: str, name: str, *, at_top: bool) -> bool:
    root, *rest = name.split(".")
    if root == "mrsearch":
        target = rest[0] if rest else "__init__"
        # A front-door name is no target: inside the package, names come from the modules that define them.
        leaves = set() if part == "errors" else {"errors"} if part in {"core", "jsonl"} else LEAVES
        allowed = {part, "__version__"} | MAY_IMPORT.get(part, set()) | leaves
        return part in EVERYTHING or target in allowed
    if part == "errors":
        return root == "__future__"
    if root in sys.stdlib_module_names:
        return True
    if part in ONLY:
        return root in ONLY[part]
    if part in EVERYTHING:
        return not (part == "cli" and at_top and root in HEAVY)
    lines = (names for key, names in MAY_LOAD.items() if f"{module}.".startswith(f"{key}."))
    return root not in HEAVY.difference(*lines)


@pytest.mark.parametrize("module", modules())
def test_module_imports_only_what_its_part_may(module: str) -> None:
    assert violations(module, source_of(module)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("errors", "import enum"),
        ("core.plan", "import torch"),
        ("core.plan", "import yaml"),
        ("core.plan", "from mrsearch.config import Config"),
        ("core.plan", "from ..config import Config"),
        ("core.plan", "from mrsearch import Config"),
        ("core.plan", "def load():\n    from mrsearch import config"),
        ("core.plan", "if TYPE_CHECKING:\n    from mrsearch.engine.pack import Row"),
        ("config", "import typer"),
        ("config", "import mrsearch.core.types, mrsearch.runs"),
        ("codec", "import torch.nn"),
        ("train", "def loop():\n    import torch"),
        ("train", "from mrsearch.engine import learner"),
        ("data.questions", "from transformers import AutoTokenizer"),
        ("retrieval.bm25", "import torch"),
        ("retrieval.encoder", "import torch"),
        ("rollout.batch", "importlib.import_module('mrsearch.engine.model')"),
        ("evaluate.run", "from mrsearch import build"),
        ("cli.train", "import torch"),
        ("helpers", ""),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.plan", "import numpy as np\nfrom mrsearch.core import types\nfrom mrsearch.errors import ConfigError"),
        ("core.plan", "from . import types\nfrom .types import Passage\nfrom ..errors import ConfigError"),
        ("config", "import yaml\nfrom pydantic import BaseModel\nfrom mrsearch.core.plan import Plan"),
        ("retrieval.encode", "import torch"),
        ("engine.pack", "import torch\nfrom mrsearch import __version__\nfrom mrsearch.runs import Run"),
        ("cli.train", "def command():\n    import torch\n    from mrsearch.build import build"),
        ("build", "import torch\nfrom mrsearch.engine.model import load"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert violations(module, source) == []
