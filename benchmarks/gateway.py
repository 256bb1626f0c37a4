"""Cost of the gateway: CPU time per call, turn and conversation, added latency, and memory.

    python benchmarks/gateway.py [--quick] [--corpus FILE] [--part costs|latency]

The gateway is real, in a separate process on its own core; NATS server, a scripted engine (64 tokens, after a
configurable delay) and the load generator share the other core. The floors (baselines) alternate with it in the same
run: an aiohttp server that sends a constant (`echo`), one that renders and tokenises every prompt anew with the
tokenizers library (`minimal`) or with the gateway's own executor (`fast`), and a FastAPI version of `minimal`, if
installed. Floors are stateless: no sessions, tokens or records. So are the proxies of others (`gateway_peers.py`), if
installed. A prompt has 500 tokens and an answer 64, in a vocabulary of 24 thousand.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import uvloop
from gateway_load import (
    SYSTEM,
    TEMPLATE_TOKENS,
    Conversation,
    Cost,
    Server,
    agents,
    body,
    calls,
    connect,
    conversations,
    cpu_seconds,
    first_texts,
    message,
)
from gateway_peers import PEERS, Peer, peer
from gateway_process import ANSWER_TOKENS
from gateway_system import REST_CORE, Floor, GatewaySystem, floor, gateway_system, pin, sampled
from gateway_tokenizer import Texts, tokenizer_folder
from history import ROOT, append, busy_seconds, others_share, parse_arguments, table

PROMPT_TOKENS = 500
TURNS, FINAL_TOKENS = 10, 4_080
"""Turns of a conversation, and its tokens at the end."""
MANY_TURNS, SHORT_TOKENS = 50, 100
"""Turns of a long conversation, and tokens of each message except the first."""
IN_FLIGHT = 32
SIBLINGS = 8
"""Number of sessions that send the same prompt."""
DELAY_SECONDS = 1.0
STREAM_DELAY_SECONDS = 0.1
AGENTS = (1, 32, 100, 500)
FLOORS = ("echo", "minimal", "fast", *(["fastapi"] if find_spec("fastapi") and find_spec("uvicorn") else []))
MANY_TURNS_CASE = "many turns"
FLOOR = "fast"
"""Baseline of the multiples."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements."""

    calls: int
    conversations: int
    open_sessions: int
    """Conversations that are open when memory is measured: many, so that caches of constant size matter little."""
    many: int
    """Number of conversations of many turns."""
    seconds: float
    """Duration of the latency measurement, with an engine that takes a second."""
    repeats: int
    agents: tuple[int, ...] = AGENTS
    """Numbers of concurrent agents."""


FULL = Sizes(calls=1500, conversations=150, open_sessions=1000, many=24, seconds=10.0, repeats=3)
NOT_MEASURED = float("nan")
"""Also a CPU time below the clock's resolution, as `--quick` may have."""
QUICK = Sizes(calls=32, conversations=4, open_sessions=4, many=1, seconds=1.0, repeats=1, agents=(2, 8))


