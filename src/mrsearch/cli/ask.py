"""`mrsearch ask`: put one question to a trained agent and watch its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrsearch.cli.output import JsonFlag, print_json, stderr_console
from mrsearch.errors import ConfigError

if TYPE_CHECKING:
    from mrsearch.core.types import Turn

_ENDS = {
    "stopped": "Stopped early: two episodes in a row gave the same answer.",
    "context_full": "Ended early with a full window; plan.window_tokens sets its size.",
    "retrieval_failed": "Ended early: a search failed.",
}
"""What to say of a meta-episode that did not play all its episodes to their end."""

_NOTES = {
    "length": "cut at plan.turn_tokens",
    "invalid": "neither a search nor an answer",
    "context_full": "cut by the full window",
}
"""What to say of a turn that was cut or could not be followed."""


def command(
    question: Annotated[str, typer.Argument(help="The question, as the agent's training data words them.")],
    run: Annotated[
        Path | None, typer.Option(help="Run folder, or a checkpoint in it; by default the newest under runs/.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes to play; by default as many as the plan has.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Put one question to the agent of a run, and watch its searches and answers as they come.

    \b
    Examples:
      mrsearch ask "Zasen 's star 's employer ?"
      mrsearch ask "Who directed the film that made her famous?" --run runs/mine --episodes 4
    """
    from dataclasses import replace

    from mrsearch import build
    from mrsearch.cli.running import ready_config, telling
    from mrsearch.core.meta_episode import MetaEpisode
    from mrsearch.core.ports import Generate, Sampling
    from mrsearch.core.types import Question
    from mrsearch.engine.rollout import EmbeddedPolicy
    from mrsearch.rollout.driver import answer_searches
    from mrsearch.runs import RunFolder, model_folder, run_of

    folder = run or _newest_run()
    config = ready_config(run_of(folder) or RunFolder.open(folder), stderr_console())
    config = replace(config, model=replace(config.model, path=str(model_folder(folder))))
    plan = replace(config.plan, episodes=episodes or config.plan.episodes)
    codec = build.codec(config)
    meta = MetaEpisode(
        Question("asked", question, ("",)), plan, codec, config.prompts, sampling=Sampling(temperature=0.0)
    )
    policy = EmbeddedPolicy(build.language_model(config), codec)
    retriever = build.retriever(config.retrieval, build.Waiting(telling(stderr_console())))
    shown = 0
    while meta.need is not None:
        if isinstance(meta.need, Generate):
            meta.feed(policy.generate([meta.need])[0])
        answer_searches([meta], retriever)
        turns = [(episode.number, turn) for episode in meta.episodes for turn in episode.turns]
        for number, turn in () if as_json else turns[shown:]:
            print(_as_text(number, turn), flush=True)
        shown = len(turns)
    trajectory = meta.trajectory()
    answers = [episode.answer for episode in trajectory.episodes]
    if as_json:
        print_json(
            {
                "question": question,
                "answer": _final(answers),
                "answers": answers,
                "ended": trajectory.finish_reason,
                "episodes": trajectory.to_record()["episodes"],
            }
        )
    else:
        if trajectory.finish_reason in _ENDS:
            print(_ENDS[trajectory.finish_reason])
        print(_verdict(answers))


def _final(answers: Sequence[str | None]) -> str | None:
    return next((answer for answer in reversed(answers) if answer), None)


def _verdict(answers: Sequence[str | None]) -> str:
    final = _final(answers)
    if final is None:
        return "No answer."
    # An episode without an answer differs from one that has one.
    agreement = "agree" if len(set(answers)) == 1 else "differ"
    return f"Answer: {final} (that of the last episode with one; the episodes {agreement})"


def _as_text(episode: int, turn: Turn) -> str:
    note = f" [{_NOTES[turn.finish_reason]}]" if turn.finish_reason in _NOTES else ""
    lines = [f"[episode {episode}] {turn.text}{note}"]
    for rank, passage in enumerate(turn.passages or (), start=1):
        lines.append(f"    {rank}. {passage.title}: {passage.text}")
    return "\n".join(lines)


def _newest_run() -> Path:
    from mrsearch.runs import RunFolder

    runs = sorted(
        (path.parent for path in Path("runs").glob("*/config.yaml") if RunFolder.open(path.parent).checkpoint_steps()),
        key=lambda path: path.stat().st_mtime,
    )
    if not runs:
        raise ConfigError(
            "there is no trained run under runs/; make one with: mrsearch quickstart, or name one by --run"
        )
    return runs[-1]
