"""An orderly stop of the gateway: what was asked is answered, and nothing more is taken."""

from __future__ import annotations

import asyncio

import openai
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, client, opened_gateway

from areal_actors.gateway import server as module


async def test_a_call_in_flight_gets_its_whole_answer_and_a_new_one_is_refused():
    async with opened_gateway() as harness:
        engine = await harness.engine("inference_worker-0", FixedTextEngine(hold_at=3))
        opened = await harness.open()
        async with client(opened) as agent, client(opened) as late:
            streaming = await agent.chat.completions.create(model="m", messages=HELLO, stream=True)
            await engine.held.wait()
            draining = asyncio.create_task(harness.manager.drain())
            await asyncio.sleep(0.05)
            with pytest.raises(openai.APIConnectionError):
                await late.chat.completions.create(model="m", messages=HELLO)
            assert not draining.done()
            engine.go_on.set()
            pieces = [chunk.choices[0].delta.content or "" async for chunk in streaming if chunk.choices]
        assert "".join(pieces) == "hi there"
        await draining
        assert [recorded.session for recorded in harness.recorded()] == [opened.session]
        assert (await harness.trajectory(opened)).interactions


async def test_a_drain_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(module, "SHUTDOWN_SECONDS", 0.1)
    async with opened_gateway() as harness:
        engine = await harness.engine("inference_worker-0", FixedTextEngine(hold_at=3))
        opened = await harness.open()
        async with client(opened) as agent:
            asking = asyncio.create_task(agent.chat.completions.create(model="m", messages=HELLO))
            await engine.held.wait()
            async with asyncio.timeout(300):
                await harness.manager.drain()
            with pytest.raises(openai.APIConnectionError):
                await asking
