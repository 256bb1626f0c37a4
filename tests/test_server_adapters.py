"""Genuine SGLang and vLLM servers sample under an adapter that is loaded by its name, from exactly the version that
they were given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch
from support.genuine_servers import DIALECTS, PROMPT, Genuine, settings_of, started, until_it_runs
from support.tiny_engine import random_qwen, save
from transformers import AutoModelForCausalLM

from areal_actors.contracts.engine import chunks_of, joined
from areal_actors.core.errors import EngineError, EngineUnavailable
from areal_actors.core.values import Constraint, SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.training.lora import Lora
from areal_actors.training.settings import LoraSettings
from areal_actors.weights.weight_files import stored_tensors, verify_adapter

RANK = 4
VERSIONS = (0, 1, 2)

pytestmark = pytest.mark.timeout(600)


def random_adapter(folder: Path, base: str, seed: int, rank: int = RANK) -> tuple[torch.nn.Module, WeightsLocation]:
    """A model under an adapter of random factors, and the adapter as it is published; seed 0 leaves the model as it
    is."""
    model = AutoModelForCausalLM.from_pretrained(base)
    lora = Lora(model, base, LoraSettings(rank=rank, alpha=8), seed)
    if seed:
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if ".lora_B." in name:
                    tensor.normal_(0, 0.1)
    return model, lora.publish(model.state_dict(), str(folder / f"v{seed}"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(random_qwen(0, head_dim=32), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.long) for name in DIALECTS])
def genuine(request: pytest.FixtureRequest, base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Genuine]:
    """A server that was started for adapters; engines of the tests reach it by its address."""
    name, place = request.param, EnginePlace(adapter_rank=RANK)
    weights = tmp_path_factory.mktemp("weights")
    models, versions = {}, {}
    for number in VERSIONS:
        models[number], versions[number] = random_adapter(weights, base, number)
    with ExitStack() as stack:
        process, url = started(stack, name, base, tmp_path_factory.mktemp("logs"), place)
        yield Genuine(name, settings_of(name, urls=(url,)), base, versions, models, process, place)


@asynccontextmanager
async def serving(genuine: Genuine, version: int) -> AsyncIterator[HttpEngine]:
    engine = genuine.make()
    try:
        await engine.load_weights(genuine.versions[version], version)
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_log_probabilities_are_those_of_the_model_under_the_adapter(genuine: Genuine, version: int) -> None:
    async with serving(genuine, version) as engine:
        for sampling in (
            SamplingParams(max_tokens=24),
            SamplingParams(max_tokens=24, temperature=0),
            SamplingParams(max_tokens=24, constraint=Constraint(kind="regex", text="[a-d]{6}")),
        ):
            genuine.assert_exact(joined(await chunks_of(engine, PROMPT, sampling)))


async def test_completions_in_flight_continue_under_the_next_adapter(genuine: Genuine) -> None:
    async with serving(genuine, 0) as engine:

        async def sampled(number: int) -> TokenColumns:
            return joined(
                await chunks_of(engine, [*PROMPT, 20 + number], SamplingParams(max_tokens=80), stream=number % 2 == 0)
            )

        async def versions_rose(version: int) -> bool:
            tasks = [asyncio.create_task(sampled(number)) for number in range(8)]
            await until_it_runs(engine, *tasks)
            await engine.load_weights(genuine.versions[version], version)
            found = await asyncio.gather(*tasks)
            for number, columns in enumerate(found):
                genuine.assert_exact(columns, prompt=[*PROMPT, 20 + number])
            return any(len(columns.versions) > 1 for columns in found)

        async with asyncio.timeout(300):
            version = 1
            while not await versions_rose(version):
                version = 3 - version


async def test_adapters_are_replaced_while_more_completions_wait_than_run(genuine: Genuine) -> None:
    """Requests that are aborted in the server's queue must not keep the adapter that they named."""
    async with serving(genuine, 0) as engine, asyncio.timeout(300):
        prompts = [[*PROMPT, 30 + number] for number in range(40)]
        tasks = [asyncio.create_task(chunks_of(engine, prompt, SamplingParams(max_tokens=60))) for prompt in prompts]
        await until_it_runs(engine, *tasks)
        for version in (1, 2, 1, 2):
            await engine.load_weights(genuine.versions[version], version)
        for prompt, chunks in zip(prompts, await asyncio.gather(*tasks), strict=True):
            genuine.assert_exact(joined(chunks), prompt=prompt)


async def test_a_server_that_has_lost_the_adapter_is_unavailable(genuine: Genuine) -> None:
    """As one that was restarted: the worker loads the adapter again, and the client's request is not refused."""
    async with serving(genuine, 1) as engine:
        engine._adapter = f"lost-{engine._adapter}"
        with pytest.raises(EngineUnavailable, match="has lost the adapter lost-v1"):
            await chunks_of(engine, PROMPT, SamplingParams(max_tokens=6))
        engine._adapter = engine._adapter.removeprefix("lost-")


async def test_an_adapter_that_is_not_whole_never_reaches_the_server(genuine: Genuine, tmp_path: Path) -> None:
    _, larger = random_adapter(tmp_path, genuine.folder, 3, rank=2 * RANK)
    async with serving(genuine, 1) as engine:
        with pytest.raises(EngineError, match="of another shape") as refused:
            await engine.load_weights(larger, 2)
        assert not isinstance(refused.value, EngineUnavailable)
        genuine.assert_exact(joined(await chunks_of(engine, PROMPT, SamplingParams(max_tokens=6))))


def test_an_adapter_is_verified_before_it_is_loaded(base: str, tmp_path: Path) -> None:
    _, location = random_adapter(tmp_path, base, 1)
    shapes = {name: tensor.shape for name, tensor in stored_tensors(base).items()}
    verify_adapter(location, shapes, base, RANK)
    file = Path(location.folder) / "adapter_model.safetensors"
    whole = file.read_bytes()

    def refused(match: str, shapes: dict[str, tuple[int, ...]] = shapes, model: str = base, rank: int = RANK) -> None:
        with pytest.raises(EngineError, match=match):
            verify_adapter(location, shapes, model, rank)

    refused("was started for whole models", rank=0)
    refused("belongs to .*, but this server has /elsewhere", model="/elsewhere")
    refused(r"of another shape: .*lora_A.weight \[4, 64\] for \[8, 64\]", rank=2 * RANK)
    refused("unknown: .*up_proj", {name: shape for name, shape in shapes.items() if "up_proj" not in name})
    file.write_bytes(whole[:-100])
    refused("not written whole")
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("have checksum .*, expected")
    file.write_bytes(whole.replace(b"layers.0.mlp.up_proj.lora_B", b"layers.0.mlp.up_proj.lora_C"))
    refused("missing: .*up_proj.lora_B.weight.*; unknown: .*up_proj.lora_C")
