"""The critic: values that do not depend on batching, a loss by hand, a fit that holds, exact saving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mrsearch.config import CriticConfig, LossConfig, OptimizerConfig
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Batch, Sampling
from mrsearch.core.types import Trajectory
from mrsearch.engine.critic import Critic, explained_variance, value_losses
from mrsearch.engine.learner import EmbeddedLearner
from mrsearch.engine.pack import rows_of
from mrsearch.engine.rollout import EmbeddedDriver
from mrsearch.errors import DataError
from mrsearch.rollout.play import Player
from tiny_models import PROMPTS, PlaceRetriever, questions, tiny_codec, tiny_model

CODEC = tiny_codec()
PLAN = Plan(episodes=2, searches=1, top_k=2, turn_tokens=10, observation_tokens=7, window_tokens=120)
OPTIMIZER = OptimizerConfig(lr=1e-3, weight_decay=0.0)
PLAIN = CriticConfig(lr=3e-3, whiten=False)


def played(plan: Plan = PLAN) -> list[Trajectory]:
    """Meta-episodes whose first member is right in its last episode, so that there is something to foresee."""
    player = Player(EmbeddedDriver(tiny_model(), CODEC, PlaceRetriever()), CODEC, PROMPTS)
    found, _ = player.play(questions(3), plan, group_size=2, sampling=Sampling(), seed=(3, 1))
    return [replace(one, advantages=[0.0] * (len(one.episodes) - 1) + [float(one.member == 0)]) for one in found]


def critic(config: CriticConfig = PLAIN, *, gamma: float = 1.0, tokens: int = 16384) -> Critic:
    return Critic(
        tiny_model(),
        config=config,
        optimizer=OPTIMIZER,
        gamma=gamma,
        total_updates=100,
        micro_batch_tokens=tokens,
    )


@pytest.mark.parametrize(
    ("value", "old", "expected"),
    [
        (0.2, 0.2, 0.32),  # .5 (.2 - 1)^2
        (0.9, 0.2, 0.045),  # held at .7, .5 (.7 - 1)^2: the larger of that and .5 (.9 - 1)^2
        (-0.4, 0.2, 0.98),  # moved away: not held back from its loss
    ],
)
def test_the_value_loss_by_hand(value: float, old: float, expected: float) -> None:
    tensors = [torch.tensor([number]) for number in (value, old, 1.0)]
    assert float(value_losses(*tensors, 0.5)) == pytest.approx(expected)
    assert float(value_losses(*tensors, 0.0)) == pytest.approx(0.5 * (value - 1) ** 2)


def test_a_new_critic_foresees_nothing_so_that_advantages_are_rewards_to_come():
    rows = critic().judge(rows_of(played()))
    for one, row in zip(played(), rows, strict=True):
        assert not row.values.any()
        assert row.advantages.tolist() == [one.advantages[-1]] * len(row.positions)
    assert explained_variance(rows) == 0


def test_gamma_0_gives_the_first_episode_nothing_of_the_second():
    for row in critic(gamma=0.0).judge(rows_of(played())):
        assert not row.advantages[row.episodes == 1].any()


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, context="last")], ids=["full", "last"])
def test_values_and_updates_depend_on_no_batch(plan: Plan):
    found = []
    for tokens in (1, 100, 16384):
        made = critic(tokens=tokens)
        for _ in range(3):
            rows = made.judge(rows_of(played(plan)))
            made.update(rows)
        found.append(np.concatenate([row.values for row in made.judge(rows_of(played(plan)))]))
    assert np.abs(found[0]).max() > 1e-3
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], atol=1e-5)


def test_with_a_window_for_each_episode_rewards_of_later_ones_come_back():
    rows = critic().judge(rows_of(played(replace(PLAN, context="last"))))
    first = [row for row in rows if row.sample == 0]
    assert len(first) == 2
    assert all((row.advantages == 1).all() for row in first)


def test_it_learns_what_follows():
    made = critic()
    losses = []
    for _ in range(60):
        rows = made.judge(rows_of(played()))
        losses.append(made.update(rows)["critic/loss"])
    assert losses[-1] < 0.5 * losses[0]
    assert explained_variance(made.judge(rows_of(played()))) > 0.5


def test_whitened_advantages_have_mean_0_and_variance_1():
    rows = critic(replace(PLAIN, whiten=True)).judge(rows_of(played()))
    every = np.concatenate([row.advantages for row in rows])
    assert every.mean() == pytest.approx(0, abs=1e-9)
    assert every.var(ddof=1) == pytest.approx(1, abs=1e-3)


def ppo(model) -> EmbeddedLearner:
    return EmbeddedLearner(
        model, CODEC, kind="rl", loss=LossConfig(), optimizer=OPTIMIZER, total_updates=100, updates=2, critic=critic()
    )


def test_the_policy_is_trained_with_what_the_critic_gives():
    model = tiny_model()
    before = [parameter.detach().clone() for _, parameter in model.trainable()]
    values = ppo(model).step(Batch(played(), 1)).values
    assert any(not torch.equal(now, then) for (_, now), then in zip(model.trainable(), before, strict=True))
    assert values["critic/explained_variance"] == 0
    assert values["critic/loss"] > 0


def test_a_restored_critic_goes_on_to_the_last_bit(tmp_path):
    whole = ppo(tiny_model())
    expected = [whole.step(Batch(played(), step)).values for step in (1, 2, 3)]
    first = ppo(tiny_model())
    first.step(Batch(played(), 1))
    first.save(tmp_path)
    again = ppo(tiny_model(seed=9))
    again.load(tmp_path)
    assert [again.step(Batch(played(), step)).values for step in (2, 3)] == expected[1:]


def test_a_checkpoint_without_a_critic_is_refused(tmp_path):
    EmbeddedLearner(tiny_model(), CODEC, kind="rl", loss=LossConfig(), optimizer=OPTIMIZER, total_updates=9).save(
        tmp_path
    )
    with pytest.raises(DataError, match="no checkpoint of a run with a critic"):
        ppo(tiny_model()).load(tmp_path)
