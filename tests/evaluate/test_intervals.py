"""Intervals that hold what they promise, and a test with known p-values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrsearch.evaluate.intervals import bootstrap, mcnemar


def test_an_interval_of_many_questions_is_that_of_the_normal_approximation() -> None:
    scores = np.arange(2000) % 10 < 3
    found = bootstrap(scores)
    error = 1.96 * (0.3 * 0.7 / 2000) ** 0.5
    assert found.mean == pytest.approx(0.3)
    assert found.low == pytest.approx(0.3 - error, abs=0.002)
    assert found.high == pytest.approx(0.3 + error, abs=0.002)


def test_it_holds_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    held = [
        found.low <= 0.6 <= found.high
        for found in (bootstrap(rng.random(60) < 0.6, resamples=500, seed=seed) for seed in range(200))
    ]
    assert 0.88 <= np.mean(held) <= 0.99


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=40), st.integers(0, 3))
def test_bounds_lie_around_the_mean_and_come_again(scores: list[float], seed: int) -> None:
    found = bootstrap(scores, resamples=200, seed=seed)
    assert min(scores) <= found.low <= found.high <= max(scores)
    assert found == bootstrap(scores, resamples=200, seed=seed)


def test_the_size_of_a_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.arange(30) % 2
    whole = bootstrap(scores, resamples=64)
    monkeypatch.setattr("mrsearch.evaluate.intervals._BLOCK", 30)
    assert bootstrap(scores, resamples=64) == whole


@pytest.mark.parametrize("scores", [[], [[1.0, 0.0]]])
def test_an_interval_needs_scores(scores: list[float]) -> None:
    with pytest.raises(ValueError, match="one each"):
        bootstrap(scores)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (6, 0, 0.03125), (3, 3, 1.0), (8, 2, 0.109375), (15, 5, 0.0413895)],
)
def test_p_values_of_the_exact_binomial(wins: int, losses: int, p: float) -> None:
    first = [1] * wins + [0] * losses + [1, 0, 1]
    second = [0] * wins + [1] * losses + [1, 0, 1]
    assert mcnemar(first, second) == pytest.approx(p, abs=1e-6)
    assert mcnemar(second, first) == pytest.approx(p, abs=1e-6)


def test_thousands_of_questions_are_no_overflow() -> None:
    first = np.ones(20_000)
    second = np.arange(20_000) % 2
    assert mcnemar(first, second) == 0.0


@pytest.mark.parametrize(("first", "second"), [([1], [1, 0]), ([0.5], [1])])
def test_only_right_and_wrong_can_be_compared(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="0 or 1"):
        mcnemar(first, second)
