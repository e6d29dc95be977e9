"""The run folder: what is written comes back exactly, and a crash at any moment leaves a run that can go on."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.config import Config, from_dict
from mrsearch.core.types import SCHEMA, Action, Episode, Passage, Question, Trajectory, Turn, Window
from mrsearch.errors import ConfigError, DataError
from mrsearch.runs import RunFolder, model_folder, read_trajectories, run_of, write_atomically


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"seed": 3})


def trajectory(member: int = 0, logprob: float = -0.1) -> Trajectory:
    """One search and one answer in a window of six tokens."""
    window = Window()
    window.place([5, 6], episode=1)
    window.sample([7, 8], [logprob, -1 / 3], episode=1)
    window.place([9], episode=1)
    window.sample([0], [-1e-300], episode=1)
    turns = [
        Turn(
            "<search>é</search>", Action("search", "é"), "search", False, 0, 2, 4, (Passage("1", "T", "x\u2028y", 0.1),)
        ),
        Turn("<answer>\ud83d</answer>", Action("answer", "\ud83d"), "answer", False, 0, 5, 6),
    ]
    return Trajectory(
        question=Question("q", "Wo?", ("Köln", "Cologne"), "set", ("T",)),
        group=2,
        member=member,
        episodes=[Episode(1, turns, "answer", "\ud83d")],
        windows=[window],
        finish_reason="complete",
        counters=Counter(turns=2, searches=1),
        rewards=[0.0],
        advantages=[-2 / 3],
    )


def save(run: RunFolder, step: int, *, best: int | None = None, keep: int = 2) -> Path:
    state = {"stage": {"position": step * 10}, "best": None if best is None else {"step": best, "score": 0.5}}
    return run.save_checkpoint(step, state, weights(step), keep=keep, best=best)


def weights(step: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_text(f"weights of {step}")

    return write


def checkpoints(run: RunFolder) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


class TestCreate:
    def test_the_settings_come_back(self, tmp_path: Path) -> None:
        settings = Config(seed=3).as_dict()
        RunFolder.create(tmp_path / "run", settings)
        assert from_dict(RunFolder.open(tmp_path / "run").settings()) == Config(seed=3)

    def test_a_folder_that_holds_a_run_is_refused_and_left_alone(self, run: RunFolder) -> None:
        with pytest.raises(ConfigError, match="already holds a run; go on with it by: mrsearch train --resume"):
            RunFolder.create(run.path, {"seed": 4})
        assert run.settings() == {"seed": 3}

    def test_a_folder_without_settings_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="is no run folder"):
            RunFolder.open(tmp_path)

    def test_a_creation_that_was_cut_short_can_be_repeated(self, tmp_path: Path) -> None:
        # config.yaml is written last, so that everything but it may be there.
        RunFolder.create(tmp_path / "run", {"seed": 3})
        (tmp_path / "run" / "config.yaml").unlink()
        assert RunFolder.create(tmp_path / "run", {"seed": 4}).settings() == {"seed": 4}


class TestDiscard:
    def test_a_new_run_leaves_nothing_behind(self, tmp_path: Path) -> None:
        run = RunFolder.create(tmp_path / "runs" / "run", {"seed": 3})
        (run.path / "world").mkdir()
        (run.path / ".warm-start.partial").mkdir()
        run.rewind(0)
        assert run.discard()
        assert list(tmp_path.iterdir()) == []
        RunFolder.create(run.path, {"seed": 4})

    def test_what_stood_there_before_or_is_not_the_runs_own_stays(self, tmp_path: Path) -> None:
        (tmp_path / "eval").mkdir()
        (tmp_path / "eval" / "mine.json").write_text("{}")
        (tmp_path / "notes.txt").write_text("…")
        run = RunFolder.create(tmp_path, {"seed": 3})
        (tmp_path / "later.txt").write_text("…")
        assert run.discard()
        left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
        assert left == ["eval", "eval/mine.json", "later.txt", "notes.txt"]

    def test_a_folder_that_somebody_else_uses_meanwhile_stays(self, run: RunFolder) -> None:
        (run.path / "notes.txt").write_text("…")
        assert run.discard()
        assert [path.name for path in run.path.iterdir()] == ["notes.txt"]

    @pytest.mark.parametrize("what", ["a step", "a checkpoint", "a warm start"])
    def test_a_run_that_has_got_somewhere_is_kept(self, run: RunFolder, what: str) -> None:
        if what == "a step":
            run.record(1, {"loss": 0.5})
        elif what == "a checkpoint":
            save(run, 1)
        else:
            (run.path / "warm-start").mkdir()
        assert not run.discard()
        assert run.settings() == {"seed": 3}

    def test_a_run_that_was_only_opened_is_kept(self, run: RunFolder) -> None:
        assert not RunFolder.open(run.path).discard()
        assert run.settings() == {"seed": 3}


class TestMetrics:
    def test_come_back_in_order_to_the_last_bit(self, run: RunFolder) -> None:
        run.record(1, {"em/1": 0.1 + 0.2})
        run.record(2, {"em/1": 1 / 3})
        assert run.metrics() == [{"step": 1, "em/1": 0.1 + 0.2}, {"step": 2, "em/1": 1 / 3}]

    def test_that_are_not_finite_are_null_in_the_file_and_nan_when_read(self, run: RunFolder) -> None:
        run.record(1, {"loss": math.nan, "ratio": math.inf, "em/1": 0.5})
        line = '{"step": 1, "loss": null, "ratio": null, "em/1": 0.5}\n'
        assert (run.path / "metrics.jsonl").read_text() == line
        (row,) = run.metrics()
        assert math.isnan(row["loss"])
        assert row["em/1"] == 0.5
        run.rewind(1)
        assert (run.path / "metrics.jsonl").read_text() == line

    def test_of_a_new_run_are_none(self, run: RunFolder) -> None:
        assert run.metrics() == []

    @given(length=st.integers(0, 60))
    def test_a_crash_within_a_line_loses_that_line_alone(
        self, tmp_path_factory: pytest.TempPathFactory, length: int
    ) -> None:
        run = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", {})
        run.record(1, {"loss": 0.5})
        whole = len((run.path / "metrics.jsonl").read_bytes())
        run.record(2, {"loss": 0.25})
        content = (run.path / "metrics.jsonl").read_bytes()
        (run.path / "metrics.jsonl").write_bytes(content[: whole + length])
        rows = [{"step": 1, "loss": 0.5}]
        # {"step": 2, "loss": 0.25} has 25 characters; it is whole without its line break.
        assert run.metrics() == (rows if length < 25 else [*rows, {"step": 2, "loss": 0.25}])
        run.rewind(1)
        run.record(2, {"loss": 0.125})
        assert run.metrics() == [*rows, {"step": 2, "loss": 0.125}]


class TestTrajectories:
    def test_come_back_exactly(self, run: RunFolder) -> None:
        written = [
            trajectory(member, logprob) for member, logprob in enumerate((-0.1, -5e-324, -1.7976931348623157e308))
        ]
        run.write_trajectories(12, written)
        read = list(run.trajectories(12))
        assert read == written
        for one, other in zip(written, read, strict=True):
            assert [value.hex() for value in one.windows[0].logprobs] == [
                value.hex() for value in other.windows[0].logprobs
            ]

    def test_stand_in_a_file_named_after_step_and_writer(self, run: RunFolder) -> None:
        assert run.write_trajectories(12, [trajectory()]).name == "step-000012.main.jsonl.gz"
        assert [path.name for path in (run.path / "trajectories").iterdir()] == ["step-000012.main.jsonl.gz"]

    def test_of_several_writers_are_read_together(self, run: RunFolder) -> None:
        run.write_trajectories(1, [trajectory(1)], writer="rank1")
        run.write_trajectories(1, [trajectory(0)], writer="rank0")
        run.write_trajectories(2, [trajectory(7)], writer="rank0")
        assert [read.member for read in run.trajectories(1)] == [0, 1]
        assert run.trajectory_steps() == [1, 2]
        assert list(run.trajectories(3)) == []

    def test_a_record_carries_its_step_and_schema(self, run: RunFolder) -> None:
        path = run.write_trajectories(12, [trajectory()])
        with gzip.open(path, "rt") as file:
            record = json.loads(file.read())
        assert (record["step"], record["schema"]) == (12, SCHEMA)

    def test_that_cannot_be_written_to_the_end_leave_no_file_of_their_step(self, run: RunFolder) -> None:
        def crashing() -> object:
            yield trajectory()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run.write_trajectories(3, crashing())  # type: ignore[arg-type]
        assert run.trajectory_steps() == []
        run.rewind(3)
        assert list((run.path / "trajectories").iterdir()) == []

    @pytest.mark.parametrize("name", ["step-000001.main.jsonl.gz", "records.jsonl"])
    def test_of_another_schema_are_refused_by_file_and_line(self, tmp_path: Path, name: str) -> None:
        records = [trajectory().to_record(), {**trajectory().to_record(), "schema": SCHEMA + 1}]
        text = "".join(json.dumps(record) + "\n" for record in records)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        reading = read_trajectories(path)
        assert next(reading) == trajectory()
        with pytest.raises(DataError, match=rf"{name}, row 2: .*schema {SCHEMA + 1}; this version reads {SCHEMA}"):
            next(reading)

    def test_a_line_that_is_no_json_is_refused_by_file_and_line(self, tmp_path: Path) -> None:
        (tmp_path / "t.jsonl").write_text('{"schema": 1\n')
        with pytest.raises(DataError, match=r"t\.jsonl, row 1"):
            list(read_trajectories(tmp_path / "t.jsonl"))


class TestCheckpoints:
    def test_a_checkpoint_holds_the_model_the_settings_and_the_loops_state(self, run: RunFolder) -> None:
        folder = save(run, 4, best=4)
        checkpoint = run.last_checkpoint()
        assert checkpoint is not None
        assert (checkpoint.step, checkpoint.folder, folder.name) == (4, folder, "step-000004")
        assert checkpoint.state["stage"] == {"position": 40}
        assert checkpoint.state["best"] == {"step": 4, "score": 0.5}
        assert (folder / "model" / "weights.bin").read_text() == "weights of 4"
        assert yaml.safe_load((folder / "run.yaml").read_text()) == {"seed": 3}

    def test_a_new_run_has_none(self, run: RunFolder) -> None:
        assert run.last_checkpoint() is None
        assert run.best_checkpoint() is None

    def test_the_last_ones_are_kept(self, run: RunFolder) -> None:
        for step in (1, 2, 3, 4):
            save(run, step, keep=2)
        assert checkpoints(run) == ["step-000003", "step-000004"]

    def test_the_best_is_kept_besides(self, run: RunFolder) -> None:
        save(run, 1, keep=1)
        for step in (2, 3, 4):
            save(run, step, best=2, keep=1)
        assert checkpoints(run) == ["step-000002", "step-000004"]
        best, last = run.best_checkpoint(), run.last_checkpoint()
        assert best is not None
        assert last is not None
        assert (best.step, last.step) == (2, 4)

    def test_a_new_best_lets_the_old_one_go(self, run: RunFolder) -> None:
        save(run, 1, best=1, keep=1)
        save(run, 2, best=1, keep=1)
        save(run, 3, best=3, keep=1)
        assert checkpoints(run) == ["step-000003"]

    def test_steps_beyond_six_digits_stay_in_order(self, run: RunFolder) -> None:
        save(run, 999_999, keep=1)
        save(run, 1_000_000, keep=1)
        assert checkpoints(run) == ["step-1000000"]

    def test_without_validation_the_best_is_the_last(self, run: RunFolder) -> None:
        save(run, 1)
        save(run, 2)
        best = run.best_checkpoint()
        assert best is not None
        assert best.step == 2

    def test_a_crash_while_writing_leaves_the_one_before(self, run: RunFolder) -> None:
        save(run, 1)

        def crash(folder: Path) -> None:
            (folder / "half").write_text("…")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run.save_checkpoint(2, {"best": None}, crash, keep=1, best=None)
        assert checkpoints(run) == [".step-000002.partial", "step-000001"]
        last = run.last_checkpoint()
        assert last is not None
        assert last.step == 1
        run.rewind(1)
        assert checkpoints(run) == ["step-000001"]

    def test_what_a_crash_left_is_not_mixed_into_the_next_attempt(self, run: RunFolder) -> None:
        leftover = run.path / "checkpoints" / ".step-000002.partial"
        leftover.mkdir()
        (leftover / "half").write_text("…")
        folder = save(run, 2)
        assert sorted(path.name for path in folder.iterdir()) == ["model", "run.yaml", "state.json"]

    def test_saving_a_step_again_replaces_it(self, run: RunFolder) -> None:
        save(run, 2)
        run.save_checkpoint(2, {"stage": {}, "best": None}, weights(7), keep=2, best=None)
        assert (run.path / "checkpoints" / "step-000002" / "model" / "weights.bin").read_text() == "weights of 7"

    def test_a_crash_while_an_old_one_is_deleted_does_no_harm(self, run: RunFolder) -> None:
        save(run, 1)
        save(run, 2)
        (run.path / "checkpoints" / "step-000001" / "state.json").unlink()
        last = run.last_checkpoint()
        assert last is not None
        assert last.step == 2
        save(run, 3)
        assert checkpoints(run) == ["step-000002", "step-000003"]

    @pytest.mark.parametrize("content", [None, "", '{"version": 1, "st'])
    def test_a_last_one_without_readable_state_is_refused_by_its_name(
        self, run: RunFolder, content: str | None
    ) -> None:
        state = save(run, 1) / "state.json"
        state.unlink() if content is None else state.write_text(content)
        with pytest.raises(DataError, match=r"step-000001 is no checkpoint: its state\.json cannot be read"):
            run.last_checkpoint()

    def test_a_state_of_another_version_is_refused(self, run: RunFolder) -> None:
        state = save(run, 1) / "state.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), "version": 99}))
        with pytest.raises(DataError, match="state version 99; this version reads 1"):
            run.last_checkpoint()

    def test_a_path_stands_for_a_model_or_for_a_runs_best(self, run: RunFolder, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text("{}")
        assert model_folder(tmp_path / "model") == tmp_path / "model"
        with pytest.raises(DataError, match="has no checkpoint yet"):
            model_folder(run.path)
        save(run, 1, best=1)
        save(run, 2, best=1)
        assert model_folder(run.path).name == "step-000001"

    def test_a_name_on_a_hub_stands_for_itself(self) -> None:
        for name in ("gpt2", "owner/model-1.5b"):
            assert model_folder(Path(name)) == Path(name)

    @pytest.mark.parametrize("name", ["no/such/folder", "../nowhere", "my model", "src/nowhere", "/nowhere"])
    def test_what_can_only_be_a_path_must_be_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        (tmp_path / "src").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DataError, match=f"there is no run or model folder {name}$"):
            model_folder(Path(name))

    def test_a_folder_without_run_or_model_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="is neither a run nor a model folder"):
            model_folder(tmp_path)

    def test_a_checkpoint_belongs_to_its_run_from_wherever_it_is_named(
        self, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = save(run, 1)
        for path in (run.path, folder):
            found = run_of(path)
            assert found is not None
            assert found.path == run.path
        monkeypatch.chdir(folder.parent)
        found = run_of(Path(folder.name))
        assert found is not None
        assert found.path == Path("..")
        shutil.copytree(folder, tmp_path / "elsewhere" / "a" / "copy")
        assert run_of(tmp_path / "elsewhere" / "a" / "copy") is None
        assert run_of(tmp_path) is None


class TestRewind:
    def test_drops_what_came_later_and_keeps_the_rest(self, run: RunFolder) -> None:
        for step in (1, 2, 3):
            run.record(step, {"loss": step / 10})
            run.write_trajectories(step, [trajectory()])
            run.write_evaluation(f"step-{step:06d}", {"em": step})
        run.write_evaluation("final", {"em": 1})
        run.rewind(2)
        assert run.metrics() == [{"step": 1, "loss": 0.1}, {"step": 2, "loss": 0.2}]
        assert run.trajectory_steps() == [1, 2]
        assert sorted(path.name for path in (run.path / "eval").iterdir()) == [
            "final.json",
            "step-000001.json",
            "step-000002.json",
        ]

    def test_to_the_start_leaves_an_empty_run(self, run: RunFolder) -> None:
        run.record(1, {"loss": 0.5})
        run.write_trajectories(1, [trajectory()])
        run.rewind(0)
        assert run.metrics() == []
        assert run.trajectory_steps() == []
        assert run.settings() == {"seed": 3}

    def test_twice_is_as_good_as_once(self, run: RunFolder) -> None:
        run.record(1, {"loss": 0.5})
        run.record(2, {"loss": 0.25})
        run.rewind(1)
        before = (run.path / "metrics.jsonl").read_bytes()
        run.rewind(1)
        assert (run.path / "metrics.jsonl").read_bytes() == before

    def test_leaves_alone_what_is_not_its_own(self, run: RunFolder) -> None:
        save(run, 1)
        checkpoints_folder = run.path / "checkpoints"
        for name in (".DS_Store", "step-000009.zip", ".step-notes"):
            (checkpoints_folder / name).write_text("…")
        (checkpoints_folder / ".cache").mkdir()
        last = run.last_checkpoint()
        assert last is not None
        run.rewind(last.step)
        assert checkpoints(run) == [".DS_Store", ".cache", ".step-notes", "step-000001", "step-000009.zip"]
        save(run, 2, keep=1)
        assert run.checkpoint_steps() == [2]


class TestAtomicWrite:
    def test_replaces_the_whole_content_and_leaves_nothing_beside_it(self, tmp_path: Path) -> None:
        path = tmp_path / "file.json"
        write_atomically(path, "a long content")
        write_atomically(path, "ß")
        assert path.read_text(encoding="utf-8") == "ß"
        assert [file.name for file in tmp_path.iterdir()] == ["file.json"]

    def test_a_failure_leaves_the_old_content(self, tmp_path: Path) -> None:
        path = tmp_path / "file.json"
        write_atomically(path, "old")
        with pytest.raises(UnicodeEncodeError):
            write_atomically(path, "new \ud800")
        assert path.read_text() == "old"

    def test_an_evaluation_is_json_under_its_name(self, run: RunFolder) -> None:
        shutil.rmtree(run.path / "eval")
        path = run.write_evaluation("step-000002", {"em/1": 0.5, "name": "é", "f1": [math.nan]})
        assert (path.name, path.parent.name) == ("step-000002.json", "eval")
        assert json.loads(path.read_text(encoding="utf-8")) == {"em/1": 0.5, "name": "é", "f1": [None]}
