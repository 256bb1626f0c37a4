"""Outcomes of each way of weights to genuine SGLang and vLLM servers: the trainer goes on, and tokens are exact
afterwards."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
from support.genuine_servers import DIALECTS, PROMPT, ROOT, Genuine, settings_of, started, until_it_runs
from support.server_processes import signal_all
from support.tiny_engine import random_qwen, save

from areal_actors.contracts.engine import chunks_of, joined
from areal_actors.core.errors import EngineError, EngineUnavailable
from areal_actors.core.values import SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.engine import Arrival, EnginePlace
from areal_actors.generation.named import engine_factory
from areal_actors.generation.servers import weight_channels
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.transfer import write_weights

WAYS = ("folder", "broadcast", "tensors", "delta")
SENT = WAYS[1:]
PART_BYTES = 100_000
"""So that a version has several buckets."""
PAUSED_SECONDS = 30.0
"""Time limit of a transfer to a server that is paused for ever."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def published(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, dict[int, torch.nn.Module], dict[int, WeightsLocation]]:
    """Folder of a model, and four versions of it, of which the last differs from the one before in a few values."""
    models = {number: random_qwen(min(number, 2), head_dim=32) for number in range(4)}
    with torch.no_grad():
        models[3].model.norm.weight[2] += 1
        models[3].model.layers[0].mlp.up_proj.weight[3, 5:9] += 1
    folder, weights = save(models[0], tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("weights")
    return (
        folder,
        models,
        {number: write_weights(model.state_dict(), weights / f"v{number}", folder) for number, model in models.items()},
    )


@pytest.fixture(scope="module", params=DIALECTS)
def genuine(
    request: pytest.FixtureRequest, published: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Genuine]:
    """A server that was started to be sent weights; engines of the tests reach it by its address."""
    folder, models, versions = published
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        process, url = started(stack, request.param, folder, logs, EnginePlace(), weights="broadcast")
        yield Genuine(
            request.param,
            settings_of(request.param, urls=(url,)),
            folder,
            versions,
            models,
            process,
            EnginePlace(logs=logs),
        )


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_channels, "PART_BYTES", PART_BYTES)


def settings_with(genuine: Genuine, way: str, seconds: float = 600.0) -> GenerationSettings:
    server = msgspec.structs.replace(genuine.settings.server, weights=way, weights_seconds=seconds)
    return msgspec.structs.replace(genuine.settings, server=server)


@asynccontextmanager
async def serving(genuine: Genuine, way: str) -> AsyncIterator[HttpEngine]:
    engine = genuine._replace(settings=settings_with(genuine, way)).make()
    try:
        await engine.load_weights(genuine.versions[0], 0)
        yield engine
    finally:
        await engine.close()


async def assert_exact(genuine: Genuine, engine: HttpEngine) -> None:
    columns = joined(await chunks_of(engine, PROMPT, SamplingParams(max_tokens=16)))
    assert [span.weight_version for span in columns.versions] == [engine.weight_version]
    genuine.assert_exact(columns)


def arrival_of(engine: HttpEngine) -> Arrival:
    assert engine.arrival is not None
    return engine.arrival


@contextmanager
def publishing(genuine: Genuine, folder: Path) -> Iterator[Callable[[], int]]:
    """Publish versions as a trainer does, until the block ends; yields their number so far."""
    ended, number = threading.Event(), [0]

    def publish() -> None:
        while not ended.wait(0.05):
            write_weights(genuine.models[1].state_dict(), folder / f"v{number[0] % 2}", genuine.folder)
            number[0] += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield lambda: number[0]
    finally:
        ended.set()
        thread.join()


def family_of(engine_or_process: Any) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(engine_or_process._guard.pid).children(recursive=True)
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_fine(genuine: Genuine, way: str) -> None:
    async with serving(genuine, way) as engine:
        for version in (0, 1, 2, 3, 3, 1):
            await engine.load_weights(genuine.versions[version], version)
            arrival = arrival_of(engine)
            assert (arrival.channel, arrival.checksum, arrival.failure) == (way, genuine.versions[version].checksum, "")
            if way == "delta" and version == 3:
                assert arrival.sent_bytes < arrival.whole_bytes / 100
            await assert_exact(genuine, engine)


@pytest.mark.parametrize("way", SENT)
async def test_completions_in_flight_continue_under_what_arrived(genuine: Genuine, way: str) -> None:
    async with serving(genuine, way) as engine:

        async def sampled(number: int) -> TokenColumns:
            return joined(
                await chunks_of(engine, [*PROMPT, 20 + number], SamplingParams(max_tokens=80), stream=number % 2 == 0)
            )

        async def versions_rose(version: int) -> bool:
            tasks = [asyncio.create_task(sampled(number)) for number in range(8)]
            await until_it_runs(engine, *tasks)
            await engine.load_weights(genuine.versions[version], version)
            assert arrival_of(engine).failure == ""
            found = await asyncio.gather(*tasks)
            for number, columns in enumerate(found):
                genuine.assert_exact(columns, prompt=[*PROMPT, 20 + number])
            return any(len(columns.versions) > 1 for columns in found)

        async with asyncio.timeout(1200):
            version = 1
            while not await versions_rose(version):
                version = 3 - version


