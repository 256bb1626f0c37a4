"""Calls of a judge's model at a server of OpenAI's API, with retries, time limits and the server's rate limits."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp

from areal_actors.core.proxies import LOOPBACK
from areal_actors.rewards.judge.settings import ModelJudge
from areal_actors.rewards.judge.verdict_forms import VerdictForm

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same call may succeed."""
RATE_LIMITED = 429
REFUSED_FORM = frozenset({400, 404, 415, 422, 501})
"""Statuses with which a server refuses a form of answers that it does not know."""
SHOWN_CHARACTERS = 300
"""Characters of a server's message that an error repeats."""


class JudgeReply(NamedTuple):
    """The text of a model, and the tokens of the call."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class CallFailed(Exception):
    """Raised for a call without an answer; `is_final` if the same call cannot succeed."""

    def __init__(
        self, reason: str, *, is_final: bool = False, wait_seconds: float | None = None, status: int = 0
    ) -> None:
        super().__init__(reason)
        self.is_final = is_final
        self.status = status
        """Status of the server's answer; 0 without one."""
        self.wait_seconds = wait_seconds
        """Time for which the server, at its rate limit, asks; None if it does not limit the rate."""


class JudgeModel(Protocol):
    """A model that answers the prompts of a judge."""

    identity: str
    """Name of the model, in the keys of its answers."""

    async def complete(self, prompt: str, form: VerdictForm, seed: int) -> JudgeReply:
        """Returns the model's answer to a prompt; raises CallFailed."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class UrlModel(JudgeModel):
    """A model behind the URL of a judge."""

    refused_form = REFUSED_FORM
    schema_options: Mapping[str, Any] = {}
    """Further parts of the schema of an answer."""

    def __init__(self, judge: ModelJudge) -> None:
        """Connects with the first call."""
        self.identity = self.served_name = judge.model
        self._judge = judge
        self._session: aiohttp.ClientSession | None = None
        self._structured = "json_schema" if judge.structured == "auto" else judge.structured
        self._is_form_known = judge.structured != "auto"

    async def complete(self, prompt: str, form: VerdictForm, seed: int) -> JudgeReply:
        """Returns the answer; the form of answers that `auto` asks for is left out once the server refuses it."""
        while True:
            structured = self._structured
            status, answer = await self._post(self._body(prompt, form, seed, structured))
            if status in self.refused_form and not self._is_form_known and structured != "off":
                self._structured = "off"
                continue
            if status != 200:
                reason = f"status {status}: {_message_of(answer)}"
                raise CallFailed(reason, is_final=status not in PASSING, status=status)
            self._is_form_known = True
            return _reply_of(answer)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def address(self) -> tuple[str, Mapping[str, str]]:
        """Returns the base URL of the next call, and headers of this call alone; raises CallFailed."""
        return self._judge.url, {}

    def _body(self, prompt: str, form: VerdictForm, seed: int, structured: str) -> dict[str, Any]:
        judge = self._judge
        body: dict[str, Any] = {
            "model": self.served_name,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": judge.temperature,
            "max_tokens": judge.max_tokens,
        }
        if judge.temperature:
            body["seed"] = seed
        if structured == "json_schema":
            named = {"name": "verdict", "schema": {**form.schema, **self.schema_options}, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        elif structured == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Returns status and body of the answer; raises CallFailed without one, and at the server's rate limit."""
        root, headers = await self.address()
        if self._session is None:
            self._session = _open_session(self._judge, is_local=urlsplit(root).hostname in LOOPBACK)
        url = f"{root.rstrip('/')}/chat/completions"
        try:
            async with self._session.post(url, json=body, headers=headers) as response:
                text = await response.text()
                if response.status == RATE_LIMITED:
                    wait = _wait_of(response.headers.get("Retry-After"))
                    raise CallFailed(f"status {RATE_LIMITED}: {text:.{SHOWN_CHARACTERS}}", wait_seconds=wait)
                with suppress(ValueError):
                    return response.status, await response.json(content_type=None)
                if response.status == 200:
                    raise CallFailed(f"its body is no JSON: {text:.{SHOWN_CHARACTERS}}")
                return response.status, text
        except TimeoutError as error:
            raise CallFailed(f"no answer within {self._judge.call_seconds:g} s (`call_seconds`)") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise CallFailed(f"{type(error).__name__}: {error}") from error


def _open_session(judge: ModelJudge, *, is_local: bool) -> aiohttp.ClientSession:
    key = os.environ.get(judge.key_variable, "") if judge.key_variable else ""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=aiohttp.ClientTimeout(total=judge.call_seconds),
        connector=aiohttp.TCPConnector(limit=judge.concurrency),
        trust_env=not is_local,
    )


def _reply_of(answer: Any) -> JudgeReply:
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise CallFailed(f"its body has no message: {answer!s:.{SHOWN_CHARACTERS}}") from error
    usage = answer.get("usage") or {}
    return JudgeReply(str(text or ""), int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))


def _message_of(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, Mapping) else answer
    message = error.get("message") if isinstance(error, Mapping) else error
    return f"{message!s:.{SHOWN_CHARACTERS}}"


def _wait_of(header: str | None) -> float:
    """Returns the seconds of `Retry-After`, a number or a date; 1 without it."""
    if not header:
        return 1.0
    with suppress(ValueError):
        return max(float(header), 0.0)
    with suppress(ValueError, TypeError):
        return max(email.utils.parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    return 1.0
