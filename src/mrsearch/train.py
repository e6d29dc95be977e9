"""The loop: questions -> groups of meta-episodes -> rewards -> credit -> batch -> step -> checkpoint.

It stands on the ports alone. A run is a sequence of steps, each of which is a
function of the settings, the step's number and the learner's state, so that a
resumed run repeats exactly what an uninterrupted one would have done.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from mrsearch.config import Config, CreditConfig
from mrsearch.core.credit import PPO, RULES, TURN_RULES, rewards_alone, signal
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Batch, Learner
from mrsearch.core.process import Process, Scorer, gain_rewards, renormalized
from mrsearch.core.rewards import REWARDS, Reward
from mrsearch.core.shaping import Shaping, shaped_rewards
from mrsearch.core.turn_credit import turn_credit
from mrsearch.core.types import Question, Trajectory
from mrsearch.data.order import DataOrder
from mrsearch.errors import DataError, Interrupted, Outage
from mrsearch.evaluate.scores import summarize
from mrsearch.evaluate.signs import signs
from mrsearch.evaluate.watch import Watch
from mrsearch.functions import load_function
from mrsearch.rollout.driver import PlayStats
from mrsearch.rollout.play import Player
from mrsearch.runs import Checkpoint, RunFolder

logger = logging.getLogger(__name__)

REFILL_ROUNDS = 4
"""With `credit.no_signal=refill` questions are played at most so many times over in a step."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step leaves behind: its metrics, and the meta-episodes to record."""

    values: dict[str, float]
    trajectories: Sequence[Trajectory] = ()


class Stage(Protocol):
    """What is done in a step, and where in its data it stands."""

    def step(self, step: int) -> StepOutcome:
        """Carry out one step, counted from 1."""
        ...

    def state(self) -> dict[str, Any]:
        """The position in the data, as JSON data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state` gave."""
        ...


@dataclass
class Rollout:
    """The meta-episodes of a step: all that were played, and those of them that are trained on."""

    played: list[Trajectory] = field(default_factory=list)
    batch: list[Trajectory] = field(default_factory=list)
    without_signal: int = 0
    unscored_turns: int = 0
    stats: PlayStats = field(default_factory=PlayStats)

    def take_in(self, credited: Sequence[Trajectory], stats: PlayStats, config: Config) -> int:
        """Add groups with their advantages; returns how many of them had no signal."""
        has_signal = signal(
            np.array([_row(_strength(trajectory), config.plan.episodes) for trajectory in credited]), _groups(credited)
        )
        missing = len({t.group for t, has in zip(credited, has_signal, strict=True) if not has})
        self.played += credited
        # A meta-episode whose search had no answer is nobody's doing: it is counted and not trained on.
        self.batch += [
            trajectory
            for trajectory, has in zip(credited, has_signal, strict=True)
            if trajectory.finish_reason != "retrieval_failed" and (has or config.credit.no_signal == "keep")
        ]
        self.without_signal += missing
        self.stats.add(stats)
        return missing


