"""One typed tree of settings, read from YAML and `key=value`, saved resolved in the run folder.

Every default is written once, with its meaning under it. Branches are plain
frozen dataclasses; a part of the program receives its branch, never the tree.
Unknown keys are errors, with the nearest known one named.
"""

from __future__ import annotations

import difflib
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from mrsearch.core.correction import Correction
from mrsearch.core.credit import OUTCOME_RULES, PPO, RULES, TURN_RULES
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Sampling
from mrsearch.core.process import Process
from mrsearch.core.protocol import Prompts
from mrsearch.core.rewards import REWARDS
from mrsearch.core.shaping import Shaping
from mrsearch.errors import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """The policy."""

    path: str = ""
    """Folder or hub name of a Hugging Face causal language model; empty only with a mini world."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass. Weights and optimiser state are float32 in both."""
    lora_rank: int = 0
    """Rank of LoRA adapters; 0 trains all weights."""
    lora_alpha: int = 32
    """Scale of LoRA adapters."""
    template: str = ""
    """A Jinja file in place of the model's chat template; `plain` uses none."""
    date: str = ""
    """The day (YYYY-MM-DD) that chat templates take for today; a run keeps the day on which it began."""
    observations: Literal["assistant", "user", "tool"] = "assistant"
    """Where passages stand in a chat: inside the assistant's turn (Search-R1), or in messages of their own."""


@dataclass(frozen=True)
class EngineConfig:
    """What computes, and how much at once."""

    kind: Literal["embedded", "endpoint"] = "embedded"
    """The engine: this machine, or an OpenAI-compatible completions endpoint, which evaluates and does not train."""
    url: str = ""
    """URL of the endpoint, for `endpoint`; `model.path` then names its tokenizer."""
    served_model: str = ""
    """The model's name at the endpoint; empty takes the only one that it serves."""
    deadline_s: float = 600.0
    """Seconds that a turn may take at the endpoint, retries included."""
    token_env: str = "MRSEARCH_ENDPOINT_TOKEN"
    """Environment variable that holds the endpoint's bearer token, where it asks for one."""
    device: str = "auto"
    """`cpu`, `cuda`, `mps`; `auto` takes what is there."""
    threads: int = 0
    """Threads of torch on the CPU; 0 chooses by the size of the model and the cores."""
    rows: int = 256
    """Most windows generated together, or turns asked of the endpoint at once."""
    overlap: bool = True
    """Search for one half of the rows while the other half generates."""
    micro_batch_tokens: int = 16384
    """Most tokens of one forward and backward pass, padding included."""
    logit_chunk: int = 0
    """Trained tokens whose logits are held at once; 0 chooses by the size of the vocabulary."""


@dataclass(frozen=True)
class DataConfig:
    """Question sets and demonstrations, as files."""

    train: str = ""
    """Questions to train on (JSON lines, .gz, .parquet)."""
    validation: str = ""
    """Questions that choose the best checkpoint."""
    demonstrations: str = ""
    """Finished meta-episodes to imitate, for `train.kind=supervised`."""


@dataclass(frozen=True)
class RetrievalConfig:
    """Where passages come from: one of `corpus`, `index`, `url`, `web` and `function`; and what a search may cost."""

    corpus: str = ""
    """Passages (JSON lines, .gz, .parquet, or a folder of texts), indexed in memory by BM25 at the start."""
    index: str = ""
    """Folder of an index that the command `index` built."""
    url: str = ""
    """Retrieval server, or several replicas with commas between them; any that speaks the protocol of Search-R1."""
    web: str = ""
    """URL of a search engine with SearXNG's JSON interface."""
    function: str = ""
    """A Python callable, as `module:function`."""
    part: Literal["", "bm25", "dense", "hybrid"] = ""
    """What of an index is used; empty takes what it was built for."""
    language: str = "en"
    """Stop words and stems of a corpus in memory; empty keeps all words as they are."""
    stemming: bool = True
    """Compare words of a corpus in memory by their stems."""
    title_weight: int = 1
    """How many more times the title counts in a corpus in memory."""
    rerank: str = ""
    """Cross-encoder, by folder or hub name, that orders the first `rerank_depth` passages anew."""
    rerank_depth: int = 100
    """Passages that the cross-encoder reads for a query."""
    cache: int = 65536
    """Queries whose passages are kept in memory; 0 keeps none."""
    cache_file: str = ""
    """SQLite file in which passages are kept over runs."""
    replay: bool = False
    """Take passages from `cache_file` alone; a query that is not in it is an error."""
    deadline_s: float = 30.0
    """Seconds that a call to a server may take, all its retries included."""
    on_outage: Literal["wait", "fail", "stop"] = "wait"
    """When no server answers: wait for one, end the meta-episodes concerned untrained, or stop the run, saved."""
    token_env: str = "MRSEARCH_TOKEN"
    """Environment variable that holds the server's bearer token, where it asks for one."""

    @property
    def source(self) -> str:
        """The setting that says where passages come from; empty where none does."""
        return next((name for name in SOURCES if getattr(self, name)), "")


