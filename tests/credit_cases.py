"""Rewards for the tests of credit rules, and how their values are compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

R1 = np.array([[0.0, 1, 1], [0, 0, 1], [1, 1, 0]])


def assert_equal(advantages: npt.NDArray[np.float64], expected: object) -> None:
    assert advantages.dtype == np.float64
    np.testing.assert_allclose(advantages, np.asarray(expected, dtype=np.float64), atol=1e-6, rtol=0)


@st.composite
def batches(draw: st.DrawFn) -> tuple[npt.NDArray[np.float64], list[int]]:
    """Rewards and group ids: several full groups of two or more, their rows mixed."""
    episodes = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    groups = draw(st.permutations([number for number, size in enumerate(sizes) for _ in range(size)]))
    values = st.floats(-2, 2, allow_subnormal=False) | st.sampled_from([0.0, 1.0])
    row = st.lists(values, min_size=episodes, max_size=episodes)
    rewards = draw(st.lists(row, min_size=len(groups), max_size=len(groups)))
    return np.array(rewards), groups
