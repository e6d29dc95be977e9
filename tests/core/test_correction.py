"""Importance weights between two engines: golden values by hand, bounds for any ratios."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.correction import Correction, bounded_weights, unbounded_weights

LOGS = [0.5, -0.2, 1.0]


def importance_weights(
    logs: npt.ArrayLike, units: npt.ArrayLike, correction: Correction, *, low: float, high: float
) -> npt.NDArray[np.float64]:
    return bounded_weights(unbounded_weights(logs, units, correction), correction, low=low, high=high)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("none", [1, 1, 1]),
        ("token_tis", [math.exp(0.5), math.exp(-0.2), 2]),
        ("token_mis", [math.exp(0.5), math.exp(-0.2), 0]),
        ("episode_tis", [2, 2, 2]),  # the product is exp(1.3) = 3.6693
        ("episode_mis", [0, 0, 0]),
    ],
)
def test_golden_values(correction: Correction, expected: list[float]) -> None:
    assert importance_weights(LOGS, [0, 0, 0], correction, low=0.5, high=2.0).tolist() == pytest.approx(expected)


def test_the_product_is_of_an_episode_and_not_of_what_stands_beside_it() -> None:
    weights = importance_weights([0.5, 0.1, -0.2, 0.1], [3, 1, 3, 1], "episode_mis", low=0.5, high=2.0)
    assert weights.tolist() == pytest.approx([math.exp(0.3), math.exp(0.2), math.exp(0.3), math.exp(0.2)])


def test_what_is_outside_a_bound_on_either_side_is_masked() -> None:
    assert importance_weights([-0.8, 0.8], [0, 1], "token_mis", low=0.5, high=2.0).tolist() == [0, 0]
    assert importance_weights([-0.8], [0], "token_tis", low=0.5, high=2.0).tolist() == pytest.approx([math.exp(-0.8)])


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 3)), max_size=20),
    st.sampled_from(get_args(Correction)),
)
def test_weights_are_finite_and_bounded(tokens: list[tuple[float, int]], correction: Correction) -> None:
    logs, units = [log for log, _ in tokens], [unit for _, unit in tokens]
    weights = importance_weights(logs, units, correction, low=0.5, high=2.0)
    assert weights.shape == (len(tokens),)
    assert ((weights >= 0) & (weights <= 2)).all()
    assert correction != "token_mis" or ((weights == 0) | (weights >= 0.5)).all()


def test_a_product_within_its_bounds_is_not_bounded() -> None:
    free = unbounded_weights([0.002] * 50, [1] * 50, "episode_tis")
    assert free.tolist() == pytest.approx([math.exp(0.1)] * 50)
    assert (bounded_weights(free, "episode_tis", low=0.5, high=2.0) == free).all()


@given(st.integers(1, 9), st.sampled_from(get_args(Correction)))
def test_engines_that_agree_change_nothing(count: int, correction: Correction) -> None:
    assert importance_weights(np.zeros(count), np.arange(count), correction, low=0.5, high=2.0).tolist() == [1] * count
