"""Rejection sampling: of what an agent played, the meta-episodes that are worth imitating, as demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any, Literal

from mrsearch.core.rewards import Reward
from mrsearch.core.types import Trajectory

Dropped = Literal["cut", "invalid", "wrong", "repeated", "beyond"]

DROPPED: dict[Dropped, str] = {
    "cut": "not played to the end (a full window, a search without an answer), or with passages looked up beforehand",
    "invalid": "with a turn that is not one thought and one action",
    "wrong": "with a last answer that scores too low",
    "repeated": "that say word for word what a kept one on the question says",
    "beyond": "beyond as many of a question as are kept",
}
"""Why a meta-episode is not kept."""


def keep_right(
    played: Iterable[Trajectory], reward: Reward, *, at_least: float = 1.0, each: int = 1, seed: int = 0
) -> tuple[list[Trajectory], Counter[Dropped]]:
    """Those whose last answer scores `at_least` so much, and how many others there were, by reason.

    Of each question at most `each` are kept, drawn without regard to their length,
    since the shortest would teach to search less. The questions come in the order in
    which they were first seen.
    """
    dropped: Counter[Dropped] = Counter()
    by_question: dict[tuple[str, str], dict[tuple[str, ...], Trajectory]] = {}
    for one in played:
        question = one.question
        right = by_question.setdefault((question.id, question.question), {})
        said = tuple(turn.text for episode in one.episodes for turn in episode.turns)
        reason = _reason(one, reward, at_least) or ("repeated" if said in right else None)
        if reason is None:
            right[said] = one
        else:
            dropped[reason] += 1
    kept: list[Trajectory] = []
    for number, right in enumerate(by_question.values()):
        chosen = list(right.values())
        if len(chosen) > each:
            dropped["beyond"] += len(chosen) - each
            chosen = Random(f"{seed} {number}").sample(chosen, each)
        kept += chosen
    return kept, dropped


def as_demonstration(one: Trajectory) -> dict[str, Any]:
    """A meta-episode as a line of demonstrations: question, texts and passages, without tokens and scores."""
    record = one.to_record()
    episodes = [
        {"turns": [{"text": turn["text"], "passages": turn["passages"]} for turn in episode["turns"]]}
        for episode in record["episodes"]
    ]
    return {"question": record["question"], "episodes": episodes}


def _reason(one: Trajectory, reward: Reward, at_least: float) -> Dropped | None:
    if one.finish_reason not in ("complete", "stopped") or one.lookup is not None:
        return "cut"
    if reward(one.episodes[-1].answer, one.question.golden_answers) < at_least:
        return "wrong"
    return None if one.counters["valid_turns"] == one.counters["turns"] else "invalid"
