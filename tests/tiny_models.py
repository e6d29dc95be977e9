"""Random decoders of a few thousand weights, one for each kind of architecture, and a small vocabulary for them.

The vocabulary is so small that a random model writes tags, searches and answers often enough to play with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mrsearch.codec import HFCodec
from mrsearch.core.ports import Generate, Sampling, Search
from mrsearch.core.protocol import STOP, Prompts
from mrsearch.core.types import Passage, Question
from mrsearch.engine.cache import RowCache
from mrsearch.engine.model import LanguageModel

# -- words ------------------------------------------------------------------------------------

TAGS = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>")
PLACES = ("Rome", "Oslo", "Lima", "Bern")
WORDS = ("Q", "again", "neither", "last", "nothing", *PLACES)
JOINED = ("<search>Rome", "<search>Oslo", "<search>Lima", "<answer>Rome", "<answer>Oslo", "<answer>Lima")
"""Words that only a policy writes: an encoder splits them. With them a random turn often holds a pair of tags."""
PROMPTS = Prompts(
    question="Q {question} ",
    explore="again Q ",
    reflection="again ",
    continuation="again again ",
    invalid=" neither ",
    last_call=" last ",
    no_passages="nothing",
    passage="{text}",
    passage_untitled="{text}",
)


def tiny_tokenizer(*, pad: str = "<pad>") -> PreTrainedTokenizerFast:
    """Words split at white space, with the tags among them: 27 ids."""
    names = ["<pad>", "<unk>", "<bos>", "<eos>", *TAGS, *WORDS, *JOINED]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<unk>", "<bos>", "<eos>"])
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )


def tiny_codec(*, pad: str = "<pad>") -> HFCodec:
    """The codec of the tiny tokenizer, with prompts of its words."""
    return HFCodec(tiny_tokenizer(pad=pad), PROMPTS)


VOCABULARY = 4 + len(TAGS) + len(WORDS) + len(JOINED)


def questions(count: int) -> list[Question]:
    """Questions of one to three words."""
    return [Question(str(i), " ".join(PLACES[: 1 + i % 3]), (PLACES[i % 4],)) for i in range(count)]


class PlaceRetriever:
    """Passages of different lengths, by the letters of the query; every third number of letters finds nothing."""

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """Up to `top_k` passages for each request."""
        return [self._find(request) for request in requests]

    def _find(self, request: Search) -> list[Passage]:
        size = len(request.query)
        if size % 3 == 0:
            return []
        return [Passage(str(n), "", " ".join(PLACES[: 1 + (size + n) % 4])) for n in range(request.top_k)]


# -- models -----------------------------------------------------------------------------------

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    # Wide weights: a narrow random model repeats one token whatever it reads.
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
WINDOW = 8
"""Tokens that the sliding layers see: fewer than any context has."""

_BUILD: dict[str, Callable[[dict[str, Any]], PreTrainedModel]] = {
    # norms on queries and keys, grouped heads, an output layer of its own
    "qwen3": lambda shape: Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=False)),
    # grouped heads, tied
    "llama": lambda shape: LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True)),
    # biases on queries, keys and values
    "qwen2": lambda shape: Qwen2ForCausalLM(
        Qwen2Config(**{k: v for k, v in shape.items() if k != "head_dim"}, tie_word_embeddings=False)
    ),
    # sliding windows in all layers
    "mistral": lambda shape: MistralForCausalLM(MistralConfig(**shape, sliding_window=WINDOW)),
    # sliding and full layers in turn, scaled embeddings, two bases of the rotation
    "gemma3": lambda shape: Gemma3ForCausalLM(
        Gemma3TextConfig(
            # its scaled embeddings and normed branches need narrower weights for the same effect
            **{**shape, "initializer_range": shape["initializer_range"] / 3},
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
            query_pre_attn_scalar=8,
            tie_word_embeddings=True,
        )
    ),
    # absolute positions
    "gpt2": lambda shape: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape["vocab_size"],
            n_embd=shape["hidden_size"],
            n_layer=shape["num_hidden_layers"],
            n_head=shape["num_attention_heads"],
            n_positions=shape["max_position_embeddings"],
            initializer_range=shape["initializer_range"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )
    ),
}
ARCHITECTURES = tuple(_BUILD)
LIVELY = 3
"""A seed with which every architecture writes turns of different lengths and endings."""


def tiny_module(name: str = "qwen3", *, seed: int = LIVELY, **changes: Any) -> PreTrainedModel:
    """A random model in float32, as transformers builds it; one seed gives one set of weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILD[name]({**_SHAPE, **changes}).eval()


def tiny_model(name: str = "qwen3", *, seed: int = LIVELY, double: bool = False, **changes: Any) -> LanguageModel:
    """The same as the engine sees it, in float32 or in float64."""
    module = tiny_module(name, seed=seed, **changes)
    return LanguageModel(module.double() if double else module)


def model_of_135m_shape(seed: int = 0) -> LanguageModel:
    """The layers of a model with 135 million weights (SmolLM2), random, with a small vocabulary."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = LlamaConfig(
            vocab_size=256,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=2048,
            initializer_range=1 / 24,
            tie_word_embeddings=True,
        )
        return LanguageModel(LlamaForCausalLM(shape).eval())


class ProgrammedModel:
    """What a session needs of a model, with a function from all ids so far to the logits of the next one.

    The ids themselves lie in the cache, as its keys: whoever mixes up rows or columns gets other text.
    """

    device = torch.device("cpu")

    def __init__(self, vocabulary: int, logits_after: Callable[[tuple[int, ...]], torch.Tensor]) -> None:
        self.vocabulary = vocabulary
        self.passes: list[int] = []
        self._logits_after = logits_after

    def new_cache(self, rows: int) -> RowCache:
        """An empty cache for so many rows."""
        return RowCache(rows)

    def extend(
        self, ids: torch.Tensor, cache: RowCache, first: int, last: int, *, counts: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Feed new tokens; the state of a token is what all ids up to it lead to."""
        self.passes.append(last - first)
        positions, _, _ = cache.begin(first, last, ids.shape[1], device=ids.device, dtype=torch.float64)
        new = ids[:, None, :, None].double()
        read = cache.update(new, new, 0)[0][:, 0, :, 0].long().tolist()
        states = [
            [self._logits_after(tuple(row[: position + 1])) for position in places]
            for row, places in zip(read, positions.tolist(), strict=True)
        ]
        return torch.stack([torch.stack(row) for row in states])

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """The output layer: the states are the logits."""
        return states


def certain(vocabulary: int, token: int) -> torch.Tensor:
    """Logits that leave no choice."""
    logits = torch.full((vocabulary,), -1e4, dtype=torch.float64)
    logits[token] = 0.0
    return logits


def reciting(vocabulary: int, texts: dict[tuple[int, ...], Sequence[int]], *, otherwise: int = 0) -> ProgrammedModel:
    """A model that after each of these contexts writes the given ids, one after the other."""

    def logits_after(ids: tuple[int, ...]) -> torch.Tensor:
        for context, text in texts.items():
            written = ids[len(context) :]
            if ids[: len(context)] == context and len(written) < len(text) and written == tuple(text[: len(written)]):
                return certain(vocabulary, text[len(written)])
        return certain(vocabulary, otherwise)

    return ProgrammedModel(vocabulary, logits_after)


def request(
    ids: Sequence[int],
    window: int = 0,
    *,
    max_tokens: int = 12,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    new_from: int = 0,
) -> Generate:
    """A request for one turn after these ids."""
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    return Generate((window,), list(ids), new_from, max_tokens, STOP, sampling, seed)
