"""A server that speaks vLLM's completions over HTTP: `python completions_server.py FOLDER`. Its engine is the embedded
one."""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings

NAME = "tiny-model"


class CompletionsServer:
    """The endpoints that clients of a server use as anybody starts it."""

    def __init__(self, folder: str, context: int) -> None:
        self.folder, self.context = folder, context
        self.engine = TransformersEngine(
            folder, GenerationSettings(device="cpu", max_num_seqs=8, max_model_len=context)
        )

    def application(self) -> web.Application:
        made = web.Application()
        made.router.add_get("/health", self.health)
        made.router.add_get("/v1/models", self.models)
        made.router.add_post("/v1/completions", self.completions)
        return made

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        model = {"id": NAME, "object": "model", "owned_by": "vllm", "root": self.folder, "max_model_len": self.context}
        return web.json_response({"object": "list", "data": [model]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["model"] != NAME:
            return web.json_response({"error": {"message": f"The model `{body['model']}` does not exist."}}, status=404)
        sampling = SamplingParams(temperature=body["temperature"], top_p=body["top_p"], max_tokens=body["max_tokens"])
        chunks = self.engine.generate(body["request_id"], body["prompt"], sampling, stream=body["stream"])
        if not body["stream"]:
            (chunk,) = [chunk async for chunk in chunks]
            return web.json_response(answer(chunk, body))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for chunk in chunks:
            await response.write(f"data: {json.dumps(answer(chunk, body))}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def answer(chunk, body):
    """A chunk as vLLM sends it."""
    choice = {
        "index": 0,
        "token_ids": chunk.columns.ids_array().tolist(),
        "logprobs": {"token_logprobs": chunk.columns.logprobs_array().tolist()},
        "finish_reason": chunk.finish_reason or None,
    }
    return {"id": body["request_id"], "model": NAME, "choices": [choice]}


async def serve(folder: str) -> None:
    runner = web.AppRunner(CompletionsServer(folder, 512).application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
