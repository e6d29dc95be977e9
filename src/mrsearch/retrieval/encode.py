"""What of dense retrieval touches torch: texts to unit vectors, and the exact search among vectors on a GPU.

A sentence-transformers model is used as it was trained: with its prefixes, its
pooling, its length. Of a passage the whole contents are encoded, the title in
quotes on a line of its own before the text: what the published E5 index of
wiki-18 holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mrsearch.core.types import Passage, join_contents
from mrsearch.errors import ConfigError, MissingExtra, ModelError
from mrsearch.retrieval.wire import clean_text

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

Vectors: TypeAlias = NDArray[np.float32]
"""[n, d], rows of length 1."""

_CPU_BATCH, _GPU_BATCH = 8, 256
_NO_LIMIT = 10**9
_SAMPLE = 1 << 16
_SAMPLES = 64

_WEB_QUERY = "Given a web search query, retrieve relevant passages that answer the query"
_FAMILIES = [
    (re.compile(pattern, re.IGNORECASE), query, passage)
    for pattern, query, passage in (
        (r"(^|[-_./])e5[-_.].*instruct", f"Instruct: {_WEB_QUERY}\nQuery: ", ""),
        (r"(^|[-_./])e5([-_./]|$)", "query: ", "passage: "),
        (r"bge-(small|base|large)-en", "Represent this sentence for searching relevant passages: ", ""),
        (r"bge-(small|base|large)-zh", "为这个句子生成表示以用于检索相关文章：", ""),
    )
]
"""Prefixes by name of the model, for folders that do not say themselves; the first that fits."""
_CLS_POOLED = re.compile(r"(^|[-_./])bge-", re.IGNORECASE)
"""Models that read their first token, where no file says so."""

_OFFSET_POSITIONS = {"camembert", "mpnet", "roberta", "xlm-roberta"}
"""Architectures that count positions from 2."""


class TextEncoder(Protocol):
    """What makes vectors of texts; rows are of length 1."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        ...

    @property
    def cut_passages(self) -> int:
        """Passages so far of which only the first tokens were read."""
        ...

    def queries(self, texts: Sequence[str]) -> Vectors:
        """A vector for each query."""
        ...

    def passages(self, texts: Sequence[str]) -> Vectors:
        """A vector for each passage's text."""
        ...

    def describe(self) -> dict[str, Any]:
        """All that the vectors depend on, as JSON data."""
        ...


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """Which model makes the vectors, and how."""

    model: str
    """Folder or hub name of a sentence-transformers model, or of any encoder of transformers."""
    query_prefix: str | None = None
    """Put before each query; None takes the model's own."""
    passage_prefix: str | None = None
    """Put before each passage; None takes the model's own."""
    pooling: Literal["", "mean", "cls"] = ""
    """How the tokens' vectors become one, of a model whose files do not say; empty goes by its family."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Numbers of the weights; `auto` is bfloat16 where the device computes with it, else float32."""
    max_tokens: int = 0
    """Tokens that are read of a text; 0 takes the model's own number."""
    batch: int = 0
    """Texts in one pass; 0 chooses by device."""

    @classmethod
    def from_description(cls, description: Mapping[str, Any], *, model: str | None = None) -> EncoderSettings:
        """Settings that load the encoder which `describe` told of, perhaps from where it lies now."""
        return cls(
            model=model or description["model"],
            query_prefix=description["query_prefix"],
            passage_prefix=description["passage_prefix"],
            pooling=description["pooling"] if description["pooling"] in ("mean", "cls") else "",
            max_tokens=description["max_tokens"] or 0,
        )


def passage_text(passage: Passage) -> str:
    r"""What of a passage is encoded.

    >>> passage_text(Passage("0", "Ada Lovelace", "She wrote."))
    '"Ada Lovelace"\nShe wrote.'
    """
    return join_contents(passage) if passage.title else passage.text


