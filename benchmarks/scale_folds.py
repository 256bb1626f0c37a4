"""CPU time of one event in the folds that every episode meets, by the number of groups in flight.

It should not depend on it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from areal_actors.batching.assembler import BatchAssembler, BatcherConfig, TrajectoryInfo
from areal_actors.core.values import SamplingParams, Task
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.worker_pool import WorkerPool
from areal_actors.messages import RunEpisode
from areal_actors.staleness.ledger import Ledger

GROUP_SIZE = 4
BATCHES_IN_FLIGHT = 10
MAX_STALENESS = BATCHES_IN_FLIGHT + 2
NO_END = 10**9
CONFIG = BatcherConfig()
Ending = tuple[int, int]
"""Group and member of an episode that ends."""


class Endings:
    """Ends of random episodes of the groups in flight; a new group replaces one whose episodes have all ended."""

    def __init__(self, groups: int) -> None:
        self.dice = random.Random(0)
        self.running = [(number, member) for number in range(groups) for member in range(GROUP_SIZE)]
        self.left = dict.fromkeys(range(groups), GROUP_SIZE)
        self.granted = groups

    def __iter__(self) -> Iterator[Ending]:
        while True:
            place = self.dice.randrange(len(self.running))
            self.running[place], self.running[-1] = self.running[-1], self.running[place]
            number, member = self.running.pop()
            yield number, member
            self.left[number] -= 1
            if not self.left[number]:
                del self.left[number]
                self.running += [(self.granted, one) for one in range(GROUP_SIZE)]
                self.left[self.granted] = GROUP_SIZE
                self.granted += 1


def ledger_event(groups: int) -> Callable[[Ending], None]:
    """The end of an episode in the gate's ledger, with the next grant."""
    batch_size = max(groups // BATCHES_IN_FLIGHT, 1)
    state = {"ledger": Ledger(group_size=GROUP_SIZE, weight_version=0).grant(groups)}

    def event(ending: Ending) -> None:
        number, member = ending
        ledger = state["ledger"].episode_ended(number, f"{number}.{member}", exported=True)
        ledger.free_groups(MAX_STALENESS, NO_END, batch_size, NO_END)
        if number not in ledger.running:
            ledger = ledger.grant(1)
        if len(ledger.complete) >= batch_size:
            ledger = ledger.batch_formed(frozenset(ledger.complete)).weights_published(ledger.weight_version + 1)
        state["ledger"] = ledger

    return event


def assembler_event(groups: int) -> Callable[[Ending], None]:
    """The end of an episode in the batch assembler, with the check of complete groups and the next batch."""
    batch_size = max(groups // BATCHES_IN_FLIGHT, 1)
    state = {"assembler": BatchAssembler(group_size=GROUP_SIZE, weight_version=0)}

    def event(ending: Ending) -> None:
        number, member = ending
        assembler, version = state["assembler"], state["assembler"].weight_version
        info = TrajectoryInfo(
            episode=f"{number}.{member}", sequence=1, oldest_version=version, newest_version=version, tokens=16
        )
        assembler = assembler.add_trajectory(number, info)
        assembler = assembler.without(assembler.to_drop(CONFIG, MAX_STALENESS))
        if batch := assembler.next_batch(batch_size):
            assembler = assembler.form_batch(batch).weights_published(version + 1)
        state["assembler"] = assembler

    return event


def session_event(groups: int) -> Callable[[Ending], None]:
    """An episode's session in the gateway's table: its call begins and ends, it closes, and another opens."""
    registry = SessionRegistry(b"secret")

    def opened(name: str) -> Session:
        work = RunEpisode(episode=name, group="0", task=Task(id="0", data={}), sampling=SamplingParams())
        session = Session(id=name, api_key=name, work=work, lease_seconds=60.0, expires=0.0)
        registry.open(session)
        return session

    live = [opened(str(number)) for number in range(groups * GROUP_SIZE)]

    def event(ending: Ending) -> None:
        place = ending[0] % len(live)
        session = registry.update(registry.get(live[place].id).begin_call(0.0))
        registry.close(registry.update(session.end_call(0.0)), finished=True)
        live[place] = opened(f"{session.id}+")

    return event


def pool_event(workers: int) -> Callable[[Ending], None]:
    """The choice of an inference worker for a model call."""
    pool = WorkerPool()
    for worker in range(workers):
        pool.record_load(f"inference_worker-{worker}", 0)

    async def call(session: str) -> None:
        with pool.count_call(await pool.choose(1.0, session), session):
            pass

    def event(ending: Ending) -> None:
        coroutine = call(str(ending))
        try:
            coroutine.send(None)
        except StopIteration:
            return

    return event


def load_event(workers: int) -> Callable[[Ending], None]:
    """A load of weights by one of the inference workers, in a gateway that knows many sessions."""
    pool = WorkerPool()
    for worker in range(workers):
        pool.record_load(f"inference_worker-{worker}", 0)

    async def fill() -> None:
        for session in range(16_384):
            with pool.count_call(f"inference_worker-{session % workers}", str(session)):
                pass

    asyncio.run(fill())
    loading = itertools.cycle(range(workers))

    def event(ending: Ending) -> None:  # noqa: ARG001 - workers load, whichever episode ends
        pool.record_load(f"inference_worker-{next(loading)}", 1)

    return event


FOLDS: dict[str, Callable[[int], Callable[[Ending], None]]] = {
    "ledger": ledger_event,
    "assembler": assembler_event,
    "session": session_event,
    "choice of a worker": pool_event,
    "weights loaded": load_event,
}


def microseconds(fold: str, groups: int, events: int) -> float:
    """CPU microseconds of one event with this number of groups in flight.

    For the last two, with this number of inference workers.
    """
    event, endings = FOLDS[fold](groups), iter(Endings(groups))
    for _ in range(GROUP_SIZE * groups if fold in ("ledger", "assembler") else 0):
        event(next(endings))
    drawn = [next(endings) for _ in range(events)]
    began = time.process_time()
    for ending in drawn:
        event(ending)
    return 1e6 * (time.process_time() - began) / events


def measure(groups: list[int], workers: list[int], events: int) -> list[dict[str, Any]]:
    """A case for each fold and number."""
    return [
        {"fold": fold, "at": number, "us": round(microseconds(fold, number, events), 2)}
        for fold in FOLDS
        for number in (workers if fold in ("choice of a worker", "weights loaded") else groups)
    ]
