"""CPU time of a served model's gateway per call with recording, feedback and a candidate, against none of them.

    python benchmarks/gateway_candidate.py [--rounds 9] [--sessions 40] [--calls 10]

Two gateways, each with a bus and two scripted engines, are measured in turn: `plain` has sessions of external agents
and keeps nothing of those without a reward; `all` keeps the conversations, takes feedback on each session, and has a
candidate that answers half of the sessions. `calls` is the gateway's time during the calls; `sessions` also has the
starts, ends and feedback, per call. The ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from gateway_load import Connection, Endpoint, body, calls, connect, cpu_seconds, message
from gateway_system import RUN, GatewaySystem, gateway_system, recipe
from gateway_tokenizer import Texts, tokenizer_folder
from history import append, parse_arguments, table

from areal_actors.core.candidate_settings import CandidateSettings
from areal_actors.core.values import WeightsLocation
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.sessions.keys import feedback_key
from areal_actors.messages import CandidatePublished
from areal_actors.recipe.load import serving_recipe
from areal_actors.recipe.recipe import Recipe

IN_FLIGHT, PROMPT_TOKENS = 8, 500
QUICK = {"rounds": 1, "sessions": 2, "calls": 3}


class Served:
    """A gateway, and the client of its sessions."""

    def __init__(self, system: GatewaySystem, plan: Recipe, folder: RunFolder, *, judges: bool) -> None:
        self.system, self.judges = system, judges
        self.admin, self.feedback = folder.admin_key(plan), feedback_key(folder.secret())
        self.root = ""

    async def post(self, http: aiohttp.ClientSession, path: str, fields: dict[str, Any], key: str) -> dict[str, Any]:
        """Returns the answer of the gateway."""
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"{self.root}{path}", json=fields, headers=headers) as answer:
            answer.raise_for_status()
            return dict(await answer.json())

    async def measure(self, texts: Texts, sessions: int, count: int) -> tuple[float, float]:
        """Returns the gateway's CPU milliseconds per call, during the calls and with all of the sessions."""
        began = cpu_seconds(self.system.pid)
        async with aiohttp.ClientSession() as http:
            started = [
                await self.post(http, "/rl/start_session", {"task_id": "t"}, self.admin) for _ in range(sessions)
            ]
            place = urlsplit(str(started[0]["base_url"]))
            assert place.hostname is not None
            assert place.port is not None
            ends = [Endpoint(place.hostname, place.port, "/v1", str(given["api_key"])) for given in started]
            requests = [
                end.request(body([message("user", texts(PROMPT_TOKENS))])) for _ in range(count) for end in ends
            ]
            connections: list[Connection] = await connect(ends[0], IN_FLIGHT)
            cost = await calls(self.system, requests, connections)
            for connection in connections:
                connection.close()
            for given in started:
                await self.post(http, "/rl/end_session", {}, str(given["api_key"]))
                if self.judges:
                    judged = {"session_id": given["session_id"], "reward": 1.0}
                    await self.post(http, "/rl/feedback", judged, self.feedback)
        return cost.cpu_ms, 1000 * (cpu_seconds(self.system.pid) - began) / len(requests)


def served_recipe(folder: Path, *, has_candidate: bool) -> Recipe:
    """Returns the recipe of a served model with two workers, one with the weights of a candidate if it has one."""
    plan = serving_recipe(recipe(folder))
    workers = msgspec.structs.replace(plan.actors.inference_worker, count=2)
    candidate = CandidateSettings(model="none", share=0.5) if has_candidate else CandidateSettings()
    return msgspec.structs.replace(
        plan,
        actors=msgspec.structs.replace(plan.actors, inference_worker=workers),
        gateway=msgspec.structs.replace(plan.gateway, candidate=candidate),
    )


async def compare(rounds: int, sessions: int, count: int) -> dict[str, tuple[list[float], list[float]]]:
    """Returns the milliseconds of each round, by case: of the plain gateway, and of that with everything on."""
    model, texts = tokenizer_folder(None), Texts(tokenizer_folder(None), None, seed=2)
    figures: dict[str, tuple[list[float], list[float]]] = {"calls": ([], []), "sessions": ([], [])}
    async with AsyncExitStack() as stack:
        served = [await _start(stack, model, judges=judges) for judges in (False, True)]
        for each in served:
            await each.measure(texts, sessions, count)
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                during, whole = await served[side].measure(texts, sessions, count)
                figures["calls"][side].append(during)
                figures["sessions"][side].append(whole)
    return figures


async def _start(stack: AsyncExitStack, model: Path, *, judges: bool) -> Served:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    plan = served_recipe(folder, has_candidate=judges)
    kind = "" if judges else "plain"
    system = await stack.enter_async_context(gateway_system(folder, model, None, 0.0, plan, kind))
    made = Served(system, plan, RunFolder(folder / RUN), judges=judges)
    if judges:
        location = WeightsLocation(folder="other", checksum="", model=str(model))
        await system.publish(
            [CandidatePublished(weight_version=1, location=location, serving_version=0, share=0.5, mode="a/b")]
        )
    (endpoint,) = await system.endpoints(1)
    made.root = f"http://{endpoint.host}:{endpoint.port}"
    await system.abandon_sessions()
    return made


def main() -> None:
    """Print the table, and append it to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--calls", type=int, default=10)
    options = parse_arguments(parser, QUICK)
    figures = asyncio.run(compare(options.rounds, options.sessions, options.calls))
    rows, kept = [], dict[str, float]()
    for case, (plain, every) in figures.items():
        ratio = statistics.median(after / before for before, after in zip(plain, every, strict=True))
        rows.append((case, statistics.median(plain), statistics.median(every), f"{ratio - 1:+.1%}"))
        kept |= {f"{case}_plain_ms": statistics.median(plain), f"{case}_all_ms": statistics.median(every)}
        kept[f"{case}_ratio"] = ratio
    print(table(("CPU ms per call", "plain", "all", "more"), rows))
    if not options.no_history:
        append("gateway_candidate", {"calls": options.calls, "sessions": options.sessions, **kept})


if __name__ == "__main__":
    main()
