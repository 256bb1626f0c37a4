"""Model calls of agents that name another policy: they go to its gateway, in the session of the same attempt there.

A call names its policy by `model`; every other name is the run's own. The session at the policy is opened with the
first call, and waits there until the policy's staleness gate has let the group start.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import hdrs, web

from areal_actors.core.errors import RequestError
from areal_actors.core.policy_settings import PolicySettings
from areal_actors.core.values import Value
from areal_actors.gateway.http_answers import Handler, RequestRefused
from areal_actors.gateway.protocols import DIALECTS
from areal_actors.gateway.server import Gateway, read_body
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.messages import OpenPolicySession, Refusal, SessionOpened

OPEN_PATH: Final = "/rl/policy_session"
CONNECT_SECONDS, RETRY_SECONDS, MARGIN_SECONDS = 10.0, 0.25, 30.0
REMEMBERED_SESSIONS = 8_192
"""Number of keys of sessions at policies that are kept, many times the number of episodes in flight."""
OF_THE_CONNECTION = {
    *("connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "date", "server"),
    *("host", "authorization", "x-api-key"),
}
"""Headers that are not passed on: they belong to one connection, or to one of the two gateways."""


class PolicyAddress(Value):
    """The gateway of a policy that runs on this machine, as its file in the folder of the run has it."""

    url: str
    admin_key: str


class NamedModel(msgspec.Struct):
    """The part of a call's body that is read to route it."""

    model: Any = None


