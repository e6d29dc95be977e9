"""Text to ids and back for Hugging Face tokenizers, with or without a chat template.

Two kinds of text come in. Ours (prompts, tags, what a chat template writes) is
trusted: a token's name in it becomes that token. What others wrote (passages,
questions) is not: it is encoded as plain text and cannot hold a control token.

What a chat template puts around a message is read off renderings of a
conversation of neutral markers, once, and checked; a template's text is never
searched for a model's own words. Only the tokenizer is touched: nothing here
knows of a model, and no sampled token is ever encoded again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mrsearch.core.ports import Observation
from mrsearch.core.protocol import OBSERVATION_CLOSING, OBSERVATION_OPENING, Prompts, render_passage
from mrsearch.core.types import Passage, Question
from mrsearch.errors import ConfigError, ModelError

Placement: TypeAlias = Literal["assistant", "user", "tool"]
"""Where observations stand: inside the assistant's turn, or as messages of the user or of a tool."""

PLACEHOLDER = "{question}"
PASSAGES_REMEMBERED = 4096
"""Rollouts of one group see the same passages again and again; this many keep their ids."""

_QUESTION, _ANSWER, _NEXT, _SECOND_ANSWER, _LAST = "QuestionQ1Z", "AnswerQ2Z", "NextQ3Z", "AgainQ4Z", "LastQ5Z"
"""Contents of the messages by which a template is explored: nothing that it could trim, alter or look for."""

_TEMPLATE_ADVICE = "use another template file, or 'plain' for plain text"

_Ids: TypeAlias = tuple[int, ...]
_Render: TypeAlias = Callable[..., str]


