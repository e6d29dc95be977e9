"""Tokenizers of a few hundred tokens, built in memory, and chat templates with the structure of those in use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

LINES = [
    "Answer the question below. Think first, whenever you have new information. Question: who wrote the first program?",
    "Look back at your last answer and at how you came to it. What in it is wrong or uncertain?",
    "<think> I lack a fact </think> <search> who wrote it </search> <answer> Ada Lovelace </answer>",
    'Doc 1(Title: "Ada Lovelace") She wrote the first program. <information> </information> Nothing was found.',
    "system user assistant model tool You are helpful. Today is the day. [INST] hello [/INST] No searches are left.",
]
TAGS = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>")

# -- templates --------------------------------------------------------------------------------

CHATML_WITH_SYSTEM = """\
{%- if messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- else -%}
{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role in ('user', 'assistant') -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- elif message.role == 'tool' -%}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' }}{%- endif -%}
{{- '\n<reply>\n' + message.content + '\n</reply>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' }}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' }}{%- endif -%}
"""
"""Qwen2.5: a system line that the template writes by itself; replies of tools inside a message of the user."""

CHATML_DROPPING_THOUGHTS = """\
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- if loop.index0 > ns.last -%}
{%- set content = '<think>\n' + thought + '\n</think>\n\n' + content -%}
{%- endif -%}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' }}{%- endif -%}
"""
"""Qwen3: thoughts of turns before the last message of the user are not rendered again."""

CHATML = """\
{%- for message in messages -%}
{%- if loop.first and messages[0].role != 'system' -%}
{{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' }}{%- endif -%}
"""
"""SmolLM2: the token that opens a message is also the beginning of a text."""

HEADERS_AND_DATE = """\
{%- if not date_string is defined -%}
{%- if strftime_now is defined -%}{%- set date_string = strftime_now('%d %b %Y') -%}
{%- else -%}{%- set date_string = '26 Jul 2024' -%}{%- endif -%}
{%- endif -%}
{{- bos_token }}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday is ' + date_string + '\n\n<|eot_id|>' }}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (message.content | tojson) + '<|eot_id|>' }}
{%- else -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}
"""
"""Llama 3: headers, the date, contents trimmed, replies of tools as JSON."""

INSTRUCTION_BRACKETS = """\
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('roles must alternate user/assistant') }}
{%- endif -%}
{%- if message.role == 'user' -%}{{- bos_token + '[INST] ' + message.content.strip() + ' [/INST]' }}
{%- else -%}{{- ' ' + message.content.strip() + ' ' + eos_token }}{%- endif -%}
{%- endfor -%}
"""
"""Llama 2: the beginning of a text before every exchange, and spaces around contents."""

ALTERNATING_MODEL = """\
{{- bos_token }}
{%- if messages[0].role == 'system' -%}{{- raise_exception('no system role') }}{%- endif -%}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('roles must alternate user/assistant') }}
{%- endif -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{- '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' }}{%- endif -%}
"""
"""Gemma: the assistant is called model, roles alternate strictly, there is no system role."""

HEADERS_WITHOUT_BOS = HEADERS_AND_DATE.replace("{{- bos_token }}\n", "")
"""A template that leaves the beginning of the text to the tokenizer."""

ENDS_ARE_BEGINNINGS = """\
{{- bos_token }}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '<|user|>\n' + message.content + '\n' }}
{%- else -%}{{- '<|assistant|>\n' + message.content + eos_token + '\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' }}{%- endif -%}
"""
"""OLMo 2: one token is the beginning and the end of a text; replies of tools would be taken for the assistant's."""

# -- tokenizers -------------------------------------------------------------------------------


