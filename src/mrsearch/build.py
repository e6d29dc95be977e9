"""Settings to objects: the only place that chooses implementations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import torch

from mrsearch.codec import HFCodec
from mrsearch.config import Config, EngineConfig, RetrievalConfig, check_training
from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Retriever
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Question, Trajectory
from mrsearch.data.demonstrations import Demonstration, load_demonstrations
from mrsearch.data.questions import load_questions
from mrsearch.engine.learner import EmbeddedLearner
from mrsearch.engine.model import LanguageModel
from mrsearch.engine.rollout import EmbeddedDriver
from mrsearch.engine.threads import choose_threads, usable_cores
from mrsearch.errors import ConfigError, DataError
from mrsearch.evaluate.run import evaluate, sample_questions
from mrsearch.retrieval.bm25 import BM25Retriever, Words
from mrsearch.retrieval.cache import CachedRetriever
from mrsearch.retrieval.corpus import load_corpus
from mrsearch.rollout.play import Player
from mrsearch.rollout.scripted import replay
from mrsearch.train import Hooks, ReinforcementStage, Stage, SupervisedStage


def choose_device(engine: EngineConfig) -> str:
    """The device that is configured, or the best one there is."""
    if engine.device != "auto":
        return engine.device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def set_threads(engine: EngineConfig, model: LanguageModel) -> int:
    """Set torch's threads as configured or chosen."""
    cores = usable_cores()
    threads = engine.threads or min(cores, choose_threads(sum(p.numel() for p in model.module.parameters()), cores))
    torch.set_num_threads(threads)
    return threads


def language_model(config: Config) -> LanguageModel:
    """The policy's model, on its device, with threads chosen for its size."""
    if not config.model.path:
        raise ConfigError("model.path is empty; name a folder or a hub name, or set world.entities for a mini world")
    torch.manual_seed(config.seed)  # adapters begin at random
    model = LanguageModel.load(
        config.model.path,
        device=choose_device(config.engine),
        dtype=config.model.dtype,
        lora_rank=config.model.lora_rank,
        lora_alpha=config.model.lora_alpha,
    )
    set_threads(config.engine, model)
    if model.context_limit is not None and config.plan.window_tokens > model.context_limit:
        raise ConfigError(
            f"plan.window_tokens is {config.plan.window_tokens}, more than the {model.context_limit} positions of "
            f"{config.model.path}"
        )
    return model


def codec(config: Config) -> HFCodec:
    """The tokenizer with the prompts and the place of observations."""
    return HFCodec.load(
        config.model.path,
        config.prompts,
        observations=config.model.observations,
        template=config.model.template or None,
        day=date.fromisoformat(config.model.date) if config.model.date else None,
    )


def retriever(config: RetrievalConfig) -> Retriever:
    """BM25 in memory over the configured corpus, behind a cache."""
    if not config.corpus:
        raise ConfigError("retrieval.corpus is empty; name a file of passages (JSON lines)")
    found: Retriever = BM25Retriever(
        load_corpus(Path(config.corpus)), Words(config.language, config.stemming, config.title_weight)
    )
    return CachedRetriever(found, config.cache) if config.cache else found


def questions(path: str, setting: str) -> list[Question]:
    """The questions of a file named by a setting."""
    if not path:
        raise ConfigError(f"{setting} is empty; name a file of questions (JSON lines)")
    return load_questions(Path(path))


