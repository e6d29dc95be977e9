"""Generation: the model's own greedy text with kept caches, stops, seeds, and the distribution that is drawn from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mrsearch.codec import HFCodec
from mrsearch.core.ports import Completion, Generate, Sampling
from mrsearch.engine.generate import NEAR_TIE, Session
from mrsearch.engine.model import LanguageModel
from tiny_models import (
    ARCHITECTURES,
    PROMPTS,
    VOCABULARY,
    ProgrammedModel,
    certain,
    reciting,
    request,
    tiny_codec,
    tiny_model,
    tiny_module,
)
from tiny_tokenizers import byte_level

EOS = 3


def play(
    session: Session, contexts: list[list[int]], *, turns: int = 4, **settings
) -> list[tuple[Generate, Completion]]:
    """Several turns of several windows, each followed by an observation of its own length.

    In every turn another window is left out, so that rows are set aside and come back.
    """
    contexts = [list(context) for context in contexts]
    played = []
    for turn in range(turns):
        windows = [window for window in range(len(contexts)) if turn == 0 or (window + turn) % 3]
        requests = [
            request(contexts[window], window, max_tokens=6 + window, seed=31 * window + turn, **settings)
            for window in windows
        ]
        for asked, completion in zip(requests, session.run(requests), strict=True):
            played.append((replace(asked, ids=list(asked.ids)), completion))
            window = asked.window[0]
            observation = [(5 * window + 3 * turn + n) % VOCABULARY for n in range(1 + (2 * window + turn) % 5)]
            contexts[window] += [*completion.ids, *observation]
    return played


CONTEXTS = [[2, 12, 13 + n, *[16 + (n + m) % 5 for m in range(1 + 3 * n)]] for n in range(5)]
"""Five contexts of 4 to 16 tokens."""


# -- greedy -----------------------------------------------------------------------------------


def own_greedy(module, asked: Generate) -> tuple[list[int], list[float]]:
    """What the model's own `generate` writes after a context, and by how much each token beat the next best."""
    ids = torch.tensor([asked.ids])
    output = module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=asked.max_tokens,
        eos_token_id=EOS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [logits[0].double().topk(2).values for logits in output.logits]
    return output.sequences[0, ids.shape[1] :].tolist(), [float(two[0] - two[1]) for two in best]


def differing(module, played: list[tuple[Generate, Completion]]) -> tuple[int, int, int]:
    """Tokens compared with the model's own, and turns that differ from it: at a near tie, and elsewhere."""
    compared = ties = others = 0
    for asked, completion in played:
        own, margins = own_greedy(module, asked)
        pairs = zip(completion.ids, own, margins, strict=False)
        first = next((n for n, (token, other, _) in enumerate(pairs) if token != other), None)
        if first is None:
            assert len(own) >= len(completion.ids)
            assert len(own) == len(completion.ids) or completion.finish_reason == "stop"
            compared += len(completion.ids)
        else:
            compared += first
            ties += margins[first] < NEAR_TIE
            others += margins[first] >= NEAR_TIE
    return compared, ties, others


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_turns_are_the_models_own_over_several_turns_with_a_kept_cache(name):
    played = play(Session(tiny_model(name), tiny_codec(), rows=5), CONTEXTS)
    compared, ties, others = differing(tiny_module(name), played)
    assert others == 0
    assert ties <= 1
    assert compared > 50


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_in_float64_greedy_turns_are_the_models_own_without_exception(name):
    session = Session(tiny_model(name, double=True), tiny_codec(), rows=5)
    assert differing(tiny_module(name).double(), play(session, CONTEXTS))[1:] == (0, 0)
    assert session.counters["near_ties"] == 0


@pytest.mark.parametrize("prefill_tokens", [1, 24, 8192])
def test_how_much_context_is_read_at_once_changes_nothing(prefill_tokens):
    model = tiny_model(double=True)
    reference = play(Session(model, tiny_codec(), rows=5), CONTEXTS)
    played = play(Session(model, tiny_codec(), rows=5, prefill_tokens=prefill_tokens), CONTEXTS)
    assert [list(c.ids) for _, c in played] == [list(c.ids) for _, c in reference]


