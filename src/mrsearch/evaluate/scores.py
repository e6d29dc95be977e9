"""From meta-episodes to numbers: scores per episode, and the rates that say what episodes do to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mrsearch.core.rewards import exact_match, sub_exact_match, token_f1
from mrsearch.core.types import Trajectory

COUNTED = (
    "length_turns",
    "invalid_turns",
    "empty_turns",
    "blank_answers",
    "late_searches",
    "empty_searches",
    "cut_passages",
    "cut_passage_tokens",
    "tokens_after_stop",
    "tokens_over_limit",
    "context_full",
    "retrieval_failed",
)
"""Everything that was cut, refused or went wrong; each is a line of metrics under `count/`."""


@dataclass(frozen=True)
class Scores:
    """Arrays [B, N] over meta-episodes and episodes.

    A missing episode counts as 0, after an early stop as the answer that was
    carried on. `played` says which episodes took place.
    """

    em: np.ndarray
    f1: np.ndarray
    sub_em: np.ndarray
    answered: np.ndarray
    searches: np.ndarray
    tokens: np.ndarray
    played: np.ndarray


def score(trajectories: Sequence[Trajectory], episodes: int) -> Scores:
    """Score the answers of meta-episodes of up to N episodes."""
    shape = (len(trajectories), episodes)
    scores = Scores(*(np.zeros(shape) for _ in range(7)))
    for row, trajectory in enumerate(trajectories):
        golds = trajectory.question.golden_answers
        for episode in trajectory.episodes:
            at = row, episode.number - 1
            scores.em[at] = exact_match(episode.answer, golds)
            scores.f1[at] = token_f1(episode.answer, golds)
            scores.sub_em[at] = sub_exact_match(episode.answer, golds)
            scores.answered[at] = bool(episode.answer)
            scores.searches[at] = episode.searches
            scores.tokens[at] = sum(turn.end - turn.start for turn in episode.turns)
            scores.played[at] = 1
        if trajectory.finish_reason == "stopped":
            last = len(trajectory.episodes)
            for carried in (scores.em, scores.f1, scores.sub_em, scores.answered):
                carried[row, last:] = carried[row, last - 1]
    return scores


def summarize(trajectories: Sequence[Trajectory], episodes: int) -> dict[str, float]:
    """Metrics of a set of meta-episodes, by the names of docs/metrics.md."""
    scores = score(trajectories, episodes)
    values: dict[str, float] = {}
    for n in range(episodes):
        played = max(1.0, scores.played[:, n].sum())
        values |= {
            f"em/{n + 1}": _mean(scores.em[:, n]),
            f"f1/{n + 1}": _mean(scores.f1[:, n]),
            f"sub_em/{n + 1}": _mean(scores.sub_em[:, n]),
            f"answered/{n + 1}": _mean(scores.answered[:, n]),
            f"searches/{n + 1}": float(scores.searches[:, n].sum() / played),
            f"tokens/{n + 1}": float(scores.tokens[:, n].sum() / played),
            f"success_at/{n + 1}": _mean(scores.em[:, : n + 1].max(axis=1)),
        }
    for n in range(1, episodes):
        before, now = scores.em[:, n - 1] == 1, scores.em[:, n] == 1
        values[f"wrong_to_right/{n + 1}"] = _share(~before & now, ~before)
        values[f"right_to_wrong/{n + 1}"] = _share(before & ~now, before)
    counters: Counter[str] = Counter()
    for trajectory in trajectories:
        counters.update(trajectory.counters)
    values["format_valid"] = counters["valid_turns"] / max(1, counters["turns"])
    values["turns"] = counters["turns"] / max(1, len(trajectories))
    for name in COUNTED:
        values[f"count/{name}"] = counters[name]
    return values


def curve(values: Mapping[str, float], metric: str) -> list[float]:
    """A metric over the episode index, out of metrics by name.

    >>> curve({"em/1": 0.5, "em/2": 1.0, "f1/1": 0.6}, "em")
    [0.5, 1.0]
    """
    found: list[float] = []
    while (name := f"{metric}/{len(found) + 1}") in values:
        found.append(values[name])
    return found


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else 0.0


def _share(chosen: np.ndarray, among: np.ndarray) -> float:
    return float(chosen.sum() / among.sum()) if among.any() else 0.0
