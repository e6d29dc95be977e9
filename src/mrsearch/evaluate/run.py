"""Run an agent over a question set and sum up what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Sampling
from mrsearch.core.types import Question, Trajectory
from mrsearch.evaluate.scores import curve, summarize
from mrsearch.rollout.driver import PlayStats
from mrsearch.rollout.play import Player

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Evaluation:
    """One meta-episode for each question, and the metrics of them all."""

    trajectories: Sequence[Trajectory]
    values: dict[str, float]
    stats: PlayStats

    def curve(self, metric: str) -> list[float]:
        """A metric over the episode index, for example `em`."""
        return curve(self.values, metric)


def evaluate(
    player: Player, questions: Sequence[Question], plan: Plan, *, sampling: Sampling = GREEDY, seed: int = 0
) -> Evaluation:
    """Play each question once, greedily unless told otherwise."""
    trajectories, stats = player.play(questions, plan, group_size=1, sampling=sampling, seed=(seed, 0))
    values = summarize(trajectories, plan.episodes)
    values["count/near_ties"] = stats.counters["near_ties"]
    return Evaluation(trajectories, values, stats)