def test_each_turn_reads_only_what_is_new():
    session = Session(tiny_model(), tiny_codec(), rows=1)
    context = [2, 12, 16, 17]
    first = session.run([request(context)])[0]
    assert session.counters["fed_tokens"] == 4
    session.run([request([*context, *first.ids, 18, 19])])
    # the last token that was drawn has not been read before, nor have the two of the observation
    assert session.counters["fed_tokens"] == 4 + 3


def test_equal_contexts_are_read_once():
    session = Session(tiny_model(), tiny_codec(), rows=6)
    turns = session.run([request([2, 12, 16, 17], window) for window in range(6)])
    assert session.counters["fed_tokens"] == 4
    assert all(turn == turns[0] for turn in turns)


def test_released_rows_make_room_and_leave_the_others_as_they_were():
    model, codec = tiny_model(double=True), tiny_codec()
    session = Session(model, codec, rows=3)
    turns = session.run([request(CONTEXTS[window], window) for window in range(3)])
    longer = [[*CONTEXTS[window], *turns[window].ids, 20] for window in range(3)]
    session.release([(0,), (7,)])  # the second is not there, which is no matter
    after = session.run([request(longer[2], 2), request([2, 18], 5), request(longer[1], 1)])
    alone = [Session(model, codec, rows=1).run([request(ids)])[0] for ids in (longer[2], [2, 18], longer[1])]
    assert [turn.ids for turn in after] == [turn.ids for turn in alone]


# -- stops ------------------------------------------------------------------------------------


