"""The mini world: facts, questions, words, demonstrations, and the model of its size."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from mrsearch.core.protocol import OBSERVATION_CLOSING, OBSERVATION_OPENING, parse_turn, render_passage
from mrsearch.core.types import Passage, Question
from mrsearch.data import mini_world
from mrsearch.data.mini_world import (
    MINI_PROMPTS,
    NAMES,
    RELATIONS,
    TAGS,
    DemoHabits,
    MiniWorld,
    ScriptedSearcher,
    build_world,
    chain_questions,
    demonstrations,
    mini_model_config,
    mini_tokenizer,
    mini_vocabulary,
    reading_texts,
)
from mrsearch.errors import ConfigError, DataError

WORLD = build_world(0)


def follow(world: MiniWorld, question: Question) -> list[str]:
    """The names along a question's chain, from the facts alone."""
    start, *relations = question.question.removesuffix(" ?").split(" 's ")
    names = [start]
    for relation in relations:
        names.append(world.facts[names[-1]][relation])
    return names


def test_a_world_is_its_seed():
    assert build_world(3).entities == build_world(3).entities
    assert build_world(3).entities != build_world(4).entities


def test_all_worlds_share_their_names_but_not_their_facts():
    other = build_world(1)
    assert [e.name for e in WORLD.entities] == [e.name for e in other.entities] == list(NAMES[:300])
    same = sum(a.type == b.type and a.facts == b.facts for a, b in zip(WORLD.entities, other.entities, strict=True))
    assert same <= 3


def test_names_are_distinct_single_words():
    assert len(set(NAMES)) == len(NAMES)
    assert all(len(name.split()) == 1 for name in NAMES)


def test_types_and_splits_have_their_shares():
    assert Counter(e.type for e in WORLD.entities) == {"film": 90, "person": 90, "company": 60, "town": 60}
    assert Counter(e.split for e in WORLD.entities) == {"tr": 210, "te": 90}


@pytest.mark.parametrize("size", [40, 120, 301])
def test_facts_have_the_right_type_and_never_cross_splits(size: int):
    world = build_world(7, entities=size)
    by_name = {entity.name: entity for entity in world.entities}
    assert len(by_name) == size
    for entity in world.entities:
        assert {relation for relation, _ in entity.facts} == set(RELATIONS[entity.type])
        assert len({entity.name, *(value for _, value in entity.facts)}) == 4
        for relation, value in entity.facts:
            assert by_name[value].type == RELATIONS[entity.type][relation]
            assert by_name[value].split == entity.split


@pytest.mark.parametrize("size", [39, 10**6])
def test_a_world_of_a_size_without_enough_values_or_names_is_refused(size: int):
    with pytest.raises(ConfigError, match="40 to"):
        build_world(0, entities=size)


def test_a_passage_tells_the_three_facts_of_its_title():
    for entity, passage in zip(WORLD.entities, WORLD.passages, strict=True):
        assert passage.title == entity.name
        opening, *facts = passage.text.removesuffix(" .").split(" . ")
        assert opening == f"{entity.name} is a {entity.type}"
        assert [tuple(fact.split()) for fact in facts] == list(entity.facts)


def test_a_name_finds_its_own_passage_and_a_relation_the_first_that_has_it():
    assert all(WORLD.look_up(p.title) == p and WORLD.look_up(f"{p.title} mayor") == p for p in WORLD.passages)
    first_town = next(e for e in WORLD.entities if e.type == "town")
    found = WORLD.look_up("mayor")
    assert found is not None
    assert found.title == first_town.name
    assert WORLD.look_up("unheard of") is None


@pytest.mark.parametrize("split", ["tr", "te"])
def test_questions_are_chains_without_repetition_inside_their_split(split: mini_world.Split):
    questions = chain_questions(WORLD, split, 200, seed=5)
    splits = {entity.name: entity.split for entity in WORLD.entities}
    for question in questions:
        names = follow(WORLD, question)
        relations = question.question.split()[2:-1:2]
        assert len(set(names)) == len(names) == len(set(relations)) + 1
        assert {splits[name] for name in names} == {split}
        assert question.golden_answers == (names[-1],)
        assert question.supporting_titles == tuple(names[:-1])
        assert question.data_source == "mini"
    assert [len(q.supporting_titles) for q in questions[:8]] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert len({q.id for q in questions}) == len({q.question for q in questions}) == 200


def test_a_question_keeps_its_id_whatever_it_is_drawn_with():
    few, many = chain_questions(WORLD, "te", 4, seed=1), chain_questions(WORLD, "te", 1000, seed=2)
    ids = {q.question: q.id for q in many}
    assert all(ids[q.question] == q.id for q in few if q.question in ids)
    assert few == chain_questions(WORLD, "te", 4, seed=1)
    assert few != many[:4]
    assert few[0].id not in {q.id for q in chain_questions(build_world(1), "te", 1000)}


