"""The scripted searcher of real questions: what it may write, how its habits show, and that a plan takes all of it."""

from __future__ import annotations

import doctest
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from mrsearch import build
from mrsearch.codec import HFCodec
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Search
from mrsearch.core.protocol import Prompts, parse_turn
from mrsearch.core.rewards import exact_match, normalize
from mrsearch.core.types import Passage, Question
from mrsearch.data.demonstrations import demonstration_from_record, load_demonstrations
from mrsearch.data.hits import answer_rank, is_yes_no
from mrsearch.data.questions import load_questions
from mrsearch.data.scripted import reading, searcher
from mrsearch.data.scripted.demos import DemoReport, demonstrations
from mrsearch.data.scripted.searcher import GuidedSearcher, SearchHabits, unfit
from mrsearch.errors import ConfigError
from tiny_tokenizers import CHATML, byte_level

DATA = Path(__file__).parents[3] / "shared" / "data"

TEXTS = {
    "Nova Station": "Nova Station is a 1996 film directed by Ann Lee. It stars Bo Kern and was shot in Riga.",
    "Ann Lee": "Ann Lee (born 4 May 1951) is a film director from Bergen, Norway. Her brother is Tom Lee.",
    "Bo Kern": "Bo Kern is an actor who was born in Graz. He played in Nova Station.",
    "Nova Scotia": "Nova Scotia is a province of Canada. Its capital is Halifax.",
    "The Exies": "The Exies were a rock band from Los Angeles that was formed in 1997.",
    "Circus Diablo": "Circus Diablo is a rock band that was formed in early 2006 by Billy Morrison.",
    "Billy Morrison": "Billy Morrison is an English guitarist who plays with Circus Diablo.",
    "Mark King (musician)": "Mark Philip King is an English singer of the band Level 42.",
    "Mark King (boxer)": "Mark King was a boxer from Cork who fought 2 times.",
    "Level 42": "Level 42 is a band that was formed on the Isle of Wight in 1979.",
    "Graz": "Graz is a city of Austria with 289440 inhabitants. It has six universities.",
    "Riga": "Riga is the capital of Latvia. It has 605802 inhabitants.",
}


class Shelf:
    """A retriever of a few passages: by shared words, those of a title counting three times. Counts its calls."""

    def __init__(self, texts: dict[str, str] = TEXTS) -> None:
        self.calls: list[int] = []
        self._passages = [Passage(str(row), title, text, 1.0) for row, (title, text) in enumerate(texts.items())]
        self._words = [(set(normalize(p.title).split()), set(normalize(p.text).split())) for p in self._passages]

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        self.calls.append(len(requests))
        return [self._find(request) for request in requests]

    def _find(self, request: Search) -> list[Passage]:
        words = set(normalize(request.query).split())
        scores = [3 * len(words & title) + len(words & text) for title, text in self._words]
        best = sorted((row for row, score in enumerate(scores) if score), key=lambda row: (-scores[row], row))
        return [self._passages[row] for row in best[: request.top_k]]


def ask(number: int, text: str, gold: str, *titles: str) -> Question:
    return Question(str(number), text, (gold,), "made", titles)


DIRECTOR = ask(1, "Where is the director of Nova Station from?", "Bergen", "Nova Station", "Ann Lee")
BAND = ask(2, "Which band was formed first, The Exies or Circus Diablo?", "The Exies", "The Exies", "Circus Diablo")
YES_NO = ask(3, "Are Ann Lee and Bo Kern from the same country?", "no", "Ann Lee", "Bo Kern")
SINGER = ask(
    4, "In which year was the band of the singer Mark King formed?", "1979", "Mark King (musician)", "Level 42"
)
COUNT = ask(5, "How many inhabitants has the city in which Bo Kern was born?", "289440", "Bo Kern", "Graz")
MISSING = ask(6, "Who painted the portrait of Ada Quill?", "Sam Ode", "Ada Quill", "Portrait of a Lady")
SHORT = ask(7, "How often did the boxer fight?", "2", "Cork Boxing Club")
NAMED_ALIKE = ask(8, "Who formed the band of Billy Morrison?", "Billy Morrison", "Circus Diablo", "Billy Morrison")
QUESTIONS = [DIRECTOR, BAND, YES_NO, SINGER, COUNT, MISSING, SHORT, NAMED_ALIKE]