class HFCodec:
    """The `Codec` of a Hugging Face tokenizer.

    `template` replaces the tokenizer's own chat template by another Jinja
    text; an empty one means plain text, which is also what a tokenizer without
    a template gets. `extra_end_ids` end a turn besides those that the
    tokenizer and the template name. `day` is what templates that write a date
    take for today; without it a run that goes on tomorrow reads other prompts.
    """

    end_ids: frozenset[int]
    """Ids that end the policy's turn."""
    pad_id: int
    """What fills a batch: the padding token, else the end of text, else 0."""

    def __init__(
        self,
        tokenizer: Any,
        prompts: Prompts = Prompts(),  # noqa: B008
        *,
        observations: Placement = "assistant",
        extra_end_ids: Iterable[int] = (),
        template: str | None = None,
        day: date | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._observations = observations
        self._text = _Encoder(tokenizer)
        self._bos: int | None = tokenizer.bos_token_id
        self._eos: int | None = tokenizer.eos_token_id
        self._adds_bos = self._bos is not None and (
            tokenizer.encode("a")[:1] == [self._bos] != tokenizer.encode("a", add_special_tokens=False)[:1]
        )
        if template is None and isinstance(tokenizer.chat_template, str):
            template = tokenizer.chat_template
        if template and day:
            template = _pin_day(template, day)
        self._chat = bool(tokenizer.chat_template if template is None else template)
        if self._chat:
            self._read_template(_renderer(tokenizer, template), _name(tokenizer))
        elif observations != "assistant":
            raise ModelError(f"{_name(tokenizer)} has no chat template, which observations={observations!r} needs")
        else:
            self._opening = _Message("", "")
            self._user = self._tool = _Message("\n\n", "")
            self._repeated_bos = self._bos

        ends = {self._eos, self._user.ended_by, self._tool.ended_by, *map(int, extra_end_ids)}
        self.end_ids = frozenset(token for token in ends if token is not None)
        self.pad_id = next((token for token in (tokenizer.pad_token_id, self._eos) if token is not None), 0)
        self._text.guard(start=self._bos, ends=self.end_ids, pad=tokenizer.pad_token_id)

        # Constant in a run, or nearly so; the caches belong to this codec, not to the class.
        self._prompt_parts = lru_cache(256)(self._encode_prompt)
        self._notices = lru_cache(256)(self._encode_notice)
        self._seams = lru_cache(256)(self._encode_seam)
        self._frames = lru_cache(256)(self._encode_frame)
        self._lines = lru_cache(PASSAGES_REMEMBERED)(self._text.untrusted)

    @classmethod
    def load(
        cls,
        source: str | Path,
        prompts: Prompts = Prompts(),  # noqa: B008
        *,
        observations: Placement = "assistant",
        extra_end_ids: Iterable[int] = (),
        template: str | Path | None = None,
        day: date | None = None,
    ) -> HFCodec:
        """The codec of a folder or of a name on the hub; `template` is a Jinja file, or "plain" for plain text.

        A `generation_config.json` also tells which tokens end a turn. Code that comes with a model is not run.
        """
        from transformers import AutoTokenizer

        if template is not None:
            template = "" if str(template) == "plain" else _read(Path(template))
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
        except Exception as error:  # of many kinds; a broken tokenizer.json gives a bare Exception
            reason = (str(error).strip().splitlines() or [""])[0]
            where = (
                source if Path(source).exists() else f"{source}, which is no folder here and is taken for a hub's name"
            )
            raise ModelError(
                f"no usable tokenizer in {where} ({type(error).__name__}: {reason}); name a model folder with a "
                "tokenizer.json, or a model of the hub"
            ) from error
        ends = {*extra_end_ids, *_generation_ends(str(source))}
        return cls(tokenizer, prompts, observations=observations, extra_end_ids=ends, template=template, day=day)

    def save(self, folder: Path) -> None:
        """Write the tokenizer in Hugging Face form."""
        self._tokenizer.save_pretrained(folder)

    # -- the codec ----------------------------------------------------------------------------

    def opening(self, prompt: str, question: Question) -> list[int]:
        """The start of a window: the prompt with the question in place of `{question}`, ready for the first turn."""
        *parts, last = self._prompt_parts(prompt)
        ids: list[int] = []
        for part in parts:
            ids += part.ids
            ids += self._lines(part.spaces + question.question)
        return [*ids, *last.ids]

    def observation(
        self, passages: Sequence[Passage], limit: int, *, note: str = "", after_end: bool = False
    ) -> Observation:
        """Passages between their tags, in at most `limit` tokens; each is cut by its own share, tags are kept.

        `note` is a line of the environment (the last call) that follows in the same message, beyond the limit.
        """
        tags = sum(map(len, self._frames("", after_end)))
        if limit < tags:
            raise ConfigError(f"an observation of at most {limit} tokens has no room for its tags, which take {tags}")
        if passages:
            lines = [
                self._lines(render_passage(self._prompts, rank, passage)) for rank, passage in enumerate(passages, 1)
            ]
        else:
            lines = [tuple(self._text.trusted(self._prompts.no_passages))]
        opening, closing = self._frames(note, after_end)
        kept = self._cut(lines, limit - tags)
        body = [token for line in kept if line for token in (*self._line_break, *line)]
        return Observation(
            ids=[*opening, *body[len(self._line_break) :], *closing],
            cut_passages=sum(len(kept[i]) < len(lines[i]) for i in range(len(passages))),
            cut_tokens=sum(map(len, lines)) - sum(map(len, kept)),
        )

    def notice(self, text: str, *, after_end: bool = False) -> list[int]:
        """A line from the environment inside an episode: invalid action, last call."""
        return list(self._notices(text, after_end))

    def between_episodes(self, prompt: str, *, after_end: bool = False) -> list[int]:
        """End of the assistant's turn, the prompt of the next episode as a user message, the next header."""
        return list(self._seams(prompt, after_end))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        return self._text.decode(ids)

    def encode_reply(self, text: str) -> list[int]:
        """A turn's text as the policy would write it; for demonstrations and scripted policies."""
        return self._text.trusted(text)

    @property
    def end_id(self) -> int | None:
        """The id by which a turn ends: what the template writes there, else the end of text; None without either."""
        return self._eos if self._user.ended_by is None else self._user.ended_by

    def ends_turn(self, token: int) -> bool:
        """Whether this id ends the policy's turn (end-of-text or the template's end of a message)."""
        return token in self.end_ids

    def closing_ids(self) -> frozenset[int]:
        """Every id whose text has a `>`: only after one of these can a tag have been completed."""
        return self._text.closing

    # -- the chat template --------------------------------------------------------------------

    def _read_template(self, render: _Render, name: str) -> None:
        before, after = _around(render(("user", _QUESTION)), _QUESTION, "user", name)
        self._opening = _Message(before, after)
        ids = self._text.trusted(before + _QUESTION + after, start=True)
        # A beginning-of-text token that opens messages too (SmolLM2) is part of the layout and stays; one that a
        # template repeats in front of every exchange (Llama 2) belongs to the start of a text alone.
        opens_messages = self._bos in ids[1:]
        self._repeated_bos = None if opens_messages else self._bos
        user = _follow_up(render, "user", name)
        self._user = self._tool = self._message(*user)
        if self._observations == "tool":
            self._tool = self._message(*_follow_up(render, "tool", name, user))

    def _message(self, before: str, after: str) -> _Message:
        """A message after the policy's turn, with the token that ends that turn, if the template has one."""
        for position, token in enumerate(self._text.trusted(before)):
            if token in self._text.controls and (token != self._repeated_bos or token == self._eos):
                return _Message(before, after, ended_by=token, end=position + 1)
            if self.decode([token]).strip():
                break
        return _Message(before, after)

    def _after_turn(self, message: _Message, content: str, *, after_end: bool) -> list[int]:
        """The start of a piece that follows the policy's turn. An end that the policy wrote itself is not repeated."""
        ids = self._text.trusted(message.before + content)
        following = self._without_bos(ids[message.end :])
        return following if after_end else ids[: message.end] + following

    def _without_bos(self, ids: list[int]) -> list[int]:
        return [token for token in ids if token != self._repeated_bos]

    # -- pieces, each encoded once ------------------------------------------------------------

    def _encode_prompt(self, prompt: str) -> tuple[_PromptPart, ...]:
        """The opening without its question: the texts around it, and the spaces in front of it, which a token joins."""
        texts = (prompt.strip() if self._chat else prompt).split(PLACEHOLDER)
        if len(texts) == 1:
            raise ConfigError(f"a prompt that opens a window needs {PLACEHOLDER} where the question stands: {prompt!r}")
        texts[0] = self._opening.before + texts[0]
        texts[-1] += self._opening.after
        parts = []
        for number, text in enumerate(texts):
            ahead = text.rstrip(" ") if number < len(texts) - 1 else text
            spaces = text[len(ahead) :]
            if number == 0 and not text and self._text.prefixes:
                spaces = " "  # the tokenizer writes one at the start of a text, and here that is the question
            parts.append(_PromptPart(tuple(self._text.trusted(ahead, start=number == 0)), spaces))
        if self._adds_bos and self._bos is not None and parts[0].ids[:1] != (self._bos,):
            parts[0] = _PromptPart((self._bos, *parts[0].ids), parts[0].spaces)
        return tuple(parts)

    def _encode_notice(self, text: str, after_end: bool) -> _Ids:
        if not self._as_message(after_end):
            return tuple(self._without_bos(self._text.trusted(text)))
        if not text.strip() and not after_end:
            return ()
        return tuple(self._after_turn(self._user, text.strip() + self._user.after, after_end=after_end))

    def _encode_seam(self, prompt: str, after_end: bool) -> _Ids:
        content = prompt.strip() if self._chat else prompt
        return tuple(self._after_turn(self._user, content + self._user.after, after_end=after_end))

    def _encode_frame(self, note: str, after_end: bool) -> tuple[_Ids, _Ids]:
        """What stands before and after the passages of an observation."""
        if not self._as_message(after_end):
            tags = self._text.trusted(OBSERVATION_OPENING), self._text.trusted(OBSERVATION_CLOSING)
            return tuple(tags[0]), (*tags[1], *self._encode_notice(note, False))
        message = self._tool if self._observations == "tool" else self._user
        opening = self._after_turn(message, OBSERVATION_OPENING.lstrip(), after_end=after_end)
        closing = self._text.trusted((OBSERVATION_CLOSING + note.strip()).rstrip() + message.after)
        return tuple(opening), tuple(self._without_bos(closing))

    def _as_message(self, after_end: bool) -> bool:
        return self._chat and (after_end or self._observations != "assistant")

    # -- fitting passages ---------------------------------------------------------------------

    @cached_property
    def _line_break(self) -> _Ids:
        return tuple(self._text.trusted("\n"))

    def _cut(self, lines: Sequence[_Ids], room: int) -> list[_Ids]:
        """Lines cut to a common share so that they fit with the breaks between them; the last go if none is left."""
        for kept in range(len(lines), 0, -1):
            ahead = lines[:kept]
            share = common_share([len(line) for line in ahead], room - (kept - 1) * len(self._line_break))
            if share > 0 or not any(ahead):
                shortened = [line if len(line) <= share else self._whole_characters(line[:share]) for line in ahead]
                return shortened + [()] * (len(lines) - kept)
        return [()] * len(lines)

    def _whole_characters(self, ids: _Ids) -> _Ids:
        """Ids without the first bytes of a character whose others were cut off (a character has at most four)."""
        for dropped in range(min(4, len(ids) + 1)):
            if not self.decode(ids[max(0, len(ids) - dropped - 8) : len(ids) - dropped]).endswith("\ufffd"):
                return ids[: len(ids) - dropped]
        return ids  # the text itself has that character


def byte_tokenizer() -> Any:
    """A tokenizer that needs no files: each byte of UTF-8 is a token. For policies that are no language models."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    end = "<|end|>"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate([end, *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=tokenizer, eos_token=end, pad_token=end, clean_up_tokenization_spaces=False)


def common_share(lengths: Sequence[int], room: int) -> int:
    """The share of each so that all fit into the room: what short ones leave goes to the long ones.

    >>> common_share([3, 100, 50], 43)
    20
    """
    waiting = len(lengths)
    for length in sorted(lengths):
        share = max(room, 0) // waiting
        if length > share:
            return share
        room -= length
        waiting -= 1
    return max(lengths, default=0)


@dataclass(frozen=True, slots=True)
class _Message:
    """What a template writes around a message's content, from the end of the text before it.

    `ended_by` is the token that ends the policy's turn, and `end` the number of ids up to it.
    """

    before: str
    after: str
    ended_by: int | None = None
    end: int = 0


@dataclass(frozen=True, slots=True)
class _PromptPart:
    ids: _Ids
    spaces: str
    """Spaces between this part and the question after it; they are encoded with the question."""


# -- renderings -------------------------------------------------------------------------------


def _renderer(tokenizer: Any, template: str | None) -> _Render:
    from jinja2 import TemplateError

    def render(*messages: tuple[str, str]) -> str:
        conversation = [{"role": role, "content": content} for role, content in messages]
        try:
            text: str = tokenizer.apply_chat_template(
                conversation, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            roles = ", ".join(role for role, _ in messages)
            raise ModelError(
                f"the chat template of {_name(tokenizer)} cannot render the messages {roles}: "
                f"{' '.join(str(error).split())}; {_TEMPLATE_ADVICE}"
            ) from error
        return text

    return render


_TODAY = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<form>.*?)(?P=quote)\s*\)""")


