"""The simple driver, the player and scripted turns: who is asked together, what an outage does, which seeds come."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import pytest

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Completion, Generate, Retriever, Sampling, Search
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Passage, Question, Trajectory
from mrsearch.errors import Outage, RetrieverDown, RetrieverError
from mrsearch.rollout.driver import PlayStats, SimpleDriver, answer_searches, find
from mrsearch.rollout.play import Player
from mrsearch.rollout.scripted import ScriptedPolicy, replay
from plain_codec import CompletionPolicy, PassageBook, PlainCodec, write

PROMPTS = Prompts(question="{question}\n", reflection="Again.\n")
PARIS = Question("1", "Where is the tower?", ("Paris",))
ROME = Question("2", "Where is the forum?", ("Rome",))
TOWER = Passage("7", "Tower", "It is in Paris.")
PLAN = Plan(episodes=1, searches=1)


@pytest.fixture
def codec() -> PlainCodec:
    return PlainCodec(PROMPTS)


def searching_then_answering(codec: PlainCodec, request: Generate) -> Completion:
    """Search for the question's last noun; answer what the passages say, or that they say nothing."""
    text = codec.decode(request.ids)
    if "<information>" not in text:
        return write(codec, f"<search>{'tower' if 'tower' in text else 'forum'}</search>")
    return write(codec, f"<answer>{'Paris' if 'in Paris' in text else 'unknown'}</answer>")


def play(codec: PlainCodec, metas: Sequence[MetaEpisode], retriever: Retriever) -> tuple[list[Trajectory], PlayStats]:
    policy = CompletionPolicy(lambda request: searching_then_answering(codec, request))
    stats = SimpleDriver(policy, retriever).play(metas)
    return [meta.trajectory() for meta in metas], stats


class TestSimpleDriver:
    def test_each_machine_gets_its_own_replies(self, codec: PlainCodec) -> None:
        metas = [
            MetaEpisode(question, PLAN, codec, PROMPTS, group=n) for n, question in enumerate((PARIS, ROME, PARIS))
        ]
        trajectories, _ = play(codec, metas, PassageBook({"tower": [TOWER]}))
        assert [trajectory.episodes[0].answer for trajectory in trajectories] == ["Paris", "unknown", "Paris"]
        assert [trajectory.episodes[0].turns[0].passages for trajectory in trajectories] == [(TOWER,), (), (TOWER,)]

    def test_those_that_need_the_same_are_asked_together(self, codec: PlainCodec) -> None:
        metas = [MetaEpisode(question, PLAN, codec, PROMPTS, group=n) for n, question in enumerate((PARIS, ROME))]
        policy = CompletionPolicy(lambda request: searching_then_answering(codec, request))
        book = PassageBook({"tower": [TOWER]})
        SimpleDriver(policy, book).play(metas)
        assert policy.calls == [[(0, 0, 0), (1, 0, 0)], [(0, 0, 0), (1, 0, 0)]]
        assert book.calls == [["tower", "forum"]]

    def test_one_that_is_done_is_asked_no_more(self, codec: PlainCodec) -> None:
        def write_turn(request: Generate) -> Completion:
            answer = request.window[0] == 0 or "information" in codec.decode(request.ids)
            return write(codec, "<answer>a</answer>" if answer else "<search>q</search>")

        metas = [MetaEpisode(PARIS, PLAN, codec, PROMPTS, group=n) for n in range(2)]
        policy = CompletionPolicy(write_turn)
        SimpleDriver(policy, PassageBook({})).play(metas)
        assert policy.calls == [[(0, 0, 0), (1, 0, 0)], [(1, 0, 0)]]

    def test_an_outage_ends_those_that_searched_and_the_others_go_on(
        self, codec: PlainCodec, caplog: pytest.LogCaptureFixture
    ) -> None:
        def write_turn(request: Generate) -> Completion:
            return write(codec, "<search>q</search>" if request.window[1] < 2 else "<answer>Paris</answer>")

        metas = [MetaEpisode(PARIS, Plan(episodes=2, searches=1), codec, PROMPTS, member=n) for n in range(3)]
        with caplog.at_level(logging.WARNING, logger="mrsearch"):
            SimpleDriver(CompletionPolicy(write_turn), PassageBook({}, broken=["q"])).play(metas)
        ends = [meta.trajectory().finish_reason for meta in metas]
        assert ends == ["retrieval_failed", "retrieval_failed", "complete"]
        assert "2 searches had no answer: no reply for 'q'" in caplog.text

    def test_without_machines_there_is_nothing_to_do(self, codec: PlainCodec) -> None:
        assert play(codec, [], PassageBook({})) == ([], PlayStats())

    def test_a_machine_whose_question_does_not_fit_is_done_at_once(self, codec: PlainCodec) -> None:
        meta = MetaEpisode(PARIS, Plan(window_tokens=2), codec, PROMPTS)
        (trajectory,), _ = play(codec, [meta], PassageBook({}))
        assert trajectory.finish_reason == "context_full"

    def test_a_policy_that_leaves_a_request_out_is_not_taken_for_an_answer(self, codec: PlainCodec) -> None:
        class Forgetful:
            def generate(self, requests: Sequence[Generate]) -> list[Completion]:
                return [write(codec, "<answer>a</answer>") for _ in requests[1:]]

        metas = [MetaEpisode(PARIS, PLAN, codec, PROMPTS, member=n) for n in range(2)]
        with pytest.raises(ValueError, match="shorter"):
            SimpleDriver(Forgetful(), PassageBook({})).play(metas)

    def test_it_says_where_the_time_went(self, codec: PlainCodec) -> None:
        _, stats = play(codec, [MetaEpisode(PARIS, PLAN, codec, PROMPTS)], PassageBook({"tower": [TOWER]}))
        assert stats.generation_s > 0
        assert stats.retrieval_s > 0

    def test_searches_alone_can_be_answered(self, codec: PlainCodec) -> None:
        searching, writing = (MetaEpisode(PARIS, PLAN, codec, PROMPTS, member=n) for n in range(2))
        searching.feed(write(codec, "<search>tower</search>"))
        assert searching.need == Search("tower", 3)
        answer_searches([searching, writing], PassageBook({"tower": [TOWER]}))
        assert isinstance(searching.need, Generate)
        assert "It is in Paris." in codec.decode(searching.need.ids)


