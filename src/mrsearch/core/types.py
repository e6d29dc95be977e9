"""The nouns that all parts share: question, passage, turn, episode, window, trajectory.

Plain data, no behaviour beyond keeping itself consistent and turning into JSON
and back. Episodes are counted from 1 everywhere (as in names of metrics);
numpy arrays over episodes have episode n in column n - 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from mrsearch.errors import DataError

SCHEMA = 1
"""Version of the trajectory record; raised when a reader of the old form would misread the new one."""

ActionKind = Literal["search", "answer", "invalid"]
TurnEnd = Literal["search", "answer", "invalid", "length", "context_full"]
EpisodeEnd = Literal["answer", "no_answer", "context_full", "retrieval_failed"]
MetaEnd = Literal["complete", "stopped", "context_full", "retrieval_failed"]


@dataclass(frozen=True, slots=True)
class Question:
    """One data row."""

    id: str
    question: str
    golden_answers: tuple[str, ...]
    data_source: str = ""
    supporting_titles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrieved text. `title` may be empty; `score` is the retriever's own, higher is better."""

    id: str
    title: str
    text: str
    score: float | None = None


def split_contents(contents: str) -> tuple[str, str]:
    r"""Title and text of a passage's contents. The quotes may be missing; without a line break there is no title.

    >>> split_contents('"Ada Lovelace"\nShe wrote the first program.')
    ('Ada Lovelace', 'She wrote the first program.')
    """
    title, line_break, text = contents.partition("\n")
    if not line_break:
        return "", contents.strip()
    title = title.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1].strip()
    return title, text.strip()


def join_contents(passage: Passage) -> str:
    r"""The contents of a passage, which `split_contents` takes apart.

    >>> join_contents(Passage("0", "Ada Lovelace", "She wrote."))
    '"Ada Lovelace"\nShe wrote.'
    """
    return f'"{passage.title}"\n{passage.text}'


@dataclass(frozen=True, slots=True)
class Action:
    """What a turn does: a query, an answer, or nothing that can be carried out (`invalid`, empty text)."""

    kind: ActionKind
    text: str = ""


@dataclass(slots=True)
class Window:
    """One sequence of token ids that the model reads and is trained on.

    The four lists always have one length (invariant 2): for each token its id,
    1 if the policy sampled it here and it is trained, the episode in whose
    course it was placed, and its log-probability at sampling (0 where not sampled).
    """

    ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    episode_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def place(self, ids: Sequence[int], *, episode: int) -> None:
        """Append tokens that the policy did not sample: prompts, observations, copied context."""
        self.ids.extend(ids)
        self.loss_mask.extend([0] * len(ids))
        self.episode_ids.extend([episode] * len(ids))
        self.logprobs.extend([0.0] * len(ids))

    def sample(self, ids: Sequence[int], logprobs: Sequence[float], *, episode: int) -> None:
        """Append tokens that the policy sampled, with their log-probabilities."""
        assert len(ids) == len(logprobs), f"{len(ids)} sampled ids but {len(logprobs)} log-probabilities"
        self.ids.extend(ids)
        self.loss_mask.extend([1] * len(ids))
        self.episode_ids.extend([episode] * len(ids))
        self.logprobs.extend(logprobs)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained(self) -> int:
        """Number of tokens that the policy sampled in this window."""
        return sum(self.loss_mask)


@dataclass(slots=True)
class Turn:
    """One generation of the policy and what came of it. `window`, `start`, `end` say where its ids stand."""

    text: str
    action: Action
    finish_reason: TurnEnd
    format_valid: bool
    window: int
    start: int
    end: int
    passages: tuple[Passage, ...] | None = None
    """What a search brought; None where none was carried out, empty where nothing was found."""


@dataclass(slots=True)
class Episode:
    """Turns up to an answer or to the end of the budget. `answer` is None unless one was given."""

    number: int
    turns: list[Turn] = field(default_factory=list)
    finish_reason: EpisodeEnd | None = None
    answer: str | None = None

    @property
    def searches(self) -> int:
        """Searches that were carried out; one after the budget was spent is not among them."""
        return sum(turn.passages is not None for turn in self.turns)


@dataclass(slots=True)
class Trajectory:
    """One finished meta-episode: what is scored, credited, trained on, recorded and looked at."""

    question: Question
    group: int
    member: int
    episodes: list[Episode]
    windows: list[Window]
    finish_reason: MetaEnd
    counters: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    lookup: tuple[Passage, ...] | None = None
    """What the search for the question itself brought; None where the plan has none."""
    turn_advantages: list[list[float]] = field(default_factory=list)
    """By episode and turn, where credit goes by turn; `advantages` are then those of the first turns."""

    def to_record(self) -> dict[str, Any]:
        """The trajectory as JSON data, the form of one line in `trajectories/`; its lists are shared, not copied."""
        return {
            "schema": SCHEMA,
            "question": asdict(self.question),
            "group": self.group,
            "member": self.member,
            "finish_reason": self.finish_reason,
            "rewards": self.rewards,
            "advantages": self.advantages,
            "episodes": [asdict(episode) for episode in self.episodes],
            "windows": [_fields(window) for window in self.windows],
            "counters": {name: count for name, count in self.counters.items() if count},
            **({"turn_advantages": self.turn_advantages} if self.turn_advantages else {}),
            **({} if self.lookup is None else {"lookup": [asdict(passage) for passage in self.lookup]}),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Trajectory:
        """Read back what `to_record` wrote; `DataError` for another version or a missing field."""
        if record.get("schema") != SCHEMA:
            raise DataError(f"trajectory record has schema {record.get('schema')!r}; this version reads {SCHEMA}")
        try:
            return cls(
                question=question_from_record(record["question"]),
                group=record["group"],
                member=record["member"],
                episodes=[_episode_from_record(episode) for episode in record["episodes"]],
                windows=[Window(**window) for window in record["windows"]],
                finish_reason=record["finish_reason"],
                counters=Counter(record["counters"]),
                rewards=list(record["rewards"]),
                advantages=list(record["advantages"]),
                turn_advantages=[list(turns) for turns in record.get("turn_advantages", ())],
                lookup=_passages_from_record(record.get("lookup")),
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"trajectory record is incomplete: {error}") from error


def _fields(window: Window) -> dict[str, Any]:
    return {field.name: getattr(window, field.name) for field in fields(window)}


def question_from_record(record: Mapping[str, Any]) -> Question:
    """A question from JSON data in our own field names; a single gold may stand without its list."""
    golds = record["golden_answers"]
    return Question(
        id=str(record["id"]),
        question=record["question"],
        golden_answers=(golds,) if isinstance(golds, str) else tuple(golds),
        data_source=record.get("data_source", ""),
        supporting_titles=tuple(record.get("supporting_titles", ())),
    )


def _episode_from_record(record: Mapping[str, Any]) -> Episode:
    return Episode(**{**record, "turns": [_turn_from_record(turn) for turn in record["turns"]]})


def _turn_from_record(record: Mapping[str, Any]) -> Turn:
    return Turn(
        **{
            **record,
            "action": Action(**record["action"]),
            "passages": _passages_from_record(record["passages"]),
        }
    )


def _passages_from_record(records: Sequence[Mapping[str, Any]] | None) -> tuple[Passage, ...] | None:
    return None if records is None else tuple(Passage(**passage) for passage in records)
