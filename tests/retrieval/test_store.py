"""The store: what goes in comes out, by row, from many threads and processes; and a damaged one does not open."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrsearch.core.types import Passage
from mrsearch.errors import DataError
from mrsearch.retrieval.corpus import load_corpus
from mrsearch.retrieval.store import PassageStore, StoreWriter

CORPUS = [Passage(str(row), f"Title {row}", f"text of row {row}\nin two lines") for row in range(10)]
CHARACTERS = st.characters(exclude_categories=["Cs"])
TITLES = st.text(CHARACTERS).map(lambda title: title.replace("\n", " ").strip())
PASSAGES = st.builds(Passage, st.text(CHARACTERS, min_size=1), TITLES, st.text(CHARACTERS).map(str.strip))


def written(folder: Path, passages: Iterable[Passage]) -> StoreWriter:
    folder.mkdir()
    with StoreWriter(folder) as writer:
        for row, passage in enumerate(passages):
            assert writer.add(passage) == row
    return writer


def stored(folder: Path, passages: Iterable[Passage] = CORPUS) -> PassageStore:
    written(folder, passages)
    return PassageStore.open(folder)


@settings(max_examples=25)  # each writes files and syncs them
@given(passages=st.lists(PASSAGES, max_size=20))
def test_passages_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> None:
    folder = tmp_path_factory.mktemp("store") / "passages"
    store = stored(folder, passages)
    assert len(store) == len(passages)
    assert [store[row] for row in range(len(store))] == list(store) == passages


@pytest.mark.parametrize(
    "passage",
    [
        Passage("0", "", "no title"),
        Passage("1", '"', "a quote for a title"),
        Passage("2", '"quoted"', 'says "so"'),
        Passage("3", "tabs\tand\rreturns", "a\r\n\r\nb"),
        Passage("4", "separators\u2028and\x85others", "\ufeffmark \x00 NUL\u2029."),
        Passage(" 5 ", "title only", ""),
        Passage("6", "🜁", "x" * 1_000_000),
    ],
)
def test_odd_texts_come_back_as_they_were(tmp_path: Path, passage: Passage) -> None:
    store = stored(tmp_path / "store", [CORPUS[0], passage, CORPUS[1]])
    assert store[1] == passage
    assert list(store) == [CORPUS[0], passage, CORPUS[1]]


def test_it_is_a_sequence(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    assert store[-1] == CORPUS[-1]
    assert store[np.int64(3)] == CORPUS[3]
    assert store[2:9:3] == CORPUS[2:9:3]
    assert store[::-1] == CORPUS[::-1]
    assert CORPUS[4] in store
    assert store.index(CORPUS[4]) == 4
    for row in (10, -11):
        with pytest.raises(IndexError, match=f"row {row} of 10"):
            store[row]
    with pytest.raises(TypeError):
        store["0"]  # type: ignore[call-overload]


def test_it_is_a_corpus_in_the_layout_of_wiki_18(tmp_path: Path) -> None:
    stored(tmp_path / "store")
    assert (tmp_path / "store" / "passages.jsonl").read_text().partition("\n")[0] == (
        '{"id": "0", "contents": "\\"Title 0\\"\\ntext of row 0\\nin two lines"}'
    )
    assert load_corpus(tmp_path / "store" / "passages.jsonl") == CORPUS


def test_its_hash_is_that_of_its_texts(tmp_path: Path) -> None:
    writer = written(tmp_path / "store", CORPUS)
    assert writer.sha256 == hashlib.sha256((tmp_path / "store" / "passages.jsonl").read_bytes()).hexdigest()


def test_more_rows_than_are_kept_waiting(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", (Passage(str(row), "", str(row)) for row in range(70_000)))
    assert [store[row].text for row in (0, 65_534, 65_535, 65_536, 69_999)] == [
        "0", "65534", "65535", "65536", "69999",
    ]  # fmt: skip


def test_many_threads_may_read(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: store[n % 10], range(2000))) == CORPUS * 200


def test_a_copy_in_another_process_opens_the_same_folder(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)[7].title)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(store), capture_output=True, env=environment)
    assert done.stdout.decode().strip() == "Title 7", done.stderr.decode()


class TestRepeatedIds:
    @settings(max_examples=25)
    @given(ids=st.lists(st.sampled_from("abcdefgh"), max_size=20))
    def test_are_the_later_ones_of_each_id(self, tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
        writer = written(tmp_path_factory.mktemp("store") / "passages", [Passage(id_, "", "x") for id_ in ids])
        assert writer.repeated().tolist() == [row for row, id_ in enumerate(ids) if id_ in ids[:row]]

    def test_equal_hashes_alone_are_none(self, tmp_path: Path) -> None:
        class Collides(str):
            def __hash__(self) -> int:
                return 7

        ids = [Collides(id_) for id_ in ("a", "b", "a", "c")]
        writer = written(tmp_path / "store", [Passage(id_, "", "x") for id_ in ids])
        assert writer.repeated().tolist() == [2]


class TestDamage:
    def test_a_store_that_was_not_closed_does_not_open(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()

        def fail() -> None:
            with StoreWriter(tmp_path / "store") as writer:
                writer.add(CORPUS[0])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        with pytest.raises(DataError, match="is not whole"):
            PassageStore.open(tmp_path / "store")

    @pytest.mark.parametrize("name", ["passages.jsonl", "offsets.npy"])
    @pytest.mark.parametrize("bytes_left", [None, 0, 100, 150])
    def test_a_short_or_missing_file_is_refused(self, tmp_path: Path, name: str, bytes_left: int | None) -> None:
        stored(tmp_path / "store")
        if bytes_left is None:
            (tmp_path / "store" / name).unlink()
        else:
            os.truncate(tmp_path / "store" / name, bytes_left)
        with pytest.raises(DataError, match="build the index again"):
            PassageStore.open(tmp_path / "store")

    def test_a_line_that_was_changed_is_named(self, tmp_path: Path) -> None:
        store = stored(tmp_path / "store")
        path = tmp_path / "store" / "passages.jsonl"
        with path.open("r+b") as file:
            file.write(b"[")
        with pytest.raises(DataError, match=r"passages\.jsonl is damaged"):
            store[0]
        assert store[1] == CORPUS[1]

    def test_a_passage_that_would_not_come_back_is_a_mistake_of_ours(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        writer = StoreWriter(tmp_path / "store")
        with pytest.raises(AssertionError, match="would not come back"):
            writer.add(Passage("0", "two\nlines", "text"))
        writer.close()
