"""What `mrsearch eval` carries out: evaluations one after the other, each of which goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrsearch.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

    from mrsearch.build import Agent, Waiting
    from mrsearch.cli.running import Bar
    from mrsearch.config import Config
    from mrsearch.core.ports import Retriever
    from mrsearch.core.types import Question
    from mrsearch.evaluate.journal import Played
    from mrsearch.evaluate.modes import Mode
    from mrsearch.rollout.chat import ChatEndpoint
    from mrsearch.runs import RunFolder


@dataclass(frozen=True)
class Asked:
    """Which questions of each set are asked, and who judges the answers besides exact match."""

    limit: int = 0
    only: Path | None = None
    judge: ChatEndpoint | None = None


@dataclass
class Evaluated:
    """An agent under evaluation. Model and passages are loaded when something is to be played with them."""

    label: str
    config: Config
    run: RunFolder | None
    waiting: Waiting
    _retriever: Retriever | None = field(default=None, repr=False)
    _agent: Agent | None = field(default=None, repr=False)

    @property
    def retriever(self) -> Retriever:
        """What finds its passages."""
        from mrsearch import build

        if self._retriever is None:
            self._retriever = build.retriever(self.config.retrieval, self.waiting)
        return self._retriever

    @property
    def agent(self) -> Agent:
        """The agent, loaded."""
        from mrsearch import build

        if self._agent is None:
            self._agent = build.Agent.load(self.config, self.retriever)
        return self._agent


@dataclass(frozen=True)
class Place:
    """Where results are kept: a file for one, a folder for many, the run's own folder, or nowhere."""

    out: Path | None

    @property
    def is_file(self) -> bool:
        """Whether there is room for one result alone."""
        return self.out is not None and self.out.suffix == ".json"

    def paths(self, run: RunFolder | None, name: str, label: str) -> list[Path]:
        """The files of a result, the first of which has what was played beside it."""
        found = [run.path / "eval" / f"{name}.json"] if run else []
        if self.out is not None:
            found.append(self.out if self.is_file else self.out / f"{label}-{name}.json")
        return found


def evaluate_set(
    evaluated: Evaluated, mode: Mode, set_name: str, asked: Asked, place: Place, bar: Bar, console: Console
) -> dict[str, Any]:
    """One agent in one mode on one set: played as far as it was not yet, scored, kept; returns the result."""
    from mrsearch import __version__
    from mrsearch.data.questions import digest_of
    from mrsearch.evaluate.journal import Journal
    from mrsearch.evaluate.result import figures
    from mrsearch.evaluate.run import play_set

    config = evaluated.config
    config = replace(config, data=replace(config.data, validation=set_name))
    questions = chosen_questions(set_name, asked, config.seed)
    name = evaluation_name(config, mode, asked)
    paths = place.paths(evaluated.run, name, evaluated.label)
    told = {
        "version": __version__,
        "model": config.model.path,
        "mode": mode.name,
        "set": Path(set_name).name,
        "questions": len(questions),
        "limit": asked.limit,
        "only": str(asked.only or ""),
        "temperature": mode.sampling.temperature,
        "episodes": mode.columns,
        "data": digest_of(questions),
        "retriever": identity_of(evaluated.retriever, config) if needs_passages(mode) else None,
    }
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    identity = {**told, "settings": config.as_dict(), "weights": fingerprint(config.model.path)}
    journal = Journal(paths[0].with_suffix(".played.jsonl") if paths else None, identity)
    title = f"{evaluated.label} {mode.name} {Path(set_name).name.partition('.')[0]}"

    def progress(done: Sequence[Played]) -> None:
        bar.stage(title, len(done), len(questions), running_em(done, mode))

    player = evaluated.agent.player(questions, condense=mode.condense) if len(journal.done) < len(questions) else None
    if player is not None:
        played = play_set(
            player, questions, mode, seed=config.seed, rows=config.engine.rows, journal=journal, progress=progress
        )
    else:
        played = journal.played
        progress(played)
    found = figures(played, mode)
    for counter, count in journal.counters.items():
        found["values"][f"count/{counter}"] = count
    told["questions"] = len(played)
    told["left_out"] = len(questions) - len(played)
    if told["left_out"]:
        console.print(
            f"{title}: {told['left_out']} questions had a search without an answer and are left out; the same command "
            "asks them again.",
            soft_wrap=True,
        )
    result = {**told, "values": found["values"], "intervals": found["intervals"]}
    result |= {"settings": config.as_dict(), "answers": found["answers"]}
    if asked.judge is not None:
        judge(result, asked.judge, paths, lambda done, of: bar.stage(f"judging {title}", done, of, ""))
    keep(result, paths)
    if paths:
        console.print(f"Kept in {', '.join(map(str, paths))}.", soft_wrap=True)
    return {**result, "agent": evaluated.label, "seconds": round(journal.seconds, 3)}


