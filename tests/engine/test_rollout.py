"""The fast driver: the same trajectories as the simple one, and log-probabilities that training finds again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Sampling, Search
from mrsearch.core.types import Passage, Question, Trajectory
from mrsearch.engine.loss import logprobs_in_chunks, states_at
from mrsearch.engine.model import LanguageModel
from mrsearch.engine.pack import pad_rows, rows_of
from mrsearch.engine.rollout import EmbeddedDriver, EmbeddedPolicy
from mrsearch.errors import RetrieverError
from mrsearch.rollout.driver import Driver, PlayStats, SimpleDriver
from mrsearch.rollout.play import Player
from tiny_models import ARCHITECTURES, PROMPTS, PlaceRetriever, questions, tiny_codec, tiny_model

PLAN = Plan(episodes=3, searches=2, top_k=2, turn_tokens=12, observation_tokens=7, window_tokens=160)
LAST = replace(PLAN, context="last")
CODEC = tiny_codec()


def play(
    driver: Driver,
    plan: Plan = PLAN,
    *,
    temperature: float = 1.0,
    count: int = 6,
    group_size: int = 2,
    order: Sequence[int] | None = None,
) -> tuple[list[Trajectory], PlayStats]:
    asked = questions(count)
    return Player(driver, CODEC, PROMPTS).play(
        [asked[n] for n in order] if order else asked,
        plan,
        group_size=group_size,
        sampling=Sampling(temperature=temperature),
        seed=(5, 1),
    )


def fast(model: LanguageModel, **settings) -> EmbeddedDriver:
    return EmbeddedDriver(model, CODEC, PlaceRetriever(), **settings)


def simple(model: LanguageModel) -> SimpleDriver:
    return SimpleDriver(EmbeddedPolicy(model, CODEC), PlaceRetriever())


def assert_same(found: list[Trajectory], expected: list[Trajectory]) -> None:
    """Equal records; log-probabilities up to the rounding that another batch brings."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        here, there = one.to_record(), other.to_record()
        for window, reference in zip(here["windows"], there["windows"], strict=True):
            assert window.pop("logprobs") == pytest.approx(reference.pop("logprobs"), abs=1e-9)
        assert here == there


# -- the same trajectories --------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, LAST], ids=["full", "last"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_every_driver_gives_the_same_trajectories(name, plan):
    model = tiny_model(name, double=True)
    expected, _ = play(simple(model), plan, count=4)
    for driver in (fast(model), fast(model, overlap=True), fast(model, rows=3), fast(model, rows=3, overlap=True)):
        assert_same(play(driver, plan, count=4)[0], expected)


def test_the_trajectories_compared_search_answer_err_and_fill_their_context():
    """What the tests here are worth: a random model that does all that can happen."""
    trajectories, _ = play(fast(tiny_model(double=True)), replace(PLAN, window_tokens=80), count=16)
    turns = [turn for trajectory in trajectories for episode in trajectory.episodes for turn in episode.turns]
    assert {turn.finish_reason for turn in turns} >= {"search", "answer", "invalid", "length"}
    assert {trajectory.finish_reason for trajectory in trajectories} == {"complete", "context_full"}
    assert any(turn.passages == () for turn in turns)
    assert any(turn.passages for turn in turns)
    assert sum(trajectory.counters["cut_passages"] for trajectory in trajectories) > 0
    ends = [trajectory.windows[turn.window].ids[turn.end - 1] for trajectory in trajectories
            for episode in trajectory.episodes for turn in episode.turns]  # fmt: skip
    assert 3 in ends  # an end token that the policy wrote


def test_a_short_context_is_several_windows():
    trajectories, _ = play(fast(tiny_model(double=True)), LAST)
    assert {len(trajectory.windows) for trajectory in trajectories} == {3}


def test_greedy_trajectories_depend_on_no_order_and_no_batch_size():
    model = tiny_model("llama")
    reference, stats = play(fast(model), temperature=0.0, count=12, group_size=1)
    by_id = {trajectory.question.id: trajectory.windows[0].ids for trajectory in reference}
    for order, rows in (([*range(12)][::-1], 256), ([*range(12)], 1), ([7, 2, 9, 4, 11, 0, 5, 10, 3, 8, 1, 6], 5)):
        found, _ = play(fast(model, rows=rows), temperature=0.0, count=12, group_size=1, order=order)
        differing = [t for t in found if t.windows[0].ids != by_id[t.question.id]]
        assert len(differing) <= stats.counters["near_ties"] <= 2


def test_members_of_a_group_differ_and_a_second_rollout_does_not():
    model = tiny_model(double=True)
    first, _ = play(fast(model), count=4, group_size=4)
    again, _ = play(fast(model), count=4, group_size=4)
    assert_same(again, first)
    assert len({tuple(trajectory.windows[0].ids) for trajectory in first}) == len(first)


# -- what training finds again ----------------------------------------------------------------


