"""Reported speed and busy time of generation are those of the engine, whether a decode step is shorter or longer than a
tick."""

import asyncio
import threading

import pytest
from support.clock import until
from support.tiny_engine import prompt_of, random_qwen, running, save

from areal_actors.core.values import SamplingParams, WeightsLocation
from areal_actors.display.throughput import busy_share, tokens_per_second
from areal_actors.generation.engine import BusyClock, EngineCounters
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import WeightsPublished
from areal_actors.runtime.actor import Tick

WINDOW = 30.0
ROWS = 8


class SteppedEngine:
    """An engine whose decode steps take `step` seconds of a clock that the test moves, between `begins` and `ends`."""

    abilities: frozenset[str] = frozenset()
    weight_version = 0

    def __init__(self, step, begins, ends):
        self.now, self.tokens, self.step, self.begins, self.ends = 0.0, 0, step, begins, ends
        self.step_end = begins + step
        self.clock = BusyClock(lambda: self.now)

    def move(self, now):
        """Work until `now`."""
        while self.step_end <= min(now, self.ends + 1e-9):
            self.now = max(self.step_end - self.step, self.begins)
            self.clock.start()
            self.tokens += ROWS
            self.now = self.step_end
            self.step_end += self.step
        if self.begins <= now and self.step_end <= self.ends + 1e-9:
            self.now = max(self.now, self.begins)
            self.clock.start()
        else:
            self.clock.stop()
        self.now = now

    async def load_weights(self, location, weight_version):
        pass

    def take_counters(self):
        tokens, self.tokens = self.tokens, 0
        return EngineCounters(tokens=tokens, busy_seconds=self.clock.take_seconds(), running=ROWS)

    async def close(self):
        pass


async def reports(send, engine, seconds):
    """Reports of a worker in its ticks."""
    worker = InferenceWorker(lambda _: engine, name="inference_worker-0", concurrency=ROWS)
    await send(worker, WeightsPublished(weight_version=0, location=WeightsLocation(folder="", checksum="", model="")))
    found = []
    for tick in range(round(seconds / worker.tick_seconds) + 1):
        engine.move(tick * worker.tick_seconds)
        found += await send(worker, Tick(), now=1000.0 + tick * worker.tick_seconds)
    return found


@pytest.mark.parametrize("step", [0.01, 0.05, 0.19, 0.2, 0.21, 0.5, 1.0, 1.7, 3.0, 10.0])
async def test_speed_and_busy_time_are_those_of_the_engine(send, step):
    engine = SteppedEngine(step, begins=0.0, ends=1e9)
    for end in (60.0, 71.0, 77.4):
        found = [one for one in await reports(send, engine, end) if one.started + one.seconds > 1000.0 + end - WINDOW]
        assert tokens_per_second(found) == pytest.approx(ROWS / step, rel=0.02)
        assert busy_share(found, (1000.0 + end - WINDOW, 1000.0 + end)) == pytest.approx(1.0, abs=0.01)
        engine = SteppedEngine(step, begins=0.0, ends=1e9)


@pytest.mark.parametrize("step", [0.01, 0.25, 1.0, 5.0])
async def test_idle_time_is_neither_busy_nor_slower(send, step):
    found = await reports(send, SteppedEngine(step, begins=20.0, ends=40.0), 60.0)
    assert tokens_per_second(found) == pytest.approx(ROWS / step, rel=0.02)
    assert sum(one.seconds for one in found) == pytest.approx(20.0, rel=1e-6)
    assert busy_share(found, (1000.0, 1060.0)) == pytest.approx(1 / 3, abs=0.01)
    assert sum(one.tokens for one in found) == ROWS * round(20.0 / step)


async def test_a_step_that_lasts_counts_as_busy_before_it_is_finished(tmp_path):
    entered, finish = threading.Event(), threading.Event()
    now = [0.0]
    async with running(save(random_qwen(0), tmp_path)) as engine:
        loop = engine._loop
        await until(lambda: loop._busy._since is None)
        loop._busy, decode = BusyClock(lambda: now[0]), loop._decoder.decode

        def slow(token_ids, positions):
            entered.set()
            finish.wait()
            return decode(token_ids, positions)

        loop._decoder.decode = slow
        completion = asyncio.create_task(anext(engine.generate("request", prompt_of(5), SamplingParams(max_tokens=1))))
        await until(entered.is_set)
        for second in (1.0, 2.0, 3.0):
            now[0] = second
            counters = engine.take_counters()
            assert (counters.tokens, counters.busy_seconds, counters.running) == (0, 1.0, 1)
        finish.set()
        await completion
        await until(lambda: loop._busy._since is None)
        now[0] = 9.0
        counters = engine.take_counters()
        assert (counters.tokens, counters.busy_seconds) == (
            1,
            0.0,
        ), "nothing since the last call but the end of the step, and idle time"