def replay_demonstrations(
    demonstrations: Sequence[Demonstration], plan: Plan, prompts: Prompts, codec: HFCodec
) -> list[Trajectory]:
    """Encode demonstrations for a model: each is played through the machine, and every episode counts 1."""
    trajectories = []
    for number, demonstration in enumerate(demonstrations, start=1):
        meta = MetaEpisode(
            demonstration.question,
            replace(plan, episodes=len(demonstration.episodes), explore=0),
            codec,
            prompts,
            group=number,
        )
        replay(meta, codec, demonstration.turns)
        if meta.need is not None:
            raise DataError(
                f"demonstration {number} ({demonstration.question.id}) does not fit the plan: after its last turn the "
                f"meta-episode still needs {type(meta.need).__name__}; its episodes may have other budgets"
            )
        trajectory = meta.trajectory()
        if trajectory.finish_reason == "context_full":
            raise DataError(
                f"demonstration {number} ({demonstration.question.id}) does not fit plan.window_tokens="
                f"{plan.window_tokens}"
            )
        played, shown = ([len(episode.turns) for episode in trajectory.episodes], [*map(len, demonstration.episodes)])
        if played != shown:
            raise DataError(
                f"demonstration {number} ({demonstration.question.id}) does not fit the plan: its episodes have "
                f"{shown} turns, of which the plan takes {played}; look at plan.searches"
            )
        trajectories.append(replace(trajectory, advantages=[1.0] * len(trajectory.episodes)))
    return trajectories


def embedded_learner(config: Config, model: LanguageModel, codec: HFCodec) -> EmbeddedLearner:
    """The learner for the configured kind of training."""
    reference = None
    if config.train.kind == "rl" and config.loss.kl:
        reference = LanguageModel.load(config.model.path, device=choose_device(config.engine), dtype=config.model.dtype)
        reference.module.requires_grad_(requires_grad=False)
    updates = config.train.updates if config.train.kind == "rl" else 1
    return EmbeddedLearner(
        model,
        codec,
        kind=config.train.kind,
        loss=config.loss,
        optimizer=config.optimizer,
        total_updates=config.train.steps * updates,
        updates=updates,
        temperature=config.sampling.temperature if config.train.kind == "rl" else 1.0,
        micro_batch_tokens=config.engine.micro_batch_tokens,
        logit_chunk=config.engine.logit_chunk,
        reference=reference,
    )


def player(config: Config, model: LanguageModel, codec: HFCodec, retriever: Retriever) -> Player:
    """What plays meta-episodes with this model and retriever."""
    driver = EmbeddedDriver(model, codec, retriever, rows=config.engine.rows, overlap=config.engine.overlap)
    return Player(driver, codec, config.prompts)


def player_of(config: Config) -> Player:
    """Load the model, its tokenizer and the retriever that the settings name, ready to play."""
    return player(config, language_model(config), codec(config), retriever(config.retrieval))


@dataclass(frozen=True)
class Training:
    """All that `train` needs, ready to run."""

    stage: Stage
    learner: EmbeddedLearner
    hooks: Hooks


def training(config: Config) -> Training:
    """Load and connect everything that a run's settings name."""
    codec_ = codec(config)
    model = language_model(config)
    learner = embedded_learner(config, model, codec_)
    if config.train.kind == "supervised":
        if not config.data.demonstrations:
            raise ConfigError("data.demonstrations is empty; name a file of finished meta-episodes (JSON lines)")
        demonstrations = load_demonstrations(Path(config.data.demonstrations))
        stage: Stage = SupervisedStage(
            config, replay_demonstrations(demonstrations, config.plan, config.prompts, codec_), learner
        )
        if not (config.data.validation and config.retrieval.corpus):
            return Training(stage, learner, Hooks())
        player_ = player(config, model, codec_, retriever(config.retrieval))
    else:
        check_training(config)
        player_ = player(config, model, codec_, retriever(config.retrieval))
        stage = ReinforcementStage(config, questions(config.data.train, "data.train"), player_, learner)
    return Training(stage, learner, Hooks(evaluate=validation(config, player_)))


def validation(config: Config, player: Player) -> _Validation | None:
    """The evaluation that chooses the best checkpoint, where a validation set is named."""
    if not config.data.validation or not config.eval.every:
        return None
    asked = sample_questions(load_questions(Path(config.data.validation)), config.eval.limit, seed=config.seed)
    plan = replace(config.plan, episodes=config.eval.episodes or config.plan.episodes)
    return _Validation(player, asked, plan)


@dataclass(frozen=True)
class _Validation:
    player: Player
    questions: Sequence[Question]
    plan: Plan

    def __call__(self) -> dict[str, float]:
        return evaluate(self.player, self.questions, self.plan).values
