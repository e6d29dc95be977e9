"""Settings to objects: the only place that chooses implementations."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal

import torch

from mrsearch.codec import HFCodec, byte_tokenizer
from mrsearch.config import SOURCES, Config, EngineConfig, RetrievalConfig, check_training
from mrsearch.core.credit import PPO
from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Policy, Retriever
from mrsearch.core.process import Process, Scorer, rule_scores
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Question, Trajectory
from mrsearch.data.demonstrations import Demonstration, load_demonstrations
from mrsearch.data.sample import sample_questions
from mrsearch.data.sets import read_questions
from mrsearch.engine.critic import Critic
from mrsearch.engine.learner import EmbeddedLearner
from mrsearch.engine.model import LanguageModel
from mrsearch.engine.rollout import EmbeddedDriver, EmbeddedPolicy
from mrsearch.engine.threads import choose_threads, usable_cores
from mrsearch.errors import ConfigError, DataError
from mrsearch.evaluate.run import evaluate
from mrsearch.judge import TurnJudge
from mrsearch.retrieval.bm25 import BM25Retriever, Words
from mrsearch.retrieval.cache import CachedRetriever
from mrsearch.retrieval.client import RemoteRetriever
from mrsearch.retrieval.corpus import load_corpus
from mrsearch.retrieval.function import FunctionRetriever
from mrsearch.retrieval.index import open_index
from mrsearch.retrieval.kept import KeptRetriever
from mrsearch.retrieval.patience import PatientRetriever
from mrsearch.retrieval.rerank import RerankingRetriever
from mrsearch.retrieval.web import WebRetriever
from mrsearch.rollout.chat import ChatEndpoint
from mrsearch.rollout.concurrent import ConcurrentDriver
from mrsearch.rollout.condense import CondensingRetriever
from mrsearch.rollout.driver import Driver, SimpleDriver
from mrsearch.rollout.endpoint import EndpointPolicy
from mrsearch.rollout.known import KNOWING, KnowingPolicy
from mrsearch.rollout.play import Player
from mrsearch.rollout.scripted import replay
from mrsearch.train import Hooks, ReinforcementStage, Stage, SupervisedStage

logger = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class Waiting:
    """How waiting for a retriever that is down is told, and given up."""

    report: Callable[[str], None] = logger.warning
    cancelled: Callable[[], bool] = lambda: False


def retriever(config: RetrievalConfig, waiting: Waiting | None = None) -> Retriever:
    """What finds passages: the configured source, put in order, kept in a file, waited for, remembered."""
    waiting = waiting or Waiting()
    # A replay asks nobody, and does not load what it would have asked.
    source, name = (None, _source_name(config)) if config.replay else _source(config)
    found = source
    if found is not None and config.rerank:
        found = RerankingRetriever(found, config.rerank, depth=config.rerank_depth)
    if config.cache_file:
        mode: Literal["use", "replay"] = "replay" if config.replay else "use"
        found = KeptRetriever(found, Path(config.cache_file), source=name, mode=mode)
    assert found is not None
    if config.source in ("url", "web", "function") and not config.replay:
        found = PatientRetriever(found, config.on_outage, report=waiting.report, cancelled=waiting.cancelled)
    return CachedRetriever(found, config.cache) if config.cache else found


def _source(config: RetrievalConfig) -> tuple[Retriever, str]:
    """The retriever that the settings name, and what tells its passages from those of others."""
    name = _source_name(config)
    match config.source:
        case "corpus":
            words = Words(config.language, config.stemming, config.title_weight)
            return BM25Retriever(load_corpus(Path(config.corpus)), words), name
        case "index":
            return open_index(Path(config.index), kind=config.part), name
        case "url":
            return RemoteRetriever(config.url, token=_token(config), deadline=config.deadline_s), name
        case "web":
            return WebRetriever(config.web, token=_token(config), deadline=config.deadline_s), name
        case "function":
            return FunctionRetriever(config.function), name
    names = " or ".join(f"retrieval.{source}" for source in SOURCES)
    raise ConfigError(f"nothing says where passages come from; set {names}")


def _source_name(config: RetrievalConfig) -> str:
    parts = [config.source, str(getattr(config, config.source, "")), config.part]
    if config.source == "corpus":
        parts += [config.language, str(config.stemming), str(config.title_weight)]
    if config.rerank:
        parts += ["rerank", config.rerank, str(config.rerank_depth)]
    return " ".join(part for part in parts if part)


def _token(config: RetrievalConfig) -> str:
    return os.environ.get(config.token_env, "") if config.token_env else ""


def questions(path: str, setting: str) -> list[Question]:
    """The questions of a file, or of a published set, named by a setting."""
    if not path:
        raise ConfigError(f"{setting} is empty; name a file of questions (JSON lines), or a set (mrsearch data list)")
    return read_questions(path)


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
        critic=_critic(config, updates) if config.train.kind == "rl" and config.credit.rule == PPO else None,
    )


def _critic(config: Config, updates: int) -> Critic:
    """A critic on the model that training starts from."""
    device = choose_device(config.engine)
    return Critic(
        LanguageModel.load(config.model.path, device=device, dtype=config.model.dtype),
        config=config.critic,
        optimizer=config.optimizer,
        gamma=config.credit.gamma,
        total_updates=config.train.steps * updates,
        micro_batch_tokens=config.engine.micro_batch_tokens,
    )


def player(config: Config, model: LanguageModel, codec: HFCodec, retriever: Retriever) -> Player:
    """What plays meta-episodes with this model and retriever."""
    driver = EmbeddedDriver(model, codec, retriever, rows=config.engine.rows, overlap=config.engine.overlap)
    return Player(driver, codec, config.prompts)


def player_of(config: Config, waiting: Waiting | None = None) -> Player:
    """Load the model, its tokenizer and the retriever that the settings name, ready to play."""
    return Agent.load(config, retriever(config.retrieval, waiting)).player()


KNOWING_PREFIX = "known:"
"""`known:gold` and the like stand for agents that know the questions, in the place of a model."""


@dataclass(frozen=True)
class Agent:
    """A policy on whichever engine, with its tokenizer and what finds passages for it.

    Without a policy it is one of the agents that know the questions, by the name in `model.path`.
    """

    config: Config
    codec: HFCodec
    policy: LanguageModel | EndpointPolicy | None
    retriever: Retriever

    @classmethod
    def load(cls, config: Config, retriever: Retriever) -> Agent:
        """Load the model, or find the endpoint, that the settings name."""
        engine = config.engine
        if config.model.path.startswith(KNOWING_PREFIX):
            if config.model.path.removeprefix(KNOWING_PREFIX) not in KNOWING:
                raise ConfigError(
                    f"there is no agent {config.model.path}; known are "
                    + ", ".join(f"{KNOWING_PREFIX}{name}" for name in KNOWING)
                )
            return cls(config, HFCodec(byte_tokenizer(), config.prompts), None, retriever)
        if engine.kind == "embedded":
            return cls(config, codec(config), language_model(config), retriever)
        tokenizer = codec(config)
        policy = EndpointPolicy(
            engine.url,
            tokenizer,
            model=engine.served_model,
            token=os.environ.get(engine.token_env, "") if engine.token_env else "",
            deadline=engine.deadline_s,
            connections=engine.rows,
        )
        return cls(config, tokenizer, policy, retriever)

    def player(self, questions: Sequence[Question] = (), *, condense: bool = False) -> Player:
        """What plays meta-episodes; with `condense` the policy condenses passages before they are shown.

        `questions` are for the agents that know them, by their place.
        """
        retriever = self.retriever
        if self.policy is None:
            turn = KNOWING[self.config.model.path.removeprefix(KNOWING_PREFIX)]
            knowing = KnowingPolicy(self.codec, self.codec, questions, turn)
            return Player(SimpleDriver(knowing, retriever), self.codec, self.config.prompts)
        if condense:
            plan = self.config.plan
            retriever = CondensingRetriever(
                retriever,
                self._turns(self.policy),
                self.codec,
                prompt=self.config.prompts.condense,
                tokens=plan.turn_tokens,
                observation_tokens=plan.observation_tokens,
            )
        if isinstance(self.policy, EndpointPolicy):
            driver: Driver = ConcurrentDriver(self.policy, retriever, rows=self.config.engine.rows)
        else:
            # Passages that the model condenses are generated by the same model, which cannot do both at once.
            overlap = self.config.engine.overlap and not condense
            driver = EmbeddedDriver(self.policy, self.codec, retriever, rows=self.config.engine.rows, overlap=overlap)
        return Player(driver, self.codec, self.config.prompts)

    def _turns(self, policy: LanguageModel | EndpointPolicy) -> Policy:
        return policy if isinstance(policy, EndpointPolicy) else EmbeddedPolicy(policy, self.codec)


@dataclass(frozen=True)
class Training:
    """All that `train` needs, ready to run."""

    stage: Stage
    learner: EmbeddedLearner
    hooks: Hooks


def training(config: Config, waiting: Waiting | None = None) -> Training:
    """Load and connect everything that a run's settings name."""
    check_training(config)
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
        if not (config.data.validation and config.retrieval.source):
            return Training(stage, learner, Hooks())
        player_ = player(config, model, codec_, retriever(config.retrieval, waiting))
    else:
        player_ = player(config, model, codec_, retriever(config.retrieval, waiting))
        asked = questions(config.data.train, "data.train")
        stage = ReinforcementStage(config, asked, player_, learner, turn_scorer(config.process))
    return Training(stage, learner, Hooks(evaluate=validation(config, player_)))


def turn_scorer(process: Process) -> Scorer | None:
    """What scores turns, where the settings ask for scores."""
    if process.kind == "rule":
        return rule_scores
    if process.kind != "judge":
        return None
    token = os.environ.get(process.token_env, "") if process.token_env else ""
    chat = ChatEndpoint(
        process.url, model=process.model, token=token, setting="process.url", model_setting="process.model"
    )
    return TurnJudge(chat)


def validation(config: Config, player: Player) -> _Validation | None:
    """The evaluation that chooses the best checkpoint, where a validation set is named."""
    if not config.data.validation or not config.eval.every:
        return None
    asked = sample_questions(read_questions(config.data.validation), config.eval.limit, seed=config.seed)
    plan = replace(config.plan, episodes=config.eval.episodes or config.plan.episodes)
    return _Validation(player, asked, plan)


@dataclass(frozen=True)
class _Validation:
    player: Player
    questions: Sequence[Question]
    plan: Plan

    def __call__(self) -> dict[str, float]:
        return evaluate(self.player, self.questions, self.plan).values
