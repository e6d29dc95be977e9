"""Question sets by name, through the real library, from a folder in the layout of their public homes."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mrsearch.core.types import Question
from mrsearch.data import sets
from mrsearch.data.questions import save_questions
from mrsearch.data.sets import SETS, load_set, read_questions
from mrsearch.errors import DataError, MissingExtra

datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_lines(path: Path, records: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def flashrag(tmp_path: Path) -> Path:
    """Two sets with the fields that FlashRAG's have."""
    home = tmp_path / "FlashRAG_datasets"
    rows = [{"id": f"test_{n}", "question": f"who is {n}", "golden_answers": [f"n{n}", "x"]} for n in range(3)]
    write_lines(home / "nq" / "test.jsonl", list(rows))
    facts = {"title": ["Ada", "Ada", "Babbage"], "sent_id": [0, 1, 0]}
    write_lines(
        home / "hotpotqa" / "dev.jsonl",
        [{"id": "dev_0", "question": "Who?", "golden_answers": ["Ada"], "metadata": {"supporting_facts": facts}}],
    )
    lines = ["---", "configs:"]
    for name, split in (("nq", "test"), ("hotpotqa", "dev")):
        lines += [f"- config_name: {name}", "  data_files:", f"  - split: {split}", f"    path: {name}/{split}.jsonl"]
    (home / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")
    return home


def test_a_set_has_its_sources_name_and_ids_that_tell_it_from_others(flashrag: Path) -> None:
    questions = load_set("nq", repository=str(flashrag))
    assert questions[1] == Question("nq_test_1", "who is 1", ("n1", "x"), "nq")
    (hotpot,) = load_set("hotpotqa", repository=str(flashrag))
    assert hotpot == Question("hotpotqa_dev_0", "Who?", ("Ada",), "hotpotqa", ("Ada", "Babbage"))


def test_another_number_of_questions_than_that_of_the_literature_is_told(
    flashrag: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load_set("nq", repository=str(flashrag))
    assert "nq has 3 questions, not the 3610" in caplog.text
    caplog.clear()
    monkeypatch.setitem(sets.SETS, "nq", replace(SETS["nq"], rows=3))  # type: ignore[arg-type]
    load_set("nq", repository=str(flashrag))
    assert not caplog.text


def test_a_mix_is_one_set_after_the_other(flashrag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = sets.load_set
    monkeypatch.setattr(sets, "load_set", lambda name: load(name, repository=str(flashrag)))
    mix = read_questions("hotpotqa+nq")
    assert [question.id for question in mix] == ["hotpotqa_dev_0", "nq_test_0", "nq_test_1", "nq_test_2"]


def test_asearcher_is_cut_into_training_and_test_as_the_published_code_does(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"extra_info": {"question": f" q{n}" + "?" * (n % 2), "ground_truth": n}} for n in range(50)
    ]
    write_lines(tmp_path / "asearcher" / "train.jsonl", rows)
    test = load_set("asearcher", repository=str(tmp_path / "asearcher"))
    train = load_set("asearcher-train", repository=str(tmp_path / "asearcher"))
    split = datasets.Dataset.from_list(rows).train_test_split(test_size=0.1, seed=42, shuffle=True)
    assert [question.golden_answers for question in test] == [
        (str(row["extra_info"]["ground_truth"]),) for row in split["test"]
    ]
    assert len(test) == 5
    assert len(train) == 45
    assert {question.question for question in test + train} == {f"q{n}?" for n in range(50)}
    assert test[0].id == "asearcher_test_0"


def test_the_sizes_of_the_literature() -> None:
    benchmarks = [found.rows for name, found in SETS.items() if not name.endswith("-train")]
    assert benchmarks == [3610, 11313, 14267, 7405, 12576, 2417, 125, 1399]
    assert SETS["nq-train"].rows + SETS["hotpotqa-train"].rows == 169_615
    assert SETS["asearcher"].rows + SETS["asearcher-train"].rows == 13_990


def test_a_file_goes_before_a_set_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = [Question("1", "Mine?", ("yes",))]
    save_questions("nq", mine)
    assert read_questions("nq") == mine


def test_a_name_that_nothing_has(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file hotpot and no question set of that name; sets: nq, triviaqa"):
        read_questions("hotpot")
    with pytest.raises(DataError, match=r"there is no file .*nq\.jsonl"):
        read_questions(str(tmp_path / "nq.jsonl"))


def test_a_home_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be fetched .* read the set from a file"):
        load_set("nq", repository=str(tmp_path / "nowhere"))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mrsearch\[data\]'"):
        load_set("nq")
