"""`mrsearch quickstart`: train an agent in a small world in a few minutes, and show what it learnt."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console

if TYPE_CHECKING:
    from rich.console import Console

    from mrsearch.config import Config
    from mrsearch.core.plan import Plan
    from mrsearch.core.types import Question
    from mrsearch.runs import RunFolder

EPISODES_SHOWN = 6
"""Evaluated to twice the episodes of training, to see whether what was learnt holds."""

CURVE_HEIGHT = 8


def command(
    seed: Annotated[int, typer.Option(help="Seed of the warm start and of the training.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/quickstart-DATE.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also train without later credit, single episodes, and one long episode.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train an agent in a small world on this machine, and show what it learnt.

    Builds a world of 300 entities whose questions need one to four searches,
    warm-starts a small model, and trains it by MR-Search: three episodes of two
    searches each. One episode is too short for the harder questions, so the
    agent has to learn to go on from what its earlier episodes found.

    \b
    Examples:
      mrsearch quickstart
      mrsearch quickstart --seed 1 --json
      mrsearch quickstart --compare
    """
    from mrsearch.cli.running import begin_run, looking_after
    from mrsearch.cli.train import default_folder
    from mrsearch.config import load_config
    from mrsearch.recipe import recipe_path

    started = time.perf_counter()
    console = stderr_console()
    config = load_config(recipe_path("quickstart"), [f"seed={seed}"])
    run = begin_run(out or default_folder("quickstart"), config)
    with looking_after(run, console):
        outcome = _train_and_evaluate(run, console)
    rows = {"warm start": outcome.before, "MR-Search": outcome.after}
    seconds = time.perf_counter() - started
    others = _compare(run, outcome, console) if compare else {}
    _show({**rows, **others}, outcome, console, seconds=seconds, run=run, compared=compare)
    if as_json:
        print_json(
            {
                "run": str(run.path),
                "seconds": round(seconds, 1),
                "seed": seed,
                "em_before": outcome.before,
                "em_after": outcome.after,
                "ceiling": outcome.ceiling,
                "compare": others,
            }
        )


@dataclass(frozen=True)
class _Outcome:
    """Greedy held-out EM over the episode index, before and after, and the most that the budget allows."""

    config: Config
    before: list[float]
    after: list[float]
    ceiling: list[float]


def _train_and_evaluate(run: RunFolder, console: Console) -> _Outcome:
    from mrsearch import build
    from mrsearch.cli.running import ready_config, run_training

    config = ready_config(run, console)
    asked = build.questions(config.data.validation, "data.validation")
    longer = replace(config.plan, episodes=EPISODES_SHOWN)
    before = _curve(config, longer, asked)
    console.print(f"warm start: {_numbers(before)}")
    run_training(run, console)
    after = _curve(_trained(config, run), longer, asked)
    return _Outcome(config, before, after, _ceiling(asked, longer))


def _trained(config: Config, run: RunFolder) -> Config:
    """The settings with the run's last checkpoint as the model; the one that validation chose would flatter."""
    last = run.last_checkpoint()
    assert last is not None, "a finished run has a checkpoint"
    return replace(config, model=replace(config.model, path=str(last.folder)))


def _curve(config: Config, plan: Plan, asked: Sequence[Question]) -> list[float]:
    """Greedy EM of each episode."""
    from mrsearch import build
    from mrsearch.evaluate.run import evaluate

    evaluation = evaluate(build.player_of(config), asked, plan, seed=config.seed)
    return [round(value, 4) for value in evaluation.curve("em")]


def _ceiling(asked: Sequence[Question], plan: Plan) -> list[float]:
    """EM that the searches of n episodes allow: a chain of so many hops needs as many searches."""
    hops = [len(question.supporting_titles) for question in asked]
    reach = [plan.searches * (n + 1) for n in range(plan.episodes)]
    return [round(sum(hop <= most for hop in hops) / len(hops), 4) for most in reach]


LONG = "one long episode"


def rivals(config: Config) -> dict[str, Config]:
    """What MR-Search is compared with, at the same searches a step: the settings of each by name."""
    episodes = config.plan.episodes
    fixed = replace(config, world=replace(config.world, entities=0))
    once = replace(config.eval, episodes=1)
    return {
        "gamma 0": replace(fixed, credit=replace(config.credit, gamma=0.0)),
        "single episodes": replace(
            fixed,
            plan=replace(config.plan, episodes=1),
            eval=once,
            train=replace(config.train, questions=config.train.questions * episodes),
        ),
        # Warm-started on demonstrations of its own length: no model extrapolates to a form it has not seen.
        LONG: replace(
            config,
            plan=replace(config.plan, episodes=1, searches=config.plan.searches * episodes),
            eval=once,
            model=replace(config.model, path=""),
        ),
    }


def _compare(run: RunFolder, outcome: _Outcome, console: Console) -> dict[str, list[float]]:
    """Train the rivals, and evaluate each in the ways it can be used."""
    from mrsearch import build
    from mrsearch.cli.running import begin_run, looking_after, run_training

    asked = build.questions(outcome.config.data.validation, "data.validation")
    longer = replace(outcome.config.plan, episodes=EPISODES_SHOWN)
    rows: dict[str, list[float]] = {}
    for name, rival in rivals(outcome.config).items():
        console.print(f"training the rival: {name}")
        other = begin_run(run.path / "compare" / name.replace(" ", "-"), rival)
        with looking_after(other, console):
            run_training(other, console)
        trained = _trained(rival, other)
        if name == LONG:
            rows[f"{LONG} of {rival.plan.searches} searches"] = _curve(trained, rival.plan, asked)
        elif name == "single episodes":
            rows["single episodes, then reflection"] = _curve(trained, longer, asked)
            rows |= _parallel(trained, rival.plan, asked)
        else:
            rows[name] = _curve(trained, longer, asked)
    return rows


