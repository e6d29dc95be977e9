"""Reflecting against sampling at equal cost, on results of two questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.errors import DataError
from mrsearch.evaluate.scaling import MOST_SAMPLES, samples_for, scaling_curve


def reflecting(em: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]) -> dict[str, Any]:
    answers = [
        {"id": str(n), "em": list(a), "tokens": list(b)} for n, (a, b) in enumerate(zip(em, tokens, strict=True))
    ]
    means = [sum(column) / len(em) for column in zip(*em, strict=True)]
    return {
        "answers": answers,
        "values": {f"em/{n}": mean for n, mean in enumerate(means, start=1)},
        "intervals": {"em": [(0.1 * n, 0.2 * n) for n in range(1, len(means) + 1)]},
    }


def sampling(
    em: Sequence[Sequence[float]], right: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]
) -> dict[str, Any]:
    rows = zip(em, right, tokens, strict=True)
    return {
        "answers": [{"id": str(n), "em": [*a], "right": [*b], "tokens": [*c]} for n, (a, b, c) in enumerate(rows)],
        "values": {},
    }


def equal(length: int, tokens: int) -> dict[str, Any]:
    """Samples that are all wrong and cost the same, of one question."""
    return sampling([[0.0] * length], [[0.0] * length], [[tokens] * length])


REFLECT = reflecting([[0.0, 1.0], [1.0, 1.0]], [[10, 20], [20, 12]])
"""On average 15 tokens for one episode, 31 for both."""
PARALLEL = sampling(
    em=[[0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]],
    right=[[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]],
    tokens=[[8, 12, 10, 10], [12, 8, 10, 10]],
)
"""On average 10 tokens more for each sample: 10, 20, 30, 40."""


class TestSamplesFor:
    @pytest.mark.parametrize(
        ("tokens", "samples"),
        [
            pytest.param([[10, 20], [20, 10]], 2, id="30 tokens of 15 each"),
            pytest.param([[10, 15]], 3, id="25 of 10, rounded up"),
            pytest.param([[10, 20, 30]], 6, id="60 of 10"),
            pytest.param([[10, 5], [10, 0]], 2, id="as many as episodes at least"),
            pytest.param([[1, 99]], 8, id="four times the episodes at most"),
            pytest.param([[0, 5]], 2, id="first episodes without a token"),
        ],
    )
    def test_is_what_all_episodes_would_pay_for(self, tokens: list[list[int]], samples: int) -> None:
        assert samples_for(reflecting([[0.0] * len(row) for row in tokens], tokens)) == samples

    @given(st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=4))
    def test_lies_between_the_episodes_and_four_times_as_many(self, tokens: list[list[int]]) -> None:
        assert 3 <= samples_for(reflecting([[0.0] * 3] * len(tokens), tokens)) <= 3 * MOST_SAMPLES == 12


class TestCurve:
    def test_has_what_reflecting_reached_and_took(self) -> None:
        curve = scaling_curve(REFLECT, PARALLEL)
        assert [(row["episodes"], row["em"], row["tokens"]) for row in curve] == [(1, 0.5, 15.0), (2, 1.0, 31.0)]
        assert [row["interval"] for row in curve] == [(0.0, 1.0), (1.0, 1.0)]

    def test_equal_episodes_are_as_many_samples(self) -> None:
        first, second = (row["equal_episodes"] for row in scaling_curve(REFLECT, PARALLEL))
        assert (first["samples"], first["em"], first["tokens"], first["any"]) == (1, 0.5, 10.0, 0.5)
        assert (second["samples"], second["em"], second["tokens"], second["any"]) == (2, 0.5, 20.0, 0.5)
        # Question by question 0 - 0 and 1 - 1, then 1 - 0 and 1 - 1.
        assert (first["difference"], first["low"], first["high"]) == (0.0, 0.0, 0.0)
        assert (second["difference"], second["low"], second["high"]) == (0.5, 0.0, 1.0)

    def test_equal_tokens_are_as_many_samples_as_fit(self) -> None:
        first, second = (row["equal_tokens"] for row in scaling_curve(REFLECT, PARALLEL))
        # One of 10 in 15; three of 30 in 31, of which the vote is wrong twice though one is right for each question.
        assert (first["samples"], first["em"], first["tokens"]) == (1, 0.5, 10.0)
        assert (second["samples"], second["em"], second["any"], second["tokens"]) == (3, 0.0, 1.0, 30.0)
        assert (second["difference"], second["low"], second["high"]) == (1.0, 1.0, 1.0)
        assert second["interval"] == (0.0, 0.0)

    def test_samples_that_take_exactly_as_much_fit(self) -> None:
        (row,) = scaling_curve(reflecting([[1.0]], [[30]]), equal(4, 10))
        assert row["equal_tokens"]["samples"] == 3

    def test_one_sample_is_drawn_even_where_none_fits(self) -> None:
        (row,) = scaling_curve(reflecting([[1.0]], [[9]]), equal(2, 10))
        assert (row["equal_tokens"]["samples"], row["equal_tokens"]["tokens"]) == (1, 10.0)
        assert row["equal_tokens"]["tokens_left_over"] is False

    def test_the_difference_is_paired_by_question(self) -> None:
        # Both have one of two right, but another one: the difference is 0 and not at all sure.
        reflect = reflecting([[1.0], [0.0]], [[10], [10]])
        parallel = sampling([[0.0], [1.0]], [[0.0], [1.0]], [[10], [10]])
        against = scaling_curve(reflect, parallel)[0]["equal_episodes"]
        assert (against["difference"], against["low"], against["high"]) == (0.0, -1.0, 1.0)


class TestTokensLeftOver:
    @pytest.mark.parametrize(
        ("spent", "samples", "left_over"),
        [
            pytest.param(25, 4, False, id="a sample more was drawn than fits"),
            pytest.param(49, 4, False, id="what is left pays for no sample"),
            pytest.param(51, 4, True, id="what is left pays for another sample"),
            pytest.param(500, 4, True, id="far more was spent"),
        ],
    )
    def test_says_whether_another_sample_would_have_fitted(self, spent: int, samples: int, left_over: bool) -> None:
        (row,) = scaling_curve(reflecting([[1.0]], [[spent]]), equal(samples, 10))
        assert row["equal_tokens"]["tokens_left_over"] is left_over


class TestOtherQuestions:
    def test_are_refused(self) -> None:
        other = equal(2, 10)
        other["answers"][0]["id"] = "another"
        with pytest.raises(DataError, match="were asked different questions"):
            scaling_curve(reflecting([[1.0]], [[10]]), other)

    def test_those_of_both_count_in_any_order(self) -> None:
        turned = {**PARALLEL, "answers": PARALLEL["answers"][::-1]}
        assert scaling_curve(REFLECT, turned) == scaling_curve(REFLECT, PARALLEL)
        fewer = {**PARALLEL, "answers": PARALLEL["answers"][:1]}
        alone = {**REFLECT, "answers": REFLECT["answers"][:1]}
        assert scaling_curve(REFLECT, fewer) == scaling_curve(alone, fewer)

    def test_fewer_samples_than_episodes_are_refused(self) -> None:
        with pytest.raises(DataError, match="1 samples are fewer than the 2 episodes"):
            scaling_curve(reflecting([[1.0, 1.0]], [[10, 10]]), equal(1, 10))

    def test_a_sample_that_would_just_have_fitted_leaves_tokens_over(self) -> None:
        (row,) = scaling_curve(reflecting([[1.0]], [[20]]), equal(1, 10))
        assert row["equal_tokens"]["tokens_left_over"]
        (row,) = scaling_curve(reflecting([[1.0]], [[19]]), equal(1, 10))
        assert not row["equal_tokens"]["tokens_left_over"]


@given(
    spent=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    costs=st.lists(st.integers(1, 30), min_size=4, max_size=8),
)
def test_samples_at_equal_tokens_take_no_more_than_the_episodes_unless_it_is_one(
    spent: list[int], costs: list[int]
) -> None:
    length = len(costs)
    parallel = sampling([[0.0] * length], [[0.0] * length], [costs])
    for row in scaling_curve(reflecting([[0.0] * len(spent)], [spent]), parallel):
        against = row["equal_tokens"]
        assert against["tokens"] == sum(costs[: against["samples"]])
        assert against["samples"] == 1 or against["tokens"] <= row["tokens"]
        assert against["samples"] == length or against["tokens"] + costs[against["samples"]] > row["tokens"]
