"""Our scorer against a second one: SQuAD's rules, as Search-R1 has them, written down here from their description.

Where those rules are sound, the two agree on every pair of an answer and its
golden answers; where they are not, ours gives the value that is right. The pairs
are all golden answers of the question sets, and what answers make of them.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from mrsearch.core.rewards import REWARDS

DATA = Path(__file__).parents[2].parent / "shared" / "data"

Scores = tuple[float, float, float]
"""EM, F1 and sub-EM."""


# -- The second scorer --------------------------------------------------------------------------------------------

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@cache
def squad_words(text: str) -> tuple[str, ...]:
    """Lower case, no ASCII punctuation, no articles, cut at white space."""
    return tuple(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(NO_PUNCTUATION)).split())


def squad(answer: str, golds: Sequence[str]) -> Scores:
    """The best EM, F1 and sub-EM over the golden answers."""
    each = [squad_one(squad_words(answer), squad_words(gold)) for gold in golds]
    em, f1, sub_em = (max(column) for column in zip(*each, strict=True))
    return em, f1, sub_em


def squad_one(answer: Sequence[str], gold: Sequence[str]) -> Scores:
    left = list(gold)
    for word in answer:
        if word in left:
            left.remove(word)
    common = len(gold) - len(left)
    f1 = 0.0
    if common:
        precision, recall = common / len(answer), common / len(gold)
        f1 = 2 * precision * recall / (precision + recall)
    return float(answer == gold), f1, float(" ".join(gold) in " ".join(answer))


def ours(answer: str | None, golds: Sequence[str]) -> Scores:
    return REWARDS["em"](answer, golds), REWARDS["f1"](answer, golds), REWARDS["sub_em"](answer, golds)


def agree(one: Scores, other: Scores) -> bool:
    """EM to the bit, the others but for rounding."""
    return one[0] == other[0] and all(abs(a - b) < 1e-9 for a, b in zip(one, other, strict=True))


# -- Where SQuAD's rules are unsound: the only pairs on which the two may differ ----------------------------------

NOTHING_LEFT = "nothing left of the gold"


def unsound_gold(gold: str) -> str | None:
    # "A", "The The", "A+", "!!!": two texts of which nothing is left are equal, so that a blank answer is right, and
    # nothing stands in every text, so that sub-EM is 1 for whatever is said.
    return NOTHING_LEFT if not squad_words(gold) else unsound_spelling(gold)


def unsound_spelling(text: str) -> str | None:
    """Why one and the same text may be written with other characters than these, which SQuAD tells apart."""
    if text.isascii():
        return None
    if unicodedata.normalize("NFKC", text) != text:
        # An accent as a character of its own, ligatures, ½, full width, no-break spaces, the ellipsis.
        return "another form in Unicode"
    if text.lower() != text.casefold():
        return "lower case that depends on the way there"  # ß and SS, the two small sigmas, the long s
    if any(is_sign(character) for character in text):
        return "a sign that has an ASCII twin, or is invisible"
    if re.search(r"[a-z][\u0300-\u036f\ufe20-\ufe2f]", text.lower()):
        # To `re` such a mark ends the word: of a letter "a" that bears one, SQuAD removes the letter as an article.
        return "an accent without a composed letter"
    return None


def is_sign(character: str) -> bool:
    """Punctuation, spaces, operators and modifiers beyond ASCII: curly quotes, dashes, the ʻokina, soft hyphens."""
    category = unicodedata.category(character)
    return not character.isascii() and (
        category[0] in "PZC"
        or category in ("Sk", "Sm", "Lm")
        or "VARIATION SELECTOR" in unicodedata.name(character, "")
    )


# -- What answers make of a golden answer -------------------------------------------------------------------------

SAME: dict[str, Callable[[str], str]] = {
    "unchanged": lambda gold: gold,
    "upper case": str.upper,
    "lower case": str.lower,
    "title case": str.title,
    "the in front": lambda gold: f"the {gold}",
    "A in front": lambda gold: f"A {gold}",
    "an in front": lambda gold: f"an {gold}",
    "the inside": lambda gold: re.sub(r"\s", " the ", gold, count=1),
    "in quotes": lambda gold: f'"{gold}"',
    "full stop": lambda gold: f"{gold}.",
    "comma inside": lambda gold: re.sub(r"\s", ", ", gold, count=1),
    "dots inside": lambda gold: re.sub(r"\b([A-Za-z])([A-Za-z])", r"\1.\2.", gold),
    "white space": lambda gold: f" \t{gold.replace(' ', '  ')}\n",
    "typographic": lambda gold: gold.translate(str.maketrans("'-", "\u2019\u2013")),
    "decomposed": lambda gold: unicodedata.normalize("NFD", gold),
    "thousands comma": lambda gold: re.sub(r"([0-9])([0-9]{3})(?![0-9])", r"\1,\2", gold),
}
"""Changes after which a text still says the same: all of them score 1."""

SPELLINGS = {"typographic", "decomposed"}
"""Those of them that SQuAD's rules are unsound for by their nature."""

