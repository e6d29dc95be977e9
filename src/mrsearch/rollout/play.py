"""From questions to finished meta-episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Codec, Sampling
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Question, Trajectory
from mrsearch.rollout.driver import Driver, PlayStats


@dataclass(frozen=True)
class Player:
    """Plays groups of meta-episodes: the driver, and what every machine it drives shares."""

    driver: Driver
    codec: Codec
    prompts: Prompts

    def play(
        self,
        questions: Sequence[Question],
        plan: Plan,
        *,
        group_size: int,
        sampling: Sampling,
        seed: Sequence[int],
        first_group: int = 0,
        groups: Sequence[int] | None = None,
    ) -> tuple[list[Trajectory], PlayStats]:
        """`group_size` meta-episodes of each question, in order.

        Groups are numbered from `first_group`, or as `groups` says, one number a question.
        """
        numbers = range(first_group, first_group + len(questions)) if groups is None else groups
        metas = [
            MetaEpisode(
                question, plan, self.codec, self.prompts, group=group, member=member, sampling=sampling, seed=seed
            )
            for group, question in zip(numbers, questions, strict=True)
            for member in range(group_size)
        ]
        stats = self.driver.play(metas)
        return [meta.trajectory() for meta in metas], stats