class Encoder:
    """A loaded model. For use from many threads, which take turns.

    The vector of a text can differ in its last bits with the texts that are
    encoded along with it, as it does in any batched model.
    """

    def __init__(self, model: SentenceTransformer, settings: EncoderSettings, description: dict[str, Any]) -> None:
        self._model = model
        self._batch = settings.batch or (_CPU_BATCH if model.device.type == "cpu" else _GPU_BATCH)
        self._description = description
        self._lock = Lock()
        self.cut_passages = 0
        self.cut_queries = 0
        self._description["dimension"] = self._encode(["a"], "", model.encode_query)[0].shape[1]

    @classmethod
    def load(cls, settings: EncoderSettings, device: str = "auto") -> Encoder:
        """Load a model onto a device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.

        Text alone is read: a name of a control token in it is letters like any others.
        """
        device = choose_device(device)
        dtype = choose_dtype(settings.dtype, device)
        model = _load(settings.model, device, dtype)
        folder = _folder_of(settings.model)
        names = [_last_part(settings.model), *([_former_name(folder)] if folder else [])]
        if folder and not (folder / "modules.json").exists():
            family = "cls" if any(_CLS_POOLED.search(name) for name in names) else ""
            _set_pooling(model, settings.pooling or family)
        query, passage = _prefixes(folder, names)
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.split_special_tokens = True
        description = {
            "model": str(folder) if Path(settings.model).is_dir() else settings.model,
            "weights": _weights(folder) if folder else "",
            "query_prefix": query if settings.query_prefix is None else settings.query_prefix,
            "passage_prefix": passage if settings.passage_prefix is None else settings.passage_prefix,
            "pooling": _pooling(model),
            "max_tokens": _limit_tokens(model, settings),
            "dtype": str(dtype).removeprefix("torch."),
        }
        return cls(model, settings, description)

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return int(self._description["dimension"])

    def describe(self) -> dict[str, Any]:
        """All that the vectors depend on, as JSON data; `weights` is a hash of samples of the model's files."""
        return dict(self._description)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """A vector for each query; `cut_queries` counts those of which only the first tokens were read."""
        vectors, cut = self._encode(texts, self._description["query_prefix"], self._model.encode_query)
        with self._lock:
            self.cut_queries += cut
        return vectors

    def passages(self, texts: Sequence[str]) -> Vectors:
        """A vector for each text; `cut_passages` counts those of which only the first tokens were read."""
        vectors, cut = self._encode(texts, self._description["passage_prefix"], self._model.encode_document)
        with self._lock:
            self.cut_passages += cut
        return vectors

    def _encode(self, texts: Sequence[str], prefix: str, encode: Callable[..., Any]) -> tuple[Vectors, int]:
        """Vectors, and how many texts were too long."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32), 0
        cleaned = [clean_text(text) for text in texts]
        # One at a time: a tokenizer that two threads set up at once refuses to work.
        with self._lock:
            cut = count_longer(self._model, [prefix + text for text in cleaned], self._description["max_tokens"])
            found = encode(
                cleaned, prompt=prefix, batch_size=self._batch, convert_to_tensor=True, show_progress_bar=False
            )
        # Brought to length 1 here and in float32: not all models do it, and bfloat16 is off by a thousandth.
        vectors: Vectors = found.float().cpu().numpy()
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"the encoder {self._description['model']} gives vectors that are not finite in "
                f"{self._description['dtype']}; set its dtype to float32"
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.float32(1e-12)), cut


class DeviceVectors:
    """Vectors in the memory of a device, in float16, all of which are compared with a query.

    Searched in the way of a FAISS index of inner products, from many threads too.
    """

    metric_type = 0
    """FAISS's number of the inner product."""

    def __init__(
        self, blocks: Iterable[NDArray[Any]], rows: int, dimension: int, device: str, *, numbers: int = 1 << 27
    ) -> None:
        """Take the rows of all blocks onto the device; a search makes some multiple of `numbers` float32 there."""
        import torch

        self.ntotal, self.d = rows, dimension
        self._numbers = numbers
        self._vectors = torch.empty((rows, dimension), dtype=torch.float16, device=device)
        start = 0
        for block in blocks:
            self._vectors[start : start + len(block)] = torch.from_numpy(block.astype(np.float16)).to(device)
            start += len(block)

    @staticmethod
    def fit(rows: int, dimension: int, device: str, share: float) -> bool:
        """Whether so many vectors take at most this share of what is free on a GPU."""
        import torch

        return rows * dimension * 2 <= share * torch.cuda.mem_get_info(device)[0]

    def search(self, queries: Vectors, limit: int, params: None = None) -> tuple[Vectors, NDArray[np.int64]]:
        """The `limit` highest products of each query, highest first, and their rows."""
        import torch

        with torch.inference_mode():
            asked = torch.from_numpy(queries).to(self._vectors.device)
            scores = asked.new_empty((len(queries), 0))
            rows = torch.empty_like(scores, dtype=torch.int64)
            # Products are taken in float32, a part of the vectors at a time: in float16 close scores would be equal.
            size = max(1, self._numbers // max(self.d, len(queries)))
            for start in range(0, self.ntotal, size):
                part = self._vectors[start : start + size].float()
                numbers = torch.arange(start, start + len(part), device=part.device).expand(len(queries), -1)
                scores, rows = torch.cat([scores, asked @ part.T], dim=1), torch.cat([rows, numbers], dim=1)
                scores, places = scores.topk(min(limit, scores.shape[1]), dim=1)
                rows = rows.gather(1, places)
            return scores.cpu().numpy(), rows.cpu().numpy()


def choose_device(name: str) -> str:
    """The device that is meant: `auto` is the first GPU, or the processor where there is none."""
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def choose_dtype(name: str, device: str) -> torch.dtype:
    """The numbers to compute with: `auto` is bfloat16 where it is fast."""
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name in known:
        return known[name]
    if name != "auto":
        raise ConfigError(f"the encoder's dtype is {name!r}; choose one of: auto, {', '.join(known)}")
    # Emulated, it is several times slower than float32.
    fast = False
    if device.startswith("cuda"):
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        fast = any(present for part, present in torch.cpu.get_capabilities().items() if "bf16" in part)
    return torch.bfloat16 if fast else torch.float32


def count_longer(model: Any, texts: Sequence[str], limit: int | None, seconds: Sequence[str] | None = None) -> int:
    """How many texts, each perhaps with a second one, have more tokens than the limit."""
    tokenizer = getattr(model, "tokenizer", None)
    if limit is None or tokenizer is None:
        return 0
    pairs = zip(texts, seconds or [""] * len(texts), strict=True)
    # A token has a byte at least, so that short texts need no closer look; a model adds four tokens of its own at most.
    long = [pair for pair in pairs if len("".join(pair).encode()) > limit - 4]
    if not long:
        return 0
    first, second = map(list, zip(*long, strict=True))
    found = tokenizer(first, second if seconds else None, truncation=False, verbose=False)
    return sum(len(ids) > limit for ids in found["input_ids"])


def fingerprint(path: Path) -> str:
    """A short hash of a file of any size: of its length, and of its bytes at the start, at the end and in between."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        last = max(0, size - _SAMPLE)
        for place in sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
            file.seek(place)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:16]


def _load(name: str, device: str, dtype: torch.dtype) -> SentenceTransformer:
    if not name:
        raise ConfigError("no encoder is named; give the folder or hub name of a sentence-transformers model")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtra(
            "dense retrieval needs sentence-transformers; install it with: pip install 'mrsearch[dense]'"
        ) from error
    try:
        return SentenceTransformer(name, device=device, model_kwargs={"dtype": dtype})
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"the encoder {name!r} cannot be loaded on {device} ({reason}); give a folder with a model of "
            "sentence-transformers or transformers, or a name on the hub that can be reached"
        ) from error


def _folder_of(name: str) -> Path | None:
    """Where the files of a model lie; None where the hub's cache does not tell."""
    if Path(name).is_dir():
        return Path(name).resolve()
    from huggingface_hub import try_to_load_from_cache

    for repository in (name, f"sentence-transformers/{name}") if "/" not in name else (name,):
        found = try_to_load_from_cache(repository, "config.json")
        if isinstance(found, str):
            return Path(found).parent
    return None


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_part(name: str) -> str:
    """The name without the folders above it, which have names of their own."""
    return name.rstrip("/\\").replace("\\", "/").rpartition("/")[2]


def _former_name(folder: Path) -> str:
    """What the model was called when it was saved."""
    return _last_part(str(_read(folder / "config.json").get("_name_or_path") or ""))


def _prefixes(folder: Path | None, names: Sequence[str]) -> tuple[str, str]:
    """Prefixes of queries and passages: as the model's files say, else as its family has them, else none."""
    prompts = _read(folder / "config_sentence_transformers.json").get("prompts") if folder else None
    # The library writes two empty prompts where nobody set any: these say nothing.
    if isinstance(prompts, dict) and any(prompts.get(key) for key in ("query", "passage", "document")):
        return prompts.get("query") or "", prompts.get("passage") or prompts.get("document") or ""
    for name in names:
        for pattern, query, passage in _FAMILIES:
            if pattern.search(name):
                return query, passage
    return "", ""


def _pooling_place(model: Any) -> int | None:
    return next((place for place, module in enumerate(model) if type(module).__name__ == "Pooling"), None)


def _set_pooling(model: Any, mode: str) -> None:
    """Pool in this way; empty leaves the library's choice, which is the mean for encoders."""
    place = _pooling_place(model)
    if mode and place is not None:
        config = model[place].get_config_dict()
        size = config.get("embedding_dimension") or config["word_embedding_dimension"]
        model[place] = type(model[place])(size, pooling_mode=mode)


def _pooling(model: Any) -> str:
    """How token vectors become one."""
    place = _pooling_place(model)
    if place is None:
        return "own"
    config = model[place].get_config_dict()
    # Older releases of the library have a flag for each mode.
    flags = [key.removeprefix("pooling_mode_") for key, on in config.items() if on is True and "mode" in key]
    mode = config.get("pooling_mode") or flags
    return mode if isinstance(mode, str) else "+".join(mode)


def _limit_tokens(model: SentenceTransformer, settings: EncoderSettings) -> int | None:
    """Tokens read of a text, set as asked; None where the model has no limit."""
    config = getattr(model[0], "config", None)
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and getattr(config, "model_type", "") in _OFFSET_POSITIONS:
        most -= 2
    if settings.max_tokens:
        if settings.max_tokens < 3 or (most is not None and settings.max_tokens > most):
            raise ConfigError(
                f"max_tokens is {settings.max_tokens}, but the encoder {settings.model} reads 3 to {most or 'any'}"
            )
        model.max_seq_length = settings.max_tokens
    own = min((size for size in (model.max_seq_length, most) if size is not None), default=_NO_LIMIT)
    return None if own >= _NO_LIMIT else int(own)


def _weights(folder: Path) -> str:
    """A hash of samples of the model's weights."""
    files = sorted(folder.rglob("*.safetensors")) or sorted(folder.rglob("*.bin"))
    return hashlib.sha256("".join(map(fingerprint, files)).encode()).hexdigest()[:16]