class Workload:
    """Requests of the benchmark."""

    def __init__(self, texts: Texts, sizes: Sizes) -> None:
        self.texts = texts
        self.sizes = sizes

    def prompt(self, *, stream: bool = False) -> bytes:
        """Return a body with a new prompt."""
        return body(
            [message("system", SYSTEM), message("user", self.texts(PROMPT_TOKENS - TEMPLATE_TOKENS))], stream=stream
        )

    async def single(self, server: Server, bodies: list[bytes]) -> Cost:
        """Send every body in a separate session."""
        endpoints = await server.endpoints(len(bodies))
        connections = await connect(endpoints[0], IN_FLIGHT)
        requests = [endpoint.request(sent) for endpoint, sent in zip(endpoints, bodies, strict=True)]
        try:
            return await calls(server, requests, connections)
        finally:
            for connection in connections:
                connection.close()

    async def cold(self, server: Server) -> Cost:
        """Send new prompts."""
        return await self.single(server, [self.prompt() for _ in range(self.sizes.calls)])

    async def warm(self, server: Server) -> Cost:
        """Send prompts that other sessions of a group have sent before."""
        fresh = [self.prompt() for _ in range(self.sizes.calls // SIBLINGS)]
        await self.single(server, fresh)
        return await self.single(server, fresh * SIBLINGS)

    async def converse(self, server: Server, count: int, turns: int, later_tokens: int) -> list[float]:
        """Run conversations; returns CPU milliseconds of each turn."""
        lengths = [PROMPT_TOKENS - TEMPLATE_TOKENS, *[later_tokens] * (turns - 1)]
        endpoints = await server.endpoints(count)
        started = [
            Conversation(endpoint, [message("user", self.texts(length)) for length in lengths])
            for endpoint in endpoints
        ]
        connections = await connect(endpoints[0], min(IN_FLIGHT, count))
        try:
            return await conversations(server, started, connections)
        finally:
            for connection in connections:
                connection.close()

    async def ten_turns(self, server: Server, count: int) -> list[float]:
        """Run `count` conversations that grow to thousands of tokens."""
        later = (FINAL_TOKENS - PROMPT_TOKENS - TURNS * ANSWER_TOKENS) // (TURNS - 1)
        return await self.converse(server, count, TURNS, later)

    async def fifty_turns(self, server: Server) -> list[float]:
        """Run long conversations of short messages."""
        return await self.converse(server, self.sizes.many, MANY_TURNS, SHORT_TOKENS)

    async def concurrent_agents(self, server: Server, count: int) -> Cost:
        """Run `count` agents in separate sessions with new prompts, with an engine that takes a second."""
        endpoints = await server.endpoints(count * max(1, int(self.sizes.seconds / DELAY_SECONDS)))
        connections = await connect(endpoints[0], count)
        requests = [
            [endpoint.request(self.prompt()) for endpoint in endpoints[number::count]] for number in range(count)
        ]
        try:
            return await agents(server, requests, connections, DELAY_SECONDS)
        finally:
            for connection in connections:
                connection.close()

    async def streamed(self, server: Server, count: int, at_once: int) -> Cost:
        """Stream `count` answers, a token every 10 ms; latency is that of the first text, minus the engine's delay."""
        endpoints = await server.endpoints(count)
        connections = await connect(endpoints[0], at_once)
        requests = [endpoint.request(self.prompt(stream=True)) for endpoint in endpoints]
        try:
            return await first_texts(server, requests, connections, STREAM_DELAY_SECONDS)
        finally:
            for connection in connections:
                connection.close()


async def measure_costs(work: Workload, folder: Path, model: Path, corpus: Path | None) -> dict[str, Any]:
    """Measure CPU time of all servers, alternating, with an engine that answers immediately."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Floor | Peer] = {kind: stack.enter_context(floor(kind, model, 0.0)) for kind in FLOORS}
        servers |= {kind: stack.enter_context(peer(kind, model)) for kind in PEERS}
        ours = await stack.enter_async_context(gateway_system(folder, model, corpus, 0.0))
        every: list[Server] = [*servers.values(), ours]
        for server in every:
            await work.single(server, [work.prompt() for _ in range(IN_FLIGHT * SIBLINGS)])
        await ours.abandon_sessions()
        pids = [os.getpid(), *ours.pids.values(), *(server.pid for server in servers.values())]
        began, busy, own = time.perf_counter(), busy_seconds(), sum(map(cpu_seconds, pids))
        rounds = [await _measure_round(work, ours, servers) for _ in range(work.sizes.repeats)]
        figures = {server: _medians([one[server] for one in rounds]) for server in rounds[0]}
        own = sum(map(cpu_seconds, pids)) - own
        figures["gateway"]["others"] = others_share(busy_seconds() - busy, own, time.perf_counter() - began)
        figures["gateway"] |= {MANY_TURNS_CASE: await work.fifty_turns(ours)}
    async with gateway_system(folder, model, corpus, 0.0) as ours:
        figures["gateway"] |= await measure_open_sessions(work, ours)
    return figures


async def _measure_round(
    work: Workload, ours: GatewaySystem, servers: Mapping[str, Server]
) -> dict[str, dict[str, Any]]:
    """Measure all servers once."""
    found: dict[str, dict[str, Any]] = {}
    streams = max(IN_FLIGHT, work.sizes.calls // SIBLINGS)
    for kind, server in servers.items():
        found[kind] = {
            "cold": (await work.cold(server)).cpu_ms,
            "streamed": (await work.streamed(server, streams, IN_FLIGHT)).cpu_ms,
        }
        if kind == FLOOR:
            found[kind]["warm"] = (await work.warm(server)).cpu_ms
        if kind != "echo":
            found[kind]["turns"] = await work.ten_turns(server, work.sizes.conversations)
    behind = {name: cpu_seconds(pid) for name, pid in ours.pids.items()}
    found["gateway"] = {"cold": (await work.cold(ours)).cpu_ms}
    for name, before in behind.items():
        # This time includes opening sessions, which is part of the gateway's figure.
        if name != "gateway":
            found["gateway"][name] = 1000 * (cpu_seconds(ours.pids[name]) - before) / work.sizes.calls
    found["gateway"]["warm"] = (await work.warm(ours)).cpu_ms
    found["gateway"]["turns"] = await work.ten_turns(ours, work.sizes.conversations)
    found["gateway"]["streamed"] = (await work.streamed(ours, streams, IN_FLIGHT)).cpu_ms
    await ours.abandon_sessions()
    return found


async def measure_open_sessions(work: Workload, ours: GatewaySystem) -> dict[str, Any]:
    """Measure memory and export cost of open sessions of ten turns."""
    await work.single(ours, [work.prompt() for _ in range(IN_FLIGHT)])
    await ours.abandon_sessions()
    before = ours.resident_bytes()
    await work.ten_turns(ours, work.sizes.open_sessions)
    open_sessions = (ours.resident_bytes() - before) / work.sizes.open_sessions
    busy = cpu_seconds(ours.pid)
    trajectories = await ours.export()
    spent = 1000 * (cpu_seconds(ours.pid) - busy) / len(trajectories)
    return {"mb_per_1000": open_sessions * 1000 / 1e6, "export_ms": spent, **sampled(trajectories)}


def _medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Median of each figure, and of each turn."""
    found: dict[str, Any] = {}
    for name in rounds[0]:
        values = [one[name] for one in rounds]
        found[name] = (
            [statistics.median(turn) for turn in zip(*values, strict=True)]
            if name == "turns"
            else statistics.median(values)
        )
    return found


async def measure_latency(work: Workload, folder: Path, model: Path, corpus: Path | None) -> dict[str, dict[str, Cost]]:
    """Measure latency added to an engine that takes a second, and to one that streams after 0.1 s."""
    found: dict[str, dict[str, Cost]] = {"minimal": {}, "gateway": {}}
    with floor("minimal", model, DELAY_SECONDS) as server:
        await work.concurrent_agents(server, work.sizes.agents[1])
        for count in work.sizes.agents:
            found["minimal"][f"{count} agents"] = await work.concurrent_agents(server, count)
    async with gateway_system(folder, model, corpus, DELAY_SECONDS) as ours:
        await work.concurrent_agents(ours, work.sizes.agents[1])
        for count in work.sizes.agents:
            await ours.abandon_sessions()
            found["gateway"][f"{count} agents"] = await work.concurrent_agents(ours, count)
    with floor("minimal", model, STREAM_DELAY_SECONDS) as server:
        found["minimal"]["first text"] = await work.streamed(server, work.sizes.calls // 2, SIBLINGS)
    async with gateway_system(folder, model, corpus, STREAM_DELAY_SECONDS) as ours:
        found["gateway"]["first text"] = await work.streamed(ours, work.sizes.calls // 2, SIBLINGS)
    return found


PARTS = ("costs", "latency")
MULTIPLES = ("cold", "warm", "streamed", "turns")


def multiples(costs: dict[str, Any]) -> list[list[object]]:
    """Rows of every server's CPU time as multiples of the floor's, in the same run."""

    def total(server: str, case: str) -> float:
        found = costs[server].get(case, NOT_MEASURED)
        return (sum(found) if isinstance(found, list) else found) or NOT_MEASURED

    return [[server, *(total(server, case) / total(FLOOR, case) for case in MULTIPLES)] for server in costs]


def show_costs(costs: dict[str, Any]) -> None:
    """Print the CPU time of calls, and the memory of sessions."""
    header = [
        "CPU ms of the server",
        "call, cold",
        "warm",
        "streamed",
        "ten turns",
        "turn 1",
        "turn 10",
        "tenth / first",
        "calls/s a core",
    ]
    rows: list[list[object]] = []
    for server, found in costs.items():
        turns = found.get("turns") or [NOT_MEASURED] * TURNS
        cold = found["cold"] or NOT_MEASURED
        first = turns[0] or NOT_MEASURED
        figures = [
            cold,
            found.get("warm", NOT_MEASURED),
            found["streamed"],
            sum(turns),
            turns[0],
            turns[-1],
            turns[-1] / first,
            1000 / cold,
        ]
        rows.append([server, *figures])
    print(table(header, rows), end="\n\n")
    print(table(["multiples of " + FLOOR, *MULTIPLES], multiples(costs)), end="\n\n")
    ours = costs["gateway"]
    many = ours[MANY_TURNS_CASE]
    rest = [
        ["turn 1 / 10 / 50 of fifty, CPU ms", " / ".join(f"{many[turn]:.2f}" for turn in (0, 9, MANY_TURNS - 1))],
        ["MB for 1,000 open sessions of ten turns", ours["mb_per_1000"]],
        ["export of a session of ten turns, CPU ms", ours["export_ms"]],
        ["export of a session of ten turns, KB", ours["export_kb"]],
        ["bytes of a trajectory for a sampled token", ours["bytes_per_token"]],
        ["CPU ms of nats-server a call", ours["nats-server"]],
        ["CPU ms of the engine's process a call", ours["inference_worker"]],
        ["others' CPU", ours["others"]],
    ]
    print(table(["gateway", ""], rest), end="\n\n", flush=True)


def show_latency(latency: dict[str, dict[str, Cost]]) -> None:
    """Print the time that the server adds to that of the engine."""
    header = [
        "ms on top of the engine",
        *(f"{server}, {name}" for server in latency for name in ("p50", "p99", "CPU ms")),
    ]
    rows = []
    for case in latency["gateway"]:
        both = [latency[server][case] for server in latency]
        rows.append([case, *(figure for cost in both for figure in (cost.p50_ms, cost.p99_ms, cost.cpu_ms))])
    print(table(header, rows))


async def compare(sizes: Sizes, corpus: Path | None, parts: Sequence[str]) -> dict[str, Any]:
    """Measure the parts; each is printed when it is measured, so that it outlives a stop during the next."""
    figures: dict[str, Any] = {}
    model = tokenizer_folder(corpus)
    work = Workload(Texts(model, corpus, seed=0), sizes)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        if "costs" in parts:
            costs = await measure_costs(work, Path(temporary), model, corpus)
            show_costs(costs)
            figures["costs"] = costs
            figures["ten turns"] = {server: sum(found["turns"]) for server, found in costs.items() if "turns" in found}
            figures["multiples"] = {
                str(server): dict(zip(MULTIPLES, ratios, strict=True)) for server, *ratios in multiples(costs)
            }
        if "latency" in parts:
            figures["latency"] = await measure_latency(work, Path(temporary), model, corpus)
            show_latency(figures["latency"])
    return {"seconds": time.perf_counter() - began, **figures}


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--corpus", type=Path, metavar="FILE", help="source text of prompts (default: Python's standard library)"
    )
    parser.add_argument("--part", choices=PARTS, help="measure only this (default: both)")
    arguments = parse_arguments(parser, {"corpus": ROOT / "LICENSE"})
    pin(REST_CORE, os.getpid())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sizes, parts = QUICK if arguments.quick else FULL, [arguments.part] if arguments.part else PARTS
        figures = runner.run(compare(sizes, arguments.corpus, parts))
    if not arguments.no_history:
        append("gateway", figures)


if __name__ == "__main__":
    main()
