"""A key-value cache of rows that grow each at their own pace.

Row i holds `lengths[i]` tokens in its first columns, with no gaps, so that an
observation costs only its own tokens and a finished row can be moved out of
the way. One forward pass works on the first rows, as views and not copies.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

_LEAST_COLUMNS = 64


class RowCache(Cache):
    """Keys and values per layer as [rows, Hkv, columns, D], with a length for each row.

    Call `begin` before each forward pass: it says which rows and how many new
    tokens the pass brings, and gives positions and mask for the model.
    """

    def __init__(self, rows: int, *, sliding_window: int | None = None) -> None:
        super().__init__(layers=[])
        self._rows = rows
        self._window = sliding_window
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._columns = _LEAST_COLUMNS
        self.lengths = [0] * rows
        self._first = 0
        self._last = 0
        self._used = 0
        self._positions = torch.empty(0, 0, dtype=torch.long)
        self._index = torch.empty(0, dtype=torch.long)

    def begin(
        self, first: int, last: int, width: int, *, device: torch.device, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Prepare a pass of [last - first, width] new tokens for rows first..last.

        Returns positions [rows, width], the additive mask [rows, 1, width, used
        columns] and, for models with sliding attention, the mask of those layers.
        """
        starts = torch.tensor(self.lengths[first:last], device=device)
        self._first, self._last = first, last
        self._used = max(self.lengths[first:last]) + width
        self._reserve(self._used)
        self._positions = starts[:, None] + torch.arange(width, device=device)
        self._index = torch.arange(last - first, device=device)
        columns = torch.arange(self._used, device=device)
        ahead = columns[None, None, :] > self._positions[:, :, None]
        mask = torch.zeros(ahead.shape, device=device, dtype=dtype).masked_fill_(ahead, float("-inf"))
        sliding = None
        if self._window is not None:
            behind = columns[None, None, :] <= self._positions[:, :, None] - self._window
            sliding = mask.masked_fill(behind, float("-inf")).unsqueeze(1)
        return self._positions, mask.unsqueeze(1), sliding

    def advance(self, new_tokens: list[int]) -> None:
        """Say how many of the pass's tokens were real in each of its rows; padding is overwritten later."""
        for row, count in enumerate(new_tokens, start=self._first):
            self.lengths[row] += count

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the attention layers: store the new keys and values, return all of the pass's rows."""
        if layer_idx == len(self._keys):
            self._keys.append(self._allocate(key_states))
            self._values.append(self._allocate(value_states))
        result = []
        for store, new in ((self._keys[layer_idx], key_states), (self._values[layer_idx], value_states)):
            rows = store[self._first : self._last]
            if new.shape[2] == 1:
                rows[self._index, :, self._positions[:, 0]] = new[:, :, 0]
            else:
                rows[self._index[:, None], :, self._positions] = new.transpose(1, 2)
            result.append(rows[:, :, : self._used])
        return result[0], result[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest row; only asked by models that were given no positions."""
        return max(self.lengths, default=0)

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        length = self.lengths[source]
        for store in (*self._keys, *self._values):
            store[target, :, :length] = store[source, :, :length]
        self.lengths[target] = length

    def permute(self, rows: list[int], sources: list[int]) -> None:
        """Put the contents of rows `sources` into `rows`, which are the same rows in another order."""
        length = max(self.lengths[row] for row in rows)
        for layer, keys in enumerate(self._keys):
            into = torch.tensor(rows, device=keys.device)
            out_of = torch.tensor(sources, device=keys.device)
            for store in (keys, self._values[layer]):
                part = store[:, :, :length]
                part.index_copy_(0, into, part.index_select(0, out_of))
        lengths = [self.lengths[source] for source in sources]
        for row, moved in zip(rows, lengths, strict=True):
            self.lengths[row] = moved

    def take(self, other: RowCache, sources: list[int], target: int) -> None:
        """Copy rows of another cache to rows target, target + 1, ... of this one."""
        length = max(other.lengths[source] for source in sources)
        self._reserve(length)
        for layer, (keys, values) in enumerate(zip(other._keys, other._values, strict=True)):
            if layer == len(self._keys):
                self._keys.append(self._allocate(keys))
                self._values.append(self._allocate(values))
            index = torch.tensor(sources, device=keys.device)
            self._keys[layer][target : target + len(sources), :, :length] = keys[index, :, :length]
            self._values[layer][target : target + len(sources), :, :length] = values[index, :, :length]
        self.lengths[target : target + len(sources)] = [other.lengths[source] for source in sources]

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not whatever memory holds: a masked column still takes part in products, and 0 * NaN is NaN.
        return like.new_zeros(self._rows, like.shape[1], self._columns, like.shape[3])

    def _reserve(self, columns: int) -> None:
        if columns <= self._columns:
            return
        self._columns = max(columns, self._columns * 3 // 2)
        for stores in (self._keys, self._values):
            for layer, store in enumerate(stores):
                stores[layer] = self._allocate(store)
                stores[layer][:, :, : store.shape[2]] = store
