"""A command that `areal-actors run --on local` starts on this machine."""

from __future__ import annotations

import shlex

from areal_actors.core.command import COMMAND
from areal_actors.core.devices import VISIBLE, visibility
from areal_actors.core.values import Value


class LocalCommand(Value):
    """A command of this machine."""

    name: str
    words: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    role: str = ""
    """Role of the worker that it starts; empty for the run."""
    address: str = ""
    """Address at which workers join the run that it starts; empty for workers."""

    def shell_line(self) -> str:
        """Returns it as a line for a shell, without the password."""
        variables = f"{VISIBLE}={visibility(self.gpus)} " if self.gpus else ""
        return f"{variables}{COMMAND} {shlex.join(self.words)}"