class ReinforcementStage:
    """Roll out groups, credit their episodes, train on them."""

    def __init__(
        self,
        config: Config,
        questions: Sequence[Question],
        player: Player,
        learner: Learner,
        scorer: Scorer | None = None,
    ) -> None:
        """`scorer` scores turns, where `process.kind` asks for scores."""
        self._config = config
        self._scorer = scorer
        self._order = DataOrder(questions, seed=config.seed)
        self._player = player
        self._learner = learner
        self._reward = reward_function(config.reward)

    def step(self, step: int) -> StepOutcome:
        """One step of MR-Search."""
        started = time.perf_counter()
        rollout = self._roll_out(step)
        rolled_out = time.perf_counter()
        metrics = self._learner.step(Batch(rollout.batch, step))
        finished = time.perf_counter()
        values = {
            **summarize(rollout.played, self._config.plan.episodes),
            **mean_rewards(rollout.played, self._config.plan.episodes),
            **signs(rollout.played, self._config.prompts),
            "groups": float(len(set(_groups(rollout.played)))),
            "no_signal_share": rollout.without_signal / len(set(_groups(rollout.played))),
            "count/unscored_turns": float(rollout.unscored_turns),
            "count/lone_groups": float(_lone_groups(rollout.played)),
            **metrics.values,
            **{f"count/{name}": float(count) for name, count in rollout.stats.counters.items()},
            "time/generation_s": rollout.stats.generation_s,
            "time/retrieval_s": rollout.stats.retrieval_s,
            "time/training_s": finished - rolled_out,
            "time/step_s": finished - started,
            "rate/tokens_per_s": rollout.stats.counters["generated_tokens"] / max(1e-9, rollout.stats.generation_s),
        }
        return StepOutcome(values, rollout.played)

    def _roll_out(self, step: int) -> Rollout:
        """Play the questions of a step and credit their episodes; with `refill`, until enough groups have signal."""
        config = self._config
        rollout = Rollout()
        missing = config.train.questions
        for _ in range(REFILL_ROUNDS if config.credit.no_signal == "refill" else 1):
            trajectories, stats = self._player.play(
                self._order.take(missing),
                config.plan,
                group_size=config.train.group_size,
                sampling=config.sampling,
                seed=(config.seed, step),
                first_group=len(set(_groups(rollout.played))),
            )
            rewarded = assign_rewards(trajectories, self._reward, config.shaping)
            turns, unscored = turn_rewards(rewarded, config.process, self._scorer)
            rollout.unscored_turns += unscored
            credited = assign_credit(rewarded, config.credit, config.plan, turns)
            missing = rollout.take_in(credited, stats, config)
            if not missing:
                break
        return rollout

    def state(self) -> dict[str, Any]:
        """The position in the questions."""
        return {"position": self._order.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position in the questions."""
        self._order.position = state["position"]


class SupervisedStage:
    """Imitate finished meta-episodes: the same mask, every sampled token weighted alike."""

    def __init__(self, config: Config, demonstrations: Sequence[Trajectory], learner: Learner) -> None:
        self._order = DataOrder(demonstrations, seed=config.seed)
        self._batch = config.train.questions
        self._learner = learner

    def step(self, step: int) -> StepOutcome:
        """One step on the next demonstrations."""
        started = time.perf_counter()
        metrics = self._learner.step(Batch(self._order.take(self._batch), step))
        return StepOutcome({**metrics.values, "time/step_s": time.perf_counter() - started})

    def state(self) -> dict[str, Any]:
        """The position in the demonstrations."""
        return {"position": self._order.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position in the demonstrations."""
        self._order.position = state["position"]


@dataclass
class Hooks:
    """What happens around the steps; all of it may be left out."""

    evaluate: Callable[[], dict[str, float]] | None = None
    """Scores on the validation set, the last `em/n` of which chooses the best checkpoint."""
    on_step: Callable[[int, Mapping[str, float]], None] = field(default=lambda step, values: None)
    """Told of each step, for progress."""
    should_stop: Callable[[], bool] = field(default=lambda: False)
    """Asked after each step; the run then saves and stops."""


def train(run: RunFolder, config: Config, stage: Stage, learner: Learner, hooks: Hooks | None = None) -> None:
    """Run the remaining steps, recording each; saves at checkpoints, at the best evaluation and at the end."""
    hooks = hooks or Hooks()
    watch = Watch(config.watch) if config.watch.action != "off" and config.train.kind == "rl" else None
    done, best, unvalidated = resume(run, stage, learner, watch)

    def save(step: int, position: dict[str, Any], unvalidated: Mapping[str, float] | None = None) -> None:
        state = {"stage": position, "best": best, "unvalidated": unvalidated}
        state["watch"] = watch.state() if watch else None
        kept_for_score = best["step"] if best else None
        run.save_checkpoint(step, state, learner.save, keep=config.checkpoint.keep, best=kept_for_score)

    for step in range(done + 1 if unvalidated is None else done, config.train.steps + 1):
        position = stage.state()
        if unvalidated is None:
            try:
                outcome = stage.step(step)
            except Outage:
                # Nothing of this step has happened to the model; what came before it is worth keeping.
                if step > done + 1:
                    save(step - 1, position)
                raise
            values = dict(outcome.values)
            if config.checkpoint.trajectories and outcome.trajectories:
                run.write_trajectories(step, outcome.trajectories)
        else:
            values, unvalidated = dict(unvalidated), None
        is_best = False
        last = step == config.train.steps
        if hooks.evaluate is not None and config.eval.every and (step % config.eval.every == 0 or last):
            try:
                validation = hooks.evaluate()
            except Outage:
                save(step, stage.state(), unvalidated=values)
                raise
            values |= {f"validation/{name}": value for name, value in validation.items()}
            score = validation[f"em/{config.eval.episodes or config.plan.episodes}"]
            is_best = best is None or score >= best["score"]
            if is_best:
                best = {"step": step, "score": score}
        alarms = watch.look(values) if watch else []
        values["alarms"] = float(len(alarms))
        run.record(step, values)
        hooks.on_step(step, values)
        stopping = hooks.should_stop() and not last
        older = None if is_best or best is None else run.checkpoint(best["step"])
        acted = watch is not None and alarms and _act(watch, alarms, step, older, learner)
        if stopping or acted or is_best or last or step % config.checkpoint.every == 0:
            save(step, stage.state())
        if acted == "pause" and not last:
            raise Interrupted(
                f"paused after step {step}, which is saved: {'; '.join(alarms)}. Look at its trajectories; "
                f"mrsearch train --resume {run.path} goes on; watch.action in its config.yaml says what an alarm does"
            )
        if stopping:
            raise Interrupted(
                f"stopped after step {step}, which is saved; go on with: mrsearch train --resume {run.path}"
            )


def _act(
    watch: Watch, alarms: Sequence[str], step: int, best: Checkpoint | None, learner: Learner
) -> Literal["", "pause", "roll_back"]:
    """Tell of alarms, and do what the settings say; what was done, which has to be saved.

    Without a better checkpoint to go back to (this step may be the best) it is a pause.
    """
    logger.warning("step %d: %s", step, "; ".join(alarms))
    action = watch.config.action
    if action not in ("pause", "roll_back"):
        return ""
    watch.forget()  # whoever goes on after a pause wants to
    if action == "pause" or best is None or watch.rolled_back >= watch.config.roll_backs:
        return "pause"
    learner.load(best.folder)
    watch.rolled_back += 1
    logger.warning("step %d: went back to the model of step %d, the best so far", step, best.step)
    return "roll_back"


def resume(
    run: RunFolder, stage: Stage, learner: Learner, watch: Watch | None = None
) -> tuple[int, dict[str, Any] | None, dict[str, float] | None]:
    """Put stage, learner and watch where the last checkpoint left them.

    Returns its step, the best so far, and the step's metrics where an outage
    came before its validation.
    """
    checkpoint: Checkpoint | None = run.last_checkpoint()
    run.rewind(checkpoint.step if checkpoint else 0)
    if checkpoint is None:
        return 0, None, None
    learner.load(checkpoint.folder)
    stage.restore(checkpoint.state["stage"])
    if watch is not None and checkpoint.state.get("watch"):
        watch.restore(checkpoint.state["watch"])
    return checkpoint.step, checkpoint.state["best"], checkpoint.state.get("unvalidated")


def reward_function(name: str) -> Reward:
    """The reward that a setting names: one of ours, or `module:function` of the user's own.

    That gets the answer (None where none was given) and the list of golden answers, and
    returns a number.
    """
    if name in REWARDS:
        return REWARDS[name]
    own = load_function(name, "reward")

    def reward(answer: str | None, golds: Sequence[str]) -> float:
        try:
            value = own(answer, list(golds))
        except Exception as error:
            raise DataError(
                f"reward={name} failed on the answer {answer!r} ({type(error).__name__}: {error})"
            ) from error
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found):
            raise DataError(f"reward={name} returned {value!r} for the answer {answer!r}; it must be a finite number")
        return found

    return reward


