"""The machine of the simulated runs, and the best that it can do.

Lengths of answers, decoding in slots, seconds of a step, the ideal.
Time is virtual: nothing here has a clock.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache


@dataclass(frozen=True)
class Machine:
    """One inference worker and one trainer, each on a device of its own."""

    slots: int = 512
    """Completions for which there is memory."""
    token_seconds: float = 0.010
    """Seconds of a decoding step with few completions, each of which gets a token."""
    slot_seconds: float = 0.00002
    """Further seconds of a decoding step for each of its completions."""
    step_seconds: float = 1.5
    """Seconds of an optimizer step, publishing and loading of its weights included."""
    mean_tokens: int = 64
    most_tokens: int = 1024
    """Longer answers are cut."""

    def decoding_seconds(self, completions: int) -> float:
        """Seconds in which each of these completions gets a token."""
        return self.token_seconds + self.slot_seconds * completions

    def tokens(self, seed: int, episode: str, sigma: float) -> int:
        """Length of the answer of an episode, log-normal with this sigma."""
        drawn = random.Random(f"{seed} {episode}").lognormvariate(math.log(self.mean_tokens) - sigma**2 / 2, sigma)
        return min(max(round(drawn), 1), self.most_tokens)


@dataclass
class Decoder:
    """Completions that share an engine: all in a slot get a token in each decoding step, the others wait in order."""

    machine: Machine
    slots: int
    reached: float = 0.0
    """Tokens that a completion would have that had been in a slot from the beginning."""
    at: float = 0.0
    """Time up to which `reached` counts."""
    running: list[tuple[float, int]] = field(default_factory=list)
    """End, by the count of `reached`, and number of each completion in a slot; a heap."""
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Number and tokens of each completion without a slot."""
    begun: dict[int, float] = field(default_factory=dict)
    """`reached` at which each completion got its slot."""
    loads: list[tuple[float, int]] = field(default_factory=list)
    """`reached` at which each version of the weights was loaded."""

    def advance(self, now: float) -> None:
        """Decode until this time, at which no completion may have ended before."""
        if self.running:
            self.reached += (now - self.at) / self.machine.decoding_seconds(len(self.running))
        self.at = now

    def add(self, number: int, tokens: int) -> None:
        """Take a completion."""
        self.waiting.append((number, tokens))
        self._fill()

    def remove(self, number: int) -> None:
        """Stop a completion."""
        self.running = [one for one in self.running if one[1] != number]
        heapq.heapify(self.running)
        self.waiting = deque(one for one in self.waiting if one[0] != number)
        self._fill()

    def load(self, weight_version: int) -> None:
        """Sample all further tokens with these weights."""
        self.loads.append((self.reached, weight_version))

    def next_end(self) -> float:
        """Time at which the next completion ends; infinite if there is none."""
        if not self.running:
            return math.inf
        return self.at + max(self.running[0][0] - self.reached, 0.0) * self.machine.decoding_seconds(len(self.running))

    def take_ended(self) -> list[int]:
        """Numbers of completions that have ended by now, in order."""
        ended = []
        while self.running and self.running[0][0] <= self.reached + 1e-6:
            ended.append(heapq.heappop(self.running)[1])
        self._fill()
        return ended

    def versions(self, number: int, tokens: int) -> list[int]:
        """Version of the weights that sampled each token of an ended completion."""
        begun = self.begun.pop(number)
        before = bisect.bisect_right(self.loads, begun + 1e-6, key=lambda load: load[0])
        first, changes = self.loads[max(before - 1, 0)][1], self.loads[before:]
        places = [min(max(math.floor(reached - begun + 1e-6), 0), tokens) for reached, _ in changes]
        bounds = [0, *places, tokens]
        spans = zip(itertools.pairwise(bounds), [first, *(version for _, version in changes)], strict=True)
        return [version for (start, end), version in spans for _ in range(start, end)]

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            number, tokens = self.waiting.popleft()
            self.begun[number] = self.reached
            heapq.heappush(self.running, (self.reached + tokens, number))


@dataclass(frozen=True)
class Work:
    """Sizes of a run, and its bound."""

    steps: int
    batch_size: int
    group_size: int
    sigma: float
    max_staleness: int
    seed: int = 0


def ideal_seconds(machine: Machine, work: Work) -> float:
    """Seconds from the first grant to the last weights, where nothing but the machine and the staleness bound limits.

    An event simulation of its own, without actors, messages or limits of orchestration: at most
    `(max_staleness + 1) × batch_size` groups are ahead of the weights, which is the bound; all their answers are
    decoded as soon as there is memory; a step begins when the one before has ended and `batch_size` groups are
    complete, whichever. It takes the best of several such runs: under smaller bounds, too, since fewer completions
    decode faster, and with two ends: further groups start until the last batch has begun, or only those that the
    remaining steps need.
    """
    bounds = {bound for bound in (0, 1, 2, 4, 8, work.max_staleness) if bound <= work.max_staleness}
    return min(
        _seconds(machine, replace(work, max_staleness=bound), over=over) for bound in bounds for over in (True, False)
    )


@lru_cache
def _seconds(machine: Machine, work: Work, *, over: bool) -> float:
    decoder = Decoder(machine, machine.slots)
    missing: dict[int, int] = {}
    granted = version = complete = in_batch = 0
    now, trained_at = 0.0, math.inf
    while True:
        wanted = work.batch_size * (
            (work.max_staleness + 1) if over else min(work.max_staleness + 1, work.steps - version)
        )
        last = in_batch > 0 and version == work.steps - 1
        while not last and len(missing) + complete + in_batch < wanted:
            missing[granted] = work.group_size
            for member in range(work.group_size):
                tokens = machine.tokens(work.seed, f"{granted}.{member}", work.sigma)
                decoder.add(granted * work.group_size + member, tokens)
            granted += 1
        if not in_batch and complete >= work.batch_size:
            complete -= work.batch_size
            in_batch, trained_at = work.batch_size, now + machine.step_seconds
            continue
        now = min(trained_at, decoder.next_end())
        decoder.advance(now)
        if now == trained_at:
            version, in_batch, trained_at = version + 1, 0, math.inf
            if version == work.steps:
                return now
        for number in decoder.take_ended():
            group = number // work.group_size
            missing[group] -= 1
            if not missing[group]:
                del missing[group]
                complete += 1
