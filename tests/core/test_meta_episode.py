"""The meta-episode: budgets, endings, exact tokens. First played by hand, in the last class at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.meta_episode import MetaEpisode, derive_seed
from mrsearch.core.plan import Plan
from mrsearch.core.ports import Completion, CompletionEnd, Generate, Observation, Sampling, Search
from mrsearch.core.protocol import STOP, Prompts, first_stop_end, parse_action
from mrsearch.core.rewards import exact_match, normalize
from mrsearch.core.types import Action, Episode, Passage, Question, Trajectory, Window
from plain_codec import END, MESSAGE, REPLY, PlainCodec, completion, play_turns, write

PROMPTS = Prompts(
    question="Q: {question}\n",
    reflection="Again.\n",
    explore="Elsewhere.\n",
    continuation="Next.\n",
    invalid="\nNeither.\n",
    last_call="\nLast call.\n",
    no_passages="None.",
    passage="{text}",
    passage_untitled="{text}",
)
QUESTION = Question("1", "Where?", ("Paris",))
FOUND = (Passage("7", "", "a b"),)

SEARCH = "<search>where</search>"
PARIS = "<answer>Paris</answer>"
ROME = "<answer>Rome</answer>"
NOTHING = "hm"

# What these cost in tokens of the plain codec, in which words, spaces and signs are one token each:
OPENING_COST = 8  # message, Q, :, space, Where, ?, line break, reply
TURN_COST = 8  # < search > where < / search >, and an answer as well
OBSERVATION_COST = 16  # \n \n < information >, then \n a space b, then \n < / information > \n \n
BETWEEN_COST = 6  # end, message, Again, ., line break, reply
NOTICE_COST = 4  # \n Neither . \n


@pytest.fixture
def codec() -> PlainCodec:
    return PlainCodec(PROMPTS)


def begin(codec: PlainCodec, *, prompts: Prompts = PROMPTS, question: Question = QUESTION, **plan: Any) -> MetaEpisode:
    """A machine with roomy budgets: two episodes of one search where the test says nothing else."""
    roomy = {"episodes": 2, "searches": 1, "turn_tokens": 100, "observation_tokens": 100, "window_tokens": 1000}
    return MetaEpisode(question, Plan(**{**roomy, **plan}), codec, prompts)


def request(meta: MetaEpisode) -> Generate:
    assert isinstance(meta.need, Generate)
    return meta.need


def turn_ends(trajectory: Trajectory) -> list[list[str]]:
    return [[turn.finish_reason for turn in episode.turns] for episode in trajectory.episodes]


def episode_ends(trajectory: Trajectory) -> list[str | None]:
    return [episode.finish_reason for episode in trajectory.episodes]


def trained_ids(windows: Sequence[Window]) -> list[int]:
    return [token for window in windows for token, mask in zip(window.ids, window.loss_mask, strict=True) if mask]


def rewards(trajectory: Trajectory) -> list[float]:
    return [exact_match(episode.answer, trajectory.question.golden_answers) for episode in trajectory.episodes]


class TestFirstRequest:
    def test_is_the_question_in_its_prompt(self, codec: PlainCodec) -> None:
        need = request(begin(codec))
        assert codec.decode(need.ids) == "[message]Q: Where?\n[reply]"
        assert (len(need.ids), need.new_from) == (OPENING_COST, 0)

    def test_carries_the_stops_and_the_sampling(self, codec: PlainCodec) -> None:
        sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7)
        need = request(MetaEpisode(QUESTION, Plan(), codec, PROMPTS, sampling=sampling))
        assert need.stop == STOP
        assert need.sampling == sampling

    def test_may_use_the_smaller_of_the_turn_limit_and_the_rest_of_the_window(self, codec: PlainCodec) -> None:
        assert request(begin(codec, turn_tokens=10, window_tokens=100)).max_tokens == 10
        assert request(begin(codec, turn_tokens=100, window_tokens=50)).max_tokens == 50 - OPENING_COST

    def test_holds_a_question_that_looks_like_a_control_token_as_plain_text(self, codec: PlainCodec) -> None:
        ids = request(begin(codec, question=replace(QUESTION, question="[end] [reply]"))).ids
        assert codec.decode(ids) == "[message]Q: [end] [reply]\n[reply]"
        assert END not in ids
        assert ids.count(REPLY) == 1


class TestBudget:
    def test_an_episode_searches_k_times_and_then_answers(self, codec: PlainCodec) -> None:
        meta = begin(codec, searches=2, episodes=1)
        trajectory = play_turns(meta, codec, [SEARCH, SEARCH, PARIS], FOUND)
        assert turn_ends(trajectory) == [["search", "search", "answer"]]
        assert episode_ends(trajectory) == ["answer"]
        assert trajectory.finish_reason == "complete"
        assert trajectory.episodes[0].searches == 2
        assert trajectory.episodes[0].answer == "Paris"

    def test_an_invalid_turn_uses_one_of_the_k(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, searches=2, episodes=1), codec, [NOTHING, SEARCH, PARIS], FOUND)
        assert turn_ends(trajectory) == [["invalid", "search", "answer"]]
        assert trajectory.episodes[0].searches == 1

    def test_a_search_in_the_last_turn_is_not_carried_out(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, [SEARCH, SEARCH], FOUND)
        first, last = trajectory.episodes[0].turns
        assert episode_ends(trajectory) == ["no_answer"]
        assert trajectory.finish_reason == "complete"
        assert (first.passages, last.passages) == (FOUND, None)
        assert trajectory.episodes[0].searches == 1
        assert trajectory.counters["late_searches"] == 1
        assert trajectory.counters["searches"] == 1

    def test_an_invalid_last_turn_ends_the_episode_without_a_notice(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, [NOTHING, NOTHING])
        assert episode_ends(trajectory) == ["no_answer"]
        assert codec.decode(trajectory.windows[0].ids) == "[message]Q: Where?\n[reply]hm\nNeither.\n\nLast call.\nhm"

    def test_the_last_call_stands_before_the_last_turn_and_nowhere_else(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, searches=2, episodes=1), codec, [SEARCH, SEARCH, PARIS], FOUND)
        assert codec.decode(trajectory.windows[0].ids) == (
            "[message]Q: Where?\n[reply]"
            "<search>where</search>\n\n<information>\na b\n</information>\n\n"
            "<search>where</search>\n\n<information>\na b\n</information>\n\n\nLast call.\n"
            "<answer>Paris</answer>"
        )

    def test_the_last_call_follows_the_notice_of_an_invalid_turn(self, codec: PlainCodec) -> None:
        meta = begin(codec, searches=2)
        meta.feed(write(codec, NOTHING))
        assert codec.decode(request(meta).ids).endswith("hm\nNeither.\n")
        meta.feed(write(codec, NOTHING))
        assert codec.decode(request(meta).ids).endswith("hm\nNeither.\n\nLast call.\n")

    def test_the_last_call_may_be_empty(self, codec: PlainCodec) -> None:
        meta = begin(codec, prompts=replace(PROMPTS, last_call=""))
        meta.feed(write(codec, SEARCH))
        meta.feed(FOUND)
        assert codec.decode(request(meta).ids).endswith("</information>\n\n")
        meta.feed(write(codec, PARIS))
        assert meta.need is not None

    def test_the_last_call_comes_beyond_the_limit_of_an_observation(self, codec: PlainCodec) -> None:
        # Tags alone are 12 of 13 tokens: of the passage's four one is left, its line break.
        trajectory = play_turns(begin(codec, episodes=1, observation_tokens=13), codec, [SEARCH, PARIS], FOUND)
        observed = "<search>where</search>\n\n<information>\n\n</information>\n\n\nLast call.\n<answer>Paris</answer>"
        assert codec.decode(trajectory.windows[0].ids).endswith(observed)
        assert trajectory.counters["cut_passages"] == 1
        assert trajectory.counters["cut_passage_tokens"] == 3

    def test_without_searches_an_episode_is_one_turn_under_the_last_call(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, searches=0), codec, [SEARCH, PARIS])
        assert turn_ends(trajectory) == [["search"], ["answer"]]
        assert episode_ends(trajectory) == ["no_answer", "answer"]
        assert codec.decode(trajectory.windows[0].ids) == (
            "[message]Q: Where?\n\nLast call.\n[reply]<search>where</search>"
            "[end][message]Again.\n\nLast call.\n[reply]<answer>Paris</answer>"
        )

    def test_every_episode_has_the_whole_budget_again(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec), codec, [SEARCH, SEARCH, SEARCH, PARIS], FOUND)
        assert turn_ends(trajectory) == [["search", "search"], ["search", "answer"]]

    def test_a_search_asks_for_as_many_passages_as_the_plan_says(self, codec: PlainCodec) -> None:
        meta = begin(codec, top_k=5)
        meta.feed(write(codec, "<search> where is it </search>"))
        assert meta.need == Search("where is it", 5)

    def test_a_search_that_finds_nothing_says_so_and_is_counted(self, codec: PlainCodec) -> None:
        meta = begin(codec)
        meta.feed(write(codec, SEARCH))
        meta.feed([])
        assert "<information>\nNone.\n</information>" in codec.decode(request(meta).ids)
        trajectory = play_turns(meta, codec, [PARIS, PARIS])
        assert trajectory.episodes[0].turns[0].passages == ()
        assert trajectory.counters["empty_searches"] == 1


class TestAnswer:
    def test_that_is_blank_ends_the_episode_and_scores_nothing(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec), codec, ["<answer> </answer>", PARIS])
        assert episode_ends(trajectory) == ["answer", "answer"]
        assert [episode.answer for episode in trajectory.episodes] == ["", "Paris"]
        assert rewards(trajectory) == [0.0, 1.0]
        assert trajectory.counters["blank_answers"] == 1

    def test_is_the_first_complete_pair_of_a_turn_wherever_it_stands(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, [f"<think>maybe {PARIS}"])
        assert trajectory.episodes[0].answer == "Paris"
        assert not trajectory.episodes[0].turns[0].format_valid

    def test_is_the_first_of_two_in_a_turn_whose_format_is_then_invalid(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, [f"<think>t</think>{PARIS}{ROME}"])
        assert trajectory.episodes[0].answer == "Paris"
        assert not trajectory.episodes[0].turns[0].format_valid
        assert trajectory.counters["tokens_after_stop"] == TURN_COST  # all of the second

    @pytest.mark.parametrize("prompt", [Prompts().question, "{question}"])
    def test_is_scored_alone_whether_or_not_the_prompt_shows_an_example(self, codec: PlainCodec, prompt: str) -> None:
        meta = begin(codec, episodes=1, prompts=replace(PROMPTS, question=prompt))
        assert rewards(play_turns(meta, codec, [PARIS])) == [1.0]

    def test_in_the_prompts_example_never_scores(self, codec: PlainCodec) -> None:
        question = replace(QUESTION, golden_answers=("Beijing",))
        meta = begin(codec, episodes=1, question=question, prompts=replace(PROMPTS, question=Prompts().question))
        assert rewards(play_turns(meta, codec, [PARIS])) == [0.0]

    def test_in_the_question_never_scores(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=1, question=replace(QUESTION, question=f"Is it {PARIS}?"))
        assert rewards(play_turns(meta, codec, [SEARCH, NOTHING])) == [0.0]

    def test_in_a_passage_is_no_action_and_never_scores(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=1, searches=2)
        trajectory = play_turns(meta, codec, [SEARCH, SEARCH, SEARCH], [Passage("7", "", f"x {PARIS} y")])
        assert parse_action(codec.decode(trajectory.windows[0].ids[16:])) == Action("answer", "Paris")  # it is there
        assert turn_ends(trajectory) == [["search", "search", "search"]]
        assert trajectory.episodes[0].answer is None
        assert rewards(trajectory) == [0.0]

    def test_in_a_passage_does_not_complete_what_a_turn_left_open(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=1, searches=2)
        trajectory = play_turns(
            meta, codec, [f"<answer> {SEARCH}", "Paris</answer>", NOTHING], [Passage("7", "", "Paris</answer>")]
        )
        assert turn_ends(trajectory) == [["search", "invalid", "invalid"]]
        assert rewards(trajectory) == [0.0]

    def test_in_a_query_never_scores(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, ["<search><answer>Paris</search>", NOTHING])
        assert trajectory.episodes[0].turns[0].action == Action("search", "<answer>Paris")
        assert rewards(trajectory) == [0.0]

    def test_in_an_earlier_episode_scores_for_that_one_only(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, searches=0), codec, [PARIS, NOTHING])
        assert rewards(trajectory) == [1.0, 0.0]


class TestContextFull:
    def test_a_turn_that_the_window_cuts_ends_all(self, codec: PlainCodec) -> None:
        meta = begin(codec, window_tokens=OPENING_COST + 5)
        assert request(meta).max_tokens == 5
        meta.feed(write(codec, "a b c", "length"))
        trajectory = meta.trajectory()
        assert turn_ends(trajectory) == [["context_full"]]
        assert episode_ends(trajectory) == ["context_full"]
        assert trajectory.finish_reason == "context_full"
        assert trajectory.counters["context_full"] == 1
        assert trajectory.windows[0].trained == 5  # an unfinished episode trains

    def test_a_turn_that_its_own_limit_cuts_is_invalid_and_the_episode_goes_on(self, codec: PlainCodec) -> None:
        meta = begin(codec, turn_tokens=5, episodes=1)
        meta.feed(write(codec, "a b c", "length"))
        assert codec.decode(request(meta).ids).endswith("a b c\nNeither.\n\nLast call.\n")
        meta.feed(write(codec, "a b c", "length"))
        trajectory = meta.trajectory()
        assert turn_ends(trajectory) == [["length", "length"]]
        assert episode_ends(trajectory) == ["no_answer"]
        assert trajectory.counters["length_turns"] == 2
        assert trajectory.counters["invalid_turns"] == 0

    def test_a_turn_whose_action_ends_exactly_at_its_limit_counts(self, codec: PlainCodec) -> None:
        meta = begin(codec, turn_tokens=TURN_COST, episodes=1)
        meta.feed(write(codec, PARIS, "length"))
        assert turn_ends(meta.trajectory()) == [["answer"]]
        assert meta.trajectory().counters["length_turns"] == 0

    def test_an_answer_that_just_fits_scores_though_nothing_can_follow(self, codec: PlainCodec) -> None:
        meta = begin(codec, window_tokens=OPENING_COST + TURN_COST)
        meta.feed(write(codec, PARIS))
        trajectory = meta.trajectory()
        assert episode_ends(trajectory) == ["answer"]
        assert trajectory.finish_reason == "context_full"
        assert rewards(trajectory) == [1.0]
        assert trajectory.counters["context_full"] == 1

    def test_the_last_episode_needs_no_room_behind_its_answer(self, codec: PlainCodec) -> None:
        meta = begin(codec, window_tokens=OPENING_COST + TURN_COST, episodes=1)
        meta.feed(write(codec, PARIS))
        assert meta.trajectory().finish_reason == "complete"

    @pytest.mark.parametrize(("spare", "fits"), [(0, False), (1, True)])
    def test_an_observation_needs_room_for_itself_and_one_token(
        self, codec: PlainCodec, spare: int, fits: bool
    ) -> None:
        meta = begin(codec, searches=2, window_tokens=OPENING_COST + TURN_COST + OBSERVATION_COST + spare)
        meta.feed(write(codec, SEARCH))
        meta.feed(FOUND)
        if fits:
            assert request(meta).max_tokens == 1
            meta.feed(write(codec, "a", "length"))
        trajectory = meta.trajectory()
        assert turn_ends(trajectory) == [["search", "context_full"] if fits else ["search"]]
        assert episode_ends(trajectory) == ["context_full"]
        assert trajectory.finish_reason == "context_full"
        # what the policy never saw is not recorded as brought
        assert trajectory.episodes[0].turns[0].passages == (FOUND if fits else None)
        assert trajectory.counters["searches"] == fits

    @pytest.mark.parametrize(("spare", "fits"), [(0, False), (1, True)])
    def test_the_prompt_between_episodes_needs_room_for_itself_and_one_token(
        self, codec: PlainCodec, spare: int, fits: bool
    ) -> None:
        meta = begin(codec, window_tokens=OPENING_COST + TURN_COST + BETWEEN_COST + spare)
        meta.feed(write(codec, PARIS))
        if fits:
            meta.feed(write(codec, "a", "length"))
        trajectory = meta.trajectory()
        assert episode_ends(trajectory) == (["answer", "context_full"] if fits else ["answer"])
        assert trajectory.finish_reason == "context_full"
        assert trajectory.episodes[0].answer == "Paris"

    def test_a_notice_without_room_ends_all(self, codec: PlainCodec) -> None:
        meta = begin(codec, searches=2, window_tokens=OPENING_COST + 1 + NOTICE_COST)
        meta.feed(write(codec, NOTHING))
        assert turn_ends(meta.trajectory()) == [["invalid"]]
        assert episode_ends(meta.trajectory()) == ["context_full"]

    def test_a_question_longer_than_the_window_is_an_episode_without_turns(self, codec: PlainCodec) -> None:
        meta = begin(codec, window_tokens=OPENING_COST)
        assert meta.need is None
        trajectory = meta.trajectory()
        assert turn_ends(trajectory) == [[]]
        assert episode_ends(trajectory) == ["context_full"]
        assert trajectory.finish_reason == "context_full"
        assert rewards(trajectory) == [0.0]
        assert sum(len(window) for window in trajectory.windows) == 0

    def test_it_is_not_full_after_a_turn_of_the_last_episode_that_filled_it_with_an_answer(
        self, codec: PlainCodec
    ) -> None:
        meta = begin(codec, episodes=1, window_tokens=OPENING_COST + TURN_COST)
        meta.feed(write(codec, PARIS, "length"))
        assert meta.trajectory().finish_reason == "complete"
        assert meta.trajectory().counters["context_full"] == 0


class TestOtherEndings:
    def test_a_failed_search_ends_episode_and_meta_episode(self, codec: PlainCodec) -> None:
        meta = begin(codec)
        meta.feed(write(codec, PARIS))
        meta.feed(write(codec, SEARCH))
        meta.fail_search()
        trajectory = meta.trajectory()
        assert meta.need is None
        assert episode_ends(trajectory) == ["answer", "retrieval_failed"]
        assert trajectory.finish_reason == "retrieval_failed"
        assert trajectory.episodes[1].turns[0].passages is None
        assert trajectory.counters["retrieval_failed"] == 1
        assert trajectory.counters["searches"] == 0

    def test_it_stops_at_an_answer_that_stands(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=4, searches=0, stop_when_stable=True)
        trajectory = play_turns(meta, codec, [ROME, PARIS, "<answer>the PARIS!</answer>"])
        assert trajectory.finish_reason == "stopped"
        assert episode_ends(trajectory) == ["answer", "answer", "answer"]

    def test_it_plays_on_where_the_plan_does_not_stop(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=3, searches=0), codec, [PARIS, PARIS, PARIS])
        assert trajectory.finish_reason == "complete"
        assert len(trajectory.episodes) == 3

    def test_an_answer_of_an_article_alone_can_stand_as_it_can_score(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=3, searches=0, stop_when_stable=True)
        assert play_turns(meta, codec, ["<answer>A</answer>", "<answer>a</answer>"]).finish_reason == "stopped"

    @pytest.mark.parametrize("nothing", ["<answer></answer>", "<answer>  </answer>", NOTHING])
    def test_answers_that_say_nothing_never_stand(self, codec: PlainCodec, nothing: str) -> None:
        meta = begin(codec, episodes=3, searches=0, stop_when_stable=True)
        trajectory = play_turns(meta, codec, [nothing, nothing, nothing])
        assert trajectory.finish_reason == "complete"

    def test_equal_answers_with_another_between_do_not_stand(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=3, searches=0, stop_when_stable=True)
        assert play_turns(meta, codec, [PARIS, ROME, PARIS]).finish_reason == "complete"

    def test_an_answer_that_stands_in_the_last_episode_is_complete(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=2, searches=0, stop_when_stable=True)
        assert play_turns(meta, codec, [PARIS, PARIS]).finish_reason == "complete"

    def test_each_episode_opens_with_its_own_prompt(self, codec: PlainCodec) -> None:
        meta = begin(
            codec, episodes=4, searches=0, openings=("explore", "reflection"), prompts=replace(PROMPTS, last_call="")
        )
        trajectory = play_turns(meta, codec, ["a", "b", "c", "d"])
        assert codec.decode(trajectory.windows[0].ids) == (
            "[message]Q: Where?\n[reply]a"
            "[end][message]Elsewhere.\n[reply]b[end][message]Again.\n[reply]c[end][message]Again.\n[reply]d"
        )
        assert [episode.number for episode in trajectory.episodes] == [1, 2, 3, 4]

    def test_no_prompt_tells_whether_an_answer_was_right(self, codec: PlainCodec) -> None:
        right, wrong = (
            play_turns(begin(codec, searches=0), codec, [answer, NOTHING]).windows[0].ids for answer in (PARIS, ROME)
        )
        paris, rome = codec.token("Paris"), codec.token("Rome")
        assert [rome if token == paris else token for token in right] == wrong


class TestTokens:
    def test_a_completion_past_its_closing_tag_is_cut_there_and_counted(self, codec: PlainCodec) -> None:
        text = f"<think>t</think>{SEARCH}"
        meta = begin(codec, episodes=1)
        meta.feed(write(codec, f"{text} and {PARIS}", "end"))
        trajectory = play_turns(meta, codec, [PARIS], FOUND)
        turn = trajectory.episodes[0].turns[0]
        assert turn.text == text
        assert turn.action == Action("search", "where")
        assert not turn.format_valid
        # three more: space, and, space; then the answer
        assert trajectory.counters["tokens_after_stop"] == 3 + TURN_COST
        assert trained_ids(trajectory.windows) == codec.encode(text) + codec.encode(PARIS)

    def test_a_sampled_end_behind_the_closing_tag_is_cut_as_well(self, codec: PlainCodec) -> None:
        meta = begin(codec)
        meta.feed(completion([*codec.encode(PARIS), END], "end"))
        window = request(meta).ids
        assert window[OPENING_COST + TURN_COST - 1 :][:3] == [codec.token(">"), END, MESSAGE]  # one end, the codec's
        trajectory = play_turns(meta, codec, [PARIS])
        assert END not in trained_ids(trajectory.windows)
        assert trajectory.counters["tokens_after_stop"] == 1

    def test_text_that_shares_the_tags_last_token_is_kept_but_not_read(self, codec: PlainCodec) -> None:
        ids = [*codec.encode("<think>t</think><search>where</search"), codec.token("><answer>Paris</answer>")]
        meta = begin(codec, episodes=1)
        meta.feed(completion(ids))
        assert meta.need == Search("where", 3)
        trajectory = play_turns(meta, codec, [NOTHING], FOUND)
        turn = trajectory.episodes[0].turns[0]
        assert turn.text == f"<think>t</think>{SEARCH}{PARIS}"
        assert not turn.format_valid
        assert rewards(trajectory) == [0.0]
        assert trained_ids(trajectory.windows) == [*ids, codec.token("hm")]
        assert trajectory.counters["tokens_after_stop"] == 0

    def test_a_line_break_that_shares_the_tags_last_token_leaves_the_format_valid(self, codec: PlainCodec) -> None:
        meta = begin(codec, episodes=1)
        meta.feed(completion([*codec.encode("<think>t</think><answer>Paris</answer"), codec.token(">\n\n")]))
        assert meta.trajectory().episodes[0].turns[0].format_valid
        assert meta.trajectory().counters["valid_turns"] == 1

    def test_what_follows_the_token_that_completes_the_tag_is_cut(self, codec: PlainCodec) -> None:
        kept = [*codec.encode("<answer>Paris</answer"), codec.token("> So")]
        meta = begin(codec, episodes=1)
        meta.feed(completion([*kept, *codec.encode(" it is")]))
        assert trained_ids(meta.trajectory().windows) == kept
        assert meta.trajectory().counters["tokens_after_stop"] == 4

    def test_a_tag_in_an_unusual_split_is_trained_as_it_was_sampled(self, codec: PlainCodec) -> None:
        ids = [codec.token(piece) for piece in ("<sea", "rch>", "where</", "sea", "rch", ">")]
        meta = begin(codec)
        meta.feed(completion(ids))
        assert meta.need == Search("where", 3)
        meta.feed(FOUND)
        assert ids != codec.encode(SEARCH)
        assert list(request(meta).ids[OPENING_COST : OPENING_COST + 6]) == ids
        trajectory = play_turns(meta, codec, [PARIS, PARIS])
        assert trained_ids(trajectory.windows)[:6] == ids

    def test_a_completion_beyond_its_limit_is_cut_and_counted(self, codec: PlainCodec) -> None:
        meta = begin(codec, turn_tokens=5, episodes=1, searches=0)
        meta.feed(write(codec, "a b c d"))  # seven tokens
        trajectory = meta.trajectory()
        assert turn_ends(trajectory) == [["length"]]
        assert trained_ids(trajectory.windows) == codec.encode("a b c")
        assert trajectory.counters["tokens_over_limit"] == 2

    @pytest.mark.parametrize(("ids", "end"), [([], "stop"), ([], "end"), ([], "length"), ([END], "end")])
    def test_an_empty_completion_is_an_invalid_turn(self, codec: PlainCodec, ids: list[int], end: Any) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, [completion(ids, end), PARIS])
        first = trajectory.episodes[0].turns[0]
        assert first.action == Action("invalid")
        assert first.finish_reason in ("invalid", "length")
        assert (first.start, first.end) == (OPENING_COST, OPENING_COST + len(ids))
        assert episode_ends(trajectory) == ["answer"]
        assert trajectory.counters["empty_turns"] == 1

    def test_episodes_of_empty_completions_alone_come_to_an_end(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec), codec, [completion([])] * 4)
        assert episode_ends(trajectory) == ["no_answer", "no_answer"]
        assert trajectory.windows[0].trained == 0

    def test_a_sampled_end_is_trained_and_opens_a_message_for_what_follows(self, codec: PlainCodec) -> None:
        meta = begin(codec, prompts=replace(PROMPTS, last_call=""))
        meta.feed(completion([codec.token("hm"), END], "end"))
        assert codec.decode(request(meta).ids) == "[message]Q: Where?\n[reply]hm[end][message]\nNeither.\n[reply]"
        trajectory = play_turns(meta, codec, [PARIS, PARIS])
        window = trajectory.windows[0]
        assert window.loss_mask[OPENING_COST : OPENING_COST + 3] == [1, 1, 0]
        assert window.logprobs[OPENING_COST : OPENING_COST + 3] == [-1.0, -2.0, 0.0]

    def test_an_end_within_the_token_limit_of_a_search_does_not_reach_the_observation(self, codec: PlainCodec) -> None:
        # The turn before ended itself; this one stops at its tag, so its passages stand inside it.
        meta = begin(codec, searches=2)
        meta.feed(completion([END], "end"))
        meta.feed(write(codec, SEARCH))
        meta.feed(FOUND)
        assert codec.decode(request(meta).ids).endswith(
            "</search>\n\n<information>\na b\n</information>\n\n\nLast call.\n"
        )

    @pytest.mark.parametrize("context", ["full", "last"])
    def test_a_sampled_end_is_not_repeated_between_episodes(self, codec: PlainCodec, context: Any) -> None:
        meta = begin(codec, searches=0, context=context)
        meta.feed(completion([codec.token("hm"), END], "end"))
        ids = request(meta).ids
        assert codec.decode(ids).endswith("hm[end][message]Again.\n\nLast call.\n[reply]")
        trajectory = play_turns(meta, codec, [PARIS])
        assert trained_ids(trajectory.windows) == [codec.token("hm"), END, *codec.encode(PARIS)]

    def test_an_end_that_the_codec_adds_is_not_trained(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, searches=0), codec, [PARIS, PARIS])
        window = trajectory.windows[0]
        added = window.ids.index(END)
        assert (window.loss_mask[added], window.logprobs[added]) == (0, 0.0)

    def test_a_reflection_prompt_belongs_to_the_episode_that_it_opens(self, codec: PlainCodec) -> None:
        window = play_turns(
            begin(codec, searches=0, prompts=replace(PROMPTS, last_call="")), codec, [PARIS, ROME]
        ).windows[0]
        first = OPENING_COST + TURN_COST
        assert window.episode_ids == [1] * first + [2] * (BETWEEN_COST + TURN_COST)
        assert window.loss_mask == [0] * 8 + [1] * 8 + [0] * 6 + [1] * 8

    def test_turns_say_where_their_ids_stand(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, episodes=1), codec, [SEARCH, PARIS], FOUND)
        for turn, text in zip(trajectory.episodes[0].turns, (SEARCH, PARIS), strict=True):
            assert codec.decode(trajectory.windows[turn.window].ids[turn.start : turn.end]) == text == turn.text

    def test_valid_turns_are_counted(self, codec: PlainCodec) -> None:
        turns = [f"<think>t</think>{SEARCH}", f"<think>t</think>{PARIS}", PARIS]
        trajectory = play_turns(begin(codec), codec, turns, FOUND)
        assert (trajectory.counters["turns"], trajectory.counters["valid_turns"]) == (3, 2)


class TestShortContext:
    def test_a_window_holds_question_last_episode_and_prompt(self, codec: PlainCodec) -> None:
        meta = begin(codec, context="last", episodes=3, prompts=replace(PROMPTS, last_call=""))
        meta.feed(write(codec, SEARCH))
        meta.feed(FOUND)
        meta.feed(write(codec, ROME))
        assert codec.decode(request(meta).ids) == (
            "[message]Q: Where?\n[reply]"
            "<search>where</search>\n\n<information>\na b\n</information>\n\n<answer>Rome</answer>"
            "[end][message]Again.\n[reply]"
        )
        meta.feed(write(codec, PARIS))
        # Of the second episode its own turns alone: neither the first episode nor the prompt in front of it.
        third = "[message]Q: Where?\n[reply]<answer>Paris</answer>[end][message]Again.\n[reply]"
        assert codec.decode(request(meta).ids) == third
        meta.feed(write(codec, PARIS))
        trajectory = meta.trajectory()
        assert len(trajectory.windows) == 3
        assert [episode.turns[0].window for episode in trajectory.episodes] == [0, 1, 2]

    def test_a_copied_episode_is_context_and_not_trained_again(self, codec: PlainCodec) -> None:
        trajectory = play_turns(begin(codec, searches=0, context="last"), codec, [ROME, PARIS])
        first, second = trajectory.windows
        assert (first.trained, second.trained) == (TURN_COST, TURN_COST)
        assert second.ids[OPENING_COST : OPENING_COST + TURN_COST] == codec.encode(ROME)
        assert second.loss_mask[:-TURN_COST] == [0] * (len(second) - TURN_COST)
        assert second.logprobs[:-TURN_COST] == [0.0] * (len(second) - TURN_COST)
        assert second.episode_ids[OPENING_COST + TURN_COST - 1 :][:2] == [1, 2]

    def test_a_copied_episode_keeps_the_ids_that_were_sampled(self, codec: PlainCodec) -> None:
        ids = [codec.token(piece) for piece in ("<ans", "wer>Pa", "ris</", "answer", ">")]
        meta = begin(codec, searches=0, context="last")
        meta.feed(completion(ids))
        assert list(request(meta).ids[-len(ids) - 12 :])[: len(ids)] == ids  # in front of the prompt, 6 + 6 tokens

    def test_each_episode_is_a_new_window_that_begins_anew(self, codec: PlainCodec) -> None:
        meta = begin(codec, searches=0, context="last")
        assert (request(meta).window, request(meta).new_from) == ((0, 0, 0), 0)
        meta.feed(write(codec, PARIS))
        assert (request(meta).window, request(meta).new_from) == ((0, 0, 1), 0)

    def test_all_windows_are_of_one_group_member(self, codec: PlainCodec) -> None:
        plan = Plan(episodes=3, searches=0, context="last")
        meta = MetaEpisode(QUESTION, plan, codec, PROMPTS, group=4, member=2)
        named = []
        while meta.need is not None:
            named.append(request(meta).window)
            meta.feed(write(codec, PARIS))
        assert named == [(4, 2, 0), (4, 2, 1), (4, 2, 2)]
        trajectory = meta.trajectory()
        assert (trajectory.group, trajectory.member, len(trajectory.windows)) == (4, 2, 3)

    def test_a_window_that_the_next_episode_does_not_fit_is_not_opened(self, codec: PlainCodec) -> None:
        room = OPENING_COST + TURN_COST + BETWEEN_COST
        meta = begin(codec, context="last", prompts=replace(PROMPTS, last_call=""), window_tokens=room)
        meta.feed(write(codec, PARIS))
        trajectory = meta.trajectory()
        assert trajectory.finish_reason == "context_full"
        assert episode_ends(trajectory) == ["answer"]
        assert len(trajectory.windows) == 1

    def test_it_goes_on_where_one_full_window_would_be_full(self, codec: PlainCodec) -> None:
        room = OPENING_COST + TURN_COST + BETWEEN_COST + TURN_COST
        plan: dict[str, Any] = {"episodes": 5, "window_tokens": room, "prompts": replace(PROMPTS, last_call="")}
        short = play_turns(begin(codec, context="last", **plan), codec, [PARIS] * 5)
        full = play_turns(begin(codec, **plan), codec, [PARIS] * 2)
        assert (short.finish_reason, len(short.episodes)) == ("complete", 5)
        assert (full.finish_reason, len(full.episodes)) == ("context_full", 2)


class TestSeeds:
    def seeds(self, codec: PlainCodec, **machine: Any) -> list[int]:
        meta = MetaEpisode(QUESTION, Plan(episodes=2, searches=1), codec, PROMPTS, **machine)
        seeds = []
        while meta.need is not None:
            seeds.append(request(meta).seed)
            meta.feed(write(codec, NOTHING))
        return seeds

    def test_equal_places_have_equal_seeds(self, codec: PlainCodec) -> None:
        place = {"group": 3, "member": 2, "seed": (7, 5)}
        assert self.seeds(codec, **place) == self.seeds(PlainCodec(PROMPTS), **place)

    def test_no_two_turns_members_groups_steps_or_runs_share_a_seed(self, codec: PlainCodec) -> None:
        seeds = [
            seed
            for run in range(3)
            for step in range(3)
            for group in range(3)
            for member in range(3)
            for seed in self.seeds(codec, group=group, member=member, seed=(run, step))
        ]
        assert len(set(seeds)) == len(seeds) == 3**4 * 4  # four turns each

    @given(parts=st.lists(st.integers(), max_size=6), others=st.lists(st.integers(), max_size=6))
    def test_a_derived_seed_depends_on_every_part_and_fits_63_bits(self, parts: list[int], others: list[int]) -> None:
        assert 0 <= derive_seed(*parts) < 2**63
        assert (derive_seed(*parts) == derive_seed(*others)) == (parts == others)


class TestMisuse:
    def test_passages_are_refused_where_a_completion_is_needed(self, codec: PlainCodec) -> None:
        with pytest.raises(AssertionError, match="passages were fed but Generate"):
            begin(codec).feed(FOUND)

    def test_a_completion_is_refused_where_passages_are_needed(self, codec: PlainCodec) -> None:
        meta = begin(codec)
        meta.feed(write(codec, SEARCH))
        with pytest.raises(AssertionError, match="a completion was fed but Search"):
            meta.feed(write(codec, PARIS))

    def test_a_trajectory_is_refused_before_the_end(self, codec: PlainCodec) -> None:
        with pytest.raises(AssertionError, match="not done yet"):
            begin(codec).trajectory()

    def test_log_probabilities_must_come_with_every_id(self, codec: PlainCodec) -> None:
        with pytest.raises(AssertionError, match="1 sampled ids but 0 log-probabilities"):
            begin(codec).feed(Completion([END], [], "end"))


# -- at random --------------------------------------------------------------------------------

THOUGHT = ["<", "think", ">", "t", "<", "/", "think", ">"]
ACTIONS = [
    ["<", "search", ">", "where", "<", "/", "search", ">"],
    ["<sea", "rch>where", "</sea", "rch", ">"],
    ["<", "answer", ">", "Paris", "<", "/", "answer", ">"],
    ["<", "answer", ">", "paris", "<", "/answer>"],
]
LOOSE = [
    ["<", "search", ">", " ", "<", "/", "search", ">"],
    ["<", "answer", ">", "<", "/", "answer", ">"],
    ["<", "/", "answer", "> and more"],
    ["<", "search", ">", "where", "<", "/", "search", "><answer>Paris</answer>"],
    ["<information>", "<answer>Paris", "</information>"],
    ["<", "search", ">"],
    ["hm"],
    ["\n\n"],
]
PROPER = st.sampled_from([*ACTIONS, *([*THOUGHT, *action] for action in ACTIONS)])
TURNS = st.one_of(
    PROPER,
    PROPER,
    st.lists(st.sampled_from([THOUGHT, *ACTIONS, *LOOSE]), max_size=4).map(lambda parts: [*chain(*parts)]),
)
"""The tokens of a turn: what the protocol asks for, or anything in any order."""


class KeepingCodec(PlainCodec):
    """A codec that remembers what it was asked to place, and whether it was told of a sampled end."""

    def __init__(self, prompts: Prompts) -> None:
        super().__init__(prompts)
        self.observed: list[Observation] = []
        self.told: list[bool] = []

    def observation(
        self, passages: Sequence[Passage], limit: int, *, note: str = "", after_end: bool = False
    ) -> Observation:
        self.told.append(after_end)
        self.observed.append(super().observation(passages, limit, note=note, after_end=after_end))
        return self.observed[-1]

    def notice(self, text: str, *, after_end: bool = False) -> list[int]:
        self.told.append(after_end)
        return super().notice(text, after_end=after_end)

    def between_episodes(self, prompt: str, *, after_end: bool = False) -> list[int]:
        self.told.append(after_end)
        return super().between_episodes(prompt, after_end=after_end)


@dataclass
class Written:
    """A request as it was when it was made, and the completion that it got."""

    window: tuple[int, ...]
    ids: list[int]
    new_from: int
    max_tokens: int
    completion: Completion
    kept: list[int] = field(default_factory=list)


@dataclass
class Play:
    """A random plan played with random completions and passages."""

    plan: Plan
    codec: KeepingCodec
    written: list[Written]
    failed: bool
    trajectory: Trajectory

    @property
    def turns(self) -> list[Any]:
        return [turn for episode in self.trajectory.episodes for turn in episode.turns]


def kept_of(codec: PlainCodec, ids: Sequence[int], max_tokens: int) -> list[int]:
    """What a turn keeps, one token at a time: up to the limit or the token that completes a closing tag."""
    kept: list[int] = []
    for token in ids[:max_tokens]:
        kept.append(token)
        if first_stop_end(codec.decode(kept)) is not None:
            break
    return kept


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return Plan(
        episodes=draw(st.integers(1, 4)),
        searches=draw(st.integers(0, 3)),
        top_k=draw(st.integers(1, 3)),
        turn_tokens=draw(st.sampled_from([40, 40, 16, 16, 8, 1])),
        observation_tokens=draw(st.integers(14, 40)),
        window_tokens=draw(st.sampled_from([400, 400, 400, 120, 120, 60, 40, OPENING_COST + 1, OPENING_COST])),
        context=draw(st.sampled_from(["full", "last"])),
        openings=tuple(draw(st.lists(st.sampled_from(["reflection", "explore"]), min_size=1, max_size=2))),
        stop_when_stable=draw(st.booleans()),
    )


@st.composite
def completions(draw: st.DrawFn, codec: PlainCodec, max_tokens: int) -> Completion:
    """Valid and invalid turns, cut and empty ones, with text and end tokens anywhere; some ignore their limit."""
    ids = [codec.token(piece) for piece in draw(TURNS)]
    before, after = draw(st.sampled_from([(0, 0), (0, 0), (0, 0), (0, 1), (1, 1)]))
    ids = [*[END] * before, *ids, *[END] * after]
    honoured = draw(st.booleans())
    cut = honoured and len(ids) > max_tokens
    ids = ids[:max_tokens] if honoured else ids
    ends: list[CompletionEnd] = ["length"] if cut else ["stop", "stop", "end", "length"]
    logprobs = draw(st.lists(st.floats(-20, 0), min_size=len(ids), max_size=len(ids)))
    return Completion(ids, logprobs, draw(st.sampled_from(ends)))


@st.composite
def plays(draw: st.DrawFn) -> Play:
    plan, codec = draw(plans()), KeepingCodec(PROMPTS)
    passages = st.builds(
        Passage, st.just("7"), st.just(""), st.sampled_from(["", "a b", f"x {PARIS} y", "[end] a b c d e f g h i j"])
    )
    meta = MetaEpisode(QUESTION, plan, codec, PROMPTS)
    written: list[Written] = []
    failed = False
    while meta.need is not None:
        need = meta.need
        if isinstance(need, Generate):
            reply = draw(completions(codec, need.max_tokens))
            kept = kept_of(codec, reply.ids, need.max_tokens)
            written.append(Written(need.window, list(need.ids), need.new_from, need.max_tokens, reply, kept))
            meta.feed(reply)
        elif draw(st.sampled_from([False] * 7 + [True])):
            failed = True
            meta.fail_search()
        else:
            meta.feed(draw(st.lists(passages, max_size=need.top_k)))
    return Play(plan, codec, written, failed, meta.trajectory())


class TestInvariants:
    @given(play=plays())
    def test_the_sampled_ids_are_trained_in_order_and_exactly_once(self, play: Play) -> None:
        sampled = [token for written in play.written for token in written.kept]
        assert trained_ids(play.trajectory.windows) == sampled

    @given(play=plays())
    def test_their_log_probabilities_are_those_that_came_with_them(self, play: Play) -> None:
        given_ones = [value for w in play.written for value in w.completion.logprobs[: len(w.kept)]]
        windows = play.trajectory.windows
        assert [
            value for w in windows for value, mask in zip(w.logprobs, w.loss_mask, strict=True) if mask
        ] == given_ones
        assert all(
            value == 0.0 for w in windows for value, mask in zip(w.logprobs, w.loss_mask, strict=True) if not mask
        )

    @given(play=plays())
    def test_the_four_lists_of_a_window_have_one_length_within_the_limit(self, play: Play) -> None:
        for window in play.trajectory.windows:
            lengths = {len(window.ids), len(window.loss_mask), len(window.episode_ids), len(window.logprobs)}
            assert lengths == {len(window)}
            assert len(window) <= play.plan.window_tokens

    @given(play=plays())
    def test_a_context_is_a_strict_prefix_of_the_next_one_of_its_window(self, play: Play) -> None:
        last: dict[tuple[int, ...], Written] = {}
        for written in play.written:
            before = last.get(written.window)
            if before is None:
                assert written.new_from == 0
            else:
                seen = [*before.ids, *before.kept]
                assert written.ids[: len(seen)] == seen
                assert len(written.ids) > len(seen)
                assert written.new_from == len(before.ids)
            last[written.window] = written
        for name, written in last.items():
            final = play.trajectory.windows[name[-1]].ids
            assert final[: len(written.ids) + len(written.kept)] == [*written.ids, *written.kept]

    @given(play=plays())
    def test_a_turn_may_use_what_is_left_and_at_least_one_token(self, play: Play) -> None:
        for written in play.written:
            left = play.plan.window_tokens - len(written.ids)
            assert written.max_tokens == min(play.plan.turn_tokens, left)
            assert written.max_tokens >= 1

    @given(play=plays())
    def test_a_turns_place_holds_its_sampled_ids_in_its_own_episode(self, play: Play) -> None:
        episodes = [episode.number for episode in play.trajectory.episodes for _ in episode.turns]
        for turn, written, episode in zip(play.turns, play.written, episodes, strict=True):
            window = play.trajectory.windows[turn.window]
            assert window.ids[turn.start : turn.end] == written.kept
            assert set(window.loss_mask[turn.start : turn.end]) <= {1}
            assert set(window.episode_ids[turn.start : turn.end]) <= {episode}
            assert turn.text == play.codec.decode(written.kept)

    @given(play=plays())
    def test_everything_that_was_cut_is_counted(self, play: Play) -> None:
        counters = play.trajectory.counters
        over = sum(max(0, len(w.completion.ids) - w.max_tokens) for w in play.written)
        removed = sum(len(w.completion.ids) - len(w.kept) for w in play.written)
        assert counters["tokens_over_limit"] == over
        assert counters["tokens_after_stop"] == removed - over
        assert counters["cut_passages"] == sum(observed.cut_passages for observed in play.codec.observed)
        assert counters["cut_passage_tokens"] == sum(observed.cut_tokens for observed in play.codec.observed)
        assert counters["context_full"] == (play.trajectory.finish_reason == "context_full")
        assert counters["retrieval_failed"] == play.failed

    @given(play=plays())
    def test_every_turn_is_counted_by_how_it_ended(self, play: Play) -> None:
        counters, turns = play.trajectory.counters, play.turns
        assert counters["turns"] == len(turns) == len(play.written)
        assert counters["valid_turns"] == sum(turn.format_valid for turn in turns)
        assert counters["length_turns"] == sum(turn.finish_reason == "length" for turn in turns)
        assert counters["invalid_turns"] == sum(turn.finish_reason == "invalid" for turn in turns)
        assert counters["blank_answers"] == sum(turn.action == Action("answer", "") for turn in turns)
        assert counters["searches"] == sum(episode.searches for episode in play.trajectory.episodes)
        cut = sum(
            len(w.kept) < len(w.completion.ids) and turn.format_valid
            for w, turn in zip(play.written, turns, strict=True)
        )
        assert cut == 0  # a turn that was cut has no valid format

    @given(play=plays())
    def test_what_follows_a_sampled_end_is_told_so(self, play: Play) -> None:
        ended = [bool(w.kept) and w.kept[-1] == END for w in play.written]
        # Each turn is followed by at most one text of the environment; the last one and a failed search by none.
        assert play.codec.told == ended[: len(play.codec.told)]
        assert len(ended) - len(play.codec.told) <= 1

    @given(play=plays())
    def test_endings_are_those_of_the_protocol(self, play: Play) -> None:
        plan, trajectory = play.plan, play.trajectory
        for episode in trajectory.episodes:
            assert episode.number == trajectory.episodes.index(episode) + 1
            assert len(episode.turns) <= plan.searches + 1
            assert episode.searches <= plan.searches
            self.check_episode(episode, plan)
        *earlier, last = trajectory.episodes
        assert all(episode.finish_reason in ("answer", "no_answer") for episode in earlier)
        match trajectory.finish_reason:
            case "complete":
                assert len(trajectory.episodes) == plan.episodes
                assert last.finish_reason in ("answer", "no_answer")
            case "stopped":
                assert plan.stop_when_stable
                assert len(trajectory.episodes) < plan.episodes
                assert normalize(last.answer or "") == normalize(earlier[-1].answer or "") != ""
            case "context_full":
                assert last.finish_reason == "context_full" or len(trajectory.episodes) < plan.episodes
                assert last.finish_reason != "retrieval_failed"
            case "retrieval_failed":
                assert play.failed
                assert last.finish_reason == "retrieval_failed"

    @staticmethod
    def check_episode(episode: Episode, plan: Plan) -> None:
        ends = [turn.finish_reason for turn in episode.turns]
        last = ends[-1] if ends else None
        assert not {"answer", "context_full"} & set(ends[:-1])
        assert (episode.answer is not None) == (episode.finish_reason == "answer") == (last == "answer")
        if episode.finish_reason == "no_answer":
            assert len(episode.turns) == plan.searches + 1
            assert last != "context_full"
        if episode.finish_reason == "retrieval_failed":
            assert last == "search"

    @given(play=plays())
    def test_answers_are_read_from_the_policys_own_text(self, play: Play) -> None:
        for episode in play.trajectory.episodes:
            if episode.answer is not None:
                text = episode.turns[-1].text
                assert parse_action(text[: first_stop_end(text)]) == Action("answer", episode.answer)

    @given(play=plays())
    def test_no_text_of_others_becomes_a_control_token(self, play: Play) -> None:
        for window in play.trajectory.windows:
            placed = [token for token, mask in zip(window.ids, window.loss_mask, strict=True) if not mask]
            # Every message that was opened is handed over to the policy; copied turns hold none of either.
            assert placed.count(MESSAGE) == placed.count(REPLY)

    @given(play=plays())
    def test_a_record_of_it_can_be_read_back(self, play: Play) -> None:
        assert Trajectory.from_record(play.trajectory.to_record()) == play.trajectory
