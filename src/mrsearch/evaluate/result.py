"""From what was played to a result: figures with intervals, and a row for each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mrsearch.core.rewards import exact_match, token_f1
from mrsearch.evaluate.intervals import bootstrap
from mrsearch.evaluate.journal import Played
from mrsearch.evaluate.modes import Mode
from mrsearch.evaluate.scores import score, summarize
from mrsearch.evaluate.vote import majority_vote, most_confident, pass_at_k

WITH_INTERVALS = ("em", "f1", "sub_em")


def figures(played: Sequence[Played], mode: Mode, *, intervals: bool = True) -> dict[str, Any]:
    """`values` by the names of docs/metrics.md, `intervals` of the scores at each place, and `answers` by question.

    A place is an episode or, for `parallel`, a number of samples; there `em/n`
    and `f1/n` are those of the majority of the first n.
    """
    found = _parallel(played, mode.samples) if mode.name == "parallel" else _sequence(played, mode.plan.episodes)
    scores, values, answers = found
    bounds = {
        metric: [_bounds(column) for column in scores[metric].T]
        for metric in WITH_INTERVALS
        if intervals and metric in scores
    }
    return {"values": values, "intervals": bounds, "answers": answers}


def macro_average(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean over sets of every figure that all of them have, each set counting alike; counts are summed."""
    common = set.intersection(*(set(result["values"]) for result in results)) if results else set()
    found = {}
    for name in (name for name in results[0]["values"] if name in common) if results else ():
        values = [result["values"][name] for result in results]
        found[name] = sum(values) if name.startswith("count/") else sum(values) / len(values)
    return found


def answers_by_place(row: Mapping[str, Any], mode: str) -> list[str | None]:
    """What counts as the answer at each place of a row: an episode's own, the last one where it stood, or the vote."""
    given = row["answers"]
    if mode == "parallel":
        return [majority_vote(given[: n + 1]) for n in range(len(given))]
    missing = len(row["em"]) - len(given)
    return [*given, *[given[-1] if row["ended"] == "stopped" else None] * missing]


def add_verdicts(result: dict[str, Any], verdicts: Sequence[Sequence[bool | None]]) -> None:
    """Put a judge's verdicts [Q, N] beside exact match: `judge/n` with its interval, and by question.

    No verdict counts as wrong, and is counted as `count/unjudged`.
    """
    right = np.array([[bool(verdict) for verdict in row] for row in verdicts], dtype=float)
    for n in range(result["episodes"] if len(right) else 0):
        result["values"][f"judge/{n + 1}"] = _mean(right[:, n])
    result["values"]["count/unjudged"] = sum(verdict is None for row in verdicts for verdict in row)
    result["intervals"]["judge"] = [_bounds(column) for column in right.T]
    for row, verdict in zip(result["answers"], verdicts, strict=True):
        row["judge"] = list(verdict)


_Found = tuple[dict[str, np.ndarray], dict[str, float], list[dict[str, Any]]]


def _sequence(played: Sequence[Played], episodes: int) -> _Found:
    trajectories = [row.samples[0] for row in played]
    scores = score(trajectories, episodes)
    answers = [
        {
            **_asked(row),
            "answers": [episode.answer for episode in row.samples[0].episodes],
            "em": scores.em[place].tolist(),
            "f1": scores.f1[place].tolist(),
            "searches": [episode.searches for episode in row.samples[0].episodes],
            "tokens": [int(tokens) for tokens in scores.tokens[place]],
            "ended": row.samples[0].finish_reason,
        }
        for place, row in enumerate(played)
    ]
    return {metric: getattr(scores, metric) for metric in WITH_INTERVALS}, summarize(trajectories, episodes), answers


def _parallel(played: Sequence[Played], samples: int) -> _Found:
    every = [sample for row in played for sample in row.samples]
    scores = score(every, 1)
    shape = len(played), samples
    right, tokens, searches = (array.reshape(shape) for array in (scores.em, scores.tokens, scores.searches))
    em, f1, best = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    answers = []
    told = any(logprob is not None for row in played for logprobs in row.logprobs for logprob in logprobs)
    for place, row in enumerate(played):
        golds = row.samples[0].question.golden_answers
        given = [sample.episodes[0].answer for sample in row.samples]
        confidence = [logprobs[0] if logprobs else None for logprobs in row.logprobs]
        for n in range(samples):
            chosen = majority_vote(given[: n + 1])
            em[place, n], f1[place, n] = exact_match(chosen, golds), token_f1(chosen, golds)
            if told:
                best[place, n] = exact_match(most_confident(given[: n + 1], confidence[: n + 1]), golds)
        answers.append(
            {
                **_asked(row),
                "answers": given,
                "em": em[place].tolist(),
                "f1": f1[place].tolist(),
                "right": right[place].tolist(),
                "searches": searches[place].tolist(),
                "tokens": [int(count) for count in tokens[place]],
                "logprobs": confidence,
                "ended": [sample.finish_reason for sample in row.samples],
            }
        )
    values: dict[str, float] = {}
    for n in range(samples):
        values |= {
            f"em/{n + 1}": _mean(em[:, n]),
            f"f1/{n + 1}": _mean(f1[:, n]),
            **({f"best_of/{n + 1}": _mean(best[:, n])} if told else {}),
            f"pass_at/{n + 1}": _mean(np.array([pass_at_k(samples, int(row.sum()), n + 1) for row in right])),
            f"tokens/{n + 1}": _mean(tokens[:, n]),
            f"searches/{n + 1}": _mean(searches[:, n]),
        }
    of_all = summarize(every, 1)
    values["sample_em"] = of_all["em/1"]
    values["answered/1"] = of_all["answered/1"]
    values |= {name: value for name, value in of_all.items() if name.startswith("count/") or name == "format_valid"}
    return {"em": em, "f1": f1}, values, answers


def _asked(row: Played) -> dict[str, Any]:
    question = row.samples[0].question
    return {"id": question.id, "question": question.question, "golden_answers": list(question.golden_answers)}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else 0.0


def _bounds(scores: np.ndarray) -> tuple[float, float]:
    if not scores.size:
        return 0.0, 0.0
    interval = bootstrap(scores)
    return round(interval.low, 4), round(interval.high, 4)
