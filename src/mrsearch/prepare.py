"""The mini world made ready for a run: its files, and a model that has learnt to read and to speak the protocol.

What a user brings (questions, a corpus, a model folder) is written into the run
folder in the same forms, so that from there on the run is like any other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

from mrsearch import build
from mrsearch.codec import HFCodec
from mrsearch.config import Config, OptimizerConfig
from mrsearch.core.ports import Batch
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Episode, Question, Trajectory, Window, join_contents
from mrsearch.data.demonstrations import demonstration_from_record
from mrsearch.data.mini_world import (
    MINI_PROMPTS,
    DemoHabits,
    MiniWorld,
    build_world,
    chain_questions,
    demonstrations,
    mini_model_config,
    mini_tokenizer,
    mini_vocabulary,
    reading_texts,
)
from mrsearch.data.questions import save_questions
from mrsearch.engine.learner import EmbeddedLearner
from mrsearch.engine.mini_model import build_mini_model
from mrsearch.engine.model import LanguageModel
from mrsearch.errors import ConfigError

OTHER_WORLDS = range(100, 130)
"""Seeds of the worlds of the warm start: the names of the run's world, other facts."""

Progress = Callable[[str, int, int], None]
"""Told of a stage's name, its step and its number of steps."""


def with_prompts(config: Config) -> Config:
    """Settings of a mini world with prompts in its own few words, unless others were given."""
    if not config.world.entities or config.prompts != Prompts():
        return config
    return replace(config, prompts=MINI_PROMPTS)


def mini_world(config: Config, folder: Path, progress: Progress = lambda stage, step, steps: None) -> Config:
    """Settings with every path filled in; builds in `folder` what is not there yet.

    The same settings build the same files and, on one machine, the same
    weights; a build that was cut short is begun anew.
    """
    if config.world.seed in OTHER_WORLDS:
        raise ConfigError(f"world.seed {config.world.seed} is one of the worlds of the warm start (100 to 129)")
    files, model = folder / "world", folder / "warm-start"
    ready = replace(
        with_prompts(config),
        model=replace(config.model, path=config.model.path or str(model)),
        data=replace(
            config.data,
            train=config.data.train or str(files / "train.jsonl"),
            validation=config.data.validation or str(files / "validation.jsonl"),
        ),
        retrieval=replace(config.retrieval, corpus=config.retrieval.corpus or str(files / "corpus.jsonl")),
    )
    if not files.exists():
        _whole(files, lambda aside: _write_world(config, aside))
    if not config.model.path and not model.exists():
        _whole(model, lambda aside: _warm_start(ready, aside, progress))
    return ready


