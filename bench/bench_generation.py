"""Generating the turns of meta-episodes: a kept cache against reading everything anew.

Three ways to play the same plan of N episodes of two searches, with turns of a
fixed number of tokens, so that all sample equally many:
`kept` is this package's: the cache of each row lives on from turn to turn and
grows at its own pace; `anew` calls `model.generate` in every turn with the
whole context, padded on the left, as TRL and Search-R1 do; `lockstep` keeps one
`DynamicCache` for all rows, padded wherever their observations differ.
Weights are random: only the number of tokens matters.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import torch
from harness import (
    Row,
    Seconds,
    arguments,
    growth,
    measuring_memory,
    median,
    memory_in_subprocess,
    repetitions,
    report,
    tell_added_memory,
)
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from mrsearch.core.ports import Completion, Generate, Sampling, Search
from mrsearch.core.types import Passage
from mrsearch.data.mini_world import mini_model_config
from mrsearch.engine.mini_model import build_mini_model
from mrsearch.engine.model import LanguageModel
from mrsearch.engine.rollout import EmbeddedDriver

SHAPES = ("tiny", "135M")
TURNS_AN_EPISODE = 3


@dataclass(frozen=True)
class Plan:
    """How many rows and tokens; lengths of what the environment says vary from row to row by `spread`."""

    rows: int = 8
    episodes: int = 6
    prompt: int = 150
    turn: int = 40
    observation: int = 300
    reflection: int = 20
    spread: float = 0.2

    def shorter(self, times: int) -> Plan:
        """The same with lengths divided."""
        return replace(
            self,
            prompt=self.prompt // times,
            turn=self.turn // times,
            observation=self.observation // times,
            reflection=self.reflection // times,
        )

    def pieces(self, vocabulary: int) -> list[list[list[int]]]:
        """What the environment says before each turn, to each row."""
        rng = Random(0)
        said = []
        for turn in range(self.episodes * TURNS_AN_EPISODE):
            length = self.observation if turn % TURNS_AN_EPISODE else self.reflection if turn else self.prompt
            said.append(
                [
                    [rng.randrange(1, vocabulary) for _ in range(round(length * rng.uniform(1 - spread, 1 + spread)))]
                    for spread in [self.spread] * self.rows
                ]
            )
        return said


class Laps:
    """Time from the start to the end of each episode, since a shorter plan is the beginning of a longer one."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()
        self.episodes: list[Seconds] = []

    def after_turn(self, turn: int) -> None:
        """Take the time if this turn, counted from 0, was the last of an episode."""
        if turn % TURNS_AN_EPISODE == TURNS_AN_EPISODE - 1:
            self.episodes.append(Seconds(time.perf_counter() - self._start[0], time.process_time() - self._start[1]))


# -- this package ---------------------------------------------------------------------------------


class NoText:
    """All that generation asks of a codec, for a model that never writes a tag or ends its turn."""

    pad_id = 0
    end_ids: frozenset[int] = frozenset()

    def closing_ids(self) -> frozenset[int]:
        """No id has a `>`."""
        return frozenset()

    def decode(self, ids: Sequence[int]) -> str:
        """No text."""
        return ""


class Nothing:
    """Finds nothing: what is found is in the script."""

    def search(self, requests: Sequence[Search]) -> list[list[Passage]]:
        """No passages."""
        return [[] for _ in requests]


