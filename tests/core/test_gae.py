"""Advantages of tokens from a critic's values: golden values by hand, and what lambda 1 must come to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.gae import token_advantages

VALUES = [0.2, 0.4, 0.6]


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, [0.8, 0.6, 0.4]),  # the reward less the value
        (0.9, [0.704, 0.56, 0.4]),  # .2 + .9 (.2 + .9 .4), .2 + .9 .4
        (0.0, [0.2, 0.2, 0.4]),  # one step ahead
    ],
)
def test_one_episode(lam: float, expected: list[float]) -> None:
    advantages, returns = token_advantages([1.0], VALUES, [1, 1, 1], gamma=1.0, lam=lam)
    assert advantages.tolist() == pytest.approx(expected)
    assert returns.tolist() == pytest.approx([a + v for a, v in zip(expected, VALUES, strict=True)])


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        # .3 at the end of the first episode, 1 at that of the second
        (1.0, [1.1, 0.9, 0.4]),
        (0.5, [0.6, 0.4, 0.4]),  # .3 + .5 - .2, .3 + .5 - .4
        (0.0, [0.1, -0.1, 0.4]),  # nothing comes back
    ],
)
def test_two_episodes(gamma: float, expected: list[float]) -> None:
    advantages, _ = token_advantages([0.3, 1.0], VALUES, [1, 1, 2], gamma=gamma, lam=1.0)
    assert advantages.tolist() == pytest.approx(expected)


def test_an_episode_without_a_token_has_nowhere_to_put_its_reward() -> None:
    advantages, _ = token_advantages([0.3, 5.0, 1.0], VALUES, [1, 1, 3], gamma=1.0, lam=1.0)
    assert advantages.tolist() == pytest.approx([1.1, 0.9, 0.4])


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 3)), min_size=1, max_size=12),
    st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_with_lambda_1_it_is_the_discounted_rewards_to_come_less_the_value(
    tokens: list[tuple[float, int]], rewards: list[float], gamma: float
) -> None:
    values = [value for value, _ in tokens]
    episodes = sorted(episode for _, episode in tokens)
    advantages, returns = token_advantages(rewards, values, episodes, gamma=gamma, lam=1.0)
    played = sorted(set(episodes))
    to_come = {
        number: sum(gamma**ahead * rewards[later - 1] for ahead, later in enumerate(played[place:]))
        for place, number in enumerate(played)
    }
    np.testing.assert_allclose(returns, [to_come[episode] for episode in episodes], atol=1e-9)
    np.testing.assert_allclose(advantages, returns - values, atol=1e-9)