SOURCES = ("corpus", "index", "url", "web", "function")
"""Settings of `retrieval`, of which one says where passages come from."""


@dataclass(frozen=True)
class CreditConfig:
    """Rewards to advantages."""

    rule: str = "mr_search"
    """mr_search, rloo, grpo, dr_grpo, reinforce_pp, reinforce_pp_baseline, mt_grpo, ppo, lamer or step_process."""
    outcome: Literal["each", "last"] = "each"
    """An episode is credited by its own reward, or all by the last one; for rules that know one reward of a sample."""
    gamma: float = 1.0
    """Discount over episodes; 0 credits an episode with its own reward alone."""
    step_gamma: float = 1.0
    """Discount over the turns of an episode, for lamer and step_process."""
    ragged: Literal["zero", "present"] = "zero"
    """Missing episodes count as reward 0, or leave the baseline (as the published code has it)."""
    cost: float = 0.0
    """Taken from the reward of every played episode after the first."""
    no_signal: Literal["keep", "drop", "refill"] = "keep"
    """Groups without signal: their tokens count in the mean, or not, or further questions take their place."""


@dataclass(frozen=True)
class LossConfig:
    """The objective of one optimiser step."""

    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: float = 3.0
    """For a negative advantage A the loss of a token is at most dual_clip * |A|; 0 turns it off."""
    kl: float = 0.0
    """Weight of the k3 estimate of the divergence from the reference model; at 0 none is loaded."""
    entropy: float = 0.0
    """Weight of the entropy bonus."""
    mean: Literal["tokens", "sequences", "constant"] = "tokens"
    """Over all trained tokens of a step; over those of a meta-episode, then over these; or sums over `length`."""
    length: int = 0
    """For `mean=constant`: what the sum of a meta-episode is divided by, for example the tokens that it may have."""

    llds: float = 0.0
    """Weight of the penalty on falling likelihood where the advantage is not negative (LLDS, arXiv 2512.04220); 0.2."""
    llds_gate: Literal["action", "token", "response"] = "action"
    """What has to fall as a whole before its tokens are held: a turn, nothing but the token, or an episode."""
    llds_answer: float = 1.0
    """Weight of that penalty in turns that answer (LLDS-MA takes less than 1)."""
    correction: Correction = "none"
    """Weights between sampler and trainer: token_tis, token_mis, episode_tis or episode_mis (docs/methods.md)."""
    correction_low: float = 0.5
    """Least weight that is kept, for token_mis and episode_mis."""
    correction_high: float = 2.0
    """Largest weight."""


@dataclass(frozen=True)
class CriticConfig:
    """The critic of `credit.rule=ppo`: a value head on a copy of the policy's model, whole and in memory beside it."""

    lr: float = 1e-5
    """Learning rate; the rest of its optimiser is set by `optimizer`."""
    warmup: int = 0
    """Updates over which the rate rises linearly from 0."""
    lam: float = 1.0
    """lambda of generalised advantage estimation; 1 takes the whole return."""
    clip: float = 0.5
    """The value loss is at least that of a value held within so much of the old one; 0 turns it off."""
    whiten: bool = True
    """Advantages are given mean 0 and variance 1 over the tokens of a step."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule. Defaults are the paper's."""

    lr: float = 1e-6
    """Learning rate after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the two moments."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm."""
    warmup: int = 0
    """Updates over which the rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls after `decay_from` of all updates, to 0 at the end."""
    decay_from: float = 0.0
    """Share of all updates after which the fall begins."""


