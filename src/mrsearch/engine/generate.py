"""Batched generation that keeps the caches of its rows across turns and episodes.

A `Session` lives as long as the rollout of one batch. Each call of `run` feeds
only the tokens that are new in each row and then decodes all rows together;
rows that finish leave the batch at once. Who is computed together depends on
the requests alone, and each row draws from its own random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from mrsearch.codec import HFCodec
from mrsearch.core.ports import Completion, CompletionEnd, Generate, Sampling
from mrsearch.engine.cache import RowCache
from mrsearch.engine.model import LanguageModel
from mrsearch.engine.pack import FILL

NEAR_TIE = 1e-4
"""Greedy choices whose two best logits are closer than this depend on batch and padding; they are counted."""

Window = tuple[int, ...]


class Session:
    """Rows of one rollout and their caches.

    `prefill_tokens` bounds the tokens, padding included, of one pass over new
    context. `counters` holds `generated_tokens`, `fed_tokens` (new context that
    was not sampled), `decode_steps` and `near_ties`.
    """

    def __init__(self, model: LanguageModel, codec: HFCodec, *, rows: int, prefill_tokens: int = 8192) -> None:
        self.counters: Counter[str] = Counter()
        self._model = model
        self._codec = codec
        self._cache = model.new_cache(rows)
        self._windows: list[Window] = []  # the window of each row in use
        self._prefill_tokens = prefill_tokens
        self._watched = _watched_ids(codec, model.vocabulary)

    @torch.inference_mode()
    def run(self, requests: Sequence[Generate]) -> list[Completion]:
        """One completion for each request, in order."""
        if not requests:
            return []
        rows = self._arrange(requests)
        requests_by_row = [requests[index] for index in rows]
        states = self._prefill(requests_by_row)
        turns = self._decode(requests_by_row, states)
        completions = dict(zip(rows, turns, strict=True))
        return [completions[index] for index in range(len(requests))]

    @torch.inference_mode()
    def release(self, windows: Iterable[Window]) -> None:
        """Free the rows of windows that will not go on."""
        for window in windows:
            if window in self._windows:
                row, end = self._windows.index(window), len(self._windows) - 1
                if row != end:
                    self._cache.move(end, row)
                    self._windows[row] = self._windows[end]
                self._windows.pop()
                self._cache.lengths[end] = 0

    # -- new context --------------------------------------------------------------------------

    def _arrange(self, requests: Sequence[Generate]) -> list[int]:
        """Bring the requests' rows to the front, rows with a cache first; returns the request of each row."""
        wanted = {request.window: index for index, request in enumerate(requests)}
        place = 0
        for row, window in enumerate(self._windows):
            if window in wanted:
                self._swap(row, place)
                place += 1
        for request in requests:
            if request.window not in self._windows:
                self._windows.append(request.window)
                self._swap(len(self._windows) - 1, place)
                place += 1
        return [wanted[window] for window in self._windows[:place]]

    def _swap(self, one: int, other: int) -> None:
        if one != other:
            self._cache.permute([one, other], [other, one])
            self._windows[one], self._windows[other] = self._windows[other], self._windows[one]

    def _prefill(self, requests: Sequence[Generate]) -> torch.Tensor:
        """Feed what is new in each row; returns the states of each row's last token [rows, D]."""
        lengths = self._cache.lengths
        kept = sum(1 for row in range(len(requests)) if lengths[row] > 0)
        parts = [self._feed(requests, first, last) for first, last in self._blocks(requests, kept)]
        if kept < len(requests):
            parts.append(self._feed_fresh(requests[kept:], kept))
        return torch.cat(parts)

    def _blocks(self, requests: Sequence[Generate], end: int) -> list[tuple[int, int]]:
        """Runs of rows 0..end whose new tokens fit one pass."""
        blocks, first, width = [], 0, 0
        for row in range(end):
            new = len(requests[row].ids) - self._cache.lengths[row]
            width = max(width, new)
            if row > first and width * (row - first + 1) > self._prefill_tokens:
                blocks.append((first, row))
                first, width = row, new
        if end:
            blocks.append((first, end))
        return blocks

    def _feed(self, requests: Sequence[Generate], first: int, last: int) -> torch.Tensor:
        new = [requests[row].ids[self._cache.lengths[row] :] for row in range(first, last)]
        return self._pass(self._cache, new, first, last)

    def _feed_fresh(self, requests: Sequence[Generate], target: int) -> torch.Tensor:
        """Rows without a cache: equal contexts (the members of a group) are computed once and copied."""
        contexts: dict[tuple[int, ...], int] = {}
        sources = [contexts.setdefault(tuple(request.ids), len(contexts)) for request in requests]
        distinct = list(contexts)
        states = []
        first = 0
        while first < len(distinct):
            last, width = first, 0
            while last < len(distinct):
                width = max(width, len(distinct[last]))
                if last > first and width * (last - first + 1) > self._prefill_tokens:
                    break
                last += 1
            scratch = self._model.new_cache(last - first)
            states.append(self._pass(scratch, distinct[first:last], 0, last - first))
            if last - first == len(distinct):
                self._cache.take(scratch, sources, target)
            else:
                for row, source in enumerate(sources):
                    if first <= source < last:
                        self._cache.take(scratch, [source - first], target + row)
            first = last
        return torch.cat(states)[torch.tensor(sources, device=self._model.device)]

    def _pass(self, cache: RowCache, new: Sequence[Sequence[int]], first: int, last: int) -> torch.Tensor:
        counts = [len(ids) for ids in new]
        width = max(counts)
        padded = [[*ids, *[FILL] * (width - len(ids))] for ids in new]
        states = self._model.extend(torch.tensor(padded, device=self._model.device), cache, first, last, counts=counts)
        cache.advance(counts)
        self.counters["fed_tokens"] += sum(counts)
        ends = torch.tensor(counts, device=states.device) - 1
        return states[torch.arange(last - first, device=states.device), ends]

    # -- decoding -----------------------------------------------------------------------------

    def _decode(self, requests: Sequence[Generate], states: torch.Tensor) -> list[Completion]:
        draw = _Draw([request.sampling for request in requests], requests, states.device)
        ids: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        ends: list[CompletionEnd] = ["length"] * len(requests)
        active = list(range(len(requests)))  # the request of each row that is still decoding
        step = 0
        while True:
            tokens, token_logprobs, ties = draw.tokens(self._model.logits(states), active, step)
            self.counters["near_ties"] += ties
            self.counters["decode_steps"] += 1
            finished = []
            for row, (index, token, logprob) in enumerate(zip(active, tokens, token_logprobs, strict=True)):
                ids[index].append(token)
                logprobs[index].append(logprob)
                end = self._end_of_turn(ids[index], token, requests[index])
                if end is not None:
                    ends[index] = end
                    finished.append(row)
            self.counters["generated_tokens"] += len(active)
            if finished:
                self._set_aside(finished, active, tokens)
            if not active:
                break
            step += 1
            new = torch.tensor(tokens, device=self._model.device)[:, None]
            states = self._model.extend(new, self._cache, 0, len(active))[:, 0]
            self._cache.advance([1] * len(active))
        return [Completion(*parts) for parts in zip(ids, logprobs, ends, strict=True)]

    def _end_of_turn(self, ids: list[int], token: int, request: Generate) -> CompletionEnd | None:
        watched = self._watched[token]
        if watched:
            if watched == _ENDS:
                return "end"
            text = self._codec.decode(ids[-_TAIL:])
            if any(stop in text for stop in request.stop):
                return "stop"
        return "length" if len(ids) >= request.max_tokens else None

    def _set_aside(self, finished: list[int], active: list[int], tokens: list[int]) -> None:
        """Move finished rows behind those that go on, all at once; `active` and `tokens` follow."""
        staying = len(active) - len(finished)
        holes = [row for row in finished if row < staying]
        movers = sorted(set(range(staying, len(active))).difference(finished))
        if holes:
            self._cache.permute([*holes, *movers], [*movers, *holes])
        for hole, mover in zip(holes, movers, strict=True):
            self._windows[hole], self._windows[mover] = self._windows[mover], self._windows[hole]
            active[hole], tokens[hole] = active[mover], tokens[mover]
        del active[staying:], tokens[staying:]


