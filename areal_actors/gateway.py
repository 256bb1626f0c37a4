"""The gateway: the aiohttp server through which agents reach the model. It translates; the session manager answers."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from areal_actors.actor import Submit
from areal_actors.dialects import chat
from areal_actors.errors import RequestError, SessionError, SetupError
from areal_actors.messages import ChatCompleted, CompleteChat, SetReward
from areal_actors.settings import GatewaySettings

MODEL = "default"
MAX_BODY_BYTES = 16 * 2**20
SHUTDOWN_SECONDS = 1.0


class Gateway:
    """Every call carries a session's API key, as `Authorization: Bearer` or `x-api-key`, with or without the session in the path.

    A client that disconnects takes its call with it: one that timed out and asks again leaves one interaction, not two.
    """

    def __init__(self, config: GatewaySettings, submit: Submit, session_of_key: Callable[[str, str], str]) -> None:
        self.config = config
        self.submit = submit
        self.session_of_key = session_of_key
        self.root = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            SetupError: the port is taken.
        """
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for prefix in ("", "/v1", "/{session}", "/{session}/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self.chat_completions)
            app.router.add_get(f"{prefix}/models", self.models)
        for prefix in ("", "/{session}"):
            app.router.add_post(f"{prefix}/rl/set_reward", self.set_reward)
        app.router.add_get("/health", self.health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.config.host, self.config.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise SetupError(
                f"gateway.port: cannot listen on {self.config.host}:{self.config.port} ({error.strerror}); "
                "set another port, or 0 to take a free one"
            ) from error
        host, port = self._runner.addresses[0][:2]
        self.root = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening; calls in hand get a second to end."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def health(self, _: web.Request) -> web.Response:
        """Is the gateway up?"""
        return _json({"status": "ok"})

    async def models(self, _: web.Request) -> web.Response:
        """The one model behind this gateway."""
        return _json({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "areal-actors"}]})

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat, whole or streamed."""
        try:
            session = self._session(request)
            body = await _body(request)
            messages, options = chat.parse(body)
        except SessionError as error:
            return _json(chat.error(str(error), 401), 401)
        except RequestError as error:
            return _json(chat.error(str(error), 400, error.field), 400)
        question = CompleteChat(session=session, messages=messages, options=options, stream=body.get("stream") or False)
        model, created = str(body.get("model") or MODEL), int(time.time())
        async with aclosing(self.submit(question)) as parts:
            first = await anext(parts)
            if first.error:
                return _json(chat.error(first.error, first.error_status, first.error_field), first.error_status)
            if question.stream:
                return await _streamed(request, first, parts, model, created, usage=chat.wants_usage(body))
        usage = chat.usage(first.prompt_tokens, first.completion_tokens)
        return _json(chat.completion(first.interaction, model, created, first.text, first.finish_reason, usage))

    async def set_reward(self, request: web.Request) -> web.Response:
        """Note the reward of an interaction."""
        try:
            session = self._session(request)
            body = await _body(request)
        except SessionError as error:
            return _json(chat.error(str(error), 401), 401)
        except RequestError as error:
            return _json(chat.error(str(error), 400, error.field), 400)
        reward, interaction = body.get("reward"), body.get("interaction_id") or ""
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= sys.float_info.max:
            return _json(chat.error(f"'reward' is {reward!r:.60}; expected a finite number", 400, "reward"), 400)
        if not isinstance(interaction, str):
            return _json(chat.error("'interaction_id' must be a string or null", 400, "interaction_id"), 400)
        async with aclosing(self.submit(SetReward(session=session, interaction=interaction, reward=float(reward)))) as answers:
            answer = await anext(answers)
        if answer.error:
            return _json(chat.error(answer.error, answer.error_status), answer.error_status)
        return _json({"status": "ok"})

    def _session(self, request: web.Request) -> str:
        bearer = request.headers.get("Authorization", "")
        key = bearer[7:].strip() if bearer[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
        if not key:
            raise SessionError("no API key: send the session's key as 'Authorization: Bearer <key>'")
        return self.session_of_key(key, request.match_info.get("session", ""))


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the request body must be a JSON object")
    return body


async def _streamed(
    request: web.Request, first: ChatCompleted, rest: AsyncIterator[ChatCompleted], model: str, created: int, *, usage: bool
) -> web.StreamResponse:
    """Server-sent events: role, text as it comes, finish reason, usage if asked, [DONE]."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)

    async def send(event: dict[str, Any]) -> None:
        await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")

    await send(chat.chunk(first.interaction, model, created, {"role": "assistant", "content": ""}))
    part = first
    while True:
        if part.error:
            await send(chat.error(part.error, part.error_status, part.error_field))
            break
        if part.text:
            await send(chat.chunk(first.interaction, model, created, {"content": part.text}))
        if part.finish_reason:
            await send(chat.chunk(first.interaction, model, created, {}, part.finish_reason))
            if usage:
                await send(chat.usage_chunk(first.interaction, model, created, chat.usage(part.prompt_tokens, part.completion_tokens)))
            break
        part = await anext(rest)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
