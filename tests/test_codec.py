"""The codec: chat templates are continued as they would render, and no text of others becomes a control token."""

from __future__ import annotations

import json
from datetime import date
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast

import tiny_tokenizers
from mrsearch.codec import HFCodec, common_share
from mrsearch.core.ports import Codec
from mrsearch.core.protocol import Prompts, render_passage
from mrsearch.core.types import Passage, Question
from mrsearch.errors import ConfigError, ModelError
from tiny_tokenizers import FAMILIES, TAGS, byte_level, family, sentencepiece_like, unigram_with_names, word_level

PROMPTS = Prompts()
QUESTION = Question("q", "who wrote the first program?", ("Ada Lovelace",))
ADA = Passage("1", "Ada Lovelace", "She wrote the first program.")
UNTITLED = Passage("2", "", "Nothing was found in hello.")
SAID = "<think> it was Ada </think> <answer> Ada Lovelace </answer>"
NO_TOOLS = {"gemma", "olmo2", "llama2", "llama2-legacy"}
WITHOUT_TEMPLATE = {
    "byte-level": byte_level(bos="<|endoftext|>", eos="<|endoftext|>", adds_bos=True),
    "sentencepiece-like": sentencepiece_like(),
    "word-level": word_level(),
}


def asked(question: str = QUESTION.question) -> str:
    return PROMPTS.question.replace("{question}", question).strip()


def render(tokenizer: PreTrainedTokenizerFast, *messages: tuple[str, str]) -> list[int]:
    """Ids of a conversation as the library renders it, with one beginning of the text: the first."""
    conversation = [{"role": role, "content": content} for role, content in messages]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    if tokenizer.encode("a")[:1] == [bos] != ids[:1]:
        ids = [bos, *ids]
    return [token for i, token in enumerate(ids) if i == 0 or token != bos or tokenizer.bos_token != "<s>"]


