"""A thousand sessions at once: none is held back, and each takes little."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc

import aiohttp
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, nothing_in_flight, opened_gateway
from support.samples import work

from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import WeightsLoaded

ASK = {"messages": HELLO, "max_tokens": 20}
MANY = 1000


class BarrierEngine(FixedTextEngine):
    """Answers when `expected` calls are in flight at once."""

    def __init__(self, expected):
        super().__init__(hold_at=0)
        self.expected = expected

    def begun(self):
        if self.running == self.expected:
            self.go_on.set()


async def crowd(harness, expected, sessions=MANY):
    """A gateway with many sessions before an engine that waits until all have called."""
    engine = BarrierEngine(expected)
    loaded = harness.until(WeightsLoaded)
    await harness.serve(
        "inference_worker-0", InferenceWorker(lambda folder: engine, name="inference_worker-0", concurrency=2 * MANY)
    )
    await loaded
    await asyncio.sleep(0)
    return engine, [await harness.open(work(f"{number}.0"), lease=3600) for number in range(sessions)]


async def call(http, opened, *, stream=False):
    """One call over a shared client."""
    headers = {"x-api-key": opened.api_key}
    async with http.post(
        opened.base_url + "/chat/completions", json={**ASK, "stream": stream}, headers=headers
    ) as response:
        assert response.status == 200, await response.text()
        return await response.read()


@pytest.mark.slow
async def test_a_thousand_calls_of_a_thousand_sessions_are_in_flight_at_once():
    async with opened_gateway() as harness:
        engine, sessions = await crowd(harness, MANY)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http, asyncio.timeout(300):
            replies = await asyncio.gather(
                *[call(http, opened, stream=number % 2 == 0) for number, opened in enumerate(sessions)]
            )
        assert engine.most == MANY, "neither gateway nor session manager holds a call back"
        assert all(text.endswith(b"data: [DONE]\n\n") for text in replies[::2])
        assert {json.loads(text)["choices"][0]["message"]["content"] for text in replies[1::2]} == {"hi there"}
        async with asyncio.timeout(60):
            while len(harness.recorded()) < MANY:  # noqa: ASYNC110 - a report is in several events
                await asyncio.sleep(0.05)
        assert len(harness.recorded()) == MANY
        await nothing_in_flight(harness)


@pytest.mark.slow
async def test_an_open_session_with_a_call_takes_little_memory():
    async with opened_gateway() as harness, aiohttp.ClientSession() as http:
        engine, first = await crowd(harness, 1, sessions=1)
        await call(http, first[0])
        tracemalloc.start()
        for number in range(1, MANY):
            await call(http, await harness.open(work(f"{number}.0"), lease=3600))
        assert len(harness.manager.registry) == MANY
        harness.bus._log.clear()  # a bus in memory is the log, too
        engine.prompts.clear()
        engine.asked.clear()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] / (MANY - 1) / 1024
        tracemalloc.stop()
        assert taken < 20, "KiB for each session"
