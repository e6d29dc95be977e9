"""The learner: one mean over all trained tokens however they are batched, what is skipped, schedules, exact saving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mrsearch.config import LossConfig, OptimizerConfig
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Batch, Sampling
from mrsearch.core.types import Trajectory, Window
from mrsearch.engine.learner import EmbeddedLearner
from mrsearch.engine.loss import Tokens, token_losses
from mrsearch.engine.model import LanguageModel
from mrsearch.engine.rollout import EmbeddedDriver
from mrsearch.engine.schedule import learning_rate
from mrsearch.errors import DataError
from mrsearch.rollout.play import Player
from tiny_models import PROMPTS, VOCABULARY, PlaceRetriever, questions, tiny_codec, tiny_model

CODEC = tiny_codec()
PLAN = Plan(episodes=3, searches=1, top_k=2, turn_tokens=10, observation_tokens=7, window_tokens=120)
TEMPERATURE = 0.7
NO_LIMIT = OptimizerConfig(lr=1e-3, weight_decay=0.0, max_grad_norm=math.inf)


def rollout(model: LanguageModel, *, count: int = 4, group_size: int = 2, plan: Plan = PLAN) -> list[Trajectory]:
    """Meta-episodes of the model with made-up advantages, some of them zero."""
    player = Player(EmbeddedDriver(model, CODEC, PlaceRetriever()), CODEC, PROMPTS)
    played, _ = player.play(questions(count), plan, group_size=group_size, sampling=Sampling(TEMPERATURE), seed=(3, 1))
    values = np.random.default_rng(0).choice([-1.0, -0.5, 0.0, 0.5, 1.0], size=(len(played), plan.episodes))
    values[1] = 0
    return [
        replace(trajectory, advantages=row[: len(trajectory.episodes)].tolist())
        for trajectory, row in zip(played, values, strict=True)
    ]


def learner(model: LanguageModel, **settings) -> EmbeddedLearner:
    defaults = {
        "kind": "rl",
        "loss": LossConfig(),
        "optimizer": NO_LIMIT,
        "total_updates": 10,
        "temperature": TEMPERATURE,
    }
    made = EmbeddedLearner(model, CODEC, **{**defaults, **settings})

    def keep(optimizer, *rest):
        STEPPED_WITH[model] = gradients(model)

    made._optimizer.register_step_pre_hook(keep)
    return made


STEPPED_WITH: WeakKeyDictionary[LanguageModel, list[torch.Tensor]] = WeakKeyDictionary()
"""The gradients that the optimiser of each model was given last; after a step they are no longer on the parameters."""


def gradients(model: LanguageModel) -> list[torch.Tensor]:
    now = [parameter.grad for _, parameter in model.trainable()]
    return [grad.clone() for grad in now] if all(grad is not None for grad in now) else STEPPED_WITH[model]


def weights(model: LanguageModel) -> list[torch.Tensor]:
    return [parameter.detach().clone() for _, parameter in model.trainable()]


def assert_close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float = 1e-6) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def written_out(model: LanguageModel, trajectories: Sequence[Trajectory], loss: LossConfig) -> list[torch.Tensor]:
    """The gradient of the mean over all trained tokens, one window after the other, by autograd alone."""
    model.module.zero_grad()
    total = sum(window.trained for trajectory in trajectories for window in trajectory.windows)
    for trajectory in trajectories:
        for window in trajectory.windows:
            where = [n for n, sampled in enumerate(window.loss_mask) if sampled]
            ids = torch.tensor([window.ids])
            logits = model.module(input_ids=ids, use_cache=False).logits[0] / TEMPERATURE
            every = logits.log_softmax(dim=-1)[[n - 1 for n in where]]
            logprobs = every.gather(1, ids[0, where][:, None])[:, 0]
            tokens = Tokens(
                logprobs,
                -(every.exp() * every).sum(dim=-1),
                torch.tensor([trajectory.advantages[window.episode_ids[n] - 1] for n in where]),
                torch.tensor([window.logprobs[n] for n in where]),
            )
            (token_losses(tokens, loss).sum() / total).backward()
    return gradients(model)


def every_token(model: LanguageModel, trajectories: Sequence[Trajectory]):
    """Of each meta-episode's windows: what autograd has for its trained tokens, with their places in the mask."""
    for trajectory in trajectories:
        for window in trajectory.windows:
            where = [n for n, sampled in enumerate(window.loss_mask) if sampled]
            ids = torch.tensor([window.ids])
            logits = model.module(input_ids=ids, use_cache=False).logits[0] / TEMPERATURE
            yield (
                trajectory,
                window,
                where,
                logits.log_softmax(dim=-1)[[n - 1 for n in where]].gather(1, ids[0, where][:, None])[:, 0],
            )