@pytest.mark.parametrize("way", SENT)
async def test_refused(genuine: Genuine, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has no such group, or answers that there is no such order; the next version arrives again."""
    async with serving(genuine, way) as engine:
        with monkeypatch.context() as patched:
            dialect = DIALECTS[genuine.name]

            async def elsewhere(self: Any, server: Any, *_: Any) -> Any:
                order = self._update if genuine.name == "sglang" else self._order
                return await order(server, "/no_such_order", {}, 60.0)

            patched.setattr(dialect, "receive", elsewhere)
            patched.setattr(dialect, "receive_handles", elsewhere)
            await engine.load_weights(genuine.versions[1], 1)
        arrival = arrival_of(engine)
        assert arrival.channel == "folder"
        assert f"{way} of weight version 1 to" in arrival.failure
        assert "/no_such_order" in arrival.failure
        await assert_exact(genuine, engine)
        await engine.load_weights(genuine.versions[2], 2)
        assert arrival_of(engine).failure == ""
        await assert_exact(genuine, engine)


@pytest.mark.parametrize("way", SENT)
async def test_the_sender_dies_in_mid_transfer(genuine: Genuine, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(genuine, way) as engine:
        sends, buckets = engine._channel._send_bucket, []

        async def dying(number: int, *rest: Any) -> Any:
            buckets.append(number)
            if number == 1:
                signal_all([psutil.Process(engine._channel._sender.pid)], signal.SIGKILL)
            return await sends(number, *rest)

        monkeypatch.setattr(engine._channel, "_send_bucket", dying)
        await engine.load_weights(genuine.versions[1], 1)
        assert arrival_of(engine).channel == "folder"
        assert "the sender of weights" in arrival_of(engine).failure
        await assert_exact(genuine, engine)
        monkeypatch.undo()
        await engine.load_weights(genuine.versions[2], 2)
        assert arrival_of(engine).failure == ""
        await assert_exact(genuine, engine)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("harm", ["shapes", "half written", "checksum"])
async def test_what_is_not_whole_never_reaches_the_server(
    genuine: Genuine, way: str, harm: str, tmp_path: Path
) -> None:
    tensors = dict(genuine.models[2].state_dict())
    if harm == "shapes":
        tensors["model.norm.weight"] = torch.ones(3)
    location = write_weights(tensors, tmp_path / "v2", genuine.folder)
    file = tmp_path / "v2" / "model.safetensors"
    if harm == "half written":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    if harm == "checksum":
        location = msgspec.structs.replace(location, checksum="0" * 32)
    async with serving(genuine, way) as engine:
        with pytest.raises(EngineError, match="the weights in") as refused:
            await engine.load_weights(location, 2)
        assert not isinstance(refused.value, EngineUnavailable)
        await assert_exact(genuine, engine)


@pytest.mark.parametrize("way", SENT)
async def test_what_arrives_with_another_checksum_is_replaced_by_the_folder(
    genuine: Genuine, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a byte had changed on its way: the server is given a checksum that the tensors do not have."""
    async with serving(genuine, way) as engine:
        monkeypatch.setattr(weight_channels, "verify_weights", lambda *_: None)
        location = msgspec.structs.replace(genuine.versions[1], checksum="0" * 32)
        await engine.load_weights(location, 1)
        assert arrival_of(engine).channel == "folder"
        assert f"have checksum {genuine.versions[1].checksum}, expected {'0' * 32}" in arrival_of(engine).failure
        await assert_exact(genuine, engine)


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_is_paused_for_ever_is_unavailable(
    genuine: Genuine, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer publishes meanwhile; when the server goes on, it gets the current version over another group."""
    family = family_of(genuine.process)
    async with serving(genuine, way) as engine:
        monkeypatch.setattr(weight_channels, "LOAD_SECONDS", PAUSED_SECONDS)
        engine._channel._settings = settings_with(genuine, way, PAUSED_SECONDS).server
        if way == "delta":
            engine._channel._group = ""  # so that another is opened while the server is paused
        signal_all(family, signal.SIGSTOP)
        try:
            with publishing(genuine, tmp_path) as versions:
                before = versions()
                late = "generation.server.weights_seconds = 30" if way != "folder" else "does not answer"
                with pytest.raises(EngineUnavailable, match=late):
                    await engine.load_weights(genuine.versions[1], 1)
                assert versions() > before
        finally:
            signal_all(family, signal.SIGCONT)
    monkeypatch.undo()
    async with serving(genuine, way) as engine:
        await engine.load_weights(genuine.versions[2], 2)
        await assert_exact(genuine, engine)


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_dies_in_mid_transfer_is_unavailable_and_the_next_one_has_the_version(
    genuine: Genuine, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    settings = settings_with(genuine, way)
    settings = msgspec.structs.replace(settings, server=msgspec.structs.replace(settings.server, urls=()))
    make = engine_factory(settings, ROOT, EnginePlace(logs=tmp_path / "logs"))

    async def started_engine() -> HttpEngine:
        engine = await asyncio.to_thread(make, genuine.folder)
        assert isinstance(engine, HttpEngine)
        return engine

    engine = await started_engine()
    try:
        await engine.load_weights(genuine.versions[0], 0)
        family = family_of(engine._server.process)
        target, name = (engine._channel, "_send_bucket") if way != "folder" else (engine.dialect, "load")
        sends, calls = getattr(target, name), []

        async def dying(*rest: Any) -> Any:
            calls.append(rest)
            if len(calls) == (2 if way in ("broadcast", "delta") else 1):
                signal_all(family, signal.SIGKILL)
            return await sends(*rest)

        monkeypatch.setattr(target, name, dying)
        with publishing(genuine, tmp_path) as versions, pytest.raises(EngineUnavailable):
            await engine.load_weights(genuine.versions[1], 1)
        assert versions() >= 0
    finally:
        await engine.close()
    _, alive = psutil.wait_procs(family, 60)
    assert not alive
    monkeypatch.undo()
    monkeypatch.chdir(ROOT)
    again = await started_engine()
    try:
        await again.load_weights(genuine.versions[1], 1)
        assert arrival_of(again).failure == ""
        await assert_exact(genuine, again)
    finally:
        await again.close()
