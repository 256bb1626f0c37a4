"""An actor that receives the same again emits the same again: golden tests of every actor, from tapes of a simulated
run."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest
from support.simulation import Simulation, VirtualTimeLoop
from support.toy_parts import ToyAgent, ToyTrainer

from areal_actors.core.errors import AgentError
from areal_actors.messages import RunStopping
from areal_actors.replay.tape import TapeContext, TapeDifference, replay
from areal_actors.rollout.agent_runner import AgentResult
from areal_bus.base import Envelope, Stamp
from areal_bus.memory import MemoryBus
from areal_bus.recorded import TapeEntry, read_tape

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


STAMP = Stamp(id="m1", sender="test", time=0.0)


class Slow:
    """Emits after it has worked in a thread."""

    async def receive(self, message, _turn):
        await asyncio.to_thread(time.sleep, 0.05)
        yield message


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


def replayed(simulation: Simulation, outcome, name: str, tape: list[TapeEntry]) -> list[TapeDifference]:
    works_in_a_thread = name == "trainer-0"
    loop = asyncio.new_event_loop() if works_in_a_thread else VirtualTimeLoop()

    async def until(time: float) -> None:
        if not works_in_a_thread:
            await asyncio.sleep(max(time - loop.time(), 0))

    async def play() -> list[TapeDifference]:
        agent = SameAgent(MemoryBus(), simulation.seed, 0.0)
        agent.results = outcome.agent.results
        actor = simulation.actors(MemoryBus(), ToyTrainer(), agent)[name]()
        return await replay(actor, tape, instance=name, seed=simulation.seed, until=until)

    try:
        return loop.run_until_complete(play())
    finally:
        loop.close()


@pytest.mark.parametrize("name", FRESH)
def test_replaying_a_tape_emits_what_the_tape_has(taped, name):
    simulation, outcome, tapes = taped
    assert sum(entry.kind == "emitted" for entry in tapes[name]) >= 3
    assert replayed(simulation, outcome, name, tapes[name]) == []


@pytest.mark.parametrize("name", ["staleness_gate-0", "task_source-0", "batcher-0"])
def test_messages_that_a_different_rule_does_not_emit_are_not_waited_for(taped, name, monkeypatch):
    """Each message that is not emitted would be waited for longer than a test may take."""
    tapes = taped[2]
    monkeypatch.setattr("areal_actors.replay.tape.ANSWER_SECONDS", 3600.0)
    silent = Simulation(seed=SEED, max_staleness=0, kills=0)
    actor = silent.actors(MemoryBus(), ToyTrainer(), SameAgent(MemoryBus(), SEED, 0.0))[name]()
    actor.receive = emits_nothing
    emitted_count = sum(entry.kind == "emitted" for entry in tapes[name])
    differences = asyncio.run(replay(actor, tapes[name], instance=name, seed=SEED))
    assert [one.now for one in differences].count("nothing") == len(differences) >= 3
    assert len(differences) <= emitted_count


async def emits_nothing(_message, _turn):
    for never in ():
        yield never


async def test_a_handler_that_waits_for_the_tape_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("areal_actors.replay.tape.ANSWER_SECONDS", 3600.0)
    turn = TapeContext(None, "a-0", Envelope.seal(RunStopping(reason="asked"), STAMP, "run"), 0.0, Random(0), {})
    reading = asyncio.create_task(turn.read([1]))
    assert await turn.next_emitted() is None
    reading.cancel()


async def test_a_handler_that_works_in_a_thread_is_waited_for(monkeypatch):
    turn = TapeContext(Slow(), "a-0", Envelope.seal(RunStopping(reason="asked"), STAMP, "run"), 0.0, Random(0), {})
    handling = asyncio.create_task(turn.handle(RunStopping(reason="asked")))
    assert (await turn.next_emitted()).subject == RunStopping.subject
    await handling
    assert await turn.next_emitted() is None


def test_a_different_rule_shows_where_its_output_differs(taped):
    _, outcome, tapes = taped
    tighter = Simulation(seed=SEED, max_staleness=0)
    assert replayed(tighter, outcome, "staleness_gate-0", tapes["staleness_gate-0"])
