"""Weights reach inference servers without a folder: whole or what changed, verified; a version that does not arrive is
loaded as one."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import os
import pickle
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.samples import published
from support.tiny_engine import random_qwen, save

from areal_actors.core.errors import EngineError, EngineUnavailable, WeightTransferFailed
from areal_actors.core.values import WeightsLocation
from areal_actors.display.sentences import plain_line
from areal_actors.generation.engine import Arrival, EnginePlace
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.servers import weight_channels
from areal_actors.generation.servers.dialect import Group
from areal_actors.generation.servers.server_process import SERVER_SIDE, ServerClient
from areal_actors.generation.servers.server_side import sglang_weights
from areal_actors.generation.servers.server_side.areal_weights import ReceivedWeights, join_group, receive_bucket
from areal_actors.generation.servers.sglang.dialect import SGLang
from areal_actors.generation.servers.weight_channels import WeightChannel
from areal_actors.generation.settings import GenerationSettings, ServerSettings
from areal_actors.messages import WeightsLoaded, WeightTransferRefused
from areal_actors.weights.buckets import delta, to_buckets
from areal_actors.weights.sending import Bucket
from areal_actors.weights.transfer import checksum, read_weights, write_weights

Tensors = dict[str, torch.Tensor]
SENT = ("broadcast", "tensors", "delta")
GUARD_SECONDS = 800.0


def some_tensors() -> Tensors:
    torch.manual_seed(0)
    return {
        "b.weight": torch.randn(50, 7),
        "a.weight": torch.randn(300).bfloat16(),
        "ids": torch.arange(3),
        "odd": torch.ones(5).half(),
    }


def changed(tensors: Tensors) -> Tensors:
    """The same tensors with two values of one changed, another whole, and the rest as they are."""
    after = {name: tensor.clone() for name, tensor in tensors.items()}
    after["a.weight"][[3, 200]] += 1
    after["ids"] += 1
    return after


def take(
    received: ReceivedWeights, weights: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int = 10**6, **control: Any
) -> Tensors:
    """Returns the tensors that the model is given, after all buckets."""
    loaded: Tensors = {}
    for bucket in to_buckets(weights, {"kind": "whole", "keep": True, "base": "", **control}, bucket_bytes):
        offsets = torch.tensor([0, *(tensor.nbytes for _, tensor in bucket)]).cumsum(0).tolist()
        assert all(offset % tensor.element_size() == 0 for offset, (_, tensor) in zip(offsets, bucket, strict=False))
        loaded |= dict(received.take(bucket))
    return loaded


def in_order(tensors: Tensors) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensors[name]) for name in sorted(tensors)]


def assert_equal(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(
        torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in expected
    )


@pytest.mark.parametrize("bucket_bytes", [1, 700, 10**6])
def test_a_version_in_buckets_is_whole_and_its_checksum_that_of_the_folder(bucket_bytes: int) -> None:
    received, tensors = ReceivedWeights(), some_tensors()
    assert_equal(take(received, in_order(tensors), bucket_bytes, checksum=checksum(tensors)), tensors)
    assert received.report == {"checksum": checksum(tensors), "tensors": 4}


@pytest.mark.parametrize("loads_all", [False, True])
def test_a_delta_gives_the_next_version_from_what_changed_alone(*, loads_all: bool) -> None:
    received, before = ReceivedWeights(loads_all=loads_all), some_tensors()
    take(received, in_order(before), checksum=checksum(before))
    after = changed(before)
    sent = list(delta(before, after))
    assert [name for name, _ in sent] == ["a.weight#at", "a.weight#to", "ids"]
    loaded = take(received, sent, 1, kind="delta", base=checksum(before), checksum=checksum(after))
    assert_equal(loaded, after if loads_all else {name: after[name] for name in ("a.weight", "ids")})
    assert received.report["checksum"] == checksum(after)
    assert (
        take(received, list(delta(after, after)), kind="delta", base=checksum(after), checksum=checksum(after)).keys()
        <= after.keys()
    )


def test_a_delta_compares_bits_and_refuses_other_tensors() -> None:
    before = {"x": torch.tensor([float("nan"), 0.0, 1.0] * 10)}
    assert list(delta(before, {"x": before["x"].clone()})) == []
    after = before["x"].clone()
    after[1] = -0.0
    assert [tensor.tolist() for _, tensor in delta(before, {"x": after})] == [[1], [-0.0]]
    for other in ({"x": before["x"].half()}, {"x": before["x"][:5]}, {"y": before["x"]}):
        with pytest.raises(ValueError, match="differ in names, types or shapes"):
            list(delta(before, other))


def test_what_does_not_belong_together_never_reaches_the_model() -> None:
    received, before = ReceivedWeights(), some_tensors()
    after = changed(before)
    sent = list(delta(before, after))
    base = {"kind": "delta", "base": checksum(before), "checksum": checksum(after)}
    with pytest.raises(ValueError, match="the copy here has checksum none"):
        take(received, sent, **base)
    take(received, in_order(before), checksum=checksum(before))
    with pytest.raises(ValueError, match=f"have checksum {checksum(after)}, expected wrong"):
        take(received, sent, **{**base, "checksum": "wrong"})
    with pytest.raises(ValueError, match="the copy here has checksum none"):
        take(received, sent, **base)
    with pytest.raises(ValueError, match=r"the first tensor is a\.weight, expected areal\.control"):
        received.take(in_order(before))
    with pytest.raises(ValueError, match="have checksum"):
        take(received, in_order(before), checksum="wrong")
    assert received.report == {}


@dataclasses.dataclass(frozen=True, slots=True)
class Updater:
    """SGLang's updater of weights, as far as it concerns its extension."""

    get_model: Callable[[], Any]
    groups: dict[str, int] = dataclasses.field(default_factory=dict)

    def update(self, weights: list[tuple[str, torch.Tensor]], *, refused: bool = False) -> tuple[bool, str]:
        self.groups["used"] = 1
        self.get_model().load_weights(weights)
        return not refused, "done"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: Tensors = {}

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.loaded |= dict(weights)


