"""An actor that heard the same again says the same again: golden tests of every actor, from tapes of a simulated run."""

from __future__ import annotations

import asyncio

import pytest
from simulation import Simulation, ToyAgent, ToyTrainer, VirtualTimeLoop

from areal_actors.agent_runners.agent_runner import AgentResult
from areal_actors.errors import AgentError
from areal_actors.replay import Difference, replay
from bus.memory import MemoryBus
from bus.recorded import TapeEntry, read_tape

SEED = 11
FRESH = [
    "staleness_gate-0",
    "task_source-0",
    "batcher-0",
    "evaluator-0",
    "session_manager-0",
    "rollout_worker-0",
    "reward_worker-0",
    "inference_worker-0",
    "trainer-0",
]


@pytest.fixture(scope="module")
def taped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tapes")
    simulation = Simulation(seed=SEED, kills=0, tapes=folder)
    outcome = simulation.run()
    return simulation, outcome, {name: list(read_tape(folder / f"{name}.tape")) for name in FRESH}


class SameAgent(ToyAgent):
    """Returns what the agent of the recorded run returned."""

    async def run(self, task, *, base_url, api_key):
        result = self.results.get(base_url.split("/")[3])
        if result is None:
            await asyncio.sleep(10_000)
        if isinstance(result, AgentError):
            raise result
        assert isinstance(result, AgentResult)
        return result


def replayed(simulation: Simulation, outcome, name: str, tape: list[TapeEntry]) -> list[Difference]:
    works_in_a_thread = name == "trainer-0"
    loop = asyncio.new_event_loop() if works_in_a_thread else VirtualTimeLoop()

    async def until(time: float) -> None:
        if not works_in_a_thread:
            await asyncio.sleep(max(time - loop.time(), 0))

    async def play() -> list[Difference]:
        agent = SameAgent(MemoryBus(), simulation.seed, 0.0)
        agent.results = outcome.agent.results
        actor = simulation.actors(MemoryBus(), ToyTrainer(), agent)[name]()
        return await replay(actor, tape, instance=name, seed=simulation.seed, until=until)

    try:
        return loop.run_until_complete(play())
    finally:
        loop.close()


@pytest.mark.parametrize("name", FRESH)
def test_replaying_a_tape_says_what_the_tape_says(taped, name):
    simulation, outcome, tapes = taped
    assert sum(entry.kind == "said" for entry in tapes[name]) >= 3
    assert replayed(simulation, outcome, name, tapes[name]) == []


def test_a_different_rule_shows_where_it_would_have_said_something_else(taped):
    _, outcome, tapes = taped
    tighter = Simulation(seed=SEED, max_staleness=0)
    assert replayed(tighter, outcome, "staleness_gate-0", tapes["staleness_gate-0"])
