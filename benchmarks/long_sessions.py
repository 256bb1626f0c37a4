"""Cost of a call by the length of its conversation, up to 400 turns and 100,000 tokens: gateway, bus, worker.

    python benchmarks/long_sessions.py [--beside CHECKOUT] [--rounds 3] [--turns 400] [--quick]

The gateway, the bus and the scripted engine of `gateway.py`; conversations grow by 250 tokens with each turn, 64 of
them sampled, and their client sends all messages again with each call, as the SDKs do. The CPU time of each process is
read before and after each call; a figure is the median of the turns around it. With `--beside`, the packages of another
checkout have their turns in alternation with these, each in processes of their own; it must know all settings of this
one, since both read the same recipe.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import uvloop
from gateway_load import TEMPLATE_TOKENS, Connection, Conversation, connect, cpu_seconds, message
from gateway_process import ANSWER_TOKENS
from gateway_system import REST_CORE, GatewaySystem, gateway_system, pin, recipe
from gateway_tokenizer import Texts, tokenizer_folder
from history import ROOT, append, busy_seconds, others_share, parse_arguments, table

FIRST_TOKENS = 500
TURN_TOKENS = 250
"""Tokens by which a turn makes the conversation longer, those of its answer included."""
MARKUP_TOKENS = 8
"""Tokens of the template around a user message."""
CONTEXT = 131_072
SHOWN_TURNS = (1, 10, 100, 400)
REACH = 0.05
"""Share of a turn's number up to which turns beside it count for its figure."""
HERE, BESIDE = "here", "beside"
PROCESSES = ("gateway", "nats-server", "inference_worker")
Costs = dict[str, dict[int, list[float]]]
"""CPU milliseconds by process and turn."""


async def take_turn(system: GatewaySystem, conversation: Conversation, connection: Connection) -> dict[str, float]:
    """Send the next call of a conversation; returns the CPU milliseconds of each process."""
    request = conversation.request()
    before = {name: cpu_seconds(pid) for name, pid in system.pids.items()}
    conversation.add_answer(await connection.post(request))
    return {name: 1000 * (cpu_seconds(pid) - before[name]) for name, pid in system.pids.items()}


async def converse(systems: Mapping[str, GatewaySystem], texts: Texts, turns: int, costs: Mapping[str, Costs]) -> None:
    """Hold the same conversation with each system, turn by turn in alternation."""
    lengths = [FIRST_TOKENS - TEMPLATE_TOKENS, *[TURN_TOKENS - ANSWER_TOKENS - MARKUP_TOKENS] * (turns - 1)]
    user = [message("user", texts(length)) for length in lengths]
    started: dict[str, tuple[Conversation, Connection]] = {}
    for side, system in systems.items():
        (endpoint,) = await system.endpoints(1)
        (connection,) = await connect(endpoint, 1)
        started[side] = Conversation(endpoint, list(user)), connection
    for turn in range(1, turns + 1):
        for side in list(systems)[:: 1 if turn % 2 else -1]:
            for name, spent in (await take_turn(systems[side], *started[side])).items():
                costs[side][name][turn].append(spent)
    for side, system in systems.items():
        started[side][1].close()
        await system.abandon_sessions()


def cost_at(costs: Mapping[int, list[float]], turn: int) -> float:
    """Returns the median of the calls around a turn."""
    reach = int(turn * REACH)
    return median([spent for near in range(turn - reach, turn + reach + 1) for spent in costs.get(near, ())])


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Hold the conversations; returns milliseconds by side, process and turn."""
    model = tokenizer_folder(None)
    checkouts = {HERE: ROOT, **({BESIDE: options.beside} if options.beside else {})}
    costs: dict[str, Costs] = {side: defaultdict(lambda: defaultdict(list)) for side in checkouts}
    async with AsyncExitStack() as stack:
        systems: dict[str, GatewaySystem] = {}
        for side, checkout in checkouts.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            plan = recipe(folder)
            plan = msgspec.structs.replace(
                plan, generation=msgspec.structs.replace(plan.generation, max_model_len=CONTEXT)
            )
            system = gateway_system(folder, model, None, 0.0, plan, checkout=checkout)
            systems[side] = await stack.enter_async_context(system)
        texts = Texts(model, None, seed=0)
        warm_up: dict[str, Costs] = {side: defaultdict(lambda: defaultdict(list)) for side in checkouts}
        for _ in range(options.short):
            await converse(systems, texts, 2, warm_up)
        began, busy = asyncio.get_running_loop().time(), busy_seconds()
        pids = [os.getpid(), *(pid for system in systems.values() for pid in system.pids.values())]
        own = sum(map(cpu_seconds, pids))
        for _ in range(options.rounds):
            for _ in range(options.short):
                await converse(systems, texts, 2, costs)
            await converse(systems, texts, options.turns, costs)
        own = sum(map(cpu_seconds, pids)) - own
        others = others_share(busy_seconds() - busy, own, asyncio.get_running_loop().time() - began)
    shown = [turn for turn in SHOWN_TURNS if turn <= options.turns]
    figures = {
        side: {name: {str(turn): cost_at(each[name], turn) for turn in shown} for name in PROCESSES if name in each}
        for side, each in costs.items()
    }
    for side, each in costs.items():
        for name in figures[side]:
            figures[side][name]["mean"] = mean(spent for turns in each[name].values() for spent in turns)
    return {"cpu_ms": figures, "others": others}


def show(figures: Mapping[str, Mapping[str, Mapping[str, float]]], others: float) -> None:
    """Print the table."""
    turns = list(next(iter(next(iter(figures.values())).values())))
    rows: list[list[object]] = [
        [f"{name}, {side}", *(figures[side][name][turn] for turn in turns)]
        for name in PROCESSES
        for side in figures
        if name in figures[side]
    ]
    print(table(["CPU ms of a call at turn", *turns], rows), end="\n\n")
    print(f"others' CPU {others:.0%}")


def main() -> None:
    """Measure, print, append to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=400, help="of the longest conversation of a round")
    parser.add_argument("--short", type=int, default=40, help="conversations of two turns in each round")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT")
    options = parse_arguments(parser, {"rounds": 1, "turns": 10, "short": 4})
    pin(REST_CORE, os.getpid())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure(options))
    show(figures["cpu_ms"], figures["others"])
    if not options.no_history:
        append("long_sessions", figures)


if __name__ == "__main__":
    main()
