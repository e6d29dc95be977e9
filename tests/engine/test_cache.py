"""The row cache: what is stored is what comes back, wherever a row is moved and however the cache grows."""

from __future__ import annotations

import pytest
import torch

from mrsearch.engine.cache import RowCache
from tiny_models import ARCHITECTURES, VOCABULARY, WINDOW, tiny_model

CPU = torch.device("cpu")
HEADS, D, LAYERS = 2, 3, 2


def text(row: int, length: int, *, start: int = 0) -> torch.Tensor:
    """Keys of one row [HEADS, length, D] that say row, head, column and place, so that any mix-up shows."""
    head = torch.arange(HEADS)[:, None, None]
    column = torch.arange(start, start + length)[None, :, None]
    place = torch.arange(D)[None, None, :]
    return (1000.0 * row + 100.0 * head + column + 0.1 * place).double()


def feed(cache: RowCache, first: int, names: list[int], lengths: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One pass of the rows from `first`, row i with the text named `names[i]`; padding is filled with -1."""
    width = max(lengths)
    starts = cache.lengths[first : first + len(names)]
    new = torch.full((len(names), HEADS, width, D), -1.0, dtype=torch.float64)
    for row, (name, length, start) in enumerate(zip(names, lengths, starts, strict=True)):
        new[row, :, :length] = text(name, length, start=start)
    cache.begin(first, first + len(names), width, device=CPU, dtype=torch.float64)
    stored = [cache.update(new + 0.01 * layer, -new - 0.01 * layer, layer) for layer in range(LAYERS)]
    cache.advance(lengths)
    return stored


def held(cache: RowCache, row: int) -> list[torch.Tensor]:
    """Keys of one row in each layer, read by a pass of one new token over it."""
    length = cache.lengths[row]
    cache.begin(row, row + 1, 1, device=CPU, dtype=torch.float64)
    empty = torch.zeros(1, HEADS, 1, D, dtype=torch.float64)
    kept = []
    for layer in range(LAYERS):
        keys, values = cache.update(empty, empty, layer)
        assert torch.equal(keys[0, :, :length], -values[0, :, :length])
        kept.append(keys[0, :, :length].clone())
    return kept


def assert_holds(cache: RowCache, row: int, name: int, length: int) -> None:
    assert cache.lengths[row] == length
    for layer, keys in enumerate(held(cache, row)):
        assert torch.equal(keys, text(name, length) + 0.01 * layer)


def three_rows() -> RowCache:
    """Texts 1, 2, 3 of lengths 5, 2, 4 in rows 0, 1, 2; row 3 is empty."""
    cache = RowCache(4)
    feed(cache, 0, [1, 2, 3], [5, 2, 4])
    return cache


def test_rows_of_different_lengths_keep_their_own_tokens():
    cache = three_rows()
    for row, length in enumerate((5, 2, 4)):
        assert_holds(cache, row, row + 1, length)


def test_new_tokens_overwrite_the_padding_of_the_pass_before():
    cache = three_rows()
    feed(cache, 0, [1, 2, 3], [1, 6, 2])
    for row, length in enumerate((6, 8, 6)):
        assert_holds(cache, row, row + 1, length)


def test_a_pass_over_some_rows_leaves_the_others_alone():
    cache = three_rows()
    feed(cache, 1, [2], [3])
    for row, length in enumerate((5, 5, 4)):
        assert_holds(cache, row, row + 1, length)


def test_a_pass_gets_positions_and_a_mask_from_each_rows_own_length():
    cache = three_rows()
    positions, mask, sliding = cache.begin(0, 2, 2, device=CPU, dtype=torch.float64)
    assert positions.tolist() == [[5, 6], [2, 3]]
    assert mask.shape == (2, 1, 2, 7)  # five tokens of the longest row and two new ones
    assert (mask[0, 0] == 0).sum(dim=-1).tolist() == [6, 7]
    assert (mask[1, 0] == 0).sum(dim=-1).tolist() == [3, 4]  # what lies beyond the row's own end is not seen
    assert sliding is None


def test_sliding_layers_see_a_window_only():
    cache = RowCache(1, sliding_window=3)
    cache.lengths = [4]
    _, full, sliding = cache.begin(0, 1, 2, device=CPU, dtype=torch.float32)
    assert sliding is not None
    assert (full[0, 0] == 0).tolist() == [[True] * 5 + [False], [True] * 6]
    # token 4 sees 2, 3 and itself, token 5 sees 3, 4 and itself
    assert (sliding[0, 0] == 0).tolist() == [
        [False, False, True, True, True, False],
        [False, False, False, True, True, True],
    ]


def test_permuted_rows_change_places_with_their_lengths():
    cache = three_rows()
    cache.permute([0, 1], [1, 0])
    cache.permute([2, 3], [3, 2])  # with an empty row
    assert_holds(cache, 0, 2, 2)
    assert_holds(cache, 1, 1, 5)
    assert_holds(cache, 3, 3, 4)
    assert cache.lengths[2] == 0


def test_rows_in_their_own_order_stay_as_they_are():
    cache = three_rows()
    cache.permute([1], [1])
    assert_holds(cache, 1, 2, 2)


def test_a_moved_row_replaces_another():
    cache = three_rows()
    cache.move(2, 0)
    assert_holds(cache, 0, 3, 4)
    assert_holds(cache, 2, 3, 4)


def test_rows_are_taken_from_another_cache_in_the_order_asked_for():
    cache, other = three_rows(), RowCache(2)
    feed(other, 0, [8, 9], [3, 6])
    cache.take(other, [1, 0], 2)
    assert_holds(cache, 0, 1, 5)
    assert_holds(cache, 2, 9, 6)
    assert_holds(cache, 3, 8, 3)


def test_an_empty_cache_can_take_rows():
    cache, other = RowCache(3), RowCache(1)
    feed(other, 0, [8], [100])  # more columns than a new cache has
    cache.take(other, [0, 0, 0], 0)
    for row in range(3):
        assert_holds(cache, row, 8, 100)


def test_growth_keeps_every_row():
    cache = three_rows()
    feed(cache, 0, [1], [150])
    feed(cache, 1, [2], [400])
    assert_holds(cache, 0, 1, 155)
    assert_holds(cache, 1, 2, 402)
    assert_holds(cache, 2, 3, 4)


def test_a_taken_row_may_be_longer_than_the_cache_is_wide():
    cache, other = three_rows(), RowCache(1)
    feed(other, 0, [8], [300])
    cache.take(other, [0], 3)
    assert_holds(cache, 0, 1, 5)
    assert_holds(cache, 3, 8, 300)


def test_the_longest_row_is_the_length_of_the_cache():
    assert RowCache(2).get_seq_length() == 0
    assert three_rows().get_seq_length() == 5


# -- with a model -----------------------------------------------------------------------------


def some_ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_a_finished_row_that_was_set_aside_goes_on_exactly(name):
    model = tiny_model(name, double=True)
    ids = some_ids(3, 14)
    alone = model.hidden(ids)
    cache = model.new_cache(3)
    model.extend(ids[:, :6], cache, 0, 3)
    cache.advance([6, 6, 6])
    cache.permute([0, 2], [2, 0])  # row 0 is finished: the others go on without it, grow, and it comes back
    model.extend(torch.stack([ids[2, 6:], ids[1, 6:]]), cache, 0, 2)
    cache.advance([8, 8])
    cache.permute([2, 0], [0, 2])
    back = model.extend(ids[:1, 6:], cache, 0, 1)
    torch.testing.assert_close(back, alone[:1, 6:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_stale_columns_never_leak(name):
    """Whatever stands beyond a row's end, it is not seen: columns there are filled with huge numbers."""
    model = tiny_model(name, double=True)
    ids = some_ids(2, WINDOW + 6)
    outputs = []
    for filling in (0.0, 1e150):
        cache = model.new_cache(2)
        model.extend(ids[:, :5], cache, 0, 2)
        cache.advance([5, 2])  # three tokens of row 1 were padding
        for store in (*cache._keys, *cache._values):
            for row in range(2):
                store[row, :, cache.lengths[row] :] = filling
        outputs.append(model.extend(ids[:, 5:], cache, 0, 2))
    assert torch.isfinite(outputs[1]).all()
    assert torch.equal(outputs[0], outputs[1])
