"""The rules that MR-Search is compared with: golden values by hand, and what must hold for any rewards."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_cases import R1, assert_equal, batches
from mrsearch.core.credit import (
    OUTCOME_RULES,
    RULES,
    CreditRule,
    dr_grpo,
    grpo,
    mr_search,
    mt_grpo,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
)
from mrsearch.core.types import MetaEnd
from mrsearch.errors import ConfigError, DataError

BASELINE_RULES = [rule for name, rule in RULES.items() if name != "reinforce_pp"]
"""Rules that compare within a group."""

CENTRED_RULES = [mr_search, rloo, grpo, dr_grpo, mt_grpo]
"""Rules whose advantages sum to zero over each full group."""

ROOT_3 = math.sqrt(1 / 3)  # the standard deviation of (0, 0, 1) and of (1, 1, 0)


class TestGoldenValues:
    """One episode first: rewards (1, 0, 0, 0), mean 1/4; then R1, column by column or by its last column (1, 1, 0)."""

    def test_rloo(self) -> None:
        assert_equal(rloo([[1], [0], [0], [0]]), [[1], [-1 / 3], [-1 / 3], [-1 / 3]])
        assert_equal(rloo(R1), mr_search(R1, gamma=0))
        assert_equal(rloo(R1, outcome="last"), [[0.5] * 3, [0.5] * 3, [-1] * 3])

    def test_grpo(self) -> None:
        # variance (9/16 + 3/16) / 3 = 1/4
        assert_equal(grpo([[1], [0], [0], [0]]), np.array([[0.75], [-0.25], [-0.25], [-0.25]]) / (0.5 + 1e-6))
        expected = np.array([[-1, 1, 1], [-1, -2, 1], [2, 1, -2]]) / 3 / (ROOT_3 + 1e-6)
        assert_equal(grpo(R1), expected)
        assert_equal(grpo(R1, outcome="last"), expected[:, [2, 2, 2]])

    def test_dr_grpo(self) -> None:
        assert_equal(dr_grpo([[1], [0], [0], [0]]), [[0.75], [-0.25], [-0.25], [-0.25]])
        assert_equal(dr_grpo(R1), np.array([[-1, 1, 1], [-1, -2, 1], [2, 1, -2]]) / 3)

    def test_reinforce_pp_whitens_over_tokens_of_all_groups(self) -> None:
        # Two and four tokens of (1, 0), one and three of (1, 1): mean 6/10, variance (6 .16 + 4 .36) / 9 = .26667
        rewards, tokens = [[1], [0], [1], [1]], [[2], [4], [1], [3]]
        expected = [[0.4], [-0.6], [0.4], [0.4]] / np.sqrt(2.4 / 9)
        assert_equal(reinforce_pp(rewards, groups=[0, 0, 1, 1], tokens=tokens), expected)

    def test_reinforce_pp_with_a_group_baseline(self) -> None:
        # Centred (.5, -.5, 0, 0) at 2, 4, 1, 3 tokens: mean -.1, variance (2 .36 + 4 .16 + 4 .01) / 9 = .15556
        rewards, tokens = [[1], [0], [1], [1]], [[2], [4], [1], [3]]
        expected = [[0.6], [-0.4], [0.1], [0.1]] / np.sqrt(1.4 / 9)
        assert_equal(reinforce_pp_baseline(rewards, groups=[0, 0, 1, 1], tokens=tokens), expected)

    def test_reinforce_pp_over_episodes_takes_what_follows_or_the_last(self) -> None:
        # Returns of (0, 1) are (1, 1) at gamma 1 and (.5, 1) at gamma .5, of (0, 0) nothing.
        half = np.array([[0.5, 1.0], [0.0, 0.0]])
        centred = half - 0.375
        assert_equal(reinforce_pp([[0, 1], [0, 0]], gamma=0.5), centred / np.sqrt((centred**2).sum() / 3))
        last = np.array([[0.5, 0.5], [-0.5, -0.5]]) / np.sqrt(1 / 3)
        assert_equal(reinforce_pp([[0, 1], [1, 0]], outcome="last", gamma=0.5), last)

    def test_mt_grpo_with_two_turns(self) -> None:
        # T = (.7, .7, .2, .2) and O = (1.5, 0, 1.5, 0): standard deviations .25 * 2 / sqrt 3 and .75 * 2 / sqrt 3
        turn = 0.25 / (0.5 / math.sqrt(3) + 1e-4)
        outcome = 0.75 / (1.5 / math.sqrt(3) + 1e-4)
        expected = [
            [turn + outcome, outcome],
            [turn - outcome, -outcome],
            [-turn + outcome, outcome],
            [-turn - outcome, -outcome],
        ]
        assert_equal(mt_grpo([[0.7, 1.5], [0.7, 0], [0.2, 1.5], [0.2, 0]]), expected)
        assert round(turn + outcome, 4) == 1.7317

    def test_mt_grpo_over_one_episode_is_grpo_but_for_its_epsilon(self) -> None:
        np.testing.assert_allclose(mt_grpo([[1], [0], [0]]), grpo([[1], [0], [0]]), atol=2e-4)


class TestRagged:
    @pytest.mark.parametrize("rule", BASELINE_RULES)
    @pytest.mark.parametrize("ragged", ["zero", "present"])
    def test_what_was_not_played_has_no_advantage(self, rule: CreditRule, ragged: str) -> None:
        advantages = rule([[0, 1, 1], [0, 0, 7], [1, 1, 0]], lengths=[3, 2, 3], ragged=ragged)  # type: ignore[arg-type]
        assert advantages[1, 2] == 0
        assert np.isfinite(advantages).all()

    def test_the_last_reward_of_one_that_broke_off_is_0_or_its_own_last(self) -> None:
        rewards, lengths = [[0, 1], [1, 0], [0, 0]], [2, 1, 2]
        # zero: (1, 0, 0), leave-one-out 1, -.5, -.5; present: (1, 1, 0), .5, .5, -1
        assert_equal(rloo(rewards, lengths=lengths, outcome="last"), [[1, 1], [-0.5, 0], [-0.5, -0.5]])
        assert_equal(rloo(rewards, lengths=lengths, outcome="last", ragged="present"), [[0.5, 0.5], [0.5, 0], [-1, -1]])

    def test_an_answer_that_stood_is_the_last(self) -> None:
        ended: list[MetaEnd] = ["complete", "stopped", "complete"]
        advantages = rloo([[0, 1], [1, 0], [0, 0]], lengths=[2, 1, 2], ended=ended, outcome="last")
        assert_equal(advantages, [[0.5, 0.5], [0.5, 0], [-1, -1]])

    @pytest.mark.parametrize("rule", RULES.values())
    @pytest.mark.parametrize("outcome", ["each", "last"])
    def test_an_outage_takes_the_row_out(self, rule: CreditRule, outcome: str) -> None:
        ended: list[MetaEnd] = ["complete", "retrieval_failed", "complete"]
        three = rule([[1, 0], [9, 9], [0, 0]], ended=ended, outcome=outcome)  # type: ignore[arg-type]
        two = rule([[1, 0], [0, 0]], outcome=outcome)  # type: ignore[arg-type]
        assert_equal(three, [two[0], [0, 0], two[1]])

    @pytest.mark.parametrize("rule", BASELINE_RULES)
    def test_who_is_alone_gets_nothing(self, rule: CreditRule) -> None:
        assert_equal(rule([[1, 1], [0, 1]], groups=["a", "b"]), np.zeros((2, 2)))

    @pytest.mark.parametrize("rule", RULES.values())
    def test_no_rows_and_no_episodes(self, rule: CreditRule) -> None:
        assert rule(np.zeros((0, 3))).shape == (0, 3)
        assert rule(np.zeros((2, 0))).shape == (2, 0)


class TestMask:
    @pytest.mark.parametrize("rule", [rloo, grpo, dr_grpo])
    def test_an_exploration_episode_has_nothing_of_its_own(self, rule: CreditRule) -> None:
        masked = rule(R1, mask=[0, 1, 1])
        assert_equal(masked, rule(R1) * [0, 1, 1])

    @pytest.mark.parametrize("rule", [rloo, grpo, dr_grpo, reinforce_pp, reinforce_pp_baseline])
    def test_the_last_reward_is_of_no_exploration_whoever_gets_it(self, rule: CreditRule) -> None:
        assert_equal(rule(R1, outcome="last", mask=[0, 1, 1]), rule(R1, outcome="last"))

    def test_the_outcome_still_reaches_it_in_mt_grpo(self) -> None:
        assert_equal(mt_grpo(R1, mask=[0, 1, 1])[:, 0], mt_grpo(R1)[:, 2])


class TestProperties:
    @given(batches(), st.sampled_from(CENTRED_RULES))
    def test_advantages_of_full_groups_sum_to_zero(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], rule: CreditRule
    ) -> None:
        rewards, groups = batch
        advantages = rule(rewards, groups=groups)
        for group in set(groups):
            rows = [row for row, other in enumerate(groups) if other == group]
            np.testing.assert_allclose(advantages[rows].sum(axis=0), 0, atol=1e-6)

    @given(batches(), st.sampled_from(list(RULES.values())), st.sampled_from(["each", "last"]), st.randoms())
    def test_the_order_of_rows_does_not_matter(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], rule: CreditRule, outcome: str, random: object
    ) -> None:
        rewards, groups = batch
        order = np.arange(len(groups))
        random.shuffle(order)  # type: ignore[attr-defined]
        mixed = rule(rewards[order], groups=[groups[row] for row in order], outcome=outcome)  # type: ignore[arg-type]
        np.testing.assert_allclose(mixed, rule(rewards, groups=groups, outcome=outcome)[order], atol=1e-6)  # type: ignore[arg-type]

    @given(batches(), st.sampled_from(BASELINE_RULES), st.sampled_from([-1.0, 0.5, 1.0]))
    def test_a_constant_added_to_all_rewards_changes_nothing(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], rule: CreditRule, constant: float
    ) -> None:
        # Rewards on a grid, so that adding is exact: what differs by rounding alone is stretched by a division by std.
        rewards, groups = np.round(batch[0] * 4) / 4, batch[1]
        np.testing.assert_allclose(rule(rewards + constant, groups=groups), rule(rewards, groups=groups), atol=1e-6)

    @given(batches(), st.sampled_from([mr_search, rloo, grpo, dr_grpo, mt_grpo]))
    def test_groups_never_read_each_other(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], rule: CreditRule
    ) -> None:
        rewards, groups = batch
        rows = [row for row, group in enumerate(groups) if group == groups[0]]
        np.testing.assert_allclose(rule(rewards, groups=groups)[rows], rule(rewards[rows]), atol=1e-9)

    @given(batches(), st.sampled_from([reinforce_pp, reinforce_pp_baseline]))
    def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens(
        self, batch: tuple[npt.NDArray[np.float64], list[int]], rule: CreditRule
    ) -> None:
        rewards, groups = np.round(batch[0]), batch[1]
        tokens = np.arange(1, rewards.size + 1, dtype=float).reshape(rewards.shape)
        advantages = rule(rewards, groups=groups, tokens=tokens)
        spread = advantages.repeat(tokens.astype(int).ravel()) if advantages.any() else np.array([1.0, -1.0])
        assert abs(spread.mean()) < 1e-6
        assert not advantages.any() or abs(spread.var(ddof=1) - 1) < 1e-4

    @pytest.mark.parametrize("rule", RULES.values())
    @pytest.mark.parametrize("reward", [0.0, 0.1, 0.3, 1.0])
    def test_equal_rewards_give_exactly_nothing(self, rule: CreditRule, reward: float) -> None:
        # With one episode: over several, the returns of REINFORCE++ differ from one to the next.
        assert not rule(np.full((7, 1), reward)).any()


@pytest.mark.parametrize("rule", RULES.values())
def test_what_does_not_fit_is_said(rule: CreditRule) -> None:
    with pytest.raises(DataError, match=r"token counts have shape \(2,\)"):
        rule(R1, tokens=[1, 2])
    with pytest.raises(ConfigError, match="outcome is 'first'; choose one of: each, last"):
        rule(R1, outcome="first")  # type: ignore[arg-type]


def test_rules_of_one_outcome_are_among_the_rules() -> None:
    assert set(OUTCOME_RULES) <= set(RULES)