def merging_codec() -> HFCodec:
    """Byte-level BPE that has learnt `</search` and, from text without spaces, a token `>.` that reaches past a tag."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    lines = ["<search>x</search>.", "<answer>x</answer>.", "</search>", "</answer>"] * 4
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(["<|end|>"])
    return HFCodec(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>"), PROMPTS
    )


def written(codec: HFCodec, ids: list[int], *, max_tokens: int = 64) -> Completion:
    """The turn of a model that wants to write these ids and then padding without end."""
    context = (9, 8, 7)
    model = reciting(400, {context: ids}, otherwise=0)
    return Session(model, codec, rows=1).run([request(context, max_tokens=max_tokens)])[0]


def letter_by_letter(codec: HFCodec, text: str) -> list[int]:
    return [token for letter in text for token in codec.encode_reply(letter)]


@pytest.mark.parametrize("tag", ["</search>", "</answer>"])
def test_a_turn_ends_with_a_tag_of_one_token(tag):
    codec = tiny_codec()
    ids = codec.encode_reply(f"<search> Rome {tag}")
    turn = written(codec, [*ids, *codec.encode_reply("Oslo Lima")])
    assert list(turn.ids) == ids
    assert turn.finish_reason == "stop"


@pytest.mark.parametrize("tag", ["</search>", "</answer>"])
def test_a_turn_ends_with_the_token_that_completes_a_tag_of_several(tag):
    codec = HFCodec(byte_level(), PROMPTS)
    ids = codec.encode_reply(f"<search> who wrote it {tag}")
    assert len(codec.encode_reply(tag)) > 2
    turn = written(codec, [*ids, *codec.encode_reply(" and more")])
    assert list(turn.ids) == ids
    assert turn.finish_reason == "stop"


def test_other_closing_tags_do_not_end_a_turn():
    codec = tiny_codec()
    ids = codec.encode_reply("<think> Rome </think> </information> <search> Oslo </search>")
    assert list(written(codec, ids).ids) == ids


def test_a_token_that_holds_the_end_of_a_tag_and_more_is_kept_whole():
    codec = merging_codec()
    ids = codec.encode_reply("<search>x</search>.")
    assert codec.decode(ids[-1:]) == ">."
    turn = written(codec, [*ids, *codec.encode_reply("x")])
    assert list(turn.ids) == ids
    assert turn.finish_reason == "stop"


def test_a_tag_in_an_unusual_split_is_noticed_and_its_ids_are_kept():
    codec = merging_codec()
    ids = letter_by_letter(codec, "<search>x</search>")
    assert ids != codec.encode_reply("<search>x</search>")
    turn = written(codec, [*ids, *codec.encode_reply("x")])
    assert list(turn.ids) == ids
    assert turn.finish_reason == "stop"


def test_an_end_token_ends_a_turn_and_belongs_to_it():
    codec = tiny_codec()
    turn = written(codec, [16, 17, EOS, 18])
    assert list(turn.ids) == [16, 17, EOS]
    assert turn.finish_reason == "end"


def test_a_turn_may_be_empty_but_for_its_end():
    turn = written(tiny_codec(), [EOS, 16])
    assert (list(turn.ids), turn.finish_reason) == ([EOS], "end")


def test_the_limit_ends_a_turn():
    turn = written(tiny_codec(), [16, 17, 18, 19, 20], max_tokens=4)
    assert (list(turn.ids), turn.finish_reason) == ([16, 17, 18, 19], "length")


def test_a_tag_that_is_complete_at_the_limit_is_a_stop():
    codec = tiny_codec()
    ids = codec.encode_reply("<search> Rome </search>")
    turn = written(codec, ids, max_tokens=3)
    assert (list(turn.ids), turn.finish_reason) == (ids, "stop")


def test_each_token_has_one_log_probability():
    turn = written(tiny_codec(), [16, 17, EOS])
    assert turn.logprobs == [0.0, 0.0, 0.0]  # the model had no doubt


def test_rows_that_finish_leave_the_batch():
    texts = {(9, row): [16] * row + [EOS] for row in range(5)}  # one to five tokens
    model = reciting(VOCABULARY, texts)
    session = Session(model, tiny_codec(), rows=5)
    turns = session.run([request(context, row) for row, context in enumerate(texts)])
    assert [len(turn.ids) for turn in turns] == [1, 2, 3, 4, 5]
    assert session.counters["decode_steps"] == 5
    assert session.counters["generated_tokens"] == 1 + 2 + 3 + 4 + 5
    assert model.passes == [5, 4, 3, 2, 1]  # the contexts, then the rows that go on


def test_rows_find_their_own_text_again_however_they_finish():
    """Turn after turn rows finish in another order; the model recites only if a row's whole past is its own."""
    script = {}
    contexts = [(2, 12, 16 + row) for row in range(5)]
    for row, start in enumerate(contexts):
        context = start
        for turn in range(4):
            text = [17] * (1 + (2 * row + 3 * turn) % 5) + [EOS]
            script[context] = text
            context = (*context, *text, 13, 12 + row)
    session = Session(reciting(VOCABULARY, script), tiny_codec(), rows=5)
    for turn in range(4):
        order = [(row + turn) % 5 for row in range(5)]
        turns = session.run([request(contexts[row], row) for row in order])
        for row, completion in zip(order, turns, strict=True):
            assert list(completion.ids) == script[contexts[row]]
            contexts[row] = (*contexts[row], *completion.ids, 13, 12 + row)


# -- drawing ----------------------------------------------------------------------------------

SCORES = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 1.5], dtype=torch.float64)
"""Logits of a small distribution; nothing in it ends a turn but the limit."""


def undecided() -> ProgrammedModel:
    """A model that always has these scores for six words and nothing for the others."""
    logits = torch.full((VOCABULARY,), -1e4, dtype=torch.float64)
    logits[12:18] = SCORES
    return ProgrammedModel(VOCABULARY, lambda ids: logits)


def draws(count: int, *, tokens: int = 1, **settings) -> list[Completion]:
    """Turns of a model that always has the same scores, each with its own seed."""
    requests = [request([2], row, max_tokens=tokens, seed=1000 + row, **settings) for row in range(count)]
    return Session(undecided(), tiny_codec(), rows=count).run(requests)