def moved(trajectories: Sequence[Trajectory], by: float, seed: int = 5) -> list[Trajectory]:
    """The trajectories as a policy would have sampled them whose log-probabilities lie up to so far from these."""
    random = np.random.default_rng(seed)
    return [
        replace(
            trajectory,
            windows=[
                replace(
                    window, logprobs=(np.array(window.logprobs) + random.uniform(-by, by, len(window.ids))).tolist()
                )
                for window in trajectory.windows
            ],
        )
        for trajectory in trajectories
    ]


# -- one mean ---------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, context="last")], ids=["full", "last"])
@pytest.mark.parametrize("loss", [LossConfig(), LossConfig(entropy=0.1)], ids=["plain", "entropy"])
def test_the_gradient_is_the_one_that_autograd_gives_for_the_mean_over_all_trained_tokens(plan, loss):
    model = tiny_model(double=True)
    trajectories = rollout(model, plan=plan)
    expected = written_out(model, trajectories, loss)
    assert max(float(gradient.abs().max()) for gradient in expected) > 1e-3
    learner(model, loss=loss).step(Batch(trajectories, 1))
    assert_close(gradients(model), expected)


EVERY_TERM = LossConfig(kl=0.2, entropy=0.1, llds=0.3, llds_answer=0.5, mean="sequences", correction="token_tis")


@pytest.mark.parametrize("loss", [LossConfig(), EVERY_TERM], ids=["plain", "all terms"])
@pytest.mark.parametrize("updates", [1, 2, 3])
def test_small_batches_give_the_gradient_and_the_weights_of_one_big_batch(updates, loss):
    results = []
    trajectories = rollout(tiny_model(double=True))
    for tokens, chunk in ((100_000, 0), (1, 1), (150, 7)):
        model = tiny_model(double=True)
        reference = tiny_model(double=True, seed=1)
        metrics = learner(
            model, loss=loss, updates=updates, micro_batch_tokens=tokens, logit_chunk=chunk, reference=reference
        ).step(Batch(trajectories, 1))
        assert metrics.values["updates"] == updates
        results.append((gradients(model), weights(model), metrics.values))  # the gradient of the last update
    for grads, params, values in results[1:]:
        assert_close(grads, results[0][0], 1e-9)
        assert_close(params, results[0][1], 1e-9)
        assert values == pytest.approx(results[0][2], abs=1e-6)


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, context="last")], ids=["full", "last"])
def test_the_mean_over_meta_episodes_is_the_one_that_autograd_gives(plan):
    model = tiny_model(double=True)
    trajectories = rollout(model, plan=plan)
    loss = LossConfig(mean="sequences")
    model.module.zero_grad()
    for trajectory, window, where, logprobs in every_token(model, trajectories):
        advantages = torch.tensor([trajectory.advantages[window.episode_ids[n] - 1] for n in where])
        sampled = torch.tensor([window.logprobs[n] for n in where])
        of_all = sum(each.trained for each in trajectory.windows) * len(trajectories)
        (token_losses(Tokens(logprobs, logprobs, advantages, sampled), loss).sum() / of_all).backward()
    expected = gradients(model)
    learner(model, loss=loss).step(Batch(trajectories, 1))
    assert_close(gradients(model), expected)
    learner(model, loss=LossConfig(mean="constant", length=50)).step(Batch(trajectories, 1))


