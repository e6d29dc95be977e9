"""Settings: one typed tree, read from YAML and the command line, in which no wrong key or value passes unnoticed."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mrsearch.config import Config, check_training, from_dict, load_config
from mrsearch.core.plan import Plan
from mrsearch.errors import ConfigError


def sections(section: type, path: str = "") -> Iterator[tuple[str, type]]:
    """Every dataclass of the tree with its name in settings, the root's being empty."""
    yield path, section
    for name, below in typing.get_type_hints(section).items():
        if is_dataclass(below):
            yield from sections(typing.cast(type, below), f"{path}.{name}".lstrip("."))


SECTIONS = dict(sections(Config))


class TestDefaults:
    def test_are_the_papers(self) -> None:
        config = Config()
        assert (config.train.group_size, config.plan.episodes) == (5, 3)
        assert (config.credit.rule, config.credit.gamma, config.reward) == ("mr_search", 1.0, "em")
        assert (config.loss.clip_low, config.loss.clip_high, config.loss.dual_clip) == (0.2, 0.2, 3.0)
        assert (config.loss.kl, config.loss.entropy) == (0.0, 0.0)
        assert (config.optimizer.lr, config.train.updates) == (1e-6, 2)
        assert (config.sampling.temperature, config.sampling.top_p, config.sampling.top_k) == (1.0, 1.0, 0)
        assert config.plan.credit_mask == (1.0, 1.0, 1.0)

    def test_are_those_of_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "empty.yaml").write_text("# nothing yet\n")
        assert load_config(tmp_path / "empty.yaml") == load_config() == Config()

    @pytest.mark.parametrize("path", SECTIONS)
    def test_each_has_its_meaning_written_below_it(self, path: str) -> None:
        section = SECTIONS[path]
        body = ast.parse(inspect.getsource(section)).body[0]
        assert isinstance(body, ast.ClassDef)
        documented = {
            before.target.id
            for before, after in zip(body.body, body.body[1:], strict=False)
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
            if isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        }
        types = typing.get_type_hints(section)
        leaves = {setting.name for setting in fields(section) if not is_dataclass(types[setting.name])}
        assert leaves - documented == set()
        assert inspect.getdoc(section)


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("train.group_sise", "train.group_size"),
            ("trian", "train"),
            ("trian.steps", "train"),
            ("plan.episode", "plan.episodes"),
            ("prompts.reflexion", "prompts.reflection"),
            ("sampling.temprature", "sampling.temperature"),
            ("world.warm_start.stepz", "world.warm_start.steps"),
            ("group_size", "train.group_size"),  # the right name in the wrong place
        ],
    )
    def test_are_refused_with_the_nearest_known_one(self, given: str, meant: str) -> None:
        named = given if given != "trian.steps" else "trian"
        with pytest.raises(ConfigError) as caught:
            load_config(overrides=[f"{given}=1"])
        assert str(caught.value) == f"unknown setting {named!r}; did you mean {meant!r}?"

    @pytest.mark.parametrize("path", SECTIONS)
    def test_are_refused_at_every_level(self, path: str) -> None:
        key = f"{path}.qqqqqq".lstrip(".")
        with pytest.raises(ConfigError) as caught:
            load_config(overrides=[f"{key}=1"])
        assert str(caught.value).startswith(f"unknown setting {key!r}")

    def test_in_a_file_are_refused_as_well(self, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("train:\n  group_sise: 3\n")
        with pytest.raises(ConfigError, match=r"unknown setting 'train\.group_sise'; did you mean 'train\.group_size'"):
            load_config(tmp_path / "c.yaml")


class TestWrongValues:
    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("train.steps=many", r"train\.steps: .*integer.*'many'"),
            ("train.steps=1.5", r"train\.steps: .*integer.*1\.5"),
            ("train.steps=", r"train\.steps: .*integer.*None"),
            ("train.steps=[1]", r"train\.steps: .*integer.*\[1\]"),
            ("optimizer.lr=small", r"optimizer\.lr: .*number.*'small'"),
            ("engine.overlap=perhaps", r"engine\.overlap: .*boolean.*'perhaps'"),
            ("model.path=3", r"model\.path: .*string.*3"),
            ("model.dtype=float16", r"model\.dtype: .*'float32' or 'bfloat16'.*'float16'"),
            ("engine=cloud", r"engine\.kind: .*'embedded'.*'cloud'"),
            ("optimizer.betas=[0.9]", r"optimizer\.betas"),
            ("optimizer.betas=[0.9, high]", r"optimizer\.betas\.1: .*number.*'high'"),
            ("plan.openings=[reflect]", r"plan\.openings\.0: .*'reflection'.*'reflect'"),
            ("train=5", "train is a group of settings, not 5"),
            ("reward=bleu", r"reward is 'bleu'; known are em, f1, sub_em"),
            ("credit.rule=ppoo", r"credit\.rule is 'ppoo'; known are .*mr_search"),
            ("reward=emm", r"reward is 'emm'; known are em, f1, sub_em, and module:function of your own"),
            ("loss.mean=constant", r"a constant needs a length above 0"),
            ("loss.length=9", r"loss\.mean is tokens and loss\.length 9"),
            ("credit.outcome=last", r"MR-Search with the last reward alone is credit\.rule=rloo"),
            ("process.kind=gain", r"step_process is the rule that takes rewards of turns"),
            ("credit.rule=step_process", r"process\.kind none"),
            ("credit.step_gamma=0.9", r"is for credit\.rule=lamer and step_process"),
            ("shaping.floor=0.1", r"need shaping\.rule=search_r1"),
            ("seed=-1", r"^seed is -1; it must be at least 0"),
            ("plan.episodes=0", r"^plan\.episodes is 0; it must be at least 1$"),
            ("train.questions=0", r"^train\.questions is 0; it must be at least 1"),
            ("checkpoint.keep=0", r"^checkpoint\.keep is 0; it must be at least 1"),
            ("eval.every=-1", r"^eval\.every is -1; it must be at least 0"),
            ("credit.gamma=1.1", r"^credit\.gamma is 1\.1; it must be between 0 and 1"),
            ("credit.gamma=.nan", r"^credit\.gamma is nan"),
            ("sampling.top_p=0", r"^sampling\.top_p is 0"),
            ("sampling.temperature=-1", r"^sampling\.temperature is -1\.0; it must be at least 0"),
            ("loss.kl=-1", r"^loss\.kl is -1\.0; it must be at least 0"),
            ("loss.clip_low=-3", r"^loss\.clip_low is -3\.0; it must be between 0 and 1"),
            ("loss.dual_clip=0.5", r"^loss\.dual_clip is 0\.5; it must be at least 1, and 0 turns it off"),
            ("optimizer.max_grad_norm=0", r"^optimizer\.max_grad_norm is 0"),
            ("optimizer.betas=[1,2]", r"^optimizer\.betas is \(1\.0, 2\.0\)"),
            ("optimizer.lr=.inf", r"^optimizer\.lr is inf"),
            ("optimizer.decay_from=7", r"^optimizer\.decay_from is 7\.0; it must be between 0 and 1"),
            ("engine.logit_chunk=-5", r"^engine\.logit_chunk is -5"),
            ("engine.threads=-1", r"^engine\.threads is -1"),
            ("engine.device=foo", r"^engine\.device is 'foo'; known are auto, cpu, mps, cuda"),
            ("world.hops=[]", r"^world\.hops is empty"),
            ("world.hops=[0]", r"^world\.hops is \(0,\); it must be at least 1"),
            ("model.date=today", r"^model\.date is 'today'; write it as YYYY-MM-DD"),
            ("prompts.question=What?", r"^prompts\.question has no \{question\}"),
        ],
    )
    def test_are_refused_by_name_with_what_was_given(self, override: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_config(overrides=[override])

    def test_a_group_of_one_has_no_baseline(self) -> None:
        with pytest.raises(ConfigError, match=r"train\.group_size is 1; a group of one has no baseline"):
            load_config(overrides=["train.group_size=1"])

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("train.questions=1", r"train\.updates is 2, more than the 1 questions"),
            ("sampling.temperature=0", r"sampling\.temperature is 0"),
            ("sampling.top_p=0.9", r"sampling\.top_p and sampling\.top_k must be off in training"),
            ("sampling.top_k=5", r"sampling\.top_p and sampling\.top_k must be off in training"),
            ("plan.stop_when_stable=true", r"plan\.stop_when_stable is for inference"),
        ],
    )
    def test_what_is_for_inference_is_refused_in_training_alone(self, override: str, message: str) -> None:
        config = load_config(overrides=[override])
        with pytest.raises(ConfigError, match=message):
            check_training(config)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["loss.llds=0.2", "train.updates=1"], r"at the first update of a rollout no likelihood has fallen yet"),
            (["watch.action=roll_back"], r"set data\.validation and eval\.every"),
            (["watch.action=roll_back", "data.validation=x", "eval.every=0"], r"set data\.validation and eval\.every"),
        ],
    )
    def test_what_would_do_nothing_is_refused_in_training(self, overrides: list[str], message: str) -> None:
        config = load_config(overrides=overrides)
        with pytest.raises(ConfigError, match=message):
            check_training(config)

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["credit.rule=lamer", "credit.ragged=present"], "for which a missing episode is 0"),
            (["credit.rule=step_process", "process.kind=rule", "plan.explore=1"], "choose one"),
            (["credit.rule=ppo", "credit.no_signal=drop"], "the critic learns from all of them"),
        ],
    )
    def test_rules_and_what_does_not_go_with_them(self, overrides: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_config(overrides=overrides)

    def test_the_defaults_can_be_trained_with(self) -> None:
        check_training(Config())

    @pytest.mark.parametrize("tree", [{"train": None}, {"train": {}}, {"world": {"warm_start": None}}])
    def test_a_heading_with_nothing_below_it_leaves_the_defaults(self, tree: dict[str, Any]) -> None:
        assert from_dict(tree) == Config()

    def test_an_override_goes_below_an_empty_heading(self, tmp_path: Path) -> None:
        (tmp_path / "empty.yaml").write_text("train:\n", encoding="utf-8")
        assert load_config(tmp_path / "empty.yaml", ["train.steps=3"]).train.steps == 3

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["plan.window_tokens=2048"], r"plan\.window_tokens is 2048, no room for one turn \(1024\)"),
            (["plan.explore=3"], r"plan\.explore is 3 of 3 episodes"),
        ],
    )
    def test_settings_that_do_not_fit_together_are_refused(self, overrides: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_config(overrides=overrides)

    @pytest.mark.parametrize("override", ["steps", "=3", ""])
    def test_an_override_without_a_key_and_a_value_is_explained(self, override: str) -> None:
        with pytest.raises(ConfigError, match="is no setting; write key=value"):
            load_config(overrides=[override])

    def test_an_override_that_is_no_yaml_names_its_key(self) -> None:
        with pytest.raises(ConfigError, match=r"the value of world\.hops cannot be read: '\[1, 2'"):
            load_config(overrides=["world.hops=[1, 2"])

    def test_an_override_below_a_single_value_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"engine\.kind\.name goes below kind, which is a single value"):
            load_config(overrides=["engine=embedded", "engine.kind.name=x"])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"train: [1", "is no readable YAML"),
            (b"\xff\xfe\x00", "is no readable YAML"),
            (b"- train\n- plan\n", "holds list; settings are a mapping"),
            (b"train", "holds str; settings are a mapping"),
        ],
    )
    def test_a_file_that_is_no_mapping_is_refused_by_its_name_in_one_line(
        self, tmp_path: Path, content: bytes, message: str
    ) -> None:
        path = tmp_path / "c.yaml"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as caught:
            load_config(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_missing_file_and_a_folder_are_told_apart(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"there is no settings file .*none\.yaml"):
            load_config(tmp_path / "none.yaml")
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(tmp_path)


class TestOverrides:
    def test_stand_over_the_file_which_stands_over_the_defaults(self, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("train:\n  steps: 7\n  questions: 9\n")
        train = load_config(tmp_path / "c.yaml", ["train.steps=8"]).train
        assert (train.steps, train.questions, train.group_size) == (8, 9, 5)

    def test_the_last_of_two_counts(self) -> None:
        assert load_config(overrides=["train.steps=1", "train.steps=2"]).train.steps == 2

    def test_a_value_may_hold_an_equals_sign(self) -> None:
        assert load_config(overrides=["model.path=a=b"]).model.path == "a=b"

    def test_set_a_tuple_below_a_branch(self) -> None:
        config = load_config(
            overrides=["optimizer.betas=[0.8, 0.95]", "world.hops=[2]", "plan.openings=[explore, reflection]"]
        )
        assert config.optimizer.betas == (0.8, 0.95)
        assert config.world.hops == (2,)
        assert config.plan.openings == ("explore", "reflection")

    def test_reach_the_third_level(self) -> None:
        assert load_config(overrides=["world.warm_start.steps=5"]).world.warm_start.steps == 5

    def test_read_a_small_number_without_a_dot_which_yaml_takes_for_text(self) -> None:
        assert yaml.safe_load("3e-6") == "3e-6"
        assert load_config(overrides=["optimizer.lr=3e-6"]).optimizer.lr == 3e-6

    def test_the_engine_has_a_short_form_that_leaves_its_branch(self) -> None:
        config = load_config(overrides=["engine.rows=5", "engine=embedded", "engine.device=cpu"])
        assert (config.engine.kind, config.engine.rows, config.engine.device) == ("embedded", 5, "cpu")

    def test_a_base_stands_in_place_of_the_file_and_is_left_as_it_was(self) -> None:
        base = {"train": {"steps": 7}}
        assert load_config(overrides=["train.steps=8", "train.questions=3"], base=base).train.steps == 8
        assert base == {"train": {"steps": 7}}


class TestSourceOfPassages:
    def test_one_that_is_given_takes_the_place_of_that_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("retrieval: {corpus: passages.jsonl, cache: 7}")
        retrieval = load_config(tmp_path / "c.yaml", ["retrieval.url=http://127.0.0.1:8000"]).retrieval
        assert (retrieval.corpus, retrieval.url, retrieval.cache) == ("", "http://127.0.0.1:8000", 7)
        assert retrieval.source == "url"

    def test_one_that_is_emptied_leaves_the_others(self, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("retrieval: {corpus: passages.jsonl}")
        assert load_config(tmp_path / "c.yaml", ["retrieval.url="]).retrieval.source == "corpus"

    def test_there_may_be_none(self) -> None:
        assert Config().retrieval.source == ""

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["retrieval.corpus=a", "retrieval.index=b"], r"retrieval\.corpus and retrieval\.index are both set"),
            (["retrieval.replay=true"], r"retrieval\.cache_file, which is empty"),
            (["retrieval.deadline_s=0"], r"retrieval\.deadline_s is 0\.0; it must be at least 0\.001"),
        ],
    )
    def test_what_does_not_fit_is_said(self, overrides: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_config(overrides=overrides)


class TestRoundTrip:
    def read_back(self, config: Config, folder: Path) -> Config:
        (folder / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), allow_unicode=True), encoding="utf-8")
        return load_config(folder / "config.yaml")

    def test_the_defaults_come_back_from_yaml(self, tmp_path: Path) -> None:
        assert self.read_back(Config(), tmp_path) == Config()

    def test_tuples_and_texts_with_line_breaks_come_back_from_yaml(self, tmp_path: Path) -> None:
        config = replace(
            Config(seed=3),
            plan=Plan(episodes=4, openings=("explore", "reflection"), explore=2),
            prompts=replace(Config().prompts, last_call="", reflection="Noch mal:\n\n „Ärger“ \t#1\n"),
        )
        assert self.read_back(config, tmp_path) == config

    @settings(max_examples=25)
    @given(lr=st.floats(0, 1), gamma=st.floats(0, 1), text=st.text(st.characters(codec="utf-8"), max_size=20))
    def test_any_number_and_text_comes_back_from_yaml(self, lr: float, gamma: float, text: str) -> None:
        tree: dict[str, Any] = {"optimizer": {"lr": lr}, "credit": {"gamma": gamma}, "prompts": {"reflection": text}}
        config = load_config(base=tree)
        assert load_config(base=yaml.safe_load(yaml.safe_dump(config.as_dict()))) == config
        assert (config.optimizer.lr, config.credit.gamma, config.prompts.reflection) == (lr, gamma, text)


