"""A policy behind an OpenAI-compatible completions endpoint: vLLM, SGLang, llama.cpp's servers.

What an endpoint understands differs, so it is asked at the start: prompts as
token ids or as text, ids and log-probabilities in the answer or not. With ids
both ways the tokens are exact; with text they are encoded anew, which is good
enough to evaluate with and never trained on. Knows nothing of episodes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from threading import Lock
from typing import Any, Protocol, TypeVar

from mrsearch.core.ports import Completion, CompletionEnd, Generate, Sampling
from mrsearch.errors import ConfigError, ModelError, RetrieverDown, RetrieverError
from mrsearch.transport import Ask, Transport, base_url, read_json

COMPLETIONS = "/v1/completions"
MODELS = "/v1/models"

PROBE_S = 60.0
"""Seconds that an endpoint may take to say what it serves and understands, before anything is asked of its model."""

T = TypeVar("T")


class TextCodec(Protocol):
    """What is asked of a tokenizer here."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        ...

    def encode_reply(self, text: str) -> list[int]:
        """Ids of a turn's text."""
        ...

    @property
    def end_id(self) -> int | None:
        """The id that ends a turn."""
        ...


@dataclass(frozen=True)
class Dialect:
    """What an endpoint understands, from the richest down."""

    ids: bool
    """Prompts as token ids."""
    logprobs: bool
    """Log-probabilities of what was generated."""
    extras: bool
    """vLLM's and SGLang's own parameters: keep the stop string, return ids, add no special tokens."""


DIALECTS = tuple(
    Dialect(ids, logprobs, extras) for extras in (True, False) for ids in (True, False) for logprobs in (True, False)
)
"""In the order in which they are tried."""


