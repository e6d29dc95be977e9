"""Evaluations that go on where they were: what is kept, what a crash costs, and that no result shows it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Completion, Generate, Sampling
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Action, Episode, Passage, Question, Trajectory, Turn, Window
from mrsearch.errors import DataError
from mrsearch.evaluate.journal import Chunk, Journal, Played, mean_logprobs, read_played
from mrsearch.evaluate.modes import Mode, mode_of
from mrsearch.evaluate.result import figures
from mrsearch.evaluate.run import play_set
from mrsearch.rollout.driver import PlayStats, SimpleDriver
from mrsearch.rollout.play import Player
from plain_codec import CompletionPolicy, PassageBook, PlainCodec, play_turns, write

PROMPTS = Prompts(question="{question}\n", reflection="Again.\n", last_call="", passage_untitled="{text}")
IDENTITY = {"set": "dev", "settings": {"seed": 3}}
QUESTIONS = [Question(str(n), name, ("n0",)) for n, name in enumerate(("tower", "forum", "fjord", "tower", "sea"))]
"""The first and the fourth ask the same."""

REFLECT = mode_of("reflect", Plan(episodes=2, searches=1), PROMPTS, Sampling())
PARALLEL = mode_of("parallel", Plan(episodes=2, searches=1), PROMPTS, Sampling())


class CountingDriver:
    """A driver that counts as an engine would: a near tie and two retries each time it plays."""

    def __init__(self, inner: SimpleDriver) -> None:
        self._inner = inner

    def play(self, metas: Sequence[MetaEpisode]) -> PlayStats:
        stats = self._inner.play(metas)
        stats.counters.update(near_ties=1, retries=2)
        return stats


@dataclass
class Bench:
    """A player whose answers depend on the seeds alone, and what it was asked."""

    broken: Sequence[str] = ()
    requests: list[tuple[tuple[int, ...], str, int, Sampling]] = field(default_factory=list)
    together: list[list[int]] = field(default_factory=list)

    def player(self) -> Player:
        codec = PlainCodec(PROMPTS)

        def write_turn(request: Generate) -> Completion:
            text = codec.decode(request.ids)
            self.requests.append((request.window, text, request.seed, request.sampling))
            if "<information>" not in text:
                return write(codec, f"<search>{text.split(']')[1].split()[0]}</search>")
            return write(codec, f"<answer>n{request.seed % 3}</answer>")

        policy = CompletionPolicy(write_turn)
        book = PassageBook({"tower": [Passage("7", "", "high")]}, broken=self.broken)
        return Player(CountingDriver(SimpleDriver(policy, book)), codec, PROMPTS)

    def play(
        self,
        path: Path | None,
        *,
        mode: Mode = REFLECT,
        questions: Sequence[Question] = QUESTIONS,
        seed: int = 0,
        rows: int = 2,
        identity: Any = IDENTITY,
    ) -> list[Played]:
        journal = Journal(path, identity)
        return play_set(self.player(), questions, mode, seed=seed, rows=rows, journal=journal, progress=self._see)

    def _see(self, done: Sequence[Played]) -> None:
        self.together.append([played.index for played in done])

    @property
    def asked(self) -> list[int]:
        """The questions that were played, in order, each once."""
        return list(dict.fromkeys(window[0] for window, *_ in self.requests))


def play(path: Path | None, **how: Any) -> list[Played]:
    return Bench().play(path, **how)


def without_tokens(chunk: Chunk) -> Chunk:
    """As a chunk comes back: token ids are not kept."""
    return replace(chunk, played=plain(chunk.played))


def plain(played: Sequence[Played]) -> list[Played]:
    return [replace(row, samples=[replace(sample, windows=[]) for sample in row.samples]) for row in played]


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal, but for the seconds that they took."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def chunk_of(index: int, *samples_turns: Sequence[str], found: Sequence[Passage] = ()) -> Chunk:
    """A chunk of one question, with a sample for each of some lists of turns."""
    codec, plan = PlainCodec(PROMPTS), Plan(episodes=1, searches=1)
    samples = [
        play_turns(MetaEpisode(QUESTIONS[0], plan, codec, PROMPTS), codec, turns, found)
        for turns in samples_turns or [["<answer>a</answer>"]]
    ]
    return Chunk([Played(index, samples, [mean_logprobs(sample) for sample in samples])], 1.25, {"near_ties": index})


class TestMeanLogprobs:
    def test_are_over_the_tokens_that_each_episode_sampled(self) -> None:
        window = Window([1, 2, 3, 4, 5], [0, 1, 1, 0, 1], [1, 1, 1, 2, 2], [0.0, -1.0, -4.0, 0.0, -3.0])
        turns = [Turn("", Action("invalid"), "invalid", False, 0, *place) for place in ((1, 3), (4, 5))]
        episodes = [Episode(n, [turn], "no_answer") for n, turn in enumerate(turns, start=1)]
        trajectory = Trajectory(QUESTIONS[0], 0, 0, episodes, [window], "complete")
        assert mean_logprobs(trajectory) == [-2.5, -3.0]

    def test_take_all_turns_of_an_episode_together(self) -> None:
        codec = PlainCodec(PROMPTS)
        meta = MetaEpisode(QUESTIONS[0], Plan(episodes=1, searches=1), codec, PROMPTS)
        # The first turn has eight tokens of -1 to -8, the second one of -1: -37 over nine.
        assert mean_logprobs(play_turns(meta, codec, ["<search>q</search>", "hm"])) == pytest.approx([-37 / 9])

    @pytest.mark.parametrize("logprob", [math.nan, -math.inf])
    def test_are_unknown_where_a_number_is_no_number_or_nothing_was_written(self, logprob: float) -> None:
        turn = Turn("", Action("invalid"), "invalid", False, 0, 0, 1)
        episodes = [Episode(1, [turn], "no_answer"), Episode(2, [], "context_full")]
        trajectory = Trajectory(QUESTIONS[0], 0, 0, episodes, [Window([1], [1], [1], [logprob])], "context_full")
        assert mean_logprobs(trajectory) == [None, None]


class TestJournal:
    def test_a_chunk_comes_back_equal_but_for_its_tokens(self, tmp_path: Path) -> None:
        found = [Passage("7", "Tür", "high \u2028 \"'\n", 0.1), Passage("8", "", "x")]
        chunks = [
            chunk_of(1, ["<answer>Köln</answer>"], ["<search>q</search>hm", "<answer> </answer>"], found=found),
            chunk_of(0, ["<search>q</search>", "hm"]),
        ]
        chunks[1].played[0].samples[0].lookup = tuple(found)
        journal = Journal(tmp_path / "a.jsonl", IDENTITY)
        for chunk in chunks:
            journal.add(chunk)
        again = Journal(tmp_path / "a.jsonl", IDENTITY)
        assert again.chunks == [without_tokens(chunk) for chunk in chunks]
        assert again.chunks[0].played[0].samples[0].windows == []

    @given(answer=st.text(max_size=8), title=st.text(max_size=8), logprob=st.floats(-1e9, 0) | st.none())
    def test_any_text_and_number_comes_back(
        self, tmp_path_factory: pytest.TempPathFactory, answer: str, title: str, logprob: float | None
    ) -> None:
        turn = Turn(answer, Action("search", answer), "search", True, 0, 0, 1, (Passage("7", title, answer, logprob),))
        question = Question("1", title, (answer,), "set", (title,))
        sample = Trajectory(
            question, 4, 2, [Episode(1, [turn], "no_answer")], [], "complete", Counter(turns=1), [0.5], [-0.5], ()
        )
        chunk = Chunk([Played(3, [sample], [[logprob, None]])], 0.5, {})
        path = tmp_path_factory.mktemp("any") / "a.jsonl"
        Journal(path, IDENTITY).add(chunk)
        assert Journal(path, IDENTITY).chunks == [chunk]

    def test_what_is_done_is_in_the_order_of_the_questions_and_the_rest_adds_up(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "a.jsonl", IDENTITY)
        for index in (2, 0):
            journal.add(chunk_of(index))
        for kept in (journal, Journal(tmp_path / "a.jsonl", IDENTITY)):
            assert [played.index for played in kept.played] == [0, 2]
            assert kept.done == {0, 2}
            assert kept.seconds == 2.5
            assert kept.counters == {"near_ties": 2}

    def test_a_number_that_json_has_no_word_for_is_unknown(self, tmp_path: Path) -> None:
        chunk = chunk_of(0)
        chunk.played[0].logprobs[0][0] = math.nan
        Journal(tmp_path / "a.jsonl", {"temperature": math.inf}).add(chunk)
        (again,) = Journal(tmp_path / "a.jsonl", {"temperature": math.inf}).chunks
        assert again.played[0].logprobs == [[None]]

    def test_a_line_that_is_cut_at_any_byte_is_dropped_and_the_next_one_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        journal = Journal(path, IDENTITY)
        chunks = [chunk_of(index, ["<answer>ü</answer>"]) for index in range(3)]
        for chunk in chunks[:2]:
            journal.add(chunk)
        whole = path.read_bytes()
        last = whole.rindex(b"\n", 0, -1) + 1
        for cut in range(last, len(whole)):
            path.write_bytes(whole[:cut])
            assert Journal(path, IDENTITY).done == {0}, f"cut at byte {cut}"
            assert path.read_bytes() == whole[:last], f"cut at byte {cut}"
        Journal(path, IDENTITY).add(chunks[2])
        assert Journal(path, IDENTITY).done == {0, 2}

    def test_what_follows_a_line_that_is_broken_in_the_middle_is_dropped_with_it(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        journal = Journal(path, IDENTITY)
        for index in range(3):
            journal.add(chunk_of(index))
        first, one, two, three = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(first + one + two[:20] + b"\n" + three)
        assert Journal(path, IDENTITY).done == {0}

    @pytest.mark.parametrize("other", [{**IDENTITY, "set": "test"}, {"set": "dev"}, {**IDENTITY, "weights": 1}])
    def test_other_settings_begin_anew(self, tmp_path: Path, other: dict[str, Any]) -> None:
        path = tmp_path / "a.jsonl"
        Journal(path, IDENTITY).add(chunk_of(0))
        assert Journal(path, other).done == set()
        assert records(path) == [{"evaluation": other}]

    def test_the_order_in_which_settings_are_named_is_no_other_setting(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        Journal(path, IDENTITY).add(chunk_of(0))
        assert Journal(path, dict(reversed(IDENTITY.items()))).done == {0}

    def test_without_a_path_nothing_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        journal = Journal(None, IDENTITY)
        journal.add(chunk_of(0))
        assert journal.done == {0}
        assert list(tmp_path.iterdir()) == []


class TestReadPlayed:
    def test_gives_what_a_file_holds_whichever_evaluation_it_is_of(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        journal = Journal(path, {"any": "other"})
        for index in (2, 0):
            journal.add(chunk_of(index))
        assert list(read_played(path)) == [row for chunk in journal.chunks for row in plain(chunk.played)]
        path.write_bytes(path.read_bytes()[:-1])
        assert [played.index for played in read_played(path)] == [2]

    @pytest.mark.parametrize(
        "content", ["", "no json\n", "[]\n", "3\n", '{"id": 1}\n', '{"evaluation": {}}\n{"id": 1}\n']
    )
    def test_refuses_another_file(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text(content)
        with pytest.raises(DataError, match=r"a\.jsonl holds nothing that mrsearch eval played"):
            list(read_played(path))


class TestPlaySet:
    def test_plays_about_so_many_windows_at_a_time_and_tells_what_is_done(self) -> None:
        bench = Bench()
        assert [played.index for played in bench.play(None, rows=2)] == [0, 1, 2, 3, 4]
        assert bench.together == [[], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]]

    @pytest.mark.parametrize(("rows", "sizes"), [(4, [2, 4, 5]), (3, [1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 5])])
    def test_counts_each_sample_as_a_window_and_plays_one_question_at_least(self, rows: int, sizes: list[int]) -> None:
        bench = Bench()
        played = bench.play(None, mode=PARALLEL, rows=rows)
        assert [len(done) for done in bench.together[1:]] == sizes
        assert {len(row.samples) for row in played} == {len(row.logprobs) for row in played} == {2}
        assert [sample.question.id for row in played for sample in row.samples] == list("0011223344")

    def test_asks_with_the_prompt_and_the_sampling_of_the_mode(self) -> None:
        direct = mode_of("direct", REFLECT.plan, replace(PROMPTS, direct="Say {question}:"), Sampling(temperature=0.5))
        bench = Bench()
        bench.play(None, mode=direct, questions=QUESTIONS[:1])
        ((_, text, _, sampling),) = bench.requests
        assert text == "[message]Say tower:[reply]"
        assert sampling == Sampling(temperature=0.5)

    def test_the_result_is_the_same_whatever_is_played_together_and_wherever_it_is_kept(self, tmp_path: Path) -> None:
        for mode in (REFLECT, PARALLEL):
            path = tmp_path / f"{mode.name}.jsonl"
            found = [play(None, mode=mode, rows=rows) for rows in (1, 2, 100)]
            found += [play(path, mode=mode), play(path, mode=mode)]
            assert all(plain(one) == plain(found[0]) for one in found)
            assert all(figures(one, mode) == figures(found[0], mode) for one in found)

    def test_what_is_drawn_depends_on_the_seed(self) -> None:
        answers = [
            [episode.answer for row in play(None, seed=seed) for episode in row.samples[0].episodes] for seed in (0, 1)
        ]
        assert answers[0] != answers[1]

    def test_questions_that_are_done_are_not_played_again(self, tmp_path: Path) -> None:
        play(tmp_path / "a.jsonl")
        bench = Bench()
        assert len(bench.play(tmp_path / "a.jsonl")) == 5
        assert bench.requests == []
        assert bench.together == [[0, 1, 2, 3, 4]]

    def test_only_an_engines_counters_that_belong_to_a_result_are_kept(self, tmp_path: Path) -> None:
        for _ in range(2):
            play(tmp_path / "a.jsonl", rows=2)
            assert Journal(tmp_path / "a.jsonl", IDENTITY).counters == {"near_ties": 3}

    def test_a_question_that_is_asked_twice_counts_twice_and_is_drawn_anew(self, tmp_path: Path) -> None:
        same = [QUESTIONS[0]] * 12
        for _ in range(2):
            played = play(tmp_path / "a.jsonl", questions=same, rows=4)
            assert [row.index for row in played] == list(range(12))
            assert [row["id"] for row in figures(played, REFLECT)["answers"]] == ["0"] * 12
            assert len({row.samples[0].episodes[0].answer for row in played}) > 1


class TestGoingOn:
    @settings(max_examples=60)
    @given(share=st.floats(0, 1), rows=st.integers(1, 5), mode=st.sampled_from([REFLECT, PARALLEL]))
    def test_after_a_crash_at_any_byte_the_result_and_the_file_are_those_of_a_run_in_one_piece(
        self, tmp_path_factory: pytest.TempPathFactory, share: float, rows: int, mode: Mode
    ) -> None:
        folder = tmp_path_factory.mktemp("crash")
        once = play(folder / "once.jsonl", mode=mode, rows=rows)
        content = (folder / "once.jsonl").read_bytes()
        (folder / "cut.jsonl").write_bytes(content[: round(share * len(content))])
        again = play(folder / "cut.jsonl", mode=mode, rows=rows)
        assert plain(again) == plain(once)
        assert figures(again, mode) == figures(once, mode)
        assert records(folder / "cut.jsonl") == records(folder / "once.jsonl")

    def test_only_what_the_crash_cost_is_played_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        play(path, rows=2)
        path.write_bytes(path.read_bytes()[:-1])
        bench = Bench()
        bench.play(path, rows=2)
        assert bench.asked == [4]
        assert bench.together == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]

    @given(kept=st.sets(st.integers(0, 4)))
    def test_a_questions_seeds_do_not_depend_on_which_others_are_missing(
        self, tmp_path_factory: pytest.TempPathFactory, kept: set[int]
    ) -> None:
        path = tmp_path_factory.mktemp("missing") / "a.jsonl"
        whole, rest = Bench(), Bench()
        played = whole.play(None, mode=PARALLEL)
        Journal(path, IDENTITY).add(Chunk([row for row in played if row.index in kept]))
        rest.play(path, mode=PARALLEL)
        assert rest.asked == [index for index in range(5) if index not in kept]
        # The same windows, contexts, seeds and sampling, in whatever company.
        assert sorted(map(repr, rest.requests)) == sorted(
            repr(request) for request in whole.requests if request[0][0] not in kept
        )


class TestFailedSearches:
    def test_a_question_without_an_answer_to_its_search_is_not_kept_and_no_other_is_lost(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        played = Bench(broken=["tower"]).play(path, rows=5)
        assert [row.index for row in played] == [1, 2, 4]
        assert Journal(path, IDENTITY).done == {1, 2, 4}

    def test_it_is_played_when_the_evaluation_goes_on_as_if_it_had_never_failed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        Bench(broken=["forum", "sea"]).play(path)
        bench = Bench()
        again = bench.play(path)
        assert bench.asked == [1, 4]
        assert [row.index for row in again] == [0, 1, 2, 3, 4]
        assert plain(again) == plain(play(None))

    def test_one_sample_that_failed_leaves_out_the_question(self, tmp_path: Path) -> None:
        codec, book = PlainCodec(PROMPTS), PassageBook({}, broken=["lost"])

        def write_turn(request: Generate) -> Completion:
            if "<information>" in codec.decode(request.ids):
                return write(codec, "<answer>a</answer>")
            return write(codec, f"<search>{'lost' if request.window[:2] == (0, 1) else 'found'}</search>")

        journal = Journal(tmp_path / "a.jsonl", IDENTITY)
        player = Player(SimpleDriver(CompletionPolicy(write_turn), book), codec, PROMPTS)
        played = play_set(player, QUESTIONS[:2], PARALLEL, seed=0, rows=2, journal=journal)
        # The call that failed is repeated search by search, so that the question's other sample has its passages.
        assert book.calls == [["found", "lost"], ["found"], ["lost"], ["found", "found"]]
        assert [row.index for row in played] == [1]

    def test_a_chunk_of_failures_alone_is_no_question(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        assert Bench(broken=["tower"]).play(path, questions=QUESTIONS[:1]) == []
        assert [row.index for row in play(path, questions=QUESTIONS[:1])] == [0]
