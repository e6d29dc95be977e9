"""Whole runs through bad days: what comes of them is what an undisturbed run gives, and no outage is ever scored 0."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import faulty_server as faulty
from faulty_server import Fault, FaultyServer, serving
from mrsearch.config import Config, from_dict
from mrsearch.core.ports import Batch, Completion, Generate, Retriever, Search, StepMetrics
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Passage, Question, Trajectory
from mrsearch.errors import Outage
from mrsearch.evaluate.run import evaluate
from mrsearch.retrieval.client import RemoteRetriever
from mrsearch.retrieval.kept import KeptRetriever
from mrsearch.retrieval.patience import OutagePolicy, PatientRetriever
from mrsearch.rollout.driver import SimpleDriver
from mrsearch.rollout.play import Player
from mrsearch.runs import RunFolder
from mrsearch.train import ReinforcementStage, train
from plain_codec import CompletionPolicy, PlainCodec, write

PROMPTS = Prompts(question="{question}\n", reflection="Again.\n", last_call="")
CODEC = PlainCodec(PROMPTS)
QUESTIONS = [Question(f"q{number}", f"Which {number}?", ("yes",)) for number in range(8)]
DEADLINE = 0.5
"""Seconds, in place of 30; an answer that is late by twice as much stands for one that is late by 60."""


class Library:
    """Passages with the query, a number that depends on it, and scores with all their digits."""

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        return [[self._passage(request.query, rank) for rank in range(request.top_k)] for request in requests]

    def _passage(self, query: str, rank: int) -> Passage:
        number = int.from_bytes(hashlib.blake2b(f"{query} {rank}".encode(), digest_size=4).digest(), "little")
        return Passage(f"{number}", f"On {query}", f"It is {'yes' if number % 3 == 0 else 'no'} {number}.", number / 7)


def searching_by_what_was_found(request: Generate) -> Completion:
    """Search for, and answer, what the question and the last passage say: every passage counts for what follows."""
    text = CODEC.decode(request.ids)
    number = text.split("Which ")[1].split("?")[0]
    last = text.rsplit("It is ", 1)[1].split(".")[0] if "It is " in text else "no 0"
    if (request.seed + text.count("<information>")) % 3:
        return write(CODEC, f"<search>{number} {last} {request.seed % 5}</search>")
    return write(CODEC, f"<answer>{last.split()[0]}</answer>")


class NumberLearner:
    """Its weight is a number that every batch, to its last id and advantage, changes in its own way."""

    def __init__(self) -> None:
        self.weight = 1
        self.batches: dict[int, list[Trajectory]] = {}

    def step(self, batch: Batch) -> StepMetrics:
        self.batches[batch.step] = list(batch.trajectories)
        content = [self.weight, *((t.advantages, [w.ids for w in t.windows]) for t in batch.trajectories)]
        self.weight = int.from_bytes(hashlib.blake2b(repr(content).encode(), digest_size=4).digest(), "little")
        return StepMetrics({"weight": float(self.weight)})

    def save(self, folder: Path) -> None:
        (folder / "weight.json").write_text(json.dumps(self.weight))

    def load(self, folder: Path) -> None:
        self.weight = json.loads((folder / "weight.json").read_text())


SETTINGS = {
    "plan": {"episodes": 2, "searches": 3, "window_tokens": 4000},
    "train": {"steps": 4, "questions": 3, "group_size": 3, "updates": 1},
    "checkpoint": {"every": 2},
    "eval": {"every": 0},
}


@dataclass
class Outcome:
    """What is left of a run: what was played, metrics without those of clock and client, the learner's weight."""

    played: list[list[Trajectory]]
    metrics: list[dict[str, float]]
    learner: NumberLearner = field(repr=False)


DISTURBED = ("time/", "rate/", "count/retrieval_")
"""What the clock and the client count, which faults may change; of the latter not the searches that failed."""


def player(retriever: Retriever) -> Player:
    return Player(SimpleDriver(CompletionPolicy(searching_by_what_was_found), retriever), CODEC, PROMPTS)


def run(folder: Path, retriever: Retriever, learner: NumberLearner | None = None) -> Outcome:
    """Train, or go on with what is in the folder."""
    learner = learner or NumberLearner()
    config: Config = from_dict(SETTINGS)
    kept = RunFolder.open(folder) if folder.exists() else RunFolder.create(folder, config.as_dict())
    train(kept, config, ReinforcementStage(config, QUESTIONS, player(retriever), learner), learner)
    metrics = [
        {name: row[name] for name in row if name == "count/retrieval_failed" or not name.startswith(DISTURBED)}
        for row in map(dict, kept.metrics())
    ]
    return Outcome([list(kept.trajectories(step)) for step in range(1, 5)], metrics, learner)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run(tmp_path_factory.mktemp("undisturbed") / "run", Library())


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    for played, as_expected in zip(outcome.played, expected.played, strict=True):
        assert played == as_expected  # every query, passage, score and id
    assert outcome.metrics == expected.metrics
    assert outcome.learner.weight == expected.learner.weight


