"""`mrsearch data` as a user runs it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mrsearch.cli import main
from mrsearch.data import sets
from mrsearch.data.demonstrations import load_demonstrations


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["data", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "q.jsonl"
    rows = [
        {"id": "1", "question": "Who wrote the first program?", "golden_answers": ["Ada Lovelace"]},
        {"id": "2", "question": "Where is Ada's engine?", "golden_answers": ["London"], "supporting_titles": ["Ada"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    rows = [
        {"id": "0", "contents": '"Ada"\nThe first program was written by Ada Lovelace.'},
        {"id": "1", "contents": '"Paris"\nA city in France.'},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(sets.SETS)
    code, out, _ = run(capsys, "list", "--json")
    assert json.loads(out)["popqa"]["rows"] == 14_267


def test_a_set_is_looked_through(capsys: pytest.CaptureFixture[str], questions: Path, corpus: Path) -> None:
    code, out, _ = run(capsys, "check", str(questions), "--corpus", str(corpus), "--against", str(questions), "--json")
    assert code == 0
    *table, last = out.splitlines()
    assert table[0].split()[:2] == ["set", "questions"]
    assert table[1].split() == ["q.jsonl", "2", "0", "0", "2", "0", "0", "0", "1", "2", "1.000", "0.500", "0.500"]
    (report,) = json.loads(last)["sets"]
    assert report["in_both"] == {str(questions): 2}
    assert report["hits"]["answer_at"]["1"] == 0.5


def test_rows_that_cannot_be_used_are_counted_and_fail(capsys: pytest.CaptureFixture[str], questions: Path) -> None:
    with questions.open("a") as file:
        file.write('{"id": "3"}\n{"id": "1", "question": "q", "golden_answers": ["a"]}\n')
    code, out, err = run(capsys, "check", str(questions))
    assert code == 2
    assert out.splitlines()[1].split()[:3] == ["q.jsonl", "2", "2"]
    assert "2 rows cannot be used; the first: " in err
    assert "row 3: 'question' is missing" in err


def test_ids_and_samples(capsys: pytest.CaptureFixture[str], questions: Path, corpus: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text('{"q": ["2"]}')
    code, out, _ = run(capsys, "check", str(questions), "--only", str(ids), "--corpus", str(corpus), "--limit", "5")
    assert code == 0
    assert out.splitlines()[1].split()[1] == "1"


def test_a_set_is_fetched_into_a_file(
    capsys: pytest.CaptureFixture[str], questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "load_set", lambda name: sets.load_questions(questions))
    out = tmp_path / "nq.jsonl"
    code, printed, _ = run(capsys, "get", "nq", "--out", str(out), "--limit", "1")
    assert code == 0
    assert printed.startswith(f"{out}: 1 questions, hash ")
    assert len(out.read_text().splitlines()) == 1
    code, _, err = run(capsys, "get", "nq", "--out", str(out))
    assert code == 2
    assert "is there already" in err


@pytest.fixture
def titled(tmp_path: Path) -> Path:
    """Two questions that can be demonstrated, one that has a tag, and one without titles."""
    path = tmp_path / "titled.jsonl"
    texts = [
        "Where was the engine of Ada built?",
        "Where is Ada from?",
        "What is a <search> tag of Ada?",
        "Who is Ada?",
    ]
    rows = [
        {"id": str(number), "question": text, "golden_answers": ["London"], "supporting_titles": ["Ada"] * (number < 3)}
        for number, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def places(tmp_path: Path) -> Path:
    path = tmp_path / "places.jsonl"
    path.write_text(
        json.dumps({"id": "0", "contents": '"Ada"\nAda lived in London, where her engine was built.'}) + "\n"
    )
    return path


def test_demonstrations_are_made_and_reported(
    capsys: pytest.CaptureFixture[str], titled: Path, places: Path, tmp_path: Path
) -> None:
    out = tmp_path / "demos.jsonl"
    arguments = ("demos", str(titled), "--corpus", str(places), "--expert", "1", "plan.episodes=2", "plan.searches=1")
    code, printed, err = run(capsys, *arguments, "--out", str(out), "--json")
    assert code == 0
    table, row, last = printed.splitlines()
    assert table.split()[-2:] == ["right@1", "right@2"]
    assert row.split()[0] == "2"
    report = json.loads(last)
    assert report["demonstrations"] == 2
    # the first episode finds Ada by its one search, the second keeps the answer
    assert (report["searches_per_episode"], report["right"], report["all_titles_found"]) == (0.5, [1.0, 1.0], 1.0)
    assert report["left_out"] == {"tags": 1, "no_titles": 1}
    assert "1 of 4 questions are left out: with tags of the protocol in them" in err
    assert "1 of 4 questions are left out: without supporting titles" in err
    demos = load_demonstrations(out)
    assert [demo.question.id for demo in demos] == ["0", "1"]
    assert all(len(demo.episodes) == 2 for demo in demos)

    code, _, err = run(capsys, *arguments, "--out", str(out))
    assert code == 2
    assert "is there already" in err
    again = tmp_path / "again.jsonl"
    assert run(capsys, *arguments, "--out", str(again))[0] == 0
    assert again.read_bytes() == out.read_bytes()


def test_demonstrations_of_a_sample_of_some_ids_from_an_index(
    capsys: pytest.CaptureFixture[str], titled: Path, places: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["index", str(places), "--out", str(tmp_path / "index")])
    assert not stop.value.code
    (tmp_path / "ids.json").write_text('["0", "1"]')
    out = tmp_path / "demos.jsonl"
    found = ("--index", str(tmp_path / "index"), "--only", str(tmp_path / "ids.json"), "--limit", "1", "--seed", "3")
    code, _, _ = run(capsys, "demos", str(titled), *found, "--out", str(out))
    assert code == 0
    (demo,) = load_demonstrations(out)
    assert len(demo.episodes) == 3  # the plan's own number
    assert next(passage.title for _, passages in demo.turns for passage in passages or ()) == "Ada"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("{titled}",), "say what is searched: --index DIR", id="nothing to search"),
        pytest.param(("plan.episodes=2", "--corpus", "{places}"), "name a file of questions", id="no questions"),
        pytest.param(
            ("{titled}", "--corpus", "{places}", "plan.serches=2"), "did you mean 'plan.searches'", id="setting"
        ),
        pytest.param(("{titled}", "--corpus", "{places}", "plan.turn_tokens=32"), "too few for a scripted", id="turns"),
        pytest.param(("{questions}", "--corpus", "{places}"), "1 of 2 questions are left out", id="some titles"),
        pytest.param(
            ("{untitled}", "--corpus", "{places}"), "none of the 1 questions has supporting titles", id="no titles"
        ),
        pytest.param(("{titled}", "--index", "{tmp}", "--corpus", "{places}"), "are both set", id="two sources"),
        pytest.param(("{titled}", "--corpus", "{places}", "--out", "{tmp}/none/d.jsonl"), "no folder", id="no folder"),
        pytest.param(("{titled}", "--corpus", "{places}", "--out", "{tmp}/d.jsonl.gz"), "not compressed", id="gz"),
    ],
)
def test_what_keeps_demonstrations_from_being_made_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
    questions: Path,
    titled: Path,
    places: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    untitled = tmp_path / "untitled.jsonl"
    untitled.write_text('{"id": "1", "question": "Who?", "golden_answers": ["Ada"]}\n')
    names = {"questions": questions, "titled": titled, "untitled": untitled, "places": places, "tmp": tmp_path}
    given = [argument.format(**names) for argument in arguments]
    out = [] if "--out" in given else ["--out", str(tmp_path / "d.jsonl")]
    code, _, err = run(capsys, "demos", *given, *out)
    assert said in err
    assert code == (0 if "left out" in said else 2)
    assert (tmp_path / "d.jsonl").exists() == (code == 0)


def test_a_name_that_nothing_has(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", "no-such-set")
    assert code == 2
    assert "there is no file no-such-set and no question set of that name" in err


class TestKeep:
    @pytest.fixture
    def samples(self, tmp_path: Path, questions: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        """What an agent that knows one of two answers played: each question in three samples."""
        settings = ["plan.window_tokens=20000", "plan.turn_tokens=2000", "plan.observation_tokens=2000"]
        options = ["--data", str(questions), "--corpus", str(corpus), "--mode", "parallel", "--episodes", "3"]
        with pytest.raises(SystemExit):
            main(["eval", "known:titles", *options, "--out", str(tmp_path / "samples"), *settings])
        capsys.readouterr()
        return tmp_path / "samples"

    def test_what_was_right_becomes_demonstrations(
        self, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "right.jsonl"
        code, said, err = run(capsys, "keep", str(samples), "--out", str(out), "--at-least", "0", "--json")
        assert (code, err) == (0, "")
        *shown, last = said.splitlines()
        assert shown[0] == f"{out}: 2 of 6 meta-episodes, on 2 of 2 questions"
        assert shown[1].startswith("left out: 4 that say word for word")
        assert json.loads(last)["left_out"] == {"repeated": 4}
        assert [one.question.id for one in load_demonstrations(out)] == ["1", "2"]

    def test_a_run_has_played_too(self, tmp_path: Path, samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (played,) = samples.glob("*.played.jsonl")
        record = json.loads(played.read_text().splitlines()[1])["played"][1]["samples"][0]
        folder = tmp_path / "run" / "trajectories"
        folder.mkdir(parents=True)
        with gzip.open(folder / "step-000001.main.jsonl.gz", "wt") as file:
            file.write(json.dumps(record) + "\n")
        out = tmp_path / "right.jsonl"
        code, said, _ = run(capsys, "keep", str(tmp_path / "run"), "--at-least", "0", "--out", str(out))
        assert (code, said) == (0, f"{out}: 1 of 1 meta-episodes, on 1 of 1 questions\n")

    @pytest.mark.parametrize(
        ("source", "options", "message"),
        [
            ("none", [], "there is no "),
            (".", [], "holds neither trajectories of a run nor"),
            ("q.jsonl", [], "row 1: no trajectory"),
            ("samples", ["--reward", "bleu"], "there is no reward 'bleu'; known are em, f1, sub_em"),
            ("samples", ["--out", "q.jsonl"], "is there already; choose another --out"),
            (
                "samples",
                ["--reward", "em"],
                "none of the 6 meta-episodes is worth keeping: 6 with a last answer that scores",
            ),
        ],
    )
    def test_wrong_use_has_one_line(
        self,
        samples: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        source: str,
        options: list[str],
        message: str,
    ) -> None:
        monkeypatch.chdir(samples.parent)
        code, out, err = run(capsys, "keep", source, "--out", "right.jsonl", *options)
        assert (code, out) == (2, "")
        assert message in err
        assert not Path("right.jsonl").exists()
