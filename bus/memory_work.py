"""Work queues in one process: leases, redelivery, and the return of what a worker leaves behind."""

from __future__ import annotations

import asyncio
from collections import deque

from bus.base import Delivery, Envelope
from bus.delivery import Received
from bus.memory_wire import Lane, Wire
from bus.message import Message, Work


class Job:
    """One item of work and who has it."""

    __slots__ = ("deliveries", "done", "envelope", "expires", "holder")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.deliveries = 0
        self.holder: MemoryWorkQueue | None = None
        self.expires = 0.0
        """When the holder's lease ends, by the event loop's clock."""
        self.done = False


class Shelf:
    """All work of one kind: what waits, what is held, and the workers that wait for some."""

    def __init__(self, wire: Wire, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self._wire = wire
        self._waiting: deque[Job] = deque()
        self._held: dict[Job, None] = {}
        self._workers: list[asyncio.Future[None]] = []
        self._sweep: asyncio.TimerHandle | None = None

    def add(self, envelope: Envelope) -> None:
        """Queue new work."""
        self._wire.send(Lane(self._waits), Job(envelope))

    async def take(self, holder: MemoryWorkQueue, limit: int) -> list[Job]:
        """Wait until there is work and lease at most `limit` items of it."""
        while not self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._workers.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._workers:
                    self._workers.remove(turn)
                else:
                    self._call_worker()
                raise
        return [self._lease(self._waiting.popleft(), holder) for _ in range(min(limit, len(self._waiting)))]

    def _lease(self, job: Job, holder: MemoryWorkQueue) -> Job:
        job.holder = holder
        job.deliveries += 1
        self._held[job] = None
        self.renew(job)
        return job

    def renew(self, job: Job) -> None:
        """The lease begins anew."""
        loop = asyncio.get_running_loop()
        job.expires = loop.time() + self.lease_seconds
        if self._sweep is None:
            self._sweep = loop.call_at(job.expires, self._take_back_expired)

    def finish(self, job: Job) -> None:
        """The work is done, even if its lease had ended: somebody else may be at it now, in vain."""
        job.done = True
        self._held.pop(job, None)
        if job.holder is None and job in self._waiting:
            self._waiting.remove(job)
        if not self._held and self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def give_back(self, job: Job) -> None:
        """Somebody else should take it, before any new work."""
        del self._held[job]
        job.holder = None
        self._wire.send(Lane(self._waits_again), job)

    def held_by(self, holder: MemoryWorkQueue) -> list[Job]:
        """What a worker has and has not finished."""
        return [job for job in self._held if job.holder is holder]

    def _waits(self, job: Job) -> None:
        self._waiting.append(job)
        self._call_worker()

    def _waits_again(self, job: Job) -> None:
        if not job.done:
            self._waiting.appendleft(job)
            self._call_worker()

    def _call_worker(self) -> None:
        while self._waiting and self._workers:
            turn = self._wire.pick(self._workers)
            self._workers.remove(turn)
            if not turn.done():
                turn.set_result(None)
                return

    def _take_back_expired(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = None
        for job in [job for job in self._held if job.expires <= loop.time()]:
            self.give_back(job)
        if self._held:
            self._sweep = loop.call_at(min(job.expires for job in self._held), self._take_back_expired)


class MemoryWorkQueue:
    """One worker's share of the work of one kind."""

    def __init__(self, shelf: Shelf, kind: type[Work]) -> None:
        self.lease_seconds = shelf.lease_seconds
        self._shelf = shelf
        self._kind = kind
        self._in_hand: dict[Job, MemoryWork] = {}

    async def take(self, limit: int) -> list[Delivery]:
        """Wait until there is work, then take at most `limit` items.

        One that this worker still has in hand, since it was kept from renewing the lease in time, has its lease again.
        """
        taken: list[Delivery] = []
        while not taken:
            for job in await self._shelf.take(self, limit):
                if (work := self._in_hand.get(job)) is not None:
                    work.deliveries = job.deliveries
                else:
                    self._in_hand[job] = work = MemoryWork(job, job.envelope.open(self._kind), self._shelf, self)
                    taken.append(work)
        return taken

    def settled(self, job: Job) -> None:
        """The worker is done with an item, or has given it back."""
        self._in_hand.pop(job, None)

    def leave(self) -> None:
        """Give back what is held."""
        self._in_hand.clear()
        for job in self._shelf.held_by(self):
            self._shelf.give_back(job)


class MemoryWork(Received):
    """An item of work in a worker's hands."""

    __slots__ = ("_holder", "_job", "_shelf")

    def __init__(self, job: Job, message: Message, shelf: Shelf, holder: MemoryWorkQueue) -> None:
        super().__init__(job.envelope, message, deliveries=job.deliveries)
        self._job = job
        self._shelf = shelf
        self._holder = holder

    def _is_mine(self) -> bool:
        """Whether the lease still holds and nobody else, nor this worker again, has taken the item since."""
        return self._job.holder is self._holder and self._job.deliveries == self.deliveries and not self._job.done

    async def acknowledge(self) -> None:
        """Take the item out of the queue, for good."""
        self._holder.settled(self._job)
        self._shelf.finish(self._job)

    async def extend(self) -> None:
        """Renew the lease, if it still holds."""
        if self._is_mine():
            self._shelf.renew(self._job)

    async def release(self) -> None:
        """Give the item back, if it is still held."""
        self._holder.settled(self._job)
        if self._is_mine():
            self._shelf.give_back(self._job)
