"""The corpus: wiki-18's layout in, passages out, bad rows named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.types import Passage, join_contents, split_contents
from mrsearch.errors import DataError
from mrsearch.retrieval.corpus import load_corpus

ADA = {"id": "0", "contents": '"Ada Lovelace"\nShe wrote the first program.'}
PASSAGE = Passage("0", "Ada Lovelace", "She wrote the first program.")


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Ada"\nShe wrote.', "Ada", "She wrote."),
        ("Ada\nShe wrote.", "Ada", "She wrote."),
        ('"Ada"\r\nShe wrote.\nMuch.', "Ada", "She wrote.\nMuch."),
        ('"The "Ada" test"\ntext', 'The "Ada" test', "text"),
        ('"Ada\ntext', '"Ada', "text"),
        ('"\ntext', '"', "text"),
        ("She wrote.", "", "She wrote."),
        ('""\ntext', "", "text"),
        ('"Ada"\n', "Ada", ""),
    ],
)
def test_contents_are_a_title_and_a_text(contents: str, title: str, text: str) -> None:
    assert split_contents(contents) == (title, text)


@given(title=st.text().map(str.strip).filter(lambda title: "\n" not in title), text=st.text().map(str.strip))
def test_contents_that_were_joined_come_apart_again(title: str, text: str) -> None:
    assert split_contents(join_contents(Passage("0", title, text))) == (title, text)


def test_lines_plain_and_compressed(tmp_path: Path) -> None:
    content = f"\ufeff{json.dumps(ADA)}\n\n{json.dumps({**ADA, 'id': 1})}".encode()
    (tmp_path / "corpus.jsonl").write_bytes(content)
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(content))
    expected = [PASSAGE, Passage("1", PASSAGE.title, PASSAGE.text)]
    assert load_corpus(tmp_path / "corpus.jsonl") == load_corpus(str(tmp_path / "corpus.jsonl.gz")) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "row 2: is not JSON in UTF-8"),
        (b'{"id": "\xff"}', "row 2: is not JSON in UTF-8"),
        (b"[]", r"row 2: is \[\]; a row must be an object"),
        (b'{"contents": "x"}', "row 2: the id is None"),
        (b'{"id": true, "contents": "x"}', "row 2: the id is True"),
        (b'{"id": "1"}', "row 2: has no 'contents'"),
        (b'{"id": "1", "contents": " "}', "row 2: 'contents' is ' '"),
        (b'{"id": "1", "contents": "\\ud800"}', "row 2: holds half of a UTF-16 pair"),
        (b'{"id": "0", "contents": "x"}', "row 2: id '0' is that of row 1 too"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(json.dumps(ADA).encode() + b"\n" + line)
    with pytest.raises(DataError, match=message):
        load_corpus(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"\n", "holds no passages"),
        ("plain.jsonl.gz", b"{}", "cannot be read"),
        ("cut.jsonl.gz", gzip.compress(b" " * 99)[:-9], "cannot be read"),
    ],
)
def test_a_file_that_is_no_corpus(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_corpus(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load_corpus(tmp_path / "none.jsonl")
