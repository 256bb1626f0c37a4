"""An SGLang or vLLM server, and the plain models with whose log-probabilities its own are compared."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.tiny_engine import CONTEXT

from areal_actors.core.errors import EngineUnavailable
from areal_actors.core.free_ports import find_free_ports
from areal_actors.core.values import TokenColumns, WeightsLocation
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.generation.servers.server_process import ServerClient, ServerProcess
from areal_actors.generation.servers.sglang.dialect import SGLang
from areal_actors.generation.servers.vllm.dialect import VLLM
from areal_actors.generation.settings import GenerationSettings, ServerSettings

ROOT = Path(__file__).parent.parent.parent
DIALECTS = {"sglang": SGLang, "vllm": VLLM}
PROMPT = [5, 60, 7, 8, 90, 10, 11]
EXACT = 1e-4


class Genuine(NamedTuple):
    name: str
    settings: GenerationSettings
    folder: str
    versions: dict[int, WeightsLocation]
    models: dict[int, torch.nn.Module]
    process: ServerProcess | None = None
    place: EnginePlace = EnginePlace()

    def make(self) -> HttpEngine:
        """An engine at the server; a server that has ended fails the test at once, which would wait for its start
        otherwise."""
        if self.process is not None and (ended := self.process.describe_end()):
            pytest.fail(ended)
        return HttpEngine(DIALECTS[self.name](), self.folder, self.settings, self.place)

    def logprobs(self, version: int, prompt: list[int], token_ids: list[int], temperature: float = 1.0) -> list[float]:
        with torch.no_grad():
            logits = self.models[version](torch.tensor([prompt + token_ids])).logits[0]
        scores = torch.log_softmax(logits / temperature, -1)
        return [scores[len(prompt) - 1 + place, token].item() for place, token in enumerate(token_ids)]

    def assert_exact(self, columns: TokenColumns, *, prompt: list[int] = PROMPT, temperature: float = 1.0) -> None:
        """Each token's log-probability is that of a plain forward with the weights of its version, under the whole text
        before it."""
        ids, versions = columns.ids_array().tolist(), columns.versions_array().tolist()
        under = {version: self.logprobs(version, prompt, ids, temperature) for version in set(versions)}
        expected = [under[version][place] for place, version in enumerate(versions)]
        assert np.abs(columns.logprobs_array() - np.array(expected)).max() < EXACT


async def until_it_runs(engine: HttpEngine, *tasks: asyncio.Task[Any]) -> None:
    """Wait until one of the completions is in progress, or all have ended: on a busy machine a poll may come after the
    last of them."""
    assert tasks, "the completions that are awaited"
    async with asyncio.timeout(300):
        # It has no event for it
        while not (engine.take_counters().running or all(task.done() for task in tasks)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def settings_of(name: str, **server: object) -> GenerationSettings:
    return GenerationSettings(
        engine=name, device="cpu", max_num_seqs=8, max_model_len=CONTEXT, server=ServerSettings(**server)
    )


def started(
    stack: ExitStack, name: str, folder: str, logs: Path, place: EnginePlace, **server: object
) -> tuple[ServerProcess, str]:
    python = ROOT / ".environments" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`just environments {name}` makes the environment")
    port = find_free_ports()
    command, environment = DIALECTS[name]().command(str(python), folder, settings_of(name, **server), place, port)
    process = ServerProcess(name, command, environment, logs / "server.log")
    stack.callback(process.stop)
    url = f"http://127.0.0.1:{port}"
    asyncio.run(until_it_serves(process, ServerClient(name, url)))
    return process, url


async def until_it_serves(process: ServerProcess, client: ServerClient) -> None:
    try:
        async with asyncio.timeout(300):
            while not process.describe_end():
                try:
                    if await DIALECTS[client.name]().is_ready(client):
                        return
                except EngineUnavailable:
                    await asyncio.sleep(0.5)
        raise AssertionError(process.describe_end())
    finally:
        await client.close()
