"""Ray: a program with an actor for the run and one for each host that joins it. Only that program imports Ray."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from areal_actors.hosts.launchers.plan import PROGRAM, LaunchPlan, Place, render_template


def ray_program(plan: LaunchPlan, folder: Path) -> str:
    """Returns the program; the run works in `folder`."""
    return render_template(
        "ray_job.py.jinja",
        plan=plan,
        folder=folder,
        run_command=(*PROGRAM, *plan.run.words),
        join_command=(*PROGRAM, "join"),
        follow_command=(*PROGRAM, *plan.following("ray")),
        needs=_needs,
    )


def _needs(place: Place) -> dict[str, int]:
    memory = {"memory": place.memory_gb << 30} if place.memory_gb else {}
    return {"num_cpus": place.cpus, "num_gpus": place.gpus, **memory}


class RayHosts:
    """Has the program start and end actors, by lines on standard output: `start NAME ROLE` and `leave NAME`.

    The program answers on standard input with the names of those that have ended, and closes it when it ends itself.
    """

    def __init__(self, stopped: threading.Event) -> None:
        """`stopped` is set when standard input is closed."""
        self._numbers = count()
        self._ended: set[str] = set()
        self._stopped = stopped
        threading.Thread(target=self._read, name="ended-hosts", daemon=True).start()

    def start(self, role: str) -> str:
        """Ask for an actor."""
        name = f"{role}-added-{next(self._numbers)}"
        _write("start", name, role)
        return name

    def leave(self, name: str) -> None:
        """Ask for its end."""
        _write("leave", name)

    def ended_of(self, names: Sequence[str]) -> set[str]:
        """Returns those of which the program has reported the end."""
        return self._ended.intersection(names)

    def _read(self) -> None:
        for line in sys.stdin:
            self._ended.add(line.strip())
        self._stopped.set()


def _write(*words: str) -> None:
    sys.stdout.write(f"{' '.join(words)}\n")
    sys.stdout.flush()
