"""The ports without a library: a codec of words and signs, passages in a dict, a policy that writes as it is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.ports import Completion, CompletionEnd, Generate, Observation, Search
from mrsearch.core.protocol import OBSERVATION_CLOSING, OBSERVATION_OPENING, Prompts, render_passage
from mrsearch.core.types import Passage, Question, Trajectory
from mrsearch.errors import RetrieverError

END, MESSAGE, REPLY = 0, 1, 2
"""Control tokens: the end of a turn, the start of a message of the environment, the start of the policy's reply."""

_PIECE = re.compile(r"\w+|\s|[^\w\s]")


class PlainCodec:
    """Each word, space and sign is a token, so that a tag is three or four of them: `<`, `/`, `search`, `>`.

    Any other text can be made a token too, with `token`: a policy may split
    what it writes in another way than `encode` does, or write a token that
    goes on beyond a tag's end.
    """

    def __init__(self, prompts: Prompts | None = None) -> None:
        self._prompts = prompts or Prompts()
        self._texts = ["[end]", "[message]", "[reply]"]
        self._ids: dict[str, int] = {}  # without the control tokens: no text becomes one

    def token(self, text: str) -> int:
        """The id of a text that is one token, from now on if it was none."""
        if text not in self._ids:
            self._ids[text] = len(self._texts)
            self._texts.append(text)
        return self._ids[text]

    def encode(self, text: str) -> list[int]:
        return [self.token(piece) for piece in _PIECE.findall(text)]

    def encode_reply(self, text: str) -> list[int]:
        return self.encode(text)

    def opening(self, prompt: str, question: Question) -> list[int]:
        before, placeholder, after = prompt.partition("{question}")
        asked = question.question if placeholder else ""
        return [MESSAGE, *self.encode(before), *self.encode(asked), *self.encode(after), REPLY]

    def observation(
        self, passages: Sequence[Passage], limit: int, *, note: str = "", after_end: bool = False
    ) -> Observation:
        opening, closing = self.encode(OBSERVATION_OPENING), self.encode(OBSERVATION_CLOSING)
        lines = [self.encode("\n" + render_passage(self._prompts, rank, text)) for rank, text in enumerate(passages, 1)]
        left = max(0, limit - len(opening) - len(closing) - (2 if after_end else 0))
        kept = list(lines)
        # The shortest first: what it leaves of its share is for the longer ones.
        for done, index in enumerate(sorted(range(len(lines)), key=lambda index: len(lines[index]))):
            kept[index] = lines[index][: left // (len(lines) - done)]
            left -= len(kept[index])
        body = [token for line in kept for token in line] or self.encode("\n" + self._prompts.no_passages)[:left]
        return Observation(
            self._placed([*opening, *body, *closing, *self.encode(note)], after_end=after_end),
            cut_passages=sum(len(short) < len(line) for short, line in zip(kept, lines, strict=True)),
            cut_tokens=sum(len(line) - len(short) for short, line in zip(kept, lines, strict=True)),
        )

    def notice(self, text: str, *, after_end: bool = False) -> list[int]:
        return self._placed(self.encode(text), after_end=after_end)

    def between_episodes(self, prompt: str, *, after_end: bool = False) -> list[int]:
        return [*([] if after_end else [END]), MESSAGE, *self.encode(prompt), REPLY]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._texts[token] for token in ids)

    def ends_turn(self, token: int) -> bool:
        return token == END

    def _placed(self, ids: list[int], *, after_end: bool) -> list[int]:
        """As they are inside the policy's turn, or as a message of their own behind it."""
        return [MESSAGE, *ids, REPLY] if after_end else ids


class PassageBook:
    """A retriever over a dict of queries: what it holds for a query, nothing for another; some queries break it."""

    def __init__(self, passages: Mapping[str, Sequence[Passage]], *, broken: Sequence[str] = ()) -> None:
        self._passages = passages
        self._broken = broken
        self.calls: list[list[str]] = []

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append([request.query for request in requests])
        for request in requests:
            if request.query in self._broken:
                raise RetrieverError(f"no reply for {request.query!r}")
        return [list(self._passages.get(request.query, ()))[: request.top_k] for request in requests]


class CompletionPolicy:
    """Writes the completion that a function of the request gives."""

    def __init__(self, write: Callable[[Generate], Completion]) -> None:
        self._write = write
        self.calls: list[list[tuple[int, ...]]] = []

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        self.calls.append([request.window for request in requests])
        return [self._write(request) for request in requests]


def write(codec: PlainCodec, text: str, finish_reason: CompletionEnd = "stop") -> Completion:
    """A completion of this text; its log-probabilities are -1, -2, -3, …"""
    return completion(codec.encode(text), finish_reason)


def completion(ids: Sequence[int], finish_reason: CompletionEnd = "stop") -> Completion:
    """A completion of these ids; their log-probabilities are -1, -2, -3, …"""
    return Completion(list(ids), [-float(place) for place in range(1, len(ids) + 1)], finish_reason)


def play_turns(
    meta: MetaEpisode, codec: PlainCodec, turns: Sequence[str | Completion], found: Sequence[Passage] = ()
) -> Trajectory:
    """Feed turns, each a text or a completion, until the machine is done; every search brings `found`."""
    waiting = list(turns)
    while meta.need is not None:
        if isinstance(meta.need, Search):
            meta.feed(list(found))
        else:
            assert waiting, "the machine asks for another turn than those that were written for it"
            turn = waiting.pop(0)
            meta.feed(write(codec, turn) if isinstance(turn, str) else turn)
    assert not waiting, f"the machine was done before these turns: {waiting}"
    return meta.trajectory()
