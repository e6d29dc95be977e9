"""Signs of collapse in what was played: queries that come again, answers of the prompt's example, idle reflections."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mrsearch.core.protocol import Prompts
from mrsearch.core.rewards import normalize
from mrsearch.core.types import Trajectory

_EXAMPLE = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


def signs(trajectories: Sequence[Trajectory], prompts: Prompts) -> dict[str, float]:
    """What `watch` looks at beside the usual metrics, named as in docs/metrics.md; none where nothing was to count."""
    queries = repeated = answers = copied = later = idle = 0
    examples = _examples(prompts)
    for one in trajectories:
        seen: set[str] = set()
        before: str | None = None
        for episode in one.episodes:
            for turn in episode.turns:
                if turn.action.kind == "search":
                    query = " ".join(turn.action.text.casefold().split())
                    queries += 1
                    repeated += query in seen
                    seen.add(query)
            if episode.answer is None:
                before = None
                continue
            said = normalize(episode.answer)
            answers += 1
            copied += said in examples
            if before is not None and one.rewards[episode.number - 2] <= 0:
                later += 1
                idle += said == before and episode.searches == 0
            before = said
    found = {
        "repeated_queries": (repeated, queries),
        "copied_answers": (copied, answers),
        "idle_reflections": (idle, later),
    }
    values = {name: part / whole for name, (part, whole) in found.items() if whole}
    likelihood = _rewarded_logprob(trajectories)
    return values if likelihood is None else {**values, "rewarded_logprob": likelihood}


def _examples(prompts: Prompts) -> set[str]:
    """Answers that the prompts show as examples, normalised."""
    texts = (prompts.question, prompts.reflection, prompts.explore, prompts.last_call)
    # "between <answer> and </answer>" is no example.
    return {said for text in texts for example in _EXAMPLE.findall(text) if (said := normalize(example))} - {"and"}


def _rewarded_logprob(trajectories: Sequence[Trajectory]) -> float | None:
    """Mean log-probability at sampling of the tokens of episodes that earned something."""
    logprobs = [
        one.windows[turn.window].logprobs[turn.start : turn.end]
        for one in trajectories
        for episode, reward in zip(one.episodes, one.rewards, strict=False)
        if reward > 0
        for turn in episode.turns
    ]
    every = np.array([value for some in logprobs for value in some])
    return float(every.mean()) if every.size else None