def test_asking_for_more_questions_than_exist_says_how_many_do():
    # 90 held-out entities with three relations each make 270 questions of one hop
    assert len(chain_questions(WORLD, "te", 270, hops=[1])) == 270
    with pytest.raises(ConfigError, match="270 questions of 1 hops"):
        chain_questions(WORLD, "te", 271, hops=[1])


@pytest.mark.parametrize(("split", "hops"), [("test", [1]), ("te", []), ("te", [0])])
def test_questions_of_an_unknown_split_or_no_hops_are_refused(split: mini_world.Split, hops: list[int]):
    with pytest.raises(ConfigError):
        chain_questions(WORLD, split, 1, hops=hops)


def everything_said() -> list[str]:
    """All texts of the mini world: prompts, passages, questions, turns, reading exercises."""
    prompts = [value for name, value in vars(MINI_PROMPTS).items() if "{" not in value]
    questions = [MINI_PROMPTS.question.replace("{question}", q.question) for q in chain_questions(WORLD, "tr", 200)]
    demos = demonstrations(WORLD, chain_questions(WORLD, "tr", 100), episodes=3, searches=2)
    turns = [turn["text"] for demo in demos for episode in demo["episodes"] for turn in episode["turns"]]
    reading = [text for pieces in reading_texts(WORLD, 20) for text, _ in pieces]
    passages = [OBSERVATION_OPENING, OBSERVATION_CLOSING, *(render_passage(MINI_PROMPTS, 1, p) for p in WORLD.passages)]
    return prompts + questions + turns + reading + passages


def test_every_word_has_an_id_and_decoding_gives_the_words_back():
    tokenizer = mini_tokenizer()
    for text in everything_said():
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids, text
        assert len(ids) == len(text.split())
        assert tokenizer.decode(ids) == " ".join(text.split())