def sample(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids that a policy might sample; one of the family of Llama 2 writes the space before its turn."""
    if tokenizer.chat_template == tiny_tokenizers.INSTRUCTION_BRACKETS and tokenizer.backend_tokenizer.pre_tokenizer:
        text = " " + text
    return list(tokenizer.encode(text, add_special_tokens=False))


def added_ids(tokenizer: PreTrainedTokenizerFast) -> set[int]:
    return set(tokenizer.added_tokens_decoder) - {tokenizer.unk_token_id}


# -- layouts ----------------------------------------------------------------------------------


def test_it_is_a_codec():
    codec: Codec = HFCodec(family("qwen2.5"))
    assert codec.opening(PROMPTS.question, QUESTION)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_opening_is_what_the_chat_template_gives(name: str):
    tokenizer = family(name)
    assert HFCodec(tokenizer).opening(PROMPTS.question, QUESTION) == render(tokenizer, ("user", asked()))


@pytest.mark.parametrize("name", FAMILIES)
def test_episodes_follow_each_other_as_turns_of_a_rendered_conversation(name: str):
    tokenizer = family(name)
    codec = HFCodec(tokenizer)
    said = "<answer> Ada Lovelace </answer>"
    window = codec.opening(PROMPTS.question, QUESTION)
    messages = [("user", asked())]
    for _ in range(2):
        window += sample(tokenizer, said) + codec.between_episodes(PROMPTS.reflection)
        messages += [("assistant", said), ("user", PROMPTS.reflection.strip())]
    assert window == render(tokenizer, *messages)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_end_token_that_the_policy_wrote_is_not_repeated(name: str):
    codec = HFCodec(family(name))
    ended, open_ended = codec.between_episodes("Again.", after_end=True), codec.between_episodes("Again.")
    end = open_ended[: len(open_ended) - len(ended)]
    assert open_ended == end + ended
    assert codec.ends_turn(end[-1])
    assert not any(map(codec.ends_turn, end[:-1]))


def test_the_line_break_after_an_end_token_stays():
    codec = HFCodec(family("qwen2.5"))
    assert codec.decode(codec.between_episodes("Again.", after_end=True)).startswith(
        "\n<|im_start|>user\nAgain.<|im_end|>"
    )
    assert codec.decode(codec.between_episodes("Again.")).startswith("<|im_end|>\n<|im_start|>user\nAgain.<|im_end|>")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_notice_after_an_end_token_opens_a_message_of_the_user(name: str):
    codec = HFCodec(family(name))
    assert codec.notice(PROMPTS.invalid, after_end=True) == codec.between_episodes(PROMPTS.invalid, after_end=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_notices_and_observations_stand_inside_the_turn_as_they_are(name: str):
    codec = HFCodec(family(name))
    assert codec.decode(codec.notice(PROMPTS.invalid)) == PROMPTS.invalid
    observation = codec.observation([ADA, ADA], 200, note="\nAnswer now.\n")
    lines = [render_passage(PROMPTS, rank, ADA) for rank in (1, 2)]
    expected = f"\n\n<information>{lines[0]}\n{lines[1]}\n</information>\n\n\nAnswer now.\n"
    assert codec.decode(observation.ids) == expected
    assert (observation.cut_passages, observation.cut_tokens) == (0, 0)
    assert codec.notice("") == []


@pytest.mark.parametrize(
    ("name", "role"),
    [*((name, "user") for name in FAMILIES), *((name, "tool") for name in FAMILIES if name not in NO_TOOLS)],
)
def test_observations_can_be_messages_of_their_own(name: str, role: str):
    tokenizer = family(name)
    codec = HFCodec(tokenizer, observations=role)
    said = "<search> Ada </search>"
    window = codec.opening(PROMPTS.question, QUESTION) + sample(tokenizer, said)
    window += codec.observation([UNTITLED], 200).ids
    content = f"<information>{render_passage(PROMPTS, 1, UNTITLED)}\n</information>"
    expected = render(tokenizer, ("user", asked()), ("assistant", said), (role, content))
    # Passages are encoded alone, so the text is the same but not every token. Llama 3 writes replies of tools as JSON.
    assert codec.decode(window) == codec.decode(expected).replace("\\n", "\n")


@pytest.mark.parametrize("name", sorted(NO_TOOLS))
def test_a_template_without_replies_of_tools_is_refused_for_them_in_one_line(name: str):
    with pytest.raises(ModelError, match=r"tool.*use another template file") as refusal:
        HFCodec(family(name), observations="tool")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_the_last_call_stands_in_the_message_of_the_observation(role: str):
    codec = HFCodec(family("qwen2.5"), observations=role)
    text = codec.decode(codec.observation([ADA], 200, note="\nAnswer now.\n").ids)
    assert text.count("<|im_start|>assistant") == 1
    assert "</information>\n\nAnswer now." in text
    assert codec.decode(codec.notice(PROMPTS.invalid)).startswith("<|im_end|>\n<|im_start|>user\nThat was neither")
    assert codec.notice("\n") == []


def test_an_observation_after_an_end_token_opens_a_message_of_its_role():
    inside, tool = HFCodec(family("qwen2.5")), HFCodec(family("qwen2.5"), observations="tool")
    opens = "\n<|im_start|>user\n"
    assert inside.decode(inside.observation([ADA], 200, after_end=True).ids).startswith(opens + "<information>Doc 1")
    assert tool.decode(tool.observation([ADA], 200, after_end=True).ids).startswith(opens + "<reply>\n<information>")
    assert tool.decode(tool.observation([ADA], 200).ids).startswith("<|im_end|>" + opens + "<reply>")


def test_thoughts_that_a_template_would_drop_stay_in_the_context():
    tokenizer = family("qwen3")
    codec = HFCodec(tokenizer)
    first = codec.opening(PROMPTS.question, QUESTION)
    second = first + sample(tokenizer, SAID) + codec.between_episodes(PROMPTS.reflection)
    assert second[: len(first)] == first
    assert SAID in codec.decode(second)
    # The library's own rendering of the same conversation is no continuation of what the policy has read.
    messages = ("user", asked()), ("assistant", SAID), ("user", PROMPTS.reflection.strip())
    assert "it was Ada" not in codec.decode(render(tokenizer, *messages))


@pytest.mark.parametrize("name", WITHOUT_TEMPLATE)
def test_a_base_model_reads_plain_text(name: str):
    tokenizer = WITHOUT_TEMPLATE[name]
    codec = HFCodec(tokenizer)
    assert codec.opening(PROMPTS.question, QUESTION) == tokenizer.encode(
        PROMPTS.question.replace("{question}", QUESTION.question)
    )
    between = codec.between_episodes("Look back at your last answer\n")
    assert between == codec.between_episodes("Look back at your last answer\n", after_end=True)
    if name != "word-level":  # which knows no white space
        assert codec.decode(between) == "\n\nLook back at your last answer\n"
    assert codec.notice("Look back", after_end=True) == codec.notice("Look back")
    with pytest.raises(ModelError, match="no chat template"):
        HFCodec(tokenizer, observations="user")


def test_another_template_or_none_can_be_asked_for(tmp_path: Path):
    folder = tmp_path / "model"
    family("qwen2.5").save_pretrained(folder)
    other = tmp_path / "other.jinja"
    other.write_text(tiny_tokenizers.CHATML_DROPPING_THOUGHTS, encoding="utf-8")
    opening = {template: HFCodec.load(folder, template=template) for template in (None, "plain", other)}
    texts = [codec.decode(codec.opening("{question}", QUESTION)) for codec in opening.values()]
    assert texts == [
        f"<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n{QUESTION.question}<|im_end|>\n"
        "<|im_start|>assistant\n",
        QUESTION.question,
        f"<|im_start|>user\n{QUESTION.question}<|im_end|>\n<|im_start|>assistant\n",
    ]
    with pytest.raises(ConfigError, match="cannot read"):
        HFCodec.load(folder, template=tmp_path / "missing.jinja")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("<|im_start|>assistant\n' }}", "<|im_start|>assistant\n<think>\n' }}"), "'.*assistant.*<think>"),
        (("message.role +", "message.role + ('' if messages[1] else 'x') +"), "rewrites .* before a turn"),
        (("message.role +", "message.role + ('x' if messages[3] and loop.first else '') +"), "before a later turn"),
        (("message.role +", "message.role + loop.index * (message.role == 'user') * 'x' +"), "after a later turn"),
        (("for message in messages", "for message in messages[-1:]"), "leaves out"),
        (("+ content +", "+ content + content +"), "repeats 2 times"),
        (("{{- '<|im_start|>'", "{{- raise_exception('never\nagain') }}{{- '<|im_start|>'"), "never again"),
    ],
)
def test_a_template_that_cannot_be_continued_is_refused_in_one_line(change: tuple[str, str], complaint: str):
    template = tiny_tokenizers.CHATML_DROPPING_THOUGHTS
    assert change[0] in template
    with pytest.raises(ModelError, match=complaint) as refusal:
        HFCodec(family("qwen3"), template=template.replace(*change))
    assert "\n" not in str(refusal.value)
    assert "use another template file" in str(refusal.value)


# -- beginnings and ends ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama3", "llama3-without-bos", "gemma", "llama2", "llama2-legacy"])
def test_a_window_has_one_beginning(name: str):
    tokenizer = family(name)
    codec = HFCodec(tokenizer)
    following = codec.notice(PROMPTS.invalid) + codec.observation([ADA], 200, note=PROMPTS.last_call).ids
    for after_end in (False, True):
        following += codec.between_episodes(PROMPTS.reflection, after_end=after_end)
        following += codec.observation([ADA], 200, after_end=True).ids
    assert codec.opening(PROMPTS.question, QUESTION)[0] == tokenizer.bos_token_id
    assert (codec.opening(PROMPTS.question, QUESTION) + following).count(tokenizer.bos_token_id) == 1


def test_a_beginning_that_also_opens_messages_stays_where_it_does():
    tokenizer = family("smollm2")
    codec = HFCodec(tokenizer)
    assert tokenizer.bos_token == "<|im_start|>"
    assert codec.decode(codec.between_episodes("Again.", after_end=True)) == (
        "\n<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("qwen2.5", {"<|im_end|>"}),
        ("gemma", {"<eos>", "<end_of_turn>"}),
        ("llama3", {"<|eot_id|>"}),
        ("llama2", {"</s>"}),
        ("olmo2", {"<|endoftext|>"}),
    ],
)
def test_the_end_of_text_and_the_end_of_a_message_end_a_turn(name: str, ends: set[str]):
    tokenizer = family(name)
    codec = HFCodec(tokenizer)
    assert codec.end_ids == set(tokenizer.convert_tokens_to_ids(sorted(ends)))
    assert not codec.ends_turn(sample(tokenizer, "Ada")[0])


def test_further_ends_come_from_the_caller_and_from_the_generation_config(tmp_path: Path):
    tokenizer = family("qwen2.5")
    further = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert HFCodec(tokenizer, extra_end_ids=[further]).ends_turn(further)
    tokenizer.save_pretrained(tmp_path)
    assert not HFCodec.load(tmp_path).ends_turn(further)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [further, tokenizer.eos_token_id]}))
    assert HFCodec.load(str(tmp_path)).end_ids == {further, tokenizer.eos_token_id}


def test_the_padding_token_may_be_the_end_of_text_or_missing():
    padded = byte_level(tiny_tokenizers.CHATML, pad="<|im_end|>")
    codec = HFCodec(padded)
    assert codec.pad_id == padded.eos_token_id
    assert codec.ends_turn(codec.pad_id)
    padded.pad_token = None
    assert HFCodec(padded).pad_id == padded.eos_token_id
    assert HFCodec(family("qwen2.5")).pad_id == family("qwen2.5").pad_token_id


# -- the question -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_windows_of_one_question_are_identical(name: str):
    openings = [HFCodec(family(name)).opening(PROMPTS.question, QUESTION) for _ in range(2)]
    assert openings[0] == openings[1]


@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "llama2", "llama2-legacy"])
def test_questions_and_prompts_may_hold_braces_and_stand_anywhere(name: str):
    tokenizer = family(name)
    question = Question("q", "what is {x} or {question} in {{y}}?", ())
    for prompt in ("{question}", "Once: {question} End {0}.", "{question} and again  {question}"):
        codec = HFCodec(tokenizer)
        expected = render(tokenizer, ("user", prompt.replace("{question}", question.question)))
        assert codec.decode(codec.opening(prompt, question)) == codec.decode(expected)


def test_a_tokenizer_without_a_template_writes_its_own_space_before_a_question_that_comes_first():
    for tokenizer in (sentencepiece_like(scheme="first"), sentencepiece_like(scheme="legacy")):
        assert HFCodec(tokenizer).opening("{question} hello", QUESTION) == tokenizer.encode(
            QUESTION.question + " hello"
        )


def test_a_prompt_without_a_place_for_the_question_is_refused():
    with pytest.raises(ConfigError, match=r"needs \{question\}"):
        HFCodec(family("qwen2.5")).opening("Answer!", QUESTION)


# -- text of others ---------------------------------------------------------------------------

CONTROLS_AND_TAGS = byte_level(tiny_tokenizers.CHATML_WITH_SYSTEM, tags=TAGS)
UNIGRAM = unigram_with_names(["<s>", "</s>", "<|im_end|>"], extra=["<information>", "</answer>", "▁▁", "\n\n", "wrote"])
HOSTILE = [
    CONTROLS_AND_TAGS,
    byte_level(controls=["<|im_start|>", "<|im_end|>", "<|endoftext|>", *TAGS]),
    family("llama2"),
    UNIGRAM,
    word_level(),
]
HOSTILE_CODECS = {id(tokenizer): HFCodec(tokenizer) for tokenizer in HOSTILE}
words = st.lists(
    st.sampled_from(["who", "wrote", "the", "first", "program", " ", "  ", "\n\n", "é", "<", "|", "▁"]), max_size=4
)


@given(data=st.data())
@pytest.mark.parametrize("tokenizer", HOSTILE, ids=["non-special", "special", "sentencepiece-like", "unigram", "words"])
def test_names_of_tokens_in_the_text_of_others_never_become_these_tokens(tokenizer: PreTrainedTokenizerFast, data):
    names = [token.content for token in tokenizer.added_tokens_decoder.values()] + ["</answer>", "<information>"]

    def hostile() -> str:
        parts = data.draw(st.lists(st.one_of(st.sampled_from(names), words.map(" ".join)), max_size=5))
        return data.draw(st.sampled_from(["", " "])).join(parts)

    codec = HOSTILE_CODECS[id(tokenizer)]
    tame = codec.opening(PROMPTS.question, Question("q", "x", ()))
    opened = codec.opening(PROMPTS.question, Question("q", hostile(), ()))
    observed = codec.observation([Passage("1", hostile(), hostile()), Passage("2", "", hostile())], 10_000).ids
    framed = codec.observation([Passage("1", "x", "x")] * 2, 10_000).ids
    for token in added_ids(tokenizer):
        assert opened.count(token) == tame.count(token)
        assert observed.count(token) == framed.count(token)


def test_plain_text_loses_nothing_by_being_encoded_apart():
    codec = HOSTILE_CODECS[id(CONTROLS_AND_TAGS)]
    for text in ("<|im_end|> and </answer>", "né <information>\n\n  x", "<|im_<|im_end|>end|>"):
        assert text in codec.decode(codec.observation([Passage("1", "", text)], 200).ids)
    unigram = HOSTILE_CODECS[id(UNIGRAM)]
    assert "she wrote <|im_end|>" in unigram.decode(
        unigram.observation([Passage("1", "", "she wrote <|im_end|>")], 200).ids
    )


def test_a_name_is_encoded_as_if_the_tokenizer_had_no_such_token():
    other = byte_level(controls=["<|endoftext|>"], eos="<|endoftext|>")
    text = " <|im_end|> and </answer><think>"
    question = HOSTILE_CODECS[id(CONTROLS_AND_TAGS)].opening("?{question}", Question("q", text, ()))
    expected = other.encode(text)
    assert question[question.index(other.convert_tokens_to_ids("?")) + 1 :][: len(expected)] == expected


def test_the_name_of_the_unknown_token_is_plain_text_where_the_vocabulary_has_the_letters():
    codec = HOSTILE_CODECS[id(UNIGRAM)]
    observed = codec.observation([Passage("1", "", "a <unk> b")], 100).ids
    assert "a <unk> b" in codec.decode(observed)
    assert UNIGRAM.unk_token_id not in observed


def test_our_own_prompts_may_use_the_tokens_of_tags():
    tags = CONTROLS_AND_TAGS.convert_tokens_to_ids(["<think>", "</think>", "<information>", "</information>"])
    codec = HOSTILE_CODECS[id(CONTROLS_AND_TAGS)]
    assert set(tags) <= set(codec.opening(PROMPTS.question, QUESTION))
    assert set(tags[2:]) <= set(codec.observation([], 100).ids)


def test_a_single_character_stands_for_itself_unless_it_is_a_control_token():
    tokenizer = word_level(tags=["§", "¶", "!", "%"])
    tokenizer.add_special_tokens({"eos_token": "¶", "pad_token": "!", "additional_special_tokens": ["%"]})
    harmless, end, padding, control = tokenizer.convert_tokens_to_ids(["§", "¶", "!", "%"])
    observed = HFCodec(tokenizer).observation([Passage("1", "", "§ ¶ ! % program?")], 100).ids
    assert {harmless, padding} <= set(observed)
    assert not {end, control} & set(observed)


def test_what_is_unknown_is_left_out_where_only_the_end_of_text_could_stand_for_it():
    tokenizer = word_level()
    tokenizer.eos_token = tokenizer.unk_token
    codec = HFCodec(tokenizer)
    assert tokenizer.unk_token_id not in codec.observation([Passage("1", "", "é program? é")], 100).ids
    assert tokenizer.convert_tokens_to_ids("program?") in codec.observation([Passage("1", "", "é program? é")], 100).ids


def test_half_a_surrogate_pair_in_a_passage_is_replaced():
    codec = HFCodec(family("qwen2.5"))
    assert "a\ufffdb😀" in codec.decode(codec.observation([Passage("1", "", "a\ud800b\ud83d\ude00")], 100).ids)


def test_a_very_long_row_of_names_is_encoded_in_time():
    codec = HOSTILE_CODECS[id(HOSTILE[-1])]
    observed = codec.observation([Passage("1", "", "<information> " * 20_000)], 100)
    assert len(observed.ids) <= 100


# -- limits -----------------------------------------------------------------------------------


WORDS = HFCodec(word_level(), Prompts(passage_untitled="{text}"))
"""One token a word, one a tag and none a line break, so that everything can be counted by hand."""


def of_words(number: int) -> Passage:
    return Passage("1", "", " ".join(["the"] * number))


def test_a_long_passage_is_cut_and_a_short_one_is_not():
    the = WORDS.opening("the{question}", Question("q", "", ()))[1]
    opening, closing = WORDS.observation([of_words(0)], 2).ids
    observed = WORDS.observation([of_words(100), of_words(3)], 15)
    # 15 less two tags are 13; the short one takes 3, so the long one has 10 and loses 90
    assert observed.ids == [opening, *[the] * 13, closing]
    assert (observed.cut_passages, observed.cut_tokens) == (1, 90)


def test_long_passages_have_a_common_share():
    # 45 less two tags are 43; 3 go to the first, and the others have 20 each: 80 and 30 too many
    observed = WORDS.observation([of_words(3), of_words(100), of_words(50)], 45)
    assert (len(observed.ids), observed.cut_passages, observed.cut_tokens) == (45, 2, 110)


def test_passages_for_which_no_token_is_left_are_dropped_from_the_end_and_counted():
    observed = WORDS.observation([of_words(5), of_words(4), of_words(3)], 4)
    assert (len(observed.ids), observed.cut_passages, observed.cut_tokens) == (4, 3, 4 + 3 + 3)
    observed = WORDS.observation([of_words(5), of_words(4), of_words(3)], 2)
    assert (len(observed.ids), observed.cut_passages, observed.cut_tokens) == (2, 3, 12)


def test_a_limit_without_room_for_the_tags_is_refused():
    with pytest.raises(ConfigError, match=r"at most 1 tokens .* take 2"):
        WORDS.observation([of_words(1)], 1)


def test_the_note_is_beyond_the_limit():
    note = WORDS.notice("No searches are left.")
    assert len(note) == 4
    assert WORDS.observation([of_words(9)], 5, note="No searches are left.").ids == [
        *WORDS.observation([of_words(9)], 5).ids,
        *note,
    ]


def test_nothing_found_is_said_between_the_tags_and_cut_like_a_passage():
    assert WORDS.decode(WORDS.observation([], 10).ids) == "<information> Nothing was found. </information>"
    observed = WORDS.observation([], 4)
    assert WORDS.decode(observed.ids) == "<information> Nothing was </information>"
    assert (observed.cut_passages, observed.cut_tokens) == (0, 1)


texts = st.text(alphabet="the wrote\n<|>é漢😀", max_size=60)


@given(st.lists(st.builds(Passage, st.just("1"), texts, texts), max_size=6), st.integers(0, 120), st.booleans())
@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "llama2"])
@pytest.mark.parametrize("placement", ["assistant", "user"])
def test_an_observation_keeps_its_limit_its_tags_and_its_short_passages(
    name: str, placement: str, passages: list[Passage], room: int, after_end: bool
):
    codec = CODECS[name, placement]
    tags = BARE[name, placement].observation([], 100, after_end=after_end).ids
    limit = len(tags) + room
    observed = codec.observation(passages, limit, after_end=after_end)
    whole = codec.observation(passages, 10_000, after_end=after_end)
    assert len(observed.ids) <= limit
    text = codec.decode(observed.ids)
    assert "\ufffd" not in text
    opening, _, closing = codec.decode(tags).partition("<information>")
    assert text.startswith(opening + "<information>")
    assert text.endswith(closing)
    if len(whole.ids) <= limit:
        assert observed == whole
    elif passages:
        assert observed.cut_passages > 0
        assert len(whole.ids) - len(observed.ids) >= observed.cut_tokens > 0
    lines = [render_passage(PROMPTS, rank, passage) for rank, passage in enumerate(passages, 1)]
    assert sum(line not in text for line in lines) <= observed.cut_passages


PLACES = [(name, place) for name in ("qwen2.5", "llama3", "llama2") for place in ("assistant", "user")]
CODECS = {(name, place): HFCodec(family(name), observations=place) for name, place in PLACES}
BARE = {(name, place): HFCodec(family(name), Prompts(no_passages=""), observations=place) for name, place in PLACES}


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(0, 200))
def test_the_common_share_is_the_largest_that_fits(lengths: list[int], room: int):
    share = common_share(lengths, room)
    assert sum(min(length, share) for length in lengths) <= room
    if share < max(lengths):
        assert sum(min(length, share + 1) for length in lengths) > room


# -- decoding ---------------------------------------------------------------------------------

ALL = {
    **WITHOUT_TEMPLATE,
    "unigram": UNIGRAM,
    "non-special tags": CONTROLS_AND_TAGS,
    **{n: family(n) for n in FAMILIES},
}


@pytest.mark.parametrize("name", ALL)
def test_every_id_that_can_complete_a_tag_is_known(name: str):
    tokenizer = ALL[name]
    codec = HFCodec(tokenizer)
    closing = codec.closing_ids()
    for token in range(len(tokenizer)):
        if ">" in codec.decode([token]) or ">" in tokenizer.convert_ids_to_tokens(token):
            assert token in closing
    assert len(closing) < len(tokenizer)


def test_an_id_that_shows_a_bracket_only_when_decoded_is_known_too():
    tokenizer = word_level(tags=["›"])
    tokenizer.backend_tokenizer.decoder = decoders.Replace("›", ">")
    assert tokenizer.convert_tokens_to_ids("›") in HFCodec(tokenizer).closing_ids()


@given(st.text(alphabet="</answersch> \n😀", max_size=30))
@pytest.mark.parametrize("name", ["qwen2.5", "llama2"])
def test_a_tag_is_completed_only_by_a_known_id(name: str, text: str):
    tokenizer = ALL[name]
    codec = CODECS[name, "assistant"]
    ids = sample(tokenizer, text)
    for shorter, longer in pairwise(range(len(ids) + 1)):
        if codec.decode(ids[:longer]).count(">") > codec.decode(ids[:shorter]).count(">"):
            assert ids[longer - 1] in codec.closing_ids()


def test_decoding_keeps_control_tokens_and_spaces():
    tokenizer = family("qwen2.5")
    ids = tokenizer.encode("<|im_start|> a , b <|im_end|>")
    assert HFCodec(tokenizer).decode(ids) == "<|im_start|> a , b <|im_end|>"


# -- loading ----------------------------------------------------------------------------------


def test_a_saved_tokenizer_gives_the_same_ids_as_the_one_in_memory(tmp_path: Path):
    family("llama3").save_pretrained(tmp_path)
    loaded = HFCodec.load(tmp_path, Prompts(no_passages="None."), observations="user")
    built = HFCodec(family("llama3"), Prompts(no_passages="None."), observations="user")
    assert loaded.opening(PROMPTS.question, QUESTION) == built.opening(PROMPTS.question, QUESTION)
    assert loaded.observation([], 100) == built.observation([], 100)


def test_the_truncation_of_a_saved_tokenizer_cuts_nothing():
    tokenizer = byte_level(tiny_tokenizers.CHATML)
    tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    assert HFCodec(tokenizer).opening(PROMPTS.question, QUESTION) == render(
        byte_level(tiny_tokenizers.CHATML), ("user", asked())
    )


@pytest.mark.parametrize("files", [{}, {"config.json": '{"model_type": "qwen2"}'}, {"tokenizer.json": '{"x": 1}'}])
def test_a_folder_without_a_usable_tokenizer_is_refused_in_one_line(tmp_path: Path, files: dict[str, str]):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=r"no usable tokenizer in|no vocabulary") as refusal:
        HFCodec.load(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_template_that_writes_the_date_writes_the_day_it_is_given() -> None:
    """A run that goes on tomorrow must read the same prompts."""
    template = (
        "{% set today = strftime_now('%d %b %Y') %}{% for m in messages %}[{{ m.role }}|{{ today }}]{{ m.content }}"
        "[/end]{% endfor %}{% if add_generation_prompt %}[assistant|{{ today }}]{% endif %}"
    )
    codec = HFCodec(family("smollm2"), template=template, day=date(2024, 7, 26))
    text = codec.decode(codec.opening("{question}", Question("1", "Who?", ("x",))))
    assert "26 Jul 2024" in text
    assert str(date.today().year) not in text