class PolicyRouter:
    """Passes calls on as they are, and answers as they come, also those that are streamed."""

    def __init__(self, policies: Mapping[str, PolicySettings], folder: Path, completion_seconds: float) -> None:
        """`folder` has the address of each policy with processes, `NAME.json`."""
        self.policies, self.folder = policies, folder
        self.completion_seconds = completion_seconds
        self.keys: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Key at the policy, by its name and the session."""
        self._opening: dict[tuple[str, str], asyncio.Future[str]] = {}
        self._client: aiohttp.ClientSession | None = None

    def add_routes(self, registry: SessionRegistry, app: web.Application, gateway: Gateway) -> None:
        """Route the calls that arrive at a gateway."""

        @web.middleware
        async def route(request: web.Request, handler: Handler) -> web.StreamResponse:
            path = path_of_call(request)
            if not path or (policy := self._policy_of(await read_body(request))) is None:
                return await handler(request)
            return await self._pass_on(request, path, policy, gateway.session_of(request), registry)

        async def close(_: web.Application) -> None:
            await self.close()

        app.middlewares.append(route)
        app.on_cleanup.append(close)

    def _policy_of(self, body: bytes) -> str | None:
        """Returns the policy that a call names; None for the run's own, or a body that the gateway has to refuse."""
        try:
            model = msgspec.json.decode(body, type=NamedModel).model
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return model if isinstance(model, str) and model in self.policies else None

    async def _pass_on(
        self, request: web.Request, path: str, policy: str, session: str, registry: SessionRegistry
    ) -> web.StreamResponse:
        settings, body = self.policies[policy], await request.read()
        if settings.kind == "remote":
            root, key = settings.url, os.environ.get(settings.api_key_variable, "")
            body = with_model(body, settings.served_model or policy)
        else:
            key = await self._key_of(policy, session, registry)
            root = f"{self.address(policy).url}/v1"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in OF_THE_CONNECTION}
        headers |= {hdrs.AUTHORIZATION: f"Bearer {key}", "x-api-key": key} if key else {}
        try:
            async with self._http().post(f"{root.rstrip('/')}/{path}", data=body, headers=headers) as answer:
                return await stream_back(request, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = f"policy '{policy}' does not answer at {root}: {error or type(error).__name__}"
            raise RequestRefused(Refusal(status=503, reason=reason)) from error

    async def _key_of(self, policy: str, session: str, registry: SessionRegistry) -> str:
        """Returns the key of a session at a policy, opened if it is the first call there; calls at once share it."""
        if key := self.keys.get((policy, session)):
            return key
        if (opening := self._opening.get((policy, session))) is None:
            opening = asyncio.ensure_future(self._open(policy, session, registry))
            self._opening[policy, session] = opening
            opening.add_done_callback(lambda _: self._opening.pop((policy, session), None))
        key = self.keys[policy, session] = await asyncio.shield(opening)
        if len(self.keys) > REMEMBERED_SESSIONS:
            self.keys.popitem(last=False)
        return key

    async def _open(self, policy: str, session: str, registry: SessionRegistry) -> str:
        """Open the session of an agent at a policy."""
        caller = registry.update(msgspec.structs.replace(registry.get(session), calls_policies=True))
        return await self.open_session(policy, OpenPolicySession(session=session, work=caller.work))

    async def open_session(self, policy: str, question: OpenPolicySession) -> str:
        """Open a session at a policy, which may be starting or restarting; returns its key.

        Raises:
            RequestRefused: the policy refuses it, or does not answer within its `start_seconds`.
        """
        seconds = self.policies[policy].start_seconds
        fault = f"policy '{policy}' has not started"
        try:
            async with asyncio.timeout(seconds + MARGIN_SECONDS):
                while True:
                    try:
                        return await self._ask(policy, question, seconds)
                    except (aiohttp.ClientError, OSError) as error:
                        fault = f"policy '{policy}' cannot be reached ({error})"
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            reason = f"{fault} within policies.{policy}.start_seconds = {seconds:g} s; see {self.folder / policy}.out"
            raise RequestRefused(Refusal(status=503, reason=reason)) from None

    async def _ask(self, policy: str, question: OpenPolicySession, seconds: float) -> str:
        address = self.address(policy)
        timeout = aiohttp.ClientTimeout(total=seconds + MARGIN_SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._http().post(
            f"{address.url}{OPEN_PATH}",
            data=msgspec.msgpack.encode(question),
            headers={hdrs.AUTHORIZATION: f"Bearer {address.admin_key}"},
            timeout=timeout,
        ) as answer:
            content = await answer.read()
            answer.raise_for_status()
        opened = msgspec.msgpack.decode(content, type=SessionOpened)
        if opened.refused:
            raise RequestRefused(Refusal(status=503, reason=opened.refused))
        return opened.api_key

    def address(self, policy: str) -> PolicyAddress:
        """Returns the address of a policy, which has another after each start; raises OSError before the first."""
        return msgspec.json.decode((self.folder / f"{policy}.json").read_bytes(), type=PolicyAddress)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    def _http(self) -> aiohttp.ClientSession:
        if self._client is None:
            timeout = aiohttp.ClientTimeout(
                sock_connect=CONNECT_SECONDS, sock_read=self.completion_seconds + MARGIN_SECONDS
            )
            connector = aiohttp.TCPConnector(limit=0)
            self._client = aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False)
        return self._client


def path_of_call(request: web.Request) -> str:
    """Returns the path of a model call after `/v1/`; empty for any other request."""
    if request.method != hdrs.METH_POST:
        return ""
    paths = sorted((dialect.path for dialect in DIALECTS), key=len, reverse=True)
    return next((path for path in paths if request.path.endswith(f"/{path}")), "")


def with_model(body: bytes, model: str) -> bytes:
    """Returns the body of a call with another name of its model.

    Raises:
        RequestError: it is no JSON object.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is no JSON object: {error}") from error
    return msgspec.json.encode({**fields, "model": model})


async def stream_back(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Send an answer on, part by part as it arrives."""
    headers = {name: value for name, value in answer.headers.items() if name.lower() not in OF_THE_CONNECTION}
    if answer.content_type != "text/event-stream":
        return web.Response(status=answer.status, body=await answer.read(), headers=headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for part in answer.content.iter_any():
        await response.write(part)
    await response.write_eof()
    return response