class EndpointPolicy:
    """Generates turns on a server, from any number of threads.

    `model` is the name under which the server has it; empty takes the only one
    that it serves. A call takes at most `deadline` seconds, its retries (on 429, 5xx,
    a broken connection, an answer cut short) included. `ModelError` when the
    endpoint does not answer in that time, or will not take a request.

    `counters` has `requests`, `retries`, `generated_tokens`, and `retokenized_prompts`:
    prompts sent as text that the server read as another number of tokens.
    """

    def __init__(
        self,
        url: str,
        codec: TextCodec,
        *,
        model: str = "",
        token: str = "",
        deadline: float = 600.0,
        connections: int = 64,
        pause: float = 0.25,
        random: Random | None = None,
    ) -> None:
        self._codec = codec
        self._counters: Counter[str] = Counter(generated_tokens=0, retokenized_prompts=0)
        self._lock = Lock()
        connect = partial(
            Transport,
            [base_url(url, "engine.url", "/v1")],
            plain=Ask("GET", MODELS, read_json),
            hint="is the server up, and is engine.url right?",
            token=token,
            connections=connections,
            pause=pause,
            random=random,
        )
        self._transport = connect(deadline=deadline)
        # Some servers answer 500 to what they do not know; one such answer may still be a bad moment.
        probing = connect(deadline=min(PROBE_S, deadline), suspect_after=2)
        self.model = model or only_model(probing, "engine.served_model")
        self.dialect = self._find_dialect(probing)
        probing.close()

    @property
    def counters(self) -> Counter[str]:
        """What was done so far, as a copy."""
        with self._lock:
            return self._counters + self._transport.counters

    def generate(self, requests: Sequence[Generate]) -> list[Completion]:
        """One completion for each request, in order; they are sent at once."""
        asks = [Ask("POST", COMPLETIONS, _read, content=self._body(request, self.dialect)) for request in requests]
        answers = call(self._transport, asks)
        return [self._completion(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def close(self) -> None:
        """Close the connections; calls that are under way fail."""
        self._transport.close()

    # -- what the endpoint understands ---------------------------------------------------------

    def _find_dialect(self, probing: Transport) -> Dialect:
        ids = self._codec.encode_reply("The capital of France is")
        probe = Generate((0,), ids, 0, 1, ("</answer>",), Sampling(temperature=0.0), 0)
        refusals = []
        for dialect in DIALECTS:
            ask = Ask("POST", COMPLETIONS, _read, content=self._body(probe, dialect))
            try:
                (answer,) = probing.call([ask])
            except RetrieverDown as error:
                raise ModelError(
                    f"the endpoint gives no answer to a completion of one token, with {dialect}: {error}"
                ) from None
            except RetrieverError as error:
                refusals.append(str(error))
                continue
            # Ids that a server takes for something else give a prompt of another length.
            if dialect.ids and answer.prompt_tokens not in (None, len(ids)):
                refusals.append(f"{len(ids)} ids were read as {answer.prompt_tokens} tokens")
                continue
            if dialect.logprobs and answer.logprobs is None:
                continue
            return dialect
        raise ModelError(f"the endpoint takes no completion request that is known here; it said: {refusals[-1]}")

    def _body(self, request: Generate, dialect: Dialect) -> bytes:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(request.ids) if dialect.ids else self._codec.decode(request.ids),
            "max_tokens": request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop": list(request.stop),
            "seed": request.seed % 2**31,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if dialect.logprobs:
            body["logprobs"] = 1
        if dialect.extras:
            body |= {
                "include_stop_str_in_output": True,
                "return_token_ids": True,
                "skip_special_tokens": False,
                "add_special_tokens": False,
            }
        return json.dumps(body).encode()

    # -- what it answers -----------------------------------------------------------------------

    def _completion(self, request: Generate, answer: _Answer) -> Completion:
        text, end = _ended(answer, request.stop)
        exact = answer.ids is not None and answer.text == text
        ids = list(answer.ids or ()) if exact else self._codec.encode_reply(text)
        if end == "end" and self._codec.end_id is not None and ids[-1:] != [self._codec.end_id]:
            ids = [*ids, self._codec.end_id]
        known = answer.logprobs or []
        mean = sum(known) / len(known) if known else math.nan
        logprobs = known if len(known) == len(ids) else [mean] * len(ids)  # of other tokens the mean is left
        with self._lock:
            self._counters["generated_tokens"] += len(ids)
            if not self.dialect.ids and answer.prompt_tokens not in (None, len(request.ids)):
                self._counters["retokenized_prompts"] += 1
        return Completion(ids, logprobs, end)


def call(transport: Transport, asks: Sequence[Ask[T]]) -> list[T]:
    """Answers of an endpoint; `ModelError` where there is none, or a request is refused."""
    try:
        return transport.call(asks)
    except RetrieverDown as error:
        raise ModelError(f"the endpoint gives no answer: {error}") from None
    except RetrieverError as error:
        raise ModelError(f"the endpoint will not take a request: {error}") from None


def only_model(transport: Transport, setting: str) -> str:
    """The one model that an endpoint serves; a `ConfigError` that names the setting where it is not one."""
    (said,) = call(transport, [Ask("GET", MODELS, read_json)])
    names = [str(entry["id"]) for entry in said.get("data", ()) if "id" in entry] if isinstance(said, dict) else []
    if len(names) != 1:
        raise ConfigError(f"the endpoint serves {', '.join(names) or 'no model that it names'}; say which by {setting}")
    return names[0]


@dataclass(frozen=True)
class _Answer:
    """A completion as the endpoint words it."""

    text: str
    finish_reason: str
    stopped_by: str | None
    says_stop: bool
    ids: list[int] | None
    logprobs: list[float] | None
    prompt_tokens: int | None


def _read(body: bytes) -> _Answer:
    """Take an answer apart; `RetrieverError`, which is tried again, for one that is cut short or no completion."""
    said = read_json(body)
    choices = said.get("choices") if isinstance(said, Mapping) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise RetrieverError("the answer has not exactly one choice")
    choice = choices[0]
    text, finish = choice.get("text"), choice.get("finish_reason")
    if not isinstance(text, str) or finish not in ("stop", "length"):
        raise RetrieverError(f"the answer has finish_reason {finish!r} and a text of type {type(text).__name__}")
    ids = choice.get("token_ids")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    usage = said.get("usage") or {}
    stopped_by = choice.get("stop_reason")
    return _Answer(
        text=text,
        finish_reason=finish,
        stopped_by=stopped_by if isinstance(stopped_by, str) else None,
        says_stop="stop_reason" in choice,
        ids=[int(token) for token in ids] if isinstance(ids, list) else None,
        logprobs=[float(value) for value in logprobs if value is not None] if isinstance(logprobs, list) else None,
        prompt_tokens=usage.get("prompt_tokens") if isinstance(usage, Mapping) else None,
    )


def _ended(answer: _Answer, stop: Sequence[str]) -> tuple[str, CompletionEnd]:
    """The text with the stop string that ended it, which many servers leave out, and why it ended."""
    if answer.finish_reason == "length":
        return answer.text, "length"
    if any(tag in answer.text for tag in stop):
        return answer.text, "stop"
    if answer.stopped_by in stop:
        return answer.text + str(answer.stopped_by), "stop"
    if not answer.says_stop:
        # Whether a stop string or the end of the turn was met is not told: a tag that is open tells it.
        opened = {tag: answer.text.rfind(tag.replace("</", "<")) for tag in stop}
        last = max(opened, key=lambda tag: opened[tag])
        if opened[last] >= 0:
            return answer.text + last, "stop"
    return answer.text, "end"
