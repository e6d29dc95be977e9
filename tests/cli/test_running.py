"""What becomes of a run that fails or is interrupted, and what is silent while a model loads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrsearch.cli.ask import _newest_run
from mrsearch.cli.output import stderr_console
from mrsearch.cli.running import looking_after, silence_loading
from mrsearch.errors import ConfigError, DataError, Interrupted
from mrsearch.runs import RunFolder


def fail(run: RunFolder, error: BaseException) -> None:
    with looking_after(run, stderr_console()):
        raise error


def test_a_new_run_that_fails_at_once_leaves_nothing_and_no_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError):
        fail(RunFolder.create(tmp_path / "run", {}), DataError("no such file"))
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().err == ""


def test_a_run_that_fails_after_its_warm_start_is_kept_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(tmp_path / "run", {})
    (run.path / "warm-start").mkdir()
    with pytest.raises(DataError):
        fail(run, DataError("no such file"))
    assert (run.path / "config.yaml").exists()
    assert f"{run.path} is kept" in (hint := capsys.readouterr().err)
    assert f"mrsearch train --resume {run.path}" in hint
    assert hint.count("\n") == 1


def test_a_run_from_before_is_never_cleared_away(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {})
    with pytest.raises(DataError):
        fail(RunFolder.open(tmp_path / "run"), DataError("no such file"))
    assert (tmp_path / "run" / "config.yaml").exists()


def test_an_interrupted_run_is_kept_and_says_how_to_go_on(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "my run", {})
    with pytest.raises(Interrupted, match=r"interrupted; go on with: mrsearch train --resume '.*my run' \(from the f"):
        fail(run, KeyboardInterrupt())
    (run.path / ".warm-start.partial").mkdir()
    with pytest.raises(Interrupted, match=r"\(the warm start begins anew\)"):
        fail(run, KeyboardInterrupt())
    run.save_checkpoint(3, {"best": None}, lambda folder: None, keep=1, best=None)
    with pytest.raises(Interrupted, match=r"\(from step 3\)"):
        fail(run, KeyboardInterrupt())


def test_an_interruption_that_already_says_how_to_go_on_is_passed_on_with_the_run_kept(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {})
    with pytest.raises(Interrupted, match=r"^stopped after step 1$"):
        fail(run, Interrupted("stopped after step 1"))
    assert (run.path / "config.yaml").exists()


@pytest.fixture
def levels() -> Iterator[None]:
    """Give the loggers their levels back."""
    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "transformers")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("levels")
def test_tries_of_the_hub_are_silent_while_loading_and_missing_weights_are_not() -> None:
    logging.getLogger("huggingface_hub").setLevel(logging.WARNING)
    silence_loading()
    assert not logging.getLogger("huggingface_hub.utils._http").isEnabledFor(logging.WARNING)
    assert logging.getLogger("transformers.modeling_utils").isEnabledFor(logging.WARNING)


def test_ask_takes_the_newest_run_that_has_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = RunFolder.create(Path("runs/trained"), {})
    with pytest.raises(ConfigError, match="there is no trained run under runs/"):
        _newest_run()
    trained.save_checkpoint(1, {"best": None}, lambda folder: None, keep=1, best=None)
    RunFolder.create(Path("runs/untrained"), {})
    assert _newest_run() == Path("runs/trained")
