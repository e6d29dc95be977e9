"""The order of rows: every epoch takes each row once, and a position is all that a resumed run needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.data.order import DataOrder
from mrsearch.errors import DataError

ROWS = list("abcdefghij")


def test_an_epoch_takes_every_row_once() -> None:
    order = DataOrder(ROWS, seed=0)
    assert sorted(order.take(10)) == ROWS
    assert sorted(order.take(10)) == ROWS


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, other_seed = DataOrder(ROWS, seed=0), DataOrder(ROWS, seed=1)
    orders = [first.take(10), first.take(10), other_seed.take(10), ROWS]
    assert len({tuple(order) for order in orders}) == 4


def test_a_batch_may_reach_over_the_end_of_an_epoch_and_over_several() -> None:
    taken = DataOrder(ROWS[:3], seed=0).take(8)
    assert sorted(taken[:3]) == sorted(taken[3:6]) == ["a", "b", "c"]
    assert len(taken) == 8


def test_without_rows_there_is_nothing_to_train_on() -> None:
    with pytest.raises(DataError, match="no rows to train on"):
        DataOrder([], seed=0)


@given(
    rows=st.integers(1, 7),
    seed=st.integers(0, 2**32),
    counts=st.lists(st.integers(0, 9), max_size=8),
    stop=st.integers(0, 8),
)
def test_from_a_position_it_goes_on_as_if_never_interrupted(rows: int, seed: int, counts: list[int], stop: int) -> None:
    whole = DataOrder(range(rows), seed=seed)
    taken = [whole.take(count) for count in counts]
    before, after = DataOrder(range(rows), seed=seed), DataOrder(range(rows), seed=seed)
    for count in counts[:stop]:
        before.take(count)
    after.position = before.position
    assert [after.take(count) for count in counts[stop:]] == taken[stop:]


@given(counts=st.lists(st.integers(0, 9), max_size=8))
def test_the_size_of_batches_does_not_change_the_order(counts: list[int]) -> None:
    order = DataOrder(ROWS, seed=4)
    one_by_one = [row for count in counts for row in order.take(count)]
    assert one_by_one == DataOrder(ROWS, seed=4).take(sum(counts))


def test_going_back_to_a_position_repeats_what_followed() -> None:
    order = DataOrder(ROWS, seed=0)
    order.take(7)
    position, following = order.position, order.take(9)
    order.position = position
    assert order.take(9) == following
