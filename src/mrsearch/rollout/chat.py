"""A chat model behind an OpenAI-compatible endpoint: one message in, its answer out. For judges, not for policies."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from random import Random

from mrsearch.errors import Outage, RetrieverDown, RetrieverError
from mrsearch.rollout.endpoint import MODELS, only_model
from mrsearch.transport import Ask, Transport, base_url, read_json

CHAT = "/v1/chat/completions"

_log = logging.getLogger(__name__)


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
        """The answer to each message, in order; they are sent at once.

        None for one that was cut at the token limit, and for a message that the
        endpoint will not take (too long for its context, say), which is logged. `Outage` when it
        does not answer in time.
        """
        asks = [Ask("POST", CHAT, _read, content=self._body(message)) for message in messages]
        try:
            return self._transport.call(asks)
        except RetrieverDown as error:
            raise Outage(f"the model that judges gives no answer: {error}") from None
        except RetrieverError:
            return [self._alone(ask) for ask in asks]

    def _alone(self, ask: Ask[str | None]) -> str | None:
        try:
            (said,) = self._transport.call([ask])
        except RetrieverDown as error:
            raise Outage(f"the model that judges gives no answer: {error}") from None
        except RetrieverError as error:
            _log.warning("a message to the model that judges was refused: %s", error)
            return None
        return said

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