@torch.no_grad()
def largest_mismatch(model: LanguageModel, trajectories: list[Trajectory], temperature: float) -> float:
    """Sampled log-probabilities against those that the learner computes, all windows in one padded batch."""
    batch = pad_rows(rows_of(trajectories), device=torch.device("cpu"))
    states = states_at(model, batch.ids, batch.rows, batch.positions)
    found = logprobs_in_chunks(model, states, batch.targets, temperature=temperature, chunk=50)
    return float((found - batch.logprobs).abs().max())


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_training_recomputes_the_log_probabilities_of_sampling(name, temperature):
    model = tiny_model(name)
    trajectories, _ = play(fast(model, overlap=True), temperature=temperature, count=4)
    assert sum(len(episode.turns) for trajectory in trajectories for episode in trajectory.episodes) > 24
    assert largest_mismatch(model, trajectories, temperature) < 1e-4


def test_training_recomputes_them_with_a_short_context_too():
    model = tiny_model("llama")
    trajectories, _ = play(fast(model), LAST, temperature=0.7)
    assert largest_mismatch(model, trajectories, 0.7) < 1e-4


def test_another_temperature_would_be_noticed():
    model = tiny_model("llama")
    trajectories, _ = play(fast(model), temperature=0.7)
    assert largest_mismatch(model, trajectories, 1.0) > 0.1


# -- exact tokens -----------------------------------------------------------------------------


def test_an_end_token_of_the_policy_is_trained_and_one_that_is_added_is_not():
    """Padding and end share an id here: masks say where a token came from, ids do not."""
    codec = tiny_codec(pad="<eos>")
    assert codec.pad_id == 3
    driver = EmbeddedDriver(tiny_model(double=True), codec, PlaceRetriever())
    trajectories, _ = Player(driver, codec, PROMPTS).play(
        questions(6), PLAN, group_size=2, sampling=Sampling(), seed=(5, 1)
    )
    sampled = [
        (window, turn.end - 1)
        for trajectory in trajectories
        for episode in trajectory.episodes
        for turn in episode.turns
        if (window := trajectory.windows[turn.window]).ids[turn.end - 1] == 3
    ]
    assert len(sampled) > 5
    for window, position in sampled:
        assert window.loss_mask[position] == 1
        assert window.logprobs[position] < 0
    trained = {(tuple(row.ids), int(p)) for row in rows_of(trajectories) for p in row.positions}
    assert {(tuple(window.ids), position) for window, position in sampled} <= trained


# -- the retriever ----------------------------------------------------------------------------


class SlowRetriever(PlaceRetriever):
    """Takes a while for every batch."""

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """As the other, later."""
        time.sleep(0.02)
        return super().search(requests)


class BrokenRetriever(PlaceRetriever):
    """Has no answer to any batch after the first."""

    calls = 0

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Passages once, then none."""
        self.calls += 1
        if self.calls > 1:
            raise RetrieverError("the server is gone")
        return super().search(requests)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_slow_retriever_changes_nothing_but_the_time(overlap):
    model = tiny_model(double=True)
    expected, _ = play(fast(model, overlap=overlap))
    found, stats = play(EmbeddedDriver(model, CODEC, SlowRetriever(), overlap=overlap))
    assert_same(found, expected)
    assert stats.retrieval_s > 0.02


@pytest.mark.parametrize("overlap", [False, True])
def test_a_search_without_answer_ends_its_meta_episode_and_no_other(overlap):
    model = tiny_model(double=True)
    expected, _ = play(fast(model))
    found, _ = play(EmbeddedDriver(model, CODEC, BrokenRetriever(), overlap=overlap))
    failed = [trajectory for trajectory in found if trajectory.finish_reason == "retrieval_failed"]
    assert 0 < len(failed) < len(found)
    others = [n for n, trajectory in enumerate(found) if trajectory.finish_reason != "retrieval_failed"]
    assert_same([found[n] for n in others], [expected[n] for n in others])


def test_a_rollout_of_nothing_is_nothing():
    assert fast(tiny_model()).play([]) == PlayStats()


def test_what_the_engine_did_is_counted():
    trajectories, stats = play(fast(tiny_model(double=True), overlap=True))
    turns = [turn for trajectory in trajectories for episode in trajectory.episodes for turn in episode.turns]
    assert stats.counters["generated_tokens"] == sum(turn.end - turn.start for turn in turns)
    assert stats.generation_s > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_no_token_of_a_window_is_read_twice(overlap):
    """Caches live from turn to turn and from episode to episode: only the first context of a window is read from 0."""
    trajectories, stats = play(fast(tiny_model(double=True), overlap=overlap))
    read = stats.counters["fed_tokens"]
    assert 0 < read <= sum(len(window) for trajectory in trajectories for window in trajectory.windows)


def test_one_machine_alone_can_be_played():
    meta = MetaEpisode(Question("1", "Rome", ("Oslo",)), PLAN, CODEC, PROMPTS, sampling=Sampling(), seed=(1, 1))
    fast(tiny_model(), overlap=True).play([meta])
    assert meta.need is None
    assert meta.trajectory().episodes
