"""CPU time of one model call in the agent's process: the OpenAI SDK beside the light client.

    python benchmarks/client.py [--calls 1500] [--concurrency 16] [--repeats 5]

Both call the same aiohttp server, which answers immediately, in the same process, in turn. The SDK has one client for
all calls, over aiohttp, as agents of a run share it; the light client is made anew for each call, as the agents that
come with the repository make it for each episode. The server is another process, so that only the client is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import uvloop
from history import append, parse_arguments, table

from areal_actors.client import LightClient

QUICK = {"calls": 40, "concurrency": 4, "repeats": 1}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"order": {"type": "string"}}}},
}
TURN = [{"role": "user", "content": "And then? " * 8}, {"role": "assistant", "content": "Nothing. " * 8}]
CASES: dict[str, dict[str, Any]] = {
    "one turn": {"messages": TURN[:1]},
    "ten turns, a tool": {"messages": [*TURN * 9, TURN[0]], "tools": [TOOL]},
}

Call = Callable[[dict[str, Any]], Awaitable[Any]]


@contextmanager
def served() -> Iterator[str]:
    """A server that answers every chat immediately; yields its base URL."""
    command = [sys.executable, str(Path(__file__).with_name("orchestration_floor.py")), "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        server.stdin.close()


def sdk_call(base_url: str, http_client: Any) -> Call:
    """Returns a call of the OpenAI SDK."""
    shared = openai.AsyncOpenAI(base_url="http://localhost", api_key="given per episode", max_retries=0)

    async def call(fields: dict[str, Any]) -> Any:
        client = shared.with_options(base_url=base_url, api_key="none", http_client=http_client)
        return await client.chat.completions.create(model="default", **fields)

    return call


def light_call(base_url: str) -> Call:
    """Returns a call of the light client."""

    async def call(fields: dict[str, Any]) -> Any:
        client = LightClient(base_url=base_url, api_key="none", max_retries=0, timeout=None)
        return await client.chat.completions.create(model="default", **fields)

    return call


async def cpu_milliseconds(call: Call, fields: dict[str, Any], calls: int, concurrency: int) -> float:
    """CPU milliseconds of this process for each call."""

    async def make_calls() -> None:
        for _ in range(calls // concurrency):
            answer = await call(fields)
            assert answer.choices[0].message.content

    began = time.process_time()
    await asyncio.gather(*(make_calls() for _ in range(concurrency)))
    return 1000 * (time.process_time() - began) / (calls // concurrency * concurrency)


async def measure(calls: int, concurrency: int, repeats: int) -> list[dict[str, Any]]:
    """Alternate both clients; returns medians of each case."""
    limits = openai.Timeout(None, connect=10.0)
    with served() as base_url:
        async with openai.DefaultAioHttpClient(timeout=limits, trust_env=False) as http_client:
            clients = {"sdk": sdk_call(base_url, http_client), "light": light_call(base_url)}
            cases = []
            for name, fields in CASES.items():
                found: dict[str, list[float]] = {client: [] for client in clients}
                for call in clients.values():
                    await cpu_milliseconds(call, fields, calls // 4, concurrency)
                for _ in range(repeats):
                    for client, call in clients.items():
                        found[client].append(await cpu_milliseconds(call, fields, calls, concurrency))
                ratio = statistics.median(light / sdk for light, sdk in zip(found["light"], found["sdk"], strict=True))
                medians = {f"{client}_cpu_ms": round(statistics.median(found[client]), 3) for client in clients}
                cases.append({"case": name, **medians, "ratio": round(ratio, 3)})
    return cases


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1500, help="of each client in each repeat")
    parser.add_argument("--concurrency", type=int, default=16, help="calls in flight at once")
    parser.add_argument("--repeats", type=int, default=5, help="number of alternations")
    arguments = parse_arguments(parser, QUICK)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cases = runner.run(measure(arguments.calls, arguments.concurrency, arguments.repeats))
    header = ["CPU ms a call", "OpenAI SDK", "light client", "ratio"]
    print(table(header, [[case["case"], case["sdk_cpu_ms"], case["light_cpu_ms"], case["ratio"]] for case in cases]))
    if not arguments.no_history:
        append("client", {"cases": cases})


if __name__ == "__main__":
    main()
