"""The seams: what the core asks of tokenizers, models, retrievers and learners.

Small protocols and the requests and replies that cross them. The core knows
nothing of what stands behind a port; the implementations know nothing of what
an episode is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from mrsearch.core.types import Passage, Question, Trajectory

CompletionEnd = Literal["stop", "end", "length"]
"""A stop string was completed; an end-of-turn token was sampled; the token limit was reached."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that make up this share of the probability; 1 is off."""
    top_k: int = 0
    """Draw from so many likeliest tokens; 0 is off."""


@dataclass(frozen=True, slots=True)
class Generate:
    """The machine needs a turn from the policy.

    `window` names the context (and its cache); `ids` is the whole context and
    `new_from` the index of the first id that was not part of the last request
    for the same window. The lists are the machine's own: read them, keep none.
    """

    window: tuple[int, ...]
    ids: Sequence[int]
    new_from: int
    max_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy sampled: ids, their log-probabilities under the sampling temperature, why it ended."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: CompletionEnd


@dataclass(frozen=True, slots=True)
class Search:
    """The machine needs passages for a query."""

    query: str
    top_k: int


@dataclass(frozen=True, slots=True)
class Observation:
    """Passages as ids, with what had to be cut to fit the limit."""

    ids: list[int]
    cut_passages: int = 0
    cut_tokens: int = 0


class Codec(Protocol):
    """Text to ids and back, so that the core knows no tokenizer and no chat template.

    `after_end` says that the policy ended its own turn with an end-of-turn
    token: what follows then opens as a new message and the token is not repeated.
    """

    def opening(self, prompt: str, question: Question) -> list[int]:
        """The start of a window: the prompt with the question in place of `{question}`, ready for the first turn."""
        ...

    def observation(
        self, passages: Sequence[Passage], limit: int, *, note: str = "", after_end: bool = False
    ) -> Observation:
        """Passages between their tags, in at most `limit` tokens; each is cut by its own share, tags are kept.

        `note` is a line of the environment (the last call) that follows in the same message, beyond the limit.
        """
        ...

    def notice(self, text: str, *, after_end: bool = False) -> list[int]:
        """A line from the environment inside an episode: invalid action, last call."""
        ...

    def between_episodes(self, prompt: str, *, after_end: bool = False) -> list[int]:
        """End of the assistant's turn, the prompt of the next episode as a user message, the next header."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        ...

    def ends_turn(self, token: int) -> bool:
        """Whether this id ends the policy's turn (end-of-text or the template's end of a message)."""
        ...


class Policy(Protocol):
    """Something that generates turns."""

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        """One completion for each request, in order."""
        ...


class Retriever(Protocol):
    """Something that finds passages."""

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages for each request, best first; raises `RetrieverError` when it has no answer."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What a learner trains on in one step: meta-episodes with their advantages set.

    Those whose advantages are all zero have no policy gradient, but their
    tokens count in the token mean.
    """

    trajectories: Sequence[Trajectory]
    step: int


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What a learner reports of one step; names as in docs/metrics.md."""

    values: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """Something that improves the policy and can be saved and restored exactly."""

    def step(self, batch: Batch) -> StepMetrics:
        """Train on one batch."""
        ...

    def save(self, folder: Path) -> None:
        """Write model, optimiser, schedule and random state into an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, to the last bit on the same machine."""
        ...
