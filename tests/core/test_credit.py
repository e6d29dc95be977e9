"""Credit: the golden values by hand, and what must hold for any rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_cases import R1, assert_equal, batches
from mrsearch.core.credit import RULES, discounted_sum, mr_search, signal
from mrsearch.core.groups import Ragged, leave_one_out, settle
from mrsearch.core.types import MetaEnd
from mrsearch.errors import ConfigError, DataError

# Peers' means, column by column: first (.5, .5, 0), second (.5, 1, .5), third (.5, .5, 1). Rewards less these:
RELATIVE = [[-0.5, 0.5, 0.5], [-0.5, -1.0, 0.5], [1.0, 0.5, -1.0]]


class TestGoldenValues:
    def test_leave_one_out_compares_with_peers_of_the_same_episode(self) -> None:
        assert_equal(leave_one_out(settle(R1)), RELATIVE)

    @pytest.mark.parametrize(
        ("gamma", "expected"),
        [
            # sums from each episode on: -.5 + .5 + .5, .5 + .5, .5 and so on
            (1.0, [[0.5, 1, 0.5], [-1, -0.5, 0.5], [0.5, -0.5, -1]]),
            (0.0, RELATIVE),
            # first row: -.5 + .5 * .75 = -.125 with .75 = .5 + .5 * .5
            (0.5, [[-0.125, 0.75, 0.5], [-0.875, -0.75, 0.5], [1, 0, -1]]),
        ],
    )
    def test_discount(self, gamma: float, expected: list[list[float]]) -> None:
        assert_equal(mr_search(R1, gamma=gamma), expected)

    @pytest.mark.parametrize(
        ("mask", "gamma", "expected"),
        [
            # only the masked episode's own term is gone: first row 0 + .5 + .5
            ((0, 1, 1), 1.0, [[1, 1, 0.5], [-0.5, -0.5, 0.5], [-0.5, -0.5, -1]]),
            # first row: 0 + .5 * (.5 + .5 * .5)
            ((0, 1, 1), 0.5, [[0.375, 0.75, 0.5], [-0.375, -0.75, 0.5], [0, 0, -1]]),
            # only the last term is left, and reaches all episodes
            ((0, 0, 1), 1.0, [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [-1, -1, -1]]),
            ((0, 0, 1), 0.5, [[0.125, 0.25, 0.5], [0.125, 0.25, 0.5], [-0.25, -0.5, -1]]),
            ((1, 1, 1), 1.0, [[0.5, 1, 0.5], [-1, -0.5, 0.5], [0.5, -0.5, -1]]),
        ],
    )
    def test_exploration_mask(self, mask: tuple[int, ...], gamma: float, expected: list[list[float]]) -> None:
        assert_equal(mr_search(R1, gamma=gamma, mask=mask), expected)

    @pytest.mark.parametrize(
        ("ragged", "expected"),
        [
            # third column is (1, 0, 0) with the second row's missing 0: relative 1, -.5, -.5; its -.5 flows back
            ("zero", [[1, 1.5, 1], [-2, -1.5, 0], [1, 0, -0.5]]),
            # third column is first against third row, 1 and 0: relative 1 and -1; the second row has no term there
            ("present", [[1, 1.5, 1], [-1.5, -1, 0], [0.5, -0.5, -1]]),
        ],
    )
    @pytest.mark.parametrize("missing", [0.0, 7.0, np.nan])
    def test_ragged_groups(self, ragged: Ragged, expected: list[list[float]], missing: float) -> None:
        rewards = [[0, 1, 1], [0, 0, missing], [1, 1, 0]]
        ended: list[MetaEnd] = ["complete", "context_full", "complete"]
        assert_equal(mr_search(rewards, lengths=[3, 2, 3], ended=ended, ragged=ragged), expected)  # type: ignore[arg-type]

    def test_a_column_with_one_member_gives_it_nothing_there(self) -> None:
        # first column (1, 0): relative 1, -1; second has the first row alone, so no term
        assert_equal(mr_search([[1, 1], [0, 0]], lengths=[2, 1], ragged="present"), [[1, 0], [-1, 0]])

    @pytest.mark.parametrize("ragged", ["zero", "present"])
    def test_cost_and_carried_answer(self, ragged: Ragged) -> None:
        # EM (0,1,1), (1, stopped), (1,1,0), each episode after the first costs .1:
        # r = (0,.9,.9), (1,1,1), (1,.9,-.1); the carried answers cost nothing.
        # relative, by column: (-1, .5, .5); (.9-.95, 1-.9, .9-.95) = (-.05, .1, -.05);
        # (.9-.45, 1-.4, -.1-.95) = (.45, .6, -1.05)
        advantages = mr_search(
            [[0, 1, 1], [1, 0, 0], [1, 1, 0]],
            lengths=[3, 1, 3],
            ended=["complete", "stopped", "complete"],
            cost=0.1,
            ragged=ragged,
        )
        assert_equal(advantages, [[-0.6, 0.4, 0.45], [1.2, 0, 0], [-0.6, -1.1, -1.05]])

    def test_what_is_carried_after_the_second_episode_is_its_answer_before_the_cost(self) -> None:
        settled = settle([[0, 1, 0], [0, 0, 0]], lengths=[2, 3], ended=["stopped", "complete"], cost=0.1)
        assert_equal(settled.rewards, [[0, 0.9, 1], [0, -0.1, -0.1]])

    def test_a_missing_episode_costs_nothing(self) -> None:
        assert_equal(settle([[1, 1, 0], [0, 0, 0]], lengths=[1, 3], cost=0.1).rewards, [[1, 0, 0], [0, -0.1, -0.1]])

    def test_an_early_and_a_late_success_differ(self) -> None:
        # columns (1,0), (0,0), (0,1): relative (1,-1), (0,0), (-1,1); sums from the right
        assert_equal(mr_search([[1, 0, 0], [0, 0, 1]]), [[0, -1, -1], [0, 1, 1]])
        # gamma .5: 1 + .25 * -1 = .75
        assert_equal(mr_search([[1, 0, 0], [0, 0, 1]], gamma=0.5), [[0.75, -0.5, -1], [-0.75, 0.5, 1]])

    def test_one_episode_is_leave_one_out(self) -> None:
        # peers of a 0 average 2/3, those of a 1 average 1/3
        assert_equal(mr_search([[0], [1], [1], [0]]), [[-2 / 3], [2 / 3], [2 / 3], [-2 / 3]])


class TestRetrievalFailed:
    def test_the_row_leaves_the_group(self) -> None:
        rewards = [[0, 1, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0]]
        ended: list[MetaEnd] = ["complete", "retrieval_failed", "complete", "complete"]
        expected = mr_search(R1)
        advantages = mr_search(rewards, lengths=[3, 2, 3, 3], ended=ended)
        assert_equal(advantages, [expected[0], [0, 0, 0], expected[1], expected[2]])

    @pytest.mark.parametrize("ragged", ["zero", "present"])
    def test_who_is_left_alone_gets_nothing(self, ragged: Ragged) -> None:
        advantages = mr_search([[1, 1], [0, 0]], ended=["complete", "retrieval_failed"], ragged=ragged)
        assert advantages.tolist() == [[0, 0], [0, 0]]

    def test_a_group_may_vanish(self) -> None:
        assert mr_search([[1.0], [0.0]], ended=["retrieval_failed"] * 2).tolist() == [[0], [0]]


class TestProperties:
    @given(batch=batches(), gamma=st.floats(0, 1))
    def test_advantages_of_a_full_group_sum_to_zero(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], gamma: float
    ) -> None:
        rewards, groups = batch
        advantages = mr_search(rewards, groups=groups, gamma=gamma)
        for group in set(groups):
            np.testing.assert_allclose(advantages[np.array(groups) == group].sum(axis=0), 0, atol=1e-9)

    @given(batch=batches(), seed=st.integers(0, 9))
    def test_the_order_of_rows_does_not_matter(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], seed: int
    ) -> None:
        rewards, groups = batch
        order = np.random.default_rng(seed).permutation(len(groups))
        mixed = mr_search(rewards[order], groups=[groups[row] for row in order])
        np.testing.assert_allclose(mixed, mr_search(rewards, groups=groups)[order], atol=1e-9)

    @given(batch=batches(), constant=st.floats(-5, 5))
    def test_a_constant_added_to_all_rewards_changes_nothing(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], constant: float
    ) -> None:
        rewards, groups = batch
        np.testing.assert_allclose(
            mr_search(rewards + constant, groups=groups), mr_search(rewards, groups=groups), atol=1e-9
        )

    @given(batch=batches())
    def test_groups_never_read_each_other(self, batch: tuple[npt.NDArray[np.float64], list[int]]) -> None:
        rewards, groups = batch
        together = mr_search(rewards, groups=groups)
        for group in set(groups):
            rows = np.array(groups) == group
            assert (mr_search(rewards[rows]) == together[rows]).all()

    @given(batch=batches(), data=st.data())
    def test_agrees_with_the_formula_written_as_loops(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], data: st.DataObject
    ) -> None:
        rewards, groups = batch
        rows, episodes = rewards.shape
        ends: st.SearchStrategy[MetaEnd] = st.sampled_from(["complete", "stopped", "context_full", "retrieval_failed"])
        ended = data.draw(st.lists(ends, min_size=rows, max_size=rows))
        lengths = [episodes if end == "complete" else data.draw(st.integers(1, episodes)) for end in ended]
        settings: list[Ragged] = ["zero", "present"]
        ragged = data.draw(st.sampled_from(settings))
        mask = data.draw(st.lists(st.sampled_from([0, 1]), min_size=episodes, max_size=episodes))
        gamma, cost = data.draw(st.sampled_from([0.0, 0.5, 1.0])), data.draw(st.sampled_from([0.0, 0.1]))
        advantages = mr_search(
            rewards, groups=groups, lengths=lengths, ended=ended, gamma=gamma, mask=mask, ragged=ragged, cost=cost
        )
        expected = by_loops(rewards, groups, lengths, ended, gamma, mask, ragged, cost)
        np.testing.assert_allclose(advantages, expected, atol=1e-9)

    @given(reward=st.floats(-2, 2), size=st.integers(2, 6), episodes=st.integers(1, 4))
    def test_equal_rewards_give_exactly_nothing(self, reward: float, size: int, episodes: int) -> None:
        advantages = mr_search(np.full((size, episodes), reward), cost=0.1)
        assert (advantages == 0).all()
        assert not signal(advantages).any()


def by_loops(
    rewards: npt.NDArray[np.float64],
    groups: Sequence[int],
    lengths: Sequence[int],
    ended: Sequence[MetaEnd],
    gamma: float,
    mask: Sequence[int],
    ragged: str,
    cost: float,
) -> npt.NDArray[np.float64]:
    """The rule once more, one number at a time; None is an episode that does not count."""
    rows, episodes = rewards.shape

    def reward(i: int, n: int) -> float | None:
        if ended[i] == "retrieval_failed":
            return None
        if n < lengths[i]:
            return float(rewards[i, n]) - (cost if n > 0 else 0.0)
        if ended[i] == "stopped":
            return float(rewards[i, lengths[i] - 1])
        return 0.0 if ragged == "zero" else None

    def relative(i: int, n: int) -> float:
        own = reward(i, n)
        peers = [reward(j, n) for j in range(rows) if j != i and groups[j] == groups[i]]
        counted = [peer for peer in peers if peer is not None]
        return 0.0 if own is None or not counted else own - sum(counted) / len(counted)

    advantages = np.zeros((rows, episodes))
    for i in range(rows):
        for n in range(lengths[i]):
            if ended[i] != "retrieval_failed":
                advantages[i, n] = sum(gamma ** (k - n) * mask[k] * relative(i, k) for k in range(n, episodes))
    return advantages


class TestGroups:
    def test_ids_may_be_anything_in_any_order(self) -> None:
        rewards = np.repeat(R1, 2, axis=0)
        expected = np.repeat(mr_search(R1), 2, axis=0)
        for one, other in [(1, 0), ("b", "a"), (1, "1"), (("q", 2), ("q", 1)), (None, 3.5)]:
            assert_equal(mr_search(rewards, groups=[one, other] * 3), expected)
        assert_equal(mr_search(rewards, groups=np.array([5, 3] * 3)), expected)
        assert_equal(mr_search(rewards, groups=np.array(["b", "a"] * 3, dtype=object)), expected)

    def test_the_same_question_twice_is_two_groups(self) -> None:
        # two rows of one question: as one group of four, (1, 0, 0, 0) would give the first -1/3 less
        assert_equal(mr_search([[1], [0], [0], [0]], groups=[7, 7, 8, 8]), [[1], [-1], [0], [0]])

    def test_signal_is_of_the_whole_group(self) -> None:
        advantages = [[0.0, 0.0], [0.0, 0.5], [0.0, 0.0], [1e-17, 0.0]]
        assert signal(advantages, ["a", "a", "b", "b"]).tolist() == [True, True, False, False]

    def test_no_rows_give_no_rows(self) -> None:
        assert mr_search(np.zeros((0, 3))).shape == (0, 3)
        assert signal(np.zeros((0, 3))).shape == (0,)


def test_the_discounted_sum_leaves_its_input_alone() -> None:
    values = np.ones((1, 3))
    assert discounted_sum(values, 0.5).tolist() == [[1.75, 1.5, 1.0]]
    assert values.tolist() == [[1, 1, 1]]


def test_the_rules_are_listed_by_name() -> None:
    assert RULES["mr_search"] is mr_search


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rewards": [0.0, 1.0]}, r"rewards have shape \(2,\)"),
        ({"groups": [1, 2]}, "2 group ids for 3 meta-episodes"),
        ({"lengths": [3, 3]}, r"lengths have shape \(2,\)"),
        ({"lengths": [3, 3, 4]}, "from 0 to 3"),
        ({"lengths": [3, -1, 3]}, "from 0 to 3"),
        ({"lengths": [3, 1.5, 3]}, "whole numbers"),
        ({"ended": ["complete"]}, "1 endings for 3 meta-episodes"),
        ({"ended": ["complete", "done", "complete"]}, "cannot end .*done.*endings are: complete"),
        ({"ended": ["stopped", "complete", "complete"], "lengths": [0, 3, 3]}, "row 0 .*no answer that could stand"),
        ({"mask": [1, 1]}, "one value for each of 3 episodes"),
        ({"rewards": [[0, np.nan, 0]] * 3}, "row 0, episode 2 is nan"),
    ],
)
def test_what_does_not_fit_is_said(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        mr_search(**{"rewards": R1, **wrong})  # type: ignore[arg-type]


def test_an_unknown_setting_of_ragged_is_said() -> None:
    with pytest.raises(ConfigError, match="'drop'; choose one of: zero, present"):
        mr_search(R1, ragged="drop")  # type: ignore[arg-type]
