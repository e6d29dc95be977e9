"""The model as the engine sees it: states and logits apart, padding, loading, precision, saving."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from mrsearch.config import LossConfig, OptimizerConfig
from mrsearch.core.ports import Batch
from mrsearch.core.types import Episode, Question, Trajectory, Window
from mrsearch.engine.learner import EmbeddedLearner
from mrsearch.engine.model import LanguageModel, _context_limit, own_weights
from mrsearch.errors import ModelError
from tiny_models import ARCHITECTURES, VOCABULARY, model_of_135m_shape, tiny_codec, tiny_model, tiny_module

LENGTHS = (5, 14, 9)
"""Of the rows below; all but one are longer than the sliding window or cross it when padded."""


def ragged_rows(vocabulary: int = VOCABULARY) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, vocabulary, (length,), generator=generator) for length in LENGTHS]


def logprobs(model: LanguageModel, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probability of every id but the first, from states [T, D]."""
    return model.logits(states[:-1]).log_softmax(dim=-1).gather(1, ids[1:, None])[:, 0]


@torch.no_grad()
def largest_difference_by_padding(model: LanguageModel) -> float:
    """Log-probabilities of rows alone against the same rows padded on the right, and padded on the left."""
    rows = ragged_rows(model.vocabulary)
    width = max(LENGTHS)
    differences = []
    right = torch.stack([torch.cat([row, row.new_zeros(width - len(row))]) for row in rows])
    left = torch.stack([torch.cat([row.new_zeros(width - len(row)), row]) for row in rows])
    present = torch.stack([torch.arange(width) >= width - len(row) for row in rows]).long()
    positions = (present.cumsum(dim=1) - 1).clamp(min=0)
    on_the_right = model.hidden(right)
    on_the_left = model.hidden(left, positions=positions, attention_mask=present)
    for index, row in enumerate(rows):
        alone = logprobs(model, model.hidden(row[None])[0], row)
        for padded in (on_the_right[index, : len(row)], on_the_left[index, width - len(row) :]):
            differences.append(float((logprobs(model, padded, row) - alone).abs().max()))
    return max(differences)


