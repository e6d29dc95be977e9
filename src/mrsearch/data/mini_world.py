"""The mini world: a few hundred invented facts in which the method learns on a CPU in minutes.

Entities of four types hold three relations each; a question is a chain of
relations, and a searcher with K searches an episode finishes a longer chain
only by building on earlier episodes. Every world speaks the same words and
names, with facts of its own, so that a model trained on some worlds can read
another but knows nothing in it. This module makes the world, its questions,
tokenizer, prompts and demonstrations; it knows nothing of models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any, Literal, get_args

from mrsearch.core.protocol import Prompts, parse_action
from mrsearch.core.types import Passage, Question
from mrsearch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Split = Literal["tr", "te"]
"""Entities for training and held out; no fact leads from one to the other."""

RELATIONS: dict[str, dict[str, str]] = {
    "film": {"director": "person", "star": "person", "studio": "company"},
    "person": {"birthplace": "town", "spouse": "person", "employer": "company"},
    "company": {"seat": "town", "founder": "person", "partner": "company"},
    "town": {"mayor": "person", "twin": "town", "sponsor": "company"},
}
"""For each type its relations, each with the type of its value."""

SHARES = {"film": 0.3, "person": 0.3, "company": 0.2, "town": 0.2}
"""Share of each type among the entities."""

TRAINING_SHARE = 0.7
"""Share of each type's entities that is in split `tr`."""

TITLE_WEIGHT = 3
"""How often a title counts on top of its mention in the text, when passages are looked up."""

_SYLLABLES = ("BDFGHJKLMNPRSTVZ", "aeiou", "bdklmnprtv", ("en", "or", "el", "a", "us", "in", "ar", "o"))


def _all_names() -> tuple[str, ...]:
    ordered = ["".join(parts) for parts in product(*_SYLLABLES)]
    # A stride with no common factor visits every name once and keeps neighbours unlike each other.
    return tuple(ordered[i * 2677 % len(ordered)] for i in range(len(ordered)))


NAMES = _all_names()
"""The names of all worlds, in a fixed order: a world of n entities uses the first n."""


