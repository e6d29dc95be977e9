"""BM25 on the library tantivy, in memory or in a folder: k1 1.2, b 0.75, Lucene's formula.

Added to it here: words of scripts that are written without spaces, one order
of ties whatever the segments of an index, and any query and `top_k`, so that a
search depends on nothing but its query.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import tantivy

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, DataError

LANGUAGES = {
    "da": "danish",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ru": "russian",
    "sv": "swedish",
}
"""Languages whose stop words and stems are known, with the library's names."""

# fmt: off
ALSO_STOPPED = {
    "en": [
        "also", "been", "being", "did", "do", "does", "from", "had", "has", "have", "having", "his", "its", "were",
        "what", "which", "whom", "whose",
    ],
}
# fmt: on
"""Stop words beyond the library's, whose English ones are Lucene's 33. Questions are full of them; without, as much or
more is found, a fifth faster. Not "who", "he", "her", "how", "when": names are made of them."""

# Scripts without spaces between words; each character is a word of its own.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_LONGEST_WORD = 256
_HEAP = 256_000_000
_SPARE = 1
"""Hits that are fetched beyond `top_k`, to see whether the last place is tied: each more is passed over more slowly."""

Hit: TypeAlias = tuple[float, tantivy.DocAddress]
"""Score, and where in the index the passage stands."""


@dataclass(frozen=True, slots=True)
class Words:
    """How texts become words."""

    language: str = "en"
    """Stop words of this language are left out and its words are stemmed; empty does neither."""
    stemming: bool = True
    """Compare words by their stems."""
    title_weight: int = 1
    """How many more times the title counts."""

    def __post_init__(self) -> None:
        if self.language and self.language not in LANGUAGES:
            raise ConfigError(
                f"no stop words and stems for the language {self.language!r}; choose one of: {', '.join(LANGUAGES)}, "
                "or leave it empty"
            )
        if self.title_weight < 0:
            raise ConfigError(
                f"title_weight is {self.title_weight}; the title is counted once at least, which is 0 more times"
            )

    def analyzer(self) -> tantivy.TextAnalyzer:
        """What turns a text that went through `plain` into words."""
        # Filters return the builder anew; long runs of letters are no words, and the library would drop them unsaid.
        builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        builder = builder.filter(tantivy.Filter.remove_long(_LONGEST_WORD)).filter(tantivy.Filter.lowercase())
        if self.language:
            builder = builder.filter(tantivy.Filter.stopword(LANGUAGES[self.language]))
            builder = builder.filter(tantivy.Filter.custom_stopword(ALSO_STOPPED.get(self.language, [])))
            if self.stemming:
                builder = builder.filter(tantivy.Filter.stemmer(LANGUAGES[self.language]))
        return builder.build()

    def text(self, passage: Passage) -> str:
        """What of a passage is indexed."""
        return plain("\n".join([passage.title] * (1 + self.title_weight) + [passage.text]))


