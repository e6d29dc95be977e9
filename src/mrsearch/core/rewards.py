"""Scores of an answer against its golden answers: exact match, token F1, sub-exact match.

The rules are those of SQuAD as Search-R1 uses them, on spellings that Unicode
and typography make one. Knows nothing of episodes, turns or tags: an answer
comes in as the text that was parsed, or None where none was given.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

Reward = Callable[[str | None, Sequence[str]], float]
"""(answer, golden answers) -> a score in [0, 1], the best over the golden answers."""


def normalize(text: str) -> str:
    r"""A text as the metrics compare it: folded, without punctuation and articles, words apart by one space.

    >>> normalize("The \u201cCafé Bar\u201d,\u00a0 Paris")
    'café bar paris'
    """
    return _words_of(_without_articles(_without_punctuation(_fold(text))))


def exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """1 if the answer is one of the golden answers, else 0.

    >>> exact_match("the Beatles!", ["Beatles", "The Fab Four"])
    1.0
    """
    return _best(_equal, answer, golds)


def token_f1(answer: str | None, golds: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, counted with repetition.

    >>> token_f1("Barack Hussein Obama", ["Barack Obama"])
    0.8
    """
    return _best(_overlap, answer, golds)


def sub_exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """1 if a golden answer stands somewhere in the answer, else 0. Rewards long answers: a metric, not a reward.

    >>> sub_exact_match("It was Ada Lovelace.", ["Ada Lovelace"])
    1.0
    """
    return _best(_contained, answer, golds)


REWARDS: dict[str, Reward] = {"em": exact_match, "f1": token_f1, "sub_em": sub_exact_match}
"""The rewards by the name that a config gives them."""


# -- How one answer and one golden answer are compared ------------------------------------------------------------

_Form = Literal["plain", "with_articles", "raw"]
_FORMS: Mapping[_Form, Callable[[str], str]] = {
    "plain": normalize,
    "with_articles": lambda text: _words_of(_without_punctuation(_fold(text))),
    "raw": lambda text: _words_of(_fold(text)),
}
"""From the usual form to the one that removes least. The first that leaves something of the golden answer is used for
both sides: the grade "A" is nothing without its article, and the band "!!!" nothing without its punctuation."""


def _best(compare: Callable[[str, str, _Form], float], answer: str | None, golds: Sequence[str]) -> float:
    if answer is None:
        return 0.0
    if isinstance(golds, str):  # a lone string is a sequence too, of letters, and each of them would be a golden answer
        golds = [golds]
    return max((_compare(compare, answer, gold) for gold in golds), default=0.0)


def _compare(compare: Callable[[str, str, _Form], float], answer: str, gold: str) -> float:
    for form, read in _FORMS.items():
        read_gold = read(gold)
        if read_gold:
            read_answer = read(answer)
            return compare(read_answer, read_gold, form) if read_answer else 0.0
    return 0.0


def _equal(answer: str, gold: str, form: _Form) -> float:
    return float(answer == gold)


def _overlap(answer: str, gold: str, form: _Form) -> float:
    answer_words, gold_words = answer.split(), gold.split()
    shared = (Counter(answer_words) & Counter(gold_words)).total()
    return 2 * shared / (len(answer_words) + len(gold_words))


def _contained(answer: str, gold: str, form: _Form) -> float:
    if form == "plain":
        return float(gold in answer)
    # As letters, "a" stands in nearly every answer ("the answer is b"), so these few golds must be whole words.
    return float(f" {gold} " in f" {answer} ")


# -- Spelling -----------------------------------------------------------------------------------------------------

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _words_of(text: str) -> str:
    # Composed once more: what was removed may have stood between a letter and its accent.
    return " ".join(unicodedata.normalize("NFC", text).split())


def _without_punctuation(text: str) -> str:
    return text.translate(_NO_PUNCTUATION)


