"""`mrsearch data`: question sets by name, and what is wrong with a set before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrsearch.cli.output import JsonFlag, print_json, print_table, stderr_console
from mrsearch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from mrsearch.core.ports import Retriever
    from mrsearch.core.types import Question

SHOWN = 5
"""Bad rows of a file that are shown."""

_HELP = """Fetch question sets by name, and check sets before they are used.

\b
Examples:
  mrsearch data list
  mrsearch data get hotpotqa --out hotpotqa.jsonl
  mrsearch data check hotpotqa.jsonl --corpus my-index
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


def _scan(name: str) -> tuple[list[Question], list[str]]:
    from mrsearch.data.questions import scan_questions
    from mrsearch.data.sets import read_questions

    return scan_questions(name) if Path(name).exists() else (read_questions(name), [])


def _retriever(corpus: str, url: str) -> Retriever | None:
    from mrsearch import build
    from mrsearch.cli.running import chosen_source
    from mrsearch.config import load_config

    if not (corpus or url):
        return None
    is_index = bool(corpus) and (Path(corpus) / "manifest.json").exists()
    source = chosen_source(url=url, **{"index" if is_index else "corpus": corpus})
    return build.retriever(load_config(base={"retrieval": source}).retrieval)


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
