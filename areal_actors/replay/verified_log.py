"""One pass over the log of a checkpoint: its hash chain, its audit, and what is drawn from it to be computed again."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import msgspec

from areal_actors.messages import (
    CheckpointCommitted,
    EpisodeScored,
    RunForked,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.proof.chain import LogChain
from areal_actors.reader.audit_command import Auditor
from areal_bus.base import Envelope
from areal_bus.errors import CorruptMessage

KINDS = {
    kind.subject: kind
    for kind in (
        *(CheckpointCommitted, EpisodeScored, RunForked, RunResumed, RunStarted),
        *(StepCompleted, TrajectoryExported, WeightsPublished),
    )
}


class VerifiedLog:
    """Feed it the events of a log in order, up to that of the checkpoint's proof."""

    def __init__(self, completions: int, random: Random) -> None:
        """`completions`: number of scored episodes to draw at random."""
        self.chain, self.auditor = LogChain(), Auditor()
        self.heads: dict[int, str] = {}
        """Head of the chain after each event that committed a checkpoint."""
        self.forks: list[RunForked] = []
        self.recipe: dict[str, object] = {}
        self.saved: dict[int, CheckpointCommitted] = {}
        """By step."""
        self.published: dict[int, str] = {}
        """Checksum of each version."""
        self.steps: dict[int, StepCompleted] = {}
        self.scored = 0
        """Scored training episodes."""
        self.drawn: list[Envelope] = []
        """Those to score again."""
        self.faults: list[str] = []
        self._completions, self._random = completions, random
        self._all_heads = bytearray()
        """Digests of the chain after each event, one after another."""
        self._rewards: dict[tuple[str, int], float] = {}

    def receive(self, envelope: Envelope) -> None:  # noqa: C901 - one line for each kind
        """Receive the next event."""
        self.chain.add(envelope)
        self._all_heads += bytes.fromhex(self.chain.head)
        self.auditor.envelope(envelope)
        if (kind := KINDS.get(envelope.subject)) is None:
            return
        try:
            message = envelope.open(kind)
        except CorruptMessage:
            return  # the audit has it
        match message:
            case RunStarted() | RunResumed():
                self.recipe = message.recipe
            case RunForked():
                self.forks.append(message)
            case CheckpointCommitted():
                self.saved[message.step] = message
                self.heads[envelope.sequence] = self.chain.head
            case WeightsPublished():
                self.published.setdefault(message.weight_version, message.location.checksum)
            case StepCompleted():
                self.steps.setdefault(message.step, message)
                if message.weights_checksum:  # of a run on examples, which publishes its first weights alone
                    self.published.setdefault(message.step, message.weights_checksum)
            case EpisodeScored() if message.work.purpose == "train" and message.reward is not None:
                self._draw(envelope, message)
            case TrajectoryExported():
                self._compare_reward(envelope.sequence, message)

    def head_after(self, sequence: int) -> str:
        """Returns the head of the chain after an event of a log that begins with event 1."""
        size = sha256().digest_size
        return self._all_heads[(sequence - 1) * size : sequence * size].hex()

    def _draw(self, envelope: Envelope, event: EpisodeScored) -> None:
        """Keep each scored episode with equal probability (reservoir sampling)."""
        if not (event.spans or event.places) and event.reward is not None:
            self._rewards[(event.work.episode, event.work.attempt)] = event.reward
        self.scored += 1
        if len(self.drawn) < self._completions:
            self.drawn.append(envelope)
        elif (place := self._random.randrange(self.scored)) < self._completions:
            self.drawn[place] = envelope

    def _compare_reward(self, sequence: int, event: TrajectoryExported) -> None:
        trajectory = event.trajectory
        scored = self._rewards.pop((trajectory.episode, trajectory.attempt), None)
        if scored is not None and scored != trajectory.reward:
            self.faults.append(
                f"event {sequence}: episode {trajectory.episode} was exported with reward {trajectory.reward!r}, but"
                f" scored with {scored!r}"
            )


class Stretches(msgspec.Struct, frozen=True):
    """Steps that are drawn to be computed again, and the stretches that have them."""

    drawn: tuple[int, ...]
    by_start: dict[int, int]
    """Last step of each stretch, by the step of the kept state that it begins with."""

    def computed(self) -> int:
        """Returns the number of steps that are computed, drawn or on the way to those."""
        return sum(last - start for start, last in self.by_start.items())


def draw_steps(step: int, kept: set[int], count: int, random: Random) -> Stretches:
    """Draw `count` steps up to a checkpoint, and find the kept state from which each is reached.

    The last is always computed, beside those: it made the checkpoint.

    Args:
        step: that of the checkpoint.
        kept: steps of kept states before it; 0 is the initial model.
        count: number of steps to draw, with replacement as in the probability of a miss.
        random: generator of the draws.
    """
    drawn = tuple(sorted(random.randint(1, step) for _ in range(count)))
    by_start: dict[int, int] = {}
    for one in (*drawn, step):
        start = max(state for state in kept if state < one)
        by_start[start] = max(by_start.get(start, 0), one)
    return Stretches(drawn, by_start)
