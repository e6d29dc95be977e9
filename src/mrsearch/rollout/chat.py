"""A chat model behind an OpenAI-compatible endpoint: one message in, its answer out. For judges, not for policies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random

from mrsearch.errors import RetrieverError
from mrsearch.rollout.endpoint import MODELS, call, only_model
from mrsearch.transport import Ask, Transport, base_url, read_json

CHAT = "/v1/chat/completions"


class ChatEndpoint:
    """Asks at temperature 0, from any number of threads; a call takes at most `deadline` seconds, retries included.

    `model` is the name under which the server has it; empty takes the only one
    that it serves. `setting` and `model_setting` name, in errors, what the user gave.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        token: str = "",
        setting: str = "url",
        model_setting: str = "model",
        max_tokens: int = 1024,
        deadline: float = 600.0,
        connections: int = 16,
        pause: float = 0.25,
        random: Random | None = None,
    ) -> None:
        self._transport = Transport(
            [base_url(url, setting, "/v1")],
            plain=Ask("GET", MODELS, read_json),
            hint=f"is the server up, and is {setting} right?",
            token=token,
            deadline=deadline,
            connections=connections,
            pause=pause,
            random=random,
        )
        self._max_tokens = max_tokens
        self.model = model or only_model(self._transport, model_setting)

    def ask(self, messages: Sequence[str]) -> list[str | None]:
        """The answer to each message, in order; they are sent at once. None for one that was cut at the token limit.

        `ModelError` when the endpoint does not answer in time, or will not take a request.
        """
        return call(self._transport, [Ask("POST", CHAT, _read, content=self._body(message)) for message in messages])

    def close(self) -> None:
        """Close the connections; calls that are under way fail."""
        self._transport.close()

    def _body(self, message: str) -> bytes:
        said = {"role": "user", "content": message}
        return json.dumps(
            {"model": self.model, "messages": [said], "temperature": 0.0, "max_tokens": self._max_tokens}
        ).encode()


def _read(body: bytes) -> str | None:
    said = read_json(body)
    choices = said.get("choices") if isinstance(said, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    text = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(choice, Mapping) or choice.get("finish_reason") not in ("stop", "length"):
        raise RetrieverError("the answer has not exactly one choice that came to an end")
    if choice["finish_reason"] == "length":
        return None
    if not isinstance(text, str):
        raise RetrieverError(f"the message has a content of type {type(text).__name__}")
    return text
