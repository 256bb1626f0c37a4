"""Two policies on one genuine SGLang or vLLM server: each samples under its own adapter, also after the server was
killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.genuine_servers import DIALECTS, PROMPT, ROOT, Genuine, settings_of, until_it_runs
from support.server_processes import server_processes, signal_all
from support.tiny_engine import random_qwen, save
from test_server_adapters import random_adapter

from areal_actors.contracts.engine import chunks_of, joined
from areal_actors.core.errors import EngineUnavailable
from areal_actors.core.values import SamplingParams
from areal_actors.generation.engine import AdapterRoom, EnginePlace, SharedServer
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.generation.servers.shared_server import adapters_at

RANKS = {"": 4, "worker": 2}
"""Rank of the adapters of the run's own policy, and of the policy that uses its server."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(params=DIALECTS)
def policies(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Genuine]:
    """The two policies, each with two versions; the first owns the server."""
    name = request.param
    if not (ROOT / ".environments" / name / "bin" / "python").exists():
        pytest.skip(f"`just environments {name}` makes the environment")
    base = save(random_qwen(0, head_dim=32), tmp_path / "model")
    room, address = AdapterRoom(max(RANKS.values()), (), len(RANKS)), tmp_path / "servers" / "inference_worker-0.json"
    policies = {}
    for number, (policy, rank) in enumerate(RANKS.items()):
        models, versions = {}, {}
        for version in (0, 1):
            seed = 1 + 2 * number + version
            models[version], versions[version] = random_adapter(tmp_path / policy, base, seed, rank)
        place = EnginePlace(adapter_rank=rank, temperature=None, logs=tmp_path / "logs")
        place = place._replace(shared=SharedServer(address, room, policy))
        policies[policy] = Genuine(name, settings_of(name), base, versions, models, place=place)
    return policies


@asynccontextmanager
async def closing(engines: dict[str, HttpEngine]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for engine in engines.values():
            await engine.close()


async def successor_of(engine: HttpEngine, genuine: Genuine) -> HttpEngine:
    """The engine of the next process of a worker; of the earlier one nothing but its adapter is left."""
    await engine.close()
    return genuine.make()


async def assert_own_tokens(engines: dict[str, HttpEngine], policies: dict[str, Genuine], version: int) -> None:
    """Sample under both adapters at once while each is replaced; every token is of the policy that was asked."""

    async def sample(policy: str, number: int) -> None:
        prompt = [*PROMPT, 20 + number]
        columns = joined(
            await chunks_of(engines[policy], prompt, SamplingParams(max_tokens=60), stream=number % 2 == 0)
        )
        policies[policy].assert_exact(columns, prompt=prompt)

    tasks = [asyncio.create_task(sample(policy, number)) for policy in engines for number in range(6)]
    await until_it_runs(engines[""], *tasks)
    for policy, engine in engines.items():
        await engine.load_weights(policies[policy].versions[version], version)
    await asyncio.gather(*tasks)


async def test_two_policies_sample_on_one_server_and_find_it_again_after_a_kill(policies: dict[str, Genuine]) -> None:
    engines = {policy: genuine.make() for policy, genuine in policies.items()}
    async with closing(engines):
        for policy, engine in engines.items():
            await engine.load_weights(policies[policy].versions[0], 0)
        await assert_own_tokens(engines, policies, 1)

        # The worker of the policy was killed, and left its adapter at the server.
        engines["worker"] = await successor_of(engines["worker"], policies["worker"])
        await engines["worker"].load_weights(policies["worker"].versions[0], 0)
        server = engines[""]._server
        assert [name.split(".")[:2] for name in await adapters_at(server, "policy-")] == [["policy-worker", "v0"]]
        assert len(await adapters_at(server, "v")) == 1
        await assert_own_tokens(engines, policies, 1)

        # The server is killed.
        process = server.process
        assert process is not None
        signal_all(server_processes(os.getpid()), signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            await chunks_of(engines["worker"], PROMPT, SamplingParams(max_tokens=6))
        while not engines[""].describe_end():  # noqa: ASYNC110 - processes have no events
            await asyncio.sleep(0.05)
        engines["worker"] = await successor_of(engines["worker"], policies["worker"])
        waiting = asyncio.create_task(engines["worker"].load_weights(policies["worker"].versions[0], 0))
        engines[""] = await successor_of(engines[""], policies[""])
        await engines[""].load_weights(policies[""].versions[0], 0)
        await waiting
        assert engines["worker"]._server.url == engines[""]._server.url != server.url
        await assert_own_tokens(engines, policies, 1)
