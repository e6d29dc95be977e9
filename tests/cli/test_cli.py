"""The command line: exit codes, where output goes, and `mrsearch doctor`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import mrsearch
from mrsearch.cli import COMMANDS, doctor, main, output
from mrsearch.cli.output import print_json, print_table

ROOT = Path(__file__).parents[2]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def mr(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run one command line in this process, with a command that fails on demand."""

    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            main(arguments, commands={**COMMANDS, "fail": "failing_commands"})
        captured = capsys.readouterr()
        assert stop.value.code is None or isinstance(stop.value.code, int)
        return Outcome(stop.value.code or 0, captured.out, captured.err)

    return run


def test_version(mr: Callable[..., Outcome]) -> None:
    assert mr("--version") == (0, f"mrsearch {mrsearch.__version__}\n", "")


def test_help_lists_all_commands_in_order(mr: Callable[..., Outcome]) -> None:
    code, out, _ = mr("--help")
    assert code == 0
    listed = re.findall(r"^  ([a-z]+)  +\S", out.split("Commands:")[1], re.MULTILINE)
    assert listed == [*COMMANDS, "fail"]


def test_help_ends_with_the_exit_codes(mr: Callable[..., Outcome]) -> None:
    codes = re.findall(r"^    (\d+)  +\S", mr("--help").out.split("Exit codes:")[1], re.MULTILINE)
    assert codes == ["0", str(output.FAILED), str(output.WRONG_USE), str(output.INTERRUPTED)]
    assert output.__doc__ is not None
    assert re.findall(r"^    (\d+)  +\S", output.__doc__, re.MULTILINE) == codes


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(mr: Callable[..., Outcome], command: str) -> None:
    code, out, _ = mr(command, "--help")
    assert code == 0
    assert re.search(rf"Examples?:\n    mrsearch {command}", out)


def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    code = """
import sys
from mrsearch.cli import main
try:
    main(["--help"])
finally:
    print(*sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert {"torch", "transformers", "numpy", "pydantic", "tantivy"}.isdisjoint(done.stdout.split())
    assert "mrsearch.cli.doctor" in done.stdout.split()


@pytest.mark.parametrize("arguments", [(), ("trian",), ("doctor", "--jsn"), ("doctor", "now"), ("fail", "usage")])
def test_wrong_use_exits_with_2_and_says_so_on_stderr(mr: Callable[..., Outcome], arguments: tuple[str, ...]) -> None:
    code, out, err = mr(*arguments)
    assert code == 2
    assert "Usage: mrsearch" in out + err
    assert "Traceback" not in err


def test_a_mistyped_command_gets_a_suggestion(mr: Callable[..., Outcome]) -> None:
    assert "Did you mean 'doctor'?" in mr("docter").err


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("config", 2, "unknown setting 'train.group_sise'; did you mean 'train.group_size'?"),
        ("data", 2, "questions.jsonl, line 3: no field 'golden_answers'"),
        ("retriever", 1, "no reply from http://127.0.0.1:1 after 3 tries"),
        ("extra", 1, "adapters need peft: pip install 'mrsearch[lora]'"),
        ("interrupted", 130, "stopped at step 3; go on with: mrsearch train run=runs/a"),
        ("ctrl-c", 130, "interrupted"),
        ("bug", 1, "unexpected KeyError: 'answer'; --debug shows where"),
    ],
)
def test_an_error_is_one_line_on_stderr(mr: Callable[..., Outcome], name: str, code: int, line: str) -> None:
    assert mr("fail", name) == (code, "some data\n", f"mrsearch: error: {line}\n")


@pytest.mark.parametrize("arguments", [("--debug", "fail", "config"), ("fail", "config", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(mr: Callable[..., Outcome], arguments: tuple[str, ...]) -> None:
    code, _, err = mr(*arguments)
    assert code == 2
    assert err.startswith("Traceback")
    assert "failing_commands.py" in err


def test_debug_after_two_dashes_is_an_argument(mr: Callable[..., Outcome]) -> None:
    code, _, err = mr("doctor", "--", "--debug")
    assert code == 2
    assert "--debug" in err


def test_json_is_one_line_and_holds_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"em": 0.5, "spread": (float("nan"), {"low": float("-inf")}), "text": "a\nb"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"em": 0.5, "spread": [None, {"low": None}], "text": "a\nb"}


def test_a_table_off_the_terminal_is_aligned_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("part", "found"), [("python", "3.11"), ("[lora]", "no")])
    assert capsys.readouterr().out == "part    found\npython  3.11\n[lora]  no\n"


def test_doctor_reports_this_machine_as_json(mr: Callable[..., Outcome]) -> None:
    code, out, err = mr("doctor", "--json")
    report = json.loads(out.splitlines()[-1])
    assert (code, err) == (0, "")
    assert report["ok"] is True
    assert report["mrsearch"] == mrsearch.__version__
    assert report["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["cpu_cores"] >= 1
    assert report["torch"]["device"] in {"cpu", "cuda", "mps"}
    assert report["torch"]["threads"] == 1


def test_doctor_reports_this_machine_as_text(mr: Callable[..., Outcome]) -> None:
    code, out, _ = mr("doctor")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0
    assert rows["mrsearch"] == mrsearch.__version__
    assert rows["device"].startswith(("cpu", "cuda", "mps"))


def test_doctor_says_how_to_get_what_is_missing() -> None:
    report = doctor.examine()
    report["packages"]["tantivy"] = None
    report["optional"]["lora"]["installed"] = False
    rows = dict(doctor.describe(report))
    assert rows["tantivy"] == "missing: pip install tantivy"
    assert rows["[lora]"].endswith("pip install 'mrsearch[lora]'")


@pytest.mark.parametrize(
    ("cores", "usable", "shown"),
    [(8, 8, "8 cores"), (1, 1, "1 core"), (8, 2, "8 cores, of which OMP_NUM_THREADS allows 2")],
)
def test_doctor_shows_the_cores_and_apart_from_them_what_bounds_their_use(cores: int, usable: int, shown: str) -> None:
    report = {**doctor.examine(), "cpu_cores": cores, "usable_cores": usable}
    assert dict(doctor.describe(report))["processor"] == shown


def test_doctor_counts_cores_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    without = doctor.examine()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    bound = doctor.examine()
    assert without["cpu_cores"] == without["usable_cores"] == bound["cpu_cores"]
    assert bound["usable_cores"] == 1


def test_doctor_knows_the_packages_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}

    assert set(doctor.REQUIRED) == names(project["dependencies"])
    extras = {extra: names(wanted) for extra, wanted in project["optional-dependencies"].items() if extra != "dev"}
    assert {extra: set(packages) for extra, (_, packages) in doctor.OPTIONAL.items()} == extras
