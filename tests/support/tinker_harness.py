"""The server of `areal-actors serve tinker` in this process, over HTTP, with a tiny untrained model."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
from aiohttp import web

from areal_actors.tinker.samplers import ModelSampler
from areal_actors.tinker.server import PROTOBUF, TinkerRoutes
from areal_actors.tinker.service import TinkerService

RECORDED = json.loads((Path(__file__).parents[1] / "recordings" / "tinker.json").read_text())
RECORDED_SESSION = "5f3c8a52-0b6e-4c11-9d55-0f1e2d3c4b5a"
NAME = "Qwen/Qwen3-8B"


def recorded(path, /, **changes):
    """The recorded body of a path, with changed fields."""
    return next(one["json"] for one in RECORDED["requests"] if one["path"] == path and "json" in one) | changes


def recorded_pass(name):
    """The recorded Protocol Buffers body of a forward pass."""
    return base64.b64decode(next(one["protobuf"] for one in RECORDED["requests"] if one.get("name") == name))


def tensor(values, dtype="float32"):
    return {"data": np.asarray(values).flatten().tolist(), "dtype": dtype, "shape": list(np.shape(values))}


def datum(ids, targets, **inputs):
    """A datum in JSON."""
    tensors = {name: tensor(values) for name, values in inputs.items()}
    return {"model_input": chunks(ids), "loss_fn_inputs": {"target_tokens": tensor(targets, "int64"), **tensors}}


def chunks(ids):
    return {"chunks": [{"type": "encoded_text", "tokens": [int(one) for one in ids]}]}


class TinkerHarness:
    """A client of the server; one session."""

    def __init__(self, service: TinkerService, root: str, http: aiohttp.ClientSession) -> None:
        self.service = service
        self.root = root
        self.http = http
        self.session_id = ""

    async def call(self, path, body=None, *, method="POST", status=200, data=None):
        """The body of a response, which must have this status."""
        headers = {"X-API-Key": "tml-test", "Content-Type": PROTOBUF if data is not None else "application/json"}
        sent = data if data is not None else json.dumps(body or {}).encode()
        async with self.http.request(
            method, f"{self.root}/api/v1/{path}", data=sent if method == "POST" else None, headers=headers
        ) as answer:
            found = await answer.json()
            assert answer.status == status, found
            return found

    async def get(self, path, *, status=200):
        return await self.call(path, method="GET", status=status)

    async def result(self, promise):
        """The result of a request, as JSON."""
        while True:
            body = {"request_id": promise["request_id"], "allow_metadata_only": True}
            async with self.http.post(f"{self.root}/api/v1/retrieve_future", json=body) as answer:
                found = await answer.json()
                if answer.status == 408:
                    assert found == {"type": "try_again", "request_id": promise["request_id"], "queue_state": "active"}
                    continue
                assert answer.status == 200, found
                return found

    async def done(self, path, body=None, *, data=None):
        """The result of a request that must succeed."""
        found = await self.result(await self.call(path, body, data=data))
        assert "error" not in found, found
        return found

    async def failed(self, path, body=None, category="user"):
        """The error of a request that must fail."""
        found = await self.result(await self.call(path, body))
        assert found.get("category") == category, found
        return found["error"]

    async def begin(self):
        self.session_id = (await self.call("create_session", recorded("create_session")))["session_id"]

    async def model(self, number=0, *, lora=True, **changes):
        """The id of a new model."""
        body = recorded("create_model", session_id=self.session_id, model_seq_id=number, base_model=NAME, **changes)
        if not lora:
            del body["lora_config"]
        found = await self.done("create_model", body)
        assert found == {"model_id": f"{self.session_id}:train:{number}", "type": "create_model"}
        return found["model_id"]

    async def train(self, model_id, data, *, seq_id=None, loss="cross_entropy", lr=1e-2, config=None):
        """A forward and backward pass and an optimizer step; returns both results."""
        numbers = (None, None) if seq_id is None else (seq_id, seq_id + 1)
        forward = {"data": data, "loss_fn": loss, "loss_fn_config": config}
        first = await self.call(
            "forward_backward", {"model_id": model_id, "seq_id": numbers[0], "forward_backward_input": forward}
        )
        step = {"model_id": model_id, "seq_id": numbers[1], "adam_params": {"learning_rate": lr}}
        second = await self.call("optim_step", step)
        return await self.result(first), await self.result(second)

    async def sampler(self, number=100, **of):
        """The id of a new sampler."""
        body = {"session_id": self.session_id, "sampling_session_seq_id": number, **(of or {"base_model": NAME})}
        return (await self.call("create_sampling_session", body))["sampling_session_id"]

    def sample_body(self, sampler_id, prompt=(5, 6, 7), **fields):
        params = {"max_tokens": 8, "seed": 3} | fields.pop("sampling_params", {})
        return {"sampling_session_id": sampler_id, "prompt": chunks(prompt), "sampling_params": params, **fields}

    async def sample(self, sampler_id, prompt=(5, 6, 7), **fields):
        return await self.done("asample", self.sample_body(sampler_id, prompt, **fields))


@asynccontextmanager
async def serving(folder, state, temporary):
    """A client with a session."""
    temporary.mkdir(exist_ok=True)
    service = TinkerService((NAME, folder), folder, state, temporary, ModelSampler(folder, "cpu"), "cpu")
    runner = TinkerRoutes(service).runner()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as http:
            harness = TinkerHarness(service, f"http://127.0.0.1:{runner.addresses[0][1]}", http)
            await harness.begin()
            yield harness
    finally:
        await asyncio.wait_for(service.close(), 300)
        await runner.cleanup()
