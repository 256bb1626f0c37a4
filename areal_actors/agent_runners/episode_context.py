"""Which episode is running: for code that is called with less than it wants to know.

Known inside an agent wherever it runs: in its coroutine and the tasks that it starts, in its thread, and (through the
environment) in a process of its own and what that starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar

import msgspec

from areal_actors.messages import Purpose, RunEpisode
from bus.message import FrozenMeta

PREFIX = "AREAL_"


class EpisodeContext(msgspec.Struct, metaclass=FrozenMeta):
    """One attempt at an episode."""

    task_id: str = ""
    episode: str = ""
    group: str = ""
    attempt: int = 0
    purpose: Purpose = "train"
    weight_version: int = -1
    """Of the newest weights that were served when the episode started."""

    @property
    def is_eval(self) -> bool:
        """The episode measures and is not trained."""
        return self.purpose == "evaluate"

    @classmethod
    def of(cls, work: RunEpisode, weight_version: int) -> EpisodeContext:
        """What is known when an episode starts."""
        return cls(
            task_id=work.task.id,
            episode=work.episode,
            group=work.group,
            attempt=work.attempt,
            purpose=work.purpose,
            weight_version=weight_version,
        )

    def environment(self) -> dict[str, str]:
        """The same as variables: `AREAL_TASK_ID`, `AREAL_EPISODE` and so on."""
        return {f"{PREFIX}{name.upper()}": str(getattr(self, name)) for name in self.__struct_fields__}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> EpisodeContext:
        """What stands in the variables; fields without one have their defaults."""
        variables = {f"{PREFIX}{name.upper()}": name for name in cls.__struct_fields__}
        written = {name: environment[variable] for variable, name in variables.items() if variable in environment}
        return msgspec.convert(written, cls, strict=False)


class WorkflowContext:
    """Tells the running code which episode it is part of."""

    def __init__(self) -> None:
        self._current: ContextVar[EpisodeContext] = ContextVar("episode")

    def get(self) -> EpisodeContext:
        """The episode that is running; outside of one all fields are empty."""
        return self._current.get(None) or EpisodeContext.from_environment(os.environ)

    def within(self, context: Context | None = None) -> EpisodeContext | None:
        """The episode that is running in a context, or in this one; None outside of one."""
        return self._current.get(None) if context is None else context.get(self._current)

    @contextmanager
    def running(self, episode: EpisodeContext) -> Iterator[None]:
        """What runs within is part of this episode."""
        token = self._current.set(episode)
        try:
            yield
        finally:
            self._current.reset(token)


workflow_context = WorkflowContext()
"""A name for what asyncio and threads carry along; it holds no state of its own."""
