"""Curves of results: their numbers, and that a picture of every kind is drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mrsearch.errors import ConfigError, MissingExtra
from mrsearch.evaluate.plot import cumulative_tokens, draw, result_curve


def reflect() -> dict[str, Any]:
    answers = [{"em": [0.0, 1.0, 0.0], "tokens": [10, 20, 30]}, {"em": [0.0, 1.0, 1.0], "tokens": [20, 0, 10]}]
    return {"set": "dev", "mode": "reflect", "episodes": 3, "answers": answers}


def parallel() -> dict[str, Any]:
    # The vote of three is wrong where a single sample was right.
    answers = [{"em": [1.0, 1.0, 0.0], "right": [1.0, 0.0, 0.0], "tokens": [9, 9, 9]}]
    return {"set": "dev", "mode": "parallel", "episodes": 3, "answers": answers}


def test_tokens_are_those_of_all_places_so_far() -> None:
    assert cumulative_tokens(reflect()["answers"]) == [15.0, 25.0, 45.0]
    assert cumulative_tokens([]) == []


def test_a_curve_of_episodes() -> None:
    curve = result_curve(reflect(), "mine")
    assert {name: curve[name] for name in ("label", "set", "questions", "place", "em", "any", "tokens")} == {
        "label": "mine",
        "set": "dev",
        "questions": 2,
        "place": "episodes",
        "em": [0.0, 1.0, 0.5],
        "any": [0.0, 1.0, 1.0],
        "tokens": [15.0, 25.0, 45.0],
    }
    assert (curve["low"], curve["high"]) == ([0.0, 1.0, 0.0], [0.0, 1.0, 1.0])


def test_any_of_samples_is_whether_one_was_right_and_not_whether_a_vote_was() -> None:
    curve = result_curve(parallel(), "")
    assert (curve["place"], curve["em"], curve["any"]) == ("samples", [1.0, 1.0, 0.0], [1.0, 1.0, 1.0])


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_a_picture_and_its_numbers(tmp_path: Path, name: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    curves = [
        result_curve(reflect(), "one"),
        result_curve(parallel(), "two"),
        {**result_curve(reflect(), "b"), "set": "x"},
    ]
    assert draw(curves, tmp_path / name) == tmp_path / "a.json"
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert json.loads((tmp_path / "a.json").read_text()) == {"curves": curves}


def test_a_name_of_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match=r"name a file that ends with \.png"):
        draw([result_curve(reflect(), "one")], tmp_path / "a.text")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"mrsearch\[plot\]"):
        draw([result_curve(reflect(), "one")], tmp_path / "a.png")