_CLOSES, _ENDS = 1, 2

_TAIL = 32
"""Tokens at the end of a turn that are looked at for a closing tag, which has nine characters."""


def _watched_ids(codec: HFCodec, vocabulary: int) -> bytes:
    """For each id: 0, or that it may complete a closing tag, or that it ends the turn."""
    watched = bytearray(vocabulary)
    for token in codec.closing_ids():
        if token < vocabulary:
            watched[token] = _CLOSES
    for token in codec.end_ids:
        if token < vocabulary:
            watched[token] = _ENDS
    return bytes(watched)


class _Draw:
    """Chooses tokens: for each row its own sampling settings and its own random numbers."""

    def __init__(self, samplings: Sequence[Sampling], requests: Sequence[Generate], device: torch.device) -> None:
        self._greedy = all(sampling.temperature == 0 for sampling in samplings)
        self._filtered = any(sampling.top_p < 1 or sampling.top_k > 0 for sampling in samplings)
        self._samplings = samplings
        self._temperature = torch.tensor([s.temperature or 1.0 for s in samplings], device=device)
        self._is_greedy = torch.tensor([s.temperature == 0 for s in samplings], device=device)
        # One uniform number a token, from the row's seed alone, whoever is in the batch.
        self._uniform = None
        if not self._greedy:
            numbers = np.zeros((len(requests), max(request.max_tokens for request in requests)))
            for row, request in enumerate(requests):
                generator = np.random.Generator(np.random.Philox(key=request.seed))
                numbers[row, : request.max_tokens] = generator.random(request.max_tokens)
            self._uniform = torch.from_numpy(numbers).to(device=device, dtype=_precise(device))

    def tokens(self, logits: torch.Tensor, active: Sequence[int], step: int) -> tuple[list[int], list[float], int]:
        """[rows, V] logits to ids, log-probabilities under the temperature, and the number of near ties."""
        index = torch.tensor(active, device=logits.device)
        scaled = logits / self._temperature[index, None]
        ties = 0
        if self._greedy:
            best = logits.topk(min(2, logits.shape[-1]), dim=-1)
            chosen = best.indices[:, 0]
            ties = int((best.values[:, 0] - best.values[:, -1] < NEAR_TIE).sum())
        else:
            assert self._uniform is not None
            chosen = _by_inverse(self._keep(scaled, active), self._uniform[index, step])
            chosen = torch.where(self._is_greedy[index], logits.argmax(dim=-1), chosen)
        logprobs = scaled.gather(1, chosen[:, None])[:, 0] - scaled.logsumexp(dim=-1)
        return chosen.tolist(), logprobs.tolist(), ties

    def _keep(self, scaled: torch.Tensor, active: Sequence[int]) -> torch.Tensor:
        """Logits with those outside top-k and top-p removed."""
        if not self._filtered:
            return scaled
        ordered, order = scaled.sort(dim=-1, descending=True)
        rank = torch.arange(scaled.shape[-1], device=scaled.device)[None]
        top_k = torch.tensor([self._samplings[i].top_k or scaled.shape[-1] for i in active], device=scaled.device)
        top_p = torch.tensor([self._samplings[i].top_p for i in active], device=scaled.device)
        beyond = rank >= top_k[:, None]
        # top-p is a share of what top-k leaves, as in Hugging Face's generation.
        probabilities = ordered.masked_fill(beyond, float("-inf")).softmax(dim=-1)
        mass_before = probabilities.cumsum(dim=-1) - probabilities
        removed = beyond | ((mass_before >= top_p[:, None]) & (rank > 0))
        return scaled.masked_fill(removed.scatter(1, order, removed), float("-inf"))


def _by_inverse(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw from softmax(logits) [rows, V] with one uniform number in [0, 1) a row."""
    cumulative = logits.to(_precise(logits.device)).softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    # The first id whose cumulative mass exceeds the number, so that one without mass is never drawn. Rounding can
    # bring the number up to the total; then it is the last id that has mass.
    reached = (cumulative > uniform[:, None] * total) | (cumulative >= total)
    return reached.to(torch.int8).argmax(dim=-1)


def _precise(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
