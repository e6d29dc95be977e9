"""`mrsearch eval`: which evaluations there are, under which names they are kept, what is said of losses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from completions_server import Endpoint, endpoint
from mrsearch.cli import main
from mrsearch.cli.eval import LOSSES, losses
from mrsearch.cli.evaluations import Asked, evaluation_name
from mrsearch.config import Config, load_config
from mrsearch.core.ports import Completion, Generate, Sampling
from mrsearch.evaluate.modes import mode_of
from mrsearch.evaluate.scores import COUNTED
from mrsearch.rollout.known import KnowingPolicy

VALIDATION = "data.validation=sets/test.jsonl.gz"
PLAN = ["plan.window_tokens=60000", "plan.turn_tokens=2000", "plan.observation_tokens=4000", "plan.searches=2"]


def name_of(config: Config, asked: Asked = Asked(), mode: str = "reflect") -> str:  # noqa: B008
    return evaluation_name(config, mode_of(mode, config.plan, config.prompts, config.sampling), asked)


class TestNames:
    def test_tell_set_mode_episodes_and_temperature(self) -> None:
        config = load_config(overrides=[VALIDATION, "plan.episodes=4", "sampling.temperature=0.5"])
        assert name_of(config).startswith("test-reflect-4-t0.5-")
        assert name_of(config, mode="single").startswith("test-single-1-t0.5-")
        assert len(name_of(config).rpartition("-")[2]) == 8

    def test_are_never_shared_by_other_settings_and_the_same_ones_share_them(self) -> None:
        changes = ["seed=0", "sampling.temperature=0", "sampling.top_p=0.9", "plan.searches=1", "model.path=other"]
        names = [name_of(load_config(overrides=[VALIDATION, change])) for change in changes]
        names.append(name_of(load_config(overrides=[VALIDATION]), Asked(5)))
        names.append(name_of(load_config(overrides=[VALIDATION]), Asked(only=Path("ids.json"))))
        names.append(name_of(load_config(overrides=[VALIDATION]), mode="long"))
        assert all(one != other for one, other in combinations(names, 2))
        assert names[0] == name_of(load_config(overrides=[VALIDATION, "seed=0"]))


def test_only_what_was_cut_or_failed_has_a_line() -> None:
    values: dict[str, float] = {f"count/{name}": 0 for name in COUNTED}
    assert losses(values, 8) == []
    values |= {"count/invalid_turns": 5, "count/context_full": 8, "count/late_searches": 2}
    full = "8 of 8 meta-episodes ended with a full window; raise plan.window_tokens"
    assert losses(values, 8) == [full, "count/late_searches: 2"]
    assert set(LOSSES) - {"retokenized_prompts", "near_ties", "unjudged"} <= set(COUNTED)


# -- agents that know the questions, through the command itself --------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sets of questions, and passages that answer half of those of the first."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": "a", "question": "Who wrote Emma?", "golden_answers": ["Jane Austen"], "supporting_titles": ["Emma"]},
        {"id": "b", "question": "Who wrote Kim?", "golden_answers": ["Kipling"], "supporting_titles": ["Kim"]},
    ]
    more = [
        {"id": "c", "question": "Is Emma a novel?", "golden_answers": ["yes"], "supporting_titles": ["Emma"]},
        {"id": 4, "question": "Who is Ada?", "golden_answers": ["a poet", "The"], "supporting_titles": []},
    ]
    Path("one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("two.jsonl").write_text("\n".join(json.dumps(row) for row in more))  # no line break at the end
    passages = [
        {"id": 0, "contents": '"Emma"\nEmma is a novel by Jane Austen.'},
        {"id": 1, "contents": '"Kim"\nKim is a novel.'},
    ]
    Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    return tmp_path


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main(["eval", *arguments, "--corpus", "corpus.jsonl", *PLAN, "--json"])
    said = capsys.readouterr()
    assert ended.value.code == code, said.err
    found: dict[str, Any] = json.loads(said.out.splitlines()[-1]) if code == 0 else {"error": said.err}
    found["shown"] = said.out
    return found


def em(report: dict[str, Any], place: int = 0) -> Sequence[float]:
    values = report["results"][place]["values"]
    return [values["em/1"], values["em/2"]]


def test_an_agent_that_knows_the_answers_scores_all_one_that_says_nothing_none_and_one_that_reads_what_is_there(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["--data", "one.jsonl", "--data", "two.jsonl"]
    report = evaluate(capsys, "known:gold", "known:null", "known:titles", *sets, "--episodes", "2")
    assert [em(report, place) for place in range(6)] == [[1, 1], [1, 1], [0, 0], [0, 0], [0.5, 0.5], [0.5, 0.5]]
    assert [average["values"]["em/2"] for average in report["macro"]] == [1, 0, 0.5]
    assert report["results"][4]["values"]["searches/1"] == 1
    assert report["results"][2]["values"]["answered/1"] == 0
    assert "macro average" in report["shown"]


def test_every_mode_plays(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes = ["reflect", "single", "parallel", "long", "direct", "cot", "rag", "ircot", "search-o1"]
    flags = [part for mode in modes for part in ("--mode", mode)]
    report = evaluate(capsys, "known:gold", "--data", "one.jsonl", "--episodes", "2", *flags)
    assert [result["mode"] for result in report["results"]] == modes
    assert [result["episodes"] for result in report["results"]] == [2, 1, 2, 1, 1, 1, 1, 1, 1]
    assert all(result["values"]["em/1"] == 1 for result in report["results"])
    assert [result["temperature"] for result in report["results"]] == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert [result["retriever"] is None for result in report["results"]] == [False] * 4 + [True] * 2 + [False] * 3


def test_scaling_sets_reflection_against_as_many_samples_and_as_many_tokens(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = evaluate(capsys, "known:gold", "--data", "one.jsonl", "--episodes", "3", "--scaling", "--out", "kept")
    (found,) = report["scaling"]
    assert [row["episodes"] for row in found["curve"]] == [1, 2, 3]
    assert [row["equal_episodes"]["samples"] for row in found["curve"]] == [1, 2, 3]
    assert [row["equal_tokens"]["samples"] for row in found["curve"]] == [1, 2, 3]
    assert all(row["em"] == row["equal_tokens"]["em"] == 1 for row in found["curve"])
    assert json.loads(Path("kept/known-gold-scaling-one-3.json").read_text())["curve"] == found["curve"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], Sampling(temperature=0.0)),
        (["--mode", "rag"], Sampling(temperature=0.0)),
        (["--mode", "parallel"], Sampling(temperature=1.0)),
        (["--temperature", "0.7"], Sampling(temperature=0.7)),
        (["--mode", "parallel", "--temperature", "0.7"], Sampling(temperature=0.7)),
        (["sampling.temperature=1", "sampling.top_k=5"], Sampling(temperature=1.0, top_k=5)),
    ],
)
def test_the_sampling_that_was_asked_for_is_the_one_that_reaches_the_engine(
    world: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    expected: Sampling,
) -> None:
    seen: set[Sampling] = set()
    generate = KnowingPolicy.generate

    def spy(self: KnowingPolicy, requests: Sequence[Generate]) -> list[Completion]:
        seen.update(request.sampling for request in requests)
        return generate(self, requests)

    monkeypatch.setattr(KnowingPolicy, "generate", spy)
    report = evaluate(capsys, "known:gold", "--data", "one.jsonl", "--episodes", "2", *options)
    assert seen == {expected}
    assert report["results"][0]["temperature"] == expected.temperature


@pytest.mark.parametrize("mode", ["reflect", "parallel"])
def test_a_judge_stands_beside_exact_match(world: Path, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    server = Endpoint(str, lambda text: [], lambda ids: "")
    server.chat = lambda message: "INCORRECT" if "Kim" in message else "CORRECT" if "Emma" in message else "Hm"
    sets = ["--data", "one.jsonl", "--data", "two.jsonl", "--mode", mode, "--out", "results", "--episodes", "2"]
    with endpoint(server) as url:
        report = evaluate(capsys, "known:gold", *sets, "--judge", url)
        asked = len(server.bodies)
        evaluate(capsys, "known:gold", *sets, "--judge", url)
    values = [result["values"] for result in report["results"]]
    assert [(one["em/2"], one["judge/1"], one["judge/2"], one["count/unjudged"]) for one in values] == [
        (1.0, 0.5, 0.5, 0),
        (1.0, 0.5, 0.5, 2),
    ]
    assert [row["judge"] for row in report["results"][0]["answers"]] == [[True, True], [False, False]]
    assert report["results"][1]["answers"][1]["judge"] == [None, None]
    assert report["results"][0]["intervals"]["judge"] == [[0.0, 1.0]] * 2
    assert report["results"][0]["judge"]["model"] == "small"
    assert "judge by episode" in report["shown"]
    assert "count/unjudged: 2" in report["shown"]
    assert asked == len(server.bodies) == 4


def test_a_killed_evaluation_goes_on_and_ends_in_the_same_file(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = ["known:titles", "--data", "one.jsonl", "--concurrency", "1"]
    whole = evaluate(capsys, *one, "--out", "whole")
    (kept,) = Path("whole").glob("*.json")
    (played,) = Path("whole").glob("*.played.jsonl")
    lines = played.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    Path("cut").mkdir()
    # Killed while the second question was being written.
    (Path("cut") / played.name).write_text("".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    evaluate(capsys, *one, "--out", "cut")
    assert (Path("cut") / kept.name).read_bytes() == kept.read_bytes()
    again = (Path("cut") / played.name).read_text().splitlines(keepends=True)
    assert again[:2] == lines[:2]
    assert len(again) == 3
    # Done already: nothing is played, and the result is the same.
    evaluate(capsys, *one, "--out", "whole")
    assert played.read_text().splitlines(keepends=True) == lines
    assert whole["results"][0]["questions"] == 2


def test_questions_that_changed_are_played_anew(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = ["known:gold", "--data", "one.jsonl", "--out", "kept"]
    evaluate(capsys, *one)
    rows = [json.loads(line) for line in Path("one.jsonl").read_text().splitlines()]
    rows[0]["golden_answers"] = ["Austen"]
    Path("one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluate(capsys, *one)
    (kept,) = Path("kept").glob("*.json")
    assert [row["golden_answers"] for row in json.loads(kept.read_text())["answers"]] == [["Austen"], ["Kipling"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan.searches=1"], "name what to evaluate"),
        (["known:gold", "--mode", "reflex"], "there is no mode 'reflex'; known are reflect, single, parallel"),
        (["known:all", "--data", "one.jsonl"], "there is no agent known:all; known are known:gold"),
        (["known:gold", "--scaling", "--mode", "long"], "leave out --mode"),
        (["known:gold", "known:null", "--data", "one.jsonl", "--out", "r.json"], "has room for one result"),
        (["known:gold"], "data.validation is empty"),
    ],
)
def test_wrong_use_has_one_line(
    world: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    error = evaluate(capsys, *arguments, code=2)["error"]
    assert said in error
    assert len(error.strip().splitlines()) == 1
