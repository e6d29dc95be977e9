"""Documents to passages: plain text and Markdown, cut at the ends of sentences and paragraphs.

A passage is a stretch of the document as it stands, so that all passages
together are the document. Knows nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

WORDS = 100
"""About as many words as a passage has, as in wiki-18."""
CHARACTERS = 1000
"""As many characters as a passage has at most, for scripts that put no spaces between words."""

_FULL_PARAGRAPH = 3 * WORDS // 4
_UNDER_A_HEADING = WORDS // 4

_END = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』”’]*\s*|\n[^\S\n]*\n\s*""")
_HEADING = re.compile(r"#{1,6}[^\S\n]+(?P<title>[^\n]*?)[^\S\n]*#*[^\S\n]*$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?(^\1|\Z)", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\S+\s*")


def split_document(text: str, *, markdown: bool = False) -> tuple[str, list[str]]:
    """Title (the first heading of Markdown, else empty) and passages of a document; a blank one has none.

    The heading is left out of the passages where the document opens with it and goes on.
    """
    text = text.replace("\r\n", "\n").strip()
    headings = _headings(text) if markdown else []
    title = ""
    if headings:
        first = headings[0]
        title = first["title"].strip()
        if first.start() == 0 and text[first.end() :].strip():
            text = text[first.end() :].lstrip()
            headings = _headings(text)
    return title, list(_passages(text, {heading.start() for heading in headings}))


def _headings(text: str) -> list[re.Match[str]]:
    fenced = [match.span() for match in _FENCE.finditer(text)]
    return [
        match
        for match in _HEADING.finditer(text)
        if match["title"].strip()
        and (match.start() == 0 or text[match.start() - 1] == "\n")
        and not any(start < match.start() < end for start, end in fenced)
    ]


def _passages(text: str, headings: set[int]) -> Iterator[str]:
    begin, words = 0, 0
    for start, end in _pieces(text, headings):
        added = len(text[start:end].split())
        full = words + added > WORDS or end - begin > CHARACTERS
        if words and (full or (start in headings and words >= _UNDER_A_HEADING)):
            yield text[begin:start].strip()
            begin, words = start, 0
        words += added
        if words >= _FULL_PARAGRAPH and text[start:end].rstrip(" \t").endswith("\n\n"):
            yield text[begin:end].strip()
            begin, words = end, 0
    if words:
        yield text[begin:].strip()


def _pieces(text: str, headings: set[int]) -> Iterator[tuple[int, int]]:
    """Sentences, headings, and parts of what is longer than a passage: spans that cover the text."""
    ends = sorted({match.end() for match in _END.finditer(text)} | headings | {len(text)})
    start = 0
    for end in ends:
        size = 0
        for word in _WORD.finditer(text, start, end):
            size += 1
            # A break in the middle of a sentence comes only where the sentence fills a passage by itself.
            if size > WORDS or word.end() - start > CHARACTERS:
                if word.start() > start:
                    yield start, word.start()
                start, size = word.start(), 1
                while word.end() - start > CHARACTERS:
                    yield start, start + CHARACTERS
                    start += CHARACTERS
        if end > start:
            yield start, end
        start = end
