"""`mrsearch train`: train an agent from a recipe, or go on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mrsearch.cli.output import JsonFlag, print_json, stderr_console
from mrsearch.errors import ConfigError


def command(
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="A recipe (YAML file, or `quickstart`) and key=value settings that go over it."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/NAME-DATE.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run from its last checkpoint.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train from a recipe, or go on with a run.

    Ctrl-C finishes the step, saves, and says how to go on; after a crash the
    run goes on from its last checkpoint as if nothing had happened. A run that
    fails before its first step leaves no folder behind, unless its warm start
    was finished. A finished run goes on where its train.steps are raised in
    config.yaml.

    \b
    Examples:
      mrsearch train mine.yaml
      mrsearch train quickstart train.steps=20 credit.gamma=0 --out runs/gamma0
      mrsearch train --resume runs/gamma0
    """
    from mrsearch.cli.running import begin_run, looking_after, run_training
    from mrsearch.config import from_dict, load_config
    from mrsearch.recipe import recipe_path
    from mrsearch.runs import RunFolder

    if resume is not None:
        if settings or out:
            raise ConfigError("--resume takes the settings of the run; give no recipe, settings or --out beside it")
        run = RunFolder.open(resume)
    else:
        if not settings:
            raise ConfigError("name a recipe, for example: mrsearch train quickstart")
        recipe, overrides = (recipe_path(settings[0]), settings[1:]) if "=" not in settings[0] else (None, settings)
        config = load_config(recipe, overrides)
        run = begin_run(out or default_folder(recipe.stem if recipe else "run"), config)
    console = stderr_console()
    done = max(run.checkpoint_steps(), default=0)
    finished = done >= from_dict(run.settings()).train.steps
    if finished:
        values = run.metrics()[-1]
    else:
        console.print(f"The run folder is {run.path}.", soft_wrap=True)
        with looking_after(run, console):
            values = run_training(run, console)
    best = run.best_checkpoint()
    assert best is not None, "the last step saves a checkpoint"
    if finished:
        longer = "a longer run needs train.steps in config.yaml"
        message = f"{run.path}: all {done} of its steps were done already; {longer}."
    else:
        word = "best" if best.state.get("best") else "last"
        message = f"The run is in {run.path}; its {word} checkpoint is {best.folder}."
    console.print(message, soft_wrap=True)
    if as_json:
        print_json({"run": str(run.path), "checkpoint": str(best.folder), "metrics": values})


def default_folder(name: str) -> Path:
    """A new folder under runs/, named after the recipe and the time."""
    from datetime import datetime

    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
