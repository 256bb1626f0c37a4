"""Jobs of Slurm that `[autoscale]` adds to a run: one for each host, submitted and ended beside the run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from typing import Final

from areal_actors.core.errors import SetupError
from areal_actors.hosts.launchers.plan import PROGRAM, LaunchPlan
from areal_actors.hosts.launchers.slurm import needs_of

ADDRESS: Final = "AREAL_JOIN_ADDRESS"
"""Variable in which the batch script names the run's bus to the command that follows its decisions."""
TIMEOUT_SECONDS: Final = 60.0
"""Time limit of a command of Slurm, whose controller may be busy."""
SITE: Final = "SLURM_CONF"
"""Variable with the path of Slurm's configuration: the only one of its variables that is not of the job."""


class SlurmHosts:
    """Submits a job for each host, which has nothing of the allocation of the run."""

    def __init__(self, plan: LaunchPlan) -> None:
        """Take the address of the bus from the environment.

        Raises:
            SetupError: the batch script has not started this.
        """
        self._recipe, self._places = plan.recipe, {place.name: place for place in plan.added}
        self._leaving_seconds = plan.ending_seconds()
        self._address = os.environ.get(ADDRESS, "")
        if not self._address:
            raise SetupError(
                f"--follow: {ADDRESS} is not set; the batch script of `--on slurm` starts this command, leave"
                " --follow out"
            )
        self._numbers = count()
        self._jobs: dict[str, str] = {}
        """Number of each job, by the name of its host."""

    def adopt(self) -> dict[str, str]:
        """Take over the jobs that a killed follower of this run has submitted.

        Returns the roles of their hosts, by name.
        """
        name = re.compile(rf"areal-{re.escape(self._recipe.run)}-((?P<role>\w+)-added-(?P<number>\d+))")
        try:
            lines = [line.split() for line in _run("squeue", "--me", "--noheader", "--format=%A %j %k").splitlines()]
        except SetupError as error:
            sys.stderr.write(f"autoscale: jobs of an earlier follower, if there are any, are not found: {error}\n")
            return {}
        ours = [(name.fullmatch(line[1]), line[0]) for line in lines if line[2:] == [self._address]]
        jobs = sorted(
            (int(match["number"]), match[1], match["role"], job)
            for match, job in ours
            if match and match["role"] in self._places
        )
        self._numbers = count(jobs[-1][0] + 1 if jobs else 0)
        self._jobs = {host: job for _, host, _, job in jobs}
        return {host: role for _, host, role, _ in jobs}

    def start(self, role: str) -> str:
        """Submit a job; it may wait in the queue.

        Raises:
            SetupError: it is refused, or sbatch is missing.
        """
        place, name = self._places[role], f"{role}-added-{next(self._numbers)}"
        command = shlex.join((*PROGRAM, "join", self._address, *place.words))
        options = (
            *(
                "--parsable",
                "--export=ALL",
                "--ntasks=1",
                f"--signal=B:TERM@{self._leaving_seconds}",
                "--open-mode=append",
            ),
            *(
                f"--job-name=areal-{self._recipe.run}-{name}",
                f"--comment={self._address}",
                "--output=%x-%j.log",
                *needs_of(place),
                *self._recipe.hosts.slurm,
            ),
        )
        # The shell of the batch script becomes `areal-actors join`, so that it gets the signal itself.
        printed = _run("sbatch", *options, f"--wrap=exec {command}")
        self._jobs[name] = printed.strip().partition(";")[0]
        return name

    def leave(self, name: str) -> None:
        """Remove a job that waits from the queue, or send SIGTERM to one that runs."""
        _run("scancel", "--state=PENDING", self._jobs[name])
        if not self.ended_of([name]):
            _run("scancel", "--signal=TERM", "--batch", self._jobs[name])

    def ended_of(self, names: Sequence[str]) -> set[str]:
        """Returns those whose job is neither queued nor running."""
        listed = set(_run("squeue", "--me", "--noheader", "--format=%A").split())
        return {name for name in names if self._jobs[name] not in listed}


def _run(*command: str) -> str:
    """Run a command of Slurm as outside of any job; returns its output.

    Raises:
        SetupError: it is not on the PATH, fails, or does not end.
    """
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == SITE}
    try:
        done = subprocess.run(
            command, env=outside, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
        )
    except FileNotFoundError as error:
        raise SetupError(f"{command[0]} is not on the PATH of the node where the batch script runs") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{command[0]} has not ended within {TIMEOUT_SECONDS:g} s") from error
    if done.returncode:
        raise SetupError(
            f"{command[0]} failed with status {done.returncode}: {done.stderr.strip() or 'it printed no reason'}"
        )
    return done.stdout
