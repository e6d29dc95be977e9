"""BM25 over passages in memory, on the library bm25s, which keeps every word's score for every passage.

Added to it here: a fixed order of ties, no passages without a matching word,
and any `top_k`, so that a search depends on nothing but its query.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, MissingExtra

Stemmer = Callable[[list[str]], list[str]]
"""Words to their stems."""

_WORD = re.compile(r"\w+")

_STOPWORDS = {
    "da": "DANISH",
    "de": "GERMAN",
    "en": "EN",
    "es": "SPANISH",
    "fr": "FRENCH",
    "it": "ITALIAN",
    "nl": "DUTCH",
    "no": "NORWEGIAN",
    "pt": "PORTUGUESE",
    "ru": "RUSSIAN",
    "sv": "SWEDISH",
    "tr": "TURKISH",
}
"""Languages to the names of their lists in bm25s."""


class BM25Retriever:
    """Finds passages by the words they share with a query, rare words counting more.

    `k1` is the saturation of term counts and `b` the normalisation by length.
    `title_weight` is how many more times the title is counted. `stopwords` is a
    language, a list of words, or None (or "") for none; `stemmer` is a language
    for PyStemmer or a function on words. Words are compared in lower case.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        k1: float = 1.2,
        b: float = 0.75,
        title_weight: int = 0,
        stopwords: str | Iterable[str] | None = "en",
        stemmer: str | Stemmer | None = None,
    ) -> None:
        if title_weight < 0:
            raise ConfigError(
                f"title_weight is {title_weight}; the title is counted once at least, which is 0 more times"
            )
        self._passages = list(passages)
        self._stopwords = _stopword_set(stopwords)
        self._stemmer = _find_stemmer(stemmer) if isinstance(stemmer, str) else stemmer
        self._ids: dict[str, int] = {}
        documents: list[list[int]] = []
        for passage in self._passages:
            words = self._words(passage.title) * (1 + title_weight) + self._words(passage.text)
            documents.append([self._ids.setdefault(word, len(self._ids)) for word in words])
        # A corpus without a single word has no index; nothing can be found in it.
        self._index = _build_index(documents, self._ids, k1, b) if self._ids else None

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages that share a word with each query, best first, ties in the order of the corpus."""
        return [self._find(request.query, request.top_k) for request in requests]

    def _find(self, query: str, top_k: int) -> list[Passage]:
        words = [self._ids[word] for word in self._words(query) if word in self._ids]
        if not words or top_k <= 0:
            return []
        assert self._index is not None
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(words)
        found = []
        for row in _best_rows(scores, top_k).tolist():
            passage = self._passages[row]
            found.append(Passage(passage.id, passage.title, passage.text, float(scores[row])))
        return found

    def _words(self, text: str) -> list[str]:
        # Composed, so that an accent written as a mark of its own does not end a word.
        words = _WORD.findall(unicodedata.normalize("NFKC", text).lower())
        if self._stopwords:
            words = [word for word in words if word not in self._stopwords]
        return self._stemmer(words) if self._stemmer else words


def _best_rows(scores: npt.NDArray[np.float32], top_k: int) -> npt.NDArray[np.intp]:
    """Rows of the best scores above 0, best first, the earlier row first where scores are equal."""
    if top_k == 1:
        best = scores.argmax()  # the first of the greatest
        return np.array([best] if scores[best] > 0 else [], dtype=np.intp)
    rows = np.flatnonzero(scores)
    if len(rows) > top_k:
        # All rows that tie with the last place are candidates; a plain partition would choose among them at will.
        matching = scores[rows]
        rows = rows[matching >= np.partition(matching, -top_k)[-top_k]]
    return rows[np.argsort(-scores[rows], kind="stable")[:top_k]]


def _build_index(documents: list[list[int]], ids: dict[str, int], k1: float, b: float) -> Any:
    import bm25s  # slow to import, since it brings numba where that is installed

    # It opens its logger down to DEBUG when imported; this puts the user's own settings in force again.
    logging.getLogger("bm25s").setLevel(logging.NOTSET)
    index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    index.index((documents, ids), create_empty_token=False, show_progress=False)
    return index


def _stopword_set(stopwords: str | Iterable[str] | None) -> frozenset[str]:
    if not stopwords:
        return frozenset()
    if not isinstance(stopwords, str):
        return frozenset(word.lower() for word in stopwords)
    if stopwords not in _STOPWORDS:
        raise ConfigError(f"no stop words for {stopwords!r}; choose one of: {', '.join(_STOPWORDS)}, or give a list")
    from bm25s import stopwords as lists

    return frozenset(getattr(lists, f"STOPWORDS_{_STOPWORDS[stopwords]}"))


def _find_stemmer(language: str) -> Stemmer:
    try:
        import Stemmer as PyStemmer
    except ImportError as error:
        raise MissingExtra("stemming needs PyStemmer; install it with: pip install PyStemmer") from error
    try:
        stem: Stemmer = PyStemmer.Stemmer(language).stemWords
    except KeyError:
        choices = ", ".join(PyStemmer.algorithms())
        raise ConfigError(f"no stemmer for {language!r}; choose one of: {choices}") from None
    return stem
