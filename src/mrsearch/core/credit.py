"""Rewards of episodes to their advantages: who is compared with whom, and what flows back to whom.

Pure functions on arrays. The axes: B meta-episodes (rows) of all groups of a
step, N episodes (columns). A rule is a formula on settled rewards, listed in
`RULES`; how ragged groups are settled is in `groups`. Formulas and references of
all rules are in docs/methods.md. Nothing here knows of tokens or models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from mrsearch.core.groups import (
    BoolArray,
    FloatArray,
    Groups,
    Ragged,
    Settled,
    above_mean,
    last_rewards,
    leave_one_out,
    matrix,
    number_groups,
    settle,
    standardized,
)
from mrsearch.core.types import MetaEnd
from mrsearch.errors import ConfigError, DataError

Outcome = Literal["each", "last"]
"""An episode has its own reward, or all episodes of a meta-episode have its last one."""

GRPO_EPS = 1e-6
MT_GRPO_EPS = 1e-4
WHITENING_EPS = 1e-8


class CreditRule(Protocol):
    """The shape of every rule, so that they can be exchanged by name; one that has no use for a setting ignores it."""

    def __call__(
        self,
        rewards: npt.ArrayLike,
        *,
        groups: Groups | None = None,
        lengths: npt.ArrayLike | None = None,
        ended: Sequence[MetaEnd] | None = None,
        gamma: float = 1.0,
        mask: npt.ArrayLike | None = None,
        ragged: Ragged = "zero",
        cost: float = 0.0,
        outcome: Outcome = "each",
        tokens: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Advantage of every episode: [B, N] rewards to [B, N] advantages, 0 past the length of a row.

        `mask` [N] holds m, 0 at exploration episodes: they lose their own term and keep what
        later ones send back. `tokens` [B, N] counts the trained tokens of the episodes, for
        rules that weigh by them; by default all weigh alike. By default all rows are
        one group of complete meta-episodes.
        """
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What a formula may need beside the rewards; `mask` and `tokens` are complete."""

    gamma: float
    mask: FloatArray
    outcome: Outcome
    tokens: FloatArray


Formula = Callable[[Settled, Terms], FloatArray]


def _rule(formula: Formula) -> CreditRule:
    def rule(
        rewards: npt.ArrayLike,
        *,
        groups: Groups | None = None,
        lengths: npt.ArrayLike | None = None,
        ended: Sequence[MetaEnd] | None = None,
        gamma: float = 1.0,
        mask: npt.ArrayLike | None = None,
        ragged: Ragged = "zero",
        cost: float = 0.0,
        outcome: Outcome = "each",
        tokens: npt.ArrayLike | None = None,
    ) -> FloatArray:
        settled = settle(rewards, groups=groups, lengths=lengths, ended=ended, ragged=ragged, cost=cost)
        if outcome not in get_args(Outcome):
            raise ConfigError(f"outcome is {outcome!r}; choose one of: {', '.join(get_args(Outcome))}")
        shape = settled.rewards.shape
        m = episode_mask(mask, shape[1])
        if outcome == "last":
            # The reward is that of the last episode, which is no exploration, whichever episode gets it.
            settled, m = last_rewards(settled), np.ones_like(m)
        terms = Terms(gamma, m, outcome, _token_counts(tokens, shape))
        return np.where(settled.played, formula(settled, terms), 0.0)

    rule.__name__ = rule.__qualname__ = formula.__name__.removeprefix("_")
    rule.__doc__ = formula.__doc__
    return rule


def _mr_search(settled: Settled, terms: Terms) -> FloatArray:
    """MR-Search (arXiv 2603.11327): leave-one-out against peers of the same episode, then what follows, discounted.

    rt[i,n] = r[i,n] - mean over j != i of r[j,n];  A[i,n] = sum over n' >= n of gamma^(n'-n) m[n'] rt[i,n'].

    >>> mr_search([[0, 1, 1], [0, 0, 1], [1, 1, 0]]).tolist()
    [[0.5, 1.0, 0.5], [-1.0, -0.5, 0.5], [0.5, -0.5, -1.0]]
    """
    return discounted_sum(leave_one_out(settled) * terms.mask, terms.gamma)


def _rloo(settled: Settled, terms: Terms) -> FloatArray:
    """RLOO (arXiv 2402.14740): A[i,n] = rt[i,n], each episode for itself."""
    return leave_one_out(settled) * terms.mask


def _grpo(settled: Settled, terms: Terms) -> FloatArray:
    """GRPO (arXiv 2402.03300): (r - mean) / (std + 1e-6) over the group, std being the sample's."""
    return standardized(settled, GRPO_EPS) * terms.mask


def _dr_grpo(settled: Settled, terms: Terms) -> FloatArray:
    """GRPO without std, "done right" (arXiv 2503.20783): r - mean over the group."""
    return above_mean(settled) * terms.mask


