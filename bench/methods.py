"""Methods compared in the mini world of the quickstart: held-out exact match, time and memory, over seeds.

Every method has the same questions and nearly the same number of episodes a
step, so that generated tokens are nearly equal; what was generated is told.
Those of another form (one long episode, steps, exploration, short context) have
a warm start of their own, on demonstrations of that form; the others share one
for each seed. Each run is a process of its own. Not part of `make bench`: it
takes an hour or two. What is done is kept in --scratch, and the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from mrsearch.cli.output import print_json, print_table
from mrsearch.config import Config, load_config

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"

SINGLE = ("plan.episodes=1", "eval.episodes=1", "train.group_size=18")
"""As many episodes a step as three times six, on the same questions."""

METHODS: dict[str, tuple[str, ...]] = {
    "mr-search": (),
    "gamma 0": ("credit.gamma=0",),
    "outcome only": ("credit.rule=rloo", "credit.outcome=last"),
    "search-r1 (grpo)": (*SINGLE, "credit.rule=grpo"),
    "search-r1 (ppo)": (*SINGLE, "credit.rule=ppo", "critic.lr=6.0e-4"),
    "mt-grpo": ("credit.rule=mt_grpo",),
    "ppo on meta-episodes": ("credit.rule=ppo", "critic.lr=6.0e-4"),
    "reinforce++ (baseline)": ("credit.rule=reinforce_pp_baseline",),
    "llds on search-r1": (*SINGLE, "credit.rule=grpo", "train.updates=2", "loss.llds=0.2"),
    "llds on mr-search": ("train.updates=2", "loss.llds=0.2"),
    "one long episode": ("plan.episodes=1", "plan.searches=6", "eval.episodes=1", "train.group_size=6"),
    "explore-exploit": (
        "plan.episodes=4",
        "plan.explore=2",
        "plan.openings=[explore, reflection]",
        "train.group_size=5",
        "eval.episodes=4",
    ),
    "step-level": ("plan.episodes=6", "plan.searches=1", "plan.openings=[continuation]", "eval.episodes=6"),
    "short context": ("plan.context=last",),
}
"""Settings that differ from the recipe's."""

OWN_WARM_START = ("one long episode", "explore-exploit", "step-level", "short context")

EPISODES = 6
"""Episodes of the evaluation, where the form has several."""


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True, help="folder for worlds, warm starts and results")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--method", action="append", choices=METHODS, help="repeatable; by default all")
    parser.add_argument("--steps", type=int, default=0, help="RL steps; by default the recipe's")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    methods = arguments.method or list(METHODS)
    if arguments.one is not None:
        (method,) = methods
        ready = prepared(method, arguments.one, arguments.scratch, arguments.steps)
        if not arguments.warm:
            print_json(run(method, ready, arguments.scratch))
        return
    for method in methods:
        for seed in range(arguments.seeds):
            place = result_of(arguments.scratch, method, seed)
            if not place.exists():
                in_a_process(method, seed, arguments, "--warm")
                place.write_text(in_a_process(method, seed, arguments))
    found = {
        method: [json.loads(result_of(arguments.scratch, method, seed).read_text()) for seed in range(arguments.seeds)]
        for method in methods
    }
    print_table(*table(found))
    if arguments.json:
        print_json(found)


def in_a_process(method: str, seed: int, arguments: argparse.Namespace, *more: str) -> str:
    """One run, or its warm start, alone, so that its peak of memory is its own; the last line that it prints."""
    options = ["--scratch", str(arguments.scratch), "--method", method, "--one", str(seed)]
    command = [sys.executable, __file__, *options, "--steps", str(arguments.steps), *more]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().rpartition("\n")[2]


def result_of(scratch: Path, method: str, seed: int) -> Path:
    """Where a result is kept."""
    return scratch / f"{method.translate(str.maketrans(' ', '-', '()+'))}-{seed}.json"


def prepared(method: str, seed: int, scratch: Path, steps: int) -> Config:
    """The settings of a method, with a world and a warm start, which are built where they are not there yet."""
    common = [f"seed={seed}", *([f"train.steps={steps}"] if steps else [])]
    config = load_config(RECIPE, [*common, *METHODS[method]])
    own = method in OWN_WARM_START
    name = f"{method.replace(' ', '-')}-{seed}" if own else f"shared-{seed}"
    return warm_started(config, config if own else load_config(RECIPE, common), scratch / name)