class ScriptedMachine:
    """Asks for what a meta-episode asks for, with observations laid down beforehand."""

    need: Generate | Search | None

    def __init__(self, row: int, pieces: Sequence[list[int]], plan: Plan, after_turn: Callable[[int], None]) -> None:
        self._row = row
        self._pieces = pieces
        self._plan = plan
        self._after_turn = after_turn
        self._turn = 0
        self._ids: list[int] = []
        self._ask()

    def feed(self, reply: Completion | Sequence[Passage]) -> None:
        """Take a turn or the outcome of a search."""
        if not isinstance(reply, Completion):
            self._ask()
            return
        assert len(reply.ids) == self._plan.turn
        self._ids += reply.ids
        self._after_turn(self._turn)
        self._turn += 1
        if self._turn == len(self._pieces):
            self.need = None
        elif self._turn % TURNS_AN_EPISODE:
            self.need = Search("", 1)
        else:
            self._ask()

    def _ask(self) -> None:
        new_from = len(self._ids)
        self._ids += self._pieces[self._turn]
        self.need = Generate(
            (self._row,), self._ids, new_from, self._plan.turn, (), Sampling(), 100 * self._row + self._turn
        )


def kept(model: LanguageModel, plan: Plan) -> list[Seconds]:
    """Play with this package's driver; returns the time at the end of each episode."""
    pieces = plan.pieces(model.vocabulary)
    laps = Laps()
    machines: list[Any] = [
        ScriptedMachine(
            row,
            [said[row] for said in pieces],
            plan,
            laps.after_turn if row == plan.rows - 1 else lambda turn: None,
        )
        for row in range(plan.rows)
    ]
    codec: Any = NoText()
    EmbeddedDriver(model, codec, Nothing(), rows=plan.rows).play(machines)
    return laps.episodes


# -- the peers ------------------------------------------------------------------------------------


@torch.no_grad()
def anew(module: Any, plan: Plan) -> list[Seconds]:
    """Play with `model.generate`, which reads the whole context in every turn."""
    pieces = plan.pieces(module.config.vocab_size)
    contexts: list[list[int]] = [[] for _ in range(plan.rows)]
    laps = Laps()
    for turn, said in enumerate(pieces):
        for context, ids in zip(contexts, said, strict=True):
            context += ids
        padded, mask = _left_padded(contexts)
        output = module.generate(
            input_ids=padded,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=plan.turn,
            pad_token_id=0,
            eos_token_id=None,
        )
        assert output.shape[1] == padded.shape[1] + plan.turn
        for context, new in zip(contexts, output[:, padded.shape[1] :].tolist(), strict=True):
            context += new
        laps.after_turn(turn)
    return laps.episodes


@torch.no_grad()
def lockstep(module: Any, plan: Plan) -> list[Seconds]:
    """Play with one kept cache that all rows fill alike."""
    pieces = plan.pieces(module.config.vocab_size)
    parameters = inspect.signature(module.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    cache = DynamicCache(config=module.config)
    seen = torch.zeros(plan.rows, 0, dtype=torch.long)
    laps = Laps()
    last: list[list[int]] = [[] for _ in range(plan.rows)]
    for turn, said in enumerate(pieces):
        ids, mask = _left_padded([[*before, *new] for before, new in zip(last, said, strict=True)])
        for _ in range(plan.turn):
            positions = (seen.sum(dim=1, keepdim=True) + mask.cumsum(dim=1) - 1).clamp(min=0)
            seen = torch.cat([seen, mask], dim=1)
            output = module(
                input_ids=ids,
                attention_mask=seen,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{name: cache},
            )
            ids = torch.multinomial(output.logits[:, -1].float().softmax(dim=-1), 1)
            mask = torch.ones_like(ids)
        last = ids.tolist()
        laps.after_turn(turn)
    return laps.episodes


def _left_padded(contexts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, contexts))
    ids = [[0] * (width - len(context)) + [*context] for context in contexts]
    mask = [[0] * (width - len(context)) + [1] * len(context) for context in contexts]
    return torch.tensor(ids), torch.tensor(mask)


# -- measuring ------------------------------------------------------------------------------------


def build_module(shape: str, dtype: torch.dtype, layers: int) -> Any:
    """Random weights in one of the two shapes."""
    if shape == "tiny":
        settings = mini_model_config(700)
        return build_mini_model(settings | {"num_hidden_layers": layers or settings["num_hidden_layers"]}, 0)
    torch.manual_seed(0)
    shape_settings: dict[str, Any] = {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": layers or 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        "attn_implementation": "sdpa",
    }
    module: Any = LlamaForCausalLM(LlamaConfig(**shape_settings))
    return module.to(dtype)