def assign_rewards(
    trajectories: Sequence[Trajectory],
    reward: Reward,
    shaping: Shaping = Shaping(),  # noqa: B008
) -> list[Trajectory]:
    """Score every episode's answer, as it was parsed when it was given."""
    return [replace(trajectory, rewards=shaped_rewards(trajectory, reward, shaping)) for trajectory in trajectories]


def turn_rewards(
    trajectories: Sequence[Trajectory], process: Process, scorer: Scorer | None
) -> tuple[list[list[list[float]]], int]:
    """The reward of each turn beyond that of its episode's answer, 0 where there is none; how many had no score."""
    if process.kind == "none":
        return [[[0.0] * len(episode.turns) for episode in one.episodes] for one in trajectories], 0
    unscored = 0
    if process.kind == "gain":
        found = [gain_rewards(one) for one in trajectories]
    else:
        assert scorer is not None, "scores need something that gives them"
        scores = scorer(trajectories)
        unscored = sum(score is None for of in scores for turns in of for score in turns[:-1])
        found = [renormalized(of, one.rewards, process.mu) for of, one in zip(scores, trajectories, strict=True)]
    return [[[process.weight * value for value in turns] for turns in episodes] for episodes in found], unscored


def assign_credit(
    trajectories: Sequence[Trajectory],
    config: CreditConfig,
    plan: Plan,
    turns: Sequence[Sequence[Sequence[float]]] = (),
) -> list[Trajectory]:
    """Turn the rewards of all groups into advantages, by the configured rule.

    For PPO these are the rewards themselves, after cost and mask: the learner's critic makes advantages of them.
    """
    rewards = np.array([_row(trajectory.rewards, plan.episodes) for trajectory in trajectories])
    settings: dict[str, Any] = {
        "groups": _groups(trajectories),
        "lengths": np.array([len(trajectory.episodes) for trajectory in trajectories]),
        "ended": [trajectory.finish_reason for trajectory in trajectories],
        "gamma": config.gamma,
        "mask": np.array(plan.credit_mask),
        "cost": config.cost,
    }
    if config.rule in TURN_RULES:
        by_turn = turn_credit(rewards, turns, step_gamma=config.step_gamma, **settings)
        return [
            replace(one, advantages=[(values or [0.0])[0] for values in found], turn_advantages=found)
            for one, found in zip(trajectories, by_turn, strict=True)
        ]
    rule = rewards_alone if config.rule == PPO else RULES[config.rule]
    advantages = rule(
        rewards,
        ragged=config.ragged,
        outcome=config.outcome,
        tokens=np.array([_row(_tokens(trajectory), plan.episodes) for trajectory in trajectories]),
        **settings,
    )
    return [
        replace(trajectory, advantages=row[: len(trajectory.episodes)].tolist())
        for trajectory, row in zip(trajectories, advantages, strict=True)
    ]