def run(method: str, ready: Config, scratch: Path) -> dict[str, Any]:
    """Train, and evaluate in the ways that the method can be used."""
    from mrsearch import build
    from mrsearch.runs import RunFolder
    from mrsearch.train import train

    stem = result_of(scratch, method, ready.seed).stem
    folder = RunFolder.create(scratch / "runs" / f"{stem}-{time.time_ns()}", ready.as_dict())
    training = build.training(replace(ready, eval=replace(ready.eval, every=0)))
    started, cpu = time.perf_counter(), time.process_time()
    train(folder, replace(ready, eval=replace(ready.eval, every=0)), training.stage, training.learner)
    seconds, processor = time.perf_counter() - started, time.process_time() - cpu
    rows = folder.metrics()
    last = folder.last_checkpoint()
    assert last is not None
    trained = replace(ready, model=replace(ready.model, path=str(last.folder)))
    return {
        "method": method,
        "seed": ready.seed,
        "em": held_out(trained, load_config(RECIPE)),
        "parallel": majority(trained) if "plan.episodes=1" in METHODS[method] and method not in OWN_WARM_START else [],
        "generated_tokens": sum(row["count/generated_tokens"] for row in rows),
        "no_signal_share": mean(row["no_signal_share"] for row in rows),
        "seconds": seconds,
        "cpu_seconds": processor,
        "steps": len(rows),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def warm_started(config: Config, for_plan: Config, folder: Path) -> Config:
    """The settings with the world and the warm start of a plan, which are built once."""
    from mrsearch import prepare

    folder.mkdir(parents=True, exist_ok=True)
    built = prepare.mini_world(for_plan, folder)
    return replace(
        config,
        prompts=built.prompts,
        model=built.model,
        data=built.data,
        retrieval=built.retrieval,
        world=replace(config.world, entities=0),
    )


def held_out(config: Config, base: Config) -> list[float]:
    """Greedy EM by episode: of its own form where it has one, else with reflections, past those of training."""
    from mrsearch import build
    from mrsearch.evaluate.run import evaluate

    asked = build.questions(config.data.validation, "data.validation")
    single = config.plan.episodes == 1 and config.plan.searches == base.plan.searches
    plan = base.plan if single else config.plan
    if not plan.explore and plan.searches == base.plan.searches:
        plan = replace(plan, episodes=EPISODES)
    return [round(value, 4) for value in evaluate(build.player_of(config), asked, plan, seed=config.seed).curve("em")]


def majority(config: Config) -> list[float]:
    """EM of the majority of 1 to 6 single episodes at temperature 1."""
    from mrsearch import build
    from mrsearch.core.ports import Sampling
    from mrsearch.core.rewards import exact_match
    from mrsearch.evaluate.vote import majority_vote

    asked = build.questions(config.data.validation, "data.validation")
    player = build.player_of(config)
    played, _ = player.play(asked, config.plan, group_size=EPISODES, sampling=Sampling(), seed=(config.seed, 0))
    answers = [one.episodes[0].answer for one in played]
    groups = [answers[start : start + EPISODES] for start in range(0, len(answers), EPISODES)]
    return [
        mean(
            exact_match(majority_vote(group[:n]), question.golden_answers)
            for group, question in zip(groups, asked, strict=True)
        )
        for n in range(1, EPISODES + 1)
    ]


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Means over seeds, with the range of the episode that counts: the third, or the last where there are fewer."""
    columns = ("method", "EM ep 1", "2", "3", "last", "range", "majority of 3", "tokens", "s", "ms a step", "peak MB")
    base = mean(one["seconds"] for one in found[next(iter(found))])
    rows = []
    for method, runs in found.items():
        curves = [one["em"] for one in runs]
        length = min(map(len, curves))
        judged = 5 if method == "step-level" else 3 if method == "explore-exploit" else min(2, length - 1)
        at = [f"{mean(curve[n] for curve in curves):.2f}" if n < length else "" for n in range(3)]
        decisive = [curve[judged] for curve in curves]
        votes = [one["parallel"][2] for one in runs if one["parallel"]]
        seconds = mean(one["seconds"] for one in runs)
        rows.append(
            (
                method,
                *at,
                f"{mean(decisive):.2f}",
                f"{min(decisive):.2f}-{max(decisive):.2f}",
                f"{mean(votes):.2f}" if votes else "",
                f"{mean(one['generated_tokens'] for one in runs) / 1000:.0f}k",
                f"{seconds:.0f} ({seconds / base:.2f}x)",
                f"{1000 * seconds / runs[0]['steps']:.0f}",
                f"{mean(one['peak_mb'] for one in runs):.0f}",
            )
        )
    return columns, rows


if __name__ == "__main__":
    main()
