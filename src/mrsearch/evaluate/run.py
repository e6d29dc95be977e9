"""Run an agent over a question set: at once, or in chunks that are kept as they are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Sampling
from mrsearch.core.types import Question, Trajectory
from mrsearch.evaluate.journal import Chunk, Journal, Played, mean_logprobs
from mrsearch.evaluate.modes import Mode
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


def play_set(
    player: Player,
    questions: Sequence[Question],
    mode: Mode,
    *,
    seed: int,
    rows: int,
    journal: Journal,
    progress: Callable[[Sequence[Played]], None] = lambda done: None,
) -> list[Played]:
    """Play the questions that the journal lacks, about `rows` windows at a time, and give those of all, in order.

    What is drawn depends on the seed, the question's place in the set and the
    sample alone. A question one of whose searches had no answer is not kept:
    nobody's doing is no score, and it is played again when the evaluation goes on.
    """
    player = replace(player, prompts=mode.prompts)
    done = journal.done
    missing = [index for index in range(len(questions)) if index not in done]
    step = max(1, rows // mode.samples)
    progress(journal.played)
    for first in range(0, len(missing), step):
        indices = missing[first : first + step]
        started = time.perf_counter()
        trajectories, stats = player.play(
            [questions[index] for index in indices],
            mode.plan,
            group_size=mode.samples,
            sampling=mode.sampling,
            seed=(seed, 0),
            groups=indices,
        )
        played = []
        for place, index in enumerate(indices):
            samples = trajectories[place * mode.samples : (place + 1) * mode.samples]
            if all(sample.finish_reason != "retrieval_failed" for sample in samples):
                played.append(Played(index, samples, [mean_logprobs(sample) for sample in samples]))
        counters = {name: count for name, count in stats.counters.items() if name in _KEPT}
        journal.add(Chunk(played, time.perf_counter() - started, counters))
        progress(journal.played)
    return journal.played


_KEPT = ("near_ties", "retrieval_condense_tokens", "retokenized_prompts")
"""Counters of an engine that belong to a result; others tell of the way there (retries, cache hits)."""