@dataclass(frozen=True)
class TrainConfig:
    """The loop."""

    kind: Literal["rl", "supervised"] = "rl"
    """`rl`: roll out, credit, step. `supervised`: imitate demonstrations with the same mask."""
    steps: int = 300
    """Steps of the loop."""
    questions: int = 512
    """Questions of a step; for `supervised`, demonstrations of a step."""
    group_size: int = 5
    """G, the meta-episodes of one question in a step."""
    updates: int = 2
    """Optimiser steps on one rollout, each on its share of the groups."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training, greedy, on `data.validation`."""

    every: int = 20
    """Steps between evaluations; 0 evaluates never."""
    limit: int = 0
    """Questions of an evaluation, a seeded sample; 0 takes all."""
    episodes: int = 0
    """Episodes of an evaluation; 0 plays as many as in training."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept of a run."""

    every: int = 20
    """Steps between checkpoints; the last step always has one."""
    keep: int = 2
    """The last so many are kept, and the best by validation."""
    trajectories: bool = True
    """Write every meta-episode of training into the run folder."""


@dataclass(frozen=True)
class WatchConfig:
    """The watch on collapse, in reinforcement learning (docs/training.md)."""

    action: Literal["off", "warn", "pause", "roll_back"] = "warn"
    """On an alarm: nothing, a line, stop with all saved, or go back to the best checkpoint's model."""
    memory: int = 5
    """Steps in a row that a sign has to be bad; its reference is the mean of the first so many steps."""
    roll_backs: int = 2
    """After so many returns to the best checkpoint the next alarm pauses."""


@dataclass(frozen=True)
class WarmStartConfig:
    """How the mini model learns to read and to speak the protocol before RL."""

    reading_steps: int = 450
    """Most steps on single passages, in which a named relation's value is copied."""
    reading_loss: float = 0.01
    """Reading ends when the mean loss of ten steps is below this; demonstrations before that teach nothing."""
    reading_lr: float = 6e-3
    """Learning rate of these steps."""
    reading_batch: int = 16
    """Passages of a step."""
    single_steps: int = 150
    """Steps on demonstrations of one episode."""
    steps: int = 1350
    """Steps on demonstrations of as many episodes as the plan has, one in ten of them of twice as many."""
    lr: float = 3e-3
    """Learning rate of the steps on demonstrations; it falls to 0 after the first fifth of them."""
    batch: int = 4
    """Demonstrations of a step; small batches learn more from the same number of them."""
    expert: float = 0.15
    """Share of demonstrations that take every decision right."""


