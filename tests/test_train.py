"""The loop on its ports: a learner that keeps a number, a policy that writes as that number and the group tell it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from mrsearch.config import Config, CreditConfig, from_dict
from mrsearch.core.credit import RULES, mr_search
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Batch, Completion, Generate, StepMetrics
from mrsearch.core.protocol import Prompts
from mrsearch.core.rewards import REWARDS
from mrsearch.core.types import Episode, Question, Trajectory
from mrsearch.data.sample import sample_questions
from mrsearch.errors import DataError, Interrupted, Outage
from mrsearch.evaluate.run import evaluate
from mrsearch.rollout.driver import PlayStats, SimpleDriver
from mrsearch.rollout.play import Player
from mrsearch.runs import RunFolder
from mrsearch.train import (
    REFILL_ROUNDS,
    Hooks,
    ReinforcementStage,
    Rollout,
    Stage,
    StepOutcome,
    SupervisedStage,
    assign_credit,
    assign_rewards,
    train,
)
from plain_codec import CompletionPolicy, PassageBook, PlainCodec, write

PROMPTS = Prompts(question="{question}\n", reflection="Again.\n", last_call="")
CODEC = PlainCodec(PROMPTS)
QUESTIONS = [Question(f"q{number}", f"Which {number}?", ("yes",)) for number in range(7)]
YES, NO = "<answer>yes</answer>", "<answer>no</answer>"


class NumberLearner:
    """Its weight is a number that every batch, to its last id and advantage, changes in its own way."""

    def __init__(self) -> None:
        self.weight = 1
        self.batches: dict[int, list[Trajectory]] = {}

    def step(self, batch: Batch) -> StepMetrics:
        self.batches[batch.step] = list(batch.trajectories)
        content = [
            self.weight,
            *((t.question.id, t.member, t.advantages, [w.ids for w in t.windows]) for t in batch.trajectories),
        ]
        self.weight = int.from_bytes(hashlib.blake2b(repr(content).encode(), digest_size=4).digest(), "little")
        return StepMetrics({"weight": float(self.weight)})

    def save(self, folder: Path) -> None:
        (folder / "weight.json").write_text(json.dumps(self.weight))

    def load(self, folder: Path) -> None:
        self.weight = json.loads((folder / "weight.json").read_text())


Script = Callable[[Generate, str, int], str]
"""What the policy writes, given the request, the context as text and the learner's weight."""


def by_chance(request: Generate, text: str, weight: int) -> str:
    """Right or wrong by the request's seed and the weight, so that a run that is out of step soon shows it."""
    return YES if (request.seed ^ weight) & 1 else NO


def by_member(*answers: str) -> Script:
    """Each member of a group writes its own text."""
    return lambda request, text, weight: answers[request.window[1]]


@dataclass
class Lab:
    """A run folder, and what trains in it."""

    run: RunFolder
    config: Config
    script: Script = by_chance
    broken: Sequence[str] = ()
    learner: NumberLearner = field(default_factory=NumberLearner)
    kind: type[NumberLearner] = NumberLearner

    def player(self) -> Player:
        def write_turn(request: Generate) -> Completion:
            return write(CODEC, self.script(request, CODEC.decode(request.ids), self.learner.weight))

        return Player(SimpleDriver(CompletionPolicy(write_turn), PassageBook({}, broken=self.broken)), CODEC, PROMPTS)

    def stage(self) -> ReinforcementStage:
        return ReinforcementStage(self.config, QUESTIONS, self.player(), self.learner)

    def train(self, hooks: Hooks | None = None) -> NumberLearner:
        """As a new process does: nothing but the run folder is left of what was before."""
        self.learner = self.kind()
        train(self.run, self.config, self.stage(), self.learner, hooks)
        return self.learner


def settings(changes: Mapping[str, Mapping[str, Any]], seed: int = 0) -> Config:
    """Two questions a step in groups of two, one episode without searches, where the test says nothing else."""
    tree: dict[str, dict[str, Any]] = {
        "plan": {"episodes": 1, "searches": 0},
        "train": {"steps": 6, "questions": 2, "group_size": 2, "updates": 1},
        "checkpoint": {"every": 2},
        "eval": {"every": 2},
    }
    plain = {name: value for name, value in changes.items() if not isinstance(value, Mapping)}
    changes = {name: value for name, value in changes.items() if name not in plain}
    merged = {name: {**tree.get(name, {}), **changes.get(name, {})} for name in {**tree, **changes}}
    merged |= plain
    return from_dict({"seed": seed, **merged})


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Lab]:
    made: list[Lab] = []

    def make_lab(
        script: Script = by_chance, broken: Sequence[str] = (), seed: int = 0, **changes: Mapping[str, Any]
    ) -> Lab:
        config = settings(changes, seed)
        made.append(Lab(RunFolder.create(tmp_path / f"run{len(made)}", config.as_dict()), config, script, broken))
        return made[-1]

    return make_lab


