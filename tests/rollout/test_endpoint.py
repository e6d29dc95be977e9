"""A policy behind an endpoint: every dialect gives the same turns, and a bad day costs none of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from completions_server import Endpoint, endpoint
from mrsearch.codec import HFCodec, byte_tokenizer
from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Generate, Sampling
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Passage, Question, Trajectory
from mrsearch.errors import ConfigError, ModelError
from mrsearch.rollout.concurrent import ConcurrentDriver
from mrsearch.rollout.endpoint import Dialect, EndpointPolicy
from plain_codec import PassageBook

PROMPTS = Prompts(question="{question}\n", reflection="Again.\n", last_call="")
CODEC = HFCodec(byte_tokenizer(), PROMPTS)
PLAN = Plan(episodes=2, searches=2, turn_tokens=80, observation_tokens=200, window_tokens=2000)
EMMA = Passage("1", "Emma", "By Jane Austen.")
QUESTION = Question("q", "Who wrote Emma?", ("Jane Austen",))
END = "<|end|>"

VLLM = {"keeps_stop": False, "says_stop": True, "gives_ids": True}
LLAMA_CPP = {"takes_ids": False, "refuses_ids": 500, "gives_logprobs": False}
OPENAI = {"strict": True}
SILENT = {"strict": True, "takes_ids": False, "gives_logprobs": False}
DIALECTS = {"vllm": VLLM, "llama.cpp": LLAMA_CPP, "openai": OPENAI, "silent": SILENT}


def writer(prompt: str) -> str:
    """A search, an answer after passages, and in the second episode a turn that the model ends by itself."""
    last = prompt.rpartition("Again.")
    if not last[1]:
        return "<search>Emma</search> and on and on" if "</information>" not in prompt else "<answer>Austen</answer>!"
    return "I stop here[end]" if "I stop here" not in prompt else "<answer>Jane Austen</answer>"


def serve(write: Callable[[str], str] = writer, **dialect: Any) -> Endpoint:
    return Endpoint(write, CODEC.encode_reply, CODEC.decode, **dialect)


def policy(url: str, **settings: Any) -> EndpointPolicy:
    return EndpointPolicy(url, CODEC, **{"deadline": 10.0, "pause": 0.001, "random": Random(0), **settings})


def play(server: Endpoint, count: int = 1, **settings: Any) -> tuple[list[Trajectory], EndpointPolicy, Any]:
    with endpoint(server) as url:
        asked = policy(url, **settings)
        metas = [MetaEpisode(QUESTION, PLAN, CODEC, PROMPTS, group=n) for n in range(count)]
        stats = ConcurrentDriver(asked, PassageBook({"Emma": [EMMA]}), rows=4).play(metas)
        asked.close()
    return [meta.trajectory() for meta in metas], asked, stats


def once_in_three(bodies: list[dict[str, Any]]) -> bool:
    """Whether the last of the requests is the first try of every third: a second try, whenever it comes, succeeds."""
    return bodies.count(bodies[-1]) == 1 and len({json.dumps(body) for body in bodies}) % 3 == 0


class TestDialects:
    @pytest.mark.parametrize("name", DIALECTS)
    def test_all_give_the_same_turns(self, name: str) -> None:
        (trajectory,), asked, _ = play(serve(**DIALECTS[name]), deadline=2.0)
        texts = [turn.text for episode in trajectory.episodes for turn in episode.turns]
        assert texts == [
            "<search>Emma</search>",
            "<answer>Austen</answer>",
            f"I stop here{END}",
            "<answer>Jane Austen</answer>",
        ]
        assert [episode.answer for episode in trajectory.episodes] == ["Austen", "Jane Austen"]
        assert trajectory.episodes[0].turns[0].passages == (EMMA,)
        assert trajectory.counters["tokens_after_stop"] == 0
        assert asked.dialect.ids == DIALECTS[name].get("takes_ids", True)
        assert asked.model == "small"

    def test_ids_are_sent_as_they_are_and_come_back_as_they_were_drawn(self) -> None:
        server = serve(**VLLM)
        (trajectory,), asked, _ = play(server)
        assert asked.dialect == Dialect(ids=True, logprobs=True, extras=True)
        window = trajectory.windows[0]
        turn = trajectory.episodes[0].turns[0]
        first = next(body for body in server.bodies if body["max_tokens"] > 1)
        assert first["prompt"] == window.ids[: turn.start]
        assert window.logprobs[turn.start : turn.end] == [-0.5] * (turn.end - turn.start)

    def test_an_answer_of_500_to_what_is_not_understood_is_asked_for_twice_and_no_more(self) -> None:
        server = serve(**LLAMA_CPP)
        play(server)
        probes = [json.dumps(body) for body in server.bodies if body["max_tokens"] == 1]
        refused = [probe for probe in dict.fromkeys(probes) if '"logprobs"' in probe or '"prompt": [' in probe]
        assert [probes.count(probe) for probe in refused] == [2] * 3

    def test_without_log_probabilities_there_are_none(self) -> None:
        (trajectory,), asked, _ = play(serve(**SILENT))
        assert asked.dialect == Dialect(ids=False, logprobs=False, extras=False)
        turn = trajectory.episodes[0].turns[0]
        assert all(math.isnan(value) for value in trajectory.windows[0].logprobs[turn.start : turn.end])

    def test_ids_that_a_server_reads_as_something_else_are_not_sent(self) -> None:
        _, asked, stats = play(serve(adds_bos=True))
        assert not asked.dialect.ids
        # The server puts a token in front of every text, and that is told.
        assert stats.counters["retokenized_prompts"] == 4

    def test_an_endpoint_that_ignores_stop_strings_has_its_text_cut_and_counted(self) -> None:
        (trajectory,), _, _ = play(serve(honours_stop=False))
        assert trajectory.episodes[0].turns[0].text == "<search>Emma</search>"
        assert trajectory.counters["tokens_after_stop"] == len(" and on and on") + len("!")
        assert [episode.answer for episode in trajectory.episodes] == ["Austen", "Jane Austen"]


class TestSampling:
    def test_settings_reach_the_endpoint(self) -> None:
        server = serve()
        with endpoint(server) as url:
            asked = policy(url)
            sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5)
            asked.generate([Generate((0,), CODEC.encode_reply("Hm"), 0, 12, ("</answer>",), sampling, 2**40 + 7)])
        sent = server.bodies[-1]
        assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop")} == {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "max_tokens": 12,
            "seed": (2**40 + 7) % 2**31,
            "stop": ["</answer>"],
        }

    def test_greedy_is_temperature_0(self) -> None:
        server = serve()
        with endpoint(server) as url:
            policy(url).generate([Generate((0,), CODEC.encode_reply("Hm"), 0, 12, (), Sampling(temperature=0.0), 1)])
        assert server.bodies[-1]["temperature"] == 0
        assert "top_k" not in server.bodies[-1]


class TestFaults:
    @pytest.mark.parametrize("fault", [429, 500, 503, "reset", "cut", "html"])
    def test_what_passes_is_tried_again_and_changes_nothing(self, fault: int | str) -> None:
        undisturbed, _, _ = play(serve(), count=3)
        server = serve()
        server.fault = lambda number: fault if number > 0 and once_in_three(server.bodies) else None
        disturbed, asked, _ = play(server, count=3)
        assert disturbed == undisturbed
        assert asked.counters["retries"] > 0

    def test_an_endpoint_that_is_not_there_ends_with_one_line(self) -> None:
        with pytest.raises(ModelError, match=r"the endpoint gives no answer: .*is the server up"):
            policy("http://127.0.0.1:9", deadline=0.5)

    def test_one_that_goes_away_ends_the_rollout(self) -> None:
        server = serve(fault=lambda number: 500 if number > 2 else None)
        with pytest.raises(ModelError, match="the endpoint"):
            play(server, count=6, deadline=1.0)

    def test_a_request_that_it_will_not_take_is_told_as_it_is(self) -> None:
        server = serve(strict=True)
        with endpoint(server) as url:
            asked = policy(url)
            server.takes_ids = False
            with pytest.raises(ModelError, match=r"will not take a request: .*422"):
                asked.generate([Generate((0,), [5, 6], 0, 12, (), Sampling(), 1)])

    def test_which_model_is_asked_when_there_are_several(self) -> None:
        server = serve(models=("one", "two"))
        with endpoint(server) as url:
            with pytest.raises(ConfigError, match=r"serves one, two; say which by engine.served_model"):
                policy(url)
            assert policy(url, model="two").model == "two"
        assert {body["model"] for body in server.bodies} == {"two"}


def test_how_many_are_in_play_changes_nothing() -> None:
    def turns(rows: int) -> list[Trajectory]:
        with endpoint(serve()) as url:
            asked = policy(url)
            metas = [
                MetaEpisode(replace(QUESTION, id=str(n)), PLAN, CODEC, PROMPTS, group=n, seed=(3, 4)) for n in range(9)
            ]
            ConcurrentDriver(asked, PassageBook({"Emma": [EMMA]}), rows=rows).play(metas)
        return [meta.trajectory() for meta in metas]

    assert turns(1) == turns(8)
