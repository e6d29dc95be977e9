"""`mrsearch compare` on results that were made by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from mrsearch.cli import main
from mrsearch.cli.compare import compare, labels


def write(path: Path, scores: Sequence[Sequence[float]], *, first_id: int = 0, data: str = "same") -> Path:
    answers = [
        {"id": str(number), "golden_answers": ["b", "a"], "em": list(row), "tokens": [10] * len(row)}
        for number, row in enumerate(scores, first_id)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"episodes": len(scores[0]), "data": data, "answers": answers}))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_same_questions_are_compared_at_each_episode(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = write(tmp_path / "before.json", [(0.0, 0.0)] * 8 + [(1.0, 1.0)] * 2)
    after = write(tmp_path / "after.json", [(0.0, 1.0)] * 6 + [(0.0, 0.0)] * 2 + [(1.0, 1.0)] * 2)
    code, out, err = run(capsys, before, after, "--json")
    assert (code, err) == (0, "")
    *table, last = out.splitlines()
    assert table[0].split() == [*["10", "questions;", "EM"], "episode", "before", "other", *["difference", "(95", "%)"],
                                "McNemar", "p"]  # fmt: skip
    (pair,) = json.loads(last)["compared"]
    one, two = pair["episodes"]
    assert (one["first"], one["other"], one["difference"], one["p"]) == (0.2, 0.2, 0.0, 1.0)
    assert (two["first"], two["other"], two["p"]) == (0.2, 0.8, pytest.approx(0.03125))
    assert two["difference"] == pytest.approx(0.6)
    assert 0.2 <= two["low"] < 0.6 < two["high"] <= 1.0


def test_other_questions_are_told_and_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", [(0.0,)] * 4)
    two = write(tmp_path / "two.json", [(1.0,)] * 4, first_id=2, data="other")
    code, out, err = run(capsys, one, two)
    assert code == 0
    assert "were asked different questions" in err
    assert out.startswith("2 questions; EM")


def test_golds_belong_to_a_question(tmp_path: Path) -> None:
    rows = [{"id": "1", "golden_answers": ["a"], "em": [1.0]}, {"id": "2", "golden_answers": ["a"], "em": [1.0]}]
    first = {"file": "x", "episodes": 1, "answers": rows}
    other = {"file": "y", "episodes": 1, "answers": [{**rows[0], "golden_answers": ["z"]}, rows[1]]}
    assert compare(first, other)["questions"] == 1


def test_a_run_stands_for_its_latest_evaluation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old = write(tmp_path / "run" / "eval" / "z-old.json", [(1.0,)])
    new = write(tmp_path / "run" / "eval" / "a-new.json", [(0.0,)])
    os.utime(old, ns=(1, 1))
    code, out, _ = run(capsys, tmp_path / "run", new, "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["compared"][0]["first"] == str(new)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a.json"], "one result has nothing to be compared with"),
        (["a.json", "none.json"], "there is no file"),
        (["a.json", "empty"], "has no evaluations; make one with: mrsearch eval"),
        (["a.json", "bad.json"], "cannot be read"),
        (["a.json", "other.json"], "no result of this version"),
        (["a.json", "far.json"], "share no question"),
    ],
)
def test_what_cannot_be_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, files: list[str], message: str
) -> None:
    write(tmp_path / "a.json", [(1.0,)])
    write(tmp_path / "far.json", [(1.0,)], first_id=7)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    code, _, err = run(capsys, *(tmp_path / name for name in files))
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()[-1:]) == 1


def test_names_have_as_many_folders_as_tell_them_apart() -> None:
    paths = [Path("runs/a/eval/dev.json"), Path("runs/b/eval/dev.json"), Path("mine.json")]
    assert labels(paths) == ["a/eval/dev", "b/eval/dev", "mine"]
    assert labels([Path("a.json"), Path("b/a.json"), Path("a.json")]) == ["a", "b/a", "a"]


def test_curves_of_a_run_are_no_evaluation_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = write(tmp_path / "run" / "eval" / "dev.json", [(1.0,)])
    (tmp_path / "run" / "eval" / "scaling-dev-6.json").write_text("{}")
    other = write(tmp_path / "other.json", [(0.0,)])
    code, out, err = run(capsys, tmp_path / "run", other, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["compared"][0]["first"] == str(result)


def test_a_plot_has_its_numbers_beside_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    before = write(tmp_path / "before.json", [(0.0, 0.0), (1.0, 1.0)])
    after = write(tmp_path / "after.json", [(0.0, 1.0), (1.0, 1.0)])
    code, _, err = run(capsys, before, after, "--plot", tmp_path / "both.png")
    assert code == 0, err
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    curves = json.loads((tmp_path / "both.json").read_text())["curves"]
    assert [(curve["label"], curve["em"]) for curve in curves] == [("before", [0.5, 0.5]), ("after", [0.5, 1.0])]
    assert f"Drawn in {tmp_path / 'both.png'}" in err


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        ("a.gif", "name a file that ends with .png"),
        ("none/a.png", "there is no folder none for --plot"),
        ("before.png", "would replace before.json; name another file"),
    ],
)
def test_a_plot_that_cannot_be_written_is_told_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plot: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "before.json", [(0.0,)])
    code, out, err = run(capsys, "before.json", "before.json", "--plot", plot)
    assert (code, out) == (2, "")
    assert message in err
