"""Passages kept in a file: what is found again, under which index, and what becomes of a file that fails."""

from __future__ import annotations

import logging
import math
import multiprocessing
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import DataError, RetrieverDown, RetrieverError
from mrsearch.retrieval.kept import KeptRetriever


class Index:
    """Finds `top_k` passages that say the query and which index they are from; can be down, or exchanged."""

    def __init__(self, identity: str | None = "a1") -> None:
        self.serves = identity
        self.down = False
        self.breaks = 0
        self.asked: list[str] = []
        self.asked_for_identity = 0

    @property
    def identity(self) -> str | None:
        self.asked_for_identity += 1
        self._reach()
        return self.serves

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self._reach()
        self.asked += [request.query for request in requests]
        return [
            [Passage(str(rank), "", f"{self.serves}: {request.query}") for rank in range(request.top_k)]
            for request in requests
        ]

    def restart(self, identity: str | None) -> None:
        self.serves = identity
        self.breaks += 1

    def _reach(self) -> None:
        if self.down:
            self.breaks += 1
            raise RetrieverDown("nobody answers")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.sqlite"


def keep(index: Index, path: Path) -> KeptRetriever:
    return KeptRetriever(index, path, source="http://a")


def replay(path: Path, source: str = "http://a") -> KeptRetriever:
    return KeptRetriever(None, path, source=source, mode="replay")


def ask(retriever: KeptRetriever, *queries: str, top_k: int = 1) -> list[list[str]]:
    return [[p.text for p in found] for found in retriever.search([Search(query, top_k) for query in queries])]