# -- LLDS ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, context="last")], ids=["full", "last"])
@pytest.mark.parametrize("gate", ["action", "token", "response"])
def test_falling_likelihood_costs_what_the_formula_says(plan, gate):
    """At the second of two updates: the first has moved the model, and its groups are others."""
    far = replace(NO_LIMIT, lr=0.02)
    trajectories = rollout(tiny_model(double=True), plan=plan)
    second = [trajectory for trajectory in trajectories if trajectory.group % 2 == 1]
    found = {}
    for weight in (0.0, 0.3):
        copy = tiny_model(double=True)
        made = learner(copy, updates=2, optimizer=far, loss=LossConfig(llds=weight, llds_gate=gate))
        metrics = made.step(Batch(trajectories, 1))
        found[weight] = gradients(copy)
    before = [logprobs.detach() for *_, logprobs in every_token(tiny_model(double=True), second)]
    model = tiny_model(double=True)
    learner(model, optimizer=far).step(Batch([one for one in trajectories if one not in second], 1))
    penalty, members, tokens = 0.0, 0, 0
    model.module.zero_grad()
    terms = []
    for (trajectory, window, where, logprobs), old in zip(every_token(model, second), before, strict=True):
        for episode in trajectory.episodes:
            if trajectory.advantages[episode.number - 1] < 0:
                continue
            mine = [k for k, n in enumerate(where) if window.episode_ids[n] == episode.number]
            if not mine:
                continue
            members += 1
            tokens += len(mine)
            falls = old[mine] - logprobs[mine]
            actions = [[at for at, k in enumerate(mine) if turn.start <= where[k] < turn.end] for turn in episode.turns]
            parts = {"action": actions, "token": [[at] for at in range(len(mine))], "response": [range(len(mine))]}[
                gate
            ]
            held = [torch.relu(falls[list(part)]).sum() for part in parts if falls[list(part)].sum() > 0]
            terms.append((sum(held, torch.tensor(0.0)), len(mine)))
    for held, count in terms:
        penalty = penalty + (held / tokens if gate == "token" else held / (count * members))
    assert float(penalty.detach()) > 1e-3
    (0.3 * penalty).backward()
    expected = [plain + extra for plain, extra in zip(found[0.0], gradients(model), strict=True)]
    assert_close(found[0.3], expected)
    assert metrics.values["llds"] == pytest.approx(0.3 * float(penalty.detach()) / 2, rel=1e-5)


def test_at_the_first_update_nothing_has_fallen():
    model = tiny_model(double=True)
    trajectories = rollout(model)
    plain, held = tiny_model(double=True), tiny_model(double=True)
    learner(plain).step(Batch(trajectories, 1))
    metrics = learner(held, loss=LossConfig(llds=0.3)).step(Batch(trajectories, 1))
    assert "llds" not in metrics.values
    assert_close(gradients(held), gradients(plain), 1e-5)


# -- sampler and trainer ------------------------------------------------------------------------


@pytest.mark.parametrize("correction", ["token_tis", "token_mis", "episode_tis", "episode_mis"])
def test_where_sampler_and_trainer_agree_a_correction_changes_nothing(correction):
    trajectories = rollout(tiny_model(double=True))
    plain, corrected = tiny_model(double=True), tiny_model(double=True)
    learner(plain, updates=2).step(Batch(trajectories, 1))
    metrics = learner(corrected, updates=2, loss=LossConfig(correction=correction)).step(Batch(trajectories, 1))
    assert_close(weights(corrected), weights(plain), 1e-5)
    assert metrics.values["weight"] == pytest.approx(1, abs=1e-4)
    assert metrics.values["weight_bounded"] == 0


