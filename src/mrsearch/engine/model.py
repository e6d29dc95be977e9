"""A causal language model: hidden states and logits apart, one attention, exact saving.

Any Hugging Face decoder from a folder or a hub name. Weights stay float32; with
`bfloat16` the forward pass of training runs under autocast and generation may
use a bfloat16 copy. What the rest of the engine needs of a model is here, so
that nothing else depends on an architecture.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mrsearch.engine import attention
from mrsearch.engine.cache import RowCache
from mrsearch.errors import MissingExtra, ModelError
from mrsearch.runs import HUB_NAME

logger = logging.getLogger(__name__)

_PROBE_TOLERANCE = 1e-3


class LanguageModel:
    """A decoder with its output layer, as the engine uses it.

    `hidden` gives the states before the output layer and `logits` applies that
    layer, so that training pays for the vocabulary at trained positions alone.
    """

    def __init__(self, module: PreTrainedModel, *, autocast: bool = False, checked: bool = False) -> None:
        """Wrap a model; one that is not `checked` yet is run on a few tokens first (`ModelError` if that fails)."""
        attention.register()
        # Always in evaluation mode: dropout in training would make another policy than the one that sampled.
        self.module = module.train(mode=False)
        self.device = next(module.parameters()).device
        # With adapters the module is a wrapper around the causal model; neither's attributes are typed.
        wrapper: Any = module
        self._causal: Any = wrapper.get_base_model() if self.adapted else module
        self._causal.config._attn_implementation = attention.NAME
        self._backbone = self._causal.base_model
        head: Any = self._causal.get_output_embeddings()
        if head is None or self._backbone is self._causal:
            raise ModelError(
                f"{type(self._causal).__name__} has no separate output layer; a causal language model does"
            )
        self._head = head
        self._autocast = False  # while it is checked: in bfloat16 a wrong path and rounding look alike
        config = self._causal.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._logit_scale: float = getattr(config, "logit_scale", None) or 1 / getattr(config, "logits_scaling", 1.0)
        self._generator: LanguageModel | None = None
        self._layer_types = set(getattr(config, "layer_types", None) or ())
        sliding = getattr(config, "sliding_window", None)
        self._sliding_window: int | None = sliding if not self._layer_types or self._slides else None
        unknown = self._layer_types - {"full_attention", "sliding_attention"}
        if unknown:
            raise ModelError(
                f"{type(self._causal).__name__} has layers of type {', '.join(sorted(unknown))}; "
                "the embedded engine keeps caches of full and sliding attention only"
            )
        parameters = inspect.signature(self._backbone.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.context_limit = _context_limit(config)
        if not checked:
            self._probe()
        self._autocast = autocast

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        lora_rank: int = 0,
        lora_alpha: int = 32,
    ) -> LanguageModel:
        """A model from a folder or hub name; safetensors only, no code from the model's repository."""
        attention.register()
        if not Path(name).exists() and HUB_NAME.fullmatch(str(name)) is None:
            raise ModelError(f"there is no model folder {name}, and it is no name on a hub (owner/model)")
        try:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            module: Any = AutoModelForCausalLM.from_pretrained(
                name,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",
                use_safetensors=True,
                trust_remote_code=False,
            )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            where = name if Path(name).exists() else f"{name} (there is no such folder; taken as a name on the hub)"
            raise ModelError(f"no causal language model can be loaded from {where}: {reason}") from error
        own_weights(module)
        if lora_rank:
            module = _with_lora(module, lora_rank, lora_alpha)
        return cls(module.to(device), autocast=dtype == "bfloat16")

    @property
    def vocabulary(self) -> int:
        """V, the number of logits."""
        return int(self._head.weight.shape[0])

    @property
    def width(self) -> int:
        """D, the size of a state."""
        return int(self._head.weight.shape[1])

    @property
    def _slides(self) -> bool:
        return "sliding_attention" in self._layer_types

    def hidden(
        self,
        ids: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """States before the output layer: [B, T] ids to [B, T, D].

        Rows padded on the right need no mask: attention is causal, so padding
        after a token cannot reach it. For padding elsewhere give the [B, T]
        mask and the positions.
        """
        with self.computing():
            output = self._backbone(
                input_ids=ids, position_ids=positions, attention_mask=attention_mask, use_cache=False
            )
        states: torch.Tensor = output.last_hidden_state
        return states

    def extend(
        self, ids: torch.Tensor, cache: RowCache, first: int, last: int, *, counts: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Feed [last - first, T] new tokens of rows first..last; returns their states [rows, T, D].

        `counts` says how many of each row's are real, where some are padding on the right.
        """
        dtype = self._causal.dtype
        positions, mask, sliding = cache.begin(first, last, ids.shape[1], device=ids.device, dtype=dtype)
        if counts is not None:
            # Padding must not ask for positions that the model does not have.
            ends = positions[:, :1] + torch.tensor(counts, device=ids.device)[:, None] - 1
            positions = torch.minimum(positions, ends)
        masks: Any = mask if sliding is None else sliding
        if self._slides:
            masks = {"full_attention": mask, "sliding_attention": sliding}
        output = self._backbone(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        states: torch.Tensor = output.last_hidden_state
        return states

    def new_cache(self, rows: int) -> RowCache:
        """An empty cache for so many rows."""
        return RowCache(rows, sliding_window=self._sliding_window)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """The output layer: [..., D] to float32 [..., V]."""
        with self.computing():
            logits: torch.Tensor = self._head(states)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self._logit_scale != 1:
            logits = logits * self._logit_scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        return logits

    def generator(self) -> LanguageModel:
        """The model to generate with: itself, or a bfloat16 copy that is brought up to its present weights."""
        if not self._autocast:
            return self
        if self._generator is None:
            # Only parameters are cast: rotary frequencies in bfloat16 would turn by wrong angles.
            halved: dict[int, Any] = {
                id(weight): torch.nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False)
                for weight in self.module.parameters()
            }
            self._generator = LanguageModel(copy.deepcopy(self.module, halved), checked=True)
        else:
            with torch.no_grad():
                weights = zip(self._generator.module.parameters(), self.module.parameters(), strict=True)
                for copied, weight in weights:
                    copied.copy_(weight)
        return self._generator

    @property
    def adapted(self) -> bool:
        """Whether adapters are trained, and not the model's own weights."""
        return hasattr(self.module, "peft_config")

    def trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Names and parameters that training changes, each once."""
        return ((name, p) for name, p in self.module.named_parameters() if p.requires_grad)

    def save(self, folder: Path) -> None:
        """Write the model in Hugging Face form; with LoRA the merged model, with the adapter beside it."""
        module: Any = self.module
        if hasattr(module, "merge_and_unload"):
            module.save_pretrained(folder / "adapter")
            copy.deepcopy(module).merge_and_unload().save_pretrained(folder)
        else:
            module.save_pretrained(folder)

    def computing(self) -> AbstractContextManager[Any]:
        """The precision of the forward pass; entered around several calls it casts each weight once."""
        if not self._autocast:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _probe(self) -> None:
        """Check on a few tokens that states, output layer and kept cache give what the model itself gives."""
        try:
            self._compare_with_itself()
        except ModelError:
            raise
        except Exception as error:  # of any kind: the architecture is somebody else's
            raise ModelError(
                f"{type(self._causal).__name__} cannot be run by the embedded engine "
                f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'})"
            ) from error

    @torch.no_grad()
    def _compare_with_itself(self) -> None:
        ids = torch.arange(6, device=self.device)[None] % self.vocabulary
        expected = self._causal(input_ids=ids, use_cache=False).logits
        apart = self.logits(self.hidden(ids))
        cache = self.new_cache(1)
        pieces = []
        for piece in (ids[:, :4], ids[:, 4:5], ids[:, 5:]):
            pieces.append(self.logits(self.extend(piece, cache, 0, 1)))
            cache.advance([piece.shape[1]])
        kept = torch.cat(pieces, dim=1)
        scale = max(1.0, float(expected.abs().max()))
        tolerance = (0.05 if self._causal.dtype == torch.bfloat16 else _PROBE_TOLERANCE) * scale
        for what, found in (("the output layer", apart), ("a kept cache", kept)):
            difference = float((found - expected).abs().max())
            if not difference <= tolerance:
                raise ModelError(
                    f"{type(self._causal).__name__}: {what} gives logits that differ by {difference:.3g} from the "
                    "model's own; the embedded engine does not support this architecture"
                )


def _context_limit(config: Any) -> int | None:
    """Most positions of one window; rotary embeddings that depend on a batch's length end where they begin to."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        return original or limit
    return limit


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a saved model, by name, in fresh memory."""
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        weights |= {name: weight.clone() for name, weight in load_file(path).items()}
    return weights


def own_weights(module: torch.nn.Module) -> None:
    """Copy all weights into fresh memory.

    Tensors mapped from a safetensors file may be aligned to 8 bytes only, and
    one-row products then differ in the last bits from those of an aligned copy.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.clone()


def _with_lora(module: PreTrainedModel, rank: int, alpha: int) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingExtra("model.lora_rank needs peft; install it with: pip install 'mrsearch[lora]'") from error
    return get_peft_model(
        module, LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    )
