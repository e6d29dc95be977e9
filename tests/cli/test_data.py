"""`mrsearch data` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mrsearch.cli import main
from mrsearch.data import sets


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["data", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "q.jsonl"
    rows = [
        {"id": "1", "question": "Who wrote the first program?", "golden_answers": ["Ada Lovelace"]},
        {"id": "2", "question": "Where is Ada's engine?", "golden_answers": ["London"], "supporting_titles": ["Ada"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    rows = [
        {"id": "0", "contents": '"Ada"\nThe first program was written by Ada Lovelace.'},
        {"id": "1", "contents": '"Paris"\nA city in France.'},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(sets.SETS)
    code, out, _ = run(capsys, "list", "--json")
    assert json.loads(out)["popqa"]["rows"] == 14_267


def test_a_set_is_looked_through(capsys: pytest.CaptureFixture[str], questions: Path, corpus: Path) -> None:
    code, out, _ = run(capsys, "check", str(questions), "--corpus", str(corpus), "--against", str(questions), "--json")
    assert code == 0
    *table, last = out.splitlines()
    assert table[0].split()[:2] == ["set", "questions"]
    assert table[1].split() == ["q.jsonl", "2", "0", "0", "2", "0", "0", "0", "1", "2", "1.000", "0.500", "0.500"]
    (report,) = json.loads(last)["sets"]
    assert report["in_both"] == {str(questions): 2}
    assert report["hits"]["answer_at"]["1"] == 0.5


def test_rows_that_cannot_be_used_are_counted_and_fail(capsys: pytest.CaptureFixture[str], questions: Path) -> None:
    with questions.open("a") as file:
        file.write('{"id": "3"}\n{"id": "1", "question": "q", "golden_answers": ["a"]}\n')
    code, out, err = run(capsys, "check", str(questions))
    assert code == 2
    assert out.splitlines()[1].split()[:3] == ["q.jsonl", "2", "2"]
    assert "2 rows cannot be used; the first: " in err
    assert "row 3: 'question' is missing" in err


def test_ids_and_samples(capsys: pytest.CaptureFixture[str], questions: Path, corpus: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text('{"q": ["2"]}')
    code, out, _ = run(capsys, "check", str(questions), "--only", str(ids), "--corpus", str(corpus), "--limit", "5")
    assert code == 0
    assert out.splitlines()[1].split()[1] == "1"


def test_a_set_is_fetched_into_a_file(
    capsys: pytest.CaptureFixture[str], questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "load_set", lambda name: sets.load_questions(questions))
    out = tmp_path / "nq.jsonl"
    code, printed, _ = run(capsys, "get", "nq", "--out", str(out), "--limit", "1")
    assert code == 0
    assert printed.startswith(f"{out}: 1 questions, hash ")
    assert len(out.read_text().splitlines()) == 1
    code, _, err = run(capsys, "get", "nq", "--out", str(out))
    assert code == 2
    assert "is there already" in err


def test_a_name_that_nothing_has(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", "no-such-set")
    assert code == 2
    assert "there is no file no-such-set and no question set of that name" in err
