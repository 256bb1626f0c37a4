"""The HTTP endpoints of Tinker's API: JSON, and Protocol Buffers for training data and its results.

Who may use it is decided in `access.py`. A failed request is a result with `error` and `category`; a
request that cannot be accepted is refused with a status and the reason as `detail`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import structlog
from aiohttp import web

from areal_actors.core.errors import ArealError, CheckpointError, RequestError, SetupError
from areal_actors.core.local_hosts import parse_number
from areal_actors.tinker.access import TinkerAccess
from areal_actors.tinker.datums import forward_of_json, forward_of_message
from areal_actors.tinker.futures import RequestFailure, Result
from areal_actors.tinker.protobuf import WireMessage
from areal_actors.tinker.requests import (
    Body,
    CancelFuture,
    CreateModel,
    CreateSamplingSession,
    CreateSession,
    JoinSamplingSession,
    LoadWeights,
    OfModel,
    OptimStep,
    RetrieveFuture,
    Sample,
    SaveWeights,
    SessionHeartbeat,
    UnknownFields,
    WeightsInfo,
)
from areal_actors.tinker.service import TinkerService

logger = structlog.get_logger(__name__)

PROTOBUF = "application/x-protobuf"
MAX_BODY_BYTES = 256 * 2**20
POLL_SECONDS = 20.0
"""Longest wait of `retrieve_future`; clients wait for 45 s, and ask again."""
SHUTDOWN_SECONDS = 5.0
"""Grace period of requests in flight when the server stops."""
STATUS = {"not_found": 404, "gone": 410, "": 400}
"""HTTP status by the code of a `RequestError`."""
CLIENT_CONFIG = {
    "use_pyqwest_transport": False,
    "sample_enable_stuck_detection": False,
    "sample_join_sampling_session": True,
}
"""Feature flags of clients: their plain HTTP transport; no limit on the time of a sample, because a laptop may take
long."""

Item = TypeVar("Item")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENCODER = msgspec.json.Encoder()


class TinkerRoutes:
    """Handlers of all endpoints."""

    def __init__(self, service: TinkerService, access: TinkerAccess | None = None) -> None:
        self._service = service
        self._access = access or TinkerAccess()
        self._fields = UnknownFields()

    def runner(self) -> web.AppRunner:
        """The HTTP server. Bodies arrive as they were sent, so that a compressed one is refused with a reason."""
        return web.AppRunner(
            self._application(), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, auto_decompress=False
        )

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[errors_as_detail, self._check_access])
        for path, post in self._posts().items():
            app.router.add_post(f"/api/v1/{path}", post)
        for path, get in self._gets().items():
            app.router.add_get(f"/api/v1/{path}", get)
        app.router.add_delete("/api/v1/training_runs/{run}/checkpoints/{kind}/{name}", self.delete_checkpoint)
        return app

    def _posts(self) -> dict[str, Handler]:
        return {
            "client/config": self.client_config,
            "client/dynamic_config": self.client_dynamic_config,
            "telemetry": self.telemetry,
            "create_session": self.create_session,
            "session_heartbeat": self.session_heartbeat,
            "sessions/{session}/finish": self.finish_session,
            "create_model": self.create_model,
            "get_info": self.get_info,
            "unload_model": self.unload_model,
            "forward_backward": self.forward_backward,
            "forward": self.forward_backward,
            "optim_step": self.optim_step,
            "save_weights": self.save_weights,
            "save_weights_for_sampler": self.save_weights_for_sampler,
            "load_weights": self.load_weights,
            "weights_info": self.weights_info,
            "create_sampling_session": self.create_sampling_session,
            "join_sampling_session": self.join_sampling_session,
            "asample": self.asample,
            "retrieve_future": self.retrieve_future,
            "cancel_future": self.cancel_future,
        }

    def _gets(self) -> dict[str, Handler]:
        return {
            "healthz": self.healthz,
            "get_server_capabilities": self.get_server_capabilities,
            "samplers/{sampler}": self.get_sampler,
            "sessions": self.list_sessions,
            "sessions/{session}": self.get_session,
            "training_runs": self.list_training_runs,
            "training_runs/{run}": self.get_training_run,
            "training_runs/{run}/checkpoints": self.list_checkpoints,
            "checkpoints": self.list_checkpoints,
        }

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if (refusal := self._access.refuse(request)) is not None:
            status, reason = refusal
            return respond({"detail": reason}, status=status)
        return await handler(request)

    # ------------------------------------------------------------ server and sessions

    async def healthz(self, _: web.Request) -> web.Response:
        """The server is ready."""
        return respond({"status": "ok"})

    async def client_config(self, _: web.Request) -> web.Response:
        """Feature flags of a client."""
        return respond(CLIENT_CONFIG)

    async def client_dynamic_config(self, _: web.Request) -> web.Response:
        """Feature flags that may change: abandoned samples are cancelled."""
        return respond({"sample_cancel_enabled": True})

    async def telemetry(self, _: web.Request) -> web.Response:
        """Telemetry is accepted and not kept."""
        return respond({"status": "accepted"})

    async def get_server_capabilities(self, _: web.Request) -> web.Response:
        """The served model, by each of its names."""
        context = self._service.sampler.context
        shared = {"max_context_length": context, "trainable": True, "sampleable": True}
        return respond({"supported_models": [{"model_name": name, **shared} for name in self._service.names]})

    async def create_session(self, request: web.Request) -> web.Response:
        """A new client."""
        session_id = self._service.sessions.create(await self._read(request, CreateSession))
        return respond({"type": "create_session", "session_id": session_id})

    async def session_heartbeat(self, request: web.Request) -> web.Response:
        """A client is alive."""
        self._service.sessions.session((await self._read(request, SessionHeartbeat)).session_id)
        return respond({"type": "session_heartbeat"})

    async def finish_session(self, request: web.Request) -> web.Response:
        """A client has ended."""
        self._service.sessions.finish(request.match_info["session"])
        return respond({})

    async def list_sessions(self, request: web.Request) -> web.Response:
        """Ids of the live sessions."""
        return respond({"sessions": page(list(self._service.sessions), request)[0]})

    async def get_session(self, request: web.Request) -> web.Response:
        """Models and samplers of a session."""
        session = self._service.sessions.session(request.match_info["session"])
        named = {"user_metadata": session.request.user_metadata, "display_name": session.request.display_name}
        return respond({"training_run_ids": list(session.models), "sampler_ids": list(session.samplers), **named})

    # ------------------------------------------------------------ training

    async def create_model(self, request: web.Request) -> web.Response:
        """A model to train."""
        request_id, model_id = self._service.create_model(await self._read(request, CreateModel))
        return promise(request_id, model_id)

    async def get_info(self, request: web.Request) -> web.Response:
        """Facts about a model."""
        return respond(self._service.info((await self._read(request, OfModel)).model_id))

    async def unload_model(self, request: web.Request) -> web.Response:
        """A client no longer needs a model."""
        body = await self._read(request, OfModel)
        return promise(self._service.unload_model(body.model_id), body.model_id)

    async def forward_backward(self, request: web.Request) -> web.Response:
        """A forward pass, with a backward pass or without; its data is checked when its turn has come."""
        data = await request.read()
        if request.content_type == PROTOBUF:
            message = WireMessage(data)
            model_id, seq_id = message.text(1), message.number(2) or None
            return promise(self._service.forward(model_id, seq_id, lambda: forward_of_message(message)), model_id)
        body = json_object(data)
        model_id, seq_id = str(body.get("model_id", "")), whole_number(body, "seq_id")
        only = request.path.endswith("/forward")
        return promise(
            self._service.forward(model_id, seq_id, lambda: forward_of_json(body, forward_only=only)), model_id
        )

    async def optim_step(self, request: web.Request) -> web.Response:
        """One optimizer step."""
        body = await self._read(request, OptimStep)
        return promise(self._service.optim_step(body), body.model_id)

    # ------------------------------------------------------------ weights

    async def save_weights(self, request: web.Request) -> web.Response:
        """A training checkpoint."""
        body = await self._read(request, SaveWeights)
        return promise(self._service.save_weights(body), body.model_id)

    async def save_weights_for_sampler(self, request: web.Request) -> web.Response:
        """Weights to sample from."""
        body = await self._read(request, SaveWeights)
        return promise(self._service.save_weights_for_sampler(body), body.model_id)

    async def load_weights(self, request: web.Request) -> web.Response:
        """A training checkpoint is loaded."""
        return promise(*self._service.load_weights(await self._read(request, LoadWeights)))

    async def weights_info(self, request: web.Request) -> web.Response:
        """Base model and adapter of a checkpoint."""
        body = await self._read(request, WeightsInfo)
        run, _, _ = self._service.checkpoints.folder(body.tinker_path)
        lora = msgspec.structs.asdict(run.lora) if run.lora else {}
        flags = {name: lora.get(name) for name in ("train_unembed", "train_mlp", "train_attn")}
        return respond(
            {"base_model": run.base_model, "is_lora": run.lora is not None, "lora_rank": lora.get("rank"), **flags}
        )

    async def list_training_runs(self, request: web.Request) -> web.Response:
        """All training runs, the newest first."""
        runs, cursor = page(self._service.checkpoints.runs(), request)
        return respond(
            {"training_runs": [self._service.checkpoints.describe_run(run) for run in runs], "cursor": cursor}
        )

    async def get_training_run(self, request: web.Request) -> web.Response:
        """One training run."""
        store = self._service.checkpoints
        return respond(store.describe_run(store.run(request.match_info["run"])))

    async def list_checkpoints(self, request: web.Request) -> web.Response:
        """Checkpoints of a run, or of all runs."""
        run = request.match_info.get("run", "*")
        if run != "*":
            self._service.checkpoints.run(run)
        checkpoints, cursor = page(self._service.checkpoints.checkpoints(run), request)
        return respond({"checkpoints": checkpoints, "cursor": cursor})

    async def delete_checkpoint(self, request: web.Request) -> web.Response:
        """A checkpoint is deleted."""
        self._service.checkpoints.delete("tinker://{run}/{kind}/{name}".format(**request.match_info))
        return respond({})

    # ------------------------------------------------------------ sampling and futures

    async def create_sampling_session(self, request: web.Request) -> web.Response:
        """A sampler."""
        sampler_id = await self._service.create_sampling_session(await self._read(request, CreateSamplingSession))
        return respond({"type": "create_sampling_session", "sampling_session_id": sampler_id})

    async def join_sampling_session(self, request: web.Request) -> web.Response:
        """A further client of a sampler."""
        sampler = self._service.sessions.sampler((await self._read(request, JoinSamplingSession)).sampling_session_id)
        sampler.clients += 1
        return respond({"type": "join_sampling_session", "client_counter": sampler.clients - 1})

    async def get_sampler(self, request: web.Request) -> web.Response:
        """Facts about a sampler."""
        sampler_id = request.match_info["sampler"]
        sampler = self._service.sessions.sampler(sampler_id)
        return respond(
            {"sampler_id": sampler_id, "base_model": self._service.names[0], "model_path": sampler.model_path}
        )

    async def asample(self, request: web.Request) -> web.Response:
        """Completions of a prompt."""
        request_id, sequence_ids = self._service.sample(await self._read(request, Sample))
        return respond({"request_id": request_id, "sample_sequence_ids": sequence_ids})

    async def retrieve_future(self, request: web.Request) -> web.Response:
        """The result of a request, or status 408 if the client is to ask again."""
        body = await self._read(request, RetrieveFuture)
        result = await self._service.futures.result(body.request_id, POLL_SECONDS)
        if result is None:
            return respond({"type": "try_again", "request_id": body.request_id, "queue_state": "active"}, status=408)
        return respond_result(result, protobuf=PROTOBUF in request.headers.get("Accept", ""))

    async def cancel_future(self, request: web.Request) -> web.Response:
        """A sampling request is no longer needed."""
        self._service.futures.cancel((await self._read(request, CancelFuture)).request_id)
        return respond({})

    async def _read(self, request: web.Request, kind: type[Body]) -> Body:
        return self._fields.read(await request.read(), kind)


@web.middleware
async def errors_as_detail(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer an error with its status and its message."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        return respond({"detail": "the body is compressed: send it as it is"}, status=415)
    try:
        return await handler(request)
    except RequestError as error:
        return respond({"detail": str(error)}, status=STATUS.get(error.code, 400))
    except (CheckpointError, SetupError) as error:
        return respond({"detail": str(error)}, status=400)
    except ArealError as error:
        return respond({"detail": str(error)}, status=500)
    except web.HTTPException as error:
        detail = f"{request.method} {request.path}: {error.reason}; docs/tinker.md lists the supported calls"
        return respond({"detail": detail}, status=error.status)


def respond(body: object, status: int = 200) -> web.Response:
    """A response with a JSON body."""
    return web.Response(body=_ENCODER.encode(body), content_type="application/json", status=status)


def promise(request_id: str, model_id: str) -> web.Response:
    """The response to a request whose result the client fetches later."""
    return respond({"request_id": request_id, "model_id": model_id})


def respond_result(result: Result, *, protobuf: bool) -> web.Response:
    """The response with the result of a request."""
    if isinstance(result, RequestFailure | dict):
        return respond(result)
    if protobuf:
        return web.Response(body=result.to_protobuf(), content_type=PROTOBUF)
    return respond(result.to_json())


def json_object(data: bytes) -> dict[str, Any]:
    """Read a body that is a JSON object.

    Raises:
        RequestError: it is none.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RequestError(f"the body is no JSON object: {error}") from error


def whole_number(body: Mapping[str, Any], name: str) -> int | None:
    """Read a whole number that may be missing.

    Raises:
        RequestError: it is something else.
    """
    value = body.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise RequestError(f"{name} is a whole number; found {type(value).__name__}", name)


def page(items: list[Item], request: web.Request) -> tuple[list[Item], Mapping[str, int]]:
    """The items that the parameters `limit` and `offset` select, and the cursor of the response."""
    try:
        limit, offset = (
            parse_number(request.query.get(name, default), name)
            for name, default in (("limit", "100"), ("offset", "0"))
        )
    except ValueError as error:
        raise RequestError(str(error), "limit") from error
    return items[offset : offset + limit], {"offset": offset, "limit": limit, "total_count": len(items)}
