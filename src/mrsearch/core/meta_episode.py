"""The meta-episode as a state machine that does no input or output.

A driver looks at `need`, carries it out with whatever it has (a batched model,
a server, a script) and feeds the reply:

    while meta.need is not None:
        match meta.need:
            case Generate() as request:
                meta.feed(policy.generate([request])[0])
            case Search() as request:
                meta.feed(retriever.search([request])[0])

Every driver runs this same object. It keeps the token ids exactly as they were
sampled, never encodes them again, and sets the loss mask where it appends.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Codec, Completion, Generate, Sampling, Search
from mrsearch.core.protocol import Prompts, first_stop_end, parse_turn, stops
from mrsearch.core.rewards import exact_match
from mrsearch.core.types import (
    Action,
    Episode,
    EpisodeEnd,
    MetaEnd,
    Passage,
    Question,
    Trajectory,
    Turn,
    TurnEnd,
    Window,
)


def derive_seed(*parts: int) -> int:
    """A 63-bit seed from integers, the same on every machine and in every process.

    >>> derive_seed(1, 2) == derive_seed(1, 2) != derive_seed(2, 1)
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class MetaEpisode:
    """N search episodes in sequence on one question, each seeing what came before.

    `need` is what the machine waits for: `Generate`, `Search`, or None when it
    is done and `trajectory()` can be taken. `seed` is the driver's part of the
    sampling seeds (run seed and step); group, member and turn are added here.
    """

    def __init__(
        self,
        question: Question,
        plan: Plan,
        codec: Codec,
        prompts: Prompts,
        *,
        group: int = 0,
        member: int = 0,
        sampling: Sampling | None = None,
        seed: Sequence[int] = (0, 0),
    ) -> None:
        self.question = question
        self.need: Generate | Search | None = None
        self._plan = plan
        self._codec = codec
        self._prompts = prompts
        self._group = group
        self._member = member
        self._sampling = sampling or Sampling()
        self._seed = tuple(seed)
        self._windows: list[Window] = []
        self._episodes: list[Episode] = []
        self._finish_reason: MetaEnd | None = None
        self._counters: Counter[str] = Counter()
        self._lookup: tuple[Passage, ...] | None = None
        self._stop = stops(plan.query)
        self._turns_played = 0
        self._seen = 0  # ids of the current window that an earlier request carried
        self._after_end = False  # the last turn closed itself with an end-of-turn token
        self._episode_start = 0  # where the current episode's first turn begins in its window
        self._begin_episode()

    @property
    def episodes(self) -> Sequence[Episode]:
        """The episodes so far, the running one among them."""
        return self._episodes

    def feed(self, reply: Completion | Sequence[Passage]) -> None:
        """Give the reply to what `need` asked for: a completion, or the passages (possibly none) of a search."""
        if isinstance(reply, Completion):
            assert isinstance(self.need, Generate), f"a completion was fed but {self.need!r} is needed"
            self._take_turn(reply, self.need.max_tokens)
        else:
            assert isinstance(self.need, Search), f"passages were fed but {self.need!r} is needed"
            self._take_passages(tuple(reply))
        self._check_lengths()

    def fail_search(self) -> None:
        """Say that the search had no answer: the meta-episode ends and will leave its group."""
        assert isinstance(self.need, Search), f"no search is needed but {self.need!r}"
        self._break_off("retrieval_failed")

    def trajectory(self) -> Trajectory:
        """The finished meta-episode."""
        assert self._finish_reason is not None, "the meta-episode is not done yet"
        return Trajectory(
            question=self.question,
            group=self._group,
            member=self._member,
            episodes=self._episodes,
            windows=self._windows,
            finish_reason=self._finish_reason,
            counters=self._counters,
            lookup=self._lookup,
        )

    # -- episodes -----------------------------------------------------------------------------

    def _begin_episode(self) -> None:
        """Open the next episode: in a new window, or behind a prompt in the one that goes on."""
        number = len(self._episodes) + 1
        prompt = self._plan.prompt(self._prompts, number)
        looks_up = self._plan.lookup and number == 1
        if self._plan.searches == 0 and not looks_up:
            prompt += self._prompts.last_call
        if number == 1:
            window, start = Window(), self._codec.opening(prompt, self.question)
        else:
            window, start = self._windows[-1], self._codec.between_episodes(prompt, after_end=self._after_end)
            if self._plan.context == "last":
                window = self._short_context(number)
        if number > 1 and not self._fits(start, window):
            self._finish("context_full")
            return
        if number == 1 or window is not self._windows[-1]:
            self._windows.append(window)
            self._seen = 0
        self._episodes.append(Episode(number))
        if self._place(start):
            self._episode_start = len(window)
            if looks_up:
                self.need = Search(self.question.question, self._plan.top_k)
            else:
                self._ask_for_turn()

    def _short_context(self, number: int) -> Window:
        """A window with the question and the last episode as context: nothing in it is trained a second time."""
        window = Window()
        window.place(self._codec.opening(self._prompts.question, self.question), episode=number - 1)
        window.place(self._windows[-1].ids[self._episode_start :], episode=number - 1)
        return window

    def _end_episode(self, reason: EpisodeEnd) -> None:
        self._episodes[-1].finish_reason = reason
        if len(self._episodes) == self._plan.episodes:
            self._finish("complete")
        elif self._plan.stop_when_stable and self._answer_stands():
            self._finish("stopped")
        else:
            self._begin_episode()

    def _answer_stands(self) -> bool:
        answers = [episode.answer or "" for episode in self._episodes[-2:]]
        return len(answers) == 2 and exact_match(answers[1], answers[:1]) == 1

    def _break_off(self, reason: Literal["context_full", "retrieval_failed"]) -> None:
        """End the running episode, and with it the meta-episode."""
        self._episodes[-1].finish_reason = reason
        self._finish(reason)

    def _finish(self, reason: MetaEnd) -> None:
        self._finish_reason = reason
        self.need = None
        if reason in ("context_full", "retrieval_failed"):
            self._counters[reason] += 1

    # -- turns --------------------------------------------------------------------------------

    def _ask_for_turn(self) -> None:
        window = self._windows[-1]
        self.need = Generate(
            window=(self._group, self._member, len(self._windows) - 1),
            ids=window.ids,
            new_from=self._seen,
            max_tokens=min(self._plan.turn_tokens, self._plan.window_tokens - len(window)),
            stop=self._stop,
            sampling=self._sampling,
            seed=derive_seed(*self._seed, self._group, self._member, self._turns_played),
        )
        self._seen = len(window)

    def _take_turn(self, completion: Completion, max_tokens: int) -> None:
        window, episode = self._windows[-1], self._episodes[-1]
        ids, text = self._cut_to_protocol(completion, max_tokens)
        start = len(window)
        window.sample(ids, completion.logprobs[: len(ids)], episode=episode.number)
        self._turns_played += 1
        self._after_end = bool(ids) and self._codec.ends_turn(ids[-1])

        parsed = parse_turn(text, cut=len(ids) < len(completion.ids), query=self._plan.query)
        ran_out = completion.finish_reason == "length" or len(completion.ids) > max_tokens
        turn_end: TurnEnd = parsed.action.kind
        if parsed.action.kind == "invalid" and ran_out:
            turn_end = "context_full" if len(window) >= self._plan.window_tokens else "length"
        episode.turns.append(
            Turn(text, parsed.action, turn_end, parsed.format_valid, len(self._windows) - 1, start, len(window))
        )
        said = self._codec.decode(ids[:-1]) if self._after_end else text
        self._count_turn(episode.turns[-1], empty=not said.strip())
        self._follow(episode, parsed.action, turn_end)

    def _follow(self, episode: Episode, action: Action, turn_end: TurnEnd) -> None:
        """What comes after a turn: the end of the episode, a search, or a notice and another turn."""
        last_turn = len(episode.turns) == self._plan.turns
        if action.kind == "answer":
            episode.answer = action.text
            self._end_episode("answer")
        elif turn_end == "context_full":
            self._break_off("context_full")
        elif last_turn:
            self._counters["late_searches"] += action.kind == "search"
            self._end_episode("no_answer")
        elif action.kind == "search":
            self.need = Search(action.text, self._plan.top_k)
        else:
            self._place_and_go_on(
                self._codec.notice(self._prompts.invalid + self._last_call(), after_end=self._after_end)
            )

    def _take_passages(self, passages: tuple[Passage, ...]) -> None:
        turns = self._episodes[-1].turns
        observation = self._codec.observation(
            passages, self._plan.observation_tokens, note=self._last_call(), after_end=self._after_end
        )
        if not self._place(observation.ids):
            return  # the policy never saw the passages
        if turns:
            turns[-1].passages = passages
            self._counters["searches"] += 1
        else:
            self._lookup = passages
            self._counters["lookups"] += 1
        self._counters["empty_searches"] += not passages
        self._counters["cut_passages"] += observation.cut_passages
        self._counters["cut_passage_tokens"] += observation.cut_tokens
        self._ask_for_turn()

    def _last_call(self) -> str:
        """The line before the last turn of an episode, nothing before the others."""
        return self._prompts.last_call if len(self._episodes[-1].turns) == self._plan.searches else ""

    def _cut_to_protocol(self, completion: Completion, max_tokens: int) -> tuple[Sequence[int], str]:
        """The sampled ids up to the token limit and the first closing tag, and their text.

        An engine that honours limit and stops gives nothing to cut; the text
        that shares the last token with the tag stays in the ids.
        """
        ids = completion.ids[:max_tokens]
        self._counters["tokens_over_limit"] += len(completion.ids) - len(ids)
        text = self._codec.decode(ids)
        if first_stop_end(text, self._stop) is None or first_stop_end(self._codec.decode(ids[:-1]), self._stop) is None:
            return ids, text
        complete, incomplete = len(ids) - 1, 0  # the tag is complete after the former number of tokens
        while complete - incomplete > 1:
            middle = (complete + incomplete) // 2
            if first_stop_end(self._codec.decode(ids[:middle]), self._stop) is None:
                incomplete = middle
            else:
                complete = middle
        self._counters["tokens_after_stop"] += len(ids) - complete
        return ids[:complete], self._codec.decode(ids[:complete])

    # -- the window ---------------------------------------------------------------------------

    def _fits(self, ids: Sequence[int], window: Window) -> bool:
        """Whether a window takes these ids and at least one token of the policy after them."""
        return len(window) + len(ids) < self._plan.window_tokens

    def _place(self, ids: Sequence[int]) -> bool:
        """Append what the environment says, or end for lack of room; whether it was placed."""
        if not self._fits(ids, self._windows[-1]):
            self._break_off("context_full")
            return False
        self._windows[-1].place(ids, episode=self._episodes[-1].number)
        return True

    def _place_and_go_on(self, ids: Sequence[int]) -> None:
        if self._place(ids):
            self._ask_for_turn()

    def _count_turn(self, turn: Turn, *, empty: bool) -> None:
        self._counters["turns"] += 1
        self._counters["valid_turns"] += turn.format_valid
        self._counters["empty_turns"] += empty
        self._counters["blank_answers"] += turn.action.kind == "answer" and not turn.action.text
        if turn.finish_reason in ("invalid", "length"):
            self._counters[f"{turn.finish_reason}_turns"] += 1

    def _check_lengths(self) -> None:
        """Invariant 2, after every reply."""
        window, turn = self._windows[-1], self._turns_played
        lengths = len(window.ids), len(window.loss_mask), len(window.episode_ids), len(window.logprobs)
        assert len(set(lengths)) == 1, (
            f"ids, mask, episode ids, log-probabilities have lengths {lengths} after turn {turn}"
        )
        assert len(window) <= self._plan.window_tokens, f"{len(window)} ids in a window after turn {turn}"
