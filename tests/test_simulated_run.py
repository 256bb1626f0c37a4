"""The benchmark's simulated runs: real actors in virtual time, the same figures at every run, near the ideal with
default limits."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MODULES = ("history", "simulated_hardware", "simulated_run", "simulated_cases")
STEPS = 5


@pytest.fixture
def simulated(monkeypatch):
    """The cases and the hardware of the simulation."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("simulated_cases"), importlib.import_module("simulated_hardware")
    for name in MODULES:
        sys.modules.pop(name)


def test_completions_share_the_engine_and_keep_the_versions_that_sampled_them(simulated):
    _, hardware = simulated
    machine = hardware.Machine(token_seconds=1.0, slot_seconds=0.5)
    decoder = hardware.Decoder(machine, slots=2)
    decoder.load(0)
    for number, tokens in enumerate((2, 4, 3)):
        decoder.add(number, tokens)
    assert decoder.next_end() == 4.0, "two tokens of two seconds each: 1 s, and 0.5 s for each of two completions"
    decoder.advance(4.0)
    assert decoder.take_ended() == [0]
    decoder.load(1)
    assert decoder.next_end() == 8.0
    decoder.advance(8.0)
    assert decoder.take_ended() == [1]
    assert decoder.next_end() == 9.5, "one token more, alone"
    decoder.advance(9.5)
    assert decoder.take_ended() == [2]
    assert [decoder.versions(number, tokens) for number, tokens in enumerate((2, 4, 3))] == [
        [0, 0],
        [0, 0, 1, 1],
        [1, 1, 1],
    ]


def test_the_ideal_is_the_time_of_the_steps_where_answers_take_none(simulated):
    _, hardware = simulated
    machine = hardware.Machine(token_seconds=1e-9, slot_seconds=0.0, step_seconds=2.0)
    work = hardware.Work(steps=6, batch_size=4, group_size=2, sigma=0.8, max_staleness=2)
    assert hardware.ideal_seconds(machine, work) == pytest.approx(12.0, abs=1e-4)


@pytest.mark.timeout(300)
def test_the_default_limits_reach_the_ideal_and_every_policy_holds_the_bound(simulated):
    cases, _ = simulated
    first, again = (cases.run(0.8, 2, "mask", STEPS, seed=1) for _ in range(2))
    assert first == again, "the same seed gives the same figures"
    assert first.ideal_share >= 0.97
    limited = cases.run(0.8, 2, "mask", STEPS, 1, "64 episodes a rollout worker")
    assert (limited.lowest_limit, first.lowest_limit) == (64, 384)
    assert limited.ideal_share < first.ideal_share - 0.05
    waited, dropped = (cases.run(1.0, 1, policy, STEPS, 1) for policy in ("wait", "drop"))
    assert waited.outcome.masked == dropped.outcome.masked == 0.0
    assert max(one.outcome.oldest for one in (waited, dropped)) <= 1
    assert first.outcome.surplus > 0