def plain(text: str) -> str:
    """A text in one spelling of its accents, with characters of unspaced scripts apart and no lone surrogates."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text).encode("utf-8", "replace").decode()
    return _UNSPACED.sub(r" \g<0> ", text)


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("words", tokenizer_name="words", index_option="freq")
    builder.add_integer_field("row", fast=True)
    return builder.build()


class BM25Writer:
    """Indexes passages as they come, in bounded memory. `folder` exists and is empty; without one, in memory."""

    def __init__(self, folder: Path | None, words: Words) -> None:
        self._words = words
        self.index = tantivy.Index(_schema(), path=str(folder) if folder else None)
        self.index.register_tokenizer("words", words.analyzer())
        # One thread, so that the same passages give the same index.
        self._writer = self.index.writer(heap_size=_HEAP, num_threads=1)

    def add(self, row: int, passage: Passage) -> None:
        """Index one passage under its row."""
        self._writer.add_document(tantivy.Document(words=self._words.text(passage), row=row))

    def close(self) -> None:
        """Finish and write out."""
        self._writer.commit()
        self._writer.wait_merging_threads()
        self.index.reload()


class BM25Retriever:
    """Finds passages by the words they share with a query, rare words counting more. For use from many threads.

    Indexes the passages in memory; `open` reads what a `BM25Writer` left in a folder.
    """

    def __init__(self, passages: Sequence[Passage], words: Words | None = None) -> None:
        words = words or Words()
        writer = BM25Writer(None, words)
        for row, passage in enumerate(passages):
            writer.add(row, passage)
        writer.close()
        self._connect(writer.index, passages, words)

    @classmethod
    def open(cls, folder: Path, passages: Sequence[Passage], words: Words) -> BM25Retriever:
        """Open an index on disk, which stays there: pages are read as searches need them."""
        try:
            index = tantivy.Index.open(str(folder))
        except ValueError as error:
            raise DataError(f"{folder} is no readable BM25 index ({error}); build it again") from None
        retriever = cls.__new__(cls)
        retriever._connect(index, passages, words)
        return retriever

    def _connect(self, index: tantivy.Index, passages: Sequence[Passage], words: Words) -> None:
        self._passages = passages
        self._words = words
        self._analyzer = words.analyzer()
        self._schema = index.schema
        self._searcher = index.searcher()
        if self._searcher.num_docs != len(passages):
            raise DataError(
                f"the BM25 index has {self._searcher.num_docs} passages and the store {len(passages)}; build it again"
            )
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="bm25")

    @cached_property
    def identity(self) -> str:
        """What tells these passages and words from others: the same have the same, wherever and whenever."""
        digest = hashlib.sha256(repr(self._words).encode())
        for passage in self._passages:
            digest.update(repr((passage.id, passage.title, passage.text)).encode())
        return digest.hexdigest()[:16]

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages that share a word with each query, best first, ties in the order of the corpus."""
        limits = [min(request.top_k, len(self._passages)) for request in requests]
        queries = [self._query(request) for request in requests]
        # The threads do nothing but search, which is all that the library does without Python's lock.
        return [self._passages_of(hits, limit) for hits, limit in zip(self._hits(queries, limits), limits, strict=True)]

    def _query(self, request: Search) -> tantivy.Query | None:
        words = self._analyzer.analyze(plain(request.query))
        if not words:
            return None
        return tantivy.Query.boolean_query([self._clause(word, count) for word, count in Counter(words).items()])

    def _clause(self, word: str, count: int) -> tuple[tantivy.Occur, tantivy.Query]:
        query = tantivy.Query.term_query(self._schema, "words", word, index_option="freq")
        return tantivy.Occur.Should, query if count == 1 else tantivy.Query.boost_query(query, count)

    def _hits(self, queries: Sequence[tantivy.Query | None], limits: Sequence[int]) -> list[list[Hit]]:
        found: list[list[Hit]] = [[] for _ in queries]
        left = iter([(row, query) for row, query in enumerate(queries) if query is not None and limits[row] > 0])

        def work(_: int = 0) -> None:
            for row, query in left:  # each thread takes the next, since some take far longer than others
                found[row] = self._best(query, limits[row])

        threads = min(len(queries), os.cpu_count() or 1)
        if threads == 1:
            work()
        else:
            list(self._threads.map(work, range(threads)))
        return found

    def _best(self, query: tantivy.Query, top_k: int) -> list[Hit]:
        """At least the best hits, and all that tie with the last of them."""
        limit = top_k + _SPARE
        while True:
            hits: list[Hit] = self._searcher.search(query, limit=limit, count=False).hits
            # The library orders ties by its own segments: fetch until the last place has no tie beyond.
            if len(hits) < limit or hits[-1][0] < hits[top_k - 1][0]:
                return hits
            limit *= 4

    def _passages_of(self, hits: Sequence[Hit], top_k: int) -> list[Passage]:
        """The passages of the best hits, the earlier row first where scores are equal."""
        rows = self._searcher.fast_field_values("row", [address for _, address in hits])
        scored = [(score, int(row or 0)) for (score, _), row in zip(hits, rows, strict=True)]
        found = []
        for score, row in sorted(scored, key=lambda hit: (-hit[0], hit[1]))[:top_k]:
            passage = self._passages[row]
            found.append(Passage(passage.id, passage.title, passage.text, score))
        return found