class TestBaseOfAFile:
    def test_its_own_settings_go_over_those_of_the_base(self, tmp_path: Path) -> None:
        (tmp_path / "low.yaml").write_text("seed: 1\nplan: {episodes: 4, searches: 5}\nretrieval: {corpus: a}\n")
        (tmp_path / "middle.yaml").write_text("base: low.yaml\nplan: {searches: 2}\nretrieval: {url: 'http://h:1'}\n")
        (tmp_path / "top.yaml").write_text("base: middle.yaml\ncredit: {gamma: 0}\n")
        config = load_config(tmp_path / "top.yaml", ["plan.episodes=6"])
        assert (config.seed, config.plan.episodes, config.plan.searches, config.credit.gamma) == (1, 6, 2, 0)
        assert (config.retrieval.corpus, config.retrieval.url) == ("", "http://h:1")

    def test_it_lies_beside_the_file_wherever_one_stands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "low.yaml").write_text("seed: 3")
        (tmp_path / "sub" / "top.yaml").write_text("base: low.yaml")
        monkeypatch.chdir(tmp_path)
        assert load_config("sub/top.yaml").seed == 3

    @pytest.mark.parametrize(
        ("low", "message"),
        [
            ("base: top.yaml", "is its own base; take out the line base: of one of .*top.yaml, .*low.yaml"),
            ("base: 3", r"low\.yaml: base is 3; it names the file"),
            ("base: none.yaml", r"there is no settings file .*none\.yaml"),
            ("plan: {episode: 3}", r"plan\.episode"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(self, tmp_path: Path, low: str, message: str) -> None:
        (tmp_path / "low.yaml").write_text(low)
        (tmp_path / "top.yaml").write_text("base: low.yaml")
        with pytest.raises(ConfigError, match=message):
            load_config(tmp_path / "top.yaml")