def test_tags_are_single_tokens_that_decoding_keeps():
    tokenizer = mini_tokenizer(120)
    assert len(tokenizer) == len(mini_vocabulary(120)) == len(set(mini_vocabulary(120)))
    for tag in TAGS:
        ids = tokenizer(tag)["input_ids"]
        assert ids == [tokenizer.bos_token_id, tokenizer.convert_tokens_to_ids(tag)]
        assert tokenizer.decode(ids, skip_special_tokens=True) == tag
        assert tag not in tokenizer.all_special_tokens
    glued = tokenizer("</think><search>Bora</search>", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(glued).split()[:2] == ["</think>", "<search>"]
    config = mini_model_config(len(tokenizer))
    assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (
        tokenizer.pad_token_id,
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    )


def test_a_saved_tokenizer_reads_back_the_same(tmp_path: Path):
    from transformers import AutoTokenizer

    mini_tokenizer().save_pretrained(tmp_path)
    restored = AutoTokenizer.from_pretrained(tmp_path)
    text = "question : Bora 's mayor ? <think> need mayor </think> <search> Bora </search>"
    assert restored(text)["input_ids"] == mini_tokenizer()(text)["input_ids"]
    assert restored.decode(restored(text)["input_ids"]) == f"<bos> {text}"


def test_an_expert_answers_as_soon_as_its_searches_allow_and_then_keeps_the_answer():
    questions = chain_questions(WORLD, "te", 40)
    for question, demo in zip(
        questions,
        demonstrations(WORLD, questions, episodes=3, searches=2, habits=DemoHabits(expert=1.0)),
        strict=True,
    ):
        hops = len(question.supporting_titles)
        answers = [parse_turn(episode["turns"][-1]["text"]).action.text for episode in demo["episodes"]]
        # Two hops fit into the first episode, three and four into the second.
        names = follow(WORLD, question)
        assert answers == [names[min(hops, 2)], names[hops], names[hops]]
        found = [p["title"] for e in demo["episodes"] for t in e["turns"] for p in t["passages"] or ()]
        assert tuple(found) == question.supporting_titles
        assert "keep" in demo["episodes"][2]["turns"][0]["text"]


@pytest.mark.parametrize("searches", [1, 2, 4])
def test_an_episode_is_at_most_its_searches_and_then_one_answer(searches: int):
    questions = chain_questions(WORLD, "tr", 80)
    for demo in demonstrations(WORLD, questions, episodes=4, searches=searches, habits=DemoHabits(search_on=0.6)):
        assert len(demo["episodes"]) == 4
        for episode in demo["episodes"]:
            *earlier, last = [parse_turn(turn["text"]) for turn in episode["turns"]]
            assert all(turn.action.kind == "search" for turn in earlier)
            assert last.action.kind == "answer"
            assert len(earlier) <= searches
            assert all(turn.format_valid for turn in (*earlier, last))
            assert [turn["passages"] is None for turn in episode["turns"]] == [False] * len(earlier) + [True]


def test_demonstrations_are_plain_data_and_follow_their_seed():
    questions = chain_questions(WORLD, "tr", 30)
    demos = demonstrations(WORLD, questions, episodes=2, searches=2, seed=1)
    again = json.loads(json.dumps(demos))
    assert [demo["episodes"] for demo in again] == [demo["episodes"] for demo in demos]
    assert demos == demonstrations(WORLD, questions, episodes=2, searches=2, seed=1)
    assert demos != demonstrations(WORLD, questions, episodes=2, searches=2, seed=2)
    assert demos[:5] == demonstrations(WORLD, questions[:5], episodes=2, searches=2, seed=1)


def test_habits_are_the_rates_of_the_decisions():
    questions = chain_questions(WORLD, "tr", 1200, hops=[4])
    habits = DemoHabits(expert=0.0, right_query=1.0, right_read=1.0, search_on=0.3, go_on=0.4, restart=0.35)
    demos = demonstrations(WORLD, questions, episodes=2, searches=6, habits=habits)
    first = [demo["episodes"][0]["turns"] for demo in demos]
    after = Counter(demo["episodes"][1]["turns"][0]["text"].split()[1] for demo in demos)
    # three standard deviations of a share of 1,200 are at most .044
    assert sum(len(turns) > 2 for turns in first) / 1200 == pytest.approx(0.3, abs=0.044)
    assert after["restart"] / 1200 == pytest.approx(0.35, abs=0.044)
    # a chain that was finished at once (.3 ** 3 of them) has nothing to go on with, but is counted here all the same
    assert after["keep"] / 1200 == pytest.approx(0.25, abs=0.044)


@pytest.mark.parametrize("habits", [{"expert": 1.5}, {"right_read": -0.1}, {"go_on": 0.6, "restart": 0.5}])
def test_habits_that_are_no_probabilities_are_refused(habits: dict[str, float]):
    with pytest.raises(ConfigError):
        DemoHabits(**habits)


def scripted(habits: DemoHabits, *, searches: int = 2, hops: int = 3) -> tuple[ScriptedSearcher, list[str]]:
    question = chain_questions(WORLD, "te", 1, hops=[hops], seed=4)[0]
    return ScriptedSearcher(question, WORLD, Random(0), searches=searches, habits=habits), follow(WORLD, question)


def test_going_on_starts_from_the_last_finding_and_restarting_from_the_question():
    steady = {"expert": 0.0, "right_query": 1.0, "right_read": 1.0}
    for habits, query in (
        (DemoHabits(**steady, go_on=1.0, restart=0.0), 1),
        (DemoHabits(**steady, restart=1, go_on=0), 0),
    ):
        searcher, names = scripted(habits, searches=1)
        assert f"<search> {names[0]} </search>" in searcher.next_turn()
        assert f"guess </think> <answer> {names[1]} </answer>" in searcher.next_turn(WORLD.look_up(names[0]))
        assert f"<search> {names[query]} </search>" in searcher.next_turn()


def test_a_passage_about_something_else_takes_the_chain_no_further():
    searcher, names = scripted(DemoHabits(expert=1.0))
    first = searcher.next_turn()
    stranger = next(p for p in WORLD.passages if p.title not in names)
    assert searcher.next_turn(stranger) == first
    # The searches are spent: what stands in the passage is a guess, and the next episode looks for the same fact.
    assert "guess" in searcher.next_turn(stranger)
    assert searcher.next_turn() == first


@pytest.mark.parametrize("observed", [None, Passage("x", "", "nothing that reads like a fact")])
def test_a_searcher_that_finds_nothing_still_answers(observed: Passage | None):
    searcher, names = scripted(DemoHabits(expert=1.0), searches=1)
    searcher.next_turn()
    assert searcher.next_turn(observed) == f"<think> guess </think> <answer> {names[0]} </answer>"


def test_a_question_of_another_kind_is_refused():
    with pytest.raises(DataError, match="Who wrote"):
        ScriptedSearcher(Question("1", "Who wrote it?", ("x",)), WORLD, Random(0), searches=1)


def test_reading_trains_the_values_of_the_passage_and_nothing_else():
    for pieces in reading_texts(WORLD, 50, seed=3):
        opening, *rest = pieces
        title = opening[0].split()[1]
        trained = [text.split() for text, is_trained in pieces if is_trained]
        asked = [text for text, is_trained in rest if not is_trained and text != "."]
        assert not opening[1]
        assert {first for first, _ in trained} == set(WORLD.facts[title].values())
        assert all(
            WORLD.facts[title][relation] == first == second
            for relation, (first, second) in zip(asked, trained, strict=True)
        )


def test_the_mini_model_is_its_seed_and_leaves_the_random_state_alone():
    torch = pytest.importorskip("torch")
    from mrsearch.engine.mini_model import build_mini_model

    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    model, same, other = (build_mini_model(mini_model_config(358), seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)
    assert sum(p.numel() for p in model.parameters()) == 420_032
    embeddings = model.get_input_embeddings().weight
    assert embeddings.std().item() == pytest.approx(1.0, abs=0.02)
    assert torch.allclose(model.lm_head.weight * 128**0.5, embeddings, atol=1e-5)
    # o_proj: 1/sqrt(128), divided by the square root of two branches in each of two layers
    assert model.model.layers[0].self_attn.o_proj.weight.std().item() == pytest.approx(128**-0.5 / 2, rel=0.05)