class TestKeeping:
    def test_a_search_is_made_once_over_runs(self, path: Path) -> None:
        index = Index()
        with keep(index, path) as kept:
            assert ask(kept, "a", "b", "a") == [["a1: a"], ["a1: b"], ["a1: a"]]
            assert (kept.hits, kept.misses) == (1, 2)
        with keep(index, path) as kept:
            assert ask(kept, "b", "c", "a") == [["a1: b"], ["a1: c"], ["a1: a"]]
            assert (kept.hits, kept.misses) == (2, 1)
            assert ask(kept) == []
        assert index.asked == ["a", "b", "c"]
        assert index.asked_for_identity == 2  # once a run

    def test_another_top_k_is_another_search(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            assert ask(kept, "a", top_k=1) == [["a1: a"]]
            assert ask(kept, "a", top_k=2) == [["a1: a", "a1: a"]]

    def test_passages_come_back_to_the_last_bit(self, path: Path) -> None:
        passages = [
            Passage("1", "Title", "text", 0.1 + 0.2),
            Passage("", '"quoted"\n', "line\u2028\x00\r\n", None),
            Passage("3", "日本", "half \ud800 of a pair", 5e-324),
            Passage("4", "", "", -0.0),
            Passage("5", "", "no number", math.inf),
        ]

        class Fixed:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                return [passages if request.query == "a" else [] for request in requests]

        first = KeptRetriever(Fixed(), path, source="fixed").search([Search("a", 9), Search("b", 9)])
        assert first == [passages, []]
        (again, nothing) = replay(path, "fixed").search([Search("a", 9), Search("b", 9)])
        assert again == passages
        assert str(again[3].score) == "-0.0"
        assert nothing == []  # finding nothing is kept too

    def test_queries_that_differ_anyhow_have_entries_of_their_own(self, path: Path) -> None:
        queries = [
            "a",
            "A",
            "a ",
            "a\x00",
            "a\x00b",
            "a\ud800",
            "a\ud801",
            "a\ufffd",
            "é",
            "e\u0301",
            "",
            "x" * 100_000,
        ]
        with keep(Index(), path) as kept:
            ask(kept, *queries)
        assert ask(replay(path), *queries) == [[f"a1: {query}"] for query in queries]

    def test_what_a_caller_does_to_its_list_stays_with_it(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            kept.search([Search("a", 1)] * 2)[0].clear()
            assert ask(kept, "a", "a") == [["a1: a"], ["a1: a"]]

    def test_an_error_is_not_kept(self, path: Path) -> None:
        index = Index()
        with keep(index, path) as kept:
            ask(kept, "a")
            index.down = True
            with pytest.raises(RetrieverDown):
                ask(kept, "a", "b")
            index.down = False
            assert ask(kept, "a", "b") == [["a1: a"], ["a1: b"]]
        assert index.asked == ["a", "b"]

    def test_a_retriever_that_answers_too_little_is_an_error(self, path: Path) -> None:
        class Silent:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                return []

        with pytest.raises(RetrieverError, match="0 lists of passages for 1 searches"):
            ask(KeptRetriever(Silent(), path, source="s"), "a")

    def test_many_threads_get_their_own_passages(self, path: Path) -> None:
        with keep(Index(), path) as kept, ThreadPoolExecutor(8) as pool:
            queries = [str(number % 9) for number in range(300)]
            assert list(pool.map(lambda query: ask(kept, query), queries)) == [[[f"a1: {q}"]] for q in queries]
            assert kept.hits + kept.misses == 300

    def test_processes_that_begin_a_file_together_share_it(self, path: Path) -> None:
        fork = multiprocessing.get_context("fork")
        start = fork.Event()

        def record(worker: int) -> None:
            start.wait()
            with keep(Index(), path) as kept:
                for number in range(20):
                    ask(kept, f"{worker}-{number}", f"all-{number}")
                assert kept.unkept == 0

        workers = [fork.Process(target=record, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        start.set()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * 4
        queries = [f"{name}-{number}" for name in ("0", "1", "2", "3", "all") for number in range(20)]
        assert ask(replay(path), *queries) == [[f"a1: {query}"] for query in queries]

    def test_many_that_begin_files_at_one_moment_all_get_them(self, tmp_path: Path) -> None:
        # SQLite refuses at once, whatever its patience, where two would change a new file's mode together.
        fork = multiprocessing.get_context("fork")
        ready = fork.Barrier(8)

        def begin() -> None:
            for number in range(30):
                ready.wait(60)
                keep(Index(), tmp_path / f"{number}.sqlite").close()

        workers = [fork.Process(target=begin) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * 8

    def test_a_process_that_is_killed_leaves_a_file_that_can_be_used(self, path: Path) -> None:
        fork = multiprocessing.get_context("fork")
        written = fork.Value("i", 0)

        def record() -> None:
            with keep(Index(), path) as kept:
                while True:
                    ask(kept, f"{written.value}", "x" * 1000 + f"{written.value}")
                    written.value += 1

        child = fork.Process(target=record)
        child.start()
        while written.value < 20:
            time.sleep(0.001)
        child.kill()
        child.join()
        with keep(Index(), path) as kept:
            queries = [str(number) for number in range(20)]
            assert ask(kept, *queries) == [[f"a1: {query}"] for query in queries]
            assert kept.misses == 0

    def test_a_forked_process_has_a_connection_of_its_own(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a")
            fork = multiprocessing.get_context("fork")
            child = fork.Process(target=lambda: ask(kept, "child"))
            child.start()
            child.join()
            assert child.exitcode == 0
            ask(kept, "parent")
        assert ask(replay(path), "a", "child", "parent") == [["a1: a"], ["a1: child"], ["a1: parent"]]


class TestIdentity:
    def test_another_index_has_other_entries(self, path: Path) -> None:
        with keep(Index("a1"), path) as kept:
            ask(kept, "a")
        with keep(Index("b2"), path) as kept:
            assert ask(kept, "a") == [["b2: a"]]
        with keep(first := Index("a1"), path) as kept:
            assert ask(kept, "a") == [["a1: a"]]
        assert first.asked == []

    def test_one_index_has_one_set_of_entries_wherever_it_is_served(self, path: Path) -> None:
        with keep(Index("a1"), path) as kept:
            ask(kept, "a")
        index = Index("a1")
        with KeptRetriever(index, path, source="http://b") as kept:
            ask(kept, "a")
        assert index.asked == []

    def test_a_retriever_without_an_identity_is_known_by_its_source(self, path: Path) -> None:
        with keep(Index(None), path) as kept:
            ask(kept, "a")
        other, same = Index(None), Index(None)
        with KeptRetriever(other, path, source="http://b") as kept:
            ask(kept, "a")
        with keep(same, path) as kept:
            ask(kept, "a")
        assert (other.asked, same.asked) == (["a"], [])

    def test_a_server_that_is_started_anew_with_another_index_is_noticed(self, path: Path) -> None:
        index = Index("a1")
        with keep(index, path) as kept:
            ask(kept, "a", "b")
            index.restart("b2")
            assert ask(kept, "a", "c") == [["b2: a"], ["b2: c"]]

    def test_so_is_one_that_is_started_anew_in_the_middle_of_a_search(self, path: Path) -> None:
        class Exchanged(Index):
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                if requests[0].query == "c" and self.serves == "a1":
                    self.restart("b2")
                return super().search(requests)

        with keep(Exchanged("a1"), path) as kept:
            ask(kept, "a")
            assert ask(kept, "a", "c") == [["b2: a"], ["b2: c"]]  # and never a mixture
        with pytest.raises(RetrieverError, match="'b'"):
            ask(replay(path), "b")

    def test_when_the_server_is_down_what_was_kept_of_it_is_found(self, path: Path) -> None:
        with keep(Index("a1"), path) as kept:
            ask(kept, "a", "b")
        index = Index("b2")
        index.down = True
        with keep(index, path) as kept:
            for _ in range(3):
                assert ask(kept, "a", "b") == [["a1: a"], ["a1: b"]]
            assert index.asked_for_identity == 1  # each time would cost a deadline
            with pytest.raises(RetrieverDown):
                ask(kept, "a", "c")
            index.down = False
            assert ask(kept, "a", "c") == [["b2: a"], ["b2: c"]]

    def test_when_it_was_never_seen_it_is_down(self, path: Path) -> None:
        index = Index()
        index.down = True
        with keep(index, path) as kept, pytest.raises(RetrieverDown):
            ask(kept, "a")


class TestReplay:
    def test_needs_no_retriever(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a", "b")
        with replay(path) as replayed:
            assert ask(replayed, "b", "a", "b") == [["a1: b"], ["a1: a"], ["a1: b"]]
            assert (replayed.hits, replayed.misses) == (3, 0)

    def test_a_search_that_was_not_recorded_is_an_error(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a")
        with pytest.raises(
            RetrieverError, match=r"kept\.sqlite has no passages for 'b' \(top 1\) of http://a"
        ) as caught:
            ask(replay(path), "a", "b")
        assert not isinstance(caught.value, RetrieverDown)

    def test_asks_nobody_even_where_there_is_somebody(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a")
        index = Index()
        replayed = KeptRetriever(index, path, source="http://a", mode="replay")
        assert ask(replayed, "a") == [["a1: a"]]
        assert (index.asked, index.asked_for_identity) == ([], 0)

    def test_takes_the_index_that_the_source_had_last(self, path: Path) -> None:
        for identity in ("a1", "b2"):
            with keep(Index(identity), path) as kept:
                ask(kept, "a")
        assert ask(replay(path), "a") == [["b2: a"]]

    def test_a_source_need_not_be_named_where_there_is_one(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a")
        assert ask(replay(path, ""), "a") == [["a1: a"]]
        with KeptRetriever(Index(), path, source="http://b") as kept:
            ask(kept, "a")
        with pytest.raises(DataError, match="no passages of no name, but of http://a, http://b"):
            replay(path, "")

    def test_of_a_source_that_was_not_recorded_is_refused(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a")
        with pytest.raises(DataError, match="no passages of http://b, but of http://a"):
            replay(path, "http://b")

    def test_of_a_file_that_is_not_there_is_refused(self, path: Path) -> None:
        with pytest.raises(DataError, match="there is no file"):
            replay(path)
        assert not path.exists()

    def test_goes_on_while_another_process_records(self, path: Path) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a")
            with replay(path) as replayed:
                ask(kept, "b")
                assert ask(replayed, "a", "b") == [["a1: a"], ["a1: b"]]


def damage(path: Path, change: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()


class TestFile:
    @pytest.mark.parametrize(
        "content", [b"no database, but a text that goes on for a while" * 30, b"SQLite format 3\0"]
    )
    def test_that_is_no_database_is_refused(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        for mode in ("use", "replay"):
            with pytest.raises(DataError, match=r"kept\.sqlite is damaged, or no file of kept passages"):
                KeptRetriever(Index(), path, source="a", mode=mode)  # type: ignore[arg-type]
        assert path.read_bytes() == content

    def test_that_is_somebody_elses_is_refused(self, path: Path) -> None:
        damage(path, "CREATE TABLE theirs (name TEXT)")
        with pytest.raises(DataError, match="an SQLite file of something else"):
            keep(Index(), path)

    def test_of_another_format_is_refused(self, path: Path) -> None:
        keep(Index(), path).close()
        damage(path, "PRAGMA user_version = 2")
        with pytest.raises(DataError, match="has format 2, and this version of mrsearch reads format 1"):
            keep(Index(), path)

    def test_in_a_folder_that_is_not_there_is_refused(self, path: Path) -> None:
        with pytest.raises(DataError, match="there is no folder"):
            keep(Index(), path.parent / "no" / "kept.sqlite")

    def test_that_is_a_folder_is_refused(self, path: Path) -> None:
        path.mkdir()
        with pytest.raises(DataError, match="cannot be opened"):
            keep(Index(), path)

    def test_with_an_entry_that_was_changed_asks_again_and_mends_it(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        index = Index()
        with keep(index, path) as kept:
            ask(kept, "a")
        damage(path, "UPDATE kept SET passages = replace(passages, 'a1: a', 'a1: b')")
        with pytest.raises(RetrieverError, match="an entry differs from what was written"):
            ask(replay(path), "a")
        with keep(index, path) as kept:
            assert ask(kept, "a") == [["a1: a"]]
        assert caplog.text.count("the run goes on") == 1
        assert ask(replay(path), "a") == [["a1: a"]]

    def test_that_breaks_during_a_run_does_not_stop_it(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        index = Index()
        with keep(index, path) as kept, caplog.at_level(logging.WARNING, logger="mrsearch"):
            ask(kept, "a")
            damage(path, "DROP TABLE kept")
            assert ask(kept, "a", "b") == [["a1: a"], ["a1: b"]]
            assert ask(kept, "c") == [["a1: c"]]
            assert (kept.misses, kept.unkept) == (4, 3)
        assert caplog.text.count("the run goes on") == 1

    def test_that_is_locked_does_not_stop_a_run(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with KeptRetriever(Index(), path, source="http://a", patience=0.01) as kept:
            ask(kept, "a")
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            assert ask(kept, "a", "b") == [["a1: a"], ["a1: b"]]
            assert kept.unkept == 1
            assert "is locked by another process" in caplog.text
            other.execute("ROLLBACK")
            ask(kept, "b")
            assert kept.unkept == 1

    def test_that_cannot_grow_does_not_stop_a_run(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with keep(Index(), path) as kept:
            ask(kept, "a")
            pages = kept._file._do(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
            kept._file._do(lambda db: db.execute(f"PRAGMA max_page_count = {pages}"))
            assert ask(kept, "a", "x" * 100_000) == [["a1: a"], ["a1: " + "x" * 100_000]]
            assert "cannot grow" in caplog.text
            assert kept.unkept == 1