def ways(
    names: Sequence[str], shape: str, dtype: torch.dtype, layers: int
) -> dict[str, Callable[[Plan], list[Seconds]]]:
    """The named ways, each over a model of its own."""
    made: dict[str, Callable[[Plan], list[Seconds]]] = {}
    peer = build_module(shape, dtype, layers).train(mode=False) if set(names) & {"anew", "lockstep"} else None
    for name in names:
        if name == "kept":
            made[name] = partial(kept, LanguageModel(build_module(shape, dtype, layers)))
        else:
            made[name] = partial(anew if name == "anew" else lockstep, peer)
    return made


def measure(options: argparse.Namespace, shape: str, plan: Plan) -> list[Row]:
    """The lines of one shape."""
    dtype = getattr(torch, options.dtype) if shape == "135M" else torch.float32
    sizes = [n for n in (1, 2, 3, 6) if n <= plan.episodes]
    playing = ways(options.ways, shape, dtype, options.layers)
    for play in playing.values():
        play(replace(plan.shorter(8), episodes=1))  # warm up
    laps: dict[str, list[list[Seconds]]] = {name: [] for name in playing}
    for _ in range(repetitions(options)):
        for name, play in playing.items():
            laps[name].append(play(plan))
    times = {name: {n: median([run[n - 1] for run in runs]) for n in sizes} for name, runs in laps.items()}
    memory = {}
    if options.memory:
        for name in playing:
            case = [name, shape, options.dtype, str(options.layers), "1" if options.quick else "0", str(plan.episodes)]
            memory[name] = memory_in_subprocess(__file__, case, threads=options.threads)
    rows = []
    base = "anew" if "anew" in times else next(iter(times))
    for name, by_size in times.items():
        exponent = growth([1, sizes[-1]], [by_size[1].cpu, by_size[sizes[-1]].cpu]) if len(sizes) > 1 else 1.0
        for n in sizes:
            row: Row = {
                "shape": shape,
                "dtype": str(dtype).removeprefix("torch."),
                "way": name,
                "N": n,
                "wall s": by_size[n].wall,
                "cpu s": by_size[n].cpu,
                "tokens/cpu s": plan.rows * plan.turn * TURNS_AN_EPISODE * n / by_size[n].cpu,
                f"times faster than {base}": times[base][n].cpu / by_size[n].cpu,
                "growth": exponent,
            }
            if memory:
                row[f"memory, {base} = 1"] = memory[name] / memory[base]
            rows.append(row)
    return rows


def measure_memory(case: Sequence[str]) -> None:
    """In a fresh process: the memory of one way."""
    name, shape, dtype, layers, quick, episodes, _, threads = case
    torch.set_num_threads(int(threads))
    plan = replace(Plan().shorter(4) if quick == "1" else Plan(), episodes=int(episodes))
    play = ways([name], shape, getattr(torch, dtype) if shape == "135M" else torch.float32, int(layers))[name]
    tell_added_memory(partial(play, plan))


def main() -> None:
    """Measure and report."""
    case = measuring_memory(sys.argv[1:])
    if case is not None:
        measure_memory(case)
        return
    parser = arguments(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--ways", nargs="+", choices=("kept", "anew", "lockstep"), default=["kept", "anew", "lockstep"])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the larger shape")
    parser.add_argument("--episodes", type=int, default=6, help="the largest N (default: 6)")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the shape has, to be quicker")
    parser.add_argument("--memory", action="store_true", help="measure memory too, which plays each way once more")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = replace(Plan().shorter(4) if options.quick else Plan(), episodes=options.episodes)
    report(options, [row for shape in options.shapes for row in measure(options, shape, plan)])


if __name__ == "__main__":
    main()