def _without_articles(text: str) -> str:
    def blank(article: re.Match[str]) -> str:
        # A combining mark is no word character to `re`, so a letter whose accent has no composed form looks like a
        # word of its own.
        around = text[max(article.start() - 1, 0) : article.start()] + text[article.end() : article.end() + 1]
        return article.group() if any(unicodedata.category(mark).startswith("M") for mark in around) else " "

    return _ARTICLE.sub(blank, text)


def _fold(text: str) -> str:
    """One spelling for all that Unicode or typography make equivalent; accents stay, since they make other letters.

    This is Unicode's NFKC case folding, which also drops what is invisible
    (soft hyphen, zero-width space, …), with typographic signs put as ASCII.
    """
    # Signs first, and composed: NFKC would turn an acute accent used as an apostrophe into a space and a mark.
    text = unicodedata.normalize("NFC", text).translate(_TWINS)
    text = unicodedata.normalize("NFD", text).casefold()
    for _ in range(2):  # a folded letter may have to be composed, and a composed one folded
        text = unicodedata.normalize("NFKC", text).translate(_TWINS).casefold()
    return unicodedata.normalize("NFKC", text)


_TWIN_SIGNS = {
    # acute, modifier primes and apostrophes, Greek and Armenian and Hebrew ones; primes, quotation marks, ornaments
    "'": "\u00b4\u02b9\u02bb\u02bc\u02bd\u02ca\u1fbd\u1fbf\u055a\u05f3"
    "\u2032\u2035\u2018\u2019\u201a\u201b\u2039\u203a\u275b\u275c",
    # double primes, ditto mark, low quotation mark, ornaments, Hebrew gershayim, double acute
    '"': "\u2033\u2034\u3003\u201e\u275d\u275e\u05f4\u02dd",
    "-": "\u2212\u2043\u02d7",  # minus, hyphen bullet, modifier minus; the dashes proper are a category of their own
    "/": "\u2044\u2215",  # fraction slash, as in one half put into one sign; division slash
    "\\": "\u2216",  # set minus
    "*": "\u2217\u204e",  # asterisk operator, low asterisk
    "~": "\u223c\u02dc\u2053",  # tilde operator, small tilde, swung dash
    "|": "\u2223",  # divides
    ":": "\u2236\u05c3",  # ratio, Hebrew end of verse
    ".": "\u3002\u0964\u06d4",  # full stops: ideographic, Devanagari, Urdu
    ",": "\u3001\u060c\u066b\u066c",  # commas: ideographic, Arabic; Arabic decimal and thousands separators
    ";": "\u061b",  # Arabic
    "?": "\u00bf\u061f",  # inverted, Arabic
    "!": "\u00a1",  # inverted
    "%": "\u066a",  # Arabic
    "...": "\u22ef",  # midline ellipsis; the usual one is put as three dots by NFKC
}
"""Signs that Unicode keeps apart from the ASCII sign whose work they do, beyond the categories in `_Twins`."""

_TWIN_CATEGORIES = {"Pd": "-", "Pi": '"', "Pf": '"', "Ps": "(", "Pe": ")", "Pc": "_"}

_INVISIBLE = frozenset(
    code
    for first, last in (
        *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
        *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF)),
        *((0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0100, 0xE01EF)),
    )
    for code in range(first, last + 1)
)
"""Unicode's default-ignorable code points, less the tag letters, in which alone the flags of some countries differ."""


class _Twins(dict[int, str]):
    """For `str.translate`: each character to the ASCII sign that does its work, or to nothing if it is invisible.

    Filled as characters are met: a table of all of Unicode would slow the import.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        twin = character
        if code in _INVISIBLE:
            twin = ""
        elif code > 127:
            twin = _TWIN_CATEGORIES.get(unicodedata.category(character), character)
        self[code] = twin
        return twin


_TWINS = _Twins((ord(sign), ascii_sign) for ascii_sign, signs in _TWIN_SIGNS.items() for sign in signs)
