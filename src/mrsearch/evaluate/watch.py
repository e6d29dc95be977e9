"""A watch on collapse: metrics of training against their own beginning, with a memory, so that one step is no alarm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mrsearch.config import WatchConfig

Direction = Literal["above", "below"]


@dataclass(frozen=True)
class Sign:
    """A metric, on which side of its bound it is bad, and how the bound follows from the reference.

    The bound is `times` the reference plus `offset`; without a reference (`times` 0) it is fixed.
    """

    metric: str
    direction: Direction
    times: float
    offset: float
    meaning: str

    def bound(self, reference: float | None) -> float | None:
        """Where it begins to be bad; None while there is nothing to compare with."""
        if self.times == 0:
            return self.offset
        return None if reference is None else self.times * reference + self.offset


SIGNS = (
    Sign("entropy", "below", 0.1, 0.0, "no exploration is left"),
    Sign("entropy", "above", 3.0, 0.5, "the policy dissolves"),
    Sign("grad_norm", "above", 10.0, 0.0, "updates explode"),
    Sign("format_valid", "below", 0.6, 0.0, "turns lose their form"),
    Sign("rewarded_logprob", "below", 1.0, -1.0, "right actions lose likelihood"),
    Sign("repeated_queries", "above", 0.0, 0.7, "the same is searched for again and again"),
    Sign("copied_answers", "above", 0.0, 0.2, "the example of the prompt is given as the answer"),
    Sign("idle_reflections", "above", 0.0, 0.98, "reflections neither search nor change a wrong answer"),
)
"""What is looked at. A reference is the mean over the first `watch.memory` steps that have the metric."""


@dataclass
class Watch:
    """Tells when a sign has been bad in each of the last `memory` steps. Its state goes into checkpoints."""

    config: WatchConfig
    _begun: dict[str, list[float]] = field(default_factory=dict)
    _bad: dict[str, int] = field(default_factory=dict)
    rolled_back: int = 0

    def look(self, values: Mapping[str, float]) -> list[str]:
        """Take in the metrics of a step; gives what is alarming, in words."""
        alarms = []
        if values.get("updates") == 0:  # nothing was trained, so that there was no gradient
            values = {name: value for name, value in values.items() if name != "grad_norm"}
        metrics = {sign.metric for sign in SIGNS if sign.metric in values}
        references = {metric: self._reference(metric) for metric in metrics}
        for sign in SIGNS:
            if sign.metric not in values:
                continue
            key, value = f"{sign.metric} {sign.direction}", values[sign.metric]
            bound = sign.bound(references[sign.metric])
            bad = bound is not None and (value > bound if sign.direction == "above" else value < bound)
            self._bad[key] = self._bad.get(key, 0) + 1 if bad else 0
            if self._bad[key] >= self.config.memory:
                alarms.append(f"{sign.metric} is {value:.3g}, {sign.direction} {bound:.3g}: {sign.meaning}")
        for metric in metrics:
            begun = self._begun.setdefault(metric, [])
            if len(begun) < self.config.memory:
                begun.append(values[metric])
        return alarms

    def forget(self) -> None:
        """Begin to count anew, as after a return to an earlier model; the references stay."""
        self._bad.clear()

    def state(self) -> dict[str, Any]:
        """All that it remembers, as JSON data."""
        return {"begun": self._begun, "bad": self._bad, "rolled_back": self.rolled_back}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what `state` gave."""
        self._begun = {name: list(values) for name, values in state["begun"].items()}
        self._bad = dict(state["bad"])
        self.rolled_back = state["rolled_back"]

    def _reference(self, metric: str) -> float | None:
        begun = self._begun.get(metric, ())
        return sum(begun) / len(begun) if len(begun) >= self.config.memory else None