@dataclass(frozen=True)
class WorldConfig:
    """The mini world: built, not downloaded. `entities` 0 means there is none."""

    entities: int = 0
    """Entities, each with one passage."""
    seed: int = 0
    """Which facts hold."""
    hops: tuple[int, ...] = (1, 2, 3, 4)
    """Lengths of the chains that questions ask for, in equal shares."""
    train_questions: int = 1440
    """Questions for training, from the training half of the world."""
    validation_questions: int = 240
    """Held-out questions: their chains share no fact with training."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    """How the model learns the protocol."""


@dataclass(frozen=True)
class Config:
    """All settings of a run. Defaults are the paper's where it states them."""

    seed: int = 0
    """Seed of everything that is drawn."""
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    data: DataConfig = field(default_factory=DataConfig)
    world: WorldConfig = field(default_factory=WorldConfig)
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    plan: Plan = field(default_factory=Plan)
    prompts: Prompts = field(default_factory=Prompts)
    sampling: Sampling = field(default_factory=Sampling)
    reward: str = "em"
    """Score of an answer: em, f1, sub_em, or a function of your own as module:function."""
    shaping: Shaping = field(default_factory=Shaping)
    process: Process = field(default_factory=Process)
    credit: CreditConfig = field(default_factory=CreditConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        _check(self)

    def as_dict(self) -> dict[str, Any]:
        """The tree as plain data, ready for YAML."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


_ADAPTER = TypeAdapter(Config)
_SHORT = {"engine": "engine.kind"}
"""`engine=embedded` is short for `engine.kind=embedded`."""


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), *, base: Mapping[str, Any] | None = None
) -> Config:
    """Settings from a YAML file, then `key.sub=value` overrides (values in YAML), over the defaults.

    A file may name another one beside it as its `base`, over which its own settings
    go. The argument `base` is a tree of plain data that stands in place of a file.
    """
    tree: dict[str, Any] = _merge({}, base or {})
    if path is not None:
        tree = _read_recipe(Path(path), ())
    sources = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"{override!r} is no setting; write key=value, for example train.steps=100")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key} cannot be read: {text!r}") from error
        _set(tree, _SHORT.get(key, key).split("."), value)
        section, _, name = key.partition(".")
        if section == "retrieval" and name in SOURCES:
            sources[name] = value
    _drop_other_sources(tree, sources)
    return from_dict(tree)


def from_dict(tree: Mapping[str, Any]) -> Config:
    """Settings from plain data."""
    _refuse_unknown(tree, Config, ())
    try:
        return _ADAPTER.validate_python(_without_empty(tree, Config))
    except ValidationError as error:
        first = error.errors()[0]
        ours = first.get("ctx", {}).get("error")
        if isinstance(ours, ConfigError):  # says itself which setting it means
            raise ours from error
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: {first['msg']} (given: {first['input']!r})") from error


def _read_recipe(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """A file's settings over those of the file that it names as its base, and so on."""
    if path.resolve() in above:
        raise ConfigError(f"{path} is its own base; take out the line base: of one of {', '.join(map(str, above))}")
    tree = _read_yaml(path)
    if "base" not in tree:
        return tree
    name = tree.pop("base")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{path}: base is {name!r}; it names the file whose settings this one starts from")
    found = _read_recipe(path.parent / name, (*above, path.resolve()))
    retrieval = tree.get("retrieval")
    _drop_other_sources(found, retrieval if isinstance(retrieval, Mapping) else {})
    return _merge(found, tree)


def _drop_other_sources(tree: dict[str, Any], named: Mapping[str, Any]) -> None:
    """Passages come from one source: one that is named later takes the place of another."""
    retrieval = tree.get("retrieval")
    if isinstance(retrieval, dict) and any(named.get(name) for name in SOURCES):
        for name in SOURCES:
            if name not in named:
                retrieval.pop(name, None)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no settings file {path}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no readable YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds {type(tree).__name__}; settings are a mapping of names to values")
    return tree


def _set(tree: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        if tree.get(key) is None:
            tree[key] = {}
        below = tree[key]
        if not isinstance(below, dict):
            raise ConfigError(f"{'.'.join(keys)} goes below {key}, which is a single value")
        tree = below
    tree[keys[-1]] = value


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in other.items():
        if isinstance(value, Mapping):
            below = tree.get(key)
            tree[key] = _merge(below if isinstance(below, dict) else {}, value)
        else:
            tree[key] = value
    return tree


def _refuse_unknown(tree: Any, section: type, path: tuple[str, ...]) -> None:
    if tree is None:  # a heading with nothing below it
        return
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{'.'.join(path) or 'the config'} is a group of settings, not {tree!r}")
    types = typing.get_type_hints(section)
    known = {setting.name: types[setting.name] for setting in fields(section)}
    for key, value in tree.items():
        if key not in known:
            name = ".".join((*path, str(key)))
            near = difflib.get_close_matches(str(key), known, n=1)
            every = _all_names(Config, ())
            elsewhere = [known_name for known_name in every if known_name.rpartition(".")[2] == key]
            elsewhere += difflib.get_close_matches(name, every, n=1)
            hint = ".".join((*path, near[0])) if near else (elsewhere[0] if elsewhere else "")
            raise ConfigError(f"unknown setting {name!r}" + (f"; did you mean {hint!r}?" if hint else ""))
        if is_dataclass(known[key]):
            _refuse_unknown(value, known[key], (*path, str(key)))


def _without_empty(tree: Mapping[str, Any], section: Any) -> dict[str, Any]:
    """The tree without headings that have nothing below them: they leave the defaults."""
    types = typing.get_type_hints(section)
    kept = {}
    for key, value in tree.items():
        if not is_dataclass(types[key]):
            kept[key] = "" if value is None and types[key] is str else value
        elif value is not None:
            kept[key] = _without_empty(value, types[key])
    return kept


def _all_names(section: Any, path: tuple[str, ...]) -> list[str]:
    types = typing.get_type_hints(section)
    names = []
    for setting in fields(section):
        below = types[setting.name]
        here = (*path, setting.name)
        names += _all_names(below, here) if is_dataclass(below) else [".".join(here)]
    return names


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _check(config: Config) -> None:
    """What a type alone cannot say: ranges, names that nobody has, settings that do not fit together."""
    if config.reward not in REWARDS and ":" not in config.reward:
        known = ", ".join(sorted(REWARDS))
        raise ConfigError(f"reward is {config.reward!r}; known are {known}, and module:function of your own")
    rules = (*RULES, PPO, *TURN_RULES)
    if config.credit.rule not in rules:
        raise ConfigError(f"credit.rule is {config.credit.rule!r}; known are {', '.join(sorted(rules))}")
    if (config.process.kind != "none") != (config.credit.rule == "step_process"):
        raise ConfigError(
            f"credit.rule is {config.credit.rule} and process.kind {config.process.kind}; step_process is the rule "
            "that takes rewards of turns, and needs a kind of them"
        )
    if config.credit.rule in TURN_RULES and config.credit.ragged != "zero":
        raise ConfigError(f"credit.rule={config.credit.rule} compares whole returns, for which a missing episode is 0")
    if config.process.kind in ("judge", "rule") and config.plan.explore:
        raise ConfigError(
            "plan.explore takes an episode's own reward, and process.kind sets turns off by it; choose one"
        )
    if config.credit.step_gamma != 1 and config.credit.rule not in TURN_RULES:
        raise ConfigError(f"credit.step_gamma is for credit.rule={' and '.join(TURN_RULES)}, which credit turns")
    if config.credit.rule == PPO and config.credit.no_signal != "keep":
        raise ConfigError(
            "credit.no_signal is for rules that compare within a group; the critic learns from all of them"
        )
    if config.credit.outcome == "last" and config.credit.rule not in OUTCOME_RULES:
        raise ConfigError(
            f"credit.outcome=last is for rules that know one reward of a sample ({', '.join(OUTCOME_RULES)}), and "
            f"credit.rule is {config.credit.rule}; MR-Search with the last reward alone is credit.rule=rloo"
        )
    if (config.loss.mean == "constant") != (config.loss.length > 0):
        raise ConfigError(
            f"loss.mean is {config.loss.mean} and loss.length {config.loss.length}; a constant needs a length above 0, "
            "and nothing else has one"
        )
    for section, ranges in _RANGES.items():
        branch = attrgetter(section)(config) if section else config
        for name, (least, most) in ranges.items():
            value = getattr(branch, name)
            for given in value if isinstance(value, tuple) else (value,):
                if not least <= given <= most or given == math.inf:
                    bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
                    raise ConfigError(f"{f'{section}.{name}'.strip('.')} is {value}; it must be {bounds}")
    if config.sampling.top_p == 0:
        raise ConfigError("sampling.top_p is 0; it must lie above 0, and 1 turns it off")
    if 0 < config.loss.dual_clip < 1:
        raise ConfigError(f"loss.dual_clip is {config.loss.dual_clip:g}; it must be at least 1, and 0 turns it off")
    if not config.world.hops:
        raise ConfigError("world.hops is empty; name at least one length of a chain")
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", config.engine.device) is None:
        raise ConfigError(f"engine.device is {config.engine.device!r}; known are auto, cpu, mps, cuda, cuda:0, ...")
    if config.model.date and re.fullmatch(r"\d{4}-\d{2}-\d{2}", config.model.date) is None:
        raise ConfigError(f"model.date is {config.model.date!r}; write it as YYYY-MM-DD")
    named = [f"retrieval.{name}" for name in SOURCES if getattr(config.retrieval, name)]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} are both set; passages come from one of them, so empty the other")
    if config.retrieval.replay and not config.retrieval.cache_file:
        raise ConfigError("retrieval.replay takes passages from retrieval.cache_file, which is empty; name the file")
    if config.plan.turn_tokens + config.plan.observation_tokens >= config.plan.window_tokens:
        raise ConfigError(
            f"plan.window_tokens is {config.plan.window_tokens}, no room for one turn ({config.plan.turn_tokens}) "
            f"and one observation ({config.plan.observation_tokens})"
        )
    for name in ("question", "direct", "cot", "rag", "ircot", "condense"):
        if "{question}" not in getattr(config.prompts, name):
            raise ConfigError(f"prompts.{name} has no {{question}}: the policy would never see what is asked")
    if config.engine.kind == "endpoint" and not config.engine.url:
        raise ConfigError("engine.kind is endpoint and engine.url is empty; write it as http://127.0.0.1:8000")
    if config.train.group_size < 2:
        raise ConfigError(
            f"train.group_size is {config.train.group_size}; a group of one has no baseline, take at least 2"
        )


_ANY = (0.0, math.inf)
_POSITIVE = (1.0, math.inf)
_SHARE = (0.0, 1.0)
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "": {"seed": _ANY},
    "model": {"lora_rank": _ANY, "lora_alpha": _POSITIVE},
    "engine": {
        "threads": _ANY,
        "rows": _POSITIVE,
        "deadline_s": (0.001, math.inf),
        "micro_batch_tokens": _POSITIVE,
        "logit_chunk": _ANY,
    },
    "retrieval": {"title_weight": _ANY, "rerank_depth": _POSITIVE, "cache": _ANY, "deadline_s": (0.001, math.inf)},
    "sampling": {"temperature": _ANY, "top_p": _SHARE, "top_k": _ANY},
    "credit": {"gamma": _SHARE, "step_gamma": _SHARE, "cost": _ANY},
    "process": {"weight": _ANY, "mu": _ANY},
    "shaping": {"format": _SHARE, "retrieval": _SHARE, "floor": _SHARE, "repetition": _ANY, "improvement": _ANY},
    "loss": {
        "clip_low": _SHARE,
        "clip_high": _ANY,
        "dual_clip": _ANY,
        "kl": _ANY,
        "entropy": _ANY,
        "length": _ANY,
        "llds": _ANY,
        "llds_answer": _SHARE,
        "correction_low": _SHARE,
        "correction_high": _POSITIVE,
    },
    "critic": {"lr": _ANY, "warmup": _ANY, "lam": _SHARE, "clip": _ANY},
    "optimizer": {
        "lr": _ANY,
        "betas": (0.0, 0.999999),
        "weight_decay": _ANY,
        "max_grad_norm": (1e-12, math.inf),
        "warmup": _ANY,
        "decay_from": _SHARE,
    },
    "train": {"steps": _POSITIVE, "questions": _POSITIVE, "updates": _POSITIVE},
    "eval": {"every": _ANY, "limit": _ANY, "episodes": _ANY},
    "watch": {"memory": _POSITIVE, "roll_backs": _ANY},
    "checkpoint": {"every": _POSITIVE, "keep": _POSITIVE},
    "world": {
        "entities": _ANY,
        "seed": _ANY,
        "hops": _POSITIVE,
        "train_questions": _POSITIVE,
        "validation_questions": _POSITIVE,
    },
    "world.warm_start": {
        "reading_steps": _ANY,
        "reading_loss": _ANY,
        "reading_lr": _ANY,
        "reading_batch": (4.0, math.inf),
        "single_steps": _ANY,
        "steps": _POSITIVE,
        "lr": _ANY,
        "batch": _POSITIVE,
        "expert": _SHARE,
    },
}
"""Least and most of every number; branches of the core check their own."""


