"""The corpus: files in all layouts in, passages out, bad rows named."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.types import Passage, join_contents, split_contents
from mrsearch.errors import DataError, MissingExtra
from mrsearch.retrieval.corpus import BadRow, Corpus, Row, load_corpus

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
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(content, mtime=0))
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
        ("cut.jsonl.gz", gzip.compress(b" " * 99, mtime=0)[:-9], "cannot be read"),
    ],
)
def test_a_file_that_is_no_corpus(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_corpus(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load_corpus(tmp_path / "none.jsonl")


def lines(path: Path, *records: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("record", "passage"),
    [
        ({"_id": "a", "title": "Ada", "text": "wrote"}, Passage("a", "Ada", "wrote")),
        ({"id": 7, "title": None, "text": " wrote\n"}, Passage("7", "", "wrote")),
        ({"id": 7.0, "text": "wrote"}, Passage("7", "", "wrote")),
        ({"id": "a", "title": 1984, "text": "novel"}, Passage("a", "1984", "novel")),
        ({"id": "a", "title": '"Two"\nlines ', "text": "x"}, Passage("a", '"Two" lines', "x")),
        ({"id": "a", "title": "other", "text": "other", "contents": '"Ada"\nwrote'}, Passage("a", "Ada", "wrote")),
        ({"id": 0, "contents": "no title"}, Passage("0", "", "no title")),
    ],
)
def test_layouts_of_a_row(tmp_path: Path, record: object, passage: Passage) -> None:
    assert load_corpus(lines(tmp_path / "corpus.jsonl", record)) == [passage]


@given(
    title=st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]))),
    text=st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip),
)
def test_a_passage_has_one_form_however_it_came(
    tmp_path_factory: pytest.TempPathFactory, title: str | None, text: str
) -> None:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    (passage,) = load_corpus(lines(path, {"id": "0", "title": title, "text": text}))
    assert passage.text == text.strip()
    assert passage.title.split() == (title or "").split()
    assert load_corpus(lines(path, {"id": "0", "contents": join_contents(passage)})) == [passage]


BAD = {
    b"{": "broken JSON",
    b'{"id": "x\xff", "contents": "x"}': "broken JSON",
    b"[" * 100_000: "broken JSON",
    b"[]": "not an object",
    b"null": "not an object",
    b'{"contents": "x"}': "no id",
    b'{"id": " ", "contents": "x"}': "no id",
    b'{"id": 1.5, "contents": "x"}': "no id",
    b'{"id": NaN, "contents": "x"}': "no id",
    b'{"id": "1"}': "no text",
    b'{"id": "1", "contents": " "}': "no text",
    b'{"id": "1", "contents": 5}': "no text",
    b'{"id": "1", "title": "x", "text": "\\n"}': "no text",
    b'{"id": "1", "title": ["x"], "text": "x"}': "broken title",
    b'{"id": "1", "contents": "\\ud800"}': "lone surrogate",
    b'{"id": "\\udfff", "contents": "x"}': "lone surrogate",
    b'{"id": "1", "title": "\\ud800", "text": "x"}': "lone surrogate",
}


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_bad_rows_are_told_apart_and_end_nothing(tmp_path: Path, suffix: str) -> None:
    content = b"\n".join([*BAD, b"", json.dumps(ADA).encode()])
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(gzip.compress(content, mtime=0) if suffix.endswith("gz") else content)
    corpus = Corpus(path)
    *bad, good = corpus
    assert good == (path, len(BAD) + 2, PASSAGE)
    assert [(row.row, row.reason) for row in bad if isinstance(row, BadRow)] == [
        *enumerate(BAD.values(), start=1),
    ]
    assert corpus.position == corpus.size == path.stat().st_size


@given(content=st.lists(st.sampled_from([*BAD, json.dumps(ADA).encode(), b""]) | st.binary(max_size=20)))
def test_any_bytes_are_rows_good_or_bad(tmp_path_factory: pytest.TempPathFactory, content: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_bytes(b"\n".join(content))
    rows = list(Corpus(path))
    numbers = [
        number
        for number, line in enumerate(b"\n".join(content).split(b"\n"), start=1)
        if (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
    ]
    assert [row.row for row in rows] == (numbers or [0])


def test_a_huge_line_is_one_passage(tmp_path: Path) -> None:
    path = lines(tmp_path / "corpus.jsonl", {"id": "0", "contents": "word " * 2_000_000}, ADA | {"id": "1"})
    huge, small = load_corpus(path)
    assert (len(huge.text), small.title) == (9_999_999, "Ada Lovelace")


@pytest.mark.parametrize("content", [gzip.compress(json.dumps(ADA).encode() * 500)[:-20], b"no gzip"])
def test_a_damaged_archive_is_no_bad_row_but_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "corpus.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        list(Corpus(tmp_path / "corpus.jsonl.gz"))


class TestParquet:
    def write(self, path: Path, **columns: object) -> Path:
        pyarrow = pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
        return path

    def test_rows_of_both_layouts(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "a.parquet", id=[0, 1, 2], contents=[ADA["contents"], "x", "y"], more=[[0]] * 3)
        assert load_corpus(path) == [PASSAGE, Passage("1", "", "x"), Passage("2", "", "y")]
        path = self.write(tmp_path / "b.parquet", _id=["a", "b"], title=["Ada", None], text=["wrote", "x"])
        assert load_corpus(path) == [Passage("a", "Ada", "wrote"), Passage("b", "", "x")]

    def test_kinds_of_text_columns(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")
        for kind in (pyarrow.large_string(), pyarrow.binary(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
            values = pyarrow.array(["Ä", "b", "Ä"]).cast(kind)
            path = self.write(tmp_path / "a.parquet", id=["0", "1", "2"], contents=values)
            assert [passage.text for passage in load_corpus(path)] == ["Ä", "b", "Ä"]

    def test_bad_rows(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")
        # As text without a look at it, which is how a careless writer leaves it.
        texts = pyarrow.array([b"x", b"\xff", None, b" ", b"y"]).view(pyarrow.string())
        path = self.write(tmp_path / "a.parquet", id=["0", "1", "2", "3", None], text=texts)
        first, *bad = Corpus(path)
        assert first == (path, 1, Passage("0", "", "x"))
        assert [(row.row, row.reason) for row in bad if isinstance(row, BadRow)] == [
            (2, "broken UTF-8"), (3, "no text"), (4, "no text"), (5, "no id"),
        ]  # fmt: skip

    def test_without_the_columns_every_row_is_bad(self, tmp_path: Path) -> None:
        rows = list(Corpus(self.write(tmp_path / "a.parquet", question=["a", "b", "c"])))
        assert [row.reason for row in rows if isinstance(row, BadRow)] == ["no id"] * 3

    def test_a_damaged_file_is_an_error(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "a.parquet", id=["0"], contents=["x"])
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            load_corpus(path)

    def test_without_the_library_its_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a.parquet").write_bytes(b"")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtra, match=r"mrsearch\[data\]"):
            load_corpus(tmp_path / "a.parquet")


class TestFolder:
    def test_files_come_by_name_and_others_are_counted(self, tmp_path: Path) -> None:
        lines(tmp_path / "b.jsonl", {"id": "b", "contents": "second"})
        lines(tmp_path / "a" / "z.jsonl", {"id": "a", "contents": "first"})
        (tmp_path / "c.md").write_text("# Third\nthird")
        (tmp_path / "d.pdf").write_bytes(b"%PDF")
        (tmp_path / "LICENSE").write_text("any")
        (tmp_path / ".hidden.jsonl").write_text("{")
        corpus = Corpus(tmp_path)
        assert [row.passage for row in corpus if isinstance(row, Row)] == load_corpus(tmp_path) == [
            Passage("a", "", "first"), Passage("b", "", "second"), Passage("c.md#1", "Third", "third"),
        ]  # fmt: skip
        assert corpus.left_out == {".pdf": 1, "LICENSE": 1}

    def test_an_id_may_not_come_back_in_another_file(self, tmp_path: Path) -> None:
        lines(tmp_path / "a.jsonl", ADA)
        lines(tmp_path / "b.jsonl", ADA)
        with pytest.raises(DataError, match=r"b\.jsonl, row 1: id '0' is that of .*a\.jsonl, row 1, too"):
            load_corpus(tmp_path)

    def test_an_empty_file_is_told(self, tmp_path: Path) -> None:
        lines(tmp_path / "a.jsonl", ADA)
        (tmp_path / "b.jsonl").write_text("\n")
        (tmp_path / "c.txt").write_text(" ")
        _, *bad = Corpus(tmp_path)
        assert [(Path(row.file).name, row.row, row.reason) for row in bad if isinstance(row, BadRow)] == [
            ("b.jsonl", 0, "empty file"),
            ("c.txt", 0, "empty file"),
        ]

    def test_documents_are_passages(self, tmp_path: Path) -> None:
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "plan.txt").write_bytes(b"\xef\xbb\xbf" + b"One sentence. " * 60)
        passages = load_corpus(tmp_path)
        assert [passage.id for passage in passages] == ["notes/plan.txt#1", "notes/plan.txt#2"]
        assert {passage.title for passage in passages} == {"plan"}
        assert passages[0].text == ("One sentence. " * 50).strip()
        assert [passage.id for passage in load_corpus(tmp_path / "notes" / "plan.txt")] == ["plan.txt#1", "plan.txt#2"]

    def test_a_document_that_is_not_utf8_is_a_bad_row(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("fine\nCafé".encode("latin-1"))
        (bad,) = Corpus(tmp_path)
        assert isinstance(bad, BadRow)
        assert (bad.row, bad.reason) == (2, "broken UTF-8")

    def test_a_name_that_is_not_utf8_is_a_bad_row(self, tmp_path: Path) -> None:
        try:
            (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("text")
        except OSError:
            pytest.skip("this file system has no such names")
        (bad,) = Corpus(tmp_path)
        assert isinstance(bad, BadRow)
        assert bad.reason == "lone surrogate"

    def test_links_are_read_or_told(self, tmp_path: Path) -> None:
        folder = tmp_path / "corpus"
        lines(tmp_path / "elsewhere" / "a.jsonl", ADA)
        folder.mkdir()
        (folder / "a.jsonl").symlink_to(tmp_path / "elsewhere" / "a.jsonl")
        (folder / "b.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
        (folder / "more").symlink_to(tmp_path / "elsewhere")
        assert load_corpus(folder) == [PASSAGE]
        assert Corpus(folder).left_out == {"link to a folder": 1, "broken link": 1}

    def test_without_files_of_passages_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.pdf").write_bytes(b"")
        with pytest.raises(DataError, match=r"no files of passages; their names end in \.jsonl"):
            Corpus(tmp_path)
