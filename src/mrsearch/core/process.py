"""Rewards of single turns: what a search brought that was not known before, or what a judge thinks of a turn.

Pure functions of what was played. They are added to credit by turn, and never
replace the reward of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mrsearch.core.rewards import normalize
from mrsearch.core.types import Passage, Question, Trajectory, Turn
from mrsearch.errors import ConfigError

Kind = Literal["none", "gain", "rule", "judge"]

TurnScores = list[list[float | None]]
"""For each episode a score between 0 and 1 of each of its turns; None where there is none."""

Scorer = Callable[[Sequence[Trajectory]], list[TurnScores]]
"""What scores the turns of meta-episodes."""


@dataclass(frozen=True)
class Process:
    """Rewards of turns, for `credit.rule=step_process`."""

    kind: Kind = "none"
    """`gain`: of searches, as StepSearch has it. `judge`: a model's scores (PPRM); `rule`: scores without a model."""
    weight: float = 1.0
    """What a turn's reward is multiplied by."""
    mu: float = 1.0
    """judge and rule: a turn before the last gets score + the episode's reward - mu (ReNorm)."""
    url: str = ""
    """judge: the chat endpoint."""
    model: str = ""
    """judge: the model's name there; empty takes the only one."""
    token_env: str = "MRSEARCH_JUDGE_TOKEN"
    """judge: environment variable that holds a bearer token, where one is asked for."""

    def __post_init__(self) -> None:
        if self.kind == "judge" and not self.url:
            raise ConfigError("process.kind is judge and process.url is empty; name the endpoint of the judge")


def information_gain(coverage: Sequence[Sequence[float]], passages: Sequence[Sequence[str]]) -> list[float]:
    """Gain less redundancy of each of S searches in order (StepSearch, arXiv 2505.15107).

    `coverage` [S, M] says how well a search's passages cover each of M references. Gain is
    the mean over references of what exceeds the best before; redundancy the share of
    its passages (by id) that an earlier search had brought.

    >>> [round(x, 4) for x in information_gain([[0.8, 0.1], [0.6, 0.7], [0.8, 0.7]], ["abc", "ade", "abd"])]
    [0.45, -0.0333, -1.0]
    """
    best = [0.0] * (len(coverage[0]) if coverage else 0)
    seen: set[str] = set()
    found = []
    for covered, ids in zip(coverage, passages, strict=True):
        gain = sum(max(now - before, 0.0) for now, before in zip(covered, best, strict=True)) / max(1, len(best))
        redundancy = sum(identity in seen for identity in ids) / max(1, len(ids))
        best = [max(pair) for pair in zip(covered, best, strict=True)]
        seen.update(ids)
        found.append(gain - redundancy)
    return found


def gain_rewards(trajectory: Trajectory) -> list[list[float]]:
    """The information gain of each turn, 0 for one that did not search; what earlier episodes found is known already.

    References are the supporting titles and the golden answers together as one more: the full
    texts that StepSearch compares with are not at hand. A title is covered where a passage bears it.
    """
    searches = [turn.passages for episode in trajectory.episodes for turn in episode.turns if turn.passages is not None]
    gains = iter(
        information_gain(
            [_coverage(trajectory.question, found) for found in searches],
            [[passage.id for passage in found] for found in searches],
        )
    )
    return [
        [0.0 if turn.passages is None else next(gains) for turn in episode.turns] for episode in trajectory.episodes
    ]


def rule_scores(trajectories: Sequence[Trajectory]) -> list[TurnScores]:
    """Scores without a model: half for the form of a turn, half for a search that found a reference."""
    return [
        [
            [0.5 * turn.format_valid + 0.5 * _found(one.question, turn) for turn in episode.turns]
            for episode in one.episodes
        ]
        for one in trajectories
    ]


def renormalized(scores: TurnScores, rewards: Sequence[float], mu: float) -> list[list[float]]:
    """PPRM's ReNorm (arXiv 2509.25598): score + the episode's reward - mu before the last turn of an episode, 0 there.

    A turn without a score gets nothing: a judge that failed is no verdict on the policy.

    >>> renormalized([[0.5, 1.0, 0.3]], [1.0], 1.0), renormalized([[0.5, None, 0.3]], [0.0], 1.0)
    ([[0.5, 1.0, 0.0]], [[-0.5, 0.0, 0.0]])
    """
    return [
        [
            0.0 if score is None or place + 1 == len(of_turns) else score + reward - mu
            for place, score in enumerate(of_turns)
        ]
        for of_turns, reward in zip(scores, rewards, strict=True)
    ]


def _coverage(question: Question, found: Sequence[Passage]) -> list[float]:
    titles = {normalize(passage.title) for passage in found}
    texts = [normalize(f"{passage.title} {passage.text}") for passage in found]
    golds = [form for gold in question.golden_answers if (form := normalize(gold))]
    answered = any(f" {gold} " in f" {text} " for gold in golds for text in texts)
    return [*(float(normalize(title) in titles) for title in question.supporting_titles), float(answered)]


def _found(question: Question, turn: Turn) -> bool:
    return turn.passages is not None and any(_coverage(question, turn.passages))