class TestStats:
    def test_add_up(self) -> None:
        stats = PlayStats(1.0, 2.0, Counter(generated_tokens=3))
        stats.add(PlayStats(0.5, 0.25, Counter(generated_tokens=4, near_ties=1)))
        assert stats == PlayStats(1.5, 2.25, Counter(generated_tokens=7, near_ties=1))


class TestPlayer:
    def seen(self, codec: PlainCodec, *, seed: tuple[int, int] = (0, 1), first_group: int = 0) -> list[Generate]:
        requests: list[Generate] = []

        def write_turn(request: Generate) -> Completion:
            requests.append(request)
            return write(codec, "<answer>a</answer>")

        player = Player(SimpleDriver(CompletionPolicy(write_turn), PassageBook({})), codec, PROMPTS)
        trajectories, _ = player.play(
            [PARIS, ROME],
            PLAN,
            group_size=2,
            sampling=Sampling(temperature=0.7),
            seed=seed,
            first_group=first_group,
        )
        placed = [(trajectory.question.id, trajectory.group, trajectory.member) for trajectory in trajectories]
        assert placed == [(id_, first_group + n, member) for n, id_ in enumerate("12") for member in (0, 1)]
        return requests

    def test_plays_a_group_of_each_question_in_order(self, codec: PlainCodec) -> None:
        requests = self.seen(codec)
        assert [request.window for request in requests] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
        assert {request.sampling for request in requests} == {Sampling(temperature=0.7)}

    def test_numbers_groups_from_where_it_is_told(self, codec: PlainCodec) -> None:
        assert {request.window[0] for request in self.seen(codec, first_group=5)} == {5, 6}

    def test_equal_questions_are_groups_of_their_own(self, codec: PlainCodec) -> None:
        policy = CompletionPolicy(lambda request: write(codec, "<answer>a</answer>"))
        player = Player(SimpleDriver(policy, PassageBook({})), codec, PROMPTS)
        trajectories, _ = player.play([PARIS, PARIS], PLAN, group_size=2, sampling=Sampling(), seed=(0, 1))
        assert [trajectory.group for trajectory in trajectories] == [0, 0, 1, 1]

    def test_seeds_are_those_of_the_step_and_the_group(self, codec: PlainCodec) -> None:
        first, again = ([request.seed for request in self.seen(codec)] for _ in range(2))
        next_step = [request.seed for request in self.seen(codec, seed=(0, 2))]
        further_groups = [request.seed for request in self.seen(codec, first_group=2)]
        assert first == again
        assert len({*first, *next_step, *further_groups}) == 12


