"""The rewards: SQuAD's rules as Search-R1 computes them, and spelling that Unicode and typography make equal."""

from __future__ import annotations

import json
import random
import re
import string
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mrsearch.core.rewards import REWARDS, exact_match, normalize, sub_exact_match, token_f1

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def squad_normalize(text: str) -> str:
    """The published rules, written down independently."""
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_exact_match(answer: str, golds: list[str]) -> float:
    return float(any(squad_normalize(answer) == squad_normalize(gold) for gold in golds))


def squad_sub_exact_match(answer: str, golds: list[str]) -> float:
    return float(any(squad_normalize(gold) in squad_normalize(answer) for gold in golds))


AWKWARD = st.sampled_from(
    [
        *(
            "a",
            "A",
            "an",
            "the",
            "The",
            "b",
            "e",
            "ss",
            "\u00df",
            "\u1e9e",
            "I",
            "\u0130",
            "\u0131",
            "\u017f",
            "\u03c2",
        ),
        *("\u0301", "\u0331", "\u0345", "\u0308", "\u00e9", "\ufb01", "\u0149", "\u01c4", "\u1f80", "\uac00", "\u1100"),
        *(" ", "\u00a0", "\u200b", "\u200d", "\u00ad", "\u2028", "\u3000", "\ufeff", "\u0085", "\n", "\x00", "\x1c"),
        *("'", "\u2019", "\u201c", '"', "-", "\u2011", "\u2013", "\u2014", "\u2212", "\u2026", ".", "!", "\uff01", "$"),
        *("\uff21", "\u00bd", "\u2122", "\u2163", "\u20ac", "\u00b4", "\u00a8", "\U0001f681", "\ufe0f", "\ud800"),
    ]
)
TEXT = st.one_of(st.text(), st.lists(AWKWARD, max_size=8).map("".join), st.text(alphabet=string.printable))
GOLDS = st.lists(TEXT, max_size=4)


class TestNormalize:
    @pytest.mark.parametrize(
        ("text", "normal"),
        [
            ("The Beatles", "beatles"),
            ("  An   apple\ta\nday ", "apple day"),
            ("U.S.A.", "usa"),
            ("rock-n-roll", "rocknroll"),
            ("theatre of an era", "theatre of era"),
            ("$1,000", "1000"),
            ("", ""),
        ],
    )
    def test_follows_the_squad_rules(self, text: str, normal: str) -> None:
        assert normalize(text) == normal

    @given(text=st.text(alphabet=st.characters(max_codepoint=127)))
    def test_is_the_squad_rule_on_ascii(self, text: str) -> None:
        assert normalize(text) == squad_normalize(text)

    @given(text=TEXT)
    def test_leaves_no_punctuation_no_loose_space_and_composed_letters(self, text: str) -> None:
        normal = normalize(text)
        assert normal == " ".join(normal.split())
        assert normal == unicodedata.normalize("NFC", normal)
        assert not set(normal) & set(string.punctuation)


