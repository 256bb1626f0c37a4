"""Environments that bring tasks, agents and rewards.

`core/environment_host` has the code that runs in their interpreters.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import NamedTuple

from areal_actors.core.programs import environment_command

FOLDER = Path(__file__).parent / "environment_host"


class EnvironmentHost(NamedTuple):
    """A library of environments, and the program that plays them."""

    library: str
    """Name of the library, of its interpreter in `.environments`, and of the prefix in `task.environment`."""
    program: Path
    """Lists the tasks of an environment, and has the agent that plays them."""
    agent: str
    """Name of the agent, as in `[task] agent`."""
    names: tuple[str, ...]
    """Forms of its environments in `task.environment`."""
    marks_untrained: bool
    """Calls of agents that it does not train have `store: false`."""

    def install(self, setting: str) -> str:
        """Command that creates its interpreter, and the setting that names it."""
        return f'`{environment_command(self.library)}` and write {setting} = ".environments/{self.library}/bin/python"'


HOSTS = {
    library: EnvironmentHost(
        library, FOLDER / f"{library}_host.py", f"{FOLDER / library}_host.py:{agent}", names, marks
    )
    for library, agent, names, marks in (
        ("verifiers", "VerifiersAgent", ("verifiers:NAME` of a package", "verifiers:PATH`"), True),
        ("gymnasium", "GymnasiumAgent", ("gymnasium:ENV_ID`", "gymnasium:PATH.py:ENV_ID`"), False),
        ("openenv", "OpenEnvAgent", ("openenv:URL`", "openenv:FOLDER`", "openenv:PATH.py:APP`"), False),
    )
}


def host_of(environment: str) -> EnvironmentHost | None:
    """Return the library that `task.environment` names; None if there is none, or no environment."""
    library, _, name = environment.partition(":")
    return HOSTS.get(library) if name else None


def environment_name(environment: str) -> str:
    """Return the package, folder, file or id that `task.environment` names."""
    return environment.partition(":")[2]


def environment_title(environment: str) -> str:
    """Return the short name of an environment, with which the ids of its tasks begin."""
    name = PurePath(environment_name(environment)).name
    if environment.startswith("openenv:"):
        name = name.partition(".py:")[0]  # every file calls its application `app`
    return name.removesuffix(".py").rpartition(":")[2]