class TestScripted:
    def test_the_policy_writes_what_the_script_says(self, codec: PlainCodec) -> None:
        texts = {0: "<answer>a</answer>", 1: "hm"}
        policy = ScriptedPolicy(codec, lambda request: texts[request.window[1]])
        metas = [MetaEpisode(PARIS, Plan(episodes=1, searches=0), codec, PROMPTS, member=n) for n in range(2)]
        SimpleDriver(policy, PassageBook({})).play(metas)
        assert [meta.trajectory().episodes[0].turns[0].text for meta in metas] == ["<answer>a</answer>", "hm"]

    def test_a_replay_gives_the_recorded_turns_and_passages(self, codec: PlainCodec) -> None:
        meta = MetaEpisode(PARIS, PLAN, codec, PROMPTS)
        replay(meta, codec, [("<search>tower</search>", [TOWER]), ("<answer>Paris</answer>", None)])
        (episode,) = meta.trajectory().episodes
        assert episode.turns[0].passages == (TOWER,)
        assert episode.answer == "Paris"

    def test_a_replay_that_is_too_short_leaves_the_machine_waiting(self, codec: PlainCodec) -> None:
        meta = MetaEpisode(PARIS, PLAN, codec, PROMPTS)
        replay(meta, codec, [("<search>tower</search>", None)])
        assert isinstance(meta.need, Generate)

    def test_a_replay_ends_where_the_machine_does(self, codec: PlainCodec) -> None:
        meta = MetaEpisode(PARIS, PLAN, codec, PROMPTS)
        replay(meta, codec, [("<answer>Paris</answer>", None), ("<answer>Rome</answer>", None)])
        assert [episode.answer for episode in meta.trajectory().episodes] == ["Paris"]


class Picky:
    """A retriever that cannot take certain queries, and a whole call with one of them in it."""

    def __init__(self, refused: set[str]) -> None:
        self.refused = refused
        self.calls: list[int] = []

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append(len(requests))
        if any(request.query in self.refused for request in requests):
            raise RetrieverError("refused")
        return [[TOWER] for _ in requests]


class Counting:
    def __init__(self, inner: Retriever, **counters: int) -> None:
        self.inner = inner
        self.counters = Counter(counters)

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.counters["retries"] += len(requests)
        return self.inner.search(requests)


def test_a_rollout_tells_what_its_retriever_counted_meanwhile(codec: PlainCodec) -> None:
    retriever = Counting(Counting(PassageBook({"tower": [TOWER]}), requests=7), outages=3)
    metas = [MetaEpisode(PARIS, PLAN, codec, PROMPTS, group=n) for n in range(2)]
    _, stats = play(codec, metas, retriever)
    assert stats.counters == {"retrieval_retries": 2 + 2}


class TestFind:
    def test_a_search_that_fails_costs_only_itself(self) -> None:
        retriever = Picky({"b"})
        assert find(retriever, [Search(query, 1) for query in "abc"]) == [[TOWER], None, [TOWER]]
        assert retriever.calls == [3, 1, 1, 1]

    def test_searches_that_fail_in_a_row_leave_the_next_one_its_try(self) -> None:
        retriever = Picky(set("abcdef"))
        assert find(retriever, [Search(query, 1) for query in "abcdefg"]) == [*[None] * 6, [TOWER]]

    def test_when_the_retriever_is_down_nothing_is_tried_again(self, caplog: pytest.LogCaptureFixture) -> None:
        calls: list[int] = []

        class Down:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                calls.append(len(requests))
                raise RetrieverDown("no answer from http://a")

        assert find(Down(), [Search(query, 1) for query in "abc"]) == [None] * 3
        assert calls == [3]
        assert [record.getMessage() for record in caplog.records] == [
            "3 searches had no answer, and the retriever is down: no answer from http://a"
        ]

    def test_when_it_goes_down_in_between_the_rest_is_not_tried(self) -> None:
        class GoesDown(Picky):
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                if len(self.calls) == 2:
                    self.calls.append(len(requests))
                    raise RetrieverDown("gone")
                return super().search(requests)

        retriever = GoesDown({"c"})
        assert find(retriever, [Search(query, 1) for query in "abc"]) == [[TOWER], None, None]
        assert retriever.calls == [3, 1, 1]

    def test_an_outage_that_ends_the_run_passes(self) -> None:
        class Stops:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                raise Outage("no answer")

        with pytest.raises(Outage):
            find(Stops(), [Search("a", 1), Search("b", 1)])

    def test_finding_nothing_is_no_failure(self) -> None:
        class Empty:
            def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
                if len(requests) > 1:
                    raise RetrieverError("one at a time")
                return [[]]

        assert find(Empty(), [Search("a", 1)] * 5) == [[]] * 5
