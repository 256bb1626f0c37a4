"""vLLM 0.30 and later, over its OpenAI-compatible server.

Its development mode has the requests that change weights.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from areal_actors.core.errors import EngineError, EngineUnavailable, WeightTransferFailed
from areal_actors.core.values import Constraint
from areal_actors.generation.engine import NO_SLEEP, AdapterRoom, EnginePlace
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
from areal_actors.generation.servers.vllm.engine_description import DESCRIPTION
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.sending import Bucket

MODEL = "model"
"""Name of the model in requests."""
CONSTRAINTS = {"json_schema": "json", "regex": "regex", "lark": "grammar"}
KEPT_ADAPTERS = 2
"""Adapters of a policy that a server keeps: the one that samples, and one that a killed worker left."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that a server can be started for."""


class VLLM:
    """See `ServerDialect`."""

    name = DESCRIPTION.name
    title = DESCRIPTION.title
    abilities = DESCRIPTION.abilities

    def altering(self, place: EnginePlace) -> frozenset[str]:
        """Returns the fields after which log-probabilities are reported; see `_logprobs_mode`."""
        if _logprobs_mode(place) == "raw_logprobs":
            return frozenset({"constraint"})
        return frozenset(
            {"constraint", "frequency_penalty", "logit_bias", "min_p", "presence_penalty", "top_k", "top_p"}
        )

    def command(
        self, python: str, model_folder: str, settings: GenerationSettings, place: EnginePlace, port: int
    ) -> tuple[list[str], dict[str, str]]:
        """Returns the command that starts a server, and its environment variables."""
        cpu_only = on_cpu(settings)
        defaults = {
            "model": model_folder,
            "served-model-name": MODEL,
            "host": "127.0.0.1",
            "port": port,
            "dtype": settings.dtype,
            "max-model-len": settings.max_model_len,
            "max-num-seqs": settings.max_num_seqs,
            "seed": place.seed,
            "logprobs-mode": _logprobs_mode(place),
            "generation-config": "vllm",
            "worker-extension-cls": "areal_reload.Reload",
            "structured-outputs-config.backend": "guidance",  # the grammars are llguidance's
            "disable-uvicorn-access-log": True,
            **({"enforce-eager": True} if cpu_only else {"tensor-parallel-size": settings.tensor_parallel}),
            **({"gpu-memory-utilization": place.memory_fraction} if place.memory_fraction < 1 and not cpu_only else {}),
            **({"enable-sleep-mode": True} if settings.sleep == "on" and not cpu_only else {}),
            **_adapter_flags(place.adapter_room),
        }
        python_path = os.pathsep.join(filter(None, (str(SERVER_SIDE), os.environ.get("PYTHONPATH"))))
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONPATH": python_path,
        }
        environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = IDLE_SECONDS
        if place.adapter_room.rank:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        on_cpu_only = {
            "OMP_NUM_THREADS": str(settings.threads),
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "TORCH_COMPILE_DISABLE": "1",  # compiling the log-probabilities takes 16 s of the first request
        }
        words = flags(merged_flags(defaults, settings.options))
        return [python, "-m", "vllm.entrypoints.openai.api_server", *words], {
            **environment,
            **(on_cpu_only if cpu_only else {}),
        }

    async def is_ready(self, server: ServerClient) -> bool:
        """True if the server samples; raises EngineUnavailable if it does not answer."""
        status, _ = await server.get("/health", seconds=5)
        if status == OK:  # an update that was cut off has left it paused
            status, _ = await server.post("/resume", {}, seconds=5)
        return status == OK

    async def usage(self, server: ServerClient) -> ServerUsage:
        """Returns how busy the server is: its engines together."""
        status, text = await server.get("/metrics", seconds=USAGE_SECONDS)
        if status != OK:
            raise EngineError(f"vLLM at {server.url} has no /metrics ({status}): {message_of(text)}")
        return ServerUsage(
            int(sum(_gauges(text, "vllm:num_requests_waiting"))),
            max(_gauges(text, "vllm:kv_cache_usage_perc"), default=0.0),
        )

    async def sample(self, server: ServerClient, segment: Segment) -> AsyncGenerator[SegmentPart, None]:
        """Yield a segment, in one part or as it is sampled."""
        body = _body(segment)
        if not segment.streamed:
            status, answer = await server.post("/v1/completions", body, seconds=None)
            if status != OK:
                raise server.refusal_error(status, answer)
            yield _part(server, answer, segment)
            return
        async with aclosing(server.lines("/v1/completions", body)) as answers:
            async for answer in answers:
                yield _part(server, answer, segment)

    async def score(self, server: ServerClient, segment: Segment, token_ids: Sequence[int], start: int) -> list[float]:
        """Returns log_softmax(logits) of the tokens from `start` on, given those before."""
        body = {
            "request_id": f"score.{segment.request_id}",
            "model": segment.adapter or MODEL,
            "prompt": token_ids,
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        status, answer = await server.post("/v1/completions", body, seconds=None)
        if status != OK:
            raise server.refusal_error(status, answer)
        scored = answer["choices"][0]["prompt_logprobs"]
        return [scored[place][str(token_ids[place])]["logprob"] for place in range(start, len(token_ids))]

    # It has none
    async def routes(self, server: ServerClient, segment: Segment, token_ids: Sequence[int]) -> bytes:  # noqa: ARG002
        """Raises EngineError: no request of the server reports experts."""
        raise EngineError(f"vLLM at {server.url} does not report the experts of {segment.request_id}")

    async def abort(self, server: ServerClient, request_ids: Sequence[str]) -> None:
        """End these segments."""
        await server.post("/abort_requests", {"request_ids": [f"cmpl-{request_id}-0" for request_id in request_ids]})

    async def load(self, server: ServerClient, folder: str, weight_version: int, seconds: float) -> None:
        """Load weights and drop the prefix cache."""
        steps: tuple[tuple[str, Mapping[str, Any]], ...] = (
            ("/pause?mode=abort", {}),
            ("/collective_rpc", {"method": "areal_reload", "kwargs": {"weights_path": folder}}),
            ("/reset_prefix_cache", {}),
            ("/resume", {}),
        )
        for path, body in steps:
            status, answer = await server.post(path, body, seconds=seconds)
            if status != OK:
                raise EngineUnavailable(
                    f"vLLM at {server.url} refused weight version {weight_version} ({status}): {message_of(answer)}"
                )

    async def load_adapter(
        self, server: ServerClient, folder: str, name: str, replaced: Sequence[str], seconds: float
    ) -> None:
        """Load an adapter under a new name and unload those that it replaces.

        Each adapter has a prefix cache of its own.
        """
        steps = [("/v1/unload_lora_adapter", {"lora_name": one}) for one in replaced]
        for path, body in (*steps, ("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})):
            status, answer = await server.post(path, body, seconds=seconds)
            if status != OK:
                raise EngineUnavailable(
                    f"vLLM at {server.url} refused the adapter {name} ({status}): {message_of(answer)}"
                )

    async def join_group(self, server: ServerClient, group: Group, seconds: float) -> Mapping[str, Any]:
        """Have the workers of the server join a group."""
        return await self._call(server, "areal_join", {**group._asdict(), "seconds": seconds}, seconds)

    async def leave_group(self, server: ServerClient, name: str, seconds: float) -> None:
        """Have the workers of the server leave a group."""
        await self._call(server, "areal_leave", {"name": name}, seconds)

    async def begin_update(self, server: ServerClient, seconds: float) -> None:
        """Pause the server."""
        await self._order(server, "/pause?mode=abort", {}, seconds)

    async def receive(
        self,
        server: ServerClient,
        group: str,
        bucket: Bucket,
        weight_version: int,  # noqa: ARG002 - vLLM keeps none
        seconds: float,
    ) -> Mapping[str, Any]:
        """Have the workers take a bucket that is broadcast to a group."""
        return await self._call(server, "areal_receive", {"group": group, **msgspec.structs.asdict(bucket)}, seconds)

    async def receive_handles(
        self,
        server: ServerClient,
        handles: Sequence[str],
        weight_version: int,  # noqa: ARG002 - vLLM keeps none
        seconds: float,
    ) -> Mapping[str, Any]:
        """Have the workers take a bucket in shared memory."""
        return await self._call(server, "areal_map", {"handles": list(handles)}, seconds)

    # VLLM keeps none
    async def end_update(self, server: ServerClient, weight_version: int, seconds: float) -> None:  # noqa: ARG002
        """Drop the prefix cache and go on."""
        await self._order(server, "/reset_prefix_cache", {}, seconds)
        await self._order(server, "/resume", {}, seconds)

    async def _order(self, server: ServerClient, path: str, body: Mapping[str, Any], seconds: float) -> Any:
        status, answer = await server.post(path, body, seconds=seconds)
        if status != OK:
            raise WeightTransferFailed(f"vLLM answered {status} to {path}: {message_of(answer)}")
        return answer

    async def _call(
        self, server: ServerClient, method: str, named: Mapping[str, Any], seconds: float
    ) -> Mapping[str, Any]:
        """Returns the report of the first worker; every one has to succeed.

        The workers have a time limit of their own. With that of vLLM the answer of a late worker would be taken for
        that of its next order.
        """
        answer = await self._order(server, "/collective_rpc", {"method": method, "kwargs": named}, seconds)
        reports = [report or {} for report in answer["results"]]
        if errors := [report["error"] for report in reports if "error" in report]:
            raise WeightTransferFailed(f"vLLM refused `{method}`: {errors[0]}")
        return dict(reports[0])

    async def release(self, server: ServerClient, seconds: float, *, keeps_weights: bool) -> None:
        """Release the memory of KV cache and weights.

        Level 1 keeps the weights in the host's memory, level 2 does not.
        """
        status, answer = await server.post(f"/sleep?level={1 if keeps_weights else 2}&mode=abort", {}, seconds=seconds)
        if status != OK:
            raise EngineError(
                f"vLLM at {server.url} did not release its memory ({status}): {message_of(answer)}; {NO_SLEEP}"
            )

    async def wake(self, server: ServerClient, seconds: float) -> None:
        """Allocate the memory again."""
        status, answer = await server.post("/wake_up", {}, seconds=seconds)
        if status != OK:
            raise EngineUnavailable(
                f"vLLM at {server.url} did not allocate its memory again ({status}): {message_of(answer)}"
            )


def _gauges(text: str, name: str) -> list[float]:
    """Returns the values of a metric in Prometheus's text format, one for each engine."""
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]


def _adapter_flags(room: AdapterRoom) -> dict[str, Any]:
    """Adapters of several policies run in one batch; those that killed workers left are kept beside them."""
    if not room.rank:
        return {}
    several = {"max-loras": room.policies, "max-cpu-loras": room.policies * KEPT_ADAPTERS}
    return {"enable-lora": True, "max-lora-rank": _rank(room.rank), **(several if room.policies > 1 else {})}


def _rank(rank: int) -> int:
    """Returns the smallest rank that a server can be started for and that has room for this one."""
    return next((largest for largest in RANKS if largest >= rank), rank)


def _logprobs_mode(place: EnginePlace) -> str:
    """Raw log-probabilities are those before everything, the temperature too.

    Processed ones are those after everything.
    At temperature 1 the raw ones are log_softmax(logits / temperature), whatever else alters the choice of tokens.
    """
    return "raw_logprobs" if place.temperature == 1.0 else "processed_logprobs"


def _body(segment: Segment) -> dict[str, Any]:
    """Returns the request; without the seed, which ends a server on a CPU as soon as it divides a long prompt."""
    sampling = segment.sampling
    body: dict[str, Any] = {
        "request_id": segment.request_id,
        "model": segment.adapter or MODEL,
        "prompt": segment.token_ids,
        "max_tokens": segment.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop_token_ids": list(segment.stop_ids),
        "logprobs": sampling.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "stream": segment.streamed,
    }
    if sampling.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if sampling.constraint is not None:
        body["structured_outputs"] = _constraint(sampling.constraint)
    return body


def _constraint(constraint: Constraint) -> dict[str, Any]:
    value = msgspec.json.decode(constraint.text) if constraint.kind == "json_schema" else constraint.text
    return {CONSTRAINTS[constraint.kind]: value}


def _part(server: ServerClient, answer: Any, segment: Segment) -> SegmentPart:
    """Returns the tokens of an answer, or of the next difference of a streamed one."""
    if not isinstance(answer, dict) or not answer.get("choices"):
        raise server.refusal_error(500, answer)
    choice = answer["choices"][0]
    logprobs = choice.get("logprobs") or {}
    width = segment.sampling.top_logprobs
    usage = answer.get("usage") or {}
    return SegmentPart(
        token_ids=choice.get("token_ids") or [],
        logprobs=logprobs.get("token_logprobs") or [],
        top=[_most_likely(row, width) for row in logprobs.get("top_logprobs") or []] if width else (),
        finish_reason=choice.get("finish_reason") or "",
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )


def _most_likely(row: Mapping[str, float], width: int) -> list[tuple[int, float]]:
    """Returns the `width` most likely tokens; a row also has the sampled one, whatever its rank."""
    pairs = [(int(name.removeprefix("token_id:")), logprob) for name, logprob in row.items()]
    return sorted(pairs, key=lambda pair: -pair[1])[:width]


vllm_engine = engine_of(VLLM())
