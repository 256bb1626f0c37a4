"""Details that a browser asks for.

The tokens of an episode, the answers of a group, and events of the log, from the page's copy of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from areal_actors.core.errors import SetupError
from areal_actors.core.values import Interaction, unpack_ids
from areal_actors.display.run_state import RunState
from areal_actors.display.summary import paired_answers
from areal_actors.messages import (
    ConversationKept,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    EvaluationCompleted,
    TrajectoryExported,
)
from areal_actors.messages.episode_ends import describe_party
from areal_actors.messages.fields import fields_of
from areal_actors.reader.feedback import describe_feedback
from areal_actors.reader.log_source import positions_of
from areal_actors.reader.missing_texts import describe_gaps, reason_without_texts
from areal_actors.reader.run import Run
from areal_actors.replay.call_tree import tree
from areal_actors.replay.episode_trace import TOGETHER, EpisodeTrace, trace_episode
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.web.rows import EpisodeRow
from areal_actors.web.source import LogSource
from areal_bus.base import Envelope

EVENTS_SCANNED = 4000
"""Events that one request looks at: a search through a long log continues with the next request."""
LONGEST_TEXT = 20_000
"""Characters of a text that are sent, of an output or of a message's field."""
CALL_ERRORS = "SELECT interaction, tool_call_error FROM call WHERE attempt_id = ?"
ENDS = "SELECT ended FROM attempt WHERE ended IS NOT NULL AND episode IN (SELECT value FROM json_each(?))"
CUSTOM = "custom"
"""Name of an algorithm that is a file or of another distribution."""
ANSWERED = """
SELECT completed FROM evaluation WHERE mode = (SELECT mode FROM evaluation WHERE mode IN ('sampled', 'greedy')
    ORDER BY mode DESC LIMIT 1) AND completed IN (
    SELECT min(completed) FROM evaluation GROUP BY mode UNION SELECT max(completed) FROM evaluation GROUP BY mode)
"""
"""First and last evaluation in the mode `sampled`, else `greedy`."""