def frequencies(turns: list[Completion]) -> torch.Tensor:
    counts = Counter(token - 12 for turn in turns for token in turn.ids)
    assert set(counts) <= set(range(len(SCORES)))
    return torch.tensor([counts[n] for n in range(len(SCORES))], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature):
    seen = frequencies(draws(400, tokens=20, temperature=temperature))
    expected = 8000 * (SCORES / temperature).softmax(dim=0)
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    assert chi_square < 20.5  # exceeded once in a thousand with five degrees of freedom


def test_the_log_probability_is_the_one_under_the_temperature():
    for temperature in (0.5, 0.7, 1.0, 2.0):
        expected = (SCORES / temperature).log_softmax(dim=0)
        for turn in draws(8, tokens=4, temperature=temperature):
            assert turn.logprobs == pytest.approx([float(expected[token - 12]) for token in turn.ids], abs=1e-6)


def test_the_log_probability_of_a_greedy_token_is_the_models_own():
    (turn,) = draws(1)
    assert list(turn.ids) == [12]
    assert turn.logprobs == pytest.approx([float(SCORES.log_softmax(dim=0)[0])], abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 5}),
        ({"top_k": 4}, {0, 5, 1, 2}),
        # probabilities in order: .43, .26, .16, .10, .06, .02
        ({"top_p": 0.1}, {0}),
        ({"top_p": 0.5}, {0, 5}),
        ({"top_p": 0.8}, {0, 5, 1}),
        ({"top_p": 0.8, "top_k": 2}, {0, 5}),
    ],
)
def test_nothing_is_drawn_outside_what_top_k_and_top_p_keep(settings, kept):
    turns = draws(300, tokens=10, temperature=1.0, **settings)
    assert {token - 12 for turn in turns for token in turn.ids} == kept
    expected = SCORES.log_softmax(dim=0)  # unfiltered: what training computes again
    for turn in turns[:5]:
        assert turn.logprobs == pytest.approx([float(expected[token - 12]) for token in turn.ids], abs=1e-6)


def test_what_is_kept_is_drawn_in_its_own_proportions():
    seen = frequencies(draws(400, tokens=20, temperature=1.0, top_k=3))
    expected = 8000 * SCORES[[0, 5, 1]].softmax(dim=0)
    assert float(((seen[[0, 5, 1]] - expected) ** 2 / expected).sum()) < 13.9  # once in a thousand, two degrees


def test_every_row_has_its_own_sampling():
    requests = [
        replace(request([2], row, max_tokens=200, seed=row), sampling=sampling)
        for row, sampling in enumerate((Sampling(0.0), Sampling(1.0), Sampling(1.0, top_k=2), Sampling(2.0)))
    ]
    greedy, plain, filtered, hot = Session(undecided(), tiny_codec(), rows=4).run(requests)
    assert set(greedy.ids) == {12}
    assert set(filtered.ids) == {12, 17}
    assert len(set(plain.ids)) == len(set(hot.ids)) == 6
    assert min(hot.logprobs) == pytest.approx(float((SCORES / 2).log_softmax(dim=0).min()), abs=1e-6)


def test_a_token_without_probability_is_never_drawn():
    model = ProgrammedModel(VOCABULARY, lambda ids: certain(VOCABULARY, 16))
    session = Session(model, tiny_codec(), rows=500)
    turns = session.run([request([2], row, max_tokens=4, temperature=1.0, seed=row) for row in range(500)])
    assert {token for turn in turns for token in turn.ids} == {16}


# -- seeds ------------------------------------------------------------------------------------


def sampled(session: Session, windows: list[int], *, offset: int = 0) -> dict[int, list[int]]:
    requests = [
        request(CONTEXTS[window], window, max_tokens=10, temperature=1.0, seed=50 + window + offset)
        for window in windows
    ]
    return {window: list(turn.ids) for window, turn in zip(windows, session.run(requests), strict=True)}