def test_tokens_that_the_sampler_saw_otherwise_weigh_otherwise():
    """At the first update the ratio is 1 whatever the sampler said, so that the gradient is w A dlogp."""
    model = tiny_model(double=True)
    trajectories = moved(rollout(model), by=1.5)
    model.module.zero_grad()
    total = sum(window.trained for trajectory in trajectories for window in trajectory.windows)
    bounded = count = 0
    for trajectory, window, where, logprobs in every_token(model, trajectories):
        weight = (logprobs.detach() - torch.tensor([window.logprobs[n] for n in where])).exp()
        advantages = torch.tensor([trajectory.advantages[window.episode_ids[n] - 1] for n in where])
        (-(weight.clamp(max=2.0) * advantages * logprobs).sum() / total).backward()
        bounded += int((weight > 2).sum())
        count += len(where)
    expected = gradients(model)
    metrics = learner(model, loss=LossConfig(correction="token_tis")).step(Batch(trajectories, 1))
    assert_close(gradients(model), expected)
    assert 0 < metrics.values["weight_bounded"] == pytest.approx(bounded / count)


def test_the_second_update_is_on_other_groups_and_sees_the_first_ones_weights():
    model = tiny_model(double=True)
    trajectories = rollout(model)
    learner(model, updates=2).step(Batch(trajectories, 1))
    by_hand = tiny_model(double=True)
    alone = learner(by_hand)
    for remainder in (0, 1):
        alone.step(Batch([trajectory for trajectory in trajectories if trajectory.group % 2 == remainder], 1))
    assert_close(weights(model), weights(by_hand), 1e-9)


def two_windows(*, advantages: tuple[float, float], lengths: tuple[int, int] = (1, 3)) -> list[Trajectory]:
    """Two meta-episodes of one turn of so many tokens after one and the same context."""
    model = tiny_model(double=True)
    found = []
    for trajectory, advantage, length in zip(rollout(model, count=2, group_size=1), advantages, lengths, strict=True):
        window = Window()
        window.place([2, 12, 16], episode=1)
        window.sample([17, 18, 19][:length], [-2.0] * length, episode=1)
        found.append(replace(trajectory, windows=[window], advantages=[advantage]))
    return found


def first_token_gradient(trajectories: list[Trajectory], **settings) -> tuple[list[torch.Tensor], dict[str, float]]:
    model = tiny_model(double=True)
    settings.setdefault("kind", "supervised")
    metrics = learner(model, temperature=1.0, **settings).step(Batch(trajectories, 1)).values
    return gradients(model), dict(metrics)


def test_every_token_weighs_the_same_whatever_the_length_of_its_turn():
    """One token of advantage 1 beside three of advantage 0: a quarter of what it is alone."""
    alone, values = first_token_gradient(two_windows(advantages=(1.0, 0.0))[:1])
    beside, diluted = first_token_gradient(two_windows(advantages=(1.0, 0.0)))
    assert_close(beside, [gradient / 4 for gradient in alone])
    assert diluted["loss"] == pytest.approx(values["loss"] / 4)