class TestSpellings:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            pytest.param("caf\u00e9", "cafe\u0301", id="composed accent"),
            pytest.param("\uff21\uff22\uff23 \uff11\uff12", "abc 12", id="full width"),
            pytest.param("\ufb01nal o\ufb03ce", "final office", id="ligatures"),
            pytest.param("New\u00a0York", "New York", id="no-break space"),
            pytest.param("New\u2009York", "New York", id="thin space"),
            pytest.param("New\u3000York", "New York", id="ideographic space"),
            pytest.param("New\u200bYork", "NewYork", id="zero-width space"),
            pytest.param("\ufeffParis", "Paris", id="byte order mark"),
            pytest.param("Pa\u200dris\u200e", "Paris", id="joiner and direction mark"),
            pytest.param("Pa\u00adris", "Paris", id="soft hyphen"),
            pytest.param("\u2764\ufe0f", "\u2764", id="variation selector"),
            pytest.param("O\u2019Brien", "O'Brien", id="curly apostrophe"),
            pytest.param("O\u02bcBrien", "O'Brien", id="modifier apostrophe"),
            pytest.param("O\u00b4Brien", "O'Brien", id="acute as apostrophe"),
            pytest.param("\u201cHeroes\u201d", '"Heroes"', id="curly quotes"),
            pytest.param("\u00abHeroes\u00bb", '"Heroes"', id="guillemets"),
            pytest.param("\u201eHeroes\u201c", '"Heroes"', id="low quotes"),
            pytest.param("1914\u20131918", "1914-1918", id="en dash"),
            pytest.param("Paris\u2014Texas", "Paris-Texas", id="em dash"),
            pytest.param("Spider\u2011Man", "Spider-Man", id="no-break hyphen"),
            pytest.param("\u22125", "-5", id="minus"),
            pytest.param("Wait\u2026", "Wait...", id="ellipsis"),
            pytest.param("\u00bd", "1/2", id="fraction"),
            pytest.param("Stra\u00dfe", "STRASSE", id="sharp s"),
            pytest.param("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2", id="final sigma"),
            pytest.param("Henry \u2167", "Henry VIII", id="roman numeral"),
            pytest.param("\u6771\u4eac\u3002", "\u6771\u4eac", id="ideographic full stop"),
            pytest.param("\u00bfQui\u00e9n?", "qui\u00e9n", id="inverted question mark"),
        ],
    )
    def test_equivalent_spellings_are_equal(self, one: str, other: str) -> None:
        assert normalize(one) == normalize(other) != ""
        for reward in REWARDS.values():
            assert reward(one, [other]) == reward(other, [one]) == 1.0

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            pytest.param("caf\u00e9", "cafe", id="acute"),
            pytest.param("M\u00fcller", "Muller", id="umlaut"),
            pytest.param("\u0141\u00f3d\u017a", "Lodz", id="stroke"),
            pytest.param("\u0130stanbul", "Istanbul", id="dotted capital i"),
            pytest.param("a\u0331", "", id="an accented letter is no article"),
            pytest.param("5\u2030", "5%", id="per mille"),
            pytest.param("\u00a35", "\u20ac5", id="currencies"),
            pytest.param(
                "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
                "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
                id="flags",
            ),
        ],
    )
    def test_other_letters_and_signs_stay_apart(self, one: str, other: str) -> None:
        assert normalize(one) != normalize(other)
        assert exact_match(one, [other]) == exact_match(other, [one]) == 0.0

    @given(text=TEXT, form=st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
    def test_unicode_normal_forms_are_one_spelling(self, text: str, form: str) -> None:
        # Unicode decomposes an acute accent that stands alone, and its like, into a space and a mark; here it is an
        # apostrophe, and the decomposed text is another one.
        assume(not any(unicodedata.decomposition(character).startswith("<compat> 0020") for character in text))
        assert normalize(text) == normalize(unicodedata.normalize(form, text))  # type: ignore[arg-type]


class TestBlanks:
    @pytest.mark.parametrize("answer", [None, "", "  \n", "\u200b\u00a0", "!!!", "the", "..."])
    @pytest.mark.parametrize("metric", REWARDS)
    def test_an_answer_that_is_nothing_never_matches_a_real_gold(self, answer: str | None, metric: str) -> None:
        assert REWARDS[metric](answer, ["Paris", "A", "1"]) == 0.0

    @pytest.mark.parametrize("metric", REWARDS)
    def test_without_golds_nothing_matches(self, metric: str) -> None:
        assert REWARDS[metric]("Paris", []) == 0.0

    @pytest.mark.parametrize("gold", ["", " ", "\u200b"])
    @pytest.mark.parametrize("answer", ["", "Paris", " ", "\u200b", "a"])
    @pytest.mark.parametrize("metric", REWARDS)
    def test_a_blank_gold_matches_nothing(self, gold: str, answer: str, metric: str) -> None:
        assert REWARDS[metric](answer, [gold]) == 0.0

    @pytest.mark.parametrize(
        ("answer", "gold", "score"),
        [
            ("A", "A", 1.0),
            ("a.", '"A"', 1.0),
            ("B", "A", 0.0),
            ("the", "A", 0.0),
            ("The", "the", 1.0),
            ("the the", "The The", 1.0),
            ("Them", "The", 0.0),
            ("banana", "A", 0.0),
            ("The Smiths", "The The", 0.0),
        ],
    )
    def test_a_gold_of_articles_alone_is_compared_with_its_articles(self, answer: str, gold: str, score: float) -> None:
        assert exact_match(answer, [gold]) == score
        assert sub_exact_match(answer, [gold]) == score
        if answer != "The Smiths":
            assert token_f1(answer, [gold]) == score

    def test_words_shared_with_a_gold_of_articles_count_for_f1(self) -> None:
        # "the smiths" and "the the" share one "the" of two words each: 2 * 1 / (2 + 2)
        assert token_f1("The Smiths", ["The The"]) == 0.5

    def test_a_gold_of_articles_is_found_in_an_answer_as_a_word_only(self) -> None:
        assert sub_exact_match("It was the grade A", ["A"]) == 1.0
        assert sub_exact_match("the answer is B", ["A"]) == 0.0

    @pytest.mark.parametrize(
        ("answer", "gold", "score"),
        [
            ("!!!", "!!!", 1.0),
            ("\uff01\uff01\uff01 ", "!!!", 1.0),
            ("\u2014", "-", 1.0),
            ("!!", "!!!", 0.0),
            ("?", "!", 0.0),
        ],
    )
    @pytest.mark.parametrize("metric", REWARDS)
    def test_a_gold_of_punctuation_alone_is_compared_as_written(
        self, answer: str, gold: str, score: float, metric: str
    ) -> None:
        assert REWARDS[metric](answer, [gold]) == score

    def test_a_lone_string_is_one_gold_and_not_its_letters(self) -> None:
        assert exact_match("p", "Paris") == 0.0
        assert exact_match("paris", "Paris") == 1.0


class TestScores:
    def test_the_best_gold_counts(self) -> None:
        assert exact_match("Bob Russell", ["Bobby Scott", "Bob Russell"]) == 1.0
        # "bobby" in "bobby scott": 2 * 1 / (1 + 2)
        assert token_f1("Bobby", ["Bob Russell", "Bobby Scott"]) == pytest.approx(2 / 3)

    def test_f1_counts_repeated_words_as_often_as_both_have_them(self) -> None:
        # answer new new york, gold new york york: shared new, york; 2 * 2 / (3 + 3)
        assert token_f1("new new york", ["New York York"]) == pytest.approx(2 / 3)

    def test_f1_has_no_rule_of_its_own_for_yes_and_no(self) -> None:
        # SQuAD-style scripts for HotpotQA give 0 here; plain overlap is 2 * 1 / (2 + 1)
        assert token_f1("yes indeed", ["yes"]) == pytest.approx(2 / 3)

    def test_sub_exact_match_is_containment_of_letters(self) -> None:
        assert sub_exact_match("It was Ada Lovelace.", ["Ada Lovelace"]) == 1.0
        assert sub_exact_match("Parisian", ["Paris"]) == 1.0
        assert sub_exact_match("Paris", ["Parisian"]) == 0.0

    @given(answer=st.none() | TEXT, golds=GOLDS)
    def test_exact_match_is_at_most_f1_and_sub_exact_match(self, answer: str | None, golds: list[str]) -> None:
        em, f1, sub_em = (REWARDS[name](answer, golds) for name in ("em", "f1", "sub_em"))
        assert 0.0 <= em <= f1 <= 1.0
        assert em <= sub_em <= 1.0
        assert em in (0.0, 1.0)
        assert sub_em in (0.0, 1.0)

    @given(text=TEXT.filter(normalize), golds=GOLDS)
    def test_a_text_matches_itself(self, text: str, golds: list[str]) -> None:
        assert [reward(text, [*golds, text]) for reward in REWARDS.values()] == [1.0, 1.0, 1.0]

    @given(answer=st.text(alphabet=string.printable), golds=st.lists(st.text(alphabet=string.printable), max_size=3))
    def test_is_the_squad_rule_on_ascii_wherever_that_is_sound(self, answer: str, golds: list[str]) -> None:
        golds = [gold for gold in golds if squad_normalize(gold)]
        assert exact_match(answer, golds) == squad_exact_match(answer, golds)
        assert sub_exact_match(answer, golds) == squad_sub_exact_match(answer, golds)


def mutations(gold: str, draw: random.Random) -> list[str]:
    """Ways to write a golden answer that the rules call the same, and a few that they do not."""
    cut = draw.randrange(len(gold) + 1)
    return [
        gold,
        gold.upper(),
        f"the {gold}",
        f"  {gold}.\n",
        f"{gold[:cut]}{draw.choice(string.punctuation)}{gold[cut:]}",
        f"{gold[:cut]} {draw.choice(['a', 'an', 'the', ''])} {gold[cut:]}",
        gold.replace(" ", draw.choice(["\t", "  ", ""])),
        f"{gold[:cut]}{draw.choice(string.ascii_letters)}{gold[cut:]}",
        gold[:cut],
        f"I think {gold}",
    ]


@pytest.mark.skipif(not list(DATA.glob("*.jsonl")), reason=f"the question sets are not in {DATA}")
def test_agrees_with_the_squad_rule_on_the_golds_of_the_question_sets() -> None:
    draw = random.Random(0)
    compared = 0
    for path in sorted(DATA.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        for row in draw.sample(rows, min(len(rows), 100)):
            golds = [gold for gold in row["golden_answers"] if gold.isascii() and squad_normalize(gold)]
            for gold in golds[:5]:
                for answer in mutations(gold, draw):
                    assert exact_match(answer, golds) == squad_exact_match(answer, golds), (answer, golds)
                    compared += 1
    assert compared > 10_000