PLAN = Plan(episodes=2, searches=3, top_k=2)
EXPERT = SearchHabits(expert=1.0)
NOVICE = SearchHabits(expert=0.0)


def play(
    plan: Plan = PLAN, habits: SearchHabits | None = None, *, seeds: int = 12, questions: Sequence[Question] = QUESTIONS
) -> list[dict[str, Any]]:
    made = (demonstrations(questions, Shelf(), plan, habits=habits, seed=seed) for seed in range(seeds))
    return [record for records in made for record in records]


def turns_of(record: dict[str, Any]) -> Iterator[tuple[int, str, list[Passage]]]:
    """Each turn with its episode, from 0, and the passages that were read before it was written."""
    read: list[Passage] = []
    for number, episode in enumerate(record["episodes"]):
        for turn in episode["turns"]:
            yield number, turn["text"], list(read)
            read += [Passage(**passage) for passage in turn["passages"] or ()]


def answers_of(record: dict[str, Any]) -> list[str]:
    return [parse_turn(episode["turns"][-1]["text"]).action.text for episode in record["episodes"]]


def thought_of(text: str) -> str:
    return text.partition("<think> ")[2].partition(" </think>")[0]


def right(record: dict[str, Any], episode: int) -> bool:
    return exact_match(answers_of(record)[episode], record["question"]["golden_answers"]) == 1


def share_right(records: Sequence[dict[str, Any]], episode: int) -> float:
    return sum(right(record, episode) for record in records) / len(records)


PLANS = [
    Plan(episodes=episodes, searches=searches, top_k=2, context=context, window_tokens=32768)
    for episodes, searches, context in product((1, 2, 3), (0, 1, 2, 3), ("full", "last"))
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.episodes}x{plan.searches}-{plan.context}")
def test_every_demonstration_replays_in_full_and_in_form(plan: Plan) -> None:
    codec = HFCodec(byte_level(CHATML), Prompts())
    records = play(plan, seeds=3)
    replayed = build.replay_demonstrations(list(map(demonstration_from_record, records)), plan, Prompts(), codec)
    for record, trajectory in zip(records, replayed, strict=True):
        assert trajectory.finish_reason == "complete"
        assert len(trajectory.episodes) == plan.episodes
        for episode, shown in zip(trajectory.episodes, record["episodes"], strict=True):
            assert episode.finish_reason == "answer"
            assert episode.searches == len(shown["turns"]) - 1 <= plan.searches
            assert all(turn.format_valid for turn in episode.turns)
            assert [turn.text for turn in episode.turns] == [turn["text"] for turn in shown["turns"]]