@dataclass(frozen=True)
class Entity:
    """One thing of the world: its name, type and split, and its facts in the order in which its passage tells them."""

    name: str
    type: str
    split: Split
    facts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The passage about this entity."""
        facts = " ".join(f"{relation} {value} ." for relation, value in self.facts)
        return f"{self.name} is a {self.type} . {facts}"


@dataclass(frozen=True)
class MiniWorld:
    """Entities and their facts; made by `build_world`."""

    seed: int
    entities: tuple[Entity, ...]

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """One passage an entity, in the order of the entities: the corpus to search."""
        return tuple(Passage(f"mini-w{self.seed}-{e.name}", e.name, e.text) for e in self.entities)

    @cached_property
    def facts(self) -> dict[str, dict[str, str]]:
        """Name to relation to value."""
        return {entity.name: dict(entity.facts) for entity in self.entities}

    @cached_property
    def _weights(self) -> dict[str, dict[int, int]]:
        """Word to passage row to how much that word counts there."""
        weights: dict[str, Counter[int]] = {}
        for row, passage in enumerate(self.passages):
            for word in passage.text.split():
                weights.setdefault(word, Counter())[row] += 1
            weights[passage.title][row] += TITLE_WEIGHT
        return {word: dict(rows) for word, rows in weights.items()}

    def look_up(self, query: str) -> Passage | None:
        """The passage that shares most words with a query, titles counting more; None where nothing is shared.

        A stand-in for a lexical search engine that returns the same passage for a name.
        """
        scores: Counter[int] = Counter()
        for word in query.split():
            scores.update(self._weights.get(word, {}))
        if not scores:
            return None
        return self.passages[min(scores, key=lambda row: (-scores[row], row))]


def build_world(seed: int, entities: int = 300) -> MiniWorld:
    """A world of the given size. Another seed gives the same names other types, splits and facts."""
    if not 40 <= entities <= len(NAMES):
        raise ConfigError(f"a mini world has 40 to {len(NAMES)} entities, not {entities}")
    rng = Random(seed)
    names = list(NAMES[:entities])
    kinds = _kinds(entities)
    rng.shuffle(names)
    members: dict[tuple[str, str], list[str]] = {}
    for name, kind in zip(names, kinds, strict=True):
        members.setdefault(kind, []).append(name)
    made = {
        name: Entity(name, kind, split, _draw_facts(rng, name, kind, split, members))
        for name, (kind, split) in zip(names, kinds, strict=True)
    }
    # In the order of the fixed list, so that a passage's place in the corpus says nothing about its type or split.
    return MiniWorld(seed, tuple(made[name] for name in NAMES[:entities]))


def _kinds(entities: int) -> list[tuple[str, Split]]:
    """Type and split of every entity, in the shares above."""
    counts = {name: round(share * entities) for name, share in SHARES.items()}
    counts["film"] += entities - sum(counts.values())
    kinds: list[tuple[str, Split]] = []
    for name, count in counts.items():
        training = round(TRAINING_SHARE * count)
        kinds.extend((name, "tr" if row < training else "te") for row in range(count))
    return kinds


def _draw_facts(
    rng: Random, name: str, kind: str, split: Split, members: dict[tuple[str, str], list[str]]
) -> tuple[tuple[str, str], ...]:
    facts: dict[str, str] = {}
    for relation, value_type in RELATIONS[kind].items():
        taken = {name, *facts.values()}
        facts[relation] = rng.choice([other for other in members[value_type, split] if other not in taken])
    told = list(facts.items())
    rng.shuffle(told)
    return tuple(told)


# --- Questions -------------------------------------------------------------


def chain_questions(
    world: MiniWorld, split: Split, count: int, hops: Sequence[int] = (1, 2, 3, 4), seed: int = 0
) -> list[Question]:
    """Distinct questions of one split, the numbers of hops taking turns so that every prefix is balanced.

    No chain repeats an entity or a relation. `supporting_titles` are the entities to look up, the first one first,
    so their number is the number of hops. Asking for more than exist is a `ConfigError` that says how many do: in a
    world of 300, split `tr` has 630 questions of one hop and about 1,700, 4,400 and 9,700 of two, three and four;
    `te` has 270, 740, 1,900 and 4,000.
    """
    if split not in get_args(Split):
        raise ConfigError(f"unknown split {split!r}; the splits of a mini world are {' and '.join(get_args(Split))}")
    if not hops or min(hops) < 1:
        raise ConfigError(f"hops must be one or more whole numbers from 1, not {list(hops)}")
    chains = {n: _chains(world, split, n, seed) for n in dict.fromkeys(hops)}
    questions: list[Question] = []
    for row in range(count):
        n = hops[row % len(hops)]
        chain = next(chains[n], None)
        if chain is None:
            found = sum(len(question.supporting_titles) == n for question in questions)
            raise ConfigError(
                f"split {split!r} of this world has {found} questions of {n} hops, too few for {count} questions "
                f"with hops {list(hops)}; ask for fewer, or build a larger world"
            )
        questions.append(_question(world, split, *chain))
    return questions


def _chains(world: MiniWorld, split: Split, hops: int, seed: int) -> Iterator[tuple[list[str], list[str]]]:
    """All chains of one length, each as (names from start to end, relations), in random order."""
    starts = [entity for entity in world.entities if entity.split == split]
    # A chain is a start and one of three relations at each step: a number in this range, if nothing repeats.
    size = len(starts) * 3**hops
    for code in Random(f"{seed} {hops}").sample(range(size), size):
        rest, start = divmod(code, len(starts))
        names, relations = [starts[start].name], []
        for _ in range(hops):
            rest, choice = divmod(rest, 3)
            relation, value = list(world.facts[names[-1]].items())[choice]
            if value in names or relation in relations:
                break
            names.append(value)
            relations.append(relation)
        else:
            yield names, relations


def _question(world: MiniWorld, split: Split, names: list[str], relations: list[str]) -> Question:
    return Question(
        id=f"mini-w{world.seed}-{split}-{'.'.join([names[0], *relations])}",
        question=" ".join([names[0], *(f"'s {relation}" for relation in relations), "?"]),
        golden_answers=(names[-1],),
        data_source="mini",
        supporting_titles=tuple(names[:-1]),
    )


# --- Words, tokenizer, prompts, model --------------------------------------

MINI_PROMPTS = Prompts(
    question="question : {question}\n",
    explore="<reflect> try another way </reflect>\n",
    reflection="<reflect> check and try again </reflect>\n",
    continuation="<reflect> next attempt </reflect>\n",
    invalid="\n<information> not an action </information>\n",
    last_call="\n<information> no more searches </information>\n",
    no_passages="nothing found",
    passage="{text}",
    passage_untitled="{text}",
    direct="question : {question}\n",
    cot="question : {question}\n",
    rag="question : {question}\n",
    ircot="question : {question}\n",
    ircot_invalid="\n<information> not an action </information>\n",
    condense="question : {question}\n",
)
"""What the environment says in the mini world, in its few words. A title opens its passage's text already."""