def _whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder aside and put it in place when it is whole."""
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    write(aside)
    aside.rename(folder)


def _write_world(config: Config, folder: Path) -> None:
    world = build_world(config.world.seed, config.world.entities)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for passage in world.passages:
            file.write(json.dumps({"id": passage.id, "contents": join_contents(passage)}) + "\n")
    for name, asked in _questions(world, config, seed=config.world.seed).items():
        save_questions(folder / f"{name}.jsonl", asked)


def _warm_start(config: Config, folder: Path, progress: Progress) -> None:
    """Train a fresh mini model on other worlds: reading first, then imperfect demonstrations."""
    tokenizer = mini_tokenizer(config.world.entities)
    codec = HFCodec(tokenizer, config.prompts)
    module: Any = build_mini_model(mini_model_config(len(mini_vocabulary(config.world.entities))), config.seed)
    model = LanguageModel(module.to(build.choose_device(config.engine)))
    build.set_threads(config.engine, model)
    worlds = [build_world(seed, config.world.entities) for seed in OTHER_WORLDS]
    settings = config.world.warm_start

    reading = OptimizerConfig(lr=settings.reading_lr, betas=(0.9, 0.98), warmup=30)
    learner = _supervised(config, model, codec, reading, settings.reading_steps)
    losses: list[float] = []
    for rows in islice(_reading(config, worlds, codec), settings.reading_steps):
        losses.append(learner.step(Batch(rows, len(losses) + 1)).values["loss"])
        progress("reading", len(losses), settings.reading_steps)
        if len(losses) >= 10 and sum(losses[-10:]) / 10 < settings.reading_loss:
            progress("reading", settings.reading_steps, settings.reading_steps)
            break

    steps = settings.single_steps + settings.steps
    speaking = OptimizerConfig(lr=settings.lr, betas=(0.9, 0.98), warmup=20, schedule="linear", decay_from=0.2)
    learner = _supervised(config, model, codec, speaking, steps)
    for step, rows in enumerate(islice(_demonstrated(config, worlds, codec), steps), start=1):
        learner.step(Batch(rows, step))
        progress("demonstrations", step, steps)
    model.save(folder)
    codec.save(folder)


def _supervised(
    config: Config, model: LanguageModel, codec: HFCodec, optimizer: OptimizerConfig, steps: int
) -> EmbeddedLearner:
    return EmbeddedLearner(model, codec, kind="supervised", loss=config.loss, optimizer=optimizer, total_updates=steps)


def _reading(config: Config, worlds: Sequence[MiniWorld], codec: HFCodec) -> Iterator[list[Trajectory]]:
    """Batches of reading exercises from four worlds each, as windows whose trained pieces are marked."""
    rng = Random(f"{config.seed} reading")
    question = Question("reading", "", ("",))
    opening = codec.opening("{question}", question)
    batch = config.world.warm_start.reading_batch
    while True:
        texts = [
            text
            for world in rng.choices(worlds, k=4)
            for text in reading_texts(world, batch // 4, rng.randrange(2**32))
        ]
        rows = []
        for number, pieces in enumerate(texts):
            window = Window()
            window.place(opening, episode=1)
            for text, trained in pieces:
                ids = codec.encode_reply(text)
                if trained:
                    window.sample(ids, [0.0] * len(ids), episode=1)
                else:
                    window.place(ids, episode=1)
            rows.append(Trajectory(question, number, 0, [Episode(1)], [window], "complete", advantages=[1.0]))
        yield rows


_BATCHES_SORTED = 8
"""Demonstrations of so many batches are sorted by length together, so that a batch has little padding."""


def _demonstrated(config: Config, worlds: Sequence[MiniWorld], codec: HFCodec) -> Iterator[list[Trajectory]]:
    """Batches of demonstrations from all worlds: single episodes first, then as many as are trained and more.

    A model does not extrapolate to more episodes than it has seen, so that one
    in ten of the later demonstrations is twice as long.
    """
    settings = config.world.warm_start
    rng = Random(f"{config.seed} demonstrations")
    asked = [[*chain.from_iterable(_questions(world, config, seed=0).values())] for world in worlds]
    made = 0
    while True:
        trajectories = []
        for _ in range(_BATCHES_SORTED * settings.batch):
            episodes = 1
            if made >= settings.single_steps * settings.batch:
                episodes = config.plan.episodes * (2 if rng.random() < 0.1 else 1)
            index = rng.randrange(len(worlds))
            records = demonstrations(
                worlds[index],
                [rng.choice(asked[index])],
                episodes=episodes,
                searches=config.plan.searches,
                habits=DemoHabits(expert=settings.expert),
                seed=rng.randrange(2**32),
            )
            shown = [demonstration_from_record(record) for record in records]
            trajectories += build.replay_demonstrations(shown, config.plan, config.prompts, codec)
            made += 1
        trajectories.sort(key=lambda trajectory: len(trajectory.windows[0]))
        batches = [
            trajectories[start : start + settings.batch] for start in range(0, len(trajectories), settings.batch)
        ]
        rng.shuffle(batches)
        yield from batches


def _questions(world: MiniWorld, config: Config, *, seed: int) -> dict[str, list[Question]]:
    """The question sets of a world, by name."""
    return {
        "train": chain_questions(world, "tr", config.world.train_questions, hops=config.world.hops, seed=seed),
        "validation": chain_questions(
            world, "te", config.world.validation_questions, hops=config.world.hops, seed=seed
        ),
    }
