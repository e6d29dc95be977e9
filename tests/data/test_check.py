"""What a set is said to hold, on sets whose oddities are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mrsearch.core.ports import Search
from mrsearch.core.types import Passage, Question
from mrsearch.data.check import check_hits, check_overlap, check_questions
from mrsearch.data.hits import answer_rank, title_rank
from mrsearch.data.questions import digest_of, load_questions, scan_questions
from mrsearch.data.sample import keep_ids, read_ids
from mrsearch.errors import DataError

DATA = Path(__file__).parents[3] / "shared" / "data"

QUESTIONS = [
    Question("1", "Who wrote it?", ("Ada Lovelace", " "), "nq"),
    Question("2", "who wrote it", ("Babbage",), "nq"),
    Question("3", "Is it so?", ("yes",), "hotpotqa", ("So",)),
    Question("4", "Which grade?", ("A", "the"), "nq"),
    Question("5", "Why?", ("because one two three four five six seven eight nine ten",), "nq"),
]


class Shelf:
    """Finds the same passages for every query."""

    def __init__(self, *passages: Passage) -> None:
        self.passages = list(passages)
        self.asked: list[str] = []

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.asked += [request.query for request in requests]
        return [self.passages[: request.top_k] for request in requests]


def test_counts() -> None:
    found = check_questions(QUESTIONS)
    assert found["questions"] == 5
    assert found["sources"] == {"nq": 4, "hotpotqa": 1}
    assert (found["repeated"], found["repeated_with_other_golds"]) == (1, 1)
    assert (found["golds"], found["blank_golds"], found["golds_normalised_to_nothing"]) == (7, 1, 2)
    assert (found["long"], found["yes_no"], found["with_titles"]) == (1, 1, 1)
    assert found["median_words"] == 1
    assert check_questions(QUESTIONS, longest=11)["long"] == 0
    assert check_questions([])["questions"] == 0


def test_a_digest_tells_questions_golds_and_order() -> None:
    changed = [Question("1", "Who wrote it?", ("Ada",), "nq"), *QUESTIONS[1:]]
    assert len({digest_of(QUESTIONS), digest_of(QUESTIONS[::-1]), digest_of(changed), digest_of(QUESTIONS[:2])}) == 4
    assert digest_of(list(QUESTIONS)) == digest_of(QUESTIONS)


def test_overlap_minds_neither_case_nor_signs() -> None:
    assert check_overlap(QUESTIONS, [Question("x", "WHO wrote it", ("z",))]) == 2
    assert check_overlap(QUESTIONS, []) == 0


def test_hits_are_counted_by_place() -> None:
    shelf = Shelf(
        Passage("0", "Other", "nothing of use"),
        Passage("1", "Lovelace", "It was Ada Lovelace, not Babbages."),
        Passage("2", "Grade", "An A."),
        Passage("3", "So", "yes"),
    )
    seen: list[tuple[int, int]] = []
    found = check_hits(QUESTIONS, shelf, lambda done, total: seen.append((done, total)))
    assert shelf.asked == [question.question for question in QUESTIONS]
    assert found["title_questions"] == 1
    assert found["title_at"] == {"1": 0.0, "3": 0.0, "10": 1.0}
    assert found["answer_questions"] == 4  # not the one whose gold is yes
    assert found["answer_at"] == {"1": 0.0, "3": 0.25, "10": 0.25}
    assert seen[-1] == (5, 5)


def test_a_gold_counts_as_whole_words_in_title_or_text() -> None:
    question = Question("1", "?", ("The Art",), supporting_titles=("Art",))
    assert answer_rank([Passage("0", "", "a party of artists"), Passage("1", "Art", "x")], question) == 2
    assert title_rank([Passage("0", "art", "x"), Passage("1", "Art", "x")], question) == 2
    assert answer_rank([], question) is title_rank([], question) is None


def test_bad_rows_are_all_told(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    good = '{"id": "1", "question": "q", "golden_answers": ["a"]}\n'
    path.write_text(good + '{"id": "2"}\n' + good + '{"id": "3", "question": "r", "golden_answers": []}\n')
    questions, problems = scan_questions(path)
    assert [question.id for question in questions] == ["1"]
    assert [problem.partition(": ")[0].rpartition(" ")[2] for problem in problems] == ["2", "4", "3"]
    with pytest.raises(DataError, match="row 2: 'question' is missing"):
        load_questions(path)


def test_ids_choose_questions(tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text('{"mine.jsonl": ["3", "1"], "other": [7]}')
    assert [question.id for question in keep_ids(QUESTIONS, read_ids(ids, "some/where/mine.jsonl"))] == ["1", "3"]
    assert read_ids(ids, "other.jsonl.gz") == {"7"}
    with pytest.raises(DataError, match=r"has no ids for absent\.jsonl; it has: mine\.jsonl, other"):
        read_ids(ids, "absent.jsonl")
    with pytest.raises(DataError, match="1 ids are not in the set, among them '7'"):
        keep_ids(QUESTIONS, {"1", "7"})
    for content in ("5", "{"):
        ids.write_text(content)
        with pytest.raises(DataError, match="a JSON list of ids"):
            read_ids(ids, "mine")


@pytest.mark.skipif(not DATA.exists(), reason="the shared question sets are not here")
def test_the_real_sets_hold_what_is_known_of_them() -> None:
    hotpot = load_questions(DATA / "hotpotqa_dev.jsonl")
    found = check_questions(hotpot)
    assert (found["questions"], found["yes_no"], found["with_titles"]) == (5252, 325, 1680)
    assert check_overlap(load_questions(DATA / "hotpotqa_train.jsonl"), hotpot) == 0
    assert len(keep_ids(hotpot, read_ids(DATA / "covered_ids.json", "hotpotqa_dev.jsonl"))) == 1114