async def test_sglang_answers_with_the_checksum_of_what_arrived_and_with_its_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SERVER_SIDE))
    model, tensors = Model(), some_tensors()
    updater, update = Updater(lambda: model), sglang_weights._reporting(Updater.update)
    (bucket,) = to_buckets(
        in_order(tensors), {"kind": "whole", "keep": False, "base": "", "checksum": checksum(tensors)}, 10**6
    )
    success, message = update(updater, bucket)
    assert success
    assert_equal(model.loaded, tensors)
    assert updater.groups == {"used": 1}
    assert update(updater, bucket, refused=True) == (False, "done")
    assert update(updater, bucket[1:]) == (False, "ValueError: the first tensor is a.weight, expected areal.control")

    class Server(ServerClient):
        async def post(self, path: str, body: Mapping[str, Any], seconds: float | None = None) -> tuple[int, Any]:
            return 200, {"success": path != "/flush_cache", "message": f"{message} Weight version updated to 3."}

    server = Server("SGLang", "http://127.0.0.1:9")
    report = await SGLang().receive(server, "group", Bucket([], [], []), 3, 5)
    assert report == {"checksum": checksum(tensors), "tensors": 4}
    with pytest.raises(WeightTransferFailed, match="SGLang answered 200 to /flush_cache: done"):
        await SGLang()._update(server, "/flush_cache", {}, 5)


class Brought:
    """An engine with the report of its last version."""

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        """Nothing is loaded."""


