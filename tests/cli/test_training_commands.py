"""`train`, `eval` and `ask` as a user runs them, in a small world with hardly any training."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import pytest
import yaml

from mrsearch.cli import main
from mrsearch.data.mini_world import MINI_PROMPTS

ROOT = Path(__file__).parents[2]
SMALL = [
    "recipes/quickstart.yaml",
    "world.entities=60",
    "world.hops=[1,2]",
    "world.train_questions=40",
    "world.validation_questions=12",
    "world.warm_start.reading_steps=2",
    "world.warm_start.single_steps=2",
    "world.warm_start.steps=2",
    "train.steps=3",
    "train.questions=4",
    "train.group_size=3",
    "eval.every=2",
    "checkpoint.every=2",
]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def mrsearch(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mrsearch", *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished small run, made by the command."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    done = mrsearch("train", *SMALL, "--out", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["run"] == str(folder)
    assert report["metrics"]["step"] == 3
    assert done.stderr.startswith(f"The run folder is {folder}.\n")
    assert f"its best checkpoint is {folder}/checkpoints/step-" in done.stderr
    return folder


def test_a_run_folder_holds_settings_metrics_trajectories_and_checkpoints(run: Path) -> None:
    assert (run / "config.yaml").exists()
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]
    with gzip.open(run / "trajectories" / "step-000003.main.jsonl.gz", "rt") as file:
        assert len(file.readlines()) == 12  # four questions, three members each
    names = {path.name for path in (run / "checkpoints" / "step-000003").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "learner.pt", "state.json", "run.yaml"} <= names


def test_the_settings_of_a_run_are_those_that_it_had(run: Path) -> None:
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings["prompts"]["passage"] == MINI_PROMPTS.passage
    assert settings["model"]["date"] == date.today().isoformat()
    assert settings["train"]["steps"] == 3


def test_every_metric_of_a_run_has_a_line_on_the_metrics_page(run: Path) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = {name.removeprefix("validation/") for row in rows for name in row} - {"step"}
    general = {f"{name.rpartition('/')[0]}/n" if name.rpartition("/")[2].isdigit() else name for name in names}
    assert sorted(name for name in general if f"`{name}`" not in page) == []


def test_a_finished_run_that_is_resumed_has_nothing_left_to_do(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    done = mrsearch("train", "--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert (run / "metrics.jsonl").read_text() == before
    longer = "all 3 of its steps were done already; a longer run needs train.steps in config.yaml"
    assert done.stderr == f"{run}: {longer}.\n"


def test_a_finished_run_whose_steps_are_raised_goes_on(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "longer")
    settings = yaml.safe_load((tmp_path / "longer" / "config.yaml").read_text())
    settings["train"]["steps"] = 5
    (tmp_path / "longer" / "config.yaml").write_text(yaml.safe_dump(settings))
    done = mrsearch("train", "--resume", str(tmp_path / "longer"))
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in (tmp_path / "longer" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5]
    assert (tmp_path / "longer" / "checkpoints" / "step-000005").exists()
    assert "done already" not in done.stderr


def test_a_run_without_validation_has_a_last_checkpoint_and_no_best_one(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "more")
    state = tmp_path / "more" / "checkpoints" / "step-000003" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "best": None}))
    settings = yaml.safe_load((tmp_path / "more" / "config.yaml").read_text())
    settings["train"]["steps"], settings["eval"]["every"] = 4, 0
    (tmp_path / "more" / "config.yaml").write_text(yaml.safe_dump(settings))
    done = mrsearch("train", "--resume", str(tmp_path / "more"))
    assert done.returncode == 0, done.stderr
    assert f"its last checkpoint is {tmp_path / 'more' / 'checkpoints' / 'step-000004'}." in done.stderr


def test_a_second_run_in_the_same_folder_is_refused(run: Path) -> None:
    done = mrsearch("train", *SMALL, "--out", str(run))
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_evaluation_shows_a_table_and_keeps_every_answer(run: Path, tmp_path: Path) -> None:
    done = mrsearch("eval", str(run), "--episodes", "4", "--limit", "5", "--out", str(tmp_path / "r.json"), "--json")
    assert done.returncode == 0, done.stderr
    assert "ep 4" in done.stdout
    (report,) = json.loads(done.stdout.splitlines()[-1])["results"]
    assert report["questions"] == 5
    assert len(report["answers"]) == 5
    (kept,) = (run / "eval").glob("validation-reflect-4-t0-*[0-9a-f].json")
    assert kept.name in done.stderr
    assert json.loads(kept.read_text()) == json.loads((tmp_path / "r.json").read_text())
    assert {**json.loads(kept.read_text()), "agent": "small", "seconds": report["seconds"]} == report
    assert [line.split()[0] for line in done.stdout.splitlines()[1:5]] == ["em", "95", "f1", "95"]
    for metric in ("em", "f1"):
        for episode, (low, high) in enumerate(report["intervals"][metric], start=1):
            assert low <= report["values"][f"{metric}/{episode}"] <= high
    keys = list(report)
    assert keys.index("values") < keys.index("settings")
    asked = [json.loads(line) for line in (run / "world" / "validation.jsonl").read_text().splitlines()]
    golds = {row["question"]: row["golden_answers"] for row in asked}
    for row in report["answers"]:
        assert row["golden_answers"] == golds[row["question"]]
        assert len(row["em"]) == len(row["f1"]) == 4
        assert len(row["searches"]) == len(row["answers"])
    assert sum(row["em"][0] for row in report["answers"]) / 5 == report["values"]["em/1"]


def test_a_checkpoint_is_evaluated_and_asked_with_the_settings_of_its_run(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "step-000003"
    done = mrsearch("eval", str(folder), "--limit", "2", "plan.window_tokens=64", "--json")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout.splitlines()[-1])["results"]
    assert report["model"] == str(folder)
    assert report["settings"]["data"]["validation"] == str(tmp_path / "run" / "world" / "validation.jsonl")
    assert str(tmp_path / "run" / "eval" / "validation-reflect-3-") in done.stderr
    assert "2 of 2 meta-episodes ended with a full window; raise plan.window_tokens\n" in done.stdout
    done = mrsearch("ask", report["answers"][0]["question"], "--run", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    answered = json.loads(done.stdout)
    assert [episode["number"] for episode in answered["episodes"]] == [1, 2, 3]
    assert {"text", "action", "passages"} <= set(answered["episodes"][0]["turns"][0])


def test_a_question_that_fills_the_window_says_how_it_ended(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    settings["plan"]["window_tokens"] = 64
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(settings))
    done = mrsearch("ask", "Who?", "--run", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == "Ended early with a full window; plan.window_tokens sets its size."


def test_a_model_and_a_question_file_may_have_numbers_as_names_and_be_sampled_from(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "checkpoints" / "step-000003", tmp_path / "123")
    shutil.copy(run / "world" / "validation.jsonl", tmp_path / "7")
    shutil.copy(run / "world" / "corpus.jsonl", tmp_path / "1e3")
    budgets = ["plan.searches=1", "plan.turn_tokens=16", "plan.observation_tokens=24", "plan.window_tokens=512"]
    sampling = ["--temperature", "0.7", "sampling.top_p=0.9", "plan.stop_when_stable=true"]
    done = mrsearch("eval", "123", "--data", "7", "--corpus", "1e3", *budgets, *sampling, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout.splitlines()[-1])["results"]
    assert (report["model"], report["questions"], report["temperature"]) == ("123", 12, 0.7)
    assert report["settings"]["sampling"]["top_p"] == 0.9
    assert report["settings"]["plan"]["stop_when_stable"] is True


def test_a_run_that_fails_before_its_first_step_leaves_its_folder_free(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    empty = tmp_path / "model"
    empty.mkdir()
    done = mrsearch("train", f"model.path={empty}", "data.train=no.jsonl", "--out", str(tmp_path / "out"))
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 2  # the folder, and the error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_ctrl_c_during_the_warm_start_says_in_one_line_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = [*SMALL, "world.warm_start.reading_steps=100000", "world.warm_start.reading_loss=0"]
    command = [sys.executable, "-m", "mrsearch", "train", *slow, "--out", str(folder)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not (folder / ".warm-start.partial").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    resume = f"mrsearch train --resume {folder} (the warm start begins anew)"
    assert err == f"The run folder is {folder}.\nmrsearch: error: interrupted; go on with: {resume}\n"
    assert (folder / "config.yaml").exists()


def test_a_question_is_answered_with_its_episodes_shown(run: Path) -> None:
    question = json.loads((run / "world" / "validation.jsonl").read_text().splitlines()[0])["question"]
    done = mrsearch("ask", question, "--run", str(run))
    assert done.returncode == 0, done.stderr
    assert "[episode 1]" in done.stdout
    assert "[episode 3]" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(("Answer: ", "No answer."))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "name a recipe"),
        (["train", "no-such-recipe"], "there is no recipe 'no-such-recipe'"),
        (["train", "recipes/quickstart.yaml", "train.group_sise=3"], "did you mean 'train.group_size'?"),
        (["train", "recipes/quickstart.yaml", "train.group_size=1"], "a group of one has no baseline"),
        (["train", "quickstart", "plan.stop_when_stable=true"], "plan.stop_when_stable is for inference"),
        (["train", "--resume", "nowhere"], "nowhere is no run folder"),
        (["eval", "nowhere", "--data", "none.jsonl", "--corpus", "none.jsonl"], "none.jsonl"),
        (["eval", "runs/no/where"], "there is no run or model folder runs/no/where"),
        (["eval", "tests"], "tests is neither a run nor a model folder"),
        (["eval", "nowhere", "--temperature", "-1"], "sampling.temperature is -1.0; it must be at least 0"),
        (["ask", "Who?", "--run", "nowhere"], "nowhere is no run folder"),
    ],
)
def test_wrong_use_is_one_clear_line_and_exit_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