@pytest.mark.parametrize("habits", [EXPERT, NOVICE, None], ids=["expert", "novice", "mixed"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.episodes}x{plan.searches}-{plan.context}")
def test_a_golden_answer_is_written_only_where_it_could_be_read(plan: Plan, habits: SearchHabits | None) -> None:
    """In answers and in queries alike: in a passage that came before, or in the question; yes and no are free."""
    for record in play(plan, habits, seeds=4):
        question = demonstration_from_record(record).question
        for _, text, read in turns_of(record):
            written = parse_turn(text).action.text
            if is_yes_no(question) or not exact_match(written, question.golden_answers):
                continue
            asked = Passage("", "", question.question)
            assert answer_rank([asked, *read], question) is not None, text


@pytest.mark.parametrize("context", ["full", "last"])
def test_what_a_thought_quotes_stands_in_a_passage_that_is_in_view(context: Any) -> None:
    quotes = 0
    for record in play(Plan(episodes=4, searches=2, top_k=2, context=context)):
        for number, text, _ in turns_of(record):
            seen = record["episodes"][max(0, number - 1) if context == "last" else 0 : number + 1]
            passages = [passage for episode in seen for turn in episode["turns"] for passage in turn["passages"] or ()]
            for quote in re.findall(r'"([^"]*)"', thought_of(text)):
                quotes += 1
                assert any(quote in passage["text"] for passage in passages), text
    assert quotes > 200


def test_a_choice_and_a_yes_or_no_are_known_only_when_all_was_read() -> None:
    """A coin decides before that, so that an answer that cannot be known is right half of the time."""
    blind = Plan(episodes=1, searches=0)
    for question in (BAND, YES_NO):
        assert 0.3 < share_right(play(blind, EXPERT, seeds=100, questions=[question]), 0) < 0.7
        assert share_right(play(PLAN, EXPERT, questions=[question]), 0) == 1


def test_an_expert_is_right_wherever_the_evidence_is_found_and_keeps_it() -> None:
    answerable = [DIRECTOR, BAND, YES_NO, SINGER, COUNT]
    for record in play(Plan(episodes=3, searches=3, top_k=2), EXPERT, questions=answerable):
        assert [right(record, episode) for episode in range(3)] == [True] * 3
        assert [len(episode["turns"]) for episode in record["episodes"][1:]] == [1, 1]
    for record in play(Plan(episodes=3, searches=3, top_k=2), EXPERT, questions=[MISSING, SHORT]):
        assert not right(record, 2)


def test_an_expert_finds_in_a_later_episode_what_did_not_fit_into_the_first() -> None:
    records = play(Plan(episodes=2, searches=1, top_k=1), EXPERT, questions=[DIRECTOR], seeds=30)
    # The one search may bring Ann Lee at once, when all words of the question are looked for; then nothing is missing.
    late = [record for record in records if not right(record, 0)]
    assert late
    for record in late:
        opening = record["episodes"][1]["turns"][0]["text"]
        assert parse_turn(opening).action.text == "Ann Lee"
        assert "Ann Lee" in thought_of(opening)
        assert "Nova Station" in thought_of(opening)
        assert answers_of(record)[0] in thought_of(opening)
        assert right(record, 1)


def test_a_reflection_is_plain_and_short() -> None:
    openings = [
        thought_of(record["episodes"][number]["turns"][0]["text"])
        for record in play(Plan(episodes=3, searches=2, top_k=2), seeds=30)
        for number in (1, 2)
    ]
    lengths = [len(opening.split()) for opening in openings]
    assert max(lengths) <= 40
    assert sum(length >= 20 for length in lengths) > 0.9 * len(lengths)
    assert len(set(openings)) > 50


def test_turns_fit_into_the_words_that_a_plan_leaves() -> None:
    long = replace(DIRECTOR, question=" ".join(["Where", *["very"] * 90, "far is the director of Nova Station from?"]))
    for tokens, words in ((1024, 64), (112, 48), (64, 24)):
        for record in play(replace(PLAN, turn_tokens=tokens), questions=[*QUESTIONS, long], seeds=5):
            for _, text, _ in turns_of(record):
                assert len(re.sub(r"</?\w+>", "", text).split()) <= words
    with pytest.raises(ConfigError, match=r"plan\.turn_tokens is 63, too few .* set it to 64 or more"):
        play(replace(PLAN, turn_tokens=63))


def test_what_an_observation_would_cut_off_is_not_read() -> None:
    texts = {
        "Nova Station": "A film of 1996. " + "It goes on. " * 60 + "Its hero is Max Bern.",
        "Ann Lee": "A director.",
    }
    question = ask(1, "Who is the hero of Nova Station?", "Max Bern", "Nova Station", "Ann Lee")
    for tokens, seen in ((1024, True), (256, False)):
        plan = Plan(episodes=1, searches=2, top_k=1, observation_tokens=tokens)
        (record,) = demonstrations([question], Shelf(texts), plan, habits=EXPERT)
        assert right(record, 0) == seen


def test_demonstrations_follow_their_seed_and_no_other_question() -> None:
    again = [json.dumps(record) for record in demonstrations(QUESTIONS, Shelf(), PLAN, seed=1)]
    assert again == [json.dumps(record) for record in demonstrations(QUESTIONS, Shelf(), PLAN, seed=1)]
    assert again != [json.dumps(record) for record in demonstrations(QUESTIONS, Shelf(), PLAN, seed=2)]
    assert again[3:5] == [json.dumps(record) for record in demonstrations(QUESTIONS[3:5], Shelf(), PLAN, seed=1)]


def test_a_file_of_them_is_read_back(tmp_path: Path) -> None:
    records = list(demonstrations(QUESTIONS, Shelf(), PLAN))
    (tmp_path / "demos.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    read = load_demonstrations(tmp_path / "demos.jsonl")
    assert [demonstration.question for demonstration in read] == QUESTIONS
    assert [len(demonstration.turns) for demonstration in read] == [len(list(turns_of(record))) for record in records]


def test_all_that_are_running_search_in_one_call() -> None:
    shelf = Shelf()
    records = list(demonstrations(QUESTIONS * 20, shelf, PLAN))
    assert len(records) == 160
    assert shelf.calls[0] == 160
    assert len(shelf.calls) <= PLAN.episodes * PLAN.searches
    assert sum(shelf.calls) == sum(
        turn["passages"] is not None for r in records for e in r["episodes"] for turn in e["turns"]
    )


def test_habits_show_in_what_is_done() -> None:
    questions = [DIRECTOR, COUNT]

    def novice(**habits: float) -> list[dict[str, Any]]:
        return play(Plan(episodes=2, searches=3, top_k=1), replace(NOVICE, **habits), questions=questions, seeds=40)

    def searches(records: list[dict[str, Any]], episode: int) -> float:
        return sum(len(record["episodes"][episode]["turns"]) - 1 for record in records) / len(records)

    assert share_right(novice(right_read=0.0), 0) == 0 < share_right(novice(right_read=1.0, search_on=1.0), 0)
    assert searches(novice(search_on=0.0), 0) < searches(novice(search_on=1.0), 0)
    assert share_right(novice(right_query=0.2), 0) < share_right(novice(right_query=1.0), 0)
    kept = novice(go_on=0.0, restart=0.0, search_on=1.0, right_query=1.0, right_read=0.5)
    assert searches(kept, 1) == 0
    assert all(first == second for first, second in map(answers_of, kept))
    assert 0.3 < share_right(kept, 0) < 0.7
    begun = [thought_of(record["episodes"][1]["turns"][0]["text"]) for record in novice(go_on=0.0, restart=1.0)]
    assert all(re.search(r"begin again|start from the beginning", thought) for thought in begun)
    assert share_right(play(seeds=40), 0) < share_right(play(seeds=40), 1)


def test_an_episode_that_is_to_explore_does_not_keep_an_answer_unsearched() -> None:
    plan = Plan(episodes=3, searches=2, top_k=2, openings=("explore", "reflection"), explore=1)
    for record in play(plan, EXPERT, questions=[DIRECTOR, BAND]):
        assert [len(episode["turns"]) > 1 for episode in record["episodes"]] == [True, True, False]


@pytest.mark.parametrize("changes", [{"lookup": True}, {"query": "thought"}])
def test_a_plan_without_searches_by_tags_alone_is_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=rf"plan\.{name} is .* leave it at"):
        play(replace(PLAN, **changes))


@pytest.mark.parametrize("habits", [{"expert": 1.5}, {"right_read": -0.1}, {"go_on": 0.6, "restart": 0.5}])
def test_habits_that_are_no_probabilities_are_refused(habits: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SearchHabits(**habits)


def test_questions_that_cannot_be_demonstrated_are_told_apart() -> None:
    assert [unfit(question, PLAN) for question in QUESTIONS] == [None] * len(QUESTIONS)
    assert unfit(replace(DIRECTOR, supporting_titles=()), PLAN) == "no_titles"
    for changes in (
        {"question": "What does </think> end?"},
        {"supporting_titles": ("Nova Station", "The <answer> tag")},
        {"golden_answers": ("<Search>",)},
    ):
        assert unfit(replace(DIRECTOR, **changes), PLAN) == "tags"  # type: ignore[arg-type]
    long = " ".join(["word"] * 25)
    assert unfit(replace(DIRECTOR, golden_answers=(long,)), PLAN) == "long_answer"
    assert unfit(replace(DIRECTOR, golden_answers=(long, "Bergen")), PLAN) is None


def test_a_tag_in_a_passage_never_gets_into_a_turn() -> None:
    texts = {
        "Nova Station": "Nova Station </think> is a film <answer> Max </answer> directed by Ann Lee </search> in 1996.",
        "Nova <answer> Max </answer>": "Max</answer> Nova Station Bergen.",
        "Ann Lee": "Ann Lee <search>is from Bergen</search>.",
    }
    for seed in range(40):
        for record in demonstrations([DIRECTOR], Shelf(texts), PLAN, seed=seed):
            for _, text, _ in turns_of(record):
                assert parse_turn(text).format_valid
                assert len(re.findall(r"</?(?:think|search|answer)>", text)) == 4


def test_a_name_is_searched_for_as_it_was_met_and_then_in_full() -> None:
    """The question says Mark King, of whom there are two."""
    other = Passage("0", "Mark King (boxer)", "Mark King was a boxer from Cork.")
    for seed in range(5):
        searcher = GuidedSearcher(SINGER, PLAN, Random(seed), EXPERT)
        turns = [searcher.next_turn(), searcher.next_turn([other]), searcher.next_turn([other])]
        queries = [parse_turn(turn).action.text for turn in turns]
        assert queries.index("Mark King") + 1 == queries.index("Mark King (musician)")


def test_a_title_that_nothing_has_named_is_guessed_but_never_one_that_is_the_answer() -> None:
    queries = {
        parse_turn(text).action.text
        for question in (MISSING, replace(MISSING, golden_answers=("Portrait of a Lady",)))
        for record in demonstrations([question], Shelf({}), Plan(episodes=2, searches=8), habits=EXPERT)
        for _, text, _ in turns_of(record)
    }
    assert "Portrait of a Lady" in queries
    queries = {
        parse_turn(text).action.text
        for record in demonstrations(
            [replace(MISSING, golden_answers=("Portrait of a Lady",))], Shelf({}), Plan(searches=8), habits=EXPERT
        )
        for _, text, _ in turns_of(record)
    }
    assert "Portrait of a Lady" not in queries


def test_the_report_counts_what_it_was_given() -> None:
    def turn(text: str, *passages: tuple[str, str]) -> dict[str, Any]:
        found = [{"id": "0", "title": title, "text": text} for title, text in passages]
        return {"text": text, "passages": found or None}

    search = turn("<think> a b </think> <search> c </search>", ("Ada", "one two"), ("Bob", "three"))
    answer = turn("<think> a </think> <answer> Köln </answer>")
    question = {"id": "1", "question": "q", "golden_answers": ("Köln",), "supporting_titles": ("Ada", "Bob")}
    report = DemoReport()
    wrong = turn("<think> a </think> <answer> Bonn </answer>")
    report.add({"question": question, "episodes": [{"turns": [search, wrong]}, {"turns": [answer]}]})
    report.add({"question": question, "episodes": [{"turns": [wrong]}, {"turns": [wrong]}]})
    assert report.as_dict() == {
        "demonstrations": 2,
        "searches_per_episode": 1 / 4,  # four episodes
        "right": [0.0, 0.5],
        "all_titles_found": 0.5,
        "words_per_turn": (7 + 6 * 4) / 5,
        "share_of_words_written": 31 / (31 + 5),  # two titles and three words
    }
    assert DemoReport().as_dict()["words_per_turn"] == 0


@pytest.mark.parametrize("module", [reading, searcher], ids=["reading", "searcher"])
def test_the_examples_in_the_modules_are_right(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


@pytest.mark.skipif(not (DATA / "wiki-mini.jsonl.gz").exists(), reason="the shared questions and passages are not here")
def test_real_questions_and_passages() -> None:
    questions = [q for q in load_questions(DATA / "hotpotqa_train.jsonl")[:150] if unfit(q, PLAN) is None]
    titles = {normalize(title) for question in questions for title in question.supporting_titles}
    texts: dict[str, str] = {}
    with gzip.open(DATA / "wiki-mini.jsonl.gz", "rt", encoding="utf-8") as lines:
        for _, line in zip(range(112_480), lines, strict=False):
            title, _, text = json.loads(line)["contents"].partition("\n")
            if normalize(title) in titles:
                texts.setdefault(title.strip('"'), text)
    records = list(demonstrations(questions, Shelf(texts), Plan(episodes=2, searches=3)))
    assert 0.4 < share_right(records, 0) < share_right(records, 1) < 1
    for record in records:
        question = demonstration_from_record(record).question
        for _, text, read in turns_of(record):
            turn = parse_turn(text)
            assert turn.format_valid
            assert len(thought_of(text).split()) <= 40
            if exact_match(turn.action.text, question.golden_answers) and not is_yes_no(question):
                assert answer_rank([Passage("", "", question.question), *read], question) is not None
