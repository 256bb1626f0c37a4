"""Work queues in one process, with leases, redelivery and release of items when their worker leaves."""

from __future__ import annotations

import asyncio
from collections import deque

from areal_bus.base import Delivery, Envelope
from areal_bus.delivery import Received
from areal_bus.memory_network import Lane, Network
from areal_bus.message import Message, Work


class Job:
    """One work item and its lease."""

    __slots__ = ("deliveries", "done", "envelope", "expires", "holder")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.deliveries = 0
        self.holder: MemoryWorkQueue | None = None
        self.expires = 0.0
        """End of the holder's lease, by the event loop's clock."""
        self.done = False


class LocalWorkQueue:
    """All work of one kind: queued items, leased items, and waiting workers."""

    def __init__(self, network: Network, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self._network = network
        self._waiting: deque[Job] = deque()
        self._held: dict[Job, None] = {}
        self._workers: list[asyncio.Future[None]] = []
        self._sweep: asyncio.TimerHandle | None = None

    def add(self, envelope: Envelope) -> None:
        """Queue a new work item."""
        self._network.send(Lane(self._append), Job(envelope))

    async def take(self, holder: MemoryWorkQueue, limit: int) -> list[Job]:
        """Wait until there is work and lease at most `limit` items of it."""
        while not self._waiting:
            woken = asyncio.get_running_loop().create_future()
            self._workers.append(woken)
            try:
                await woken
            except asyncio.CancelledError:
                if woken in self._workers:
                    self._workers.remove(woken)
                else:
                    self._wake_worker()
                raise
        return [self._lease(self._waiting.popleft(), holder) for _ in range(min(limit, len(self._waiting)))]

    def _lease(self, job: Job, holder: MemoryWorkQueue) -> Job:
        job.holder = holder
        job.deliveries += 1
        self._held[job] = None
        self.renew(job)
        return job

    def renew(self, job: Job, seconds: float = 0.0) -> None:
        """Renew the lease of a work item, for `seconds` where they are more than `lease_seconds`."""
        loop = asyncio.get_running_loop()
        job.expires = loop.time() + max(seconds, self.lease_seconds)
        if self._sweep is None:
            self._sweep = loop.call_at(job.expires, self._release_expired)

    def finish(self, job: Job) -> None:
        """Remove a finished work item, even if its lease has expired and another worker has it now."""
        job.done = True
        self._held.pop(job, None)
        if job.holder is None and job in self._waiting:
            self._waiting.remove(job)
        if not self._held and self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def release(self, job: Job) -> None:
        """Return a work item to the head of the queue."""
        del self._held[job]
        job.holder = None
        self._network.send(Lane(self._append_first), job)

    def items_held_by(self, holder: MemoryWorkQueue) -> list[Job]:
        """Returns the unfinished work items that a worker has leased."""
        return [job for job in self._held if job.holder is holder]

    def _append(self, job: Job) -> None:
        self._waiting.append(job)
        self._wake_worker()

    def _append_first(self, job: Job) -> None:
        if not job.done:
            self._waiting.appendleft(job)
            self._wake_worker()

    def _wake_worker(self) -> None:
        while self._waiting and self._workers:
            woken = self._network.pick(self._workers)
            self._workers.remove(woken)
            if not woken.done():
                woken.set_result(None)
                return

    def _release_expired(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = None
        for job in [job for job in self._held if job.expires <= loop.time()]:
            self.release(job)
        if self._held:
            self._sweep = loop.call_at(min(job.expires for job in self._held), self._release_expired)


class MemoryWorkQueue:
    """One worker's view of the queue of work of one kind."""

    def __init__(self, queue: LocalWorkQueue, kind: type[Work]) -> None:
        self.lease_seconds = queue.lease_seconds
        self._queue = queue
        self._kind = kind
        self._leased: dict[Job, MemoryWork] = {}

    async def take(self, limit: int) -> list[Delivery]:
        """Wait until there is work, then take at most `limit` items.

        An item that this worker still processes, but whose lease expired, is leased to it again without another
        delivery.
        """
        taken: list[Delivery] = []
        while not taken:
            for job in await self._queue.take(self, limit):
                if (work := self._leased.get(job)) is not None:
                    work.deliveries = job.deliveries
                else:
                    self._leased[job] = work = MemoryWork(job, job.envelope.open(self._kind), self._queue, self)
                    taken.append(work)
        return taken

    def record_settled(self, job: Job) -> None:
        """Record that an item was acknowledged or released."""
        self._leased.pop(job, None)

    def leave(self) -> None:
        """Release all leased items."""
        self._leased.clear()
        for job in self._queue.items_held_by(self):
            self._queue.release(job)


class MemoryWork(Received):
    """A work item leased by a worker."""

    __slots__ = ("_holder", "_job", "_queue")

    def __init__(self, job: Job, message: Message, queue: LocalWorkQueue, holder: MemoryWorkQueue) -> None:
        super().__init__(job.envelope, message, deliveries=job.deliveries)
        self._job = job
        self._queue = queue
        self._holder = holder

    def _has_lease(self) -> bool:
        """True if this delivery's lease is valid: the item was not delivered again, to any worker."""
        return self._job.holder is self._holder and self._job.deliveries == self.deliveries and not self._job.done

    async def acknowledge(self) -> None:
        """Remove the item from the queue permanently."""
        self._holder.record_settled(self._job)
        self._queue.finish(self._job)

    async def extend(self, seconds: float = 0.0) -> None:
        """Renew the lease, if it is still valid."""
        if self._has_lease():
            self._queue.renew(self._job, seconds)

    async def release(self) -> None:
        """Release the item, if its lease is still valid."""
        self._holder.record_settled(self._job)
        if self._has_lease():
            self._queue.release(self._job)
