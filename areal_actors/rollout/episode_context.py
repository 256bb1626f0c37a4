"""The current episode, for code that does not get it as an argument.

Available everywhere in an agent: in its coroutine and the tasks it creates, in its thread, and (through the
environment) in its process and child processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar

import msgspec

from areal_actors.messages import Purpose, RunEpisode
from areal_bus.message import FrozenMeta

PREFIX = "AREAL_"


class EpisodeContext(msgspec.Struct, metaclass=FrozenMeta):
    """One attempt at an episode."""

    task_id: str = ""
    episode: str = ""
    group: str = ""
    attempt: int = 0
    purpose: Purpose = "train"
    weight_version: int = -1
    """Newest weight version served at the start of the episode."""

    @property
    def is_eval(self) -> bool:
        """True if the episode is held out for evaluation."""
        return self.purpose == "evaluate"

    @classmethod
    def of(cls, work: RunEpisode, weight_version: int) -> EpisodeContext:
        """The context at the start of an episode."""
        return cls(
            task_id=work.task.id,
            episode=work.episode,
            group=work.group,
            attempt=work.attempt,
            purpose=work.purpose,
            weight_version=weight_version,
        )

    def environment(self) -> dict[str, str]:
        """The context as environment variables: `AREAL_TASK_ID`, `AREAL_EPISODE` and so on."""
        return {f"{PREFIX}{name.upper()}": str(getattr(self, name)) for name in self.__struct_fields__}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> EpisodeContext:
        """The context from environment variables; fields without one have their defaults."""
        variables = {f"{PREFIX}{name.upper()}": name for name in cls.__struct_fields__}
        written = {name: environment[variable] for variable, name in variables.items() if variable in environment}
        return msgspec.convert(written, cls, strict=False)


class WorkflowContext:
    """Access to the current episode."""

    def __init__(self) -> None:
        self._current: ContextVar[EpisodeContext] = ContextVar("episode")

    def get(self) -> EpisodeContext:
        """The current episode; outside of one all fields are empty."""
        return self._current.get(None) or EpisodeContext.from_environment(os.environ)

    def within(self, context: Context | None = None) -> EpisodeContext | None:
        """The episode of a context, by default the current one; None outside of an episode."""
        return self._current.get(None) if context is None else context.get(self._current)

    @contextmanager
    def running(self, episode: EpisodeContext) -> Iterator[None]:
        """Set the current episode for the code within."""
        token = self._current.set(episode)
        try:
            yield
        finally:
            self._current.reset(token)


workflow_context = WorkflowContext()
"""Reads context variables, which asyncio and threads propagate; it has no state of its own."""
