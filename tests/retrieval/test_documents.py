"""Documents to passages: where they are cut, and that nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.retrieval.documents import CHARACTERS, WORDS, split_document

SENTENCE = "The Analytical Engine was a proposed mechanical computer. "  # eight words
TEXTS = st.lists(
    st.sampled_from(
        ["word ", "Word. ", "等。", "字" * 700, "\n", "\n\n", "# Heading\n", "```\n", "x" * 1500, "? ", "\t"]
    ),
    max_size=60,
).map("".join)


def letters(text: str) -> str:
    return "".join(text.split())


def test_a_short_document_is_one_passage() -> None:
    assert split_document("  One.\n\nTwo.\r\n") == ("", ["One.\n\nTwo."])


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_a_blank_document_has_none(text: str) -> None:
    assert split_document(text, markdown=True) == ("", [])


def test_sentences_are_gathered_up_to_a_hundred_words() -> None:
    _, passages = split_document(SENTENCE * 30)
    # twelve sentences are 96 words, and a thirteenth would be too many
    assert [len(passage.split()) for passage in passages] == [96, 96, 48]
    assert all(passage.endswith("computer.") for passage in passages)


def test_a_passage_ends_with_a_paragraph_that_nearly_fills_it() -> None:
    _, passages = split_document(f"{SENTENCE * 10}\n\n{SENTENCE * 3}")
    assert [len(passage.split()) for passage in passages] == [80, 24]


def test_short_paragraphs_share_a_passage() -> None:
    _, passages = split_document(f"{SENTENCE * 2}\n\n" * 4)
    assert [len(passage.split()) for passage in passages] == [64]


def test_a_heading_begins_a_passage() -> None:
    _, passages = split_document(f"{SENTENCE * 5}\n\n## Notes\n\n{SENTENCE}", markdown=True)
    assert [passage.partition("\n")[0] for passage in passages] == [(SENTENCE * 5).strip(), "## Notes"]


def test_the_first_heading_is_the_title_and_stands_apart() -> None:
    assert split_document("# The *Engine* ##\n\nIt computes.\n", markdown=True) == ("The *Engine*", ["It computes."])


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Before.\n\n## Later\n\nAfter.", "Later"),
        ("```\n# a comment\n```\n# Title\ntext", "Title"),
        ("~~~\n# a comment", ""),
        ("#no heading\n\n#\n\n####### seven", ""),
        ("# Alone", "Alone"),
        ("No heading.", ""),
    ],
)
def test_what_is_a_heading(text: str, title: str) -> None:
    found, passages = split_document(text, markdown=True)
    assert found == title
    assert letters("".join(passages)) == letters(text)


def test_plain_text_has_no_headings() -> None:
    assert split_document("# shell comment\ntext") == ("", ["# shell comment\ntext"])


def test_a_sentence_without_end_is_cut_between_words() -> None:
    _, passages = split_document("word " * 250)
    assert [len(passage.split()) for passage in passages] == [100, 100, 50]


def test_scripts_without_spaces_are_cut_at_their_sentences() -> None:
    _, passages = split_document("東京都は日本の首都です。" * 200)
    assert all(passage.endswith("。") and len(passage) <= CHARACTERS for passage in passages)
    assert len(passages) == 3


def test_a_word_longer_than_a_passage_is_cut() -> None:
    _, passages = split_document("x" * 2500)
    assert [len(passage) for passage in passages] == [1000, 1000, 500]


@given(text=TEXTS | st.text(), markdown=st.booleans())
def test_passages_are_short_and_together_the_document(text: str, markdown: bool) -> None:
    title, passages = split_document(text, markdown=markdown)
    assert split_document(text, markdown=markdown) == (title, passages)
    assert all(passage.strip() == passage != "" for passage in passages)
    assert all(len(passage.split()) <= WORDS and len(passage) <= CHARACTERS for passage in passages)
    whole = letters("".join(passages))
    assert letters(text).endswith(whole)
    before = letters(text).removesuffix(whole)
    assert before.strip("#") in ("", letters(title))
    assert letters(title) in letters(text)