# -- states and logits ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_states_and_output_layer_together_give_the_models_own_logits(name):
    module = tiny_module(name)
    ids = ragged_rows()[1][None]
    expected = module(input_ids=ids, use_cache=False).logits
    model = LanguageModel(tiny_module(name))
    torch.testing.assert_close(model.logits(model.hidden(ids)), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_soft_caps_of_the_output_layer_are_kept():
    model = tiny_model("gemma3", final_logit_softcapping=0.5)
    logits = model.logits(model.hidden(ragged_rows()[1][None]))
    assert 0.05 < logits.abs().max() < 0.5  # and the engine compared them with the model's own when it took it


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_a_context_read_in_pieces_gives_the_states_of_one_pass(name):
    model = tiny_model(name, double=True)
    ids = torch.stack([ragged_rows()[1], ragged_rows()[1].flip(0)])
    cache = model.new_cache(2)
    pieces = []
    for start, end in ((0, 3), (3, 4), (4, 11), (11, 12), (12, 14)):
        pieces.append(model.extend(ids[:, start:end], cache, 0, 2))
        cache.advance([end - start] * 2)
    torch.testing.assert_close(torch.cat(pieces, dim=1), model.hidden(ids), rtol=1e-12, atol=1e-12)


# -- padding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_padding_on_either_side_changes_no_log_probability(name):
    assert largest_difference_by_padding(tiny_model(name)) < 1e-5


def test_padding_changes_no_log_probability_at_the_shape_of_a_model_of_135_million_weights():
    assert largest_difference_by_padding(model_of_135m_shape()) < 1e-4


# -- loading ----------------------------------------------------------------------------------


def aligned(module: torch.nn.Module) -> bool:
    return all(tensor.data_ptr() % 64 == 0 for tensor in module.parameters())


def test_loaded_weights_lie_in_fresh_aligned_memory(tmp_path):
    tiny_module("qwen3").save_pretrained(tmp_path)
    assert aligned(LanguageModel.load(tmp_path).module)


def test_weights_that_lie_askew_are_moved_and_keep_their_values():
    module = torch.nn.Linear(7, 5)
    odd = torch.arange(36.0)[1:].reshape(5, 7)  # four bytes after an aligned address
    module.weight.data = odd
    assert not aligned(module)
    own_weights(module)
    assert aligned(module)
    assert torch.equal(module.weight, odd)


def test_tied_weights_stay_tied_and_are_trained_once(tmp_path):
    tiny_module("llama").save_pretrained(tmp_path)
    model = LanguageModel.load(tmp_path)
    embeddings, head = model.module.get_input_embeddings(), model.module.get_output_embeddings()
    assert head.weight is embeddings.weight
    assert head.weight.data_ptr() == embeddings.weight.data_ptr()
    names = [name for name, _ in model.trainable()]
    assert len(names) == len(set(names))
    assert not any("lm_head" in name for name in names)


def test_a_saved_model_gives_the_same_logits_to_the_last_bit(tmp_path):
    model = tiny_model("llama")
    model.save(tmp_path)
    ids = ragged_rows()[1][None]
    again = LanguageModel.load(tmp_path)
    with torch.no_grad():
        assert torch.equal(again.logits(again.hidden(ids)), model.logits(model.hidden(ids)))


def test_weights_in_pickles_are_refused(tmp_path):
    module = tiny_module("qwen3")
    module.config.save_pretrained(tmp_path)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    assert "safetensors" in refusal(tmp_path)


def refusal(folder) -> str:
    """What loading says, which is one line that names the folder."""
    with pytest.raises(ModelError) as caught:
        LanguageModel.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_without_a_model_is_refused_by_name(tmp_path):
    assert str(tmp_path) in refusal(tmp_path)


def test_a_model_of_an_unknown_kind_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    assert str(tmp_path) in refusal(tmp_path)


def softcapped() -> PreTrainedModel:
    """Attention scores with a soft cap, as Gemma 2 has."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            attn_logit_softcapping=5.0,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )
    )


def recurrent() -> PreTrainedModel:
    """A state space in place of attention."""
    return MambaForCausalLM(
        MambaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            state_size=4,
            num_hidden_layers=1,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )
    )


def test_an_architecture_that_the_engine_cannot_run_is_refused_when_it_is_loaded(tmp_path):
    recurrent().save_pretrained(tmp_path)
    assert "engine" in refusal(tmp_path)


@torch.no_grad()
def test_attention_scores_with_a_soft_cap_are_what_the_model_itself_computes():
    module = softcapped().double()
    ids = torch.tensor([[5, 9, 2, 7, 11, 3, 8]])
    module.config._attn_implementation = "eager"
    expected = module(input_ids=ids).logits
    model = LanguageModel(module)
    # Its own eager attention takes the softmax in float32.
    torch.testing.assert_close(model.logits(model.hidden(ids)), expected, rtol=1e-6, atol=1e-6)
    cache = model.new_cache(1)
    kept = []
    for piece in (ids[:, :4], ids[:, 4:5], ids[:, 5:]):
        kept.append(model.logits(model.extend(piece, cache, 0, 1)))
        cache.advance([piece.shape[1]])
    torch.testing.assert_close(torch.cat(kept, dim=1), expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_padding_asks_for_no_position_that_the_model_does_not_have():
    """A row near the end of an absolute position table beside one with more new tokens."""
    model = tiny_model("gpt2", double=True)
    limit = model.context_limit
    assert limit is not None
    cache = model.new_cache(2)
    long, short = (torch.randint(0, VOCABULARY, (1, length)) for length in (limit, 29))
    model.extend(torch.cat([long[:, : limit - 2], long[:, : limit - 2]]), cache, 0, 2, counts=[limit - 2, 9])
    cache.lengths = [limit - 2, 0]
    new = torch.zeros(2, 20, dtype=torch.long)
    new[0, :2], new[1] = long[0, limit - 2 :], short[0, :20]
    states = model.extend(new, cache, 0, 2, counts=[2, 20])
    torch.testing.assert_close(states[0, :2], model.hidden(long)[0, -2:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(states[1], model.hidden(short[:, :20])[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["no-such-folder/", "./model", "/nowhere/model", "a/b/c"])
def test_a_name_that_is_neither_a_folder_nor_of_a_hub_is_refused_at_once(name):
    with pytest.raises(ModelError, match="there is no model folder"):
        LanguageModel.load(name)


def test_rotary_embeddings_that_change_with_the_length_end_where_they_begin_to():
    rope = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    config = LlamaConfig(max_position_embeddings=128, rope_parameters=rope)
    assert _context_limit(config) == 64
    assert _context_limit(LlamaConfig(max_position_embeddings=128)) == 128


# -- precision --------------------------------------------------------------------------------


def one_window(ids: list[int], trained: int) -> Trajectory:
    """A meta-episode of one window, of which the last ids are the policy's."""
    window = Window()
    window.place(ids[:-trained], episode=1)
    window.sample(ids[-trained:], [-1.0] * trained, episode=1)
    question = Question("1", "Rome", ("Oslo",))
    return Trajectory(question, 0, 0, [Episode(1)], [window], "complete", advantages=[1.0])


def test_in_bfloat16_weights_and_optimiser_stay_float32_and_small_steps_count(tmp_path):
    tiny_module("qwen3").bfloat16().save_pretrained(tmp_path)  # the form in which most models are published
    model = LanguageModel.load(tmp_path, dtype="bfloat16")
    before = [parameter.detach().clone() for _, parameter in model.trainable()]
    learner = EmbeddedLearner(
        model, tiny_codec(), kind="rl", loss=LossConfig(), optimizer=OptimizerConfig(lr=1e-6), total_updates=10
    )
    metrics = learner.step(Batch([one_window([2, 12, 17, 4, 5, 10, 17, 11], 5)], 1))
    assert metrics.values["updates"] == 1
    assert {parameter.dtype for _, parameter in model.trainable()} == {torch.float32}
    learner.save(tmp_path)
    state = torch.load(tmp_path / "learner.pt", weights_only=True)["optimizer"]["state"]
    moments = [moment for entry in state.values() for name, moment in entry.items() if name != "step"]
    assert {moment.dtype for moment in moments} == {torch.float32}
    moved = [float((p.detach() - old).abs().max()) for (_, p), old in zip(model.trainable(), before, strict=True)]
    # A step of Adam is about lr wide. A bfloat16 weight of size 0.3 has neighbours 1e-3 away and would not move.
    assert all(0 < distance < 3e-6 for distance in moved)


def test_in_bfloat16_turns_are_generated_by_a_copy_of_the_present_weights():
    model = LanguageModel(tiny_module("qwen3"), autocast=True)
    copy = model.generator()
    assert {parameter.dtype for parameter in copy.module.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float32}
    with torch.no_grad():
        model.module.get_output_embeddings().weight.mul_(2)
    before = copy.module.get_output_embeddings().weight.clone()
    newer = model.generator().module.get_output_embeddings().weight
    torch.testing.assert_close(newer, 2 * before)


def test_a_bfloat16_copy_keeps_its_rotary_frequencies_exact():
    model = LanguageModel(tiny_module("qwen3"), autocast=True)
    copied = dict(model.generator().module.named_buffers())
    for name, buffer in model.module.named_buffers():
        assert torch.equal(copied[name], buffer)
        assert copied[name].dtype == buffer.dtype


def test_in_float32_the_model_itself_generates():
    model = tiny_model("qwen3")
    assert model.generator() is model


def test_a_model_that_bfloat16_blurs_is_checked_in_full_precision_and_taken():
    """Sharp attention makes rounding larger than what a wrong path may differ by."""
    module = tiny_module("llama")
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "down_proj")):
                weight.mul_(5)
        ids = torch.arange(6)[None]
        exact = module(input_ids=ids, use_cache=False).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            blurred = module(input_ids=ids, use_cache=False).logits.float()
    assert (exact - blurred).abs().max() > 0.05 * exact.abs().max()
    LanguageModel(module, autocast=True)