def check_training(config: Config) -> None:
    """What training asks of the settings, beyond what any use of them does: most of it of reinforcement alone."""
    if config.engine.kind == "endpoint":
        raise ConfigError("engine.kind is endpoint, which has no weights to train; train with engine=embedded")
    if config.train.kind != "rl":
        return
    if config.train.updates > config.train.questions:
        raise ConfigError(
            f"train.updates is {config.train.updates}, more than the {config.train.questions} questions of a step"
        )
    if config.sampling.temperature == 0:
        raise ConfigError("sampling.temperature is 0: all meta-episodes of a group would be equal; train at 1")
    if config.sampling.top_p < 1 or config.sampling.top_k > 0:
        raise ConfigError(
            "sampling.top_p and sampling.top_k must be off in training: the ratio would compare probabilities of "
            "different distributions; set sampling.top_p=1 sampling.top_k=0"
        )
    if config.loss.llds and config.train.updates < 2:
        raise ConfigError(
            f"loss.llds is {config.loss.llds:g} with train.updates={config.train.updates}: at the first update of a "
            "rollout no likelihood has fallen yet, so that it would do nothing; take two updates or more"
        )
    validated = config.eval.every and (config.data.validation or config.world.entities)
    if config.watch.action == "roll_back" and not validated:
        raise ConfigError(
            "watch.action=roll_back goes back to the best checkpoint, which validation finds; set data.validation and "
            "eval.every"
        )
    if config.plan.stop_when_stable:
        raise ConfigError("plan.stop_when_stable is for inference; training plays every episode of the plan")
