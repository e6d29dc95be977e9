"""Demonstrations: files of finished meta-episodes as text, written by hand or taken from trajectories."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Passage, Question
from mrsearch.data.demonstrations import (
    Demonstration,
    demonstration_from_record,
    load_demonstrations,
)
from mrsearch.errors import DataError
from mrsearch.rollout.scripted import replay
from plain_codec import PlainCodec, play_turns

RECORD: dict[str, Any] = {
    "question": {"id": "1", "question": "Where?", "golden_answers": ["Köln"]},
    "episodes": [
        {
            "turns": [
                {"text": "<search>q</search>", "passages": [{"id": "7", "title": "T", "text": "x"}]},
                {"text": "<answer>Bonn</answer>", "passages": None},
            ]
        },
        {"turns": [{"text": "<answer>Köln</answer>"}]},
    ],
}
SEARCH_TURN = ("<search>q</search>", (Passage("7", "T", "x"),))
DEMONSTRATION = Demonstration(
    Question("1", "Where?", ("Köln",)),
    ((SEARCH_TURN, ("<answer>Bonn</answer>", None)), (("<answer>Köln</answer>", None),)),
)


def test_a_record_is_read_as_its_question_and_the_turns_of_each_episode() -> None:
    assert demonstration_from_record(RECORD) == DEMONSTRATION


def test_the_turns_of_all_episodes_are_one_list() -> None:
    texts = [text for text, _ in DEMONSTRATION.turns]
    assert texts == ["<search>q</search>", "<answer>Bonn</answer>", "<answer>Köln</answer>"]


@pytest.mark.parametrize("name", ["demos.jsonl", "demos.jsonl.gz"])
def test_a_file_has_a_demonstration_a_line_and_may_be_compressed(tmp_path: Path, name: str) -> None:
    lines = f"{json.dumps(RECORD)}\n{json.dumps(RECORD)}\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    assert load_demonstrations(tmp_path / name) == [DEMONSTRATION, DEMONSTRATION]


def test_a_search_that_found_nothing_is_not_one_that_never_was(tmp_path: Path) -> None:
    turns = [{"text": "<search>q</search>", "passages": []}, {"text": "<search>q</search>"}]
    demonstration = demonstration_from_record({**RECORD, "episodes": [{"turns": turns}]})
    assert [passages for _, passages in demonstration.turns] == [(), None]


def test_a_trajectory_is_a_demonstration_that_another_codec_can_replay() -> None:
    prompts, plan = Prompts(), Plan(episodes=2, searches=1)
    codec, other = PlainCodec(prompts), PlainCodec(prompts)
    other.token("so that ids differ")
    question = DEMONSTRATION.question
    played = play_turns(
        MetaEpisode(question, plan, codec, prompts),
        codec,
        ["<search>q</search>", "<answer>Bonn</answer>", "<answer>Köln</answer>"],
        [Passage("7", "T", "x")],
    )
    demonstration = demonstration_from_record(json.loads(json.dumps(played.to_record())))
    assert demonstration == DEMONSTRATION
    again = MetaEpisode(demonstration.question, plan, other, prompts)
    replay(again, other, demonstration.turns)
    assert again.trajectory().episodes == played.episodes
    (window,), (copy,) = again.trajectory().windows, played.windows
    assert window.ids != copy.ids
    assert other.decode(window.ids) == codec.decode(copy.ids)
    assert window.loss_mask == copy.loss_mask


def test_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text(f"\n{json.dumps(RECORD)}\n\n", encoding="utf-8")
    assert load_demonstrations(path) == [DEMONSTRATION]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("[]", id="a list"),
        pytest.param("3", id="a number"),
        pytest.param("{}", id="no question"),
        pytest.param('{"question": "Where?", "episodes": []}', id="the question as text"),
        pytest.param(json.dumps({"question": RECORD["question"]}), id="no episodes"),
        pytest.param(json.dumps({**RECORD, "episodes": [{}]}), id="no turns"),
        pytest.param(json.dumps({**RECORD, "episodes": [{"turns": ["<answer>a</answer>"]}]}), id="a turn as text"),
        pytest.param(json.dumps({**RECORD, "episodes": [{"turns": [{"passages": []}]}]}), id="no text"),
        pytest.param(
            json.dumps({**RECORD, "episodes": [{"turns": [{"text": "", "passages": [{"body": "x"}]}]}]}),
            id="a passage of another form",
        ),
    ],
)
def test_a_line_that_is_none_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "demos.jsonl"
    path.write_text(f"{json.dumps(RECORD)}\n{line}\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r'demos\.jsonl, row 2: no demonstration .* a line needs "question" and "episodes"'
    ):
        load_demonstrations(path)


def test_a_missing_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load_demonstrations(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no demonstrations"):
        load_demonstrations(tmp_path / "empty.jsonl")