CONTROL = ("<pad>", "<unk>", "<bos>", "<eos>")
"""The tokenizer's special tokens, at ids 0 to 3."""

TAGS = tuple(
    tag for name in ("think", "search", "answer", "information", "reflect") for tag in (f"<{name}>", f"</{name}>")
)
"""The tags of the protocol: one token each, and kept when text is decoded."""

WORDS = (
    *("question", ":", "'s", "?", ".", "is", "a"),
    *("need", "guess", "done", "restart", "keep"),
    *("check", "and", "try", "again", "another", "way", "next", "attempt"),
    *("not", "an", "action", "no", "more", "searches", "nothing", "found"),
)
"""All other words, apart from types, relations and names."""


def mini_vocabulary(entities: int = 300) -> list[str]:
    """The words of worlds of a given size, in the order of their ids."""
    relations = [relation for types in RELATIONS.values() for relation in types]
    return [*CONTROL, *TAGS, *WORDS, *RELATIONS, *relations, *NAMES[:entities]]


def mini_tokenizer(entities: int = 300) -> PreTrainedTokenizerFast:
    """A word-level tokenizer for worlds of a given size: words are split at white space, decoding joins with one space.

    Encoding a text on its own puts `<bos>` before it. The tags are added tokens that are not special.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pad, unknown, begin, end = CONTROL
    ids = {word: index for index, word in enumerate(mini_vocabulary(entities))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, ids[begin])])
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        # Tidying up would glue 's to the name before it, and the text would no longer encode to the same ids.
        clean_up_tokenization_spaces=False,
    )


def mini_model_config(vocab_size: int) -> dict[str, Any]:
    """Settings of the mini model, for `transformers.Qwen3Config`: two layers, about 420,000 parameters.

    Norms on queries and keys, as Qwen3 has, and embeddings of unit size are what lets it learn to read a passage.
    """
    hidden_size = 128
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 16,
        "intermediate_size": 256,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "initializer_range": hidden_size**-0.5,
        "pad_token_id": CONTROL.index("<pad>"),
        "bos_token_id": CONTROL.index("<bos>"),
        "eos_token_id": CONTROL.index("<eos>"),
    }


# --- Demonstrations --------------------------------------------------------


@dataclass(frozen=True)
class DemoHabits:
    """How the scripted searcher decides. What it does readily, a model trained on it will do readily."""

    expert: float = 0.15
    """Share of demonstrations in which every decision is the right one; the rates below hold for the others."""
    right_query: float = 0.75
    """Searching for the entity whose fact is needed, and not for a relation or for a name at random."""
    right_read: float = 0.97
    """Copying the fact that is needed out of its passage, and not another one."""
    search_on: float = 1.0
    """Searching again inside an episode, after a search, while the chain is unfinished and searches are left."""
    go_on: float = 0.25
    """After a reflection: going on from the last finding."""
    restart: float = 0.5
    """After a reflection: beginning the chain anew. What remains is keeping the answer."""

    def __post_init__(self) -> None:
        for name, rate in asdict(self).items():
            if not 0 <= rate <= 1:
                raise ConfigError(f"habit {name!r} is a probability from 0 to 1, not {rate}")
        if self.go_on + self.restart > 1:
            raise ConfigError(f"habits go_on {self.go_on} and restart {self.restart} add up to more than 1")


class ScriptedSearcher:
    """A searcher that writes turns as a policy would, with habits instead of a model.

    It knows the question and what it reads; from the world it takes only names to guess at.

    >>> world = build_world(0)
    >>> question = chain_questions(world, "te", 2)[1]
    >>> searcher = ScriptedSearcher(question, world, Random(0), searches=2, habits=DemoHabits(expert=1))
    >>> print(question.question, "->", *question.golden_answers)
    Ramen 's director 's birthplace ? -> Bora
    >>> print(searcher.next_turn())
    <think> need director </think> <search> Ramen </search>
    >>> print(searcher.next_turn(world.look_up("Ramen")))
    <think> director Jero . need birthplace </think> <search> Jero </search>
    >>> print(searcher.next_turn(world.look_up("Jero")))
    <think> birthplace Bora . done </think> <answer> Bora </answer>
    """

    def __init__(
        self, question: Question, world: MiniWorld, rng: Random, *, searches: int, habits: DemoHabits | None = None
    ) -> None:
        self._start, self._relations = _read_question(question.question)
        self._world = world
        self._rng = rng
        self._searches = searches
        self._habits = habits or DemoHabits()
        self._expert = rng.random() < self._habits.expert
        self._answer: str | None = None
        self._in_episode = False
        self._begin_chain()

    def next_turn(self, observed: Passage | None = None) -> str:
        """The next turn's text. `observed` is what the last turn's search brought; an answer ends an episode."""
        if self._in_episode:
            return self._after_search(observed)
        self._in_episode, self._left = True, self._searches
        return self._search() if self._answer is None else self._after_reflection(self._answer)

    def _begin_chain(self) -> None:
        self._hops = 0
        self._entity = self._start

    @property
    def _finished(self) -> bool:
        return self._hops == len(self._relations)

    @property
    def _needed(self) -> str:
        return self._relations[self._hops]

    @property
    def _finding(self) -> str:
        """What was read last, as the opening of a thought."""
        return f"{self._relations[self._hops - 1]} {self._entity} . " if self._hops else ""

    def _chance(self, rate: float) -> bool:
        """Whether a decision goes the way of its rate; it always does in an expert's demonstration."""
        return self._expert or self._rng.random() < rate

    def _after_reflection(self, answer: str) -> str:
        draw = self._rng.random()
        keeps = self._finished if self._expert else draw >= self._habits.go_on + self._habits.restart
        if keeps:
            return self._write_answer("keep", answer)
        if not self._expert and draw < self._habits.restart:
            self._begin_chain()
            return self._search("restart . ")
        return self._conclude("done") if self._finished else self._search()

    def _after_search(self, observed: Passage | None) -> str:
        facts = _read_facts(observed)
        found = observed is not None and observed.title == self._entity and self._needed in facts
        if found:
            read = self._needed if self._chance(self._habits.right_read) else self._rng.choice(list(facts))
            self._hops, self._entity = self._hops + 1, facts[read]
            if self._finished:
                return self._conclude("done")
        if self._left and self._chance(self._habits.search_on):
            return self._search()
        if found or not facts:
            return self._conclude("guess")
        value = facts.get(self._needed) or self._rng.choice(list(facts.values()))
        return self._write_answer(f"{self._needed} {value} . guess", value)

    def _search(self, opening: str = "") -> str:
        self._left -= 1
        query = self._entity if self._chance(self._habits.right_query) else self._wrong_query()
        return f"<think> {opening}{self._finding}need {self._needed} </think> <search> {query} </search>"

    def _wrong_query(self) -> str:
        # Entity and relation together find the right passage all the same, as they would in a real engine.
        anything = self._rng.choice(self._world.entities).name
        return self._rng.choice([self._needed, f"{self._entity} {self._needed}", anything])

    def _conclude(self, verdict: str) -> str:
        return self._write_answer(f"{self._finding}{verdict}", self._entity)

    def _write_answer(self, thought: str, answer: str) -> str:
        self._in_episode, self._answer = False, answer
        return f"<think> {thought} </think> <answer> {answer} </answer>"


