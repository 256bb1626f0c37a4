"""SGLang 0.5.20 and later, over its own HTTP protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from areal_actors.core.errors import EngineError, EngineUnavailable, WeightTransferFailed
from areal_actors.core.model_config import route_shape_of
from areal_actors.generation.engine import NO_SLEEP, EnginePlace
from areal_actors.generation.servers.dialect import (
    USAGE_SECONDS,
    Group,
    Segment,
    SegmentPart,
    ServerUsage,
    merged_flags,
    on_cpu,
)
from areal_actors.generation.servers.http_engine import engine_of
from areal_actors.generation.servers.server_process import (
    IDLE_SECONDS,
    OK,
    SERVER_SIDE,
    ServerClient,
    flags,
    message_of,
)
from areal_actors.generation.servers.sglang.engine_description import DESCRIPTION
from areal_actors.generation.servers.sglang.requests import (
    adapter_fields,
    prompt_fields,
    read_part,
    routes_fields,
    sampling_fields,
)
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.sending import Bucket

ON_CPU, WITH_ADAPTERS, WITH_CHANNELS = (SERVER_SIDE / f"sglang_{name}.py" for name in ("on_cpu", "adapters", "weights"))
REPORT = " areal_weights="
"""Before the report of what arrived, in the message of an answer; see `server_side/sglang_weights.py`."""
SPARE_CONTEXT = 8
"""SGLang ends completions up to two tokens before its context is full."""
IDLE_WAIT_SECONDS = 60
"""SGLang drops its prefix cache when no request is left in a batch; none is sent to it meanwhile."""
CPU_CACHE_TOKENS = 2**17
"""Maximum KV cache of a server on a CPU, in tokens."""
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Layers that an adapter may change if its recipe names none; SGLang's `all` also takes embedding and head."""
RELEASED = ["kv_cache", "weights"]
"""Memory that is released during an optimizer step; CUDA graphs stay."""
WITHOUT_ADAPTER = 1
"""Requests without an adapter, as the first of a server, count as those of one."""
KEPT_ADAPTERS = 2
"""Adapters of a policy that a server keeps: the one that samples, and one that a killed worker left."""


