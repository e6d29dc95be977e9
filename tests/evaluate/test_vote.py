"""Answers of independent samples put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrsearch.evaluate.vote import majority_vote, most_confident, pass_at_k


def test_answers_that_normalise_alike_vote_together() -> None:
    assert majority_vote(["Rome", "the Paris!", "paris"]) == "the Paris!"


def test_the_first_of_equally_frequent_answers_wins() -> None:
    assert majority_vote(["b", "c", "c", "b"]) == "b"


def test_a_grade_of_an_article_votes_as_it_is() -> None:
    assert majority_vote(["B", "A", "a "]) == "A"
    assert majority_vote(["A", "The", "the"]) == "The"
    assert most_confident(["B", "A"], [-0.9, -0.2]) == "A"


def test_blank_and_missing_answers_do_not_vote() -> None:
    assert majority_vote([None, "", "  ", None, "Oslo"]) == "Oslo"
    assert majority_vote([None, ""]) is None


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample() -> None:
    # of the 10 pairs of 5 samples, 3 hold none of the 2 right ones
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_grows_with_k_and_ends_at_whether_any_is_right(case: tuple[int, int, int]) -> None:
    samples, right, k = case
    assert 0 <= pass_at_k(samples, right, k) <= 1
    assert pass_at_k(samples, right, samples) == (right > 0)
    if k > 1:
        assert pass_at_k(samples, right, k) >= pass_at_k(samples, right, k - 1)


@pytest.mark.parametrize("k", [0, 6])
def test_k_outside_the_samples_is_an_error(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}"):
        pass_at_k(5, 2, k)
