"""The tag protocol: what the policy is told, what it may do, how a turn is read.

All texts that the environment writes stand in `Prompts` and can be replaced
from the config. The tags and their meaning are Search-R1's, so that its
checkpoints work here; the wording is our own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mrsearch.core.types import Action, Passage

QueryFrom = Literal["search", "thought"]
"""What a search looks for: the text between search tags, or (IRCoT) the thought itself."""

STOP = ("</search>", "</answer>")
"""Generation stops at the token that completes one of these."""
THOUGHT_STOP = ("</think>", "</answer>")
"""The same where a thought is a query."""

_PAIR = re.compile(r"<(search|answer)>((?:(?!<\1>).)*?)</\1>", re.DOTALL)
_CLOSING: dict[tuple[str, ...], re.Pattern[str]] = {
    stop: re.compile("|".join(map(re.escape, stop))) for stop in (STOP, THOUGHT_STOP)
}
_NO_TAG = r"(?:(?!</?(?:think|search|answer|information)>).)*"
_THOUGHT = re.compile(rf"\s*<think>({_NO_TAG})</think>\s*", re.DOTALL)
_ANSWER = re.compile(rf"\s*<answer>{_NO_TAG}</answer>\s*", re.DOTALL)
_WELL_FORMED = re.compile(rf"\s*<think>{_NO_TAG}</think>\s*<(search|answer)>{_NO_TAG}</\1>\s*", re.DOTALL)


@dataclass(frozen=True)
class Prompts:
    """Everything that the environment says. Placeholders in braces are filled in."""

    question: str = (
        "Answer the question below. Think first, between <think> and </think>, whenever you have new information. "
        "If you lack a fact, search for it by writing <search> query </search>; passages come back between "
        "<information> and </information>. You may search several times. As soon as you know enough, give the answer "
        "alone, in a few words, between <answer> and </answer>; for example, <answer> Beijing </answer>.\n"
        "Question: {question}\n"
    )
    """Opens a window; `{question}` is where the question stands."""
    explore: str = (
        "Try another way now. Which directions have not been looked at yet: other names, other readings of the "
        "question, other sources? Think about that between <think> and </think>, search for something new, and give "
        "the answer that you then find most likely between <answer> and </answer>.\n"
    )
    """Opens an exploration episode after the first."""
    reflection: str = (
        "Look back at your last answer and at how you came to it. What in it is wrong or uncertain, and what should "
        "be searched for next? Write that between <think> and </think>, then go on: search for what is missing, and "
        "give an improved answer between <answer> and </answer>.\n"
    )
    """Opens every other episode after the first. It never says whether the answer was right."""
    continuation: str = "The next attempt begins.\n"
    """The one line between the micro-episodes of the step-level variant."""
    invalid: str = (
        "\nThat was neither a search nor an answer. Write a query between <search> and </search>, or the final answer "
        "between <answer> and </answer>.\n"
    )
    """After a turn without a complete action."""
    last_call: str = "\nNo searches are left in this attempt. Answer now, between <answer> and </answer>.\n"
    """Before the last turn of an episode; may be empty."""
    no_passages: str = "Nothing was found."
    """Stands between the information tags when a search found nothing."""
    passage: str = 'Doc {rank}(Title: "{title}") {text}'
    """One passage, on a line of its own; without a title, `passage_untitled` is used."""
    passage_untitled: str = "Doc {rank} {text}"
    """One passage that has no title."""
    direct: str = (
        "Answer the question below with the answer alone, in a few words, between <answer> and </answer>; for example, "
        "<answer> Beijing </answer>.\nQuestion: {question}\n"
    )
    """Opens a window of the mode `direct`: no search, no thought."""
    cot: str = (
        "Answer the question below. Think step by step first, between <think> and </think>, and then give the answer "
        "alone, in a few words, between <answer> and </answer>; for example, <answer> Beijing </answer>.\n"
        "Question: {question}\n"
    )
    """Opens a window of the mode `cot`: a thought, and no search."""
    rag: str = (
        "Answer the question below. Passages that were found for it follow between <information> and </information>. "
        "Give the answer alone, in a few words, between <answer> and </answer>; for example, <answer> Beijing "
        "</answer>.\nQuestion: {question}\n"
    )
    """Opens a window of the mode `rag`: the passages of one search for the question follow."""
    ircot: str = (
        "Answer the question below step by step. Passages that were found for it follow between <information> and "
        "</information>. Write one sentence that brings you nearer to the answer between <think> and </think>; "
        "passages on that sentence follow. As soon as you know enough, give the answer alone, in a few words, between "
        "<answer> and </answer>; for example, <answer> Beijing </answer>.\nQuestion: {question}\n"
    )
    """Opens a window of the mode `ircot`: each thought is searched for."""
    ircot_invalid: str = (
        "\nThat was neither a thought nor an answer. Write one sentence between <think> and </think>, or the final "
        "answer between <answer> and </answer>.\n"
    )
    """After a turn without either, in the mode `ircot`."""
    condense: str = (
        "Passages that were found for the query below follow between <information> and </information>. Write what in "
        "them helps to answer it, in a few sentences, and nothing else.\nQuery: {question}\n"
    )
    """Opens the windows in which the mode `search-o1` reads the passages of a search."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One turn as read: the action, and whether the text had the form that the protocol asks for."""

    action: Action
    format_valid: bool


