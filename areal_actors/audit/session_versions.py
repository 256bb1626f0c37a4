"""The weights of sessions whose start names them: each of their tokens has these, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from areal_actors.audit.groups import Finding, format_numbers
from areal_actors.core.values import Interaction
from areal_actors.messages import ConversationKept, SessionStarted, TrajectoryExported


class SessionVersions(msgspec.Struct):
    """Versions by episode, of sessions of external agents that have one."""

    versions: dict[str, int] = {}
    checked: int = 0
    """Number of ended sessions whose tokens have the version of their start."""
    mixed: int = 0
    """Number of ended sessions with tokens of another version."""

    def receive(self, event: SessionStarted | ConversationKept | TrajectoryExported) -> Iterator[Finding]:
        """Fold the start of a session, or the calls of one that has ended."""
        match event:
            case SessionStarted():
                if event.weight_version >= 0:
                    self.versions[event.work.episode] = event.weight_version
            case ConversationKept():
                yield from self._compare(event.episode, event.interactions)
            case TrajectoryExported():
                yield from self._compare(event.trajectory.episode, event.trajectory.interactions)

    def _compare(self, episode: str, calls: Sequence[Interaction]) -> Iterator[Finding]:
        if (version := self.versions.get(episode)) is None:
            return
        others = {span.weight_version for call in calls for span in call.completion.versions} - {version}
        self.checked += not others
        self.mixed += bool(others)
        if others:
            yield "version", f"episode {episode} has version {version}, and tokens of version {format_numbers(others)}"
