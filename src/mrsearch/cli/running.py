"""What commands that train share: progress, Ctrl-C as a wish to stop, and what becomes of a run that fails."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from mrsearch.errors import Interrupted, Outage

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from mrsearch.build import Waiting
    from mrsearch.config import Config
    from mrsearch.runs import RunFolder


@contextmanager
def looking_after(run: RunFolder, console: Console) -> Iterator[None]:
    """Around all work on a run: Ctrl-C says how to go on, and a new run that fails at once leaves nothing behind."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {run.way_on()}") from None
    except Interrupted:
        raise
    except Exception:
        if not run.discard():
            hint = f"{run.path} is kept; once the cause is mended (settings are in its config.yaml), {run.way_on()}"
            console.print(hint, soft_wrap=True)
        raise


def begin_run(path: Path, config: Config) -> RunFolder:
    """A new run with its settings; chat templates that write today's date keep the day on which it began.

    Settings that cannot be trained with are refused here, before a folder is made and minutes go into a warm start.
    """
    from dataclasses import replace
    from datetime import date

    from mrsearch.config import check_training
    from mrsearch.prepare import with_prompts
    from mrsearch.runs import RunFolder

    check_training(config)
    config = _findable(with_prompts(config))
    model = replace(config.model, date=config.model.date or date.today().isoformat())
    return RunFolder.create(path, replace(config, model=model).as_dict())


def _findable(config: Config) -> Config:
    """Settings whose files are found from any directory; names on a hub stay as they are."""
    from dataclasses import replace
    from pathlib import Path

    def absolute(path: str) -> str:
        return str(Path(path).resolve()) if path and Path(path).exists() else path

    data, model, retrieval = config.data, config.model, config.retrieval
    return replace(
        config,
        model=replace(model, path=absolute(model.path), template=absolute(model.template)),
        data=replace(
            data,
            train=absolute(data.train),
            validation=absolute(data.validation),
            demonstrations=absolute(data.demonstrations),
        ),
        retrieval=replace(
            retrieval,
            corpus=absolute(retrieval.corpus),
            index=absolute(retrieval.index),
            rerank=absolute(retrieval.rerank),
            # Written by the first run that names it, so that it may not be there yet.
            cache_file=str(Path(retrieval.cache_file).resolve()) if retrieval.cache_file else "",
        ),
    )


def ready_config(run: RunFolder, console: Console) -> Config:
    """A run's settings with every path filled in; builds its mini world first, if it has one."""
    from mrsearch import prepare
    from mrsearch.config import from_dict

    silence_loading()
    config = from_dict(run.settings())
    if not config.world.entities:
        return config
    with Bar(console) as bar:
        return prepare.mini_world(config, run.path, bar.stage)


def run_training(run: RunFolder, console: Console) -> dict[str, float]:
    """Train until the last step; returns the metrics of that step."""
    from dataclasses import replace

    from mrsearch import build
    from mrsearch.train import train

    config = ready_config(run, console)
    with Bar(console) as bar, stop_on_interrupt(console) as stopping:
        training = build.training(config, build.Waiting(telling(console), lambda: stopping.asked))
        hooks = replace(
            training.hooks,
            on_step=lambda step, values: bar.step(step, config.train.steps, values),
            should_stop=lambda: stopping.asked,
        )
        try:
            train(run, config, training.stage, training.learner, hooks)
        except Outage as error:
            if not stopping.asked:
                raise
            raise Interrupted(f"{error}; {run.way_on()}") from None
    rows = run.metrics()
    if all(row.get("no_signal_share") == 1 for row in rows):
        console.print(
            "No group of any step had a signal, so nothing was learnt: all members did equally well. Questions may be "
            "too hard for the model, or it does not speak the protocol yet; train on demonstrations first.",
            soft_wrap=True,
        )
    return rows[-1]


def chosen_source(**given: str) -> dict[str, str]:
    """Settings of `retrieval` that put the source that was given in the place of any other; none if none was."""
    from mrsearch.config import SOURCES

    if not any(given.values()):
        return {}
    return {name: given.get(name, "") for name in SOURCES}


def telling(console: Console) -> Callable[[str], None]:
    """Tells a line on stderr, beside any bar."""
    return lambda message: console.print(message, soft_wrap=True, markup=False)


@contextmanager
def waiting(console: Console) -> Iterator[Waiting]:
    """How a command that saves nothing waits for a retriever: told on stderr, and given up at once by Ctrl-C."""
    from mrsearch.build import Waiting

    stopping = _Stopping()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.asked = True  # for the thread that waits; it would keep the process alive
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield Waiting(telling(console), lambda: stopping.asked)
    finally:
        signal.signal(signal.SIGINT, before)


def silence_loading() -> None:
    """Turn off the bars that transformers draws for every file, and the hub's line for every try of a request.

    What transformers warns of stays: weights that a model lacks are told of nowhere else.
    """
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    hub.set_verbosity_error()  # type: ignore[no-untyped-call]


class Bar:
    """Progress on stderr: a bar on a terminal, and a line now and then where there is none."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._progress.stop()

    def stage(self, name: str, step: int, steps: int, note: str = "") -> None:
        """Show that a named stage has done so many of its steps."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=steps, note="")
        self._progress.update(self._tasks[name], completed=step, note=note)
        if not self._console.is_terminal and (step % max(1, steps // 10) == 0 or step == steps):
            self._console.print(f"{name} {step}/{steps} {note}".rstrip())

    def step(self, step: int, steps: int, values: Mapping[str, float]) -> None:
        """Show a step of training, with the scores of each episode where there are any."""
        if "em/1" in values:
            note = f"sampled EM by episode {_by_episode(values, 'em')}"
        else:
            note = f"loss {values['loss']:.3f}"
        if "validation/em/1" in values:
            note += f"; validation {_by_episode(values, 'validation/em')}"
            if not self._console.is_terminal:
                self._console.print(f"step {step}: {note}", soft_wrap=True)
        self.stage("training", step, steps, note)


def _by_episode(values: Mapping[str, float], metric: str) -> str:
    from mrsearch.evaluate.scores import curve

    return " ".join(f"{score:.2f}" for score in curve(values, metric))


class _Stopping:
    asked = False


@contextmanager
def stop_on_interrupt(console: Console) -> Iterator[_Stopping]:
    """Turn the first Ctrl-C into a wish that is asked for after each step; the second one interrupts at once."""
    stopping = _Stopping()

    def ask(number: int, frame: FrameType | None) -> None:
        if stopping.asked:
            raise KeyboardInterrupt
        stopping.asked = True
        console.print("Stopping after this step; Ctrl-C again stops at once and loses the step.")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)
