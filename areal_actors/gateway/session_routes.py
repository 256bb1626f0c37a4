"""The session protocol over HTTP: capacity, start, reward, end, state, export.

It translates requests; the session manager answers them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from aiohttp import hdrs, web

from areal_actors.core.errors import RequestError, RewardError, SessionError
from areal_actors.core.local_hosts import foreign_name
from areal_actors.core.values import unpack_ids
from areal_actors.gateway.http_answers import RequestRefused, as_json, readable
from areal_actors.gateway.protocols.session_requests import (
    EmptyRequest,
    ExportRequest,
    SelectTrainedRequest,
    SetRewardRequest,
    StartSessionRequest,
    base_url,
    decode_request,
)
from areal_actors.gateway.server import Gateway, key_of, read_body
from areal_actors.gateway.sessions.keys import is_admin
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.messages import (
    DescribeGateway,
    DescribeSession,
    EndSession,
    GatewayDescribed,
    GetInteraction,
    GetTrajectory,
    InteractionTokens,
    Refusal,
    ReserveCapacity,
    SelectTrained,
    SessionDescribed,
    SetReward,
    StartSession,
)
from areal_actors.rewards.spans import read_spans
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.export import export_trajectory, to_json, to_msgpack
from areal_bus.message import Reply, Request

R = TypeVar("R", bound=Reply)
AddRoutes = Callable[[SessionRegistry, web.Application, Gateway], None]
"""Adds routes and middlewares to a gateway that knows its sessions, before it listens."""

CONSENT = "x-areal-consent"
"""Header of `/rl/start_session` in place of its field `consent`."""
MSGPACK = "application/msgpack"
MSGPACK_NAMES = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")


def add_session_routes(
    app: web.Application, gateway: Gateway, *, admin_key: str, open_metrics: bool, own_address: bool = False
) -> None:
    """Serve the session protocol: admin endpoints at the root, those of a session also below its name.

    Args:
        app: application to add the routes to.
        gateway: finds the session of a request, and sends questions to the session manager.
        admin_key: key of the endpoints that start and export sessions.
        open_metrics: serve `/metrics` without a key; otherwise it requires the admin key.
        own_address: give a session the gateway's address; otherwise the one by which the client reached it.
    """
    endpoints = SessionEndpoints(gateway, admin_key, open_metrics=open_metrics, own_address=own_address)
    app.router.add_post("/grant_capacity", endpoints.grant_capacity)
    app.router.add_post("/rl/start_session", endpoints.start_session)
    app.router.add_post("/export_trajectories", endpoints.export_trajectories)
    for prefix in ("", "/{session}"):
        app.router.add_post(f"{prefix}/rl/set_reward", endpoints.set_reward)
        app.router.add_post(f"{prefix}/rl/end_session", endpoints.end_session)
        app.router.add_get(f"{prefix}/rl/session", endpoints.session)
        app.router.add_get(f"{prefix}/rl/interaction", endpoints.interaction)
        app.router.add_post(f"{prefix}/rl/select_trained", endpoints.select_trained)
    app.router.add_get("/ready", endpoints.ready)
    app.router.add_get("/metrics", endpoints.metrics)


class SessionEndpoints:
    """One method per endpoint."""

    def __init__(self, gateway: Gateway, admin_key: str, *, open_metrics: bool, own_address: bool) -> None:
        self.gateway, self.admin_key, self.open_metrics, self.own_address = (
            gateway,
            admin_key,
            open_metrics,
            own_address,
        )

    async def grant_capacity(self, request: web.Request) -> web.Response:
        """Reserve a slot. These endpoints ignore the content type, so that `curl -d` needs no header."""
        self._only_admin(request)
        decode_request(await read_body(request), EmptyRequest)
        reserved = await self._ask(ReserveCapacity())
        return as_json({"status": "ok", "seconds": reserved.seconds})

    async def start_session(self, request: web.Request) -> web.Response:
        """Start a session."""
        self._only_admin(request)
        asked = decode_request(await read_body(request), StartSessionRequest)
        if asked.api_key and is_admin(asked.api_key, self.admin_key):
            raise RequestError(
                "'api_key' is the admin key; give the session a key of its own, or leave it out for a new one",
                "api_key",
            )
        question = StartSession(
            task=asked.task_id,
            api_key=asked.api_key or "",
            group_size=asked.group_size or 0,
            replace=asked.replace,
            user=asked.user or "",
            consent=consent_of(asked, request, default=self.gateway.config.default_consent),
        )
        given = await self._ask(question)
        origin = self.gateway.root if self.own_address else f"{request.scheme}://{readable(request.host)}"
        url = base_url(origin, given.session)
        return as_json({"session_id": given.session, "api_key": given.api_key, "base_url": url})

    async def set_reward(self, request: web.Request) -> web.Response:
        """Set the reward of an interaction."""
        session = self.gateway.session_of(request)
        asked = decode_request(await read_body(request), SetRewardRequest)
        try:
            spans = read_spans([msgspec.to_builtins(span) for span in asked.spans])
        except RewardError as error:
            raise RequestError(str(error), "spans") from error
        answer = await self._ask(
            SetReward(
                session=session,
                interaction=asked.interaction_id or "",
                reward=float(asked.reward),
                role=asked.role or "",
                spans=spans,
            )
        )
        if answer.error:
            raise RequestRefused(Refusal(status=answer.error_status, reason=answer.error))
        return as_json({"status": "ok"})

    async def end_session(self, request: web.Request) -> web.Response:
        """End the session."""
        session = self.gateway.session_of(request)
        decode_request(await read_body(request), EmptyRequest)
        closed = await self._ask(EndSession(session=session))
        body: dict[str, Any] = {
            "session_id": closed.session,
            "interaction_count": closed.interactions,
            "state": closed.state,
        }
        return as_json({**body, "reason": closed.detail} if closed.detail else body)

    async def session(self, request: web.Request) -> web.Response:
        """The state of the key's session; with the admin key, of the session in the path or query."""
        if is_admin(key_of(request), self.admin_key):
            if not (name := request.match_info.get("session") or request.query.get("session_id", "")):
                raise RequestError(
                    "no session given; use GET /{session_id}/rl/session, or add ?session_id=", "session_id"
                )
            return as_json(_session_json(await self._ask(DescribeSession(session=name))))
        return as_json(
            _session_json(await self._ask(DescribeSession(session=self.gateway.session_of(request), by_agent=True)))
        )

    async def interaction(self, request: web.Request) -> web.Response:
        """The tokens of a completed call of the key's session."""
        session = self.gateway.session_of(request)
        if not (name := request.query.get("interaction_id", "")):
            raise RequestError("no interaction given; add ?interaction_id=, the 'id' of a response", "interaction_id")
        return as_json(_interaction_json(await self._ask(GetInteraction(session=session, interaction=name))))

    async def select_trained(self, request: web.Request) -> web.Response:
        """Train only some of the completed calls of the key's session."""
        session = self.gateway.session_of(request)
        asked = decode_request(await read_body(request), SelectTrainedRequest)
        await self._ask(SelectTrained(session=session, interactions=tuple(asked.interaction_ids)))
        return as_json({"status": "ok"})

    async def export_trajectories(self, request: web.Request) -> web.Response:
        """The rows of a session: msgpack if the client accepts it, else JSON."""
        self._only_admin(request)
        asked = decode_request(await read_body(request), ExportRequest)
        given = await self._ask(GetTrajectory(session=asked.session_id, wait_seconds=asked.wait_seconds))
        assert given.trajectory is not None
        credit = Credit(discount=asked.discount, branch=asked.branch_credit, style=asked.style)
        export = export_trajectory(given.session, given.trajectory, credit)
        if any(name in request.headers.get(hdrs.ACCEPT, "") for name in MSGPACK_NAMES):
            return web.Response(body=to_msgpack(export), content_type=MSGPACK)
        return as_json(to_json(export))

    async def ready(self, _: web.Request) -> web.Response:
        """Readiness: 503 while sessions cannot be served."""
        state = await self._ask(DescribeGateway())
        return (
            as_json({"status": "waiting", "for": state.missing}, 503) if state.missing else as_json({"status": "ready"})
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """Counters in the text format of Prometheus."""
        if not self.open_metrics:
            self._only_admin(request)
        elif name := foreign_name(request.host):
            reason = (
                "these metrics are served to this machine only, as 127.0.0.1, without the admin key; found the name"
                f" {name}"
            )
            raise RequestRefused(Refusal(status=403, reason=reason))
        return web.Response(
            text=_prometheus(await self._ask(DescribeGateway())), content_type="text/plain", charset="utf-8"
        )

    async def _ask(self, question: Request[R]) -> R:
        async with aclosing(self.gateway.submit(question)) as answers:
            answer = await anext(answers)
        if (refused := getattr(answer, "refused", None)) is not None:
            raise RequestRefused(refused)
        return answer

    def _only_admin(self, request: web.Request) -> None:
        if not (key := key_of(request)):
            raise SessionError("no API key: send the admin key as 'Authorization: Bearer <key>' or 'x-api-key: <key>'")
        if not is_admin(key, self.admin_key):
            raise RequestRefused(
                Refusal(status=403, reason=f"{request.path} requires the admin key; this is another key")
            )


def consent_of(asked: StartSessionRequest, request: web.Request, *, default: bool) -> bool:
    """Returns the consent of a session: of its request's body, else of its header, else the recipe's.

    Raises:
        RequestError: the header is neither `true` nor `false`.
    """
    if asked.consent is not None:
        return asked.consent
    header = request.headers.get(CONSENT, "").strip().lower()
    if header not in {"", "true", "false"}:
        raise RequestError(f"the header {CONSENT} is {readable(header)!r:.40}; send true or false", CONSENT)
    return header == "true" if header else default


def _session_json(described: SessionDescribed) -> dict[str, Any]:
    turns = described.interactions
    body = {
        "session_id": described.session,
        "task_id": described.task,
        "state": described.state,
        "reason": described.detail,
        "interaction_count": len(turns),
        "interactions": turns,
        "calls_in_hand": described.running,
        "rewards": {turn.id: turn.reward for turn in turns if turn.reward is not None},
        "tokens": {
            "sampled": sum(turn.completion_tokens for turn in turns),
            "longest": max((turn.prompt_tokens + turn.completion_tokens for turn in turns), default=0),
        },
        "lease": {"seconds": described.lease_seconds, "expires_in": described.expires_in},
    }
    return {name: value for name, value in body.items() if value != ""}


def _interaction_json(interaction: InteractionTokens) -> dict[str, Any]:
    columns = interaction.completion
    return {
        "interaction_id": interaction.interaction,
        "parent": interaction.parent,
        "finish_reason": interaction.finish_reason,
        "prompt_token_ids": unpack_ids(interaction.prompt_ids),
        "token_ids": columns.ids_array().tolist(),
        "logprobs": columns.logprobs_array().tolist(),
        "weight_versions": columns.versions_array().tolist(),
    }


def _prometheus(state: GatewayDescribed) -> str:
    metrics: tuple[tuple[str, str, str, str, Mapping[str, int]], ...] = (
        ("areal_ready", "gauge", "1 if sessions can be served.", "", {"": not state.missing}),
        ("areal_sessions", "gauge", "Live sessions by state.", "state", state.sessions),
        (
            "areal_sessions_ended_total",
            "counter",
            "Sessions of external agents that have ended.",
            "outcome",
            {"exported": state.exported, "abandoned": state.abandoned},
        ),
        ("areal_session_slots_free", "gauge", "Sessions that may start.", "", {"": state.room}),
        ("areal_calls_in_hand", "gauge", "Calls in flight at an inference worker.", "worker", state.in_hand),
        (
            "areal_completions_refused_total",
            "counter",
            "Completions of an inference worker that were refused.",
            "worker",
            state.refused_completions,
        ),
    )
    lines: list[str] = []
    for name, kind, help_text, label, values in metrics:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{{label}="{key}"}} {value:d}' if label else f"{name} {value:d}" for key, value in values.items()
        ]
    return "\n".join(lines) + "\n"
