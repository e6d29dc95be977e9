"""Demonstrations from real questions: a scripted, imperfect searcher that searches a real corpus.

A question with supporting titles is played as a policy would play it. The
titles tell the searcher what to look for, as a good guess would; what it says
of passages stands in them, and a golden answer is given only where one stands
in what was read. Which passages come back is up to the retriever that is
passed in. This module knows nothing of models, tokens or files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Literal

from mrsearch.core.plan import Plan
from mrsearch.core.ports import Retriever, Search
from mrsearch.core.protocol import parse_action
from mrsearch.core.rewards import exact_match, normalize
from mrsearch.core.types import Passage, Question
from mrsearch.data.hits import is_yes_no
from mrsearch.errors import ConfigError

TURN_WORDS = 64
"""Most words of a turn, tags apart."""

_QUOTE_WORDS, _LEAST_QUOTE = 14, 6
"""Most words that a thought quotes from a passage, and fewest."""

QUESTIONS_AT_ONCE = 256
"""Questions that are played in step: their searches go to the retriever in one call."""


@dataclass(frozen=True)
class SearchHabits:
    """How the scripted searcher decides. What it does readily, a model trained on it will do readily."""

    expert: float = 0.25
    """Share of demonstrations in which every decision is the right one; the rates below hold for the others."""
    right_query: float = 0.75
    """Searching for what leads on, and not for a few words of the question or a name met by chance."""
    search_on: float = 0.75
    """Searching on with a part of what is needed in hand and searches left, and not stopping with a guess."""
    right_read: float = 0.9
    """Answering what the passages show at the first reading, and not another name or number in them."""
    go_on: float = 0.6
    """After a reflection: searching for what is missing, or checking an answer that seems complete."""
    restart: float = 0.2
    """After a reflection: beginning again with the question. What remains is keeping an answer that was read off."""

    def __post_init__(self) -> None:
        for name, rate in asdict(self).items():
            if not 0 <= rate <= 1:
                raise ConfigError(f"habit {name!r} is a probability from 0 to 1, not {rate}")
        if self.go_on + self.restart > 1:
            raise ConfigError(f"habits go_on {self.go_on} and restart {self.restart} add up to more than 1")


Unfit = Literal["no_titles", "tags", "long_answer"]
"""Why a question cannot be demonstrated; in words in `UNFIT`."""

UNFIT: Mapping[Unfit, str] = {
    "no_titles": "without supporting titles",
    "tags": "with tags of the protocol in them",
    "long_answer": "whose answers are too long for a turn",
}


def check_plan(plan: Plan) -> None:
    """`ConfigError` where a plan is none that the scripted searcher can play."""
    for name, value, needed in (("lookup", plan.lookup, False), ("query", plan.query, "search")):
        if value != needed:
            raise ConfigError(
                f"plan.{name} is {value!r}; demonstrations are of turns that search with search tags, so leave it at "
                f"{needed!r}"
            )
    _Room.of(plan)


def unfit(question: Question, plan: Plan) -> Unfit | None:
    """Why a question cannot be demonstrated under a plan that can be played; None if it can."""
    if not question.supporting_titles:
        return "no_titles"
    texts = (question.question, *question.golden_answers, *question.supporting_titles)
    if any(map(_has_tag, texts)):
        return "tags"
    if not _writable_golds(question, _Room.of(plan)):
        return "long_answer"
    return None


# --- Words ---------------------------------------------------------------------------------------------------------

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

_ANSWERS = (
    "So the answer is {answer}.",
    "That answers the question: {answer}.",
    "This gives {answer}.",
    "Therefore it is {answer}.",
)
_GUESSES = (
    "I could not find it, so {answer} is a guess.",
    "I am not sure; my guess is {answer}.",
    "No passage settles it. I guess {answer}.",
    "What is asked is still open; {answer} is my best guess.",
)
_EARLY = ("I stop here and say {answer}.", "That may be enough: {answer}.", "I leave it at that and guess {answer}.")
_UNREAD = ("I cannot look anything up, so I guess {answer}.", "Without a search, {answer} is only a guess.")

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

_STOP_WORD = re.compile(
    "an?|also|although|and|are|as|at|be|been|both|but|by|did|do|does|for|from|had|has|have|he|her|his|how|in|is|its?|of|on|one|or|she|"
    "that|the|their|them|they|this|to|two|was|were|what|when|where|which|while|who|whom|whose|why|will|with",
    re.IGNORECASE,
)
_CAPITALISED = r"[^\W\d_a-z](?:\.|[\w'\u2019&-]*)"
_NAME = re.compile(rf"{_CAPITALISED}(?: (?:(?:of|de|van|von) )?{_CAPITALISED})*")
_TAG = re.compile(r"</?(?:think|search|answer|information)>", re.IGNORECASE)
_GENITIVE = re.compile(r"['\u2019]s\b")
_QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")
_VERB = re.compile("is|are|was|were")
_YEAR = re.compile(r"\b[12]\d{3}\b")
_NUMBER = re.compile(r"\b\d[\d,]*(?:\.\d+)?\b")
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = re.compile(rf"\b(?:\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}}|{_MONTH} \d{{4}}|[12]\d{{3}})\b")
_ASKS_COUNT = re.compile(r"\b(?:how (?:many|much|old|tall|long|far)|population|number of)\b", re.IGNORECASE)
_ASKS_TIME = re.compile(r"\b(?:when|year|date|what day)\b", re.IGNORECASE)
_COMPARES_TIMES = re.compile(
    r"\b(?:first|earlier|later|older|oldest|younger|youngest|born|died|founded|formed|recent|recently|longer)\b",
    re.IGNORECASE,
)


def _has_tag(text: str) -> bool:
    return _TAG.search(text) is not None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _searchable(text: str) -> str:
    """A text in which phrases are looked for: as the metrics normalise it, and once more without the 's of genitives.

    >>> _searchable("The Café's owner")
    ' cafés owner | café owner '
    """
    return f" {normalize(text)} | {normalize(_GENITIVE.sub(' ', text))} "


def _stands_in(phrase: str, searchable: str) -> bool:
    """Whether a phrase that is not empty stands as a run of words in a text made searchable."""
    plain = normalize(phrase)
    return bool(plain) and f" {plain} " in searchable


def _same(text: str, other: str) -> bool:
    return normalize(text) == normalize(other)


def _bare(title: str) -> str:
    """A title without what tells it from others of its name.

    >>> _bare("Mark King (musician)")
    'Mark King'
    """
    return _QUALIFIER.sub("", title) or title


def _size(word: str) -> int:
    """A word's weight: one of many letters, or in another script, takes the tokens of several."""
    return max(1, -(-len(word.encode()) // 12))


def _clip(text: str, most: int) -> str:
    """The first words of a text, as many as fit; at least one."""
    kept: list[str] = []
    for word in text.split():
        most -= _size(word)
        if most < 0 and kept:
            break
        kept.append(word)
    return " ".join(kept)


def _in_thought(name: str) -> str:
    """A name or an answer, short enough to leave room in a thought and without the full stop of a sentence."""
    return _clip(name, 7).rstrip(".")


def _length(text: str) -> int:
    return sum(map(_size, text.split()))


def _key_words(text: str) -> list[str]:
    """The words of a question that say what it is about, in order."""
    words = (word.strip("\"'.,:;?!()") for word in text.split())
    return [word for word in words if word and not _STOP_WORD.fullmatch(word)]


def _names(text: str) -> list[str]:
    """Runs of capitalised words, each once: no months, and no lone words that only open a sentence.

    >>> _names("But Ada Lovelace met A. J. York, Duke of York, in May. Engines by Babbage's hand remain.")
    ['Ada Lovelace', 'A. J. York', 'Duke of York', 'Babbage']
    """
    found: list[str] = []
    for sentence in _sentences(text):
        for match in _NAME.finditer(sentence):
            words = _GENITIVE.sub("", match.group()).split()
            while words and _STOP_WORD.fullmatch(words[0]):
                del words[0]
            name = " ".join(words)
            if len(words) > 1 or (match.start() > 1 and len(name) > 2 and not re.fullmatch(_MONTH, name)):
                found.append(name)
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Room:
    """Words that fit, two tokens a word: into a thought, into a query or an answer, and of a passage into view."""

    thought: int
    action: int
    passage: int

    @classmethod
    def of(cls, plan: Plan) -> _Room:
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


def _writable_golds(question: Question, room: _Room) -> list[str]:
    """Golden answers on one line each that fit into an action and are not empty once normalised."""
    golds = map(_one_line, question.golden_answers)
    return [gold for gold in golds if normalize(gold) and _length(gold) <= room.action]


# --- What was read -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """A passage, as far as the policy is sure to see it."""

    episode: int
    title: str
    text: str
    searchable: str

    @classmethod
    def of(cls, passage: Passage, episode: int, most_words: int) -> _Read:
        title, text = _one_line(passage.title), " ".join(passage.text.split()[:most_words])
        # A title with a tag is never cited; what stands under it was seen all the same.
        return cls(episode, "" if _has_tag(title) else title, text, _searchable(f"{title} {text}"))

    @property
    def name(self) -> str:
        return _bare(self.title)

    def quote(self, phrase: str, most: int) -> str:
        """The words around a phrase, within its sentence; empty where the text does not hold it."""
        words = self.text.split()
        sought = normalize(phrase).split()
        # Words that normalise to nothing (articles, dashes) are passed over, as in the comparison of answers.
        places = [place for place, word in enumerate(words) if normalize(word)]
        forms = [{normalize(words[place]), normalize(_GENITIVE.sub("", words[place]))} for place in places]
        for start in range(len(forms) - len(sought) + 1):
            end = start + len(sought)
            if sought and all(map(set.__contains__, forms[start:end], sought)):
                return _quotable(_around(words, places[start], places[end - 1], most))
        return ""

    def gist(self, key_words: frozenset[str], *, wants_year: bool, most: int) -> str:
        """The opening of the sentence that has most to do with a question, with its year where one is asked for."""

        def worth(sentence: str) -> int:
            shared = len(key_words & set(normalize(sentence).split()))
            return shared + 3 * (wants_year and _YEAR.search(sentence) is not None)

        words = max(_sentences(self.text), key=worth, default="").split()
        # Where no year is asked for, dates and other spellings between a name and its verb are passed over.
        sought = _YEAR.search if wants_year else _VERB.fullmatch
        place = next((place for place, word in enumerate(words) if sought(word)), 0)
        first = place if place >= (most if wants_year else 3) else 0
        return _quotable(_around(words, first, max(first, place) if wants_year else first, most)) if words else ""


def _around(words: Sequence[str], first: int, last: int, most: int) -> str:
    """The words from `first` to `last` with what stands around them, in their sentence and within a length."""
    room = most - sum(map(_size, words[first : last + 1]))
    start, end = first, last + 1
    while room > 0:
        before = start > 0 and not _ends(words, start) and _size(words[start - 1]) <= room
        # Two words before for each that follows: what is said of an answer stands before it more often.
        after = end < len(words) and not _ends(words, end) and _size(words[end]) <= room
        if before and (not after or first - start <= 2 * (end - last - 1)):
            start -= 1
            room -= _size(words[start])
        elif after:
            room -= _size(words[end])
            end += 1
        else:
            break
    return " ".join(words[start:end])


def _ends(words: Sequence[str], place: int) -> bool:
    """Whether a sentence ends before a place. Short words with a full stop (`St.`, `J.`, `U.S.`) are abbreviations."""
    before, after = words[place - 1], words[place]
    return before[-1] in ".!?" and len(before) > 3 and "." not in before[:-1] and not after[0].islower()


def _sentences(text: str) -> list[str]:
    words = text.split()
    starts = [0, *(place for place in range(1, len(words)) if _ends(words, place)), len(words)]
    return [" ".join(words[start:end]) for start, end in pairwise(starts)]


def _quotable(text: str) -> str:
    """A text that can stand between quotation marks in a thought; empty where it cannot."""
    bare = text.replace('"', "").strip(" ,;:.(-\u2013")
    return "" if "<" in bare or ">" in bare else bare


@dataclass
class _Notes:
    """What a searcher has in view: the passages that were read, and the queries that were tried."""

    titles: tuple[str, ...]
    """The supporting titles, each once."""
    reads: list[_Read] = field(default_factory=list)
    tried: dict[str, int] = field(default_factory=dict)
    """Normalised queries, each with its episode."""

    def take(self, reads: Sequence[_Read]) -> list[_Read]:
        """Keep what was read; those that were not known are returned."""
        known = {read.searchable for read in self.reads}
        new = [read for read in reads if read.searchable not in known]
        self.reads += new
        return new

    def forget(self, before: int) -> None:
        """Drop what stands in episodes before this one."""
        self.reads = [read for read in self.reads if read.episode >= before]
        self.tried = {query: episode for query, episode in self.tried.items() if episode >= before}

    @property
    def found(self) -> list[str]:
        """Supporting titles of which a passage was read, in the order of reading."""
        read = [normalize(read.title) for read in self.reads]
        places = {title: read.index(normalize(title)) for title in self.titles if normalize(title) in read}
        return sorted(places, key=lambda title: places[title])

    @property
    def missing(self) -> list[str]:
        """The other supporting titles."""
        found = self.found
        return [title for title in self.titles if title not in found]

    def is_supporting(self, read: _Read) -> bool:
        return any(_same(read.title, title) for title in self.titles)

    def evidence(self, gold: str) -> _Read | None:
        """The passage that shows a golden answer: one with a supporting title first, and of those the one read last.

        A few letters or digits stand in any text, so that under another title they show nothing.
        """
        holding = [read for read in reversed(self.reads) if _stands_in(gold, read.searchable)]
        supporting = [read for read in holding if self.is_supporting(read)]
        if not supporting:
            return holding[0] if holding and len(normalize(gold)) > 3 else None
        # A passage that says it shows more than one that merely has it for a title.
        return next((read for read in supporting if not _stands_in(gold, _searchable(read.title))), supporting[0])


# --- The searcher --------------------------------------------------------------------------------------------------

_Part = str | Callable[[int], str]
"""A sentence of a thought, or what makes one of at most so many words (empty where they are too few)."""


@dataclass(frozen=True)
class _Lead:
    """Something to search for, why, what it is called in a thought, and the passage that names it."""

    kind: str
    query: str
    name: str = ""
    source: _Read | None = None


@dataclass(frozen=True)
class _Verdict:
    """An answer that was given, how it came about, and the passages that it rests on."""

    answer: str
    kind: Literal["read", "guess", "early"]
    basis: tuple[_Read, ...] = ()


class GuidedSearcher:
    """A searcher that writes turns as a policy would, guided by the supporting titles, led astray by its habits.

    `next_turn()` opens an episode. A turn that searches is followed by `next_turn(passages)`; one that answers ends
    its episode, and the next `next_turn()` opens another with a reflection on what was found.

    >>> question = Question("1", "In which year was the director of Emma born?", ("1951",), "", ("Emma", "Ann Lee"))
    >>> searcher = GuidedSearcher(question, Plan(episodes=2), Random(2), SearchHabits(expert=1))
    >>> print(searcher.next_turn())
    <think> I search with the question itself. </think> <search> In which year was the director of Emma born? </search>
    >>> print(searcher.next_turn([Passage("0", "Emma", "Ann Lee directed Emma.")]))
    <think> On Emma I read: "Ann Lee directed Emma". That leads to Ann Lee. </think> <search> Ann Lee </search>
    >>> print(searcher.next_turn([Passage("1", "Ann Lee", "Ann Lee was born in 1951.")]))
    <think> On Ann Lee I read: "Ann Lee was born in 1951". This gives 1951. </think> <answer> 1951 </answer>
    """

    def __init__(self, question: Question, plan: Plan, rng: Random, habits: SearchHabits | None = None) -> None:
        assert unfit(question, plan) is None, f"question {question.id} cannot be demonstrated: {unfit(question, plan)}"
        self._room = _Room.of(plan)
        self._plan = plan
        self._rng = rng
        self._habits = habits or SearchHabits()
        self._text = _one_line(question.question)
        self._searchable = _searchable(self._text)
        self._golds = _writable_golds(question, self._room)
        self._notes = _Notes(tuple(dict.fromkeys(map(_one_line, question.supporting_titles))))
        self._named = [name for title in self._notes.titles if (name := _name_in(self._searchable, title))]
        self._options = ["yes", "no"] if is_yes_no(question) else self._named_options()
        self._key_words = frozenset(normalize(" ".join(_key_words(self._text))).split())
        self._expert = rng.random() < self._habits.expert
        self._episode = 0
        self._left = 0
        self._new: list[_Read] = []
        self._last: _Verdict | None = None

    def next_turn(self, passages: Sequence[Passage] | None = None) -> str:
        """The next turn's text. `passages` is what the last turn's search brought; None opens an episode."""
        if passages is not None:
            reads = [_Read.of(passage, self._episode, self._room.passage) for passage in passages]
            self._new = self._notes.take(reads)
            return self._after_search()
        self._episode += 1
        self._left = self._plan.searches
        self._new = []
        if self._plan.context == "last":
            self._notes.forget(self._episode - 1)
        if self._last is not None:
            return self._reflect(self._last)
        return self._search(self._first_lead()) if self._left else self._conclude()

    # -- decisions ----------------------------------------------------------------------------

    def _chance(self, rate: float) -> bool:
        """Whether a decision goes the way of its rate; it always does in an expert's demonstration."""
        return self._expert or self._rng.random() < rate

    def _after_search(self) -> str:
        lead = None if self._settled else self._next_lead()
        if not self._left or lead is None:
            return self._conclude()
        # Only with something in hand is it tempting to stop.
        if not self._notes.found or self._chance(self._habits.search_on):
            return self._search(lead, self._finding(lead))
        return self._conclude(early=True)

    def _reflect(self, last: _Verdict) -> str:
        """The first turn of an episode after the first: what was uncertain, then what is done about it."""
        lead = None if self._settled else self._next_lead()
        draw = self._rng.random()
        restarts = not self._expert and draw < self._habits.restart
        keeps = draw >= self._habits.restart + self._habits.go_on
        if self._expert or last.kind != "read":  # a guess is not kept while there is something to search for
            keeps = lead is None
        if not self._left:
            return self._keep(last) if keeps or self._expert else self._conclude(again=last)
        if restarts or (keeps and self._explores):
            lead = self._first_lead()
            self._notes.tried.clear()
            kind = "restart" if last.kind == "read" else "restart_guess"
            return self._search(lead, self._say_reflection(kind, last))
        if keeps:
            return self._keep(last)
        return self._search(lead or self._recheck_lead(last), self._say_reflection(self._fault(last), last))

    @property
    def _explores(self) -> bool:
        """Whether the prompt of this episode asks for another way and not for a better answer."""
        openings = self._plan.openings
        return openings[min(self._episode - 2, len(openings) - 1)] == "explore"

    @property
    def _gold(self) -> str | None:
        """The golden answer that can be told from what is in view, if any can."""
        if self._options:  # it stands in the question; which option it is takes passages on all of them
            return None if self._notes.missing else self._golds[0]
        return next((gold for gold in self._golds if self._notes.evidence(gold)), None)

    @property
    def _settled(self) -> bool:
        """Whether all is found and the answer can be told: nothing is left to search for."""
        return not self._notes.missing and self._gold is not None

    def _fault(self, last: _Verdict) -> str:
        """What was wrong with the last attempt, as far as can be seen without knowing the answer."""
        if last.kind == "read":
            return "doubt" if self._missing_name else "thin" if self._notes.missing else "recheck"
        if not self._missing_name:
            return "open"
        return "early" if last.kind == "early" else "lacking"

    def _named_options(self) -> list[str]:
        """The names in the question among which it asks to choose; none where it asks openly."""
        chosen = any(_same(gold, name) for gold in self._golds for name in self._named)
        return self._named if chosen and len(self._named) > 1 else []

    # -- what to search for -------------------------------------------------------------------

    def _first_lead(self) -> _Lead:
        """The question, a name in it, or (a bad start) a part of it; something that was not tried, if there is any."""
        if not self._chance(self._habits.right_query):
            return self._part()
        question = _Lead("question", _clip(self._text, self._room.action))
        named = [_Lead("start", name, name) for name in self._named]
        leads = [question, self._rng.choice(named)] if named else [question]
        return self._rng.choice([lead for lead in leads if self._is_new(lead)] or leads)

    def _part(self) -> _Lead:
        """A few words of the question that follow one another."""
        words = _key_words(self._text) or self._text.split()
        count = self._rng.randint(2, 3)
        start = self._rng.randrange(max(1, len(words) - count + 1))
        return _Lead("part", _clip(" ".join(words[start : start + count]), self._room.action))

    def _next_lead(self) -> _Lead | None:
        """What leads on, best first; now and then what does not. None where everything was tried."""
        lead = next(filter(self._is_new, self._leads()), None)
        if lead is None or self._chance(self._habits.right_query):
            return lead
        asides = [
            _Lead("aside", read.name, read.name, read)
            for read in self._new
            if read.title and not self._notes.is_supporting(read)
        ]
        return self._rng.choice([other for other in (*asides, self._part()) if self._is_new(other)] or [lead])

    def _is_new(self, lead: _Lead) -> bool:
        return normalize(lead.query) not in self._notes.tried and bool(normalize(lead.query))

    def _leads(self) -> Iterator[_Lead]:
        """Queries that lead on, from what a passage names to what has to be guessed."""
        missing = self._notes.missing
        for read in reversed(self._notes.reads):
            for title in missing:
                name = _name_in(read.searchable, title)
                # Where the question has the title in full, another thing of that name may be meant by a passage.
                if name and (name == title or not _stands_in(title, self._searchable)):
                    yield _Lead("mentioned", name, name, read)
        for title in missing:
            if name := _name_in(self._searchable, title):
                yield _Lead("named", name, name)
                yield _Lead("reworded", title)  # with what tells it from others of its name
        is_open = self._gold is None
        if is_open:
            for name in _names(self._text):
                # A lone word is seldom the name of what is sought, and what was found has been read.
                if " " in name and not any(_stands_in(name, _searchable(title)) for title in self._notes.found):
                    yield _Lead("named", _clip(name, self._room.action), name)
        for title in missing:
            # The answer itself is nothing that a searcher may guess in order to look it up.
            if not any(_stands_in(gold, _searchable(title)) for gold in self._golds):
                yield _Lead("hunch", title, _bare(title))
        if is_open:
            yield _Lead("reworded", _clip(" ".join(_key_words(self._text)), self._room.action))
            for title in reversed(self._notes.found):
                yield _Lead("detail", self._in_detail(_bare(title)), _bare(title))

    def _in_detail(self, name: str) -> str:
        """A query for what the question asks of a name."""
        known = _searchable(name)
        rest = [word for word in _key_words(self._text) if not _stands_in(word, known)]
        return _clip(" ".join([name, *rest]), self._room.action)

    def _recheck_lead(self, last: _Verdict) -> _Lead:
        basis = next((read for read in last.basis if read.title), None)
        return _Lead("recheck", self._in_detail(basis.name), basis.name) if basis else self._first_lead()

    # -- what to answer -----------------------------------------------------------------------

    def _conclude(self, *, early: bool = False, again: _Verdict | None = None) -> str:
        """Answer with what is in view. `again` is the last answer, where this is a second look without a search."""
        gold = self._gold
        opening: list[_Part] = [self._say_reflection(self._fault(again), again)] if again else []
        if gold is None:
            answer = self._guess()
            self._last = _Verdict(answer, "early" if early else "guess")
            says = _EARLY if early else _GUESSES if self._notes.reads else _UNREAD
        else:
            # What was read off before is read with care when it is checked.
            checks = self._last is not None and self._last.kind == "read"
            answer = gold if checks or self._chance(self._habits.right_read) else self._misreading(gold)
            self._last = _Verdict(answer, "read", self._basis(answer))
            says = _ANSWERS
        opening = opening or self._quotes(self._last) or [self._finding()]
        return self._write("answer", answer, [*opening, self._say(says, answer=answer)])

    def _basis(self, answer: str) -> tuple[_Read, ...]:
        """The passages that an answer rests on, at most two."""
        if not self._options:
            read = self._notes.evidence(answer)
            return (read,) if read else ()
        reads = [read for read in self._notes.reads if self._notes.is_supporting(read)]
        # One for each title; the later ones (the directors, not their films) are what is compared.
        return tuple({normalize(read.title): read for read in reversed(reads)}.values())[1::-1]

    def _guess(self) -> str:
        if self._options:
            return self._rng.choice(self._options)
        return self._rng.choice(self._candidates(self._notes.reads)[:5] or ["unknown"])

    def _misreading(self, gold: str) -> str:
        """Something else in the passages that have the answer; the answer where there is nothing else."""
        reads = [read for read in self._notes.reads if self._notes.is_supporting(read)]
        others = [other for other in self._options or self._candidates(reads) if not exact_match(other, self._golds)]
        return self._rng.choice(others[:5]) if others else gold

    def _candidates(self, reads: Sequence[_Read]) -> list[str]:
        """What might be the answer: dates, numbers or names, as the question asks; from what is most to the point on.

        Without passages they come from the question.
        """
        latest = list(reversed(reads))
        ordered = sorted(latest, key=lambda read: not self._notes.is_supporting(read))  # stable: else the last first
        texts = [read.text for read in ordered] or [self._text]
        asked = self._asked_for
        found = [candidate for text in texts for candidate in asked.findall(text)] if asked else []
        if asked is _DATE:
            found.sort(key=lambda date: " " not in date)  # a year alone is no date
        found += [read.name for read in ordered]
        found += [name for text in texts for name in _names(text)]
        fit = [name for name in dict.fromkeys(found) if "<" not in name and ">" not in name and normalize(name)]
        unasked = [name for name in fit if not _stands_in(name, self._searchable)]
        return [_clip(name, self._room.action) for name in (unasked or fit)]

    @property
    def _asked_for(self) -> re.Pattern[str] | None:
        """What an answer looks like, where that can be told from the question and is no name."""
        if _ASKS_TIME.search(self._text):
            return _YEAR if "year" in self._text else _DATE
        return _NUMBER if _ASKS_COUNT.search(self._text) else None

    # -- what to write ------------------------------------------------------------------------

    def _search(self, lead: _Lead, opening: _Part = "") -> str:
        self._left -= 1
        self._notes.tried[normalize(lead.query)] = self._episode
        return self._write("search", lead.query, [opening, self._say(_STEPS[lead.kind], name=lead.name)])

    def _keep(self, last: _Verdict) -> str:
        kind = "keep_guess" if last.kind != "read" else "keep_thin" if self._missing_name else "keep"
        return self._write("answer", last.answer, [*self._quotes(last), self._say_reflection(kind, last)])

    def _write(self, tag: Literal["search", "answer"], action: str, parts: Sequence[_Part]) -> str:
        """A turn: its thought, whose quotes share the room that the other sentences leave, and its action."""
        room, said = self._room.thought, list[str]()
        for part in parts:
            sentence = part if isinstance(part, str) else ""
            if _length(sentence) > room:  # the first is cut where it is too long, a later one is left out
                sentence = "" if any(said) else _clip(sentence, room)
            said.append(sentence)
            room -= _length(sentence)
        quotes = [(place, part) for place, part in enumerate(parts) if not isinstance(part, str)]
        for place, quote in quotes:
            said[place] = quote(room // len(quotes))
        return f"<think> {' '.join(filter(None, said))} </think> <{tag}> {action} </{tag}>"

    def _say(self, templates: Sequence[str], **fields: str) -> str:
        """One of some sentences, with its fields filled in."""
        return self._rng.choice(templates).format_map({name: _in_thought(text) for name, text in fields.items()})

    def _say_reflection(self, kind: str, last: _Verdict) -> str:
        names = [_in_thought(_bare(title)) for title in self._notes.found[-2:]]
        if names:
            read = f"I read about {' and '.join(dict.fromkeys(names))}"
        else:
            others = [_in_thought(read.name) for read in self._notes.reads if read.title]
            read = f"I read only about {others[-1]}" if others else "I read nothing"
        template = self._rng.choice(_REFLECTIONS[kind])
        return template.format(answer=_in_thought(last.answer), read=read, missing=_in_thought(self._missing_name))

    @property
    def _missing_name(self) -> str:
        """The name of something that was not found, as the question or a passage has it; empty where none has."""
        texts = [self._searchable, *(read.searchable for read in self._notes.reads)]
        names = (_name_in(text, title) for title in self._notes.missing for text in texts)
        return next(filter(None, names), "")

    def _finding(self, lead: _Lead | None = None) -> _Part:
        """What the last search brought, by the passage that names what comes next or is about what was sought."""
        if lead is not None and lead.source is not None and lead.kind == "mentioned":
            return self._quote(lead.source, lead.name)
        brought = next((read for read in self._new if read.title and self._notes.is_supporting(read)), None)
        if brought is not None:
            return self._quote(brought)
        if not self._notes.reads:
            return ""
        title = next((read.title for read in self._new if read.title), "")
        return self._say(_FINDINGS_NONE if title else _FINDINGS_NONE[:3], title=title)

    def _quotes(self, verdict: _Verdict) -> list[_Part]:
        """What the passages that an answer rests on say, of those that are in view."""
        phrase = "" if self._options else verdict.answer
        return [self._quote(read, phrase) for read in verdict.basis if read in self._notes.reads]

    def _quote(self, read: _Read, phrase: str = "") -> _Part:
        """A sentence with what a passage says of a phrase, or of the question; empty where there is no room for it."""
        template = self._rng.choice(_FINDINGS)
        title = _in_thought(read.title)

        def sentence(most: int) -> str:
            most = min(most - _length(template.format(title=title, quote="")), _QUOTE_WORDS)
            if most < _LEAST_QUOTE or not title:
                return ""
            quote = read.quote(phrase, most) or read.gist(self._key_words, wants_year=self._wants_year, most=most)
            return template.format(title=title, quote=quote) if quote else ""

        return sentence

    @property
    def _wants_year(self) -> bool:
        return _COMPARES_TIMES.search(self._text) is not None or _ASKS_TIME.search(self._text) is not None


def _name_in(searchable: str, title: str) -> str:
    """A title as it stands in a text, with or without what tells it from others; empty where it does not."""
    return next((name for name in (title, _bare(title)) if _stands_in(name, searchable)), "")


# --- Playing and counting ------------------------------------------------------------------------------------------


class _Play:
    """One demonstration while it is made."""

    def __init__(self, question: Question, plan: Plan, rng: Random, habits: SearchHabits | None) -> None:
        self._question = question
        self._plan = plan
        self._searcher = GuidedSearcher(question, plan, rng, habits)
        self._episodes: list[list[dict[str, Any]]] = [[]]

    def advance(self, passages: Sequence[Passage] | None = None) -> Search | None:
        """Write turns up to the next search, and return it; None at the end of the last episode."""
        if passages is not None:
            self._episodes[-1][-1]["passages"] = [asdict(passage) for passage in passages]
        while True:
            text = self._searcher.next_turn(passages)
            action, passages = parse_action(text), None
            self._episodes[-1].append({"text": text, "passages": None})
            if action.kind == "search":
                assert len(self._episodes[-1]) <= self._plan.searches, "more searches than the plan has"
                return Search(action.text, self._plan.top_k)
            if len(self._episodes) == self._plan.episodes:
                return None
            self._episodes.append([])

    def record(self) -> dict[str, Any]:
        return {"question": asdict(self._question), "episodes": [{"turns": turns} for turns in self._episodes]}


def demonstrations(
    questions: Sequence[Question],
    retriever: Retriever,
    plan: Plan,
    *,
    habits: SearchHabits | None = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """One demonstration a question, in their order, as plain JSON data that `load_demonstrations` reads.

    Each is `{"question": ..., "episodes": [{"turns": [{"text": ..., "passages": [...] or None}, ...]}, ...]}`. What
    the scripted searcher decides depends on the seed, the question and what the retriever brings, and on no other
    question. Every question must be fit (`unfit`); `ConfigError` for a plan that cannot be played.
    """
    check_plan(plan)
    for start in range(0, len(questions), QUESTIONS_AT_ONCE):
        plays = [
            _Play(question, plan, Random(f"{seed} {question.id} {question.question}"), habits)
            for question in questions[start : start + QUESTIONS_AT_ONCE]
        ]
        searching = [(play, search) for play in plays if (search := play.advance())]
        while searching:
            found = retriever.search([search for _, search in searching])
            searching = [
                (play, search)
                for (play, _), passages in zip(searching, found, strict=True)
                if (search := play.advance(passages))
            ]
        yield from (play.record() for play in plays)


@dataclass
class DemoReport:
    """What demonstrations hold, counted one by one."""

    demonstrations: int = 0
    episodes: int = 0
    searches: int = 0
    turns: int = 0
    words: int = 0
    """Words of turns, tags included; what is imitated."""
    passage_words: int = 0
    complete: int = 0
    """Demonstrations in which a passage of every supporting title was found."""
    right: list[int] = field(default_factory=list)
    """Demonstrations whose answer is right, for each episode."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one demonstration, as `demonstrations` makes it."""
        episodes = [episode["turns"] for episode in record["episodes"]]
        turns = [turn for episode in episodes for turn in episode]
        passages = [passage for turn in turns for passage in turn["passages"] or ()]
        titles = {normalize(passage["title"]) for passage in passages}
        self.demonstrations += 1
        self.episodes += len(episodes)
        self.searches += sum(turn["passages"] is not None for turn in turns)
        self.turns += len(turns)
        self.words += sum(len(turn["text"].split()) for turn in turns)
        self.passage_words += sum(len(f"{passage['title']} {passage['text']}".split()) for passage in passages)
        self.complete += all(normalize(title) in titles for title in record["question"]["supporting_titles"])
        self.right += [0] * (len(episodes) - len(self.right))
        for number, episode in enumerate(episodes):
            answer = parse_action(episode[-1]["text"]).text
            self.right[number] += int(exact_match(answer, record["question"]["golden_answers"]))

    def as_dict(self) -> dict[str, Any]:
        """Means and shares: searches an episode, words a turn, and of demonstrations those right in each episode."""
        return {
            "demonstrations": self.demonstrations,
            "searches_per_episode": _ratio(self.searches, self.episodes),
            "right": [_ratio(count, self.demonstrations) for count in self.right],
            "all_titles_found": _ratio(self.complete, self.demonstrations),
            "words_per_turn": _ratio(self.words, self.turns),
            "share_of_words_written": _ratio(self.words, self.words + self.passage_words),
        }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