def _reinforce_pp(settled: Settled, terms: Terms) -> FloatArray:
    """REINFORCE++ (arXiv 2501.03262): returns without a baseline, whitened over all trained tokens of the step."""
    own = settled.rewards * terms.mask
    returns = own if terms.outcome == "last" else discounted_sum(own, terms.gamma)
    return whitened(returns, np.where(settled.played, terms.tokens, 0.0))


def _reinforce_pp_baseline(settled: Settled, terms: Terms) -> FloatArray:
    """REINFORCE++ with group baseline (arXiv 2501.03262): r - mean over the group, whitened over all trained tokens.

    A group whose members are all right has an advantage other than 0, as in the published code.
    """
    return whitened(above_mean(settled) * terms.mask, np.where(settled.played, terms.tokens, 0.0))


def _mt_grpo(settled: Settled, terms: Terms) -> FloatArray:
    """MT-GRPO (arXiv 2505.11821), with episodes as its turns: zT[i,n] + zO[i], and zO[i] in the last episode.

    zT standardises the rewards of an episode over the group, zO those of the last episode.
    """
    outcome = standardized(last_rewards(settled), MT_GRPO_EPS)
    turn = standardized(settled, MT_GRPO_EPS) * terms.mask
    turn[:, -1:] = 0.0
    return turn + outcome


def _rewards_alone(settled: Settled, terms: Terms) -> FloatArray:
    """No rule: the rewards themselves, after cost and mask, for a critic to make advantages of."""
    return settled.rewards * terms.mask


rewards_alone = _rule(_rewards_alone)
mr_search = _rule(_mr_search)
rloo = _rule(_rloo)
grpo = _rule(_grpo)
dr_grpo = _rule(_dr_grpo)
reinforce_pp = _rule(_reinforce_pp)
reinforce_pp_baseline = _rule(_reinforce_pp_baseline)
mt_grpo = _rule(_mt_grpo)

RULES: dict[str, CreditRule] = {
    "mr_search": mr_search,
    "rloo": rloo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "mt_grpo": mt_grpo,
}
"""The rules by the name that a config gives them."""

PPO = "ppo"
"""In the place of a rule: a critic, which the learner has, makes advantages of tokens from the rewards of episodes."""

TURN_RULES = ("lamer", "step_process")
"""Rules that credit turns, of which `turn_credit` has the formula: with two discounts, and with rewards of turns."""

OUTCOME_RULES = ("rloo", "grpo", "dr_grpo", "reinforce_pp", "reinforce_pp_baseline")
"""Rules that know one reward of a sample, and can therefore take the last one for all episodes."""


def signal(advantages: npt.ArrayLike, groups: Groups | None = None) -> BoolArray:
    """For each row [B], whether anyone in its group has an advantage other than 0, so that there is something to learn.

    >>> signal([[0.5], [-0.5], [0.0]], groups=["q1", "q1", "q2"]).tolist()
    [True, True, False]
    """
    advantages = matrix(advantages, "advantages")
    group, number = number_groups(groups, len(advantages))
    found = np.zeros(number, dtype=np.bool_)
    # Terms that cancel leave about 1e-16 behind.
    found[group[(np.abs(advantages) > 1e-12).any(axis=1)]] = True
    return found[group]


def discounted_sum(values: FloatArray, gamma: float) -> FloatArray:
    """For each episode its value and, discounted by `gamma` a step, those of the later ones."""
    collected = values.copy()
    for n in reversed(range(values.shape[1] - 1)):
        collected[:, n] += gamma * collected[:, n + 1]
    return collected


def whitened(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Values less their weighted mean, over the root of their variance; `weights` are numbers of tokens.

    The variance has Bessel's correction, over tokens. Equal values give 0.

    >>> whitened(np.array([[1.0], [0.0]]), np.array([[2.0], [4.0]])).round(4).tolist()
    [[1.291], [-0.6455]]
    """
    total = weights.sum()
    if total < 2:
        return np.zeros_like(values)
    least = values[weights > 0].min()
    above = np.where(weights > 0, values - least, 0.0)
    centred = above - (above * weights).sum() / total
    variance = float((weights * centred**2).sum() / (total - 1))
    return np.asarray(centred / np.sqrt(variance + WHITENING_EPS))


def episode_mask(mask: npt.ArrayLike | None, episodes: int) -> FloatArray:
    """The mask m [N]; ones where none is given."""
    if mask is None:
        return np.ones(episodes)
    given = np.asarray(mask, dtype=np.float64)
    if given.shape != (episodes,):
        raise DataError(f"the mask has shape {given.shape}; it must have one value for each of {episodes} episodes")
    return given


def _token_counts(tokens: npt.ArrayLike | None, shape: tuple[int, ...]) -> FloatArray:
    if tokens is None:
        return np.ones(shape)
    given = np.asarray(tokens, dtype=np.float64)
    if given.shape != shape or (given < 0).any():
        raise DataError(f"token counts have shape {given.shape}; there must be one, 0 or more, for each of {shape}")
    return given
