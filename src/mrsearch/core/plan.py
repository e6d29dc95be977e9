"""What a meta-episode looks like: how many episodes, which budgets, which prompt, which context.

A variant of the method is another plan handed to the same state machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mrsearch.core.protocol import Prompts, QueryFrom
from mrsearch.errors import ConfigError

Opening = Literal["reflection", "explore", "continuation"]
Context = Literal["full", "last"]


@dataclass(frozen=True)
class Plan:
    """The shape and the budgets of a meta-episode. Token numbers are in the policy's tokens."""

    episodes: int = 3
    """N, the episodes of a meta-episode."""
    searches: int = 3
    """K, the searches of an episode; an episode has at most K + 1 turns."""
    top_k: int = 3
    """Passages that a search brings."""
    lookup: bool = False
    """Search for the question itself before the first turn; it takes none of the searches."""
    query: QueryFrom = "search"
    """What a search looks for: the text between search tags, or each thought."""
    turn_tokens: int = 1024
    """Most tokens of one turn."""
    observation_tokens: int = 1024
    """Most tokens of the passages of one search, tags included."""
    window_tokens: int = 8192
    """Most tokens of one window."""
    context: Context = "full"
    """`full`: one window for all. `last`: each episode sees the question, the last episode and its own prompt."""
    openings: tuple[Opening, ...] = ("reflection",)
    """The prompt that opens episode 2, 3, ...; the last one named serves all that follow."""
    explore: int = 0
    """The first so many episodes explore: their own reward gives them no credit (mask m = 0)."""
    stop_when_stable: bool = False
    """At inference: stop when an episode gives the same answer as the one before it."""

    def __post_init__(self) -> None:
        for name, least in (
            ("episodes", 1),
            ("searches", 0),
            ("top_k", 1),
            ("turn_tokens", 1),
            ("observation_tokens", 1),
            ("window_tokens", 2),
            ("explore", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"plan.{name} is {getattr(self, name)}; it must be at least {least}")
        if self.explore >= self.episodes:
            raise ConfigError(
                f"plan.explore is {self.explore} of {self.episodes} episodes; leave at least one that exploits"
            )
        if not self.openings:
            raise ConfigError("plan.openings is empty; name the prompt that opens the second episode")

    @property
    def turns(self) -> int:
        """Most turns of an episode."""
        return self.searches + 1

    @property
    def credit_mask(self) -> tuple[float, ...]:
        """m[n] of the credit, 0 for exploration episodes (paper, Eq. 10)."""
        return (0.0,) * self.explore + (1.0,) * (self.episodes - self.explore)

    def prompt(self, prompts: Prompts, episode: int) -> str:
        """The text that opens an episode; the first is opened by the question's own prompt."""
        if episode == 1:
            return prompts.question
        texts = {
            "reflection": prompts.reflection,
            "explore": prompts.explore,
            "continuation": prompts.continuation,
        }
        return texts[self.openings[min(episode - 2, len(self.openings) - 1)]]
