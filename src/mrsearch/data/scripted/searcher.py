"""The scripted searcher: how it decides what to search for and what to answer.

It plays a question with supporting titles as a policy would. The titles tell
it what to look for, as a good guess would; what it says of passages stands in
them, and a golden answer is given only where one stands in what was read. It
knows nothing of models, tokens, retrievers or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Literal

from mrsearch.core.plan import Plan
from mrsearch.core.rewards import exact_match, normalize
from mrsearch.core.types import Passage, Question
from mrsearch.data.hits import is_yes_no
from mrsearch.data.scripted.reading import (
    Notes,
    Read,
    bare_title,
    clip,
    facts,
    has_tag,
    key_words,
    length,
    make_searchable,
    names_in,
    one_line,
    same,
    stands_in,
    title_in,
)
from mrsearch.data.scripted.wording import Part, Room, Writer
from mrsearch.errors import ConfigError


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
    Room.of(plan)


def unfit(question: Question, plan: Plan) -> Unfit | None:
    """Why a question cannot be demonstrated under a plan that can be played; None if it can."""
    if not question.supporting_titles:
        return "no_titles"
    texts = (question.question, *question.golden_answers, *question.supporting_titles)
    if any(map(has_tag, texts)):
        return "tags"
    if not _writable_golds(question, Room.of(plan)):
        return "long_answer"
    return None


def _writable_golds(question: Question, room: Room) -> list[str]:
    """Golden answers on one line each that fit into an action and are not empty once normalised."""
    golds = map(one_line, question.golden_answers)
    return [gold for gold in golds if normalize(gold) and length(gold) <= room.action]


@dataclass(frozen=True)
class Lead:
    """Something to search for, why, what it is called in a thought, and the passage that names it."""

    kind: str
    query: str
    name: str = ""
    source: Read | None = None


@dataclass(frozen=True)
class Verdict:
    """An answer that was given, how it came about, and the passages that it rests on."""

    answer: str
    kind: Literal["read", "guess", "early"]
    basis: tuple[Read, ...] = ()


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
        self._room = Room.of(plan)
        self._plan = plan
        self._rng = rng
        self._habits = habits or SearchHabits()
        self._text = one_line(question.question)
        self._writer = Writer(self._text, self._room, rng)
        self._searchable = make_searchable(self._text)
        self._golds = _writable_golds(question, self._room)
        self._notes = Notes(tuple(dict.fromkeys(map(one_line, question.supporting_titles))))
        self._named = [name for title in self._notes.titles if (name := title_in(self._searchable, title))]
        self._options = ["yes", "no"] if is_yes_no(question) else self._named_options()
        self._expert = rng.random() < self._habits.expert
        self._episode = 0
        self._left = 0
        self._new: list[Read] = []
        self._last: Verdict | None = None

    def next_turn(self, passages: Sequence[Passage] | None = None) -> str:
        """The next turn's text. `passages` is what the last turn's search brought; None opens an episode."""
        if passages is not None:
            reads = [Read.of(passage, self._episode, self._room.passage) for passage in passages]
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

    def _reflect(self, last: Verdict) -> str:
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
            return self._search(lead, self._reflection(kind, last))
        if keeps:
            return self._keep(last)
        return self._search(lead or self._recheck_lead(last), self._reflection(self._fault(last), last))

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

    def _fault(self, last: Verdict) -> str:
        """What was wrong with the last attempt, as far as can be seen without knowing the answer."""
        if last.kind == "read":
            return "doubt" if self._missing_name else "thin" if self._notes.missing else "recheck"
        if not self._missing_name:
            return "open"
        return "early" if last.kind == "early" else "lacking"

    def _named_options(self) -> list[str]:
        """The names in the question among which it asks to choose; none where it asks openly."""
        chosen = any(same(gold, name) for gold in self._golds for name in self._named)
        return self._named if chosen and len(self._named) > 1 else []

    # -- what to search for -------------------------------------------------------------------

    def _first_lead(self) -> Lead:
        """The question, a name in it, or (a bad start) a part of it; something that was not tried, if there is any."""
        if not self._chance(self._habits.right_query):
            return self._part()
        question = Lead("question", clip(self._text, self._room.action))
        named = [Lead("start", name, name) for name in self._named]
        leads = [question, self._rng.choice(named)] if named else [question]
        return self._rng.choice([lead for lead in leads if self._is_new(lead)] or leads)

    def _part(self) -> Lead:
        """A few words of the question that follow one another."""
        words = key_words(self._text) or self._text.split()
        count = self._rng.randint(2, 3)
        start = self._rng.randrange(max(1, len(words) - count + 1))
        return Lead("part", clip(" ".join(words[start : start + count]), self._room.action))

    def _next_lead(self) -> Lead | None:
        """What leads on, best first; now and then what does not. None where everything was tried."""
        lead = next(filter(self._is_new, self._leads()), None)
        if lead is None or self._chance(self._habits.right_query):
            return lead
        asides = [
            Lead("aside", read.name, read.name)
            for read in self._new
            if read.title and not self._notes.is_supporting(read)
        ]
        return self._rng.choice([other for other in (*asides, self._part()) if self._is_new(other)] or [lead])

    def _is_new(self, lead: Lead) -> bool:
        return normalize(lead.query) not in self._notes.tried and bool(normalize(lead.query))

    def _leads(self) -> Iterator[Lead]:
        """Queries that lead on, from what a passage names to what has to be guessed."""
        missing = self._notes.missing
        for read in reversed(self._notes.reads):
            for title in missing:
                name = title_in(read.searchable, title)
                # Where the question has the title in full, another thing of that name may be meant by a passage.
                if name and (name == title or not stands_in(title, self._searchable)):
                    yield Lead("mentioned", name, name, read)
        for title in missing:
            if name := title_in(self._searchable, title):
                yield Lead("named", name, name)
                yield Lead("reworded", title)  # with what tells it from others of its name
        is_open = self._gold is None
        if is_open:
            for name in names_in(self._text):
                # A lone word is seldom the name of what is sought, and what was found has been read.
                if " " in name and not any(stands_in(name, make_searchable(title)) for title in self._notes.found):
                    yield Lead("named", clip(name, self._room.action), name)
        for title in missing:
            # The answer itself is nothing that a searcher may guess in order to look it up.
            if not any(stands_in(gold, make_searchable(title)) for gold in self._golds):
                yield Lead("hunch", title, bare_title(title))
        if is_open:
            yield Lead("reworded", clip(" ".join(key_words(self._text)), self._room.action))
            for title in reversed(self._notes.found):
                yield Lead("detail", self._in_detail(bare_title(title)), bare_title(title))

    def _in_detail(self, name: str) -> str:
        """A query for what the question asks of a name."""
        known = make_searchable(name)
        rest = [word for word in key_words(self._text) if not stands_in(word, known)]
        return clip(" ".join([name, *rest]), self._room.action)

    def _recheck_lead(self, last: Verdict) -> Lead:
        basis = next((read for read in last.basis if read.title), None)
        return Lead("recheck", self._in_detail(basis.name), basis.name) if basis else self._first_lead()

    # -- what to answer -----------------------------------------------------------------------

    def _conclude(self, *, early: bool = False, again: Verdict | None = None) -> str:
        """Answer with what is in view. `again` is the last answer, where this is a second look without a search."""
        gold = self._gold
        opening: list[Part] = [self._reflection(self._fault(again), again)] if again else []
        if gold is None:
            verdict = Verdict(self._guess(), "early" if early else "guess")
        else:
            # What was read off before is read with care when it is checked.
            checks = self._last is not None and self._last.kind == "read"
            answer = gold if checks or self._chance(self._habits.right_read) else self._misreading(gold)
            verdict = Verdict(answer, "read", self._basis(answer))
        self._last = verdict
        opening = opening or self._quotes(verdict) or [self._finding()]
        kind = verdict.kind if self._notes.reads else "unread"
        return self._writer.turn("answer", verdict.answer, [*opening, self._writer.conclusion(kind, verdict.answer)])

    def _basis(self, answer: str) -> tuple[Read, ...]:
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

    def _candidates(self, reads: Sequence[Read]) -> list[str]:
        """What might be the answer: dates, numbers or names, as the question asks; from what is most to the point on.

        Without passages they come from the question.
        """
        latest = list(reversed(reads))
        ordered = sorted(latest, key=lambda read: not self._notes.is_supporting(read))  # stable: else the last first
        texts = [read.text for read in ordered] or [self._text]
        found = facts(self._text, texts)
        found += [read.name for read in ordered]
        found += [name for text in texts for name in names_in(text)]
        fit = [name for name in dict.fromkeys(found) if "<" not in name and ">" not in name and normalize(name)]
        unasked = [name for name in fit if not stands_in(name, self._searchable)]
        return [clip(name, self._room.action) for name in (unasked or fit)]

    # -- what to write ------------------------------------------------------------------------

    def _search(self, lead: Lead, opening: Part = "") -> str:
        self._left -= 1
        self._notes.tried[normalize(lead.query)] = self._episode
        return self._writer.turn("search", lead.query, [opening, self._writer.step(lead.kind, lead.name)])

    def _keep(self, last: Verdict) -> str:
        kind = "keep_guess" if last.kind != "read" else "keep_thin" if self._missing_name else "keep"
        return self._writer.turn("answer", last.answer, [*self._quotes(last), self._reflection(kind, last)])

    def _reflection(self, kind: str, last: Verdict) -> str:
        return self._writer.reflection(kind, last.answer, self._notes, self._missing_name)

    @property
    def _missing_name(self) -> str:
        """The name of something that was not found, as the question or a passage has it; empty where none has."""
        texts = [self._searchable, *(read.searchable for read in self._notes.reads)]
        names = (title_in(text, title) for title in self._notes.missing for text in texts)
        return next(filter(None, names), "")

    def _finding(self, lead: Lead | None = None) -> Part:
        """What the last search brought, by the passage that names what comes next or is about what was sought."""
        if lead is not None and lead.source is not None:
            return self._writer.quote(lead.source, lead.name)
        brought = next((read for read in self._new if read.title and self._notes.is_supporting(read)), None)
        if brought is not None:
            return self._writer.quote(brought)
        if not self._notes.reads:
            return ""
        return self._writer.of_no_use(next((read.title for read in self._new if read.title), ""))

    def _quotes(self, verdict: Verdict) -> list[Part]:
        """What the passages that an answer rests on say, of those that are in view."""
        phrase = "" if self._options else verdict.answer
        return [self._writer.quote(read, phrase) for read in verdict.basis if read in self._notes.reads]