def byte_level(
    template: str | None = None,
    *,
    controls: Sequence[str] = ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    tags: Sequence[str] = (),
    bos: str | None = None,
    eos: str = "<|im_end|>",
    pad: str = "<|endoftext|>",
    adds_bos: bool = False,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE; `controls` are special tokens, `tags` added tokens that are not flagged special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(list(controls))
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    return _finish(tokenizer, template, bos=bos, eos=eos, pad=pad, adds_bos=adds_bos)


def sentencepiece_like(template: str | None = None, *, scheme: str = "first") -> PreTrainedTokenizerFast:
    """BPE over words that begin with `▁`, unknown characters as bytes, `<s>` put in front of every text.

    The scheme says where the tokenizer writes a space of its own: `first` at
    the start of a text, `always` after each control token too, `legacy` the same by a normalizer.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: i for i, name in enumerate([*names, *learned["vocab"]])}
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return _finish(tokenizer, template, bos="<s>", eos="</s>", pad="<unk>", unk="<unk>", adds_bos=True)


def unigram_with_names(names: Sequence[str], extra: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A unigram model whose vocabulary holds the names of its added tokens, so that it finds them in any text."""
    letters = sorted({letter for line in LINES for letter in line.replace(" ", "▁")} | {"\n", "_", "|"})
    pieces = [("<unk>", 0.0), *((name, -1.0) for name in (*names, *extra)), *((letter, -9.0) for letter in letters)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in extra])
    tokenizer.add_special_tokens(["<unk>", *names])
    return _finish(tokenizer, None, bos="<s>", eos="</s>", pad="</s>", unk="<unk>", adds_bos=False)


def word_level(*, tags: Sequence[str] = TAGS, adds_bos: bool = True) -> PreTrainedTokenizerFast:
    """Words split at white space; control tokens and tags are words of the vocabulary too."""
    words = sorted({word for line in LINES for word in line.split()} - set(TAGS))
    names = ["<pad>", "<unk>", "<bos>", "<eos>", *tags]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*names, *words])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<unk>", "<bos>", "<eos>"])
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    return _finish(tokenizer, None, bos="<bos>", eos="<eos>", pad="<pad>", unk="<unk>", adds_bos=adds_bos)


def _finish(
    tokenizer: Tokenizer,
    template: str | None,
    *,
    bos: str | None,
    eos: str,
    pad: str,
    unk: str | None = None,
    adds_bos: bool,
) -> PreTrainedTokenizerFast:
    if adds_bos:
        assert bos is not None
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token=unk,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


# -- families ---------------------------------------------------------------------------------

HEADER_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
TURN_TOKENS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")


@cache
def family(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template, in the manner of the family that the name says."""
    headers: dict[str, Any] = {
        "controls": HEADER_TOKENS,
        "bos": "<|begin_of_text|>",
        "eos": "<|eot_id|>",
        "pad": "<|end_of_text|>",
    }
    match name:
        case "qwen2.5":
            return byte_level(CHATML_WITH_SYSTEM)
        case "qwen3":
            return byte_level(CHATML_DROPPING_THOUGHTS, tags=("<think>", "</think>"))
        case "smollm2":
            return byte_level(CHATML, bos="<|im_start|>", pad="<|im_end|>")
        case "llama3":
            return byte_level(HEADERS_AND_DATE, adds_bos=True, **headers)
        case "llama3-without-bos":
            return byte_level(HEADERS_WITHOUT_BOS, adds_bos=True, **headers)
        case "gemma":
            return byte_level(
                ALTERNATING_MODEL, controls=TURN_TOKENS, bos="<bos>", eos="<eos>", pad="<eos>", adds_bos=True
            )
        case "olmo2":
            controls = ("<|endoftext|>", "<|user|>", "<|assistant|>")
            return byte_level(ENDS_ARE_BEGINNINGS, controls=controls, bos="<|endoftext|>", eos="<|endoftext|>")
        case "llama2":
            return sentencepiece_like(INSTRUCTION_BRACKETS, scheme="first")
        case "llama2-legacy":
            return sentencepiece_like(INSTRUCTION_BRACKETS, scheme="legacy")
    raise ValueError(name)


FAMILIES = ("qwen2.5", "qwen3", "smollm2", "llama3", "llama3-without-bos", "gemma", "olmo2", "llama2", "llama2-legacy")