Connect = Callable[..., PatientRetriever]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A patient client with short pauses, closed at the end."""
    opened: list[RemoteRetriever] = []

    def make(*servers: FaultyServer, policy: OutagePolicy = "wait", said: list[str] | None = None) -> PatientRetriever:
        remote = RemoteRetriever(
            [server.url for server in servers],
            deadline=DEADLINE,
            batch=4,
            pause=0.005,
            longest_pause=0.05,
            rest=0.05,
            random=random.Random(0),
        )
        opened.append(remote)
        report = (said if said is not None else []).append
        return PatientRetriever(remote, policy, report=report, pause=0.02, longest_pause=0.05)

    yield make
    for remote in opened:
        remote.close()


def now_and_then(seed: int, share: float, *faults: Fault) -> Callable[[int], Fault | None]:
    """One of the faults, drawn, for this share of the requests."""
    chance = random.Random(seed)
    return lambda number: chance.choice(faults) if chance.random() < share else None


def test_the_run_is_one_in_which_passages_matter(undisturbed: Outcome) -> None:
    trajectories = [trajectory for played in undisturbed.played for trajectory in played]
    turns = [turn for t in trajectories for episode in t.episodes for turn in episode.turns]
    assert sum(turn.passages is not None for turn in turns) >= 100
    assert {reward for trajectory in trajectories for reward in trajectory.rewards} == {0.0, 1.0}
    assert {trajectory.finish_reason for trajectory in trajectories} == {"complete"}


@pytest.mark.parametrize(
    ("share", "faults"),
    [
        (0.1, [faulty.reset]),
        (0.3, [faulty.html]),
        (0.3, [faulty.half_json, faulty.truncated]),
        (0.3, [faulty.empty]),
        (0.05, [faulty.delay(2 * DEADLINE)]),
        (0.3, [faulty.status(503, Retry_After="0"), faulty.status(500), faulty.status(429)]),
        (0.2, [faulty.reset, faulty.html, faulty.half_json, faulty.empty, faulty.status(502), faulty.truncated]),
    ],
    ids=["resets", "html", "half answers", "empty bodies", "delays", "busy and broken", "everything"],
)
def test_a_run_with_faults_equals_one_without(
    share: float, faults: Sequence[Fault], undisturbed: Outcome, tmp_path: Path, connect: Connect
) -> None:
    with serving(Library(), now_and_then(3, share, *faults)) as server:
        outcome = run(tmp_path / "run", connect(server))
    assert len(server.bodies) > len(set(map(str, server.bodies)))  # something was sent again
    assert_same(outcome, undisturbed)


@pytest.mark.parametrize("policy", ["wait", "fail", "stop"])
def test_with_a_replica_no_policy_is_needed_when_one_dies(
    policy: OutagePolicy, undisturbed: Outcome, tmp_path: Path, connect: Connect
) -> None:
    with serving(Library()) as one, serving(Library()) as two:
        two.faults = lambda number: one.stop() if number == 10 else None
        outcome = run(tmp_path / "run", connect(one, two, policy=policy))
    assert one.bodies
    assert_same(outcome, undisturbed)


def test_a_server_that_is_killed_and_started_again_costs_time_alone(
    undisturbed: Outcome, tmp_path: Path, connect: Connect
) -> None:
    said: list[str] = []
    with serving(Library(), faulty.at({12: faulty.die})) as server:

        def start_when_missed(line: str) -> None:
            said.append(line)
            if line.startswith("waiting"):
                server.start()

        patient = PatientRetriever(connect(server).inner, "wait", report=start_when_missed, pause=0.02)
        outcome = run(tmp_path / "run", patient)
    assert said[0].startswith(f"waiting for the retriever: no answer from {server.url}")
    assert said[1].startswith("the retriever answers again after")
    assert patient.outages == 1
    assert_same(outcome, undisturbed)


def test_a_run_that_stops_for_an_outage_goes_on_to_the_same_end(
    undisturbed: Outcome, tmp_path: Path, connect: Connect
) -> None:
    learner = NumberLearner()
    with serving(Library(), lambda number: faulty.die if len(learner.batches) == 3 else None) as server:
        with pytest.raises(Outage, match=f"no answer from {server.url}.*start one with: mrsearch serve INDEX"):
            run(tmp_path / "run", connect(server, policy="stop"), learner)
        learner = NumberLearner()
        server.start()
        outcome = run(tmp_path / "run", connect(server, policy="stop"), learner)
    assert sorted(learner.batches) == [4]  # the third step was saved, though no checkpoint was due
    assert_same(outcome, undisturbed)


def test_under_fail_an_outage_is_counted_and_neither_scored_nor_trained_on(
    undisturbed: Outcome, tmp_path: Path, connect: Connect
) -> None:
    learner = NumberLearner()
    with serving(Library(), lambda number: faulty.die if len(learner.batches) == 2 else None) as server:
        outcome = run(tmp_path / "run", connect(server, policy="fail"), learner)
    failed = [[t.finish_reason == "retrieval_failed" for t in played] for played in outcome.played]
    assert failed[:2] == [[False] * 9] * 2
    assert outcome.metrics[:2] == undisturbed.metrics[:2]
    assert sum(failed[2]) > 3
    assert sum(failed[3]) > 3
    for step, (row, of_step) in enumerate(zip(outcome.metrics, failed, strict=True), start=1):
        assert row["count/retrieval_failed"] == sum(of_step)
        trained = outcome.learner.batches[step]
        assert [t.finish_reason for t in trained].count("retrieval_failed") == 0
        assert len(trained) == len(of_step) - sum(of_step)
        for group in range(3):  # the baseline is that of those that are left
            left = [t for t in trained if t.group == group]
            if len(left) == 1:
                assert left[0].advantages == [0.0] * len(left[0].advantages)
            else:
                assert sum(t.advantages[-1] for t in left) == pytest.approx(0)


class TestReplay:
    def evaluation(self, retriever: Retriever) -> tuple[Sequence[Trajectory], Mapping[str, float]]:
        plan = from_dict(SETTINGS).plan
        found = evaluate(player(retriever), QUESTIONS, plan)
        return found.trajectories, found.values

    def test_of_an_evaluation_needs_no_server_and_gives_the_same(self, tmp_path: Path, connect: Connect) -> None:
        path = tmp_path / "kept.sqlite"
        with serving(Library(), now_and_then(5, 0.2, faulty.reset, faulty.html)) as server:
            remote = connect(server).inner
            with KeptRetriever(remote, path, source=server.url) as kept:
                recorded = self.evaluation(PatientRetriever(kept, "wait", report=print))
        # The server is gone from here on.
        assert recorded == self.evaluation(Library())
        with KeptRetriever(None, path, source=server.url, mode="replay") as replayed:
            assert self.evaluation(replayed) == recorded
            assert replayed.misses == 0
        with KeptRetriever(connect(server).inner, path, source=server.url) as kept:
            assert self.evaluation(kept) == recorded

    def test_a_server_that_comes_back_with_another_index_is_noticed(self, tmp_path: Path, connect: Connect) -> None:
        class NewLibrary(Library):
            def _passage(self, query: str, rank: int) -> Passage:
                return Passage("new", f"New on {query}", "It is new.", 1.0)

        searches = [Search("a", 2), Search("b", 2)]
        with (
            serving(Library(), identity="a1") as server,
            KeptRetriever(connect(server).inner, tmp_path / "kept", source=server.url) as kept,
        ):
            old = kept.search(searches)
            server.stop()
            server.retriever, server.identity = NewLibrary(), "b2"
            server.start()
            assert kept.search([*searches, Search("c", 2)]) == NewLibrary().search([*searches, Search("c", 2)])
            server.stop()
            server.retriever, server.identity = Library(), "a1"
            server.start()
            kept.search([Search("d", 2)])  # it is the first that has to ask the server
            assert kept.search(searches) == old

    def test_what_was_not_recorded_fails_and_is_never_made_up(self, tmp_path: Path, connect: Connect) -> None:
        path = tmp_path / "kept.sqlite"
        with serving(Library()) as server, KeptRetriever(connect(server).inner, path, source=server.url) as kept:
            evaluate(player(kept), QUESTIONS[:4], from_dict(SETTINGS).plan)
        with KeptRetriever(None, path, source=server.url, mode="replay") as replayed:
            trajectories, values = self.evaluation(replayed)
        ends = [trajectory.finish_reason for trajectory in trajectories]
        assert ends[:4] == ["complete"] * 4
        assert values["count/retrieval_failed"] == ends.count("retrieval_failed") > 0
