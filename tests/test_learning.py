"""Learning, from nothing to a policy that builds on its first episode: in the mini world, by the product's own path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mrsearch import build, prepare
from mrsearch.config import Config, from_dict
from mrsearch.core.ports import Sampling
from mrsearch.evaluate.run import evaluate
from mrsearch.runs import RunFolder
from mrsearch.train import train

pytestmark = pytest.mark.slow

SETTINGS = {
    "world": {
        "entities": 120,
        "hops": [1, 2],
        "train_questions": 240,
        "validation_questions": 64,
        "warm_start": {"single_steps": 100, "steps": 600},
    },
    "plan": {
        "episodes": 2,
        "searches": 1,
        "top_k": 1,
        "turn_tokens": 16,
        "observation_tokens": 24,
        "window_tokens": 512,
    },
    "retrieval": {"title_weight": 3, "language": ""},
    "engine": {"device": "cpu", "overlap": False},
    "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.0},
    "train": {"steps": 20, "questions": 8, "group_size": 8, "updates": 1},
    "eval": {"every": 0},
}
"""One search an episode and chains of one or two facts: a single episode answers half of the questions at best."""


def learn(folder: Path, seed: int = 0) -> tuple[dict[str, float], dict[str, float]]:
    """Train from nothing; scores on held-out questions before and after reinforcement."""
    run = RunFolder.create(folder, from_dict({**SETTINGS, "seed": seed}).as_dict())
    config = prepare.mini_world(from_dict(run.settings()), folder)
    before = scores(config, config.model.path)
    training = build.training(config)
    train(run, config, training.stage, training.learner, training.hooks)
    last = run.last_checkpoint()
    assert last is not None
    return before, scores(config, str(last.folder))


def scores(config: Config, model: str) -> dict[str, float]:
    """EM of each episode on the held-out questions, greedy (once each) and at temperature 1 (four times each)."""
    config = replace(config, model=replace(config.model, path=model))
    player = build.player(config, build.language_model(config), build.codec(config), build.retriever(config.retrieval))
    asked = build.questions(config.data.validation, "data.validation")
    greedy = evaluate(player, asked, config.plan).curve("em")
    sampled = evaluate(player, asked * 4, config.plan, sampling=Sampling(temperature=1.0)).curve("em")
    return {"greedy/1": greedy[0], "greedy/2": greedy[1], "sampled/1": sampled[0], "sampled/2": sampled[1]}


def test_reinforcement_teaches_the_second_episode_to_build_on_the_first(tmp_path):
    # Measured with seeds 0, 1, 2: at temperature 1 episode 2 goes from .45, .48, .43 to .87, .86, .83; greedily it
    # ends .47, .48, .48 above episode 1. Seed 0 ends at .04 with advantages of the wrong sign, at .09 with rewards
    # shuffled within a group, and at .08 with observations trained like the policy's own text.
    before, after = learn(tmp_path / "run")
    assert after["sampled/2"] >= 0.75
    assert after["sampled/2"] - before["sampled/2"] >= 0.20
    # With one search no episode alone can answer the longer half of the questions; what is beyond came of two.
    assert after["greedy/2"] - after["greedy/1"] >= 0.30
