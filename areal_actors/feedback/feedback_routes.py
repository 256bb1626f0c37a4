"""Feedback and erasures over HTTP: `/rl/feedback`, `/rl/erase`, and Langfuse's scores.

The feedback key takes feedback on every session and does nothing else; the key of a session takes feedback on that
session, also after its end. Erasures need the admin key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from aiohttp import hdrs, web

from areal_actors.core.errors import ArealError, RequestError, SessionError
from areal_actors.core.feedback_settings import FeedbackSettings
from areal_actors.feedback.feedback_requests import EraseRequest, FeedbackRequest, LangfuseScore
from areal_actors.gateway.http_answers import RequestRefused, as_json
from areal_actors.gateway.protocols.openapi import Endpoint
from areal_actors.gateway.protocols.session_requests import decode_request
from areal_actors.gateway.server import Gateway, key_of, read_body
from areal_actors.gateway.sessions.keys import is_admin
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.messages import FeedbackGiven, GiveFeedback, Refusal
from areal_bus.message import Reply, Request

R = TypeVar("R", bound=Reply)
SCORE_CREATE = "score-create"
MULTI_STATUS, CREATED, ACCEPTED = 207, 201, 202


class LangfuseEvent(msgspec.Struct):
    """An event of Langfuse's ingestion; only scores are recorded."""

    id: str
    type: str
    body: Any = None


class LangfuseBatch(msgspec.Struct):
    """`POST /api/public/ingestion` of Langfuse, as its SDK sends scores."""

    batch: list[LangfuseEvent]


ENDPOINTS = (
    Endpoint("post", "/rl/feedback", "Judge a session or a call, at any time (feedback key)", FeedbackRequest),
    Endpoint("post", "/rl/erase", "Erase a session, or those of a user (admin key)", EraseRequest),
)
"""Endpoints of feedback, for the OpenAPI description."""


class FeedbackRoutes:
    """Translates requests; the session manager answers them."""

    def __init__(self, settings: FeedbackSettings, *, admin_key: str, feedback_key: str) -> None:
        self.settings, self.admin_key, self.feedback_key = settings, admin_key, feedback_key

    def add_routes(self, registry: SessionRegistry, app: web.Application, gateway: Gateway) -> None:
        """Serve the endpoints at a gateway."""
        gateway.endpoints += ENDPOINTS
        endpoints = _Endpoints(self, registry, gateway)
        for prefix in ("", "/{session}"):
            app.router.add_post(f"{prefix}/rl/feedback", endpoints.feedback)
        app.router.add_post("/rl/erase", endpoints.erase)
        app.router.add_post("/api/public/scores", endpoints.langfuse_score)
        app.router.add_post("/api/public/ingestion", endpoints.langfuse_ingestion)


class _Endpoints:
    def __init__(self, routes: FeedbackRoutes, registry: SessionRegistry, gateway: Gateway) -> None:
        self.routes, self.settings, self.registry, self.gateway = routes, routes.settings, registry, gateway

    async def feedback(self, request: web.Request) -> web.Response:
        own = self._session_of(key_of(request), request.match_info.get("session", ""))
        feedback = decode_request(await read_body(request), FeedbackRequest).to_feedback(self.settings)
        return as_json(await self._give(feedback, own))

    async def erase(self, request: web.Request) -> web.Response:
        if not is_admin(key_of(request), self.routes.admin_key):
            raise RequestRefused(Refusal(status=403, reason=f"{request.path} requires the admin key"))
        erasure = decode_request(await read_body(request), EraseRequest).to_erasure()
        recorded = await self._ask(erasure)
        return as_json({"status": "erased", "sessions": recorded.sessions})

    async def langfuse_score(self, request: web.Request) -> web.Response:
        """Takes one score, or a list of them, of which each is answered by itself."""
        own = self._session_of(langfuse_key(request), "")
        scores: Any = _decode(await read_body(request), object)
        if isinstance(scores, dict):
            return as_json({"id": await self._give_score(scores, own)})
        if not isinstance(scores, list):
            raise RequestError("the body is neither a score nor a list of scores")
        results = [await self._try_score(fields, own) for fields in scores]
        errors = [{"message": reason} for _, reason in results if reason]
        counts = {"accepted": len(results) - len(errors), "rejected": len(errors), "errors": errors}
        return as_json(counts, MULTI_STATUS) if errors else as_json({"message": "Accepted"}, ACCEPTED)

    async def langfuse_ingestion(self, request: web.Request) -> web.Response:
        """Answers each event of a batch by itself, as Langfuse does; a trace or a generation is not recorded."""
        own = self._session_of(langfuse_key(request), "")
        successes, errors = list[dict[str, Any]](), list[dict[str, Any]]()
        for event in _decode(await read_body(request), LangfuseBatch).batch:
            status, reason = CREATED, ""
            if event.type == SCORE_CREATE:
                status, reason = await self._try_score(event.body, own)
            if reason:
                errors.append({"id": event.id, "status": status, "message": reason, "error": reason})
            else:
                successes.append({"id": event.id, "status": status})
        return as_json({"successes": successes, "errors": errors}, MULTI_STATUS)

    async def _give_score(self, fields: Any, own: str) -> str:
        """Records a score; returns its id."""
        given = await self._give(_convert(fields, LangfuseScore).to_feedback(self.settings), own)
        return str(given["id"])

    async def _try_score(self, fields: Any, own: str) -> tuple[int, str]:
        """Records a score of several; returns the HTTP status and the reason if it was refused."""
        try:
            await self._give_score(fields, own)
        except RequestRefused as refused:
            return refused.refusal.status, refused.refusal.reason
        except ArealError as error:
            return 400, str(error)
        return CREATED, ""

    def _session_of(self, key: str, path: str) -> str:
        """Returns the session whose own key this is; empty for a key that judges every session.

        Raises:
            SessionError: it is neither.
        """
        every = hmac.compare_digest(key.encode(errors="surrogateescape"), self.routes.feedback_key.encode())
        if every or is_admin(key, self.routes.admin_key):
            return path
        return self.registry.session_of_key(key, path)

    async def _give(self, feedback: FeedbackGiven, own: str) -> dict[str, Any]:
        if own and feedback.session not in {"", own}:
            reason = f"this is the key of session {own}; feedback on {feedback.session} needs the feedback key"
            raise RequestRefused(Refusal(status=403, reason=reason, field="session_id"))
        session = own or feedback.session
        if not session and not feedback.interaction:
            raise RequestError("send 'session_id', or the 'interaction_id' of a call", "session_id")
        recorded = await self._ask(GiveFeedback(feedback=msgspec.structs.replace(feedback, session=session)))
        return {"status": recorded.state, "id": recorded.id}

    async def _ask(self, question: Request[R]) -> R:
        async with aclosing(self.gateway.submit(question)) as answers:
            answer = await anext(answers)
        if (refused := getattr(answer, "refused", None)) is not None:
            raise RequestRefused(refused)
        return answer


def langfuse_key(request: web.Request) -> str:
    """Returns the key of a client of Langfuse: its secret key, the password of HTTP's basic authentication."""
    scheme, _, encoded = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() != "basic":
        return key_of(request)
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError) as error:
        raise SessionError("the basic authentication cannot be read; send the feedback key as secret key") from error


T = TypeVar("T")


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise RequestError(str(error)) from error


def _convert(fields: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from error
