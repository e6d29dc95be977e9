"""`train`, `eval` and `ask` as a user runs them, in a small world with hardly any training."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def mrsearch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mrsearch", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
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
    return folder


def test_a_run_folder_holds_settings_metrics_trajectories_and_checkpoints(run: Path) -> None:
    assert (run / "config.yaml").exists()
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]
    with gzip.open(run / "trajectories" / "step-000003.main.jsonl.gz", "rt") as file:
        assert len(file.readlines()) == 12  # four questions, three members each
    names = {path.name for path in (run / "checkpoints" / "step-000003").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "learner.pt", "state.json", "run.yaml"} <= names


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


def test_a_second_run_in_the_same_folder_is_refused(run: Path) -> None:
    done = mrsearch("train", *SMALL, "--out", str(run))
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_evaluation_shows_a_table_and_keeps_every_answer(run: Path) -> None:
    done = mrsearch("eval", str(run), "--episodes", "4", "--limit", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert "ep 4" in done.stdout
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["questions"] == 5
    assert len(report["answers"]) == 5
    assert (run / "eval" / "validation-4-episodes.json").exists()


def test_a_question_is_answered_with_its_episodes_shown(run: Path) -> None:
    question = json.loads((run / "world" / "validation.jsonl").read_text().splitlines()[0])["question"]
    done = mrsearch("ask", question, "--run", str(run))
    assert done.returncode == 0, done.stderr
    assert "[episode 1]" in done.stdout
    assert "[episode 3]" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Answer: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "name a recipe"),
        (["train", "no-such-recipe"], "there is no recipe 'no-such-recipe'"),
        (["train", "recipes/quickstart.yaml", "train.group_sise=3"], "did you mean 'train.group_size'?"),
        (["train", "recipes/quickstart.yaml", "train.group_size=1"], "a group of one has no baseline"),
        (["train", "--resume", "nowhere"], "nowhere is no run folder"),
        (["eval", "nowhere", "--data", "none.jsonl", "--corpus", "none.jsonl"], "none.jsonl"),
        (["ask", "Who?", "--run", "nowhere"], "nowhere is no run folder"),
    ],
)
def test_wrong_use_is_one_clear_line_and_exit_code_two(arguments: list[str], message: str) -> None:
    done = mrsearch(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
