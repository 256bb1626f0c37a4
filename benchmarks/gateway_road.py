"""A call's road through the gateway: the functions that it passes, with their CPU time.

    python benchmarks/gateway_road.py [--warm] [--beside CHECKOUT] [--rounds 10] [--calls 500] [--functions 40]

The gateway of `gateway.py`, with prompts that no call has sent before, or with `--warm` those that another session has.
Its process is sampled (`cpu_samples.py`), and the measured time of a call is divided among the functions by their
samples. With `--beside`, the packages of another checkout are measured in turn with these, each in a gateway of its
own: the speed of a machine varies more than a change makes. `fast` is the floor of `gateway.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import uvloop
from cpu_samples import VARIABLE, CpuSamples
from gateway import FLOOR, IN_FLIGHT, SIBLINGS, Sizes, Workload
from gateway_load import Server, calls, connect
from gateway_system import REST_CORE, GatewaySystem, floor, gateway_system, pin
from gateway_tokenizer import Texts, tokenizer_folder
from history import ROOT, append, parse_arguments, table

START_CALLS = 512
WRITE_SECONDS = 10.0
LONGEST_NAME = 72
HERE, BESIDE = "here", "beside"
STAGES = (
    ("HTTP: aiohttp", ("/aiohttp/", "/multidict/", "/yarl/")),
    (
        "HTTP: the gateway's part",
        ("gateway/server.py", "http_answers", "http_connections", "event_stream", "/plain_", "model_endpoint"),
    ),
    ("dialect", ("gateway/protocols/",)),
    ("template", ("/jinja2/", "<template>", "chat_template", "literal_marks", "markupsafe")),
    ("tokens", ("/tokenization/", "/tiktoken/")),
    ("conversation", ("gateway/conversations/",)),
    ("session", ("gateway/sessions/",)),
    ("call, choice, check, worker", ("areal_actors/gateway/", "core/values.py", "column_check")),
    ("runtime", ("areal_actors/runtime/",)),
    ("bus: the client", ("/nats/", "areal_bus/nats_client", "areal_bus/nats_parser", "areal_bus/nats_connection")),
    ("bus", ("/areal_bus/", "byte_stream_split", "areal_actors/messages/")),
    ("asyncio", ("/asyncio/", "contextlib", "_weakrefset")),
)


def stage_of(function: str) -> str:
    """Returns the part of the road of a function."""
    path = function.rpartition(":")[0]
    return next((name for name, parts in STAGES if any(part in path for part in parts)), "other")


def short_name(function: str) -> str:
    """Returns the function with the last two parts of its path."""
    path, _, name = function.rpartition(":")
    return f"{'/'.join(Path(path).parts[-2:])} {name}"[:LONGEST_NAME]


class Function(NamedTuple):
    """A function of a call's road."""

    name: str
    stage: str


class SampledGateway:
    """A gateway whose calls are sampled."""

    def __init__(self, system: GatewaySystem, path: Path) -> None:
        self.system = system
        self._path = path
        self.microseconds: list[float] = []
        """CPU time of a call, by round."""

    async def measure(self, prompts: list[bytes]) -> None:
        """Send prompts in sessions that are open before, and count the samples of their calls."""
        endpoints = await self.system.endpoints(len(prompts))
        connections = await connect(endpoints[0], IN_FLIGHT)
        requests = [endpoint.request(prompt) for endpoint, prompt in zip(endpoints, prompts, strict=True)]
        self._path.unlink(missing_ok=True)
        os.kill(self.system.pid, signal.SIGUSR2)
        self.microseconds.append(1000 * (await calls(self.system, requests, connections)).cpu_ms)
        os.kill(self.system.pid, signal.SIGUSR2)
        async with asyncio.timeout(WRITE_SECONDS):
            while not self._path.is_file():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
        for connection in connections:
            connection.close()
        await self.system.abandon_sessions()

    def own_times(self) -> dict[Function, float]:
        """Returns the microseconds of a call in each function, the longest first."""
        samples, counts = msgspec.json.decode(self._path.read_bytes(), type=CpuSamples), Counter[Function]()
        for name, count in samples.own.items():
            counts[Function(short_name(name), stage_of(name))] += count
        each = median(self.microseconds) / max(samples.total, 1)
        return {function: count * each for function, count in counts.most_common()}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure in turn; returns the microseconds of a call by side, and by side and function."""
    model = tokenizer_folder(None)
    sizes = Sizes(calls=options.calls, conversations=1, open_sessions=1, many=1, seconds=1.0, repeats=1)
    work = Workload(Texts(model, None, seed=0), sizes)
    checkouts = {HERE: ROOT, **({BESIDE: options.beside} if options.beside else {})}
    async with AsyncExitStack() as stack:
        least = stack.enter_context(floor(FLOOR, model, 0.0))
        sides: dict[str, SampledGateway] = {}
        for side, checkout in checkouts.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            os.environ[VARIABLE] = str(folder / "samples.json")
            system = gateway_system(folder, model, None, 0.0, checkout=checkout)
            sides[side] = SampledGateway(await stack.enter_async_context(system), folder / "samples.json")
        servers: list[Server] = [least, *(side.system for side in sides.values())]
        for server in servers:
            await work.single(server, [work.prompt() for _ in range(min(START_CALLS, sizes.calls))])
        floors = []
        for number in range(options.rounds):
            floors.append(1000 * (await (work.warm if options.warm else work.cold)(least)).cpu_ms)
            for side in list(sides)[:: 1 if number % 2 else -1]:
                prompts = [work.prompt() for _ in range(sizes.calls // (SIBLINGS if options.warm else 1))]
                if options.warm:
                    await work.single(sides[side].system, prompts)
                    prompts *= SIBLINGS
                await sides[side].measure(prompts)
        whole = {FLOOR: median(floors), **{side: median(each.microseconds) for side, each in sides.items()}}
        if BESIDE in sides:
            rounds = zip(sides[HERE].microseconds, sides[BESIDE].microseconds, strict=True)
            whole["here / beside"] = median(here / beside for here, beside in rounds)
        return {"whole": whole, "functions": {side: each.own_times() for side, each in sides.items()}}


def show(
    whole: Mapping[str, float], functions: Mapping[str, Mapping[Function, float]], most: int
) -> dict[str, dict[str, float]]:
    """Print all tables; returns the stages by side."""
    print(table(["us of CPU a call", *whole], [["median of the rounds", *whole.values()]]), end="\n\n")
    stages: dict[str, dict[str, float]] = {side: defaultdict(float) for side in functions}
    for side, times in functions.items():
        for function, microseconds in times.items():
            stages[side][function.stage] += microseconds
    names = sorted(stages[HERE], key=lambda name: -stages[HERE][name])
    rows: list[list[object]] = [[name, *(times[name] for times in stages.values())] for name in names]
    print(table(["stage, us", *stages], rows), end="\n\n")
    first = dict.fromkeys(function for times in functions.values() for function in list(times)[:most])
    rows = [[*function, *(times.get(function, 0.0) for times in functions.values())] for function in first]
    print(table(["function, us", "stage", *functions], rows))
    return stages


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=500, help="in each round")
    parser.add_argument("--functions", type=int, default=40)
    parser.add_argument("--warm", action="store_true", help="prompts that other sessions have sent before")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT")
    options = parse_arguments(parser, {"calls": IN_FLIGHT, "rounds": 1})
    pin(REST_CORE, os.getpid())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(options))
    stages = show(found["whole"], found["functions"], options.functions)
    if not options.no_history:
        append("gateway_road", {"warm": options.warm, "microseconds": found["whole"], "stages": stages})


if __name__ == "__main__":
    main()
