"""A Tinker server for `part_faults.py`.

Killed and paused while a client trains, saves and samples, and compared with one left alone.
"""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import aiohttp
import psutil
from part_scene import BEFORE_SECONDS, PAUSE_SECONDS, RECOVERY_SECONDS, Fault, Kind, family, until
from support.live_run import ROOT
from support.tinker_harness import TinkerHarness, datum
from support.tiny_trainer import write_model

DATA = [datum([5, 6, 7, 8], [6, 7, 8, 9], weights=[1.0, 1.0, 1.0, 1.0])]
CALL_ERRORS = (aiohttp.ClientError, ConnectionError, AssertionError)
STEPS_AFTER = 3
MOST_STEPS = 300
"""Steps of the comparison; the client learns no further."""
TOLERANCE = 1e-4
LEARNING_RATE = 1e-4


class TinkerScene:
    """A server, and a client that goes on from the last acknowledged checkpoint."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        (folder / "model").mkdir(parents=True)
        self.model = write_model(folder / "model")
        self.process: subprocess.Popen[bytes] | None = None
        self.http: aiohttp.ClientSession | None = None
        self.steps = 0
        """Acknowledged optimizer steps of the model, as the client counts them."""
        self.saved = ("", 0)
        """Acknowledged checkpoint, and its steps."""
        self.times: list[float] = []
        """Times of acknowledged steps."""
        self.expected: list[float] = []
        """Log-probability of the data after each number of steps, of a server that was left alone."""
        self.lost = self.twice = self.starts = 0
        self.faults: list[Fault] = []

    async def start(self) -> TinkerHarness:
        """Start the server, and a session."""
        words = (
            "--model",
            str(self.model),
            "--name",
            "Qwen/Qwen3-8B",
            "--state",
            str(self.folder / "state"),
            "--device",
            "cpu",
        )
        output = self.folder / f"tinker-{self.starts}.txt"
        self.starts += 1
        with output.open("wb") as file:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                [sys.executable, "-m", "areal_actors", "serve", "tinker", *words, "--port", "0"],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        assert await until(lambda: "http://" in output.read_text() or self.process.poll() is not None, RECOVERY_SECONDS)
        found = re.search(r"http://127.0.0.1:\d+", output.read_text())
        assert found is not None, output.read_text()
        assert self.http is not None
        client = TinkerHarness(None, found[0], self.http)  # type: ignore[arg-type]
        await client.begin()
        return client

    async def learn(self) -> None:
        """Train, check, save and sample, again and again; after a kill, from the last checkpoint."""
        while True:
            try:
                client = await self.start()
                await self._learn(client)
            except CALL_ERRORS as error:
                assert self.process is not None
                await asyncio.sleep(1.0)
                if self.process.poll() is None:
                    self.lost += 1  # the server lives: an answer was lost in silence, or is an error
                    print(f"    tinker answered with an error: {error}", flush=True)
                    self.process.kill()
                self.process.wait()

    async def _learn(self, client: TinkerHarness) -> None:
        path, self.steps = self.saved
        if path:
            body = {"session_id": client.session_id, "model_seq_id": 0, "path": path, "optimizer": True}
            model = (await client.done("load_weights", body))["model_id"]
        else:
            self.expected = self.expected or await undisturbed(client)
            model = await client.model()
        await self._check(client, model)
        while self.steps + 1 < len(self.expected):
            await client.train(model, DATA, lr=LEARNING_RATE)
            self.steps += 1
            self.times.append(time.time())
            await self._check(client, model)
            saved = await client.done(
                "save_weights", {"model_id": model, "path": f"s{self.steps % 2}", "overwrite": True}
            )
            self.saved = (saved["path"], self.steps)
            sampler = await client.done("save_weights_for_sampler", {"model_id": model, "path": "a", "overwrite": True})
            await client.sample(await client.sampler(self.steps + 1000, model_path=sampler["path"]))

    async def _check(self, client: TinkerHarness, model: str) -> None:
        """Compare the model with one that has had the same number of steps without a fault."""
        score = await score_of(client, model)
        nearest = min(range(len(self.expected)), key=lambda step: abs(self.expected[step] - score))
        if abs(self.expected[self.steps] - score) > TOLERANCE:
            self.lost += nearest < self.steps
            self.twice += nearest > self.steps or abs(self.expected[nearest] - score) > TOLERANCE
            print(f"    tinker: {score} after {self.steps} steps, expected {self.expected[self.steps]}", flush=True)

    async def inject(self, kind: Kind) -> Fault:
        """Hit the server at a random moment, and wait until the client has trained on."""
        await asyncio.sleep(self.random.uniform(*BEFORE_SECONDS))
        assert self.process is not None
        fault = Fault(part="tinker server", kind=kind, target=str(self.process.pid), at=time.time())
        self.faults.append(fault)
        if kind == "kill":
            self.process.kill()
        else:
            fault.seconds = self.random.uniform(*PAUSE_SECONDS)
            self.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            self.process.send_signal(signal.SIGCONT)
        after = len(self.times)
        fault.went_on = await until(lambda: len(self.times) >= after + STEPS_AFTER, RECOVERY_SECONDS)
        fault.until, fault.own = time.time(), tuple(self.times)
        print(
            f"    {kind} tinker server {fault.seconds:.1f} s: {'goes on' if fault.went_on else 'STUCK'}, step"
            f" {self.steps}",
            flush=True,
        )
        return fault


async def undisturbed(client: TinkerHarness) -> list[float]:
    """Returns the fingerprints of a model that is trained without a fault, after each number of steps."""
    model, scores = await client.model(5), []
    for _ in range(MOST_STEPS):
        scores.append(await score_of(client, model))
        await client.train(model, DATA, lr=LEARNING_RATE)
    return scores


async def score_of(client: TinkerHarness, model: str) -> float:
    """Returns the summed log-probability of the data: a fingerprint of the weights."""
    output = await client.done(
        "forward", {"model_id": model, "forward_input": {"data": DATA, "loss_fn": "cross_entropy"}}
    )
    return float(sum(output["loss_fn_outputs"][0]["logprobs"]["data"]))


@asynccontextmanager
async def tinker(folder: Path, random: Random) -> AsyncIterator[TinkerScene]:
    """Start the client and its server; both are ended."""
    scene = TinkerScene(folder, random)
    async with aiohttp.ClientSession() as scene.http:
        learning = asyncio.create_task(scene.learn())
        try:
            yield scene
        finally:
            learning.cancel()
            await asyncio.gather(learning, return_exceptions=True)
            processes: list[psutil.Process] = family(scene.process.pid) if scene.process else []
            for process in processes:
                process.kill()
            if scene.process is not None:
                scene.process.wait()