class LogDetails:
    """Reads details from the copy of a log."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._tokenizer: ChatTokenizer | None = None

    async def episode(self, row: EpisodeRow) -> dict[str, Any]:
        """Returns an attempt with its task, output and sampled tokens."""
        history = self._source.history
        conversation = history.value("SELECT conversation FROM attempt WHERE id = ?", row.id + 1) or 0
        events = {event.sequence: event for event in await self._source.read_some((*row.ends(), conversation))}
        answer = _answer(row, events) | {"row": row, "calls": [], "gaps": "", "has_texts": self._text([]) is not None}
        answer["feedback"] = describe_feedback(history, row.name, row.attempt) if row.ended else []
        position = conversation or row.ended
        envelope = events.get(position)
        if envelope is not None and envelope.subject == TrajectoryExported.subject:
            exported = envelope.open(TrajectoryExported)
            answer["metrics"] = exported.trajectory.metrics
            answer["ended_by"] = describe_party(exported)
            answer["calls"] = list(self._calls(row, exported.trajectory.interactions))
        elif envelope is not None and envelope.subject == ConversationKept.subject:
            kept = envelope.open(ConversationKept)
            answer["gaps"] = describe_gaps(kept)
            answer["calls"] = list(self._calls(row, kept.interactions))
        elif row.ended:
            recipe = self._source.tables.facts().recipe or self._source.recipe
            answer["gaps"] = reason_without_texts(history, recipe, row.id + 1)
        return answer

    def _calls(self, row: EpisodeRow, interactions: tuple[Interaction, ...]) -> Iterator[dict[str, Any]]:
        """Yields calls in the order of their tree."""
        errors = dict(self._source.history.query(CALL_ERRORS, row.id + 1))
        calls = {call.id: call for call in interactions}
        for name, depth in tree({call.id: call.parent for call in interactions}):
            call = calls[name]
            ids = call.completion.ids_array().tolist()
            yield {
                "interaction": name,
                "error": errors.get(name, ""),
                "depth": depth,
                "parent": call.parent,
                "prefix": call.prefix,
                "prompt": self._text(unpack_ids(call.prompt_suffix)),
                "finish_reason": call.finish_reason,
                "worker": call.worker,
                "reward": call.reward,
                "token_ids": ids,
                "tokens": [self._text([number]) for number in ids],
                "logprobs": call.completion.logprobs_array().tolist(),
                "weight_versions": call.completion.versions_array().tolist(),
            }

    async def group(self, rows: list[EpisodeRow]) -> list[dict[str, Any]]:
        """Returns the answers of a group's attempts."""
        events = await self._source.read_some([position for row in rows for position in row.ends()])
        by_position = {event.sequence: event for event in events}
        return [_answer(row, by_position) | {"row": row} for row in rows]

    async def trace(self, row: EpisodeRow) -> EpisodeTrace | None:
        """Returns masks and advantages of an attempt, computed from its batch; tokens are without texts.

        None if only another process can compute them: the algorithm is a file, or the log has no beginning.

        Raises:
            SetupError: the log has no such attempt, or another version wrote the recipe.
        """
        history = self._source.history
        recipe = self._source.tables.facts().recipe
        if history.progress.first > 1 or recipe.get("algorithm", {}).get("name") == CUSTOM:
            return None
        others = json.dumps(history.query(TOGETHER, row.name, row.name))
        ends = history.query(ENDS, others)  # of its batch and of its group
        events = await self._source.read_some({*positions_of(history, [row.name]), *ends})
        run = Run(history.progress.run, history, log=KeptEvents(events), folder=None)
        return await asyncio.to_thread(trace_episode, run, row.name, row.attempt)

    async def answers(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Returns held-out tasks with the answers of the first evaluation and of the last in its mode."""
        positions = self._source.history.query(ANSWERED)
        events = [envelope.open(EvaluationCompleted) for envelope in await self._source.read_some(positions)]
        return list(paired_answers(events[0], events[-1])) if events else []

    def _text(self, ids: list[int]) -> str | None:
        """Returns the text of token ids; None without the model's tokenizer, which an exported log does not hold."""
        place = self._source.place
        if self._tokenizer is None and place is not None and self._source.history.progress.model:
            try:
                self._tokenizer = ChatTokenizer.load(place.path / self._source.history.progress.model)
            except SetupError:
                return None
        return self._tokenizer.decode(ids, skip_special=False) if self._tokenizer else None

    # ------------------------------------------------------------ events

    async def event(self, position: int) -> dict[str, Any] | None:
        """Returns an event with its whole message; None if the log does not have it."""
        events = await self._source.read_some([position])
        return _event(events[0]) if events else None

    async def search(self, *, before: int, limit: int, subject: str, text: str) -> dict[str, Any]:
        """Returns events that match, newest first, before a position.

        Args:
            before: position after the newest event that is looked at.
            limit: maximum number of events.
            subject: beginning of the subject; empty for all.
            text: part of the sender, the id or the message, without regard to case; empty for all.
        """
        await self._source.wait_copied(before - 1)
        matches: list[dict[str, Any]] = []
        position, wanted = before, text.lower()
        last = max(before - EVENTS_SCANNED, self._source.history.progress.first)
        while position > last and len(matches) < limit:
            position -= 1
            envelope = self._source.copy.read(position)
            if envelope is not None and envelope.subject.startswith(subject) and _matches(envelope, wanted):
                matches.append(
                    {
                        "position": position,
                        "time": envelope.time,
                        "subject": envelope.subject,
                        "sender": envelope.sender,
                    }
                )
        return {"events": matches, "before": position, "more": position > self._source.history.progress.first}


def _answer(row: EpisodeRow, events: Mapping[int, Envelope]) -> dict[str, Any]:
    answer: dict[str, Any] = {"task": {}, "output": "", "detail": "", "metrics": {}, "ended_by": ""}
    for position in row.ends():
        envelope = events.get(position)
        if envelope is None:
            continue
        if envelope.subject == EpisodeScored.subject:
            scored = envelope.open(EpisodeScored)
            answer |= {
                "task": scored.work.task.data,
                "output": scored.output[:LONGEST_TEXT],
                "metrics": scored.metrics,
            }
        elif envelope.subject == EpisodeEvaluated.subject:
            evaluated = envelope.open(EpisodeEvaluated)
            answer |= {
                "task": evaluated.work.task.data,
                "output": evaluated.output[:LONGEST_TEXT],
                "metrics": evaluated.metrics,
            }
            answer["ended_by"] = describe_party(evaluated)
        elif envelope.subject == EpisodeAbandoned.subject:
            abandoned = envelope.open(EpisodeAbandoned)
            answer |= {"task": abandoned.work.task.data, "detail": abandoned.detail[:LONGEST_TEXT]}
            answer["ended_by"] = describe_party(abandoned)
    return answer


def _matches(envelope: Envelope, wanted: str) -> bool:
    if not wanted:
        return True
    if wanted in f"{envelope.sender} {envelope.id} {envelope.cause}".lower():
        return True
    return wanted in envelope.body.decode("utf-8", "ignore").lower()  # texts in msgpack are UTF-8


def _event(envelope: Envelope) -> dict[str, Any]:
    message = fields_of(envelope) if envelope.body else {"claim": envelope.claim}
    return {
        "position": envelope.sequence,
        "time": envelope.time,
        "subject": envelope.subject,
        "sender": envelope.sender,
        "id": envelope.id,
        "cause": envelope.cause,
        "message": _to_plain(message),
    }


def _to_plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {str(name): _to_plain(entry) for name, entry in value.items()}
    return [_to_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


class KeptEvents:
    """Events that were read already, as the source of a run's events."""

    def __init__(self, envelopes: list[Envelope]) -> None:
        self._envelopes = envelopes

    def read_all(self) -> list[Envelope]:
        """Returns the events."""
        return self._envelopes

    def read_some(self, positions: Collection[int]) -> list[Envelope]:
        """Returns the events at these positions."""
        return [envelope for envelope in self._envelopes if envelope.sequence in positions]

    def restore(self, _: RunState) -> int:
        """There are no snapshots: nothing is restored."""
        return 0
