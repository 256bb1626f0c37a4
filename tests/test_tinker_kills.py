"""`areal-actors serve tinker` is killed while it saves, loads, trains and samples: the old or new checkpoint is whole,
nothing is left over."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.tinker_harness import TinkerHarness, datum
from support.tiny_trainer import write_model

ROOT = Path(__file__).parent.parent
KILLS = {"save": 12, "save_for_sampler": 4, "load": 5, "train": 4, "sample": 5}
"""Number of kills in each kind of request, at moments spread over its time."""
DATA = [datum([5, 6, 7, 8], [6, 7, 8, 9], weights=[1.0, 1.0, 1.0, 1.0])]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def server(folder, state):
    """A client of a server, which is killed at the end, and the server's process."""
    words = (
        "tinker",
        "--model",
        str(folder),
        "--name",
        "Qwen/Qwen3-8B",
        "--state",
        str(state),
        "--device",
        "cpu",
        "--port",
        "0",
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "areal_actors", *words), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        banner = (await process.stdout.readline()).decode()
        root = re.search(r"http://127.0.0.1:\d+", banner)[0]
        async with aiohttp.ClientSession() as http:
            client = TinkerHarness(None, root, http)
            await client.begin()
            yield client, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def scores(client, model_id):
    """Log-probabilities of the data by a model: a fingerprint of its weights."""
    output = await client.done(
        "forward", {"model_id": model_id, "forward_input": {"data": DATA, "loss_fn": "cross_entropy"}}
    )
    return output["loss_fn_outputs"][0]["logprobs"]["data"]


async def loaded(client, path, number):
    """A model made from a checkpoint."""
    body = {"session_id": client.session_id, "model_seq_id": number, "path": path, "optimizer": True}
    return (await client.done("load_weights", body))["model_id"]


async def save_both(client, model_id):
    """Paths of checkpoints for training and for sampling, under a name that is overwritten."""
    saves = [
        (call, {"model_id": model_id, "path": "a", "overwrite": True})
        for call in ("save_weights", "save_weights_for_sampler")
    ]
    return [(await client.done(call, body))["path"] for call, body in saves]


async def duration(call):
    """Seconds that a call takes."""
    began = time.monotonic()
    await call()
    return time.monotonic() - began


class Work:
    """Requests of a client while the server is killed."""

    def __init__(self, client, model_id, path):
        self.client, self.model_id, self.path = client, model_id, path

    async def save(self):
        await self.client.done("save_weights", {"model_id": self.model_id, "path": "a", "overwrite": True})

    async def save_for_sampler(self):
        await self.client.done("save_weights_for_sampler", {"model_id": self.model_id, "path": "a", "overwrite": True})

    async def load(self):
        await self.client.done("load_weights", {"model_id": self.model_id, "path": self.path, "optimizer": True})

    async def train(self):
        await self.client.train(self.model_id, DATA)

    async def sample(self):
        sampler = (await self.client.done("save_weights_for_sampler", {"model_id": self.model_id}))[
            "sampling_session_id"
        ]
        await self.client.sample(sampler, (5, 6, 7), num_samples=4, sampling_params={"max_tokens": 64})


async def kill_in(process, call, seconds):
    """Kill the server this time after the start of a call, which is made again and again."""

    async def repeat():
        while True:
            await call()

    running = asyncio.ensure_future(repeat())
    await asyncio.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await asyncio.gather(running, return_exceptions=True)


def left_over(state):
    """Names in the folders of checkpoints that no checkpoint needs, and temporary weights."""
    places = [*(state / "checkpoints").glob("*/weights"), *(state / "checkpoints").glob("*/sampler_weights")]
    used = {link.readlink().name for place in places for link in place.iterdir() if link.is_symlink()}
    hidden = {path.name for place in places for path in place.glob(".*")}
    return sorted(hidden - used) + sorted(path.name for path in (state / ".temporary").iterdir())


@pytest.mark.parametrize("kind", KILLS)
async def test_a_kill_leaves_the_old_checkpoint_or_the_new_one(folder, tmp_path, kind):
    state = tmp_path / "state"
    async with server(folder, state) as (client, _):
        model_id = await client.model()
        paths = await save_both(client, model_id)
        expected = [await scores(client, model_id)]
        await client.train(model_id, DATA)
        seconds = await duration(getattr(Work(client, model_id, paths[0]), kind))
        paths = await save_both(client, model_id)
        expected = [await scores(client, model_id)]
    replaced = 0
    for number in range(KILLS[kind] + 1):
        async with server(folder, state) as (client, process):
            assert left_over(state) == []
            assert set(paths) <= {one["tinker_path"] for one in (await client.get("checkpoints"))["checkpoints"]}
            model_id = await loaded(client, paths[0], 0)
            found = await scores(client, model_id)
            assert found in expected
            replaced += len(expected) > 1 and found == expected[-1]
            assert (await client.sample(await client.sampler(1, model_path=paths[1])))["sequences"]
            if number == KILLS[kind]:
                break
            paths = await save_both(client, model_id)
            expected = [found]
            await client.train(model_id, DATA)
            if kind == "save":
                expected.append(await scores(client, model_id))
            work = getattr(Work(client, model_id, paths[0]), kind)
            await kill_in(process, work, seconds * (number + 0.5) / KILLS[kind])
    sys.stdout.write(f"{kind}: {KILLS[kind]} kills within {seconds:.2f} s, {replaced} left the new one\n")
