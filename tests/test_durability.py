"""Synced data survives a power failure, on a file system that loses all the rest."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.bus_cases import KINDS, Happened, stamp

from areal_actors.messages import CheckpointCommitted, CheckpointStaged
from areal_actors.training.checkpointer import CheckpointConfig, Checkpointer
from areal_bus.durability import sync_store
from areal_bus.log_check import check_log
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from lossy_disk import can_lose_power, lossy_disk, mounted

needs_a_disk = pytest.mark.skipif(
    not can_lose_power(), reason="making a disk that loses power needs root and loop devices"
)


async def appended(store, sync, count, then=lambda: None):
    """Publish `count` events, do something, publish as many again; returns the bus and its server."""
    server = await EmbeddedServer.start(store, sync_interval=sync)
    bus = await NatsBus.connect(server.url, "test", name="tester", token=server.token, kinds=KINDS)
    for n in range(count):
        await bus.publish(Happened(n=n), stamp())
    await asyncio.to_thread(then)
    for n in range(count, 2 * count):
        await bus.publish(Happened(n=n), stamp())
    return bus, server


async def good_end(store):
    server = await EmbeddedServer.start(store)
    try:
        bus = await NatsBus.connect(server.url, "test", name="tester", token=server.token, kinds=KINDS)
        try:
            return (await check_log(bus.streams, lambda _: None)).end
        finally:
            await bus.close()
    finally:
        await server.stop()


async def left_after_a_power_failure(tmp_path, sync, then=lambda store: None, count=200):
    with lossy_disk(tmp_path) as disk:
        store = disk.root / "nats"
        bus, server = await appended(store, sync, count, lambda: then(store))
        left = disk.lose_power()
        await bus.close()
        await server.stop()
    with mounted(left) as root:
        return await good_end(root / "nats")


@needs_a_disk
async def test_what_was_synced_survives_a_power_failure(tmp_path):
    assert await left_after_a_power_failure(tmp_path, "10m", sync_store) >= 200


@needs_a_disk
async def test_what_was_only_confirmed_does_not(tmp_path):
    assert await left_after_a_power_failure(tmp_path, "10m") < 400


@needs_a_disk
async def test_with_always_whatever_was_confirmed_survives(tmp_path):
    assert await left_after_a_power_failure(tmp_path, "always") == 400


@needs_a_disk
async def test_a_checkpoint_counts_only_when_the_log_before_it_is_on_the_disk(tmp_path, send):
    def saved(store):
        checkpoints = tmp_path / "checkpoints"
        (checkpoints / ".writing-step-1").mkdir(parents=True)
        actor = Checkpointer(CheckpointConfig(), folder=checkpoints, steps=1, synced=(store, tmp_path / "blobs"))
        written = CheckpointStaged(folder=str(checkpoints / ".writing-step-1"), step=1, cursor=200)
        (event,) = asyncio.run(send(actor, written))
        assert isinstance(event, CheckpointCommitted)

    assert await left_after_a_power_failure(tmp_path, "10m", saved) >= 200


def test_every_file_and_folder_is_synced_and_what_disappears_is_passed_over(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "1.blk").write_text("x")
    (tmp_path / "a" / "b" / "2.blk").write_text("y")
    (tmp_path / "a" / "gone").symlink_to("nowhere")
    assert sync_store(tmp_path / "a") == 2 + 2 + 1
    assert sync_store(tmp_path / "nowhere") == 1
