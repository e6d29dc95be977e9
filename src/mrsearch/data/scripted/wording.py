"""How a scripted searcher puts its turns: sentences from templates, quotes of passages, and what fits into a turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from mrsearch.core.plan import Plan
from mrsearch.core.rewards import normalize
from mrsearch.data.scripted.reading import Notes, Read, about_years, bare_title, clip, key_words, length
from mrsearch.errors import ConfigError

TURN_WORDS = 64
"""Most words of a turn, tags apart."""

_QUOTE_WORDS, _LEAST_QUOTE = 14, 6
"""Most words that a thought quotes from a passage, and fewest."""

_FINDINGS = (
    'The passage on {title} says: "{quote}".',
    '{title}: "{quote}".',
    'On {title} I read: "{quote}".',
    'In the passage on {title} it says: "{quote}".',
)
_FINDINGS_NONE = (
    "That did not bring what I need.",
    "These passages do not help much.",
    "Nothing here says what is asked.",
    "That brought {title}, which is not what I need.",
    "I got {title}, but that does not help.",
)
_STEPS = {
    "question": (
        "I search with the question itself.",
        "First I look for passages that match the question.",
        "I start with the words of the question.",
        "I do not know this yet, so I search for it.",
        "Let me see what comes up for the question.",
    ),
    "start": (
        "The question names {name}, so I look that up first.",
        "I need to know more about {name}.",
        "The question starts from {name}, so I search for that.",
        "First, what is known about {name}?",
    ),
    "part": ("I try a few words of the question.", "A short query may do.", "I search with a part of the question."),
    "mentioned": (
        "So I look up {name} next.",
        "That leads to {name}.",
        "Now I need to read about {name}.",
        "Next I search for {name}.",
    ),
    "named": (
        "The question also names {name}, so I look that up.",
        "{name} from the question is still missing.",
        "I have not read about {name} yet.",
    ),
    "reworded": ("I try other words.", "I word the search differently.", "Other words may bring it."),
    "hunch": ("Perhaps {name} is meant.", "My guess is that {name} leads on.", "It could be about {name}."),
    "detail": (
        "What is asked is not said yet, so I search for more on {name}.",
        "I need more about {name}.",
        "The part on {name} that I need is still missing.",
    ),
    "aside": ("Maybe {name} matters.", "I look at {name} too.", "{name} may have to do with it."),
    "recheck": ("I search for {name} again, with the question in mind.", "I look at {name} once more."),
}
"""What a search is for, by the kind of its lead."""

_CONCLUSIONS = {
    "read": (
        "So the answer is {answer}.",
        "That answers the question: {answer}.",
        "This gives {answer}.",
        "Therefore it is {answer}.",
    ),
    "guess": (
        "I could not find it, so {answer} is a guess.",
        "I am not sure; my guess is {answer}.",
        "No passage settles it. I guess {answer}.",
        "What is asked is still open; {answer} is my best guess.",
    ),
    "early": (
        "I stop here and say {answer}.",
        "That may be enough: {answer}.",
        "I leave it at that and guess {answer}.",
    ),
    "unread": (
        "I cannot look anything up, so I guess {answer}.",
        "Without a search, {answer} is only a guess.",
    ),
}
"""What an answer is worth, by how it came about; `unread` is a guess with nothing in view."""

_REFLECTIONS = {
    "lacking": (
        "My last answer, {answer}, was only a guess: {read}, but I have nothing on {missing}, and the answer depends "
        "on it.",
        "I answered {answer} without knowing it: {read}, but nothing about {missing}, so the answer is uncertain.",
        "The answer {answer} was uncertain, because {read} but found no passage on {missing}. That has to be looked "
        "for now.",
    ),
    "open": (
        "My last answer, {answer}, was only a guess: {read}, but no passage said what the question asks. I need "
        "another way to it.",
        "I answered {answer} without having found it: {read}, and that did not answer the question, so it is still "
        "open.",
    ),
    "early": (
        "I stopped too early with {answer}, which was a guess: {read}, and nothing about {missing} so far.",
        "The last answer, {answer}, was given too soon: {read}, but not about {missing}, which I need to know.",
    ),
    "doubt": (
        "I answered {answer}, but {read} and not about {missing}, so it is not certain that this is what is asked.",
        "The answer {answer} rests on too little: {read}, while {missing} was never looked at, so it is uncertain.",
    ),
    "thin": (
        "The answer {answer} rests on little: {read}. I should find something that confirms it before I answer.",
        "I answered {answer}, and {read}, but no more. It is uncertain, and I should find another passage for it.",
    ),
    "recheck": (
        "I answered {answer}: {read}. Nothing seems to be missing, but I may have read it wrongly, so I check it "
        "again.",
        "My last answer, {answer}, was not checked against the question: {read}. It could be a wrong reading.",
    ),
    "restart": (
        "I am not certain of {answer}: {read}, but I may have looked in the wrong direction. I begin again.",
        "{answer} may be wrong, since {read} and never questioned that. It is safer to start from the beginning.",
    ),
    "restart_guess": (
        "My last answer, {answer}, was a guess: {read}, but no passage said what the question asks. I begin again.",
        "I answered {answer} without having found it: {read}, and that left the question open. I start from the "
        "beginning.",
    ),
    "keep": (
        "I answered {answer}, and {read}. I have gone over it again, nothing is missing, and I keep the answer.",
        "Looking back at {answer}: {read}, and that agrees with what is asked. Nothing is uncertain, so I keep it.",
    ),
    "keep_thin": (
        "I answered {answer}, and {read}. I found nothing on {missing}, but what I read fits the question, so I keep "
        "the answer.",
        "Looking back at {answer}: {read}, while {missing} is missing. It is not quite certain, but I keep it.",
    ),
    "keep_guess": (
        "My last answer, {answer}, was a guess: {read}, and that did not show what is asked. I see no better way, so "
        "I keep it.",
        "It is uncertain that {answer} is right: {read}, and the question is still open. I know nothing better and "
        "keep it.",
    ),
}
"""How a reflection opens: `{answer}` is the last one, `{read}` what was read and `{missing}` what was not."""


@dataclass(frozen=True)
class Room:
    """Words that fit, two tokens a word: into a thought, into a query or an answer, and of a passage into view."""

    thought: int
    action: int
    passage: int

    @classmethod
    def of(cls, plan: Plan) -> Room:
        tags, least = 16, 24
        words = min(TURN_WORDS, (plan.turn_tokens - tags) // 2)
        if words < least:
            raise ConfigError(
                f"plan.turn_tokens is {plan.turn_tokens}, too few for a scripted thought and its action; "
                f"set it to {2 * least + tags} or more"
            )
        title = 12
        return cls(
            thought=words * 5 // 8,
            action=words * 3 // 8,
            passage=max(0, ((plan.observation_tokens - tags) // plan.top_k - title) // 2),
        )


Part = str | Callable[[int], str]
"""A sentence of a thought, or what makes one of at most so many words (empty where they are too few)."""


class Writer:
    """Words the turns of one searcher; `question` is what its quotes are chosen for."""

    def __init__(self, question: str, room: Room, rng: Random) -> None:
        self._room = room.thought
        self._rng = rng
        self._key_words = frozenset(normalize(" ".join(key_words(question))).split())
        self._wants_year = about_years(question)

    def turn(self, tag: Literal["search", "answer"], action: str, parts: Sequence[Part]) -> str:
        """A turn: its thought, whose quotes share the room that the other sentences leave, and its action."""
        room, said = self._room, list[str]()
        for part in parts:
            sentence = part if isinstance(part, str) else ""
            if length(sentence) > room:  # the first is cut where it is too long, a later one is left out
                sentence = "" if any(said) else clip(sentence, room)
            said.append(sentence)
            room -= length(sentence)
        quotes = [(place, part) for place, part in enumerate(parts) if not isinstance(part, str)]
        for place, quote in quotes:
            said[place] = quote(room // len(quotes))
        return f"<think> {' '.join(filter(None, said))} </think> <{tag}> {action} </{tag}>"

    def step(self, kind: str, name: str) -> str:
        """What a search is for."""
        return self._rng.choice(_STEPS[kind]).format(name=_in_thought(name))

    def conclusion(self, kind: str, answer: str) -> str:
        """What an answer is worth."""
        return self._rng.choice(_CONCLUSIONS[kind]).format(answer=_in_thought(answer))

    def reflection(self, kind: str, answer: str, notes: Notes, missing: str) -> str:
        """How the last answer is looked back at; `missing` names something that was not found, if anything can."""
        names = [_in_thought(bare_title(title)) for title in notes.found[-2:]]
        if names:
            read = f"I read about {' and '.join(dict.fromkeys(names))}"
        else:
            others = [_in_thought(read.name) for read in notes.reads if read.title]
            read = f"I read only about {others[-1]}" if others else "I read nothing"
        template = self._rng.choice(_REFLECTIONS[kind])
        return template.format(answer=_in_thought(answer), read=read, missing=_in_thought(missing))

    def of_no_use(self, title: str) -> str:
        """That a search brought nothing of use, but a passage of a title, if there is one that can be named."""
        templates = _FINDINGS_NONE if title else _FINDINGS_NONE[:3]
        return self._rng.choice(templates).format(title=_in_thought(title))

    def quote(self, read: Read, phrase: str = "") -> Part:
        """A sentence with what a passage says of a phrase, or of the question; empty where there is no room for it."""
        template = self._rng.choice(_FINDINGS)
        title = _in_thought(read.title)

        def sentence(most: int) -> str:
            most = min(most - length(template.format(title=title, quote="")), _QUOTE_WORDS)
            if most < _LEAST_QUOTE or not title:
                return ""
            quote = read.quote(phrase, most) or read.gist(self._key_words, wants_year=self._wants_year, most=most)
            return template.format(title=title, quote=quote) if quote else ""

        return sentence


def _in_thought(name: str) -> str:
    """A name or an answer, short enough to leave room in a thought and without the full stop of a sentence."""
    return clip(name, 7).rstrip(".")
