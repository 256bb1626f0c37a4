"""AReaL's schedulers: they carry the configuration of a program to the engines that it starts on this machine."""

from __future__ import annotations

from typing import Any

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError


class LocalScheduler:
    """Processes of this machine."""

    def __init__(self, exp_config: Any = None, **_: Any) -> None:
        """`exp_config`: the configuration of the program, from which an engine has its model."""
        self.exp_config = exp_config


class ElsewhereScheduler:
    """The schedulers of other machines, which a program has not here."""

    launcher = ""

    def __init__(self, exp_config: Any = None, **_: Any) -> None:
        """Refuse.

        Raises:
            RecipeError: always; it names the command that has such machines.
        """
        del exp_config
        raise RecipeError(
            f"scheduler.type: found {self.launcher}, but the processes of a program are on its machine; write local, or"
            f" run the recipe of the configuration with `{COMMAND} run RECIPE --on {self.launcher}`"
        )


class RayScheduler(ElsewhereScheduler):
    """See `areal-actors run --on ray`."""

    launcher = "ray"


class SlurmScheduler(ElsewhereScheduler):
    """See `areal-actors run --on slurm`."""

    launcher = "slurm"