Make = Callable[..., Lab]


def steps(lab: Lab) -> list[float]:
    return [row["step"] for row in lab.run.metrics()]


def without_times(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Metrics without the clock's, which no two runs share."""
    return [{name: row[name] for name in row if not name.startswith(("time/", "rate/"))} for row in rows]


def members(batch: Sequence[Trajectory]) -> list[tuple[int, int]]:
    return [(trajectory.group, trajectory.member) for trajectory in batch]


class Crash(Exception):
    """The process dies."""


def crash_at(step: int) -> Hooks:
    def on_step(done: int, values: Mapping[str, float]) -> None:
        if done == step:
            raise Crash

    return Hooks(on_step=on_step)


class TestStep:
    def test_advantages_come_from_the_group_by_the_papers_rule(self, make: Make) -> None:
        lab = make(by_member(YES, NO, NO), train={"group_size": 3, "steps": 1})
        batch = lab.train().batches[1]
        # 1 less the mean of 0 and 0; 0 less the mean of 1 and 0
        assert [trajectory.rewards for trajectory in batch] == [[1.0], [0.0], [0.0]] * 2
        assert [trajectory.advantages for trajectory in batch] == [[1.0], [-0.5], [-0.5]] * 2
        assert members(batch) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]

    def test_every_episodes_own_answer_earns_its_reward(self, make: Make) -> None:
        def script(request: Generate, text: str, weight: int) -> str:
            return YES if ("Again." in text) == (request.window[1] == 0) else NO

        lab = make(script, plan={"episodes": 2}, train={"steps": 1})
        first, second, *_ = lab.train().batches[1]
        assert (first.rewards, second.rewards) == ([0.0, 1.0], [1.0, 0.0])
        # Against the peer: first episodes -1 and 1, second 1 and -1; later credit flows back: -1 + 1 and 1 - 1.
        assert (first.advantages, second.advantages) == ([0.0, 1.0], [0.0, -1.0])

    def test_rewards_of_turns_are_added_by_the_rule_for_them(self, make: Make) -> None:
        def script(request: Generate, text: str, weight: int) -> str:
            return "<search>q</search>" if "</information>" not in text else YES

        def scorer(trajectories: Sequence[Trajectory]) -> list[list[list[float | None]]]:
            return [[[0.5 * (1 - one.member), None]] for one in trajectories]

        settings = {"plan": {"episodes": 1, "searches": 1}, "train": {"steps": 1}}
        by_turn = {"credit": {"rule": "step_process"}, "process": {"kind": "rule", "weight": 2.0}}
        lab = make(script, **settings, **by_turn)
        stage = ReinforcementStage(lab.config, QUESTIONS, lab.player(), lab.learner, scorer)
        first, second, *_ = stage.step(1).trajectories
        assert stage.step(2).values["count/unscored_turns"] == 0
        # Scores .5 and 0 beside the outcome 1: turns 2 (.5 + 1 - 1) and 2 (0 + 1 - 1), then the answers' 1.
        assert (first.turn_advantages, second.turn_advantages) == ([[1.0, 0.0]], [[-1.0, -1.0]])
        assert (first.advantages, second.advantages) == ([1.0], [-1.0])
        assert Trajectory.from_record(first.to_record()) == first

    def test_a_turn_without_a_score_is_counted_and_gets_nothing(self, make: Make) -> None:
        def script(request: Generate, text: str, weight: int) -> str:
            return "<search>q</search>" if "</information>" not in text else YES

        lab = make(
            script,
            plan={"episodes": 1, "searches": 1},
            train={"steps": 1},
            credit={"rule": "step_process"},
            process={"kind": "rule"},
        )
        stage = ReinforcementStage(
            lab.config, QUESTIONS, lab.player(), lab.learner, lambda of: [[[None, None]]] * len(of)
        )
        outcome = stage.step(1)
        assert outcome.values["count/unscored_turns"] == 4  # two questions, two members
        assert all(one.turn_advantages == [[0.0, 0.0]] for one in outcome.trajectories)

    def test_a_signal_may_lie_in_a_later_turn_alone(self, make: Make) -> None:
        lab = make(train={"steps": 1})
        one, other = (
            replace(trajectory, advantages=[0.0], turn_advantages=[[0.0, value]])
            for trajectory, value in zip(make(by_member(YES, NO)).train().batches[1][:2], (0.5, 0.0), strict=True)
        )
        assert Rollout().take_in([one, other], PlayStats(), lab.config) == 0

    def test_a_reward_of_ones_own(self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my_reward.py").write_text(
            "def length(answer, golds):\n    return len(answer or '') / 100\n\n"
            "def words(answer, golds):\n    return 'good'\n\n"
            "def fails(answer, golds):\n    return 1 / 0\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        lab = make(by_member(YES, NO), reward="my_reward:length", train={"steps": 1})
        first, second, *_ = lab.train().batches[1]
        assert (first.rewards, second.rewards) == ([0.03], [0.02])
        for name, message in (
            ("words", "returned 'good' for the answer"),
            ("fails", "failed on the answer .*division"),
        ):
            with pytest.raises(DataError, match=message):
                make(by_member(YES, NO), reward=f"my_reward:{name}", train={"steps": 1}).train()

    @pytest.mark.parametrize("rule", [*RULES, "ppo", "lamer"])
    @pytest.mark.parametrize("script", [by_member(YES, YES), by_member(NO, NO), by_member(YES, NO)])
    def test_every_rule_goes_through_a_step_of_any_group(self, make: Make, rule: str, script: Script) -> None:
        lab = make(script, credit={"rule": rule}, train={"steps": 1})
        for one in lab.train().batches[1]:
            assert len(one.advantages) == len(one.episodes) == 1
            assert all(math.isfinite(value) for value in one.advantages)

    def test_rewards_and_credit_leave_the_trajectories_as_they_were(self, make: Make) -> None:
        lab = make(by_member(YES, NO))
        played, _ = lab.player().play(
            QUESTIONS[:1], lab.config.plan, group_size=2, sampling=lab.config.sampling, seed=(0, 1)
        )
        rewarded = assign_rewards(played, REWARDS["em"])
        credited = assign_credit(rewarded, lab.config.credit, lab.config.plan)
        assert [trajectory.rewards for trajectory in played] == [[], []]
        assert [trajectory.advantages for trajectory in rewarded] == [[], []]
        assert [trajectory.advantages for trajectory in credited] == mr_search([[1.0], [0.0]]).tolist()

    def test_a_full_context_counts_as_reward_0_in_the_baseline_of_the_others(self, make: Make) -> None:
        # Seven tokens of the question, 88 of a long answer and six of the next prompt fill the window.
        script = by_member("so " * 40 + YES, YES, YES)
        lab = make(
            script,
            plan={"episodes": 2, "turn_tokens": 90, "observation_tokens": 10, "window_tokens": 101},
            train={"steps": 1, "group_size": 3},
        )
        first, second, third = lab.train().batches[1][:3]
        assert [t.finish_reason for t in (first, second, third)] == ["context_full", "complete", "complete"]
        assert (first.rewards, second.rewards) == ([1.0], [1.0, 1.0])
        # Second episodes 0, 1, 1: the first has 0 - 1 and passes it back, the others have 1 - (0 + 1) / 2.
        assert (first.advantages, second.advantages, third.advantages) == ([-1.0], [0.5, 0.5], [0.5, 0.5])

    def test_metrics_say_what_was_played(self, make: Make) -> None:
        lab = make(by_member(YES, NO), train={"steps": 1})
        lab.train()
        (row,) = lab.run.metrics()
        assert (row["em/1"], row["reward/1"], row["groups"], row["no_signal_share"]) == (0.5, 0.5, 2.0, 0.0)
        assert row["weight"] == lab.learner.weight  # the learner's own stand beside them
        assert row["time/step_s"] >= row["time/training_s"] >= 0.0

    def test_the_credited_meta_episodes_are_recorded(self, make: Make) -> None:
        lab = make(train={"steps": 2})
        learner = lab.train()
        assert lab.run.trajectory_steps() == [1, 2]
        assert list(lab.run.trajectories(2)) == learner.batches[2]

    def test_recording_them_can_be_left_out(self, make: Make) -> None:
        lab = make(train={"steps": 1}, checkpoint={"trajectories": False})
        lab.train()
        assert lab.run.trajectory_steps() == []

    def test_no_two_turns_of_a_run_share_a_seed_and_other_runs_have_others(self, make: Make) -> None:
        seeds: list[int] = []

        def script(request: Generate, text: str, weight: int) -> str:
            seeds.append(request.seed)
            return NO

        for run_seed in (0, 1):
            make(script, plan={"episodes": 2}, seed=run_seed).train()
        # two runs of six steps of two questions, two members and two turns
        assert len(set(seeds)) == len(seeds) == 2 * 6 * 2 * 2 * 2

    def test_an_epoch_asks_every_question_once(self, make: Make) -> None:
        lab = make(train={"steps": 7})  # 14 questions of 7
        batches = lab.train().batches
        asked = [batches[step][row].question.id for step in range(1, 8) for row in (0, 2)]
        assert sorted(asked[:7]) == sorted(asked[7:]) == [question.id for question in QUESTIONS]


class TestGroupsWithoutSignal:
    """The two members of a group agree where the question's number is even."""

    @staticmethod
    def agreeing(request: Generate, text: str, weight: int) -> str:
        number = int(text.split("Which ")[1].split("?")[0])
        return YES if number % 2 == 0 or request.window[1] == 0 else NO

    def test_are_kept_with_advantage_0(self, make: Make) -> None:
        lab = make(self.agreeing, train={"questions": 7, "steps": 1}, credit={"no_signal": "keep"})
        batch = lab.train().batches[1]
        assert len(batch) == 14
        for trajectory in batch:
            even = int(trajectory.question.id[1:]) % 2 == 0
            assert trajectory.advantages == ([0.0] if even else [1.0 if trajectory.member == 0 else -1.0])
        assert lab.run.metrics()[0]["no_signal_share"] == pytest.approx(4 / 7)  # 0, 2, 4, 6

    def test_are_dropped(self, make: Make) -> None:
        lab = make(self.agreeing, train={"questions": 7, "steps": 1}, credit={"no_signal": "drop"})
        batch = lab.train().batches[1]
        assert sorted(trajectory.question.id for trajectory in batch) == ["q1", "q1", "q3", "q3", "q5", "q5"]
        assert len(list(lab.run.trajectories(1))) == 14  # recorded all the same
        assert lab.run.metrics()[0]["groups"] == 7.0

    def test_are_replaced_by_as_many_further_questions(self, make: Make) -> None:
        def script(request: Generate, text: str, weight: int) -> str:
            return YES if request.window[0] == 0 or request.window[1] == 0 else NO  # the members of group 0 agree

        lab = make(script, train={"steps": 3}, credit={"no_signal": "refill"})
        learner = lab.train()
        asked = []
        for step in (1, 2, 3):
            assert members(learner.batches[step]) == [(1, 0), (1, 1), (2, 0), (2, 1)]
            played = list(lab.run.trajectories(step))
            assert members(played) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
            asked += [trajectory.question.id for trajectory in played[::2]]
            assert lab.run.metrics()[step - 1]["no_signal_share"] == pytest.approx(1 / 3)
        assert sorted(asked[:7]) == [
            question.id for question in QUESTIONS
        ]  # nine of seven: refills move on in the data

    def test_are_replaced_so_many_times_and_no_more(self, make: Make) -> None:
        lab = make(by_member(YES, YES), train={"questions": 2, "steps": 1}, credit={"no_signal": "refill"})
        assert lab.train().batches[1] == []
        row = lab.run.metrics()[0]
        assert (row["groups"], row["no_signal_share"]) == (2.0 * REFILL_ROUNDS, 1.0)

    def test_an_equal_reward_that_is_no_whole_number_is_no_signal(self, make: Make) -> None:
        # F1 of five words against one of them: 2 * 1 / (5 + 1).
        lab = make(lambda *_: "<answer>yes sir no maybe so</answer>", train={"steps": 1, "group_size": 4})
        lab.config = replace(lab.config, reward="f1", credit=replace(lab.config.credit, no_signal="drop"))
        assert lab.train().batches[1] == []
        assert lab.run.metrics()[0]["reward/1"] == pytest.approx(1 / 3)


class TestOutage:
    @staticmethod
    def searching(*members: int) -> Script:
        return lambda request, text, weight: (
            "<search>broken</search>" if request.window[1] in members else (YES if request.window[1] == 0 else NO)
        )

    def test_rows_leave_the_batch_and_the_baseline(self, make: Make) -> None:
        lab = make(
            self.searching(2), ["broken"], plan={"searches": 1}, train={"group_size": 3, "questions": 1, "steps": 1}
        )
        batch = lab.train().batches[1]
        assert members(batch) == [(0, 0), (0, 1)]
        assert [trajectory.advantages for trajectory in batch] == [[1.0], [-1.0]]  # each against the other alone
        row = lab.run.metrics()[0]
        assert (row["count/retrieval_failed"], row["count/lone_groups"]) == (1.0, 0.0)
        assert len(list(lab.run.trajectories(1))) == 3

    def test_one_that_is_left_alone_has_advantage_0_and_is_counted(self, make: Make) -> None:
        lab = make(
            self.searching(1, 2), ["broken"], plan={"searches": 1}, train={"group_size": 3, "questions": 1, "steps": 1}
        )
        (alone,) = lab.train().batches[1]
        assert (alone.rewards, alone.advantages) == ([1.0], [0.0])
        assert lab.run.metrics()[0]["count/lone_groups"] == 1.0

    def test_of_all_leaves_a_step_without_anything_to_train_on(self, make: Make) -> None:
        lab = make(self.searching(0, 1), ["broken"], plan={"searches": 1}, train={"steps": 1})
        assert lab.train().batches[1] == []
        row = lab.run.metrics()[0]
        assert (row["count/retrieval_failed"], row["count/lone_groups"], row["no_signal_share"]) == (4.0, 0.0, 1.0)


class TestResume:
    @pytest.mark.parametrize("crash", [1, 2, 3, 4, 5, 6])
    @pytest.mark.parametrize("no_signal", ["keep", "refill"])
    def test_after_a_crash_repeats_what_the_uninterrupted_run_did(self, make: Make, crash: int, no_signal: str) -> None:
        whole, broken = (make(credit={"no_signal": no_signal}) for _ in range(2))
        expected = whole.train()
        with pytest.raises(Crash):
            broken.train(crash_at(crash))
        resumed = broken.train()
        # A crash comes before the checkpoint of its step; they stand after steps 2, 4 and 6.
        again = range(crash - 1 - (crash - 1) % 2 + 1, 7)
        assert sorted(resumed.batches) == list(again)
        for step in again:
            assert resumed.batches[step] == expected.batches[step]
        assert resumed.weight == expected.weight
        assert steps(broken) == [1, 2, 3, 4, 5, 6]
        assert without_times(broken.run.metrics()) == without_times(whole.run.metrics())
        for step in range(1, 7):
            assert list(broken.run.trajectories(step)) == list(whole.run.trajectories(step))

    def test_of_a_finished_run_does_nothing(self, make: Make) -> None:
        lab = make()
        lab.train()
        before = (lab.run.path / "metrics.jsonl").read_bytes()
        learner = lab.train()
        assert learner.batches == {}
        assert (lab.run.path / "metrics.jsonl").read_bytes() == before

    def test_after_a_line_that_the_crash_cut_writes_it_once(self, make: Make) -> None:
        lab = make()
        with pytest.raises(Crash):
            lab.train(crash_at(3))
        with (lab.run.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "em/1"')
        lab.train()
        assert steps(lab) == [1, 2, 3, 4, 5, 6]

    def test_more_steps_go_on_from_the_last_checkpoint(self, make: Make) -> None:
        short, long = make(train={"steps": 3}), make(train={"steps": 6})
        short.train()
        short.config = long.config
        assert short.train().weight == long.train().weight
        assert steps(short) == [1, 2, 3, 4, 5, 6]

    def test_crash_upon_crash_comes_to_the_same_end(self, make: Make) -> None:
        whole, broken = make(), make()
        for step in (1, 3, 3, 5, 6):
            with pytest.raises(Crash):
                broken.train(crash_at(step))
        assert broken.train().weight == whole.train().weight
        assert without_times(broken.run.metrics()) == without_times(whole.run.metrics())


class TestInterrupt:
    def test_saves_the_step_and_says_how_to_go_on(self, make: Make) -> None:
        lab, whole = make(), make()
        done: list[int] = []
        hooks = Hooks(on_step=lambda step, values: done.append(step), should_stop=lambda: len(done) == 3)
        with pytest.raises(
            Interrupted, match=r"stopped after step 3, which is saved; go on with: mrsearch train --resume"
        ) as caught:
            lab.train(hooks)
        assert str(lab.run.path) in str(caught.value)
        resumed = lab.train()
        assert sorted(resumed.batches) == [4, 5, 6]
        assert resumed.weight == whole.train().weight

    def test_at_the_last_step_the_run_is_simply_done(self, make: Make) -> None:
        lab = make(train={"steps": 1})
        lab.train(Hooks(should_stop=lambda: True))
        assert steps(lab) == [1]


class OutageAt:
    """A stage that finds no retriever at one step, after it has taken its questions."""

    def __init__(self, stage: ReinforcementStage, step: int) -> None:
        self._stage, self._at = stage, step
        self.state, self.restore = stage.state, stage.restore

    def step(self, step: int) -> StepOutcome:
        if step == self._at:
            self.restore({"position": self.state()["position"] + 1})
            raise Outage("no retriever answers")
        return self._stage.step(step)


class TestRunStoppedByAnOutage:
    @pytest.mark.parametrize("step", [1, 2, 3, 4, 6])
    def test_keeps_every_step_before_it_and_goes_on_as_if_there_had_been_none(self, make: Make, step: int) -> None:
        lab, whole = make(checkpoint={"every": 6}), make()
        with pytest.raises(Outage):
            train(lab.run, lab.config, OutageAt(lab.stage(), step), lab.learner)
        assert steps(lab) == list(range(1, step))
        resumed = lab.train()
        assert sorted(resumed.batches) == list(range(step, 7))
        assert resumed.weight == whole.train().weight
        assert without_times(lab.run.metrics()) == without_times(whole.run.metrics())

    @pytest.mark.parametrize("outages", [1, 2])
    def test_in_a_validation_validates_that_step_when_it_goes_on(self, make: Make, outages: int) -> None:
        lab, whole = make(checkpoint={"every": 6}), make()

        def unreachable() -> dict[str, float]:
            raise Outage("no retriever answers")

        for _ in range(outages):
            with pytest.raises(Outage):
                lab.train(Hooks(evaluate=unreachable))
            assert steps(lab) == [1]
        validations = [{"em/1": 0.25}, {"em/1": 0.75}, {"em/1": 0.5}]
        resumed = lab.train(Hooks(evaluate=iter(validations).__next__))
        assert sorted(resumed.batches) == [3, 4, 5, 6]
        assert resumed.weight == whole.train(Hooks(evaluate=iter(validations).__next__)).weight
        assert without_times(lab.run.metrics()) == without_times(whole.run.metrics())
        assert list(lab.run.trajectories(2)) == list(whole.run.trajectories(2))
        best = lab.run.best_checkpoint()
        assert best is not None
        assert best.state["best"] == {"step": 4, "score": 0.75}


class TestCheckpoints:
    def kept(self, lab: Lab) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in (lab.run.path / "checkpoints").iterdir())

    def validating(self, *scores: float) -> Hooks:
        waiting = list(scores)
        return Hooks(evaluate=lambda: {"em/1": waiting.pop(0)})

    def test_stand_after_every_so_many_steps_and_after_the_last(self, make: Make) -> None:
        lab = make(train={"steps": 5}, checkpoint={"every": 2, "keep": 9})
        lab.train()
        assert self.kept(lab) == [2, 4, 5]

    def test_the_best_by_validation_is_kept_and_found(self, make: Make) -> None:
        lab = make(checkpoint={"every": 1, "keep": 1})
        lab.train(self.validating(0.5, 0.75, 0.25))
        assert self.kept(lab) == [4, 6]
        best = lab.run.best_checkpoint()
        assert best is not None
        assert (best.step, best.state["best"]) == (4, {"step": 4, "score": 0.75})

    def test_of_equal_scores_the_later_is_the_best(self, make: Make) -> None:
        lab = make(checkpoint={"every": 1, "keep": 1})
        lab.train(self.validating(0.5, 0.5, 0.5))
        assert self.kept(lab) == [6]

    def test_a_best_step_between_two_checkpoints_has_one_of_its_own(self, make: Make) -> None:
        lab = make(eval={"every": 3}, checkpoint={"every": 6, "keep": 1})
        lab.train(self.validating(0.5, 0.25))
        assert self.kept(lab) == [3, 6]

    def test_the_best_of_before_a_crash_still_counts_after_it(self, make: Make) -> None:
        lab = make(checkpoint={"every": 1, "keep": 1})
        hooks = self.validating(0.75, 0.25)
        hooks.on_step = crash_at(4).on_step
        with pytest.raises(Crash):
            lab.train(hooks)
        lab.train(self.validating(0.5, 0.5))
        best = lab.run.best_checkpoint()
        assert best is not None
        assert best.step == 2

    def test_validation_stands_in_the_metrics_of_its_step_alone(self, make: Make) -> None:
        lab = make()
        lab.train(self.validating(0.5, 0.75, 0.25))
        assert [row.get("validation/em/1") for row in lab.run.metrics()] == [None, 0.5, None, 0.75, None, 0.25]

    def test_it_is_the_last_episode_of_the_validation_that_chooses(self, make: Make) -> None:
        lab = make(plan={"episodes": 2}, eval={"episodes": 3, "every": 3}, checkpoint={"every": 1, "keep": 1})
        scores = [{"em/1": 0.9, "em/2": 0.9, "em/3": 0.1}, {"em/1": 0.0, "em/2": 0.0, "em/3": 0.2}]
        lab.train(Hooks(evaluate=lambda: scores.pop(0)))
        best = lab.run.best_checkpoint()
        assert best is not None
        assert best.step == 6

    def test_without_evaluations_none_is_asked_for(self, make: Make) -> None:
        lab = make(eval={"every": 0}, checkpoint={"every": 1, "keep": 2})
        lab.train(self.validating())
        assert self.kept(lab) == [5, 6]


class TestSupervised:
    def demonstrations(self, lab: Lab) -> list[Trajectory]:
        played, _ = lab.player().play(
            QUESTIONS, lab.config.plan, group_size=1, sampling=lab.config.sampling, seed=(0, 1)
        )
        return played

    def stage(self, lab: Lab, learner: NumberLearner) -> Stage:
        return SupervisedStage(lab.config, self.demonstrations(lab), learner)

    def test_imitates_every_demonstration_once_an_epoch(self, make: Make) -> None:
        lab = make(train={"kind": "supervised", "questions": 1, "steps": 7})
        learner = NumberLearner()
        train(lab.run, lab.config, self.stage(lab, learner), learner)
        shown = [trajectory.question.id for step in range(1, 8) for trajectory in learner.batches[step]]
        assert sorted(shown) == [question.id for question in QUESTIONS]
        assert lab.run.trajectory_steps() == []  # nothing was played

    def test_resumes_where_it_stood(self, make: Make) -> None:
        whole, broken = (make(train={"kind": "supervised", "questions": 3}) for _ in range(2))
        expected, first, resumed = NumberLearner(), NumberLearner(), NumberLearner()
        train(whole.run, whole.config, self.stage(whole, expected), expected)
        with pytest.raises(Crash):
            train(broken.run, broken.config, self.stage(broken, first), first, crash_at(4))
        train(broken.run, broken.config, self.stage(broken, resumed), resumed)
        assert sorted(resumed.batches) == [3, 4, 5, 6]
        assert resumed.weight == expected.weight


class TestEvaluation:
    def test_plays_each_question_once_and_greedily(self, make: Make) -> None:
        requests: list[Generate] = []

        def script(request: Generate, text: str, weight: int) -> str:
            requests.append(request)
            return YES if "Which 0" in text or "Again." in text else NO

        lab = make(script, plan={"episodes": 2})
        found = evaluate(lab.player(), QUESTIONS, lab.config.plan)
        assert len(found.trajectories) == 7
        assert {request.sampling.temperature for request in requests} == {0.0}
        assert found.curve("em") == [pytest.approx(1 / 7), 1.0]
        assert found.values["wrong_to_right/2"] == 1.0
        assert found.values["count/near_ties"] == 0

    def test_a_sample_is_seeded_and_keeps_the_sets_order(self) -> None:
        sample = sample_questions(QUESTIONS, 3, seed=1)
        assert len(sample) == 3
        assert sample == sorted(sample, key=QUESTIONS.index) == sample_questions(QUESTIONS, 3, seed=1)
        assert len({tuple(q.id for q in sample_questions(QUESTIONS, 3, seed=seed)) for seed in range(9)}) > 1

    @pytest.mark.parametrize("limit", [0, 7, 8])
    def test_without_a_limit_or_with_one_too_large_all_are_asked(self, limit: int) -> None:
        assert sample_questions(QUESTIONS, limit, seed=1) == QUESTIONS


def with_rewards(*rows: Sequence[float]) -> list[Trajectory]:
    """A group of finished meta-episodes with these rewards."""
    return [
        Trajectory(
            Question("1", "Who?", ("x",)),
            group=0,
            member=member,
            episodes=[Episode(n + 1, finish_reason="answer") for n in range(len(row))],
            windows=[],
            finish_reason="complete" if len(row) == 3 else "context_full",
            rewards=list(row),
        )
        for member, row in enumerate(rows)
    ]


GROUP = ((0.0, 1.0, 1.0), (0.0, 0.0, 1.0), (1.0, 1.0, 0.0))


class TestAssignCredit:
    """What the settings say of credit reaches the rule; the values are those of the rule's own tests."""

    @pytest.mark.parametrize(
        ("gamma", "first"), [(1.0, [0.5, 1.0, 0.5]), (0.5, [-0.125, 0.75, 0.5]), (0.0, [-0.5, 0.5, 0.5])]
    )
    def test_the_discount(self, gamma: float, first: list[float]) -> None:
        credited = assign_credit(with_rewards(*GROUP), CreditConfig(gamma=gamma), Plan(episodes=3))
        assert credited[0].advantages == pytest.approx(first)

    def test_the_mask_of_exploration(self) -> None:
        credited = assign_credit(with_rewards(*GROUP), CreditConfig(), Plan(episodes=3, explore=1))
        assert credited[0].advantages == pytest.approx([1.0, 1.0, 0.5])

    @pytest.mark.parametrize(("ragged", "second"), [("zero", [-2.0, -1.5]), ("present", [-1.5, -1.0])])
    def test_what_becomes_of_missing_episodes(self, ragged: Literal["zero", "present"], second: list[float]) -> None:
        rows = with_rewards((0.0, 1.0, 1.0), (0.0, 0.0), (1.0, 1.0, 0.0))
        credited = assign_credit(rows, CreditConfig(ragged=ragged), Plan(episodes=3))
        assert credited[1].advantages == pytest.approx(second)

    def test_the_cost_of_further_episodes(self) -> None:
        rows = with_rewards((1.0, 1.0, 1.0), (1.0, 1.0))
        rows[1].finish_reason = "stopped"
        credited = assign_credit(rows, CreditConfig(cost=0.1, gamma=0.0), Plan(episodes=3))
        # both were right; the one that stopped was spared the cost of the third episode
        assert credited[0].advantages == pytest.approx([0.0, 0.0, -0.1])


class CountingLearner(NumberLearner):
    """Its weight counts the steps that it took, from 1."""

    def step(self, batch: Batch) -> StepMetrics:
        self.batches[batch.step] = list(batch.trajectories)
        self.weight += 1
        return StepMetrics({"weight": float(self.weight)})


class TestWatch:
    """A policy that from its weight 5 on sends one query again and again; validation likes it best at 3."""

    @staticmethod
    def script(request: Generate, text: str, weight: int) -> str:
        searched = text.count("</information>")
        if searched == 4:
            return YES if request.window[1] == 0 else NO
        return f"<search>{'q' if weight > 4 else searched}</search>"

    @pytest.fixture
    def lab(self, make: Make) -> Callable[..., Lab]:
        def make_lab(action: str, **more: Any) -> Lab:
            made = make(
                self.script,
                plan={"episodes": 1, "searches": 4},
                train={"steps": 9},
                eval={"every": 1},
                checkpoint={"every": 1, "keep": 2},
                watch={"action": action, "memory": 2, **more},
            )
            made.kind = CountingLearner
            return made

        return make_lab

    def hooks(self, lab: Lab, **more: Any) -> Hooks:
        return Hooks(evaluate=lambda: {"em/1": 0.9 if lab.learner.weight == 3 else 0.5}, **more)

    @staticmethod
    def column(lab: Lab, name: str) -> list[float]:
        return [row[name] for row in lab.run.metrics()]

    def test_a_warning_is_counted_and_stops_nothing(
        self, lab: Callable[..., Lab], caplog: pytest.LogCaptureFixture
    ) -> None:
        warned = lab("warn")
        warned.train(self.hooks(warned))
        assert self.column(warned, "repeated_queries") == [0.0] * 4 + [0.75] * 5
        assert self.column(warned, "alarms") == [0.0] * 5 + [1.0] * 4
        assert "step 6: repeated_queries is 0.75, above 0.7: the same is searched for again and again" in caplog.text

    def test_off_looks_at_nothing(self, lab: Callable[..., Lab]) -> None:
        off = lab("off")
        off.train(self.hooks(off))
        assert self.column(off, "alarms") == [0.0] * 9

    def test_a_pause_saves_says_why_and_goes_on_when_resumed(self, lab: Callable[..., Lab]) -> None:
        paused = lab("pause")
        with pytest.raises(Interrupted, match=r"paused after step 6, which is saved: repeated_queries is .*--resume"):
            paused.train(self.hooks(paused))
        assert paused.run.checkpoint_steps()[-1] == len(paused.run.metrics()) == 6
        # Whoever goes on has as many steps again before the next.
        with pytest.raises(Interrupted, match="paused after step 8"):
            paused.train(self.hooks(paused))

    def test_it_goes_back_to_the_best_model_so_often_and_then_pauses(self, lab: Callable[..., Lab]) -> None:
        back = lab("roll_back", roll_backs=1)
        back.train(self.hooks(back))
        # After step 6 the weight is that of step 2 again; step 9 is the first bad one of the new way.
        assert self.column(back, "weight") == [2, 3, 4, 5, 6, 7, 4, 5, 6]
        assert self.column(back, "alarms") == [0, 0, 0, 0, 0, 1, 0, 0, 0]
        never = lab("roll_back", roll_backs=0)
        with pytest.raises(Interrupted, match="paused after step 6"):
            never.train(self.hooks(never))

    def test_at_a_step_that_is_the_best_itself_it_pauses_and_keeps_it(self, lab: Callable[..., Lab]) -> None:
        best = lab("roll_back")
        with pytest.raises(Interrupted, match="paused after step 6"):
            best.train(Hooks(evaluate=lambda: {"em/1": 0.1 * best.learner.weight}))
        kept = best.run.best_checkpoint()
        assert kept is not None
        assert kept.step == 6
        assert json.loads((kept.folder / "weight.json").read_text()) == 7

    @pytest.mark.parametrize("step", range(1, 10))
    def test_a_run_that_is_killed_goes_back_as_one_that_was_not(self, lab: Callable[..., Lab], step: int) -> None:
        whole = lab("roll_back")
        whole.train(self.hooks(whole))
        killed = lab("roll_back")
        with pytest.raises(Crash):
            killed.train(self.hooks(killed, on_step=crash_at(step).on_step))
        killed.train(self.hooks(killed))
        for name in ("weight", "alarms", "repeated_queries"):
            assert self.column(killed, name) == self.column(whole, name)
