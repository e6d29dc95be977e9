"""`mrsearch serve`: what it opens, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mrsearch.cli import main
from mrsearch.cli.serve import _is_local, open_source
from mrsearch.core.ports import Search
from mrsearch.errors import ConfigError, DataError
from mrsearch.retrieval.indexing import build_index
from mrsearch.retrieval.server import Limits

ROOT = Path(__file__).parents[2]
COMMANDS = {"serve": "mrsearch.cli.serve"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "passages.jsonl"
    contents = ['"Oslo"\nOslo is the capital of Norway.', '"Ada"\nShe wrote the first program.']
    file.write_text("".join(json.dumps({"id": str(i), "contents": c}) + "\n" for i, c in enumerate(contents)))
    return file


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Exit code and error line of a command that ends at once."""
    with pytest.raises(SystemExit) as stop:
        main(["serve", *arguments], commands=COMMANDS)
    return stop.value.code, capsys.readouterr().err


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command in a process of its own, and the lines that it prints up to its address."""
    code = f"from mrsearch.cli import main; main({['serve', *arguments]!r}, commands={COMMANDS!r})"
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    with subprocess.Popen([sys.executable, "-c", code], env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line.strip())
                if "http://" in line:
                    break
            yield process, lines
        finally:
            process.kill()


def url_in(line: str) -> str:
    return next(word.strip(";") for word in line.split() if word.startswith("http://"))


def test_a_file_of_passages_is_served_until_it_is_told_to_end(corpus: Path) -> None:
    with serving(str(corpus), "--port", "0") as (process, lines):
        assert len(lines) == 1
        url = url_in(lines[0])
        assert lines[0] == f"Serving 2 passages (bm25) of {corpus} at {url}; Ctrl-C ends it"
        answer = httpx.post(f"{url}/retrieve", json={"queries": ["capital of Norway"], "topk": 1}).json()
        assert answer["result"][0][0]["document"]["contents"].startswith('"Oslo"\n')
        health = httpx.get(f"{url}/health").json()
        assert (health["passages"], health["kind"], len(health["identity"])) == (2, "bm25", 16)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_with_a_token_and_limits_of_ones_own(corpus: Path) -> None:
    limits = ("--max-queries", "1", "--max-topk", "2")
    with serving(str(corpus), "--port", "0", "--token-env", "MINE", *limits, MINE="secret\n") as (_, lines):
        url = f"{url_in(lines[-1])}/retrieve"
        assert httpx.post(url, json={"queries": ["a"]}).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx.post(url, json={"queries": ["a"], "topk": 2}, headers=headers).status_code == 200
        assert httpx.post(url, json={"queries": ["a"], "topk": 3}, headers=headers).status_code == 422
        assert httpx.post(url, json={"queries": ["a", "b"], "topk": 1}, headers=headers).status_code == 422


def test_beyond_this_machine_it_warns_unless_there_is_a_token(corpus: Path) -> None:
    with serving(str(corpus), "--port", "0", "--host", "0.0.0.0") as (_, lines):
        assert lines[0].startswith("warning: everybody who can reach 0.0.0.0 can search here; --token-env NAME")
    with serving(str(corpus), "--port", "0", "--host", "0.0.0.0", "--token-env", "MINE", MINE="x") as (_, lines):
        assert [line.split()[0] for line in lines] == ["Serving"]


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_which_addresses_are_of_this_machine_alone(host: str, local: bool) -> None:
    assert _is_local(host) is local


def test_a_port_that_is_taken_is_one_clear_line(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = fails(capsys, str(corpus), "--port", port)
    assert code == 2
    assert said.startswith(f"mrsearch: error: cannot listen on port {port} of 127.0.0.1 (Address already in use); ")
    assert said.count("\n") == 1


def test_what_cannot_be_served_is_said(capsys: pytest.CaptureFixture[str], corpus: Path, tmp_path: Path) -> None:
    assert fails(capsys, str(corpus), "--port", "0", "--kind", "dense")[0] == 2
    assert "is no index" in fails(capsys, str(tmp_path), "--port", "0")[1]
    assert fails(capsys, str(tmp_path / "nothing"), "--port", "0")[0] == 2
    code, said = fails(capsys, str(corpus), "--port", "0", "--token-env", "NOT_SET_ANYWHERE")
    assert (code, "NOT_SET_ANYWHERE, which is not set or empty" in said) == (2, True)
    assert "limit queue is 0" in fails(capsys, str(corpus), "--queue", "0")[1]


def test_an_index_and_a_file_find_the_same(corpus: Path, tmp_path: Path) -> None:
    build_index(corpus, tmp_path / "index")
    index, file = (open_source(path, "", "cpu", "") for path in (tmp_path / "index", corpus))
    assert (index.passages, index.kind) == (file.passages, file.kind) == (2, "bm25")
    assert len(index.identity) == len(file.identity) == 16
    asked = [Search("first program", 3)]
    assert index.retriever.search(asked) == file.retriever.search(asked)


def test_other_passages_have_another_identity(corpus: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(corpus.read_text().replace("Norway", "Sweden"))
    again = tmp_path / "again.jsonl"
    again.write_text(corpus.read_text())
    identities = [open_source(path, "", "cpu", "").identity for path in (corpus, again, other)]
    assert identities[0] == identities[1] != identities[2]


def test_only_an_index_can_be_searched_as_another_kind(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make an index with: mrsearch index CORPUS"):
        open_source(corpus, "hybrid", "cpu", "")
    with pytest.raises(DataError, match="is no index"):
        open_source(tmp_path, "", "cpu", "")


def test_help_names_the_limits_that_hold_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"], commands=COMMANDS)
    text = " ".join(capsys.readouterr().out.split())
    limits = Limits()
    for default in (limits.queries, limits.top_k, limits.queue):
        assert f"[default: {default}]" in text


def test_without_its_packages_the_extra_is_named(corpus: Path) -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None; from mrsearch.cli import main; "
        f"main(['serve', {str(corpus)!r}], commands={COMMANDS!r})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install 'mrsearch[server]'" in done.stderr