def _pin_day(template: str, day: date) -> str:
    """A template that writes this day, wherever it would write today's date."""
    return _TODAY.sub(lambda call: repr(day.strftime(call["form"])), template)


def _around(text: str, content: str, role: str, name: str) -> tuple[str, str]:
    parts = text.split(content)
    if len(parts) != 2:
        does = "leaves out" if len(parts) == 1 else f"repeats {len(parts) - 1} times"
        raise ModelError(f"the chat template of {name} {does} a message of the role {role}; {_TEMPLATE_ADVICE}")
    return parts[0], parts[1]


def _follow_up(render: _Render, role: str, name: str, user: tuple[str, str] | None = None) -> tuple[str, str]:
    """What stands around a message that follows the policy's turn, up to where the policy goes on.

    It is appended to what the model has read and written, so a conversation
    must render as what was there before plus the new; white space around a
    turn aside, since templates trim it and it is the policy's to write.
    """
    first = render(("user", _QUESTION))
    turns = ("user", _QUESTION), ("assistant", _ANSWER), (role, _NEXT)
    second = render(*turns)
    before, after = _around(second, _ANSWER, "assistant", name)
    _check_same(before, first, "before a turn", name)
    around = _around(after, _NEXT, role, name)
    if role == "tool" and _takes_for_assistant(render, second):
        raise ModelError(f"the chat template of {name} writes replies of a tool as the assistant's; {_TEMPLATE_ADVICE}")
    third = render(*turns, ("assistant", _SECOND_ANSWER), ("user", _LAST))
    before, after = _around(third, _SECOND_ANSWER, "assistant", name)
    _check_same(before, second, "before a later turn", name)
    _check_same(after, _LAST.join(user or around), "after a later turn", name)
    return around


