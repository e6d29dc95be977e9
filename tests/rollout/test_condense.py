"""Passages that the policy condenses: what it is asked, what becomes of what it writes, and what stays as it was."""

from __future__ import annotations

import pytest

from mrsearch.core.ports import Completion, Generate, Sampling, Search
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Passage
from mrsearch.errors import RetrieverError
from mrsearch.rollout.condense import CondensingRetriever
from mrsearch.rollout.driver import counted
from plain_codec import END, CompletionPolicy, PassageBook, PlainCodec, completion, write

PROMPTS = Prompts(passage="{rank} {title}: {text}", passage_untitled="{rank} {text}")
TOWER = Passage("7", "Tower", "in Paris", 0.9)
HIGH = Passage("8", "", "324 m")
FORUM = Passage("9", "Forum", "in Rome")
BOOK = {"tower": [TOWER, HIGH], "forum": [FORUM]}


@pytest.fixture
def codec() -> PlainCodec:
    return PlainCodec(PROMPTS)


class Reader:
    """A policy that writes one text, or the completion for it, and remembers what it was asked."""

    def __init__(self, codec: PlainCodec, *replies: str | Completion) -> None:
        self.requests: list[Generate] = []
        self._waiting = list(replies)
        self._codec = codec
        self.policy = CompletionPolicy(self._reply)

    def _reply(self, request: Generate) -> Completion:
        self.requests.append(request)
        reply = self._waiting.pop(0)
        return write(self._codec, reply) if isinstance(reply, str) else reply


def condensing(
    codec: PlainCodec, reader: Reader, book: PassageBook, observation_tokens: int = 100
) -> CondensingRetriever:
    return CondensingRetriever(
        book, reader.policy, codec, prompt="Read on {question}.\n", tokens=40, observation_tokens=observation_tokens
    )


def test_the_passages_become_one_of_the_policys_words_that_names_them_all(codec: PlainCodec) -> None:
    retriever = condensing(codec, Reader(codec, " It is in Paris.\n"), PassageBook(BOOK))
    assert retriever.search([Search("tower", 2)]) == [[Passage("7+8", "", "It is in Paris.")]]


def test_the_policy_sees_the_query_and_what_was_found_in_a_window_of_its_own(codec: PlainCodec) -> None:
    reader = Reader(codec, "a")
    condensing(codec, reader, PassageBook(BOOK)).search([Search("tower", 2)])
    (request,) = reader.requests
    assert codec.decode(request.ids) == (
        "[message]Read on tower.\n[reply]\n\n<information>\n1 Tower: in Paris\n2 324 m\n</information>\n\n"
    )
    assert request.window == (-1, 0)  # that of no group
    assert request.new_from == 0


def test_the_policy_reads_greedily_and_stops_at_no_tag(codec: PlainCodec) -> None:
    reader = Reader(codec, "a")
    condensing(codec, reader, PassageBook(BOOK)).search([Search("tower", 2)])
    (request,) = reader.requests
    assert (request.sampling, request.stop, request.max_tokens) == (Sampling(temperature=0.0), (), 40)


def test_the_number_of_passages_and_of_their_tokens_is_that_of_the_plan(codec: PlainCodec) -> None:
    reader = Reader(codec, "a", "b")
    for limit in (100, 17):
        condensing(codec, reader, PassageBook(BOOK), limit).search([Search("tower", 1)])
    wide, narrow = (codec.decode(request.ids) for request in reader.requests)
    assert wide.endswith("<information>\n1 Tower: in Paris\n</information>\n\n")
    # Tags take 12 of the 17; the passage's line break, rank, space, title and colon are left.
    assert narrow.endswith("<information>\n1 Tower:\n</information>\n\n")


def test_each_search_of_a_call_gets_what_was_written_for_it(codec: PlainCodec) -> None:
    reader = Reader(codec, "Paris", "Rome")
    retriever = condensing(codec, reader, PassageBook(BOOK))
    found = retriever.search([Search("tower", 3), Search("nothing", 3), Search("forum", 3)])
    assert found == [[Passage("7+8", "", "Paris")], [], [Passage("9", "", "Rome")]]
    # In one call of the policy, from which the search that found nothing is left out.
    assert reader.policy.calls == [[(-1, 0), (-1, 2)]]


def test_where_nothing_was_found_the_policy_is_not_asked(codec: PlainCodec) -> None:
    reader = Reader(codec)
    retriever = condensing(codec, reader, PassageBook(BOOK))
    assert retriever.search([Search("nothing", 3), Search("never", 3)]) == [[], []]
    assert retriever.search([]) == []
    assert reader.policy.calls == []
    assert retriever.counters == {"condense_tokens": 0}


@pytest.mark.parametrize("written", [[], [END], "  \n"], ids=["nothing", "an end alone", "blanks"])
def test_where_nothing_was_written_the_passages_stay_as_they_are(codec: PlainCodec, written: list[int] | str) -> None:
    reply = written if isinstance(written, str) else completion(written, "end")
    found = condensing(codec, Reader(codec, reply), PassageBook(BOOK)).search([Search("tower", 3)])
    assert found == [[TOWER, HIGH]]


def test_the_end_of_the_policys_turn_is_no_part_of_the_passage(codec: PlainCodec) -> None:
    reply = completion([*codec.encode("in Paris"), END], "end")
    retriever = condensing(codec, Reader(codec, reply), PassageBook(BOOK))
    assert retriever.search([Search("tower", 3)]) == [[Passage("7+8", "", "in Paris")]]


def test_every_token_that_was_written_is_counted(codec: PlainCodec) -> None:
    replies = [completion([*codec.encode("in Paris"), END], "end"), "in Rome, Italy", completion([END], "end")]
    retriever = condensing(codec, Reader(codec, *replies), PassageBook(BOOK))
    retriever.search([Search("tower", 3), Search("forum", 3)])
    retriever.search([Search("tower", 3)])
    # "in", a space, "Paris" and the end; "in", a space, "Rome", a comma, a space, "Italy"; an end.
    assert retriever.counters == {"condense_tokens": 4 + 6 + 1}


def test_the_same_search_is_the_same_request_whatever_else_is_searched_for(codec: PlainCodec) -> None:
    reader = Reader(codec, *"abc")
    retriever = condensing(codec, reader, PassageBook(BOOK))
    retriever.search([Search("forum", 3)])
    retriever.search([Search("tower", 3), Search("forum", 3)])
    alone, _, again = reader.requests
    assert (alone.ids, alone.seed, alone.sampling) == (again.ids, again.seed, again.sampling)


def test_an_outage_of_what_it_stands_before_passes(codec: PlainCodec) -> None:
    reader = Reader(codec)
    with pytest.raises(RetrieverError, match="no reply for 'tower'"):
        condensing(codec, reader, PassageBook(BOOK, broken=["tower"])).search([Search("tower", 3)])
    assert reader.policy.calls == []


def test_a_driver_still_sees_what_the_retriever_behind_it_counts(codec: PlainCodec) -> None:
    class CountingBook(PassageBook):
        counters = {"retries": 5}  # noqa: RUF012

    assert counted(condensing(codec, Reader(codec), CountingBook(BOOK)))["retrieval_retries"] == 5