def test_the_loss_by_hand():
    """Advantages 1 and -1 on one and three tokens at ratio 1: (-1 + 3) / 4."""
    model = tiny_model(double=True)
    trajectories = two_windows(advantages=(1.0, -1.0))
    with torch.no_grad():
        logprobs = model.module(input_ids=torch.tensor([[2, 12, 16, 17, 18]])).logits[0, 2:].log_softmax(dim=-1)
    for trajectory in trajectories:
        window = trajectory.windows[0]
        window.logprobs[3:] = [float(logprobs[n, window.ids[3 + n]]) for n in range(window.trained)]
    metrics = learner(model, temperature=1.0).step(Batch(trajectories, 1)).values
    assert metrics["loss"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["logprob_mismatch_max"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["trained_tokens"] == 4


# -- nothing to train -------------------------------------------------------------------------


def test_tokens_without_advantage_stay_in_the_mean_and_get_no_forward_pass():
    model = tiny_model(double=True)
    read = []
    model.module.get_input_embeddings().register_forward_hook(lambda layer, ids, output: read.append(ids[0].shape))
    metrics = learner(model, temperature=1.0).step(Batch(two_windows(advantages=(1.0, 0.0)), 1)).values
    assert read == [(1, 4)]  # the row with an advantage, of four ids, and no other
    assert metrics["trained_tokens"] == 4
    assert metrics["idle_tokens"] == 3


def test_with_an_entropy_bonus_they_do_count():
    model = tiny_model(double=True)
    metrics = learner(model, loss=LossConfig(entropy=0.1)).step(Batch(two_windows(advantages=(1.0, 0.0)), 1)).values
    assert metrics["idle_tokens"] == 0


def masked(trajectory: Trajectory) -> Trajectory:
    """The same meta-episode as if the environment had written all of it."""
    windows = []
    for window in trajectory.windows:
        windows.append(Window())
        windows[-1].place(window.ids, episode=1)
    return replace(trajectory, windows=windows)


def test_a_fully_masked_row_changes_nothing():
    trajectories = rollout(tiny_model(double=True))
    found = []
    for batch in (trajectories, [*trajectories, masked(trajectories[0])]):
        model = tiny_model(double=True)
        values = learner(model).step(Batch(batch, 1)).values
        found.append((gradients(model), values))
    assert_close(found[0][0], found[1][0], 0.0)
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("empty", ["masked", "zero", "nothing"])
@pytest.mark.parametrize("kind", ["rl", "supervised"])
def test_where_nothing_is_to_train_no_weight_moves_and_the_update_is_counted_as_skipped(kind, empty):
    model = tiny_model(double=True)
    trajectories = rollout(model, count=2)
    if empty == "masked":
        trajectories = [masked(trajectory) for trajectory in trajectories]
    elif empty == "zero":
        trajectories = [replace(t, advantages=[0.0] * len(t.episodes)) for t in trajectories]
    else:
        trajectories = []
    before = weights(model)
    values = learner(model, kind=kind, updates=2).step(Batch(trajectories, 1)).values
    assert all(torch.equal(one, other) for one, other in zip(weights(model), before, strict=True))
    assert (values["loss"], values["updates"], values["skipped_updates"], values["grad_norm"]) == (0.0, 0, 2, 0.0)
    assert all(math.isfinite(value) for value in values.values())


def test_an_update_without_groups_is_skipped_and_the_other_is_done():
    model = tiny_model(double=True)
    values = learner(model, updates=2).step(Batch(rollout(model, count=1), 1)).values
    assert (values["updates"], values["skipped_updates"]) == (1, 1)


def test_a_gradient_that_is_not_finite_moves_nothing(caplog):
    model = tiny_model(double=True)
    trajectories = two_windows(advantages=(-1.0, -1.0))
    trajectories[0].windows[0].logprobs[-1] = -math.inf  # as an engine that has underflowed would report
    before = weights(model)
    values = learner(model, loss=LossConfig(dual_clip=0.0)).step(Batch(trajectories, 1)).values
    assert values["skipped_updates"] == 1
    assert all(torch.equal(one, other) for one, other in zip(weights(model), before, strict=True))
    assert "not finite" in caplog.text


# -- gradient limit and schedule --------------------------------------------------------------


def test_the_gradient_is_scaled_down_to_its_limit_over_all_weights_together():
    free, limited = tiny_model(double=True), tiny_model(double=True)
    trajectories = rollout(free)
    norm = learner(free).step(Batch(trajectories, 1)).values["grad_norm"]
    optimizer = replace(NO_LIMIT, max_grad_norm=norm / 2)
    values = learner(limited, optimizer=optimizer).step(Batch(trajectories, 1)).values
    assert values["grad_norm"] == pytest.approx(norm)  # reported before it is scaled
    assert_close(gradients(limited), [gradient / 2 for gradient in gradients(free)])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1, 1]),
        ({"warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ({"schedule": "linear", "decay_from": 0.5}, [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine", "decay_from": 0.5}, [1, 1, 1, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_learning_rate_over_eight_updates(settings, expected):
    config = OptimizerConfig(lr=2.0, **settings)
    assert [learning_rate(config, n, 8) / 2 for n in range(8)] == pytest.approx(expected, abs=1e-6)


def test_each_update_has_its_place_in_the_schedule():
    model = tiny_model(double=True)
    trained = learner(model, updates=2, optimizer=replace(NO_LIMIT, warmup=4))
    rates = [trained.step(Batch(rollout(model), step)).values["lr"] for step in (1, 2)]
    assert rates == pytest.approx([0.5e-3, 1e-3])  # of the second update of each step


# -- the ratio --------------------------------------------------------------------------------


def test_before_the_first_update_the_policy_is_the_one_that_sampled():
    model = tiny_model()
    values = learner(model).step(Batch(rollout(model), 1)).values
    assert values["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert values["clip_share"] == 0.0
    assert values["logprob_mismatch_max"] < 1e-4


def test_the_mismatch_is_of_the_first_update_only():
    model = tiny_model(double=True)
    values = learner(model, updates=3, optimizer=replace(NO_LIMIT, lr=0.05)).step(Batch(rollout(model), 1)).values
    assert values["logprob_mismatch_max"] < 1e-6  # although the weights moved far after it
    assert abs(values["ratio"] - 1) > 1e-3


def test_the_divergence_from_a_reference_with_the_same_weights_is_zero():
    model = tiny_model(double=True)
    settings = {"loss": LossConfig(kl=0.1), "reference": tiny_model(double=True)}
    values = learner(model, **settings).step(Batch(rollout(model), 1)).values
    assert values["kl"] == pytest.approx(0.0, abs=1e-9)


def test_better_tokens_become_likelier_and_worse_ones_rarer():
    model = tiny_model(double=True)
    trajectories = two_windows(advantages=(1.0, 1.0), lengths=(1, 1))
    trajectories[1].windows[0].ids[-1] = 18
    trajectories[1] = replace(trajectories[1], advantages=[-1.0])

    def chances() -> tuple[float, float]:
        with torch.no_grad():
            logits = model.module(input_ids=torch.tensor([[2, 12, 16]])).logits[0, -1].softmax(dim=-1)
        return float(logits[17]), float(logits[18])

    before = chances()
    for trajectory, chance in zip(trajectories, before, strict=True):
        trajectory.windows[0].logprobs[-1] = math.log(chance)
    learner(model, temperature=1.0).step(Batch(trajectories, 1))
    after = chances()
    assert after[0] > before[0]
    assert after[1] < before[1]


# -- supervised -------------------------------------------------------------------------------


def test_imitation_lowers_the_loss_on_the_tokens_of_the_mask():
    model = tiny_model()
    trajectories = [replace(t, advantages=[1.0] * len(t.episodes)) for t in rollout(model, count=2)]
    trained = learner(model, kind="supervised", temperature=1.0, optimizer=replace(NO_LIMIT, lr=3e-3))
    steps = [trained.step(Batch(trajectories, step)).values for step in range(1, 41)]
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    assert steps[0]["trained_tokens"] == sum(window.trained for t in trajectories for window in t.windows)
    assert "ratio" not in steps[0]


def test_imitation_trains_the_same_tokens_as_reinforcement():
    """At ratio 1 and advantage 1 the two gradients are the same: d(-p/q) = d(-log p) where p = q."""
    found = []
    for kind in ("rl", "supervised"):
        model = tiny_model(double=True)
        trajectories = [replace(t, advantages=[1.0] * len(t.episodes)) for t in rollout(model)]
        learner(model, kind=kind).step(Batch(trajectories, 1))
        found.append(gradients(model))
    assert_close(*found)


# -- saving -----------------------------------------------------------------------------------


def test_a_restored_learner_goes_on_to_the_last_bit(tmp_path):
    model = tiny_model()
    first, second = rollout(model), rollout(model, count=3)
    trained = learner(model, optimizer=OptimizerConfig(lr=1e-3, warmup=3))
    trained.step(Batch(first, 1))
    trained.save(tmp_path)
    values = trained.step(Batch(second, 2)).values
    other = tiny_model(seed=9)
    restored = learner(other, optimizer=OptimizerConfig(lr=1e-3, warmup=3))
    restored.load(tmp_path)
    assert restored.step(Batch(second, 2)).values == values
    assert all(torch.equal(one, two) for one, two in zip(weights(other), weights(model), strict=True))


def test_a_saved_learner_is_a_model_folder_that_others_can_load(tmp_path):
    model = tiny_model("llama")
    learner(model).save(tmp_path)
    again = LanguageModel.load(tmp_path)
    assert all(torch.equal(one, two) for one, two in zip(weights(again), weights(model), strict=True))
    assert (tmp_path / "tokenizer.json").exists()


def test_a_folder_without_learner_and_one_of_another_model_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no learner\.pt"):
        learner(tiny_model()).load(tmp_path)
    learner(tiny_model("gpt2")).save(tmp_path)
    with pytest.raises(DataError, match="other parameters"):
        learner(tiny_model()).load(tmp_path)


# -- adapters ---------------------------------------------------------------------------------


def adapted(folder, *, seed: int = 3) -> LanguageModel:
    """A tiny model with adapters of rank 4."""
    pytest.importorskip("peft")
    tiny_model("llama", seed=seed).save(folder)
    torch.manual_seed(0)
    return LanguageModel.load(folder, lora_rank=4)


def states(model: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(torch.tensor([[2, 12, 16, 17, 18, 4, 20]])))


def train_adapters(model: LanguageModel, *, steps: int = 2) -> EmbeddedLearner:
    trained = learner(model, optimizer=replace(NO_LIMIT, lr=0.03))
    for step in range(steps):
        trained.step(Batch(rollout(model), step))
    return trained


def test_only_adapters_are_trained(tmp_path):
    model = adapted(tmp_path)
    assert all("lora_" in name for name, _ in model.trainable())
    before = {name: parameter.detach().clone() for name, parameter in model.module.named_parameters()}
    unmoved = states(model)
    train_adapters(model)
    for name, parameter in model.module.named_parameters():
        assert torch.equal(parameter, before[name]) == ("lora_" not in name)
    assert float((states(model) - unmoved).abs().max()) > 1e-2


def test_adapters_are_saved_merged_and_the_model_in_training_stays_as_it_is(tmp_path):
    model = adapted(tmp_path / "base")
    trained = train_adapters(model)
    before = states(model)
    trained.save(tmp_path / "saved")
    assert torch.equal(states(model), before)
    merged = LanguageModel.load(tmp_path / "saved")
    assert not any("lora_" in name for name, _ in merged.trainable())
    torch.testing.assert_close(states(merged), before, rtol=1e-4, atol=1e-4)
    assert (tmp_path / "saved" / "adapter" / "adapter_model.safetensors").exists()


def test_restored_adapters_go_on_to_the_last_bit(tmp_path):
    model = adapted(tmp_path / "base")
    trained = train_adapters(model)
    trained.save(tmp_path / "saved")
    batch = rollout(model)
    trained.step(Batch(batch, 3))
    torch.manual_seed(1)  # adapters begin at random; those of the checkpoint count
    other = LanguageModel.load(tmp_path / "base", lora_rank=4)
    restored = learner(other, optimizer=replace(NO_LIMIT, lr=0.03))
    restored.load(tmp_path / "saved")
    restored.step(Batch(batch, 3))
    assert torch.equal(states(other), states(model))


def test_turns_are_generated_with_the_adapters_in_place(tmp_path):
    model = adapted(tmp_path)
    train_adapters(model)
    values = learner(model).step(Batch(rollout(model), 1)).values
    assert values["logprob_mismatch_max"] < 1e-4


def test_dropout_is_off_in_training_too_since_the_policy_that_sampled_had_none():
    """The ratio before any update is 1 also for a model whose settings have dropout."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    assert config.resid_pdrop > 0
    torch.manual_seed(0)
    model = LanguageModel(GPT2LMHeadModel(config))
    metrics = learner(model).step(Batch(rollout(model), 1)).values
    assert metrics["logprob_mismatch_max"] < 1e-4
