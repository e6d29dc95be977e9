"""Rewards of episodes beyond the score of their answers: format, retrieval, repetition, improvement.

All off by default. Pure functions of what was played. The score of an answer alone is in `rewards`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mrsearch.core.rewards import Reward, normalize
from mrsearch.core.types import Episode, Trajectory
from mrsearch.errors import ConfigError

Rule = Literal["plain", "search_r1", "research"]


@dataclass(frozen=True)
class Shaping:
    """What an episode's reward is, beyond the score of its answer."""

    rule: Rule = "plain"
    """`plain`: the score. `search_r1` and `research`: with the format, as in the papers of those names."""
    format: float = 0.0
    """search_r1: taken from a right answer without the format, given to a wrong one with it. research: the latter."""
    retrieval: float = 0.0
    """search_r1: given to a wrong answer with the format where a passage held a golden answer."""
    floor: float = 0.0
    """search_r1: of a wrong answer without the format."""
    repetition: float = 0.0
    """Taken where an answer that scores 0 repeats one of an earlier episode."""
    improvement: float = 0.0
    """g of r[n] + g (r[n] - r[n-1]), from the second episode on (the published MR-Search code has it)."""

    def __post_init__(self) -> None:
        if self.rule == "plain" and (self.format or self.retrieval or self.floor):
            raise ConfigError("shaping.format, .retrieval and .floor need shaping.rule=search_r1 or research")
        if self.rule == "research" and (self.retrieval or self.floor):
            raise ConfigError("shaping.retrieval and .floor belong to shaping.rule=search_r1")


def shaped_rewards(trajectory: Trajectory, reward: Reward, shaping: Shaping) -> list[float]:
    """The reward of each episode of a meta-episode."""
    golds = trajectory.question.golden_answers
    scores = [reward(episode.answer, golds) for episode in trajectory.episodes]
    shaped = [
        _with_format(episode, score, golds, shaping) for episode, score in zip(trajectory.episodes, scores, strict=True)
    ]
    if shaping.repetition:
        shaped = [
            value - shaping.repetition * (score == 0 and repeats)
            for value, score, repeats in zip(shaped, scores, _repeated(trajectory.episodes), strict=True)
        ]
    if shaping.improvement:
        before = [shaped[0], *shaped[:-1]] if shaped else []
        shaped = [now + shaping.improvement * (now - then) for now, then in zip(shaped, before, strict=True)]
    return shaped


def has_format(episode: Episode) -> bool:
    """Whether the episode came to an answer and each of its turns is one thought and one action."""
    return episode.finish_reason == "answer" and all(turn.format_valid for turn in episode.turns)


def found_gold(episode: Episode, golds: Sequence[str]) -> bool:
    """Whether a golden answer, normalised, stands in a passage that the episode's searches brought.

    Read from the passages as they came, never from the window, where the policy's own text stands too.
    """
    texts = [normalize(f"{passage.title} {passage.text}") for turn in episode.turns for passage in turn.passages or ()]
    plain = [form for gold in golds if (form := normalize(gold))]
    return any(gold in text for gold in plain for text in texts)


def _with_format(episode: Episode, score: float, golds: Sequence[str], shaping: Shaping) -> float:
    if shaping.rule == "plain":
        return score
    formatted = has_format(episode)
    if shaping.rule == "research":  # arXiv 2503.19470
        return (score or shaping.format) if formatted else 0.0
    if score:  # arXiv 2505.15117
        return score if formatted else max(0.0, score - shaping.format)
    if formatted:
        return shaping.format + shaping.retrieval * found_gold(episode, golds)
    return shaping.floor if episode.answer is not None else 0.0


def _repeated(episodes: Sequence[Episode]) -> list[bool]:
    """For each episode whether an earlier one gave the same answer; blank ones repeat nothing."""
    seen: set[str] = set()
    found = []
    for episode in episodes:
        said = normalize(episode.answer or "")
        found.append(bool(said) and said in seen)
        seen.add(said)
    return found
