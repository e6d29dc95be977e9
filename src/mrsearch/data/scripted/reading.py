"""What a scripted searcher can tell from texts: words and names, what to quote, and notes on what was read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mrsearch.core.rewards import normalize
from mrsearch.core.types import Passage

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


def has_tag(text: str) -> bool:
    return _TAG.search(text) is not None


def one_line(text: str) -> str:
    return " ".join(text.split())


def make_searchable(text: str) -> str:
    """A text in which phrases are looked for: as the metrics normalise it, and once more without the 's of genitives.

    >>> make_searchable("The Café's owner")
    ' cafés owner | café owner '
    """
    return f" {normalize(text)} | {normalize(_GENITIVE.sub(' ', text))} "


def stands_in(phrase: str, searchable: str) -> bool:
    """Whether a phrase that is not empty stands as a run of words in a text made searchable."""
    plain = normalize(phrase)
    return bool(plain) and f" {plain} " in searchable


def same(text: str, other: str) -> bool:
    return normalize(text) == normalize(other)


def bare_title(title: str) -> str:
    """A title without what tells it from others of its name.

    >>> bare_title("Mark King (musician)")
    'Mark King'
    """
    return _QUALIFIER.sub("", title) or title


def _size(word: str) -> int:
    """A word's weight: one of many letters, or in another script, takes the tokens of several."""
    return max(1, -(-len(word.encode()) // 12))


def clip(text: str, most: int) -> str:
    """The first words of a text, as many as fit; at least one."""
    kept: list[str] = []
    for word in text.split():
        most -= _size(word)
        if most < 0 and kept:
            break
        kept.append(word)
    return " ".join(kept)


def length(text: str) -> int:
    return sum(map(_size, text.split()))


def key_words(text: str) -> list[str]:
    """The words of a question that say what it is about, in order."""
    words = (word.strip("\"'.,:;?!()") for word in text.split())
    return [word for word in words if word and not _STOP_WORD.fullmatch(word)]


def names_in(text: str) -> list[str]:
    """Runs of capitalised words, each once: no months, and no lone words that only open a sentence.

    >>> names_in("But Ada Lovelace met A. J. York, Duke of York, in May. Engines by Babbage's hand remain.")
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


def title_in(searchable: str, title: str) -> str:
    """A title as it stands in a text, with or without what tells it from others; empty where it does not."""
    return next((name for name in (title, bare_title(title)) if stands_in(name, searchable)), "")


def facts(question: str, texts: Sequence[str]) -> list[str]:
    """The dates or numbers in texts, where it can be told that a question asks for one; whole dates first.

    >>> facts("When was it built?", ["Begun in 1990.", "Opened on 3 May 1994."])
    ['3 May 1994', '1990']
    """
    if _ASKS_TIME.search(question):
        pattern = _YEAR if "year" in question else _DATE
    elif _ASKS_COUNT.search(question):
        pattern = _NUMBER
    else:
        return []
    found = [fact for text in texts for fact in pattern.findall(text)]
    return sorted(found, key=lambda fact: " " not in fact)  # a year alone is no date


def about_years(question: str) -> bool:
    """Whether what is said of a year has to do with a question."""
    return _COMPARES_TIMES.search(question) is not None or _ASKS_TIME.search(question) is not None


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
    plain = text.replace('"', "").strip(" ,;:.(-\u2013")
    return "" if "<" in plain or ">" in plain else plain


@dataclass(frozen=True)
class Read:
    """A passage, as far as the policy is sure to see it."""

    episode: int
    title: str
    text: str
    searchable: str

    @classmethod
    def of(cls, passage: Passage, episode: int, most_words: int) -> Read:
        title, text = one_line(passage.title), " ".join(passage.text.split()[:most_words])
        # A title with a tag is never cited; what stands under it was seen all the same.
        return cls(episode, "" if has_tag(title) else title, text, make_searchable(f"{title} {text}"))

    @property
    def name(self) -> str:
        return bare_title(self.title)

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


@dataclass
class Notes:
    """What a searcher has in view: the passages that were read, and the queries that were tried."""

    titles: tuple[str, ...]
    """The supporting titles, each once."""
    reads: list[Read] = field(default_factory=list)
    tried: dict[str, int] = field(default_factory=dict)
    """Normalised queries, each with its episode."""

    def take(self, reads: Sequence[Read]) -> list[Read]:
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

    def is_supporting(self, read: Read) -> bool:
        return any(same(read.title, title) for title in self.titles)

    def evidence(self, gold: str) -> Read | None:
        """The passage that shows a golden answer: one with a supporting title first, and of those the one read last.

        A few letters or digits stand in any text, so that under another title they show nothing.
        """
        holding = [read for read in reversed(self.reads) if stands_in(gold, read.searchable)]
        supporting = [read for read in holding if self.is_supporting(read)]
        if not supporting:
            return holding[0] if holding and len(normalize(gold)) > 3 else None
        # A passage that says it shows more than one that merely has it for a title.
        return next((read for read in supporting if not stands_in(gold, make_searchable(read.title))), supporting[0])
