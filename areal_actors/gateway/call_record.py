"""A file with every completed model call, one JSON object a line: the event of the call, and its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from areal_actors.core.values import unpack_ids
from areal_actors.gateway.conversations.turns import ConversationTurn, path_to, token_ids_of
from areal_actors.gateway.sessions.episode_end import UnreportedCalls
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.messages import InteractionRecorded

SearchPath = Callable[[Sequence[ConversationTurn]], Mapping[str, int]]
"""Returns the number of matches of each redaction rule in a call and what it continues."""


TEXTS = ("tool_call_error",)
"""Fields of the event of a call that may repeat what the model wrote."""


class RecordedCalls(UnreportedCalls):
    """Writes each call with its tokens as soon as it is completed, and reports it like any other."""

    def __init__(self, registry: SessionRegistry, path: Path, search: SearchPath | None = None) -> None:
        """Append to a file; calls in which `search` finds something are written without tokens and texts.

        Raises:
            OSError: it cannot be written.
        """
        super().__init__()
        self._registry = registry
        self._search = search
        self._file: IO[bytes] = path.open("ab")

    def add(self, call: InteractionRecorded) -> None:
        """Write a call, and keep it for its report."""
        super().add(call)
        self._file.write(msgspec.json.encode(self._line(call)) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, call: InteractionRecorded) -> dict[str, Any]:
        turns = {turn.interaction.id: turn for turn in self._registry.get(call.session).turns}
        path = path_to(call.interaction, turns)
        if self._search is not None and (matches := self._search(path)):
            hidden = {name: f"redacted by {', '.join(matches)}" for name in TEXTS if getattr(call, name)}
            return {"subject": call.subject, **msgspec.to_builtins(call), **hidden, "redacted": dict(matches)}
        *earlier, turn = path
        columns = turn.interaction.completion
        return {
            "subject": call.subject,
            **msgspec.to_builtins(call),
            "prompt_ids": unpack_ids(token_ids_of(earlier) + turn.interaction.prompt_suffix),
            "token_ids": columns.ids_array().tolist(),
            "logprobs": columns.logprobs_array().tolist(),
            "answer": turn.answer,
        }
