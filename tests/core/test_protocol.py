"""The tag protocol: which action a turn holds, whether its form is right, how a passage is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.core.protocol import (
    OBSERVATION_CLOSING,
    OBSERVATION_OPENING,
    STOP,
    Prompts,
    first_stop_end,
    parse_action,
    parse_turn,
    render_passage,
)
from mrsearch.core.rewards import exact_match
from mrsearch.core.types import Action, Passage

PIECES = st.lists(
    st.sampled_from(
        [
            *("<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>"),
            *("<information>", "</information>", "Paris", " ", "\n", "<", "/", ">", "</", "search>"),
        ]
    ),
    max_size=10,
).map("".join)


class TestAction:
    @pytest.mark.parametrize(
        ("text", "action"),
        [
            pytest.param("<search> who </search>", Action("search", "who"), id="search"),
            pytest.param("<answer>Ada\nLovelace</answer>", Action("answer", "Ada\nLovelace"), id="two lines"),
            pytest.param("so <answer>a</answer> or <answer>b</answer>", Action("answer", "a"), id="first of two"),
            pytest.param("<search>q</search><answer>a</answer>", Action("search", "q"), id="first of two kinds"),
            pytest.param("<think><answer>a</answer></think>", Action("answer", "a"), id="inside a thought"),
            pytest.param("</answer><answer>a</answer>", Action("answer", "a"), id="after a stray closing tag"),
            pytest.param("<answer><answer>a</answer>", Action("answer", "a"), id="the nearest opening tag"),
            pytest.param("<answer>a <search>q</search>", Action("search", "q"), id="after an open answer"),
            pytest.param("<answer>a <search> b</answer>", Action("answer", "a <search> b"), id="around an open search"),
            pytest.param("<answer></answer>", Action("answer", ""), id="an empty answer is an answer"),
            pytest.param("<answer> \n </answer>", Action("answer", ""), id="a blank answer is an answer"),
            pytest.param("<search>  </search>", Action("invalid"), id="a blank query is no action"),
            pytest.param("<search>q", Action("invalid"), id="no closing tag"),
            pytest.param("q</search>", Action("invalid"), id="no opening tag"),
            pytest.param("<search>q</answer>", Action("invalid"), id="tags of two kinds"),
            pytest.param("<Answer>a</Answer>", Action("invalid"), id="capitals"),
            pytest.param("<answer >a</answer>", Action("invalid"), id="a space in the tag"),
            pytest.param("<information>a</information>", Action("invalid"), id="not a tag of an action"),
            pytest.param("", Action("invalid"), id="nothing"),
        ],
    )
    def test_is_the_first_complete_pair_wherever_it_stands(self, text: str, action: Action) -> None:
        assert parse_action(text) == action

    def test_a_blank_first_query_is_not_passed_over_for_a_later_action(self) -> None:
        assert parse_action("<search> </search><answer>a</answer>") == Action("invalid")


class TestTurn:
    @pytest.mark.parametrize(
        ("text", "valid"),
        [
            ("<think>t</think><answer>a</answer>", True),
            ("\n<think> t </think>\n\n<search> q </search>\n", True),
            ("<answer>a</answer>", False),  # no thought
            ("<think>t</think>", False),  # no action
            ("<think>t</think><think>t</think><answer>a</answer>", False),
            ("<think>t</think> so <answer>a</answer>", False),
            ("so <think>t</think><answer>a</answer>", False),
            ("<think>t</think><answer>a</answer> done", False),
            ("<think>t</think><answer>a</answer><answer>a</answer>", False),
            ("<answer>a</answer><think>t</think>", False),
            ("<think>t<search></think><answer>a</answer>", False),
            ("<think>t</think><answer>a <search> b</answer>", False),
            ("<think>t</think><search> </search>", False),
            ("<information>i</information><think>t</think><answer>a</answer>", False),
        ],
    )
    def test_is_well_formed_with_one_thought_then_one_action_and_nothing_else(self, text: str, valid: bool) -> None:
        assert parse_turn(text).format_valid is valid

    def test_with_two_answers_counts_the_first_and_has_no_valid_format(self) -> None:
        turn = parse_turn("<think>t</think><answer>Paris</answer><answer>Rome</answer>")
        assert turn.action == Action("answer", "Paris")
        assert not turn.format_valid

    def test_that_was_cut_after_its_closing_tag_has_no_valid_format(self) -> None:
        turn = parse_turn("<think>t</think><answer>a</answer>", cut=True)
        assert turn.action == Action("answer", "a")
        assert not turn.format_valid

    def test_reads_nothing_behind_the_first_closing_tag(self) -> None:
        assert parse_turn("</search><answer>a</answer>").action == Action("invalid")
        assert parse_turn("<search> </search><answer>a</answer>").action == Action("invalid")

    @given(text=PIECES)
    def test_text_behind_the_first_closing_tag_never_changes_the_action(self, text: str) -> None:
        end = first_stop_end(text)
        assert parse_turn(text).action == parse_turn(text[:end]).action

    @given(text=PIECES)
    def test_a_well_formed_turn_has_an_action(self, text: str) -> None:
        turn = parse_turn(text)
        assert turn.action.kind != "invalid" or not turn.format_valid

    @given(text=PIECES)
    def test_an_action_is_text_of_the_turn_without_a_closing_tag(self, text: str) -> None:
        action = parse_turn(text).action
        assert action.text in text
        assert action.text == action.text.strip()
        assert first_stop_end(action.text) is None


class TestStop:
    def test_the_end_of_the_first_closing_tag(self) -> None:
        # a</search> has 1 + 9 characters
        assert first_stop_end("a</search></answer>") == 10
        assert first_stop_end("<search><answer></think></information>") is None

    def test_generation_stops_at_the_closing_tags_of_the_two_actions(self) -> None:
        assert set(STOP) == {"</search>", "</answer>"}


class TestPrompts:
    def test_the_question_prompt_shows_an_answer_that_the_parser_would_take_for_one(self) -> None:
        # So whoever reads the prompt as the policy's text scores "Beijing"; the machine's own test builds on this.
        assert parse_action(Prompts().question).kind == "search"
        assert "<answer> Beijing </answer>" in Prompts().question

    def test_the_reflection_never_says_whether_the_answer_was_right(self) -> None:
        assert not {"correct", "incorrect", "right"} & set(Prompts().reflection.lower().split())

    def test_each_prompt_that_asks_for_an_answer_names_its_tags(self) -> None:
        prompts = Prompts()
        for prompt in (prompts.question, prompts.reflection, prompts.explore, prompts.invalid, prompts.last_call):
            assert "<answer>" in prompt
            assert "</answer>" in prompt


class TestPassage:
    def test_is_the_line_of_search_r1(self) -> None:
        assert render_passage(Prompts(), 2, Passage("7", "Ada", "She wrote.")) == 'Doc 2(Title: "Ada") She wrote.'

    def test_without_a_title_says_nothing_of_one(self) -> None:
        assert render_passage(Prompts(), 1, Passage("7", "", "She wrote.")) == "Doc 1 She wrote."

    def test_with_a_placeholder_in_its_text_is_not_filled_in_again(self) -> None:
        assert (
            render_passage(Prompts(), 1, Passage("7", "{text}", "{rank}{title}"))
            == 'Doc 1(Title: "{text}") {rank}{title}'
        )

    def test_with_the_gold_in_answer_tags_scores_only_where_the_policy_says_it(self) -> None:
        line = render_passage(Prompts(), 1, Passage("7", "", "<answer>Paris</answer>"))
        observed = f"{OBSERVATION_OPENING}\n{line}{OBSERVATION_CLOSING}"
        assert parse_action(observed) == Action("answer", "Paris")  # what a reader of the joined history would score
        assert exact_match(None, ["Paris"]) == 0.0  # what an episode without an answer of its own scores
