"""Scores over episodes, on meta-episodes small enough to count by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.meta_episode import MetaEpisode
from mrsearch.core.plan import Plan
from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Action, Episode, MetaEnd, Passage, Question, Trajectory, Turn, Window
from mrsearch.evaluate.scores import COUNTED, score, summarize
from plain_codec import PlainCodec, play_turns

QUESTION = Question("1", "Where?", ("Paris",))
RIGHT, WRONG = "Paris", "Rome"


def answered(answers: Sequence[str | None], ended: MetaEnd = "complete") -> Trajectory:
    """A meta-episode of one turn of five tokens an episode, which gives an answer or does not."""
    episodes = [
        Episode(
            number,
            [Turn("", Action("invalid"), "invalid", False, 0, 5 * number, 5 * number + 5)],
            "no_answer" if answer is None else "answer",
            answer,
        )
        for number, answer in enumerate(answers, start=1)
    ]
    return Trajectory(QUESTION, 0, 0, episodes, [Window()], ended)


def em(*trajectories: Trajectory) -> list[list[float]]:
    return [[float(value) for value in row] for row in score(trajectories, 3).em]


class TestExactMatchAtN:
    def test_is_that_of_each_episodes_own_answer(self) -> None:
        assert em(answered([WRONG, RIGHT, WRONG])) == [[0, 1, 0]]
        assert em(answered([None, "", RIGHT])) == [[0, 0, 1]]

    @pytest.mark.parametrize("ended", ["context_full", "retrieval_failed"])
    def test_counts_a_missing_episode_as_0(self, ended: MetaEnd) -> None:
        assert em(answered([RIGHT], ended)) == [[1, 0, 0]]

    def test_carries_an_answer_that_stood_to_the_missing_episodes(self) -> None:
        assert em(answered([RIGHT, RIGHT], "stopped")) == [[1, 1, 1]]
        assert em(answered([WRONG, WRONG], "stopped")) == [[0, 0, 0]]

    def test_is_a_mean_over_all_meta_episodes(self) -> None:
        values = summarize([answered([RIGHT], "context_full"), answered([WRONG, RIGHT, RIGHT])], 3)
        # First 1, 0; then missing and right; then missing and right.
        assert [values[f"em/{n}"] for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
        assert [values[f"answered/{n}"] for n in (1, 2, 3)] == [1.0, 0.5, 0.5]

    def test_f1_sees_a_part_of_an_answer(self) -> None:
        # "Paris France" shares one word of two with "Paris": 2 * 1 / (2 + 1)
        values = summarize([answered(["Paris France"])], 1)
        assert values["em/1"] == 0.0
        assert values["f1/1"] == pytest.approx(2 / 3)


class TestSuccessAtK:
    def test_is_whether_one_of_the_first_k_was_right(self) -> None:
        values = summarize([answered([WRONG, RIGHT, WRONG]), answered([RIGHT, WRONG, WRONG]), answered([WRONG] * 3)], 3)
        # after one episode the second alone, after two the first as well, never the third
        assert [values[f"success_at/{k}"] for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 2 / 3])

    def test_is_carried_over_missing_episodes(self) -> None:
        values = summarize([answered([RIGHT], "context_full")], 3)
        assert [values[f"success_at/{k}"] for k in (1, 2, 3)] == [1.0, 1.0, 1.0]


class TestTransitions:
    ROWS = (
        answered([WRONG, RIGHT, RIGHT]),
        answered([WRONG, WRONG, RIGHT]),
        answered([None, RIGHT, WRONG]),
        answered([RIGHT, WRONG, None]),
        answered([RIGHT, RIGHT, RIGHT]),
    )

    def test_wrong_to_right_is_a_share_of_those_that_were_wrong(self) -> None:
        values = summarize(self.ROWS, 3)
        # Wrong at first: the first three, of which two become right. Wrong at second: two, of which one becomes right.
        assert values["wrong_to_right/2"] == pytest.approx(2 / 3)
        assert values["wrong_to_right/3"] == pytest.approx(1 / 2)

    def test_right_to_wrong_is_a_share_of_those_that_were_right(self) -> None:
        values = summarize(self.ROWS, 3)
        # Right at first: the last two, one of which is lost. Right at second: three, of which one is lost.
        assert values["right_to_wrong/2"] == pytest.approx(1 / 2)
        assert values["right_to_wrong/3"] == pytest.approx(1 / 3)

    def test_of_none_is_0(self) -> None:
        values = summarize([answered([RIGHT, RIGHT])], 2)
        assert values["wrong_to_right/2"] == 0.0
        assert "wrong_to_right/1" not in values

    @given(
        answers=st.lists(
            st.lists(st.sampled_from([RIGHT, WRONG, None]), min_size=3, max_size=3), min_size=1, max_size=6
        )
    )
    def test_they_explain_the_change_of_exact_match(self, answers: list[list[str | None]]) -> None:
        values = summarize([answered(row) for row in answers], 3)
        for n in (2, 3):
            before = values[f"em/{n - 1}"]
            gained = (1 - before) * values[f"wrong_to_right/{n}"]
            lost = before * values[f"right_to_wrong/{n}"]
            assert values[f"em/{n}"] == pytest.approx(before + gained - lost)


class TestEffort:
    def test_searches_and_tokens_are_means_over_the_episodes_that_were_played(self) -> None:
        codec, plan = PlainCodec(), Plan(episodes=2, searches=1, window_tokens=4000)
        found = [Passage("7", "", "x")]
        two = play_turns(
            MetaEpisode(QUESTION, plan, codec, Prompts()),
            codec,
            ["<search>q</search>", "<answer>Rome</answer>", "<search>q</search>", "<search>q</search>"],
            found,
        )
        one = play_turns(MetaEpisode(QUESTION, plan, codec, Prompts()), codec, ["hm", "<answer>a</answer>", "hm", "hm"])
        one.episodes.pop()
        values = summarize([two, one], 2)
        # A turn in tags has eight tokens, "hm" one. First episodes: one search and 16, none and 9.
        assert (values["searches/1"], values["tokens/1"]) == (0.5, 12.5)
        # Second episodes: the first alone has one; its late search was not carried out, but its tokens were written.
        assert (values["searches/2"], values["tokens/2"]) == (1.0, 16.0)

    def test_played_says_which_episodes_took_place(self) -> None:
        scores = score([answered([RIGHT, RIGHT], "stopped"), answered([WRONG] * 3)], 3)
        assert scores.played.tolist() == [[1, 1, 0], [1, 1, 1]]
        assert scores.tokens.tolist() == [[5, 5, 0], [5, 5, 5]]

    def test_of_an_episode_that_nobody_played_is_0(self) -> None:
        values = summarize([answered([RIGHT], "context_full")], 2)
        assert (values["searches/2"], values["tokens/2"]) == (0.0, 0.0)


class TestCounters:
    def test_everything_that_was_cut_or_went_wrong_has_a_line(self) -> None:
        first, second = answered([RIGHT]), answered([WRONG])
        first.counters = Counter(turns=3, valid_turns=2, cut_passages=1)
        second.counters = Counter(turns=1, valid_turns=1, cut_passages=4, context_full=1)
        values = summarize([first, second], 1)
        assert {name for name in values if name.startswith("count/")} == {f"count/{name}" for name in COUNTED}
        assert values["count/cut_passages"] == 5
        assert values["count/context_full"] == 1
        assert values["format_valid"] == 3 / 4
        assert values["turns"] == 2.0  # of four, over two meta-episodes

    def test_what_the_machine_counts_is_reported(self) -> None:
        # Those that are no fault have a metric of their own: format_valid, turns, searches/n.
        codec = PlainCodec()
        plan = Plan(episodes=3, searches=1, window_tokens=4000, turn_tokens=20, observation_tokens=14)
        played = play_turns(
            MetaEpisode(QUESTION, plan, codec, Prompts()),
            codec,
            ["<search>q</search>", "<search>q</search>", "", "<answer></answer>", "hm", "a b c d e f g h i j k l"],
            [Passage("7", "", "x y z")],
        )
        assert set(played.counters) - {"turns", "valid_turns", "searches"} <= set(COUNTED)

    def test_of_no_meta_episodes_all_is_0(self) -> None:
        assert set(summarize([], 2).values()) == {0.0}


@given(
    answers=st.lists(
        st.tuples(
            st.lists(st.sampled_from([RIGHT, WRONG, "", None]), min_size=1, max_size=4),
            st.sampled_from(["complete", "stopped", "context_full", "retrieval_failed"]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_score_lies_between_0_and_1_and_success_never_falls(
    answers: list[tuple[list[str | None], MetaEnd]],
) -> None:
    trajectories = [answered(row, ended) for row, ended in answers]
    scores, values = score(trajectories, 4), summarize(trajectories, 4)
    for array in (scores.em, scores.f1, scores.answered):
        assert ((array >= 0) & (array <= 1)).all()
    assert (scores.em <= scores.f1).all()
    assert (scores.f1 <= scores.answered).all()
    successes = [values[f"success_at/{k}"] for k in range(1, 5)]
    assert successes == sorted(successes)
    assert all(values[f"em/{n}"] <= successes[n - 1] for n in range(1, 5))
    assert np.isfinite(list(values.values())).all()
