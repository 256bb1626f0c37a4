"""Faulty agents and engines for `stalls.py`; each fault appends its time to `STALL_MARK`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from openai import AsyncOpenAI

from areal_actors.core.errors import EngineError
from areal_actors.generation.scripted.engine import scripted_engine

FOREVER = 10_000.0


def mark():
    """Note when the fault was hit."""
    with Path(os.environ["STALL_MARK"]).open("a") as file:
        file.write(f"{time.time()}\n")


class Agent:
    """Asks once and returns the answer's text."""

    async def run(self, task, *, base_url, api_key):
        async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": task["question"]}]
            )
        return answer.choices[0].message.content or ""


class HangingAgent(Agent):
    async def run(self, task, *, base_url, api_key):
        mark()
        await asyncio.sleep(FOREVER)


class HangingEvaluationAgent(Agent):
    async def run(self, task, *, base_url, api_key):
        if "test" in task["id"]:
            mark()
            await asyncio.sleep(FOREVER)
        return await super().run(task, base_url=base_url, api_key=api_key)


class RaisingAgent(Agent):
    async def run(self, task, *, base_url, api_key):
        mark()
        raise ValueError("no idea")


class BlockingAgent(Agent):
    async def run(self, task, *, base_url, api_key):
        mark()
        time.sleep(FOREVER)


class NonsenseAgent(Agent):
    async def run(self, task, *, base_url, api_key):
        mark()
        return ["not", "a", "reward"]


class NanAgent(Agent):
    async def run(self, task, *, base_url, api_key):
        mark()
        return float("nan")


class SilentAgent(Agent):
    """Returns a reward without a model call."""

    async def run(self, task, *, base_url, api_key):
        mark()
        return 1.0


class NoneAgent(Agent):
    async def run(self, task, *, base_url, api_key):
        await super().run(task, base_url=base_url, api_key=api_key)
        mark()


class ConstructorAgent(Agent):
    def __init__(self):
        mark()
        raise ValueError("no key in the environment")


class SignatureAgent:
    async def run(self, task):
        return 1.0


class ImportHangs(Agent):
    """Can be created once; the second constructor call never returns."""

    def __init__(self):
        made = Path(os.environ["STALL_MARK"]).with_suffix(".made")
        if made.exists():
            mark()
            time.sleep(FOREVER)
        made.touch()


class StartHangs(Agent):
    def __init__(self):
        mark()
        time.sleep(FOREVER)


class StartWorks(Agent):
    """A slow start that uses CPU: not a fault."""

    def __init__(self):
        mark()
        until = time.process_time() + 8.0
        while time.process_time() < until:
            pass


class SilentEngine:
    """The scripted engine without its answers."""

    def __init__(self, model_folder, settings):
        self._engine = scripted_engine(model_folder, settings)
        self.abilities, self.take_counters, self.close = (
            self._engine.abilities,
            self._engine.take_counters,
            self._engine.close,
        )

    @property
    def weight_version(self):
        return self._engine.weight_version

    async def load_weights(self, location, weight_version):
        await self._engine.load_weights(location, weight_version)

    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        mark()
        await asyncio.sleep(FOREVER)
        yield


class RaisingEngine(SilentEngine):
    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        mark()
        raise EngineError("the device is out of memory")
        yield


class AnsweringEngine(SilentEngine):
    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        async for chunk in self._engine.generate(
            request_id, prompt_ids, sampling, stream=stream, resumed_tokens=resumed_tokens
        ):
            yield chunk


class LoadHangs(AnsweringEngine):
    """Weights after the first never load."""

    async def load_weights(self, location, weight_version):
        if weight_version > 0:
            mark()
            await asyncio.sleep(FOREVER)
        await super().load_weights(location, weight_version)


class FirstLoadHangs(AnsweringEngine):
    async def load_weights(self, location, weight_version):
        mark()
        await asyncio.sleep(FOREVER)


class LoadRaises(AnsweringEngine):
    async def load_weights(self, location, weight_version):
        mark()
        raise EngineError("checksum of the weights differs")


class MadeHangs(AnsweringEngine):
    """An engine whose constructor never returns."""

    def __init__(self, model_folder, settings):
        mark()
        time.sleep(FOREVER)


class MadeRaises(AnsweringEngine):
    def __init__(self, model_folder, settings):
        mark()
        raise OSError("no such device: /dev/accelerator0")


class CrashingEngine(AnsweringEngine):
    async def generate(self, request_id, prompt_ids, sampling, *, stream=False, resumed_tokens=0):
        mark()
        os._exit(11)
        yield
