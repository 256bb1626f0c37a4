"""Pods that `[autoscale]` adds to a run on Kubernetes.

There is one Job for each role, whose `parallelism` follows the decisions. Kubernetes starts and ends the pods: of too
many, first those that have not started, then the newest. What was followed is in the Job itself, number and time of the
decision in one change, so that a follower that is started again goes on from there.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Final, Protocol

from areal_actors.core.errors import SetupError
from areal_actors.hosts.launchers.decision_reader import DecisionReader, ScaleChange
from areal_actors.hosts.launchers.kubernetes_api import MAKE_MISSING, JobRequestRefused, KubernetesJob
from areal_actors.hosts.launchers.plan import LaunchPlan

LOOK_SECONDS: Final = 1.0
"""Longest wait for a decision before Jobs are looked at."""
CHECK_SECONDS: Final = 30.0
"""Time after which a Job is read again, which may have been changed by hand, or replaced."""
RETRY_SECONDS: Final = 5.0
"""Time between two attempts at a request that failed."""
DISMISS_SECONDS: Final = 30.0
"""Time limit of the attempts to end all added pods, at the end of the run."""
NOT_FOUND: Final = 404


class Jobs(Protocol):
    """Reads and changes Jobs; both raise a SetupError with the remedy."""

    def read(self, name: str) -> KubernetesJob:
        """Returns a Job."""
        ...

    def change(self, name: str, parallelism: int, followed: float) -> None:
        """Set the number of its pods, and the time of the decision that it follows."""
        ...


@dataclass
class _Role:
    """Added workers of a role."""

    job: str
    most: int
    """Largest number of them."""
    pending: list[ScaleChange] = field(default_factory=list)
    """Decisions that wait until the Job was read for the first time."""
    wanted: int | None = None
    """Number of pods; None until the Job was read."""
    since: float = 0.0
    """Time of the last decision that the Job followed when it was read for the first time."""
    followed: float = 0.0
    """Time of the last decision that `wanted` follows."""
    due: float = float("-inf")
    """Time at which the Job is looked at next."""


class ScaledJobs:
    """The Jobs of added workers. Workers of `[actors]` and `[hosts]` are in none of them, and stay."""

    def __init__(self, plan: LaunchPlan, jobs: Jobs, now: Callable[[], float] = time.monotonic) -> None:
        self._recipe, self._jobs, self._now = plan.recipe, jobs, now
        names = {
            place.name: f"areal-{self._recipe.run}-added-{place.name.removesuffix('_worker')}" for place in plan.added
        }
        self._roles = {place.name: _Role(job=names[place.name], most=place.count) for place in plan.added}
        self._written: dict[str, str] = {}
        """The last report on each Job, which is not repeated."""

    def follow(self, stopped: threading.Event) -> None:
        """Follow decisions until `stopped` is set; blocks."""
        with DecisionReader(self._recipe.run, Path(self._recipe.folder) / self._recipe.run) as reader:
            while not stopped.is_set():
                with suppress(Empty):
                    self.receive(reader.decisions.get(timeout=LOOK_SECONDS))
                self.settle()

    def receive(self, decision: ScaleChange) -> None:
        """Take note of a decision; those on roles that get no Job concern workers of the recipe."""
        if (role := self._roles.get(decision.role)) is not None:
            role.pending.append(decision)
            role.due = float("-inf")

    def settle(self) -> None:
        """Give each Job that is due the number of pods that the decisions ask for."""
        for role in self._roles.values():
            if self._now() >= role.due:
                done = self._settle_job(role)
                role.due = self._now() + (CHECK_SECONDS if done else RETRY_SECONDS)

    def dismiss(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Have all pods leave, for up to `DISMISS_SECONDS`."""
        until, left = self._now() + DISMISS_SECONDS, [*self._roles.values()]
        while left := [role for role in left if not self._settle_job(role, leaving=True)]:
            if self._now() >= until:
                names = ", ".join(role.job for role in left)
                self._write(
                    f"{names}: pods were not asked to leave within {DISMISS_SECONDS:g} s; they end as the run is over"
                )
                return
            sleep(RETRY_SECONDS)

    def _settle_job(self, role: _Role, *, leaving: bool = False) -> bool:
        """Read a Job, and change it if necessary; returns False if that has to be tried again."""
        try:
            job = self._jobs.read(role.job)
            self._fold(role, job)
            wanted, over = 0 if leaving else role.wanted or 0, job.over()
            if over and wanted:
                raise SetupError(_over(role.job, over))
            if not over and (job.spec.parallelism, job.decision_time()) != (wanted, role.followed):
                self._jobs.change(role.job, wanted, role.followed)
                if job.spec.parallelism != wanted:
                    self._write(f"{role.job}: {wanted} pods, {job.spec.parallelism} before")
        except SetupError as error:
            if leaving and isinstance(error, JobRequestRefused) and error.status == NOT_FOUND:
                return True
            self._report(role, str(error))
            return False
        self._written.pop(role.job, None)
        return True

    def _fold(self, role: _Role, job: KubernetesJob) -> None:
        """Apply the decisions that the Job has not followed.

        There are never more pods than the bounds of `[autoscale]` leave.
        """
        if role.wanted is None:
            role.since = role.followed = job.decision_time()
            role.wanted = job.spec.parallelism if role.since else 0
        for decision in role.pending:
            if decision.time > role.since:
                role.wanted = min(max(role.wanted + decision.workers - decision.before, 0), role.most)
                role.followed = decision.time
        role.pending.clear()

    def _report(self, role: _Role, sentence: str) -> None:
        if self._written.get(role.job) != sentence:
            self._written[role.job] = sentence
            self._write(sentence)

    def _write(self, sentence: str) -> None:
        sys.stderr.write(f"autoscale: {sentence}\n")
        sys.stderr.flush()


def _over(job: str, reason: str) -> str:
    see = f"see `kubectl logs --selector job-name={job}`, then `kubectl delete job {job}`"
    return f"{job} starts no pods any more ({reason}): {see}; {MAKE_MISSING}"
