"""`mrsearch index`: what it builds, what it says, and how it refuses."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from mrsearch.cli import main
from mrsearch.cli.index import Stages
from mrsearch.core.ports import Search
from mrsearch.retrieval.index import open_index

COMMANDS = {"index": "mrsearch.cli.index"}
RECORDS = [
    {"id": 0, "contents": '"Oslo"\nOslo is the capital of Norway.'},
    {"id": 1, "contents": '"Ada"\nShe wrote the first program.'},
]


class Outcome(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def index(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            main(["index", *map(str, arguments)], commands=COMMANDS)
        captured = capsys.readouterr()
        return Outcome(stop.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def test_a_corpus_becomes_an_index(index: Callable[..., Outcome], corpus: Path, tmp_path: Path) -> None:
    code, out, err = index(corpus, "--out", tmp_path / "index")
    assert code == 0
    assert out.startswith(f"{tmp_path / 'index'}: 2 passages, bm25, ")
    assert len(out.splitlines()) == 1
    assert "reading: done in" in err
    assert err.endswith(f"Serve it with: mrsearch serve {tmp_path / 'index'}\n")
    (found,) = open_index(tmp_path / "index").search([Search("capital", 3)])
    assert [passage.id for passage in found] == ["0"]


def test_options_of_words_reach_the_index(index: Callable[..., Outcome], corpus: Path, tmp_path: Path) -> None:
    index(corpus, "--out", tmp_path / "index", "--language", "de", "--no-stemming", "--title-weight", 4)
    expected = {"language": "de", "stemming": False, "title_weight": 4}
    assert open_index(tmp_path / "index").manifest.settings == {"bm25": expected}


def test_bad_rows_are_shown_and_all_is_in_the_json(index: Callable[..., Outcome], corpus: Path, tmp_path: Path) -> None:
    with corpus.open("a") as file:
        file.write("{\n" * 7 + json.dumps(RECORDS[1]) + "\n")
    code, out, _ = index(corpus, "--out", tmp_path / "index", "--on-bad", "skip", "--json")
    assert code == 0
    *lines, last = out.splitlines()
    assert "7 broken JSON, 1 duplicate id; all are listed in" in lines[1]
    assert [line.split(":")[0] for line in lines[2:]] == [f"  {corpus}, row {row}" for row in range(3, 8)]
    result: dict[str, Any] = json.loads(last)
    assert (result["passages"], result["bad_rows"]) == (2, {"broken JSON": 7, "duplicate id": 1})
    assert result["identity"] == open_index(tmp_path / "index").identity


def test_what_a_folder_holds_besides_is_told(index: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    for name in ("a.txt", "b.docx", "c.docx"):
        (tmp_path / "documents" / name).write_text("Some text.")
    _, out, _ = index(tmp_path / "documents", "--out", tmp_path / "index")
    assert "of the folder, not read: 2 .docx" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CORPUS"], "--out is missing"),
        (["CORPUS", "--out", "OUT", "--kind", "dense"], "an index of kind dense needs --model"),
        (["CORPUS", "--out", "OUT", "--model", "e5"], "--model makes vectors"),
        (["CORPUS", "--out", "OUT", "--faiss", "e5.index"], "--faiss gives vectors"),
        (["CORPUS", "--out", "OUT", "--language", "xx"], "for the language 'xx'"),
        (["OUT", "--out", "OUT"], "there is no file"),
        (["OUT", "--check"], "is no index"),
        (["CORPUS", "--out", "CORPUS"], "exists and is no index"),
    ],
)
def test_wrong_use_is_one_line(
    index: Callable[..., Outcome], corpus: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    places = {"CORPUS": str(corpus), "OUT": str(tmp_path / "index")}
    code, out, err = index(*(places.get(argument, argument) for argument in arguments))
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert sum(line.startswith("mrsearch: error:") for line in err.splitlines()) == 1


def test_a_check_tells_what_is_wrong(index: Callable[..., Outcome], corpus: Path, tmp_path: Path) -> None:
    index(corpus, "--out", tmp_path / "index")
    code, out, _ = index(tmp_path / "index", "--check", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1]) == {"index": str(tmp_path / "index"), "problems": []}
    corpus.write_text(corpus.read_text().replace("Oslo", "Rome"))
    path = tmp_path / "index" / "passages" / "passages.jsonl"
    path.write_text(path.read_text().replace("Oslo", "Rome"))
    code, out, err = index(tmp_path / "index", "--check")
    assert code == 2
    assert out.splitlines() == [
        f"{path} is not what was written: its hash differs",
        f"the corpus file {corpus} has changed since the index was built",
    ]
    assert "has 2 problems" in err


def test_ctrl_c_says_how_to_go_on(corpus: Path, tmp_path: Path) -> None:
    with corpus.open("a") as file:
        for row in range(2, 60_000):
            file.write(json.dumps({"id": row, "contents": f"text of row {row}"}) + "\n")
    command = [sys.executable, "-m", "mrsearch", "index", str(corpus), "--out", str(tmp_path / "index")]
    code = """
import sys
from mrsearch.cli import main
main(sys.argv[1:], commands={"index": "mrsearch.cli.index"})
"""
    command[1:3] = ["-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("hashing the corpus")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "mrsearch: error: interrupted; the same command goes on from what was finished"
    assert not (tmp_path / "index").exists()


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    text = io.StringIO()
    with Stages(Console(file=text), every_s=0) as stages:
        stages.show("reading", 0, 200)
        stages.show("reading", 50, 200)
        stages.show("reading", 200, 200)
        stages.show("reading", 200, 200)
        stages.show("training", 3, None)
    first, second, last, other = text.getvalue().splitlines()
    assert first == "reading: 0"
    assert second.startswith("reading: 25 %, ")
    assert second.endswith(" left")
    assert last.startswith("reading: done in ")
    assert other == "training: 3"