OTHER: dict[str, Callable[[str], str]] = {
    "digits changed": lambda gold: re.sub(r"[0-9]", lambda digit: str((int(digit[0]) + 1) % 10), gold),
    "accents removed": lambda gold: re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFD", gold)),
    "words reversed": lambda gold: " ".join(reversed(gold.split())),
    "hyphen for space": lambda gold: gold.replace(" ", "-"),
    "first word dropped": lambda gold: gold.partition(" ")[2],
    "first word twice": lambda gold: f"{gold.partition(' ')[0]} {gold}",
    "word appended": lambda gold: f"{gold} indeed",
    "in a sentence": lambda gold: f"I think that it was {gold}, as the records say.",
    "cut": lambda gold: gold[: len(gold) // 2],
}
"""Changes after which it says something else, or is written in a way that the rules hold for something else."""


# -- By hand: what the values are, with or without the question sets ----------------------------------------------

SOUND: list[tuple[str, Sequence[str], Scores]] = [
    ("Paris", ["Paris"], (1, 1, 1)),
    ("the BEATLES!", ["Beatles"], (1, 1, 1)),
    ("Beatles, the", ["The Beatles"], (1, 1, 1)),  # an article goes wherever it stands
    ("a cat and the hat", ["Cat and Hat"], (1, 1, 1)),
    ("another theatre", ["other atre"], (0, 0, 0)),  # but only as a word
    ("Obama Barack", ["Barack Obama"], (0, 1, 0)),  # F1 knows no order
    ("Barack Hussein Obama", ["Barack Obama"], (0, 0.8, 0)),  # 2 of 3 words, 2 of 2: 2 * 2 / (3 + 2)
    ("It was Ada Lovelace.", ["Ada Lovelace"], (0, 2 / 3, 1)),  # 2 * 2 / (4 + 2)
    ("new new york", ["New York York"], (0, 2 / 3, 0)),  # "new" and "york" once each: 2 * 2 / (3 + 3)
    ("yes, it was", ["yes"], (0, 0.5, 1)),  # no rule of its own for yes and no: 2 * 1 / (3 + 1)
    ("Parisian", ["Paris"], (0, 0, 1)),  # sub-EM is containment of letters
    # Numbers
    ("1,000", ["1000"], (1, 1, 1)),
    ("$1000", ["1000"], (1, 1, 1)),
    ("3.5", ["35"], (1, 1, 1)),  # a weakness of the rules: the decimal point is punctuation
    ("-5", ["5"], (1, 1, 1)),  # and so is the sign
    ("1985", ["1984"], (0, 0, 0)),
    ("7", ["seven"], (0, 0, 0)),
    # Names
    ("U.S.", ["US"], (1, 1, 1)),
    ("U. S.", ["US"], (0, 0, 0)),
    ("O'Brien", ["OBrien"], (1, 1, 1)),
    ("Jay Z", ["Jay-Z"], (0, 0, 0)),  # a hyphen goes and leaves no space
    ("C", ["C#"], (1, 1, 1)),
    ("Beyonce", ["Beyonc\u00e9"], (0, 0, 0)),  # an accent makes another letter
    ("BEYONC\u00c9", ["Beyonc\u00e9"], (1, 1, 1)),
    ("New\u00a0York", ["New York"], (1, 1, 1)),
    # Several golden answers: the best of each score, not of one and the same golden answer
    ("Bob Russell", ["Bobby Scott", "Bob Russell"], (1, 1, 1)),
    ("Bobby", ("Bob Russell", "Bobby Scott"), (0, 2 / 3, 0)),
    ("new york", ["York", "New York City"], (0, 0.8, 1)),  # F1 by the second, 2 * 2 / (2 + 3); sub-EM by the first
    ("Paris", ["London", "A", "Paris"], (1, 1, 1)),
    # Answers of which nothing is left
    ("", ["Paris"], (0, 0, 0)),
    (" \n", ["Paris", "London"], (0, 0, 0)),
    ("the", ["Paris"], (0, 0, 0)),
    ("?!", ["Paris"], (0, 0, 0)),
]
"""Answer, golden answers, and the EM, F1 and sub-EM that both scorers give."""

UNSOUND: list[tuple[str, str, Scores, Scores]] = [
    # Nothing is left of the golden answer
    ("", "A", (0, 0, 0), (1, 0, 1)),
    ("!", "A", (0, 0, 0), (1, 0, 1)),
    ("the", "A", (0, 0, 0), (1, 0, 1)),
    ("Paris", "A", (0, 0, 0), (0, 0, 1)),
    ("A", "A", (1, 1, 1), (1, 0, 1)),
    ("grade a", "A", (0, 2 / 3, 1), (0, 0, 1)),
    ("", "The", (0, 0, 0), (1, 0, 1)),
    ("an", "The", (0, 0, 0), (1, 0, 1)),
    ("the", "The", (1, 1, 1), (1, 0, 1)),
    ("The The", "The The", (1, 1, 1), (1, 0, 1)),
    ("", "!!!", (0, 0, 0), (1, 0, 1)),
    ("---", "!!!", (0, 0, 0), (1, 0, 1)),
    ("!!!", "!!!", (1, 1, 1), (1, 0, 1)),
    # One text in two spellings
    ("Beyonce\u0301", "Beyonc\u00e9", (1, 1, 1), (0, 0, 0)),
    ("O\u2019Brien", "O'Brien", (1, 1, 1), (0, 0, 0)),
    ("\u201cHeroes\u201d", "Heroes", (1, 1, 1), (0, 0, 1)),
    ("1914\u20131918", "1914-1918", (1, 1, 1), (0, 0, 0)),
    ("New\u200bYork", "NewYork", (1, 1, 1), (0, 0, 0)),
    ("\uff11\uff19\uff18\uff14", "1984", (1, 1, 1), (0, 0, 0)),
    ("STRASSE", "Stra\u00dfe", (1, 1, 1), (0, 0, 0)),
    ("\ufb01lm", "film", (1, 1, 1), (0, 0, 0)),
    # A dash between spaces is a word to SQuAD
    ("rise \u2013 fall", "rise - fall", (1, 1, 1), (0, 0.8, 0)),
]
"""Answer, golden answer, our scores and SQuAD's."""


class TestByHand:
    @pytest.mark.parametrize(("answer", "golds", "scores"), SOUND)
    def test_both_scorers_have_the_value(self, answer: str, golds: Sequence[str], scores: Scores) -> None:
        assert squad(answer, [gold for gold in golds if squad_words(gold)]) == pytest.approx(scores)
        assert ours(answer, golds) == pytest.approx(scores)

    @pytest.mark.parametrize(("answer", "golds", "scores"), SOUND)
    def test_golds_come_as_a_list_a_tuple_an_array_or_one_string(
        self, answer: str, golds: Sequence[str], scores: Scores
    ) -> None:
        kinds = [list(golds), tuple(golds), np.array(golds), np.array(golds, dtype=object)]
        kinds += [gold for gold in golds if len(golds) == 1]
        for kind in kinds:
            assert ours(answer, kind) == pytest.approx(scores), type(kind)

    @pytest.mark.parametrize(("answer", "gold", "right", "squads"), UNSOUND)
    def test_where_squad_is_unsound_ours_is_right(self, answer: str, gold: str, right: Scores, squads: Scores) -> None:
        assert unsound_gold(gold) or unsound_spelling(answer)
        assert ours(answer, [gold]) == pytest.approx(right)
        assert squad(answer, [gold]) == pytest.approx(squads)

    def test_no_answer_scores_nothing_whatever_the_gold(self) -> None:
        for gold in ("Paris", "A", "The", "!!!", ""):
            assert ours(None, [gold]) == (0, 0, 0)


# -- All golden answers of the question sets ----------------------------------------------------------------------

ANOTHER = "another question's gold"


class Pair(NamedTuple):
    """An answer and its golden answers, all of them sound if they are several, and the scores that it has."""

    answer: str
    golds: Sequence[str]
    change: str
    ours: Scores
    squad: Scores
    unsound: str | None
    """Why SQuAD's rules are unsound for it, if they are."""

    @property
    def is_same(self) -> bool:
        """Whether the answer says what the golden answer says from which it was made."""
        # The capital of the dotless i is I, whose small letter is i: another case is another letter.
        return self.change in SAME and not ("case" in self.change and "ı" in "".join(self.golds))


def pair_of(answer: str, golds: Sequence[str], change: str) -> Pair:
    unsound = (unsound_gold(golds[0]) if len(golds) == 1 else None) or unsound_spelling(answer)
    return Pair(answer, golds, change, ours(answer, golds), squad(answer, golds), unsound)


def changed(gold: str, another: str, *, take: int) -> Iterator[tuple[str, str]]:
    """Names and answers of some changes that do change this golden answer, chosen by its hash."""
    changes = [*SAME.items(), *OTHER.items(), (ANOTHER, lambda _: another)]
    at = zlib.crc32(gold.encode())
    for step in range(len(changes)):  # 7 shares no factor with their number, so that each of them comes by
        name, change = changes[(at + 7 * step) % len(changes)]
        answer = change(gold)
        if answer != gold or name == "unchanged":
            yield name, answer
            take -= 1
            if not take:
                return


def several(gold: str) -> int:
    """How many changes a golden answer gets: more where it has letters beyond ASCII or digits, for which some are."""
    return 2 if re.search(r"[^\x00-\x7f]|[0-9]", gold) else 1


@pytest.fixture(scope="module")
def questions() -> list[list[str]]:
    """The golden answers of every question of every set."""
    files = sorted(DATA.glob("*.jsonl"))
    if not files:
        pytest.skip(f"the question sets are not in {DATA}")
    return [
        list(dict.fromkeys(json.loads(line)["golden_answers"]))
        for path in files
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]


@pytest.fixture(scope="module")
def pairs(questions: list[list[str]]) -> list[Pair]:
    """Every golden answer alone, then questions with all of theirs that are sound."""
    golds = sorted({gold for question in questions for gold in question})
    found = []
    for at, gold in enumerate(golds):
        another = golds[(7919 * at + 1) % len(golds)]
        found += [pair_of(answer, [gold], name) for name, answer in changed(gold, another, take=several(gold))]
    for question in questions:
        sound = [gold for gold in question if unsound_gold(gold) is None]
        at = zlib.crc32(" ".join(question).encode())
        if 1 < len(sound) < 5 or (sound and at % 64 == 0):  # TriviaQA has up to 230 for a question
            gold, another = sound[at % len(sound)], golds[at % len(golds)]
            found += [pair_of(answer, sound, name) for name, answer in changed(gold, another, take=1)]
    return found


def letters(text: str) -> str:
    """Letters, digits and marks of a text but for its articles, in Unicode's own folding."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", text).casefold())
    folded = re.sub(r"\b(a|an|the)\b", "", folded)
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LNM" and unicodedata.category(c) != "Lm")


class TestQuestionSets:
    def test_equals_squad_on_every_sound_pair(self, pairs: list[Pair]) -> None:
        assert [pair for pair in pairs if not pair.unsound and not agree(pair.ours, pair.squad)] == []

    def test_every_gold_is_there_and_few_pairs_are_excluded(
        self, pairs: list[Pair], questions: list[list[str]]
    ) -> None:
        golds = {gold for question in questions for gold in question}
        assert {pair.golds[0] for pair in pairs if len(pair.golds) == 1} == golds
        unsound = [gold for gold in golds if unsound_gold(gold)]
        excluded = Counter(pair.unsound for pair in pairs if pair.unsound)
        assert len(unsound) < 0.007 * len(golds)  # 700 of 105,666
        assert excluded.total() < 0.02 * len(pairs)  # 2,103 of 123,017
        assert excluded[NOTHING_LEFT] == sum(unsound_gold(gold) == NOTHING_LEFT for gold in golds)

    def test_every_change_is_compared(self, pairs: list[Pair]) -> None:
        compared = Counter(pair.change for pair in pairs if not pair.unsound)
        assert set(compared) == {*SAME, *OTHER, ANOTHER} - SPELLINGS
        assert min(compared.values()) > 200
        assert all(sum(pair.change == spelling for pair in pairs) > 200 for spelling in SPELLINGS)

    def test_em_is_at_most_f1_and_at_most_sub_em(self, pairs: list[Pair]) -> None:
        for pair in pairs:
            em, f1, sub_em = pair.ours
            assert 0 <= em <= f1 <= 1, pair
            assert em <= sub_em <= 1, pair
            assert {em, sub_em} <= {0, 1}, pair

    def test_what_says_the_same_scores_one_in_every_spelling(self, pairs: list[Pair]) -> None:
        same = [pair for pair in pairs if pair.is_same and pair.unsound != NOTHING_LEFT]
        assert [pair for pair in same if pair.ours != (1, 1, 1)] == []

    def test_another_number_is_another_answer(self, pairs: list[Pair]) -> None:
        numbers = [pair for pair in pairs if pair.change == "digits changed" and len(pair.golds) == 1]
        assert [pair for pair in numbers if pair.ours[0]] == []

    def test_differs_from_squad_in_what_spelling_makes_equal_alone(self, pairs: list[Pair]) -> None:
        differing = [pair for pair in pairs if pair.ours[0] != pair.squad[0] and pair.unsound != NOTHING_LEFT]
        assert [pair for pair in differing if letters(pair.answer) not in map(letters, pair.golds)] == []
        assert [pair for pair in differing if pair.ours[0] == 0] == []

    def test_a_gold_of_which_squad_leaves_nothing_is_matched_by_itself_alone(self, questions: list[list[str]]) -> None:
        golds = {gold for question in questions for gold in question if unsound_gold(gold) == NOTHING_LEFT}
        assert golds
        for gold in golds:
            assert ours(gold, [gold]) == (1, 1, 1)
            for answer in ("", " ", "an", "Paris", *golds - {gold}):
                assert ours(answer, [gold])[0] == 0, (answer, gold)
                assert squad(answer, [gold])[0] == (answer != "Paris"), (answer, gold)

    def test_a_blank_answer_scores_nothing(self, questions: list[list[str]]) -> None:
        for question in questions[::20]:
            for answer in (None, "", " \n"):
                assert ours(answer, question) == (0, 0, 0), (answer, question)
