"""The ways in which an agent is asked: the method, its rivals at equal searches, and baselines without training.

Each is a plan, prompts and a number of samples, made from the settings of the
agent; all of them run the same state machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Sampling
from mrsearch.core.protocol import Prompts
from mrsearch.errors import ConfigError

MODES = {
    "reflect": "the plan as it is: episodes in sequence with reflections (MR-Search; Search-R1-S when trained on one)",
    "single": "the first episode alone (Search-R1)",
    "parallel": "as many independent single episodes, put together by vote or confidence (Search-R1-P)",
    "long": "one episode with the searches of all episodes together: the fair rival at an equal number of searches",
    "direct": "the answer at once",
    "cot": "a thought, then the answer; no search",
    "rag": "the passages of one search for the question, then the answer",
    "ircot": "each thought is a search (after IRCoT)",
    "search-o1": "one episode whose passages the model itself condenses before it reads on (after Search-o1)",
}
"""Names of the modes and what they mean."""


@dataclass(frozen=True)
class Mode:
    """What is played for each question. `condense`: passages pass through the model before they are shown."""

    name: str
    plan: Plan
    prompts: Prompts
    sampling: Sampling
    samples: int = 1
    condense: bool = False

    @property
    def columns(self) -> int:
        """Over how many places the scores of a question run: episodes, or samples."""
        return self.samples if self.name == "parallel" else self.plan.episodes


def mode_of(name: str, plan: Plan, prompts: Prompts, sampling: Sampling) -> Mode:
    """A mode by its name, for an agent with this plan, these prompts and this sampling.

    `plan.episodes` is the number of samples of `parallel`, which are drawn at
    temperature 1 where the sampling is greedy: greedy ones would be equal.
    """
    if name not in MODES:
        raise ConfigError(f"there is no mode {name!r}; known are {', '.join(MODES)}")
    single = replace(plan, episodes=1, explore=0, stop_when_stable=False)
    closed = replace(single, searches=0, lookup=False, query="search")
    silent = replace(prompts, last_call="")
    match name:
        case "reflect":
            return Mode(name, plan, prompts, sampling)
        case "parallel":
            drawn = sampling if sampling.temperature else replace(sampling, temperature=1.0)
            return Mode(name, single, prompts, drawn, samples=plan.episodes)
        case "long":
            return Mode(name, replace(single, searches=plan.searches * plan.episodes), prompts, sampling)
        case "direct":
            return Mode(name, closed, replace(silent, question=prompts.direct), sampling)
        case "cot":
            return Mode(name, closed, replace(silent, question=prompts.cot), sampling)
        case "rag":
            return Mode(name, replace(closed, lookup=True), replace(silent, question=prompts.rag), sampling)
        case "ircot":
            thinking = replace(single, lookup=True, query="thought")
            asking = replace(prompts, question=prompts.ircot, invalid=prompts.ircot_invalid)
            return Mode(name, thinking, asking, sampling)
    return Mode(name, single, prompts, sampling, condense=name == "search-o1")
