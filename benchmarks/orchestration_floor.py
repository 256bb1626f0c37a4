"""Baseline of the orchestration benchmark: the same agent and client, with a server that answers immediately.

    python benchmarks/orchestration_floor.py EPISODES CONCURRENCY CALLS

Only two processes, the agents' and the server's: no bus, no sessions, no tokens, no reward. Prints seconds
and CPU seconds of both as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import uvloop
from aiohttp import web
from history import busy_seconds, others_share

from areal_actors.core.values import Task
from areal_actors.gateway.protocols import CHAT
from areal_actors.messages import ModelResponsePart
from areal_actors.rollout.inline_runner import InlineRunner
from areal_actors.tasks.datasets import open_dataset

AGENT = "benchmarks/calling_agent.py:CallingAgent"
REQUEST = CHAT.decode(b'{"model": "default", "messages": [{"role": "user", "content": "?"}]}')
PART = ModelResponsePart(
    interaction="call-0", text="nothing " * 8, finish_reason="stop", prompt_tokens=60, completion_tokens=16, last=True
)
ANSWER = msgspec.json.encode(CHAT.answer(REQUEST, 0).whole([PART]))
WARM_UP_EPISODES = 256


async def serve() -> None:
    """Answer every chat immediately; prints the port, and exits when standard input is closed."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


async def run_agents(runner: InlineRunner, tasks: Iterator[Task], concurrency: int, base_url: str) -> None:
    """Run an episode on every task with this concurrency."""

    async def episodes() -> None:
        for task in tasks:
            await runner.run(task, base_url=base_url, api_key="none")

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(episodes())


def measure(runner: asyncio.Runner, episodes: int, concurrency: int, calls: int) -> dict[str, float]:
    """Warm up, then measure `episodes` episodes."""
    dataset = open_dataset("arithmetic", seed=0, held_out=1).train
    agent = InlineRunner.from_name(AGENT, Path.cwd(), {"calls": calls})
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        base_url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        process = psutil.Process(server.pid)
        runner.run(run_agents(agent, map(dataset.task, range(WARM_UP_EPISODES)), concurrency, base_url))
        tasks = map(dataset.task, range(WARM_UP_EPISODES, WARM_UP_EPISODES + episodes))
        began, busy, agents_before, server_before = (
            time.perf_counter(),
            busy_seconds(),
            time.process_time(),
            sum(process.cpu_times()[:2]),
        )
        runner.run(run_agents(agent, tasks, concurrency, base_url))
        seconds, agents = time.perf_counter() - began, time.process_time() - agents_before
        server_seconds = sum(process.cpu_times()[:2]) - server_before
        others = others_share(busy_seconds() - busy, agents + server_seconds, seconds)
        runner.run(agent.close())
        server.stdin.close()
    return {"seconds": seconds, "agents": agents, "server": server_seconds, "others": others}


def main() -> None:
    """Serve, or measure and print."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if sys.argv[1:] == ["serve"]:
            runner.run(serve())
        else:
            print(json.dumps(measure(runner, *map(int, sys.argv[1:]))))


if __name__ == "__main__":
    main()
