"""Credit by turn: golden values by hand, and MR-Search's rule as the case without rewards of turns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_cases import R1, batches
from mrsearch.core.credit import mr_search
from mrsearch.core.turn_credit import turn_credit
from mrsearch.core.types import MetaEnd
from mrsearch.errors import DataError


def zeros(*shape: int) -> list[list[float]]:
    """One meta-episode with so many turns in each episode, without rewards of their own."""
    return [[0.0] * turns for turns in shape]


class TestGoldenValues:
    def test_two_discounts(self) -> None:
        # The second attempt's two turns: .95 and 1. The first's: .6 * .95 crosses over, whatever turn it comes to.
        nothing = zeros(2, 2)
        found = turn_credit([[0, 1], [0, 0]], [zeros(2, 2), nothing], gamma=0.6, step_gamma=0.95)
        # The peer earned nothing, so that its baseline is 0; against the first it has its first turns' returns less.
        assert found[0] == [pytest.approx([0.57, 0.57]), pytest.approx([0.95, 1.0])]
        assert found[1] == [pytest.approx([-0.57, -0.57]), pytest.approx([-0.95, -0.95])]

    def test_attempts_of_one_turn(self) -> None:
        # Returns (.96, 1.6, 1), (.36, .6, 1), (1.6, 1, 0); each less the mean of the two others of its column
        found = turn_credit(R1, [zeros(1, 1, 1)] * 3, gamma=0.6)
        returns = np.array([[0.96, 1.6, 1], [0.36, 0.6, 1], [1.6, 1, 0]])
        expected = 1.5 * (returns - returns.mean(axis=0))
        np.testing.assert_allclose([[turn for (turn,) in row] for row in found], expected, atol=1e-9)

    def test_rewards_of_turns_flow_back_within_their_episode_and_to_earlier_ones(self) -> None:
        # First episode .3, -.1 and its answer 0; second .2 and its answer 1: returns .2 + 1.2, -.1 + 1.2, 1.2
        found = turn_credit([[0, 1], [0, 0]], [[[0.3, -0.1], [0.2]], zeros(2, 1)], gamma=1.0)
        assert found[0] == [pytest.approx([1.4, 1.1]), pytest.approx([1.2])]
        # The peer's own returns are 0, less 1.4 and 1.2.
        assert found[1] == [pytest.approx([-1.4, -1.4]), pytest.approx([-1.2])]

    def test_gamma_0_leaves_each_episode_its_own(self) -> None:
        found = turn_credit([[0, 1], [0, 0]], [[[0.3], [0.0]], zeros(1, 1)], gamma=0.0)
        assert found == [[pytest.approx([0.3]), pytest.approx([1.0])], [pytest.approx([-0.3]), pytest.approx([-1.0])]]


class TestRagged:
    def test_missing_episodes_count_as_0(self) -> None:
        found = turn_credit([[1, 0], [0, 1]], [zeros(1), zeros(1, 1)], lengths=[1, 2])
        # Columns of returns (1, 0) and (1, 1) less each other
        assert found == [[[0.0]], [[0.0], [1.0]]]

    def test_who_is_alone_gets_nothing(self) -> None:
        assert turn_credit([[1], [1]], [[[0.3, 0.1]], [[0.2]]], groups=["a", "b"]) == [[[0.0, 0.0]], [[0.0]]]

    def test_an_outage_takes_the_row_out(self) -> None:
        ended: list[MetaEnd] = ["complete", "retrieval_failed", "complete"]
        found = turn_credit([[1], [9], [0]], [zeros(2), [[5.0]], zeros(1)], ended=ended)
        assert found == [[[1.0, 1.0]], [[0.0]], [[-1.0]]]

    def test_an_episode_without_turns_keeps_its_reward_for_those_before(self) -> None:
        assert turn_credit([[0, 1], [0, 0]], [zeros(1, 0), zeros(1, 1)]) == [[[1.0], []], [[-1.0], [-1.0]]]

    def test_an_exploration_episode_has_nothing_of_its_own(self) -> None:
        found = turn_credit([[1, 0], [0, 1]], [zeros(1, 1)] * 2, mask=[0, 1])
        assert found == [[[-1.0], [-1.0]], [[1.0], [1.0]]]


@given(batches(), st.data(), st.sampled_from([0.0, 0.5, 1.0]))
def test_without_rewards_of_turns_it_is_mr_search_for_each_of_them(
    batch: tuple[npt.NDArray[np.float64], list[int]], data: st.DataObject, gamma: float
) -> None:
    rewards, groups = batch
    turns = [[[0.0] * data.draw(st.integers(1, 3)) for _ in range(rewards.shape[1])] for _ in range(len(rewards))]
    found = turn_credit(rewards, turns, groups=groups, gamma=gamma)
    expected = mr_search(rewards, groups=groups, gamma=gamma)
    for row, of_row in enumerate(found):
        for n, values in enumerate(of_row):
            np.testing.assert_allclose(values, [expected[row, n]] * len(turns[row][n]), atol=1e-9)


def test_every_meta_episode_needs_its_turns() -> None:
    with pytest.raises(DataError, match="rewards of turns for 1 meta-episodes, of which there are 3"):
        turn_credit(R1, [zeros(1, 1, 1)])
