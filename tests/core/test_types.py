"""The shared nouns: they keep themselves consistent, and come back from JSON as they went."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.types import (
    SCHEMA,
    Action,
    Episode,
    Passage,
    Question,
    Trajectory,
    Turn,
    Window,
    question_from_record,
)
from mrsearch.errors import DataError

TEXT = st.text(max_size=8)
IDS = st.lists(st.integers(0, 200_000), max_size=6)
PASSAGES = st.builds(Passage, TEXT, TEXT, TEXT, st.none() | st.floats(allow_nan=False))
ACTIONS = st.builds(Action, st.sampled_from(["search", "answer", "invalid"]), TEXT)
TURNS = st.builds(
    Turn,
    TEXT,
    ACTIONS,
    st.sampled_from(["search", "answer", "invalid", "length", "context_full"]),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 99),
    st.integers(0, 99),
    st.none() | st.lists(PASSAGES, max_size=2).map(tuple),
)
EPISODES = st.builds(
    Episode,
    st.integers(1, 3),
    st.lists(TURNS, max_size=2),
    st.sampled_from(["answer", "no_answer", "context_full", "retrieval_failed"]),
    st.none() | TEXT,
)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    window = Window()
    for episode in range(1, draw(st.integers(1, 3)) + 1):
        window.place(draw(IDS), episode=episode)
        ids = draw(IDS)
        window.sample(ids, [draw(st.floats(max_value=0, allow_nan=False)) for _ in ids], episode=episode)
    return window


TRAJECTORIES = st.builds(
    Trajectory,
    st.builds(Question, TEXT, TEXT, st.lists(TEXT, max_size=2).map(tuple), TEXT, st.lists(TEXT, max_size=2).map(tuple)),
    st.integers(0, 9),
    st.integers(0, 9),
    st.lists(EPISODES, max_size=3),
    st.lists(windows(), max_size=3),
    st.sampled_from(["complete", "stopped", "context_full", "retrieval_failed"]),
    st.dictionaries(TEXT, st.integers(0, 9)).map(Counter),
    st.lists(st.floats(allow_nan=False), max_size=3),
    st.lists(st.floats(allow_nan=False), max_size=3),
)


class TestWindow:
    def test_what_is_placed_is_not_trained_and_what_is_sampled_is(self) -> None:
        window = Window()
        window.place([7, 8], episode=1)
        window.sample([9], [-0.5], episode=1)
        window.place([7], episode=2)
        assert window.ids == [7, 8, 9, 7]
        assert window.loss_mask == [0, 0, 1, 0]
        assert window.episode_ids == [1, 1, 1, 2]
        assert window.logprobs == [0.0, 0.0, -0.5, 0.0]
        assert (len(window), window.trained) == (4, 1)

    def test_the_same_id_is_trained_where_it_was_sampled_and_not_where_it_was_placed(self) -> None:
        window = Window()
        window.place([5], episode=1)
        window.sample([5], [-1.0], episode=1)
        assert window.loss_mask == [0, 1]

    def test_refuses_ids_without_their_log_probabilities(self) -> None:
        with pytest.raises(AssertionError, match="2 sampled ids but 1 log-probabilities"):
            Window().sample([1, 2], [-0.5], episode=1)


class TestEpisode:
    def test_counts_the_searches_that_were_carried_out(self) -> None:
        def search(passages: tuple[Passage, ...] | None) -> Turn:
            return Turn("", Action("search", "q"), "search", True, 0, 0, 0, passages)

        # One found a passage, one found nothing, and one came after the budget and was not carried out.
        assert Episode(1, [search((Passage("1", "", "t"),)), search(()), search(None)]).searches == 2


class TestRecord:
    @given(trajectory=TRAJECTORIES)
    def test_a_trajectory_comes_back_from_json_as_it_was(self, trajectory: Trajectory) -> None:
        again = Trajectory.from_record(json.loads(json.dumps(trajectory.to_record())))
        assert again == trajectory
        # == on floats takes 0.0 and -0.0 for one; their hexadecimal form does not.
        for window, other in zip(trajectory.windows, again.windows, strict=True):
            assert [value.hex() for value in window.logprobs] == [value.hex() for value in other.logprobs]

    def test_carries_the_schema_version(self) -> None:
        trajectory = Trajectory(Question("1", "q", ("a",)), 0, 0, [], [], "complete")
        assert trajectory.to_record()["schema"] == SCHEMA

    @pytest.mark.parametrize("schema", [SCHEMA + 1, None, str(SCHEMA)])
    def test_of_another_schema_is_refused(self, schema: object) -> None:
        record = Trajectory(Question("1", "q", ("a",)), 0, 0, [], [], "complete").to_record()
        with pytest.raises(DataError, match=f"has schema {schema!r}; this version reads {SCHEMA}"):
            Trajectory.from_record({**record, "schema": schema})

    @pytest.mark.parametrize("field", ["question", "group", "episodes", "windows", "finish_reason", "rewards"])
    def test_with_a_missing_field_is_refused_by_its_name(self, field: str) -> None:
        record = Trajectory(Question("1", "q", ("a",)), 0, 0, [], [], "complete").to_record()
        del record[field]
        with pytest.raises(DataError, match=f"incomplete.*{field}"):
            Trajectory.from_record(record)


class TestQuestionRecord:
    def test_optional_fields_are_empty_where_they_are_missing(self) -> None:
        record = {"id": 7, "question": "Who?", "golden_answers": ["Ada", "Lovelace"]}
        assert question_from_record(record) == Question("7", "Who?", ("Ada", "Lovelace"), "", ())
