"""Plans that look the question up before the first turn, and plans whose thoughts are the queries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Completion, Generate, Search
from mrsearch.core.protocol import THOUGHT_STOP, Prompts, parse_turn
from mrsearch.core.types import Action, Passage, Question, Trajectory
from plain_codec import END, PlainCodec, completion, play_turns, write

PROMPTS = Prompts(
    question="Q: {question}\n",
    reflection="Again.\n",
    invalid="\nNeither.\n",
    last_call="\nLast call.\n",
    no_passages="None.",
    passage_untitled="{text}",
)
QUESTION = Question("1", "Where?", ("Paris",))
FOUND = (Passage("7", "", "a b"),)

SEARCH = "<search>where</search>"
THOUGHT = "<think>where</think>"
PARIS = "<answer>Paris</answer>"
NOTHING = "hm"

# What these cost in tokens of the plain codec, in which words, spaces and signs are one token each:
OPENING_COST = 8  # message, Q, :, space, Where, ?, line break, reply
TURN_COST = 8  # < search > where < / search >, and a thought or an answer as well
OBSERVATION_COST = 16  # \n \n < information >, then \n a space b, then \n < / information > \n \n

OPENED = "[message]Q: Where?\n[reply]"
OBSERVED = "\n\n<information>\na b\n</information>\n\n"


@pytest.fixture
def codec() -> PlainCodec:
    return PlainCodec(PROMPTS)


def begin(codec: PlainCodec, **plan: Any) -> MetaEpisode:
    """A machine with roomy budgets that looks its question up, where the test says nothing else."""
    roomy = {"episodes": 2, "searches": 1, "turn_tokens": 100, "observation_tokens": 100, "window_tokens": 1000}
    return MetaEpisode(QUESTION, Plan(**{"lookup": True, **roomy, **plan}), codec, PROMPTS)


def thinking(codec: PlainCodec, **plan: Any) -> MetaEpisode:
    return begin(codec, **{"lookup": False, "query": "thought", **plan})


def request(meta: MetaEpisode) -> Generate:
    assert isinstance(meta.need, Generate)
    return meta.need


def text_of(codec: PlainCodec, trajectory: Trajectory, window: int = 0) -> str:
    return codec.decode(trajectory.windows[window].ids)


def turn_ends(trajectory: Trajectory) -> list[list[str]]:
    return [[turn.finish_reason for turn in episode.turns] for episode in trajectory.episodes]


class TestLookup:
    def test_is_a_search_for_the_question_before_any_turn(self, codec: PlainCodec) -> None:
        assert begin(codec, top_k=5).need == Search("Where?", 5)
        assert isinstance(begin(codec, lookup=False).need, Generate)

    def test_brings_its_passages_before_the_first_turn(self, codec: PlainCodec) -> None:
        meta = begin(codec)
        meta.feed(FOUND)
        need = request(meta)
        assert codec.decode(need.ids) == OPENED + OBSERVED
        assert (len(need.ids), need.new_from) == (OPENING_COST + OBSERVATION_COST, 0)

    def test_is_the_environments_and_is_not_trained(self, codec: PlainCodec) -> None:
        (window,) = play_turns(begin(codec, episodes=1), codec, [PARIS], FOUND).windows
        placed = OPENING_COST + OBSERVATION_COST
        assert window.loss_mask == [0] * placed + [1] * TURN_COST
        assert window.logprobs[:placed] == [0.0] * placed
        assert set(window.episode_ids) == {1}

    def test_belongs_to_the_meta_episode_and_to_no_turn(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, [PARIS], FOUND)
        assert trajectory.lookup == FOUND
        assert [turn.passages for turn in trajectory.episodes[0].turns] == [None]

    def test_takes_none_of_the_searches(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1, searches=2), codec, [SEARCH, SEARCH, PARIS], FOUND)
        assert turn_ends(trajectory) == [["search", "search", "answer"]]
        assert trajectory.episodes[0].searches == 2
        assert (trajectory.counters["lookups"], trajectory.counters["searches"]) == (1, 2)

    def test_comes_once_for_all_episodes(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec), codec, [PARIS, SEARCH, PARIS], FOUND)
        assert text_of(codec, trajectory) == (
            OPENED + OBSERVED + PARIS + "[end][message]Again.\n[reply]" + SEARCH + OBSERVED + "\nLast call.\n" + PARIS
        )
        assert trajectory.counters["lookups"] == 1

    def test_draws_the_first_turn_with_the_seed_that_it_has_without(self, codec: PlainCodec) -> None:
        looked_up = begin(codec)
        looked_up.feed(FOUND)
        assert request(looked_up).seed == request(begin(codec, lookup=False)).seed

    def test_that_finds_nothing_says_so_and_is_counted(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=1)
        meta.feed([])
        assert codec.decode(request(meta).ids) == OPENED + "\n\n<information>\nNone.\n</information>\n\n"
        meta.feed(write(codec, PARIS))
        trajectory = meta.trajectory()
        assert trajectory.lookup == ()
        assert (trajectory.counters["empty_searches"], trajectory.counters["searches"]) == (1, 0)

    def test_is_cut_to_the_limit_of_an_observation(self, codec: PlainCodec) -> None:
        meta = begin(codec, observation_tokens=OBSERVATION_COST - 1)
        meta.feed(FOUND)
        assert codec.decode(request(meta).ids) == OPENED + "\n\n<information>\na \n</information>\n\n"
        trajectory = play_turns(meta, codec, [PARIS, PARIS])
        assert (trajectory.counters["cut_passages"], trajectory.counters["cut_passage_tokens"]) == (1, 1)

    def test_is_in_a_record_and_comes_back_from_it(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec), codec, [PARIS, PARIS], FOUND)
        record = trajectory.to_record()
        assert [passage["text"] for passage in record["lookup"]] == ["a b"]
        assert Trajectory.from_record(record) == trajectory
        without = play_turns(begin(codec, lookup=False), codec, [PARIS, PARIS])
        assert without.lookup is None
        assert "lookup" not in without.to_record()

    def test_with_the_answer_in_a_passage_is_no_answer(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1, searches=0), codec, [NOTHING], [Passage("7", "", PARIS)])
        assert PARIS in text_of(codec, trajectory)
        assert trajectory.episodes[0].answer is None


class TestLookupWithoutSearches:
    def test_the_last_call_follows_the_passages_in_the_first_episode_and_the_prompt_in_the_next(
        self, codec: PlainCodec
    ) -> None:
        trajectory = play_turns(begin(codec, searches=0), codec, [PARIS, PARIS], FOUND)
        assert text_of(codec, trajectory) == (
            OPENED + OBSERVED + "\nLast call.\n" + PARIS + "[end][message]Again.\n\nLast call.\n[reply]" + PARIS
        )

    def test_a_search_is_too_late(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, searches=0, episodes=1), codec, [SEARCH], FOUND)
        assert trajectory.episodes[0].finish_reason == "no_answer"
        assert (trajectory.counters["late_searches"], trajectory.counters["searches"]) == (1, 0)


class TestLookupInAShortContext:
    def test_goes_on_with_the_episode_that_it_stands_in_and_no_further(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=3, context="last"), codec, [PARIS] * 3, FOUND)
        again = "[end][message]Again.\n[reply]"
        assert [text_of(codec, trajectory, n) for n in range(3)] == [
            OPENED + OBSERVED + PARIS,
            OPENED + OBSERVED + PARIS + again + PARIS,
            OPENED + PARIS + again + PARIS,
        ]

    def test_is_trained_in_no_window(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, context="last"), codec, [PARIS] * 2, FOUND)
        assert [window.trained for window in trajectory.windows] == [TURN_COST, TURN_COST]


class TestLookupAndFullWindows:
    @pytest.mark.parametrize(("spare", "fits"), [(0, False), (1, True)])
    def test_it_needs_room_for_itself_and_one_token(self, codec: PlainCodec, spare: int, fits: bool) -> None:
        meta = begin(codec, window_tokens=OPENING_COST + OBSERVATION_COST + spare)
        meta.feed(FOUND)
        if fits:
            assert request(meta).max_tokens == 1
            meta.feed(write(codec, "a", "length"))
        trajectory = meta.trajectory()
        assert trajectory.finish_reason == "context_full"
        assert trajectory.episodes[0].finish_reason == "context_full"
        assert len(trajectory.episodes[0].turns) == fits
        # what the policy never saw is not recorded as brought
        assert trajectory.lookup == (FOUND if fits else None)
        assert trajectory.counters["lookups"] == fits

    def test_a_question_that_does_not_fit_is_not_looked_up(self, codec: PlainCodec) -> None:
        meta = begin(codec, window_tokens=OPENING_COST)
        assert meta.need is None
        assert meta.trajectory().finish_reason == "context_full"

    def test_the_last_call_behind_it_needs_room_too(self, codec: PlainCodec) -> None:
        # \n Last space call . \n
        meta = begin(codec, searches=0, window_tokens=OPENING_COST + OBSERVATION_COST + 6)
        meta.feed(FOUND)
        assert meta.trajectory().finish_reason == "context_full"


class TestFailedLookup:
    def test_ends_all_before_a_turn_was_written(self, codec: PlainCodec) -> None:
        meta = begin(codec)
        meta.fail_search()
        assert meta.need is None
        trajectory = meta.trajectory()
        assert trajectory.finish_reason == "retrieval_failed"
        assert [(episode.turns, episode.finish_reason) for episode in trajectory.episodes] == [([], "retrieval_failed")]
        assert trajectory.lookup is None
        assert trajectory.counters == {"retrieval_failed": 1}
        assert text_of(codec, trajectory) == OPENED


class TestThoughtAsQuery:
    def test_a_turn_ends_with_its_thought_or_its_answer(self, codec: PlainCodec) -> None:
        assert request(thinking(codec)).stop == THOUGHT_STOP == ("</think>", "</answer>")

    def test_a_thought_is_searched_for(self, codec: PlainCodec) -> None:
        meta = thinking(codec, top_k=5)
        meta.feed(write(codec, "<think> where is it </think>"))
        assert meta.need == Search("where is it", 5)
        meta.feed(FOUND)
        assert codec.decode(request(meta).ids) == (
            OPENED + "<think> where is it </think>" + OBSERVED + "\nLast call.\n"
        )

    def test_a_thought_or_an_answer_alone_has_the_right_form(self, codec: PlainCodec) -> None:
        trajectory = play_turns(thinking(codec, episodes=1), codec, [THOUGHT, PARIS], FOUND)
        assert [turn.action for turn in trajectory.episodes[0].turns] == [
            Action("search", "where"),
            Action("answer", "Paris"),
        ]
        assert trajectory.counters["valid_turns"] == 2
        assert trajectory.episodes[0].answer == "Paris"

    def test_k_thoughts_are_searched_for_and_one_more_is_too_late(self, codec: PlainCodec) -> None:
        trajectory = play_turns(thinking(codec, episodes=1, searches=2), codec, [THOUGHT] * 3, FOUND)
        assert trajectory.episodes[0].searches == trajectory.counters["searches"] == 2
        assert trajectory.counters["late_searches"] == 1
        assert trajectory.episodes[0].finish_reason == "no_answer"
        assert text_of(codec, trajectory) == (OPENED + (THOUGHT + OBSERVED) * 2 + "\nLast call.\n" + THOUGHT)

    def test_passages_of_a_thought_are_not_trained(self, codec: PlainCodec) -> None:
        trajectory = play_turns(thinking(codec, episodes=1, searches=2), codec, [THOUGHT, PARIS], FOUND)
        assert trajectory.windows[0].loss_mask == (
            [0] * OPENING_COST + [1] * TURN_COST + [0] * OBSERVATION_COST + [1] * TURN_COST
        )

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(NOTHING, id="no tags"),
            pytest.param("", id="nothing"),
            pytest.param(SEARCH, id="search tags"),
            pytest.param("<think> </think>", id="a blank thought"),
            pytest.param("<think>where", id="an open thought"),
            pytest.param("where</think>", id="a thought that was never opened"),
            pytest.param(f"so {THOUGHT}", id="text before a thought"),
            pytest.param("<think>a <search>where</search></think>", id="search tags in a thought"),
        ],
    )
    def test_any_other_turn_is_no_query_and_uses_up_one_of_the_k(self, codec: PlainCodec, text: str) -> None:
        meta = thinking(codec, episodes=1)
        meta.feed(write(codec, text))
        assert codec.decode(request(meta).ids) == f"{OPENED}{text}\nNeither.\n\nLast call.\n"
        trajectory = play_turns(meta, codec, [NOTHING])
        assert turn_ends(trajectory) == [["invalid", "invalid"]]
        assert (trajectory.counters["valid_turns"], trajectory.counters["searches"]) == (0, 0)

    def test_what_follows_a_thought_in_its_turn_is_cut_off(self, codec: PlainCodec) -> None:
        meta = thinking(codec, episodes=1)
        meta.feed(write(codec, THOUGHT + PARIS))
        assert meta.need == Search("where", 3)
        trajectory = play_turns(meta, codec, [PARIS], FOUND)
        first, _ = trajectory.episodes[0].turns
        assert (first.text, first.format_valid) == (THOUGHT, False)
        assert trajectory.counters["tokens_after_stop"] == TURN_COST

    def test_an_answer_inside_a_thought_that_stays_open_counts_but_has_not_the_form(self, codec: PlainCodec) -> None:
        trajectory = play_turns(thinking(codec, episodes=1), codec, [f"<think>maybe {PARIS}"])
        assert trajectory.episodes[0].answer == "Paris"
        assert trajectory.counters["valid_turns"] == 0

    def test_the_budget_begins_anew_in_each_episode(self, codec: PlainCodec) -> None:
        trajectory = play_turns(thinking(codec), codec, [THOUGHT, PARIS, THOUGHT, THOUGHT], FOUND)
        assert [episode.searches for episode in trajectory.episodes] == [1, 1]
        assert [episode.finish_reason for episode in trajectory.episodes] == ["answer", "no_answer"]

    def test_passages_that_do_not_fit_end_all(self, codec: PlainCodec) -> None:
        meta = thinking(codec, searches=2, window_tokens=OPENING_COST + TURN_COST + OBSERVATION_COST)
        trajectory = play_turns(meta, codec, [THOUGHT], FOUND)
        assert trajectory.finish_reason == "context_full"
        assert trajectory.episodes[0].turns[0].passages is None

    def test_a_failed_search_ends_all(self, codec: PlainCodec) -> None:
        meta = thinking(codec)
        meta.feed(write(codec, THOUGHT))
        meta.fail_search()
        assert meta.trajectory().finish_reason == "retrieval_failed"
        assert turn_ends(meta.trajectory()) == [["search"]]

    def test_elsewhere_a_thought_is_neither_the_end_of_a_turn_nor_a_query(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, lookup=False, episodes=1), codec, [THOUGHT, THOUGHT + PARIS])
        assert turn_ends(trajectory) == [["invalid", "answer"]]
        assert trajectory.counters["tokens_after_stop"] == 0

    def test_the_passages_of_a_lookup_come_before_the_first_thought(self, codec: PlainCodec) -> None:
        trajectory = play_turns(thinking(codec, lookup=True, episodes=1), codec, [THOUGHT, PARIS], FOUND)
        assert text_of(codec, trajectory) == OPENED + OBSERVED + THOUGHT + OBSERVED + "\nLast call.\n" + PARIS
        assert (trajectory.counters["lookups"], trajectory.counters["searches"]) == (1, 1)


@given(
    text=st.text(alphabet="a \n<>/") | st.lists(st.sampled_from(["<think>", "</think>", PARIS, "a", " "])).map("".join)
)
def test_a_thought_that_is_searched_for_stands_alone_in_its_turn(text: str) -> None:
    parsed = parse_turn(text, query="thought")
    if parsed.action.kind == "search":
        before, _, rest = text.partition("<think>")
        assert before.strip() == ""
        assert parsed.action.text == rest.partition("</think>")[0].strip() != ""
        assert parsed.format_valid == (rest.partition("</think>")[2].strip() == "")


# -- at random --------------------------------------------------------------------------------

TEXTS = st.sampled_from([SEARCH, THOUGHT, PARIS, NOTHING, "", "<answer></answer>", THOUGHT + SEARCH, THOUGHT + PARIS])
PASSAGES = st.lists(st.sampled_from([*FOUND, Passage("8", "", "x <answer>Paris</answer> y")]), max_size=2)
PLANS = st.fixed_dictionaries(
    {
        "episodes": st.integers(1, 3),
        "searches": st.integers(0, 2),
        "query": st.sampled_from(["search", "thought"]),
        "lookup": st.booleans(),
        "context": st.sampled_from(["full", "last"]),
        "turn_tokens": st.sampled_from([40, 40, 6]),
        "observation_tokens": st.sampled_from([40, 14]),
        "window_tokens": st.sampled_from([400, 400, 120, 60, 33, 24, OPENING_COST + 1, OPENING_COST]),
    }
)


@given(data=st.data(), plan=PLANS)
def test_whatever_is_played_the_lists_of_a_window_stay_together_and_only_the_policys_tokens_train(
    data: st.DataObject, plan: dict[str, Any]
) -> None:
    codec = PlainCodec(PROMPTS)
    meta = begin(codec, **plan)
    written: list[int] = []
    lookups, searches = 0, 0
    while meta.need is not None:
        if isinstance(meta.need, Search):
            # No turn of this test searches for the question itself.
            lookups, searches = lookups + (meta.need.query == "Where?"), searches + (meta.need.query == "where")
            meta.feed(data.draw(PASSAGES))
        else:
            need = meta.need
            reply = cut_at_stop(codec, data.draw(TEXTS), need.stop, need.max_tokens, ended=data.draw(st.booleans()))
            written += reply.ids
            meta.feed(reply)
    trajectory = meta.trajectory()
    for window in trajectory.windows:
        lengths = {len(window.ids), len(window.loss_mask), len(window.episode_ids), len(window.logprobs)}
        assert lengths == {len(window)}
        assert len(window) <= plan["window_tokens"]
    pairs = [pair for window in trajectory.windows for pair in zip(window.ids, window.loss_mask, strict=True)]
    assert [token for token, mask in pairs if mask] == written
    assert lookups == (plan["lookup"] and plan["window_tokens"] > OPENING_COST)
    # What the window had no room for was searched for and is not counted; that ends all, so it is the last at most.
    carried_out = trajectory.counters["lookups"] + trajectory.counters["searches"]
    assert 0 <= lookups + searches - carried_out <= (trajectory.finish_reason == "context_full")
    assert trajectory.counters["lookups"] == (trajectory.lookup is not None)
    assert all(episode.searches <= plan["searches"] for episode in trajectory.episodes)
    assert all(len(episode.turns) <= plan["searches"] + 1 for episode in trajectory.episodes)


def cut_at_stop(codec: PlainCodec, text: str, stops: tuple[str, ...], limit: int, *, ended: bool) -> Completion:
    """What an engine that honours stops and the limit gives for a text; where no stop is in it, an end may follow."""
    places = [text.index(stop) + len(stop) for stop in stops if stop in text]
    ids = codec.encode(text[: min(places)]) if places else [*codec.encode(text), *[END] * ended]
    return completion(ids[:limit], "length" if len(ids) > limit else "stop")
