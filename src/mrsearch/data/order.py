"""The order in which rows of a data set are used: a fresh seeded permutation each epoch, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from mrsearch.errors import DataError

Item = TypeVar("Item")


class DataOrder(Generic[Item]):
    """Endless passes over items. `position` counts all items taken so far and can be set to go on from there."""

    def __init__(self, items: Sequence[Item], *, seed: int) -> None:
        if not items:
            raise DataError("there are no rows to train on")
        self._items = items
        self._seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)
        self.position = 0

    def take(self, count: int) -> list[Item]:
        """The next `count` items; an epoch's end is followed by the next epoch's beginning."""
        taken = []
        for index in range(self.position, self.position + count):
            epoch, place = divmod(index, len(self._items))
            if epoch != self._epoch:
                self._epoch = epoch
                self._permutation = np.random.default_rng((self._seed, epoch)).permutation(len(self._items))
            taken.append(self._items[self._permutation[place]])
        self.position += count
        return taken
