"""Rewards per second of one process, by kind of reward, on realistic answers: right, wrong, and with working.

    python benchmarks/rewards.py [--seconds 2] [--model FOLDER]

Rules are called in this process, as in a reward process; `through the pool` uses one child process. With the folder of
a trained reward model its scores are measured too: sequentially, and with 64 concurrent requests.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from history import append, parse_arguments

from areal_actors.rewards import resolve_reward
from areal_actors.rewards.reward_model import ModelScorer, SequenceClassifier
from areal_actors.rewards.reward_pool import RewardPool
from areal_actors.rewards.settings import RewardModelSettings

WORKING = "Natalia sold 48 / 2 = 24 clips in May. Together she sold 48 + 24 = 72 clips.\n"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
PROGRAM = "```python\ndef add(a, b):\n    return a {} b\n```"
DOUBLE = [{"input": str(number), "output": str(2 * number)} for number in range(4)]
CASES: Mapping[str, tuple[str, dict[str, Any], list[str]]] = {
    "gsm8k": ("gsm8k", {"answer": f"{WORKING}#### 72"}, [f"{WORKING}#### {number}" for number in (72, 71)]),
    "math, numbers": (
        "math",
        {"answer": "72"},
        [f"{WORKING}The answer is \\boxed{{{number}}}." for number in range(60, 80)],
    ),
    "math, expressions": (
        "math",
        {"answer": r"\frac{x+1}{2}"},
        [rf"So $y = \boxed{{\frac{{x}}{{2}} + \frac{{{n}}}{{2}}}}$." for n in range(20)],
    ),
    "json_schema": ("json_schema", {"schema": PERSON}, [json.dumps({"name": "Ann", "age": age}) for age in (7, "7")]),
    "python_tests, 1 assertion": (
        "python_tests",
        {"tests": ["assert add(1, 2) == 3"]},
        [PROGRAM.format(sign) for sign in "+-"],
    ),
    "python_tests, 4 programs": ("python_tests", {"tests": DOUBLE}, ["print(int(input()) * 2)"]),
}
"""The reward, a task, and outputs that are scored in turn."""


def per_second(score: Callable[[str], object], outputs: list[str], seconds: float) -> float:
    """Calls of `score` per second; the first call of each output is not counted."""
    for output in outputs:
        score(output)
    started = time.perf_counter()
    for calls, output in enumerate(itertools.cycle(outputs), start=1):
        score(output)
        if (passed := time.perf_counter() - started) > seconds:
            return calls / passed
    raise AssertionError


async def measure_pool(seconds: float) -> float:
    """Scores per second of one reward process under full load."""
    _, task, outputs = CASES["gsm8k"]
    pool = RewardPool("gsm8k", workers=1, timeout_seconds=10.0)
    await pool.score(task, outputs[0])
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        await asyncio.gather(*(pool.score(task, output) for output in outputs * 4))
        calls += 4 * len(outputs)
    passed = time.perf_counter() - started
    await pool.close()
    return calls / passed


async def measure_model(folder: str, together: int, seconds: float) -> float:
    """Scores per second of a reward model with `together` concurrent requests."""
    settings = RewardModelSettings()
    scorer = ModelScorer("model", SequenceClassifier(folder, settings), settings, timeout_seconds=60.0)
    task = {"question": "How many clips did Natalia sell?"}
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        await asyncio.gather(*(scorer.score(task, f"{WORKING}#### {number}") for number in range(together)))
        calls += together
    passed = time.perf_counter() - started
    await scorer.close()
    return calls / passed


def measure(model: str, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield each case with its scores per second."""
    for name, (reward, task, outputs) in CASES.items():
        yield name, per_second(partial(resolve_reward(reward), task), outputs, seconds)
    yield "gsm8k, through the pool", asyncio.run(measure_pool(seconds))
    for together in (1, 64) if model else ():
        yield f"model, {together} at a time", asyncio.run(measure_model(model, together, seconds))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="per line of the table (default 2)")
    parser.add_argument("--model", default="", help="folder of a trained reward model")
    options = parse_arguments(parser, {"seconds": 0.02})
    print("| reward | per second and process |\n|---|---|")
    rates: dict[str, float] = {}
    for name, rate in measure(options.model, options.seconds):
        rates[name] = rate
        print(f"| {name} | {rate:,.0f} |", flush=True)
    if not options.no_history:
        append("rewards", {"seconds": options.seconds, "per_second": rates})


if __name__ == "__main__":
    main()