def mean_rewards(trajectories: Sequence[Trajectory], episodes: int) -> dict[str, float]:
    """Mean reward of each episode index; a missing episode counts as 0."""
    rewards = np.array([_row(trajectory.rewards, episodes) for trajectory in trajectories])
    return {f"reward/{n + 1}": float(rewards[:, n].mean()) for n in range(episodes)}


def _strength(trajectory: Trajectory) -> list[float]:
    """The advantage of each episode, or the largest of its turns, so that none but all of 0 looks like 0."""
    if not trajectory.turn_advantages:
        return trajectory.advantages
    return [max(map(abs, values), default=0.0) for values in trajectory.turn_advantages]


def _tokens(trajectory: Trajectory) -> list[float]:
    """Trained tokens of each episode."""
    return [float(sum(turn.end - turn.start for turn in episode.turns)) for episode in trajectory.episodes]


def _row(values: Sequence[float], episodes: int) -> list[float]:
    return [*values, *[0.0] * (episodes - len(values))]


def _groups(trajectories: Sequence[Trajectory]) -> list[int]:
    return [trajectory.group for trajectory in trajectories]


def _lone_groups(trajectories: Sequence[Trajectory]) -> int:
    """Groups of which an outage left one member, which then has no baseline."""
    members: dict[int, int] = {}
    for trajectory in trajectories:
        members[trajectory.group] = members.get(trajectory.group, 0) + (trajectory.finish_reason != "retrieval_failed")
    return sum(count == 1 for count in members.values())