def _takes_for_assistant(render: _Render, rendered: str) -> bool:
    try:
        return rendered == render(("user", _QUESTION), ("assistant", _ANSWER), ("assistant", _NEXT))
    except ModelError:
        return False  # roles must alternate, so this one is another


def _check_same(rendered: str, given: str, where: str, name: str) -> None:
    if rendered.rstrip() == given.rstrip():
        return
    at = next(i for i, (there, here) in enumerate(zip_longest(rendered, given)) if there != here)
    excerpt = slice(max(0, at - 20), at + 40)
    raise ModelError(
        f"the chat template of {name} rewrites a conversation {where}: it renders {rendered[excerpt]!r} where the "
        f"model was given {given[excerpt]!r}; {_TEMPLATE_ADVICE}"
    )


def _name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "") or "the tokenizer")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the chat template {path}: {error.strerror}") from error


def _generation_ends(source: str) -> list[int]:
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(source, "generation_config.json")
        settings = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError):
        return []  # most models of one end token have no such file
    ends = settings.get("eos_token_id")
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


# -- encoding ---------------------------------------------------------------------------------


class _Encoder:
    """Trusted and untrusted text to ids, each piece as it would be encoded in the middle of a longer text."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(f"{_name(tokenizer)} is not a fast tokenizer; save a tokenizer.json with the model")
        # Truncation and dropout of a saved tokenizer would cut texts or make them random.
        spec = {**json.loads(backend.to_str()), "post_processor": None, "truncation": None, "padding": None}
        spec["model"] = {**spec["model"], **({"dropout": None} if "dropout" in spec["model"] else {})}
        plain = {
            **spec,
            "added_tokens": [],
            "normalizer": _unprefixed(spec["normalizer"]),
            "pre_tokenizer": _unprefixed(spec["pre_tokenizer"]),
        }
        self._full = Tokenizer.from_str(json.dumps(spec))
        self._plain = Tokenizer.from_str(json.dumps(plain))
        self._added: dict[int, Mapping[str, Any]] = {token["id"]: token for token in spec["added_tokens"]}
        self._unknown = _unknown_id(spec["model"], self._full)
        self._apart = frozenset(self._added) - {self._unknown}
        self.prefixes = any(plain[part] != spec[part] for part in ("normalizer", "pre_tokenizer"))
        """Whether the tokenizer writes a space of its own in front of a text."""
        self.controls = frozenset(i for i in self._apart if self._added[i]["content"].strip())
        """Added tokens that are more than white space."""
        names = {token["content"] for token in self._added.values()}
        if len(self._plain.get_vocab(with_added_tokens=True).keys() - names) < 2:
            raise ModelError(f"{_name(tokenizer)} has no vocabulary; are its tokenizer files complete?")
        self.guard(start=None, ends=frozenset(), pad=None)

    def guard(self, *, start: int | None, ends: frozenset[int], pad: int | None) -> None:
        """Say which tokens begin and end texts: these are never what a character stands for.

        A single character that is an added token is harmless otherwise, and so is the mark of an unknown one.
        """
        edges = self._added.keys() & {*ends, start}
        harmless = {
            i for i, token in self._added.items() if len(token["content"]) == 1 and (not token["special"] or i == pad)
        }
        self._forbidden = (frozenset(self._apart) - harmless) | edges
        self._stand_in = [] if self._unknown is None or self._unknown in edges else [self._unknown]
        self._watched = self._forbidden | {self._unknown}

    def trusted(self, text: str, *, start: bool = False) -> list[int]:
        """Ids of our own text; `start` says that it begins a window."""
        encoding = self._full.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if start or not self.prefixes:
            return ids
        # The tokenizer puts a space in front, as if nothing stood there: that changes what comes before a first token
        # of its own, and only that.
        spans = zip(ids, encoding.offsets, strict=True)
        head = next((begin for token, (begin, _) in spans if token in self._apart), len(text))
        ids = self._plain.encode(text[:head], add_special_tokens=False).ids
        return ids + list(self._full.encode(text[head:], add_special_tokens=False).ids)

    def untrusted(self, text: str) -> _Ids:
        """Ids of a text that others wrote: no added token of the tokenizer is among them.

        The tokenizer is asked without its added tokens. Where its vocabulary
        holds the name of one all the same, the text is encoded apart inside that name.
        """
        ids: list[int] = []
        pending = [_well_formed(text)]
        while pending:
            piece = pending.pop()
            encoding = self._plain.encode(piece, add_special_tokens=False)
            if self._watched.isdisjoint(encoding.ids):
                ids += encoding.ids
                continue
            cuts = {
                (start + end) // 2
                for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
                if end - start > 1 and self._is_name(token, piece[start:end])
            }
            if cuts:
                pending += [piece[start:end] for start, end in pairwise((0, *sorted(cuts), len(piece)))][::-1]
            else:
                for token in encoding.ids:
                    ids += self._stand_in if token in self._forbidden else [token]
        return tuple(ids)

    def _is_name(self, token: int, text: str) -> bool:
        """Whether a token came of its own name in the text; the unknown token also stands for what is not known."""
        if token == self._unknown and token in self._added and self._stand_in:
            return bool(text.strip() == self._added[token]["content"])
        return token in self._forbidden

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._full.decode(list(ids), skip_special_tokens=False)
        return text

    @cached_property
    def closing(self) -> frozenset[int]:
        """Ids that have a `>`, decoded alone or as the vocabulary writes them: neither shows all of them."""
        vocabulary = self._full.get_vocab(with_added_tokens=True)
        ids = list(vocabulary.values())
        texts = self._full.decode_batch([[i] for i in ids], skip_special_tokens=False)
        decoded = {i for i, text in zip(ids, texts, strict=True) if ">" in text}
        return frozenset(decoded | {i for name, i in vocabulary.items() if ">" in name})


def _unprefixed(part: Any) -> Any:
    """A normalizer or pre-tokenizer that puts no space in front of a text."""
    if isinstance(part, list):
        return [_unprefixed(step) for step in part if not (isinstance(step, dict) and step.get("type") == "Prepend")]
    if not isinstance(part, dict):
        return part
    match part.get("type"):
        case "Prepend":
            return None
        case "Metaspace":
            return {**part, "prepend_scheme": "never"}
        case "ByteLevel":
            return {**part, "add_prefix_space": False}
        case "Sequence":
            return {key: _unprefixed(value) for key, value in part.items()}
    return part


def _unknown_id(model: Mapping[str, Any], tokenizer: Any) -> int | None:
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    found = tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else None
    return None if found is None else int(found)


def _well_formed(text: str) -> str:
    """The text with halves of surrogate pairs, which have no encoding, replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