def _parallel(config: Config, plan: Plan, asked: Sequence[Question]) -> dict[str, list[float]]:
    """Independent samples of single episodes: the majority of the first n, and the bound of n samples."""
    from mrsearch import build
    from mrsearch.core.ports import Sampling
    from mrsearch.core.rewards import exact_match
    from mrsearch.evaluate.vote import majority_vote, pass_at_k

    trajectories, _ = build.player_of(config).play(
        asked, plan, group_size=EPISODES_SHOWN, sampling=Sampling(), seed=(config.seed, 0)
    )
    answers = [
        [trajectory.episodes[0].answer for trajectory in trajectories[start : start + EPISODES_SHOWN]]
        for start in range(0, len(trajectories), EPISODES_SHOWN)
    ]
    golds = [question.golden_answers for question in asked]
    right = [sum(exact_match(a, gold) for a in group) for group, gold in zip(answers, golds, strict=True)]
    votes, bounds = [], []
    for n in range(1, EPISODES_SHOWN + 1):
        chosen = [exact_match(majority_vote(group[:n]), gold) for group, gold in zip(answers, golds, strict=True)]
        votes.append(round(sum(chosen) / len(asked), 4))
        bounds.append(round(sum(pass_at_k(EPISODES_SHOWN, int(count), n) for count in right) / len(asked), 4))
    return {
        "single episodes, majority of n samples (T = 1)": votes,
        "single episodes, any of n samples (T = 1, bound)": bounds,
    }


def _show(
    rows: Mapping[str, list[float]],
    outcome: _Outcome,
    console: Console,
    *,
    seconds: float,
    run: RunFolder,
    compared: bool,
) -> None:
    shown = {**rows, "most that the searches allow": outcome.ceiling}
    columns = ("greedy held-out EM", *(f"ep {n + 1}" for n in range(EPISODES_SHOWN)))
    print_table(columns, [(name, *_cells(values)) for name, values in shown.items()])
    print(draw_curve({"w": outcome.before, "M": outcome.after}, {"w": "warm start", "M": "MR-Search"}))
    plan = outcome.config.plan
    print(
        f"Trained with {plan.episodes} episodes of {plan.searches} searches, {seconds:.0f} s in all. A single episode "
        f"cannot get past {outcome.ceiling[0]:.2f}: that follows from its {plan.searches} searches, not from training. "
        "What is learnt is to go on from what earlier episodes found."
    )
    if compared:
        train = outcome.config.train
        print(
            "What is equal in training: MR-Search and gamma 0 differ in the discount alone; single episodes play as "
            f"many episodes a step ({train.questions * train.group_size * plan.episodes}), on {plan.episodes} times as "
            f"many questions; the long episode has the same questions ({train.questions}), members of a group "
            f"({train.group_size}) and searches a member ({plan.episodes * plan.searches}), and a warm start of its "
            "own. Rows are greedy but for those marked T = 1, whose n samples are drawn independently; `any` is a "
            "bound, since nobody tells which sample is right."
        )
        long = next(values[0] for name, values in rows.items() if name.startswith(LONG))
        print(
            f"One long episode with all the searches, once it is shown demonstrations of that length, reaches "
            f"{long:.2f}: this world is no evidence that several episodes beat one long one."
        )
    console.print(f"The run is in {run.path}. To try next:", soft_wrap=True)
    for line in next_commands(run.path):
        console.print(f"  {line}", soft_wrap=True)


def next_commands(run: Path) -> list[str]:
    """What to try after the quickstart, in or outside a checkout."""
    return [
        "mrsearch quickstart --compare",
        "mrsearch train quickstart plan.episodes=4 --out runs/four-episodes",
        f"mrsearch eval {shlex.quote(str(run))} --episodes {EPISODES_SHOWN}",
    ]


def draw_curve(curves: Mapping[str, Sequence[float]], names: Mapping[str, str]) -> str:
    """Curves between 0 and 1 over the episode index as text; where two marks meet, the later one is drawn."""
    width = max(len(curve) for curve in curves.values())
    grid = [[" "] * (5 * width) for _ in range(CURVE_HEIGHT + 1)]
    for mark, curve in curves.items():
        for n, value in enumerate(curve):
            grid[CURVE_HEIGHT - round(value * CURVE_HEIGHT)][5 * n + 2] = mark
    scale = [f"{1 - row / CURVE_HEIGHT:4.2f}" if row % 2 == 0 else "    " for row in range(CURVE_HEIGHT + 1)]
    lines = [f"{label} |{''.join(cells).rstrip()}" for label, cells in zip(scale, grid, strict=True)]
    axis = "     +" + "-" * (5 * width)
    numbers = "      " + "".join(f"{n + 1:^5}" for n in range(width))
    legend = "      episode; " + ", ".join(f"{mark} = {names[mark]}" for mark in curves)
    return "\n".join([*lines, axis, numbers, legend])


def _cells(values: Sequence[float]) -> list[str]:
    return [f"{values[n]:.2f}" if n < len(values) else "" for n in range(EPISODES_SHOWN)]


def _numbers(values: Sequence[Any]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
