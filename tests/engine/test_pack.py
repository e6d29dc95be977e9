"""From meta-episodes to micro-batches: every sampled token once, with its episode's advantage, however it is padded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mrsearch.core.types import Action, Episode, Question, Trajectory, Turn, Window
from mrsearch.engine.pack import FILL, micro_batches, pad_rows, preserving, rows_of, scaled, split_by_group

CPU = torch.device("cpu")


def trajectory(*windows: Window, advantages: list[float], group: int = 0, episodes: int | None = None) -> Trajectory:
    played = [Episode(n + 1) for n in range(len(advantages) if episodes is None else episodes)]
    return Trajectory(Question("1", "Q", ("a",)), group, 0, played, list(windows), "complete", advantages=advantages)


def window(*pieces: tuple[str, list[int], int]) -> Window:
    """A window of pieces: who wrote it (`env` or `policy`), its ids, its episode."""
    result = Window()
    for writer, ids, episode in pieces:
        if writer == "policy":
            result.sample(ids, [-0.1 * token for token in ids], episode=episode)
        else:
            result.place(ids, episode=episode)
    return result


FULL = window(
    ("env", [1, 2], 1), ("policy", [3, 4], 1), ("env", [5], 1), ("policy", [6], 1), ("env", [7], 2), ("policy", [8], 2)
)


def test_only_sampled_tokens_are_trained_each_with_the_advantage_of_its_episode():
    (row,) = rows_of([trajectory(FULL, advantages=[0.5, -2.0])])
    assert row.ids == [1, 2, 3, 4, 5, 6, 7, 8]
    assert row.positions.tolist() == [2, 3, 5, 7]
    assert row.advantages.tolist() == [0.5, 0.5, 0.5, -2.0]
    assert row.logprobs.tolist() == [-0.1 * token for token in (3, 4, 6, 8)]


def test_each_window_of_a_short_context_is_a_row_of_the_same_group():
    first = window(("env", [1], 1), ("policy", [3, 4], 1))
    second = window(("env", [1, 3, 4, 7], 1), ("policy", [8], 2))  # the first episode is copied: context only
    rows = rows_of([trajectory(first, second, advantages=[0.5, -2.0], group=7)])
    assert [row.positions.tolist() for row in rows] == [[1, 2], [4]]
    assert [row.advantages.tolist() for row in rows] == [[0.5, 0.5], [-2.0]]
    assert [row.group for row in rows] == [7, 7]


def test_a_window_without_sampled_tokens_is_no_row():
    assert rows_of([trajectory(window(("env", [1, 2], 1)), advantages=[1.0])]) == []


def test_an_id_does_not_decide_whether_it_is_trained():
    """A sampled padding or end token is trained, and the same id from the environment is not."""
    pad = 0
    mixed = window(("env", [pad, 5, pad], 1), ("policy", [5, pad], 1), ("env", [pad], 1))
    (row,) = rows_of([trajectory(mixed, advantages=[1.0])])
    assert row.positions.tolist() == [3, 4]
    batch = pad_rows([row], device=CPU)
    assert batch.targets.tolist() == [5, pad]


def test_an_episode_without_an_advantage_counts_as_zero():
    (row,) = rows_of([trajectory(FULL, advantages=[0.5], episodes=2)])
    assert row.advantages.tolist() == [0.5, 0.5, 0.5, 0.0]


def test_what_has_no_advantage_needs_no_pass_and_what_follows_it_none_either():
    still, late, early = rows_of(
        [
            trajectory(FULL, advantages=[0.0, 0.0]),
            trajectory(FULL, advantages=[0.0, -2.0]),
            trajectory(FULL, advantages=[0.5, 0.0]),
        ]
    )
    assert still.with_gradient() is None
    kept = late.with_gradient()
    assert kept is not None
    assert (kept.ids, kept.positions.tolist(), kept.advantages.tolist()) == (FULL.ids, [7], [-2.0])
    cut = early.with_gradient()
    assert cut is not None
    assert (cut.ids, cut.positions.tolist()) == (FULL.ids[:6], [2, 3, 5])
    assert cut.logprobs.tolist() == early.logprobs[:3].tolist()


def test_a_batch_names_row_position_and_target_of_every_trained_token():
    short = window(("env", [9], 1), ("policy", [8], 1))
    batch = pad_rows(
        rows_of([trajectory(FULL, advantages=[0.5, -2.0]), trajectory(short, advantages=[3.0])]), device=CPU
    )
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [9, 8] + [FILL] * 6]
    assert batch.rows.tolist() == [0, 0, 0, 0, 1]
    assert batch.positions.tolist() == [2, 3, 5, 7, 1]
    assert batch.targets.tolist() == [3, 4, 6, 8, 8]
    assert batch.advantages.tolist() == [0.5, 0.5, 0.5, -2.0, 3.0]


def rows_of_lengths(*lengths: int):
    return rows_of(
        [trajectory(window(("env", [1] * (n - 1), 1), ("policy", [n], 1)), advantages=[1.0]) for n in lengths]
    )


def test_micro_batches_keep_to_their_budget_and_lose_no_row():
    rows = rows_of_lengths(9, 3, 30, 4, 5, 8, 3)
    batches = list(micro_batches(rows, 20, device=CPU))
    # sorted 3 3 4 5 | 8 9 | 30: four rows of width 5 make 20; 8 would need 40; the last is longer than the budget
    assert [tuple(batch.ids.shape) for batch in batches] == [(4, 5), (2, 9), (1, 30)]
    assert sorted(int(target) for batch in batches for target in batch.targets) == [3, 3, 4, 5, 8, 9, 30]


def test_without_rows_there_are_no_batches():
    assert list(micro_batches([], 100, device=CPU)) == []


def test_a_group_is_never_split_between_two_updates():
    rows = rows_of([trajectory(FULL, advantages=[1.0, 1.0], group=group) for group in (4, 4, 2, 9, 2, 4)])
    shares = split_by_group(rows, 2)
    assert [[row.group for row in share] for share in shares] == [[4, 4, 9, 4], [2, 2]]


def test_with_fewer_groups_than_updates_some_have_nothing_to_do():
    rows = rows_of([trajectory(FULL, advantages=[1.0, 1.0], group=3)])
    assert [len(share) for share in split_by_group(rows, 3)] == [1, 0, 0]


def with_turns(trajectory_: Trajectory) -> Trajectory:
    """A trajectory of `FULL` with its turns: a search and an answer in the first episode, an answer in the next."""
    places = [(1, 2, 4, "search"), (1, 5, 6, "answer"), (2, 7, 8, "answer")]
    for episode, start, end, kind in places:
        turn = Turn("", Action(kind, ""), "stop", True, 0, start, end)
        trajectory_.episodes[episode - 1].turns.append(turn)
    return trajectory_


def test_each_token_knows_its_episode_its_turn_and_whether_that_answers():
    (row,) = rows_of([with_turns(trajectory(FULL, advantages=[0.5, -2.0]))])
    assert row.episodes.tolist() == [1, 1, 1, 2]
    assert row.turns.tolist() == [0, 0, 1, 2]
    assert row.answers.tolist() == [False, False, True, True]
    batch = pad_rows([row, row], device=CPU)
    assert batch.actions.tolist() == [0, 0, 1, 2, 3, 3, 4, 5]
    assert batch.episodes.tolist() == [0, 0, 0, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        # Four tokens in one meta-episode, one in the other
        ("tokens", [1 / 5] * 5),
        ("sequences", [1 / 8] * 4 + [1 / 2]),
        ("constant", [1 / 20] * 5),
    ],
)
def test_scales_make_a_mean_of_a_sum(mean, expected):
    short = window(("env", [1], 1), ("policy", [9], 1))
    rows = rows_of([trajectory(FULL, advantages=[0.5, -2.0]), trajectory(short, advantages=[3.0])])
    found = scaled(rows, mean, 10 if mean == "constant" else 0)
    assert [scale for row in found for scale in row.scales] == pytest.approx(expected)


def test_windows_of_one_meta_episode_are_one_sequence():
    first, second = window(("policy", [3, 4], 1)), window(("env", [3], 1), ("policy", [8], 2))
    rows = scaled(rows_of([trajectory(first, second, advantages=[0.5, -2.0])]), "sequences")
    assert [row.scales.tolist() for row in rows] == [pytest.approx([1 / 3] * 2), pytest.approx([1 / 3])]


def test_episodes_whose_advantage_is_not_negative_are_held():
    rows = rows_of(
        [
            with_turns(trajectory(FULL, advantages=[0.5, -2.0], group=1)),
            with_turns(trajectory(FULL, advantages=[0.0, 1.0], group=2)),
            with_turns(trajectory(FULL, advantages=[-1.0, -1.0], group=3)),
        ]
    )
    # Three members: the first episode of the first, both of the second.
    first, second, third = (row.preserve for row in preserving(rows, "action", 1.0))
    assert first.tolist() == pytest.approx([1 / 9] * 3 + [0])
    assert second.tolist() == pytest.approx([1 / 9] * 3 + [1 / 3])
    assert not third.any()
    # By token the mean is over the 3 + 3 + 1 tokens of all members.
    assert preserving(rows, "token", 1.0)[1].preserve.tolist() == pytest.approx([1 / 7] * 4)
    assert preserving(rows, "action", 0.5)[0].preserve.tolist() == pytest.approx([1 / 9, 1 / 9, 1 / 18, 0])


def test_without_a_member_nothing_is_held():
    rows = rows_of([trajectory(FULL, advantages=[-1.0, -1.0])])
    assert not preserving(rows, "token", 1.0)[0].preserve.any()


def test_credit_by_turn_reaches_the_tokens_of_each_turn():
    made = with_turns(trajectory(FULL, advantages=[0.5, -2.0]))
    (row,) = rows_of([replace(made, turn_advantages=[[0.5, 0.25], [-2.0]])])
    assert row.advantages.tolist() == [0.5, 0.5, 0.25, -2.0]


def test_what_rounding_makes_of_nothing_is_held_and_a_turn_that_did_worse_is_not():
    made = with_turns(trajectory(FULL, advantages=[0.5, -1e-17]))
    (row,) = preserving(rows_of([replace(made, turn_advantages=[[0.5, -2.0], [-1e-17]])]), "action", 1.0)
    # Two members: the first turn's two tokens, and the last episode's one.
    assert row.preserve.tolist() == pytest.approx([1 / 4, 1 / 4, 0.0, 1 / 2])
