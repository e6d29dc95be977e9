"""Question sets: every layout reads to the same questions, and every bad row is named."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.types import Question
from mrsearch.data.questions import load_questions, save_questions
from mrsearch.errors import DataError, MissingExtra

DATA = Path(__file__).parents[2].parent / "shared" / "data"

ADA = {"id": "q1", "question": "Who wrote the first program?", "golden_answers": ["Ada Lovelace"]}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def read_one(folder: Path, record: object) -> Question:
    (question,) = load_questions(write(folder / "questions.jsonl", record))
    return question


class TestLayouts:
    def test_our_own(self, tmp_path: Path) -> None:
        record = {**ADA, "data_source": "nq", "supporting_titles": ["Ada Lovelace", "Analytical Engine"]}
        assert read_one(tmp_path, record) == Question(
            "q1", "Who wrote the first program?", ("Ada Lovelace",), "nq", ("Ada Lovelace", "Analytical Engine")
        )

    def test_flashrag_keeps_titles_in_its_metadata(self, tmp_path: Path) -> None:
        facts = {"title": ["Ada Lovelace", "Ada Lovelace", "Charles Babbage"], "sent_id": [0, 1, 0]}
        question = read_one(tmp_path, {**ADA, "id": "dev_0", "metadata": {"type": "bridge", "supporting_facts": facts}})
        assert question.id == "dev_0"
        assert question.supporting_titles == ("Ada Lovelace", "Charles Babbage")

    def test_search_r1_keeps_golds_under_the_reward_model(self, tmp_path: Path) -> None:
        record = {
            "data_source": "nq",
            "question": ADA["question"],
            "prompt": [{"role": "user", "content": "Answer the given question. Who wrote the first program?"}],
            "ability": "fact-reasoning",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada Lovelace", "Lovelace"]}},
            "extra_info": {"split": "train", "index": 7},
        }
        assert read_one(tmp_path, record) == Question("7", str(ADA["question"]), ("Ada Lovelace", "Lovelace"), "nq")

    @pytest.mark.parametrize(
        ("golds", "expected"),
        [
            (["1815", 1815], ("1815", "1815")),
            ("Ada Lovelace", ("Ada Lovelace",)),
            ('["Ada", "Lovelace"]', ("Ada", "Lovelace")),
            ("[sic", ("[sic",)),
            (["Ada", ""], ("Ada", "")),
        ],
    )
    def test_golds_may_be_a_list_or_text(self, tmp_path: Path, golds: object, expected: tuple[str, ...]) -> None:
        assert read_one(tmp_path, {**ADA, "golden_answers": golds}).golden_answers == expected

    def test_an_id_may_be_a_number(self, tmp_path: Path) -> None:
        assert [read_one(tmp_path, {**ADA, "id": value}).id for value in (0, 12, 12.0)] == ["0", "12", "12"]

    def test_a_list_of_rows_in_one_json_file(self, tmp_path: Path) -> None:
        path = tmp_path / "questions.json"
        path.write_text(json.dumps([ADA, {**ADA, "id": "q2"}], indent=2), encoding="utf-8")
        assert [question.id for question in load_questions(path)] == ["q1", "q2"]

    def test_compressed(self, tmp_path: Path) -> None:
        path = tmp_path / "questions.jsonl.gz"
        path.write_bytes(gzip.compress(json.dumps(ADA).encode()))
        assert load_questions(str(path))[0].id == "q1"

    def test_parquet(self, tmp_path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow", reason="the extra `data` is not installed")
        parquet = pytest.importorskip("pyarrow.parquet")
        record: dict[str, Any] = {
            "id": "train_0",
            "question": ADA["question"],
            "golden_answers": np.array(["Ada Lovelace"]),
            "data_source": "nq",
            "reward_model": {"ground_truth": {"target": ["Ada Lovelace"]}, "style": "rule"},
            "extra_info": {"index": 0, "split": "train"},
        }
        parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "train.parquet")
        expected = Question("train_0", str(ADA["question"]), ("Ada Lovelace",), "nq")
        assert load_questions(tmp_path / "train.parquet") == [expected]
        (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
        with pytest.raises(DataError, match=r"broken\.parquet cannot be read as Parquet"):
            load_questions(tmp_path / "broken.parquet")
        with pytest.raises(DataError, match="there is no file"):
            load_questions(tmp_path / "none.parquet")

    def test_parquet_without_its_package_names_the_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(MissingExtra, match=r"mrsearch\[data\]"):
            load_questions(tmp_path / "train.parquet")


class TestLines:
    def test_the_last_line_may_lack_its_end_and_blank_lines_may_stand_between(self, tmp_path: Path) -> None:
        path = tmp_path / "questions.jsonl"
        path.write_text(json.dumps(ADA) + "\r\n\n" + json.dumps({**ADA, "id": "q2"}), encoding="utf-8-sig")
        assert [question.id for question in load_questions(path)] == ["q1", "q2"]

    def test_other_line_separators_are_part_of_a_text(self, tmp_path: Path) -> None:
        path = tmp_path / "questions.jsonl"
        path.write_text(json.dumps({**ADA, "question": "one\u2028two\x85?"}, ensure_ascii=False), encoding="utf-8")
        assert load_questions(path)[0].question == "one\u2028two\x85?"


class TestIds:
    def test_a_question_may_repeat(self, tmp_path: Path) -> None:
        assert len(load_questions(write(tmp_path / "q.jsonl", ADA, {**ADA, "id": "q2"}))) == 2

    def test_an_id_may_not(self, tmp_path: Path) -> None:
        path = write(tmp_path / "q.jsonl", ADA, {**ADA, "id": "q2"}, ADA)
        with pytest.raises(DataError, match=r"q\.jsonl, row 3: id 'q1' is that of row 1 too"):
            load_questions(path)

    def test_ids_that_repeat_between_sources_get_the_source_in_front(self, tmp_path: Path) -> None:
        records = [{**ADA, "id": id_, "data_source": source} for id_, source in [(0, "nq"), (0, "popqa"), (1, "nq")]]
        questions = load_questions(write(tmp_path / "merged.jsonl", *records))
        assert [question.id for question in questions] == ["nq_0", "popqa_0", "1"]


class TestBadRows:
    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"question": None}, "'question' is missing"),
            ({"question": "  "}, "'question' is '  '; it must be a text that is not blank"),
            ({"question": 3}, "'question' is 3"),
            ({"id": None}, "the id is missing"),
            ({"id": ""}, "the id is ''"),
            ({"id": [1]}, r"the id is \[1\]"),
            ({"golden_answers": None}, "has no 'golden_answers'"),
            ({"golden_answers": []}, ".*needs at least one answer"),
            ({"golden_answers": [" "]}, ".*needs at least one answer"),
            ({"golden_answers": {"target": "x"}}, ".*must be a list of texts"),
            ({"golden_answers": ["x", None]}, "'golden_answers' holds missing"),
            ({"golden_answers": [True]}, "'golden_answers' holds True"),
            ({"data_source": ["nq"]}, "'data_source' holds"),
            ({"question": "who \ud800?"}, "'question' holds half of a UTF-16 pair"),
            ({"golden_answers": ["\udfff"]}, "'golden_answers' holds half"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_row(self, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
        path = write(tmp_path / "q.jsonl", {**ADA, "id": "first"}, {**ADA, **changed})
        with pytest.raises(DataError, match=rf"q\.jsonl, row 2: {message}") as error:
            load_questions(path)
        str(error.value).encode()

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b'{"id": 1', "row 2: is not JSON in UTF-8"),
            (b'{"id": "\xff"}', "row 2: is not JSON in UTF-8"),
            (b"[1, 2]", r"row 2: is \[1, 2\]; a row must be an object"),
        ],
    )
    def test_a_line_that_is_no_row(self, tmp_path: Path, line: bytes, message: str) -> None:
        path = tmp_path / "q.jsonl"
        path.write_bytes(json.dumps(ADA).encode() + b"\n" + line)
        with pytest.raises(DataError, match=message):
            load_questions(path)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("empty.jsonl", b"", "holds no questions"),
            ("blank.jsonl", b" \n\n", "holds no questions"),
            ("empty.json", b"[]", "holds no questions"),
            ("open.json", b"[{", "opens a JSON list but is not one"),
            ("plain.jsonl.gz", b"{}", "cannot be read"),
            ("cut.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], "cannot be read"),
            ("damaged.jsonl.gz", gzip.compress(b"abcdefgh" * 99, mtime=0)[:12] + b"\xff" * 30, "cannot be read"),
        ],
    )
    def test_a_file_that_is_no_question_set(self, tmp_path: Path, name: str, content: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            load_questions(tmp_path / name)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="there is no file"):
            load_questions(tmp_path / "none.jsonl")
        with pytest.raises(DataError, match="cannot be read"):
            load_questions(tmp_path)


class TestSaving:
    @pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
    @given(
        texts=st.lists(st.text().filter(str.strip), min_size=3, max_size=3),
        titles=st.lists(st.text(), max_size=2),
    )
    def test_what_is_saved_is_what_is_loaded(
        self, tmp_path_factory: pytest.TempPathFactory, name: str, texts: list[str], titles: list[str]
    ) -> None:
        path = tmp_path_factory.mktemp("saved") / name
        first = Question("1", texts[0], (texts[1], texts[2]), texts[1], tuple(titles))
        questions = [first, Question("2", texts[2], (texts[0],))]
        save_questions(path, questions)
        assert load_questions(path) == questions

    def test_the_same_questions_give_the_same_file(self, tmp_path: Path) -> None:
        for name in ("one.gz", "two.gz"):
            save_questions(tmp_path / name, [Question("1", "Who?", ("Ada",))])
        assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()

    def test_what_cannot_be_written_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="row 1: question '1' holds half of a UTF-16 pair"):
            save_questions(tmp_path / "q.jsonl", [Question("1", "\ud800", ("Ada",))])
        with pytest.raises(DataError, match="written as JSON lines"):
            save_questions(tmp_path / "q.parquet", [])


@pytest.mark.skipif(not list(DATA.glob("*.jsonl")), reason=f"the question sets are not in {DATA}")
def test_the_question_sets_are_read() -> None:
    for path in DATA.glob("*.jsonl"):
        with path.open(encoding="utf-8") as lines:
            assert len(load_questions(path)) == sum(1 for _ in lines)