class SGLang:
    """See `ServerDialect`."""

    name = DESCRIPTION.name
    title = DESCRIPTION.title
    abilities = DESCRIPTION.abilities

    def altering(self, place: EnginePlace) -> frozenset[str]:  # noqa: ARG002 - the same everywhere
        """Returns the fields after which log-probabilities are reported."""
        return frozenset({"constraint", "frequency_penalty", "logit_bias", "presence_penalty"})

    def command(
        self, python: str, model_folder: str, settings: GenerationSettings, place: EnginePlace, port: int
    ) -> tuple[list[str], dict[str, str]]:
        """Returns the command that starts a server, and its environment variables."""
        cpu_only = on_cpu(settings)
        common = {
            "model-path": model_folder,
            "host": "127.0.0.1",
            "port": port,
            "dtype": settings.dtype,
            "context-length": settings.max_model_len + SPARE_CONTEXT,
            "max-running-requests": settings.max_num_seqs,
            "random-seed": place.seed,
            "grammar-backend": "llguidance",
            "incremental-streaming-output": True,
            "log-level-http": "warning",  # else a line for each request
            "skip-server-warmup": (
                True
            ),  # its text ends the server where the vocabulary has no token for it; the engine samples one itself
        }
        cpu = {
            "device": "cpu",
            "attention-backend": "torch_native",
            "sampling-backend": "pytorch",
            "image-processor-backend": "pil",  # the other one asks for a GPU
            "disable-cuda-graph": True,
            "mem-fraction-static": 0.2,
            "max-total-tokens": min(CPU_CACHE_TOKENS, settings.max_num_seqs * (settings.max_model_len + SPARE_CONTEXT)),
            "sleep-on-idle": True,
        }
        gpu = {
            "tp-size": settings.tensor_parallel,
            **({"mem-fraction-static": place.memory_fraction} if place.memory_fraction < 1 else {}),
            **_sleep_flags(settings, place),
        }
        on_gpu = [str(WITH_ADAPTERS)] if place.adapter_room.rank else ["-m", "sglang.launch_server"]
        on_gpu = [str(WITH_CHANNELS)] if settings.server.weights != "folder" else on_gpu
        program = [python, *([str(ON_CPU)] if cpu_only else on_gpu)]
        routes = place.routes != "off" and route_shape_of(model_folder) is not None
        more = {
            **_adapter_flags(place, cpu_only=cpu_only),
            **({"enable-return-routed-experts": True} if routes else {}),
        }
        chosen = merged_flags({**common, **(cpu if cpu_only else gpu), **more}, settings.options)
        environment = {
            "HF_HUB_OFFLINE": "1",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
            "SGLANG_TIMEOUT_KEEP_ALIVE": IDLE_SECONDS,
            "SGLANG_VLM_CACHE_SIZE_MB": "0",  # features of images would outlive the weights that computed them
        }
        if settings.server.weights != "folder":
            environment["AREAL_WEIGHTS_SECONDS"] = str(settings.server.weights_seconds)
        return [*program, *flags(chosen)], {
            **environment,
            **({"OMP_NUM_THREADS": str(settings.threads)} if cpu_only else {}),
        }

    async def is_ready(self, server: ServerClient) -> bool:
        """True if the server samples; raises EngineUnavailable if it does not answer."""
        status, _ = await server.get("/model_info", seconds=5)
        return status == OK

    async def usage(self, server: ServerClient) -> ServerUsage:
        """Returns how busy the server is: its replicas together."""
        status, answer = await server.get("/v1/loads?include=core", seconds=USAGE_SECONDS)
        if status != OK:
            raise EngineError(f"SGLang at {server.url} has no /v1/loads ({status}): {message_of(answer)}")
        loads = answer["loads"]
        return ServerUsage(sum(load["num_waiting_reqs"] for load in loads), max(load["token_usage"] for load in loads))

    async def sample(self, server: ServerClient, segment: Segment) -> AsyncGenerator[SegmentPart, None]:
        """Yield a segment, in one part or as it is sampled."""
        body: dict[str, Any] = {
            "rid": segment.request_id,
            "sampling_params": sampling_fields(segment),
            "return_logprob": True,
            "top_logprobs_num": segment.sampling.top_logprobs,
            "stream": segment.streamed,
            **prompt_fields(segment, segment.token_ids),
            **adapter_fields(segment),
            **routes_fields(segment),
        }
        if not segment.streamed:
            status, answer = await server.post("/generate", body, seconds=None)
            if status != OK:
                raise server.refusal_error(status, answer)
            yield read_part(server, answer, segment)
            return
        async with aclosing(server.lines("/generate", body)) as answers:
            async for answer in answers:
                yield read_part(server, answer, segment)

    async def score(self, server: ServerClient, segment: Segment, token_ids: Sequence[int], start: int) -> list[float]:
        """Returns log_softmax(logits) of the tokens from `start` on, given those before."""
        body = {
            "rid": f"score.{segment.request_id}",
            **prompt_fields(segment, token_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start - 1,
            **adapter_fields(segment),
        }
        status, answer = await server.post("/generate", body, seconds=None)
        if status != OK:
            raise server.refusal_error(status, answer)
        return [logprob for logprob, _, _ in answer["meta_info"]["input_token_logprobs"][1:]]

    async def routes(self, server: ServerClient, segment: Segment, token_ids: Sequence[int]) -> bytes:
        """See `ServerDialect.routes`.

        The prefix cache holds the experts with the keys and values of most of the tokens.
        """
        body = {
            "rid": f"routes.{segment.request_id}",
            **prompt_fields(segment, token_ids),
            "sampling_params": {"max_new_tokens": 0},
            **adapter_fields(segment),
            **routes_fields(segment),
        }
        status, answer = await server.post("/generate", body, seconds=None)
        if status != OK:
            raise server.refusal_error(status, answer)
        if not (routes := read_part(server, answer, segment._replace(token_ids=token_ids)).routes):
            raise EngineError(
                f"SGLang at {server.url} does not report experts: start it with --enable-return-routed-experts"
            )
        return routes

    async def abort(self, server: ServerClient, request_ids: Sequence[str]) -> None:
        """End these segments."""
        await asyncio.gather(*(server.post("/abort_request", {"rid": request_id}) for request_id in request_ids))

    async def load(self, server: ServerClient, folder: str, weight_version: int, seconds: float) -> None:
        """Load weights, and then drop the prefix cache."""
        # An order to end all requests may end one that arrives after the weights, so it is not given: none is running.
        # The cache has an order of its own: SGLang answers the last token of a request before the request has left its
        # batch, and at that moment it ends with an assertion if the order to load weights also drops the cache.
        body = {
            "model_path": folder,
            "weight_version": str(weight_version),
            "abort_all_requests": False,
            "flush_cache": False,
        }
        status, answer = await server.post("/update_weights_from_disk", body, seconds=seconds)
        if status != OK or not answer.get("success"):
            raise EngineUnavailable(
                f"SGLang at {server.url} refused weight version {weight_version} ({status}): {message_of(answer)}"
            )
        await self._drop_cache(server, seconds, f"for weight version {weight_version}")

    async def _drop_cache(self, server: ServerClient, seconds: float, purpose: str) -> None:
        status, answer = await server.post(f"/flush_cache?timeout={IDLE_WAIT_SECONDS}", {}, seconds=seconds)
        if status != OK:
            raise EngineUnavailable(
                f"SGLang at {server.url} did not drop its prefix cache {purpose} ({status}): {message_of(answer)}"
            )

    async def load_adapter(
        self, server: ServerClient, folder: str, name: str, replaced: Sequence[str], seconds: float
    ) -> None:
        """Load an adapter under a new name and unload those that it replaces.

        Each adapter has a prefix cache of its own.
        """
        steps = [("/unload_lora_adapter", {"lora_name": one}) for one in replaced]
        for path, body in (*steps, ("/load_lora_adapter", {"lora_name": name, "lora_path": folder})):
            status, answer = await server.post(path, body, seconds=seconds)
            if status != OK or not answer.get("success"):
                raise EngineUnavailable(
                    f"SGLang at {server.url} refused the adapter {name} ({status}): {message_of(answer)}"
                )

    async def join_group(self, server: ServerClient, group: Group, seconds: float) -> Mapping[str, Any]:
        """Have the processes of the server join a group."""
        body = {
            "master_address": group.address,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": group.ranks,
            "group_name": group.name,
            "backend": group.backend,
        }
        return await self._update(server, "/init_weights_update_group", body, seconds)

    async def leave_group(self, server: ServerClient, name: str, seconds: float) -> None:
        """Have the processes of the server leave a group."""
        await server.post("/destroy_weights_update_group", {"group_name": name}, seconds=seconds)

    async def begin_update(self, server: ServerClient, seconds: float) -> None:
        """SGLang 0.5.20 needs no preparation."""

    async def receive(
        self, server: ServerClient, group: str, bucket: Bucket, weight_version: int, seconds: float
    ) -> Mapping[str, Any]:
        """Have the server take a bucket that is broadcast to a group."""
        body = {
            **_part_body(weight_version),
            "names": bucket.names,
            "dtypes": bucket.dtypes,
            "shapes": bucket.shapes,
            "group_name": group,
            "load_format": "flattened_bucket",
        }
        return await self._update(server, "/update_weights_from_distributed", body, seconds)

    async def receive_handles(
        self, server: ServerClient, handles: Sequence[str], weight_version: int, seconds: float
    ) -> Mapping[str, Any]:
        """Have the server take a bucket in shared memory."""
        body = {**_part_body(weight_version), "serialized_named_tensors": list(handles)}
        return await self._update(server, "/update_weights_from_tensor", body, seconds)

    async def end_update(self, server: ServerClient, weight_version: int, seconds: float) -> None:
        """Drop the prefix cache."""
        await self._drop_cache(server, seconds, f"for weight version {weight_version}")

    async def _update(
        self, server: ServerClient, path: str, body: Mapping[str, Any], seconds: float
    ) -> Mapping[str, Any]:
        """Returns the report in the answer's message; empty if there is none."""
        status, answer = await server.post(path, body, seconds=seconds)
        if status != OK or not answer.get("success"):
            raise WeightTransferFailed(f"SGLang answered {status} to {path}: {message_of(answer)}")
        _, _, report = str(answer.get("message", "")).partition(REPORT)
        return dict(msgspec.json.decode(report[: report.find("}") + 1])) if report else {}

    # A flag at its start
    async def release(self, server: ServerClient, seconds: float, *, keeps_weights: bool) -> None:  # noqa: ARG002
        """Release the memory of KV cache and weights.

        The cache is dropped before, since SGLang ends where it is not idle.
        """
        await self._drop_cache(server, seconds, "before an optimizer step")
        status, answer = await server.post("/release_memory_occupation", {"tags": RELEASED}, seconds=seconds)
        if status != OK:
            raise EngineError(
                f"SGLang at {server.url} did not release its memory ({status}): {message_of(answer)}; {NO_SLEEP}"
            )

    async def wake(self, server: ServerClient, seconds: float) -> None:
        """Allocate the memory again."""
        status, answer = await server.post("/resume_memory_occupation", {"tags": RELEASED}, seconds=seconds)
        if status != OK:
            raise EngineUnavailable(
                f"SGLang at {server.url} did not allocate its memory again ({status}): {message_of(answer)}"
            )


def _part_body(weight_version: int) -> dict[str, Any]:
    return {"weight_version": str(weight_version), "flush_cache": False, "abort_all_requests": False}


def _sleep_flags(settings: GenerationSettings, place: EnginePlace) -> dict[str, Any]:
    if settings.sleep != "on":
        return {}
    kept = place.adapter_room.rank or settings.server.weights == "delta"  # other versions are not whole
    return {"enable-memory-saver": True, **({"enable-weights-cpu-backup": True} if kept else {})}


def _adapter_flags(place: EnginePlace, *, cpu_only: bool) -> dict[str, Any]:
    if not (room := place.adapter_room).rank:
        return {}
    return {
        "enable-lora": True,
        "max-lora-rank": room.rank,
        "lora-target-modules": list(room.targets or LINEAR_LAYERS),
        "max-loras-per-batch": room.policies + WITHOUT_ADAPTER,
        "max-loaded-loras": room.policies * KEPT_ADAPTERS,
        **({"lora-backend": "torch_native"} if cpu_only else {}),
    }


sglang_engine = engine_of(SGLang())


def plain_sglang(model: str) -> SGLang:  # noqa: ARG001 - its requests name none
    """Returns the requests of a server as it is usually started, which are the same."""
    return SGLang()