def judge(
    result: dict[str, Any], chat: ChatEndpoint, paths: Sequence[Path], progress: Callable[[int, int], None]
) -> None:
    """Have the answers of a result judged; verdicts are kept beside it."""
    from mrsearch.evaluate.result import add_verdicts, answers_by_place
    from mrsearch.judge import PROMPT, Case, Judge

    judging = Judge(chat, paths[0].with_suffix(".judged.jsonl") if paths else None)
    rows = result["answers"]
    cases = [
        [Case(row["question"], tuple(row["golden_answers"]), said) for said in answers_by_place(row, result["mode"])]
        for row in rows
    ]
    verdicts = iter(judging.verdicts([case for row in cases for case in row], progress))
    add_verdicts(result, [[next(verdicts) for _ in row] for row in cases])
    result["judge"] = {"model": chat.model, "prompt": PROMPT}


def keep(result: Mapping[str, Any], paths: Iterable[Path]) -> None:
    """Write a result; the same answers give the same bytes."""
    from mrsearch.runs import finite, write_atomically

    for path in paths:
        write_atomically(path, json.dumps(finite(result), indent=1, ensure_ascii=False, allow_nan=False))


def chosen_questions(set_name: str, asked: Asked, seed: int) -> list[Question]:
    """The questions of a set that are asked."""
    from mrsearch import build
    from mrsearch.data.sample import keep_ids, read_ids, sample_questions

    questions = build.questions(set_name, "data.validation")
    if asked.only is not None:
        questions = keep_ids(questions, read_ids(asked.only, set_name))
    chosen = sample_questions(questions, asked.limit, seed=seed)
    if not chosen:
        raise DataError(f"no question of {set_name} is left to ask; look at --only")
    return chosen


def evaluation_name(config: Config, mode: Mode, asked: Asked) -> str:
    """A name that tells set, mode, episodes and temperature, and in its digest all else."""
    set_name = Path(config.data.validation).name.partition(".")[0]
    everything = json.dumps([config.as_dict(), mode.name, mode.samples, asked.limit, str(asked.only)], sort_keys=True)
    digest = hashlib.sha256(everything.encode()).hexdigest()[:8]
    return f"{set_name}-{mode.name}-{mode.columns}-t{mode.sampling.temperature:g}-{digest}"


def needs_passages(mode: Mode) -> bool:
    """Whether anything is searched for in a mode."""
    return mode.plan.searches > 0 or mode.plan.lookup


def identity_of(retriever: Retriever, config: Config) -> str:
    """What tells the passages from others: of an index or a corpus its hash, of anything else where it is."""
    source = config.retrieval.source
    part: object = retriever
    while source in ("corpus", "index") and part is not None:
        identity = getattr(part, "identity", None)
        if isinstance(identity, str):
            return f"{source} {identity}"
        part = getattr(part, "inner", None)
    return f"{source} {getattr(config.retrieval, source, '')}"


def fingerprint(model: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model's files, so that other weights at the same place are noticed."""
    folder = Path(model)
    if not folder.is_dir():
        return []
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".jinja"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def running_em(done: Sequence[Played], mode: Mode) -> str:
    """Exact match so far, by episode, for progress."""
    from mrsearch.evaluate.result import figures
    from mrsearch.evaluate.scores import curve

    if not done:
        return ""
    return "EM " + " ".join(f"{value:.2f}" for value in curve(figures(done, mode, intervals=False)["values"], "em"))