def parse_action(text: str) -> Action:
    """The action of a turn: its first complete pair of tags, wherever it stands.

    A pair is an opening tag and the next closing tag of the same kind with no
    further opening tag of that kind between. A blank query is no action; a
    blank answer is one (it ends the episode and scores 0).

    >>> parse_action("<think> who? </think><search> Ada Lovelace </search>")
    Action(kind='search', text='Ada Lovelace')
    >>> parse_action("no tags at all")
    Action(kind='invalid', text='')
    """
    pair = _PAIR.search(text)
    if pair is None:
        return Action("invalid")
    kind, content = pair.group(1), pair.group(2).strip()
    if kind == "answer":
        return Action("answer", content)
    return Action("search", content) if content else Action("invalid")


def parse_turn(text: str, *, cut: bool = False, query: QueryFrom = "search") -> ParsedTurn:
    """Read one turn. `cut` says that text after its first closing tag was already removed.

    Only text up to the first closing tag can be an action: what shares the
    last token with the tag is not read. The format is valid when the turn is
    one thought and one action in that order with nothing else around them;
    where a thought is a query, when it is a thought or an answer alone.
    """
    stop = stops(query)
    end = first_stop_end(text, stop)
    read, trailing = (text, "") if end is None else (text[:end], text[end:])
    action = parse_action(read)
    form = _WELL_FORMED
    if query == "thought":
        thought = _THOUGHT.fullmatch(read)
        if action.kind != "answer":
            action = Action("search", thought[1].strip()) if thought and thought[1].strip() else Action("invalid")
        form = _THOUGHT if action.kind == "search" else _ANSWER
    valid = action.kind != "invalid" and not cut and not trailing.strip() and form.fullmatch(read) is not None
    return ParsedTurn(action, valid)


def stops(query: QueryFrom) -> tuple[str, ...]:
    """The closing tags at which a turn ends."""
    return THOUGHT_STOP if query == "thought" else STOP


def first_stop_end(text: str, stop: tuple[str, ...] = STOP) -> int | None:
    """Index just past the first of the closing tags in a text, or None where it has none."""
    closing = _CLOSING[stop].search(text)
    return closing.end() if closing else None


def render_passage(prompts: Prompts, rank: int, passage: Passage) -> str:
    """One passage as the line the policy reads, without the line's end.

    >>> render_passage(Prompts(), 1, Passage("7", "Ada", "She wrote."))
    'Doc 1(Title: "Ada") She wrote.'
    """
    template = prompts.passage if passage.title else prompts.passage_untitled
    fields = {"rank": str(rank), "title": passage.title, "text": passage.text}
    return re.sub(r"\{(rank|title|text)\}", lambda name: fields[name.group(1)], template)


OBSERVATION_OPENING = "\n\n<information>"
OBSERVATION_CLOSING = "\n</information>\n\n"
"""What stands around the passages; lines between are separated by a line break."""