def test_a_request_gets_the_same_tokens_in_any_company():
    model, codec = tiny_model(double=True), tiny_codec()
    together = sampled(Session(model, codec, rows=5), [0, 1, 2, 3, 4])
    assert sampled(Session(model, codec, rows=5), [3, 0, 4, 2, 1]) == together
    assert sampled(Session(model, codec, rows=2), [2, 4]) == {2: together[2], 4: together[4]}
    for window in range(5):
        assert sampled(Session(model, codec, rows=1), [window]) == {window: together[window]}


def test_a_greedy_row_in_a_sampled_batch_is_as_greedy_as_alone():
    model, codec = tiny_model(double=True), tiny_codec()
    alone = Session(model, codec, rows=1).run([request(CONTEXTS[1])])[0]
    company = [request(CONTEXTS[1], 0), request(CONTEXTS[2], 1, temperature=1.0)]
    assert Session(model, codec, rows=2).run(company)[0].ids == alone.ids


def test_another_seed_gives_other_tokens():
    model, codec = tiny_model(double=True), tiny_codec()
    one = sampled(Session(model, codec, rows=5), [0, 1, 2, 3, 4])
    other = sampled(Session(model, codec, rows=5), [0, 1, 2, 3, 4], offset=100)
    assert sum(one[window] != other[window] for window in one) >= 4


def test_two_rows_with_one_context_and_two_seeds_differ():
    turns = draws(2, tokens=50, temperature=1.0)
    assert turns[0].ids != turns[1].ids


# -- order and size of the batch ---------------------------------------------------------------


def greedy_by_question(model, order: list[int], rows: int) -> tuple[dict[int, list[int]], int]:
    """Greedy turns over many contexts, in batches of so many rows, and how many choices were near ties."""
    contexts = {n: [2, 12, *[16 + (n * (m + 1)) % 5 for m in range(2 + n % 7)], 13 + n % 4] for n in order}
    found, ties = {}, 0
    for first in range(0, len(order), rows):
        part = order[first : first + rows]
        session = Session(model, tiny_codec(), rows=len(part))
        turns = session.run([request(contexts[n], n, max_tokens=10) for n in part])
        ties += session.counters["near_ties"]
        found |= {n: list(turn.ids) for n, turn in zip(part, turns, strict=True)}
    return found, ties


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_turns_depend_on_no_order_and_no_batch_size(name):
    model = tiny_model(name)
    order = list(range(24))
    reference, ties = greedy_by_question(model, order, 24)
    for shuffled, rows in ((order[::-1], 24), (order, 1), (order[::3] + order[1::3] + order[2::3], 5)):
        found, _ = greedy_by_question(model, shuffled, rows)
        assert sum(found[n] != reference[n] for n in order) <= ties


def test_in_bfloat16_most_greedy_turns_depend_on_no_batch_size():
    model = tiny_model("qwen3").module.to(torch.bfloat16)
    order = list(range(24))
    together, _ = greedy_by_question(LanguageModel(model), order, 24)
    alone, _ = greedy_by_question(LanguageModel(model), order, 1)
    # Over the tiny models and four seeds 572 of 576 turns agreed, never fewer than 23 of 24.
    assert sum(together[n] == alone[n] for n in order) >= 22


def test_near_ties_are_counted():
    model = ProgrammedModel(VOCABULARY, lambda ids: certain(VOCABULARY, 16) + 2e-5 * torch.eye(VOCABULARY)[17])
    tied = ProgrammedModel(VOCABULARY, lambda ids: certain(VOCABULARY, 16).index_fill(0, torch.tensor([17]), -2e-5))
    for one, expected in ((model, 0), (tied, 5)):
        session = Session(one, tiny_codec(), rows=1)
        assert list(session.run([request([2], max_tokens=5)])[0].ids) == [16] * 5
        assert session.counters["near_ties"] == expected