async def test_the_worker_reports_what_arrived_and_why_it_was_a_folder(send: Any) -> None:
    engine, name = Brought(Arrival("delta", "ab", 7, 100)), "inference_worker-0"
    worker = InferenceWorker(lambda _: engine, name=name, concurrency=1)  # type: ignore[arg-type, return-value]
    assert await send(worker, published(1)) == [
        WeightsLoaded(worker=name, weight_version=1, checksum="ab", channel="delta", sent_bytes=7, whole_bytes=100)
    ]
    engine.arrival = Arrival("folder", "cd", failure="no group")
    refused, loaded = await send(worker, published(2))
    assert refused == WeightTransferRefused(worker=name, weight_version=2, reason="no group")
    assert plain_line(refused) == f"weight version 2 came to {name} as a folder: no group"
    assert loaded == WeightsLoaded(worker=name, weight_version=2, checksum="cd")


# ---------------------------------------------------------------- a genuine sender, group and shared memory


class Receiver:
    """The server's side in this process: its group, shared memory and checksum are genuine, HTTP and model are left
    out."""

    title = "Receiver"

    def __init__(self) -> None:
        self.weights: Tensors = {}
        self.folders = 0
        self.refuses = self.sleeps = False
        self.orders: list[str] = []
        self._received = ReceivedWeights()
        self._groups: dict[str, Any] = {}

    async def load(self, server: ServerClient, folder: str, weight_version: int, seconds: float) -> None:
        self.folders += 1
        self.weights = dict(read_weights(WeightsLocation(folder=folder, checksum=checksum_in(folder), model="")))

    async def join_group(self, server: ServerClient, group: Group, seconds: float) -> dict[str, Any]:
        self._groups[group.name] = await asyncio.to_thread(
            join_group, group.address, group.port, 1, group.ranks, group.name, group.backend, seconds
        )
        return {}

    async def leave_group(self, server: ServerClient, name: str, seconds: float) -> None:
        self._groups.pop(name)

    async def begin_update(self, server: ServerClient, seconds: float) -> None:
        self.orders.append("begin")

    async def end_update(self, server: ServerClient, weight_version: int, seconds: float) -> None:
        self.orders.append("end")

    async def receive(
        self, server: ServerClient, group: str, bucket: Bucket, weight_version: int, seconds: float
    ) -> dict[str, Any]:
        if self.sleeps:
            await asyncio.sleep(GUARD_SECONDS)
        arriving = asyncio.to_thread(
            receive_bucket, self._groups[group], bucket.names, bucket.dtypes, bucket.shapes, torch.device("cpu")
        )
        return self._take(await arriving)

    async def receive_handles(
        self, server: ServerClient, handles: Sequence[str], weight_version: int, seconds: float
    ) -> dict[str, Any]:
        if self.sleeps:
            await asyncio.sleep(GUARD_SECONDS)
        return self._take(pickle.loads(base64.b64decode(handles[0])))

    def _take(self, bucket: list[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        self.orders.append("bucket")
        if self.refuses:
            raise WeightTransferFailed("Receiver answered 400: no")
        try:
            self.weights |= {name: tensor.clone() for name, tensor in self._received.take(bucket)}
        except ValueError as error:
            raise WeightTransferFailed(str(error)) from error
        return self._received.report


def checksum_in(folder: str) -> str:
    return (Path(folder) / "checksum").read_text()


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[WeightsLocation]:
    """Four versions of a model, of which the last differs from the one before it in a few values."""
    folder = tmp_path_factory.mktemp("model")
    models = [random_qwen(seed) for seed in (0, 1, 2, 2)]
    with torch.no_grad():
        models[3].model.norm.weight[2] += 1
        models[3].model.layers[0].mlp.up_proj.weight[3, 5:9] += 1
    model_folder = save(models[0], folder)
    locations = [
        write_weights(model.state_dict(), tmp_path_factory.mktemp("weights") / f"v{number}", model_folder)
        for number, model in enumerate(models)
    ]
    for location in locations:
        (Path(location.folder) / "checksum").write_text(location.checksum)
    return locations


@asynccontextmanager
async def channel_of(weights: str, model: str, logs: Path) -> AsyncIterator[tuple[WeightChannel, Receiver]]:
    receiver = Receiver()
    settings = GenerationSettings(
        engine="sglang", device="cpu", server=ServerSettings(weights=weights, weights_seconds=GUARD_SECONDS)
    )  # type: ignore[arg-type]
    channel = WeightChannel(
        receiver, ServerClient("Receiver", "http://127.0.0.1:9"), model, settings, EnginePlace(logs=logs)
    )  # type: ignore[arg-type]
    try:
        yield channel, receiver
    finally:
        await channel.close()


async def bring(channel: WeightChannel, location: WeightsLocation, number: int) -> None:
    await channel.load(location, number, await channel.prepare(location), "")


@pytest.mark.parametrize("weights", SENT)
async def test_versions_arrive_and_those_that_do_not_are_loaded_from_their_folder(
    weights: str, versions: list[WeightsLocation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_channels, "PART_BYTES", 100_000)
    async with channel_of(weights, versions[0].model, tmp_path) as (channel, receiver), asyncio.timeout(GUARD_SECONDS):
        for number, location in enumerate(versions):
            await bring(channel, location, number)
            arrival = channel.arrival
            assert arrival is not None
            assert (arrival.checksum, arrival.failure) == (location.checksum, "")
            assert arrival.channel == ("broadcast" if weights == "delta" and number == 0 else weights)
            assert_equal(receiver.weights, read_weights(location))
        assert receiver.folders == 0
        assert receiver.orders.count("bucket") > 2 * len(versions)
        assert arrival.whole_bytes > 100_000
        assert (arrival.sent_bytes < 1000) == (weights == "delta")

        receiver.refuses = True
        await bring(channel, versions[0], 4)
        arrival = channel.arrival
        assert arrival.channel == "folder"
        assert arrival.failure.startswith(f"{weights} of weight version 4 to Receiver at http://127.0.0.1:9 failed: ")
        assert arrival.failure.endswith("answered 400: no")
        assert_equal(receiver.weights, read_weights(versions[0]))
        receiver.refuses = False
        await bring(channel, versions[2], 5)
        assert channel.arrival.channel == ("broadcast" if weights == "delta" else weights), "another group is opened"
        assert receiver.folders == 1

        os.kill(channel._sender.pid, signal.SIGKILL)
        await bring(channel, versions[3], 6)
        assert "the sender of weights" in channel.arrival.failure
        assert_equal(receiver.weights, read_weights(versions[3]))
        await bring(channel, versions[3], 6)
        assert channel.arrival.failure == ""
        assert_equal(receiver.weights, read_weights(versions[3]))
        damaged = msgspec.structs.replace(versions[1], checksum="0" * 32)
        with pytest.raises(EngineError, match="have checksum") as refused:
            await bring(channel, damaged, 7)
        assert not isinstance(refused.value, EngineUnavailable)
        assert_equal(receiver.weights, read_weights(versions[3]))


async def test_a_server_that_does_not_take_a_version_in_time_is_unavailable(
    versions: list[WeightsLocation], tmp_path: Path
) -> None:
    async with (
        channel_of("broadcast", versions[0].model, tmp_path) as (channel, receiver),
        asyncio.timeout(GUARD_SECONDS),
    ):
        await bring(channel, versions[0], 0)
        channel._settings = msgspec.structs.replace(channel._settings, weights_seconds=5.0)
        receiver.sleeps = True
        late = (
            "broadcast of weight version 1 to Receiver at http://127.0.0.1:9 did not end within"
            " generation.server.weights_seconds = 5"
        )
        with pytest.raises(EngineUnavailable, match=late):
            await bring(channel, versions[0], 1)
        assert channel._sender.pid == 0
        assert receiver.folders == 0


async def test_after_three_versions_in_a_row_that_did_not_arrive_folders_are_loaded(
    versions: list[WeightsLocation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    async with channel_of("tensors", versions[0].model, tmp_path) as (channel, receiver):
        failures = []
        for number in range(4):
            await bring(channel, versions[number], number)
            assert channel.arrival is not None
            failures.append(channel.arrival.failure)
        assert all("cannot start the sender of weights" in failure for failure in failures[:3])
        assert failures[3] == "3 versions in a row did not arrive as tensors"
        assert receiver.folders == 4