def _read_question(text: str) -> tuple[str, list[str]]:
    """`Zasen 's star 's employer ?` as its start and its relations."""
    words = text.split()
    if len(words) < 4 or set(words[1:-1:2]) != {"'s"} or words[-1] != "?":
        raise DataError(f"not a question of the mini world: {text!r}; one reads: Zasen 's star 's employer ?")
    return words[0], words[2:-1:2]


def _read_facts(passage: Passage | None) -> dict[str, str]:
    """Relation to value, as a passage tells them after its opening sentence of five words."""
    words = passage.text.split() if passage else []
    return dict(zip(words[5::3], words[6::3], strict=False))


def demonstrations(
    world: MiniWorld,
    questions: Sequence[Question],
    *,
    episodes: int,
    searches: int,
    habits: DemoHabits | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One demonstration a question: the scripted searcher in a full meta-episode, as plain JSON data.

    Each is `{"question": ..., "episodes": [{"turns": [{"text": ..., "passages": [...] or None}, ...]}, ...]}`. An
    episode has at most `searches` searches and then an answer; what the environment says between turns is left to
    the plan and its prompts.
    """
    demos = []
    for row, question in enumerate(questions):
        rng = Random(f"{seed} {row} {question.id}")
        searcher = ScriptedSearcher(question, world, rng, searches=searches, habits=habits)
        played = [_play_episode(searcher, world, searches) for _ in range(episodes)]
        demos.append({"question": asdict(question), "episodes": played})
    return demos


def _play_episode(searcher: ScriptedSearcher, world: MiniWorld, searches: int) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    passage: Passage | None = None
    while True:
        text = searcher.next_turn(passage)
        action = parse_action(text)
        if action.kind == "answer":
            turns.append({"text": text, "passages": None})
            return {"turns": turns}
        assert len(turns) < searches, f"the scripted searcher searched more than {searches} times in an episode"
        passage = world.look_up(action.text)
        turns.append({"text": text, "passages": [asdict(passage)] if passage else []})


def reading_texts(world: MiniWorld, count: int, seed: int = 0) -> list[list[tuple[str, bool]]]:
    """Exercises in reading a passage, each as pieces (text, whether it is trained) in order.

    A passage is searched for and shown, then its relations are named in random order and each value is copied, twice.
    Only the values are trained, since nothing else can be known; the second copy is easy and teaches to copy at all.
    """
    rng = Random(f"{seed} reading")
    return [_reading_text(rng, entity) for entity in rng.choices(world.entities, k=count)]


def _reading_text(rng: Random, entity: Entity) -> list[tuple[str, bool]]:
    pieces = [(f"<search> {entity.name} </search> <information> {entity.text} </information> <think>", False)]
    for relation, value in rng.sample(entity.facts, len(entity.facts)):
        pieces += [(relation, False), (f"{value} {value}", True), (".", False)]
    return pieces
