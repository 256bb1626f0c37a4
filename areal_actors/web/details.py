"""Details that a browser asks for.

The tokens of an episode, the answers of a group, and events of the log, from the page's copy of it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.values import Interaction, unpack_ids
from areal_actors.messages import (
    ConversationKept,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    TrajectoryExported,
)
from areal_actors.messages.episode_ends import describe_party
from areal_actors.messages.fields import fields_of
from areal_actors.reader.feedback import describe_feedback
from areal_actors.reader.missing_texts import describe_gaps, reason_without_texts
from areal_actors.replay.call_tree import tree
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.web.rows import EpisodeRow
from areal_actors.web.source import LogSource
from areal_bus.base import Envelope

EVENTS_SCANNED = 4000
"""Events that one request looks at: a search through a long log continues with the next request."""
LONGEST_TEXT = 20_000
"""Characters of a text that are sent, of an output or of a message's field."""
TRACES_KEPT = 16
TRACE_SECONDS = 600.0
"""Time limit of the process that computes advantages."""
KILLED_SECONDS = 10.0
"""Time limit of its end, once it was killed."""


class LogDetails:
    """Reads details from the copy of a log."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._tokenizer: ChatTokenizer | None = None
        self._tracing = asyncio.Lock()
        self._traces: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()

    async def episode(self, row: EpisodeRow) -> dict[str, Any]:
        """Returns an attempt with its task, output and sampled tokens."""
        history = self._source.history
        conversation = history.value("SELECT conversation FROM attempt WHERE id = ?", row.id + 1) or 0
        await self._source.wait_copied(max(row.changed, conversation))
        answer = self._answer(row) | {"row": row, "calls": [], "gaps": "", "has_texts": self._text([]) is not None}
        answer["feedback"] = describe_feedback(history, row.name, row.attempt) if row.ended else []
        position = conversation or row.ended
        envelope = self._source.copy.read(position) if position else None
        if envelope is not None and envelope.subject == TrajectoryExported.subject:
            exported = envelope.open(TrajectoryExported)
            answer["metrics"] = exported.trajectory.metrics
            answer["ended_by"] = describe_party(exported)
            answer["calls"] = list(self._calls(exported.trajectory.interactions))
        elif envelope is not None and envelope.subject == ConversationKept.subject:
            kept = envelope.open(ConversationKept)
            answer["gaps"] = describe_gaps(kept)
            answer["calls"] = list(self._calls(kept.interactions))
        elif row.ended:
            recipe = self._source.tables.facts().recipe or self._source.recipe
            answer["gaps"] = reason_without_texts(history, recipe, row.id + 1)
        return answer

    def _calls(self, interactions: tuple[Interaction, ...]) -> Iterator[dict[str, Any]]:
        """Yields calls in the order of their tree."""
        calls = {call.id: call for call in interactions}
        for name, depth in tree({call.id: call.parent for call in interactions}):
            call = calls[name]
            ids = call.completion.ids_array().tolist()
            yield {
                "interaction": name,
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
        await self._source.wait_copied(max((row.changed for row in rows), default=0))
        return [self._answer(row) | {"row": row} for row in rows]

    def _answer(self, row: EpisodeRow) -> dict[str, Any]:
        answer: dict[str, Any] = {"task": {}, "output": "", "detail": "", "metrics": {}, "ended_by": ""}
        for position in (row.scored, row.ended):
            envelope = self._source.copy.read(position) if position else None
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

    async def trace_json(self, row: EpisodeRow) -> bytes:
        """Returns the JSON of `areal-actors show --trace` for an attempt.

        Masks and advantages, computed by another process, which may load torch.

        Raises:
            SetupError: the process failed.
        """
        key = (row.name, row.attempt, row.batch)
        async with self._tracing:  # one process at a time: it loads torch
            if key not in self._traces:
                await self._source.wait_copied(self._source.history.progress.last)
                self._source.copy.flush()
                self._traces[key] = await _run_trace(str(self._source.copy.path), row.name, row.attempt)
                while len(self._traces) > TRACES_KEPT:
                    self._traces.popitem(last=False)
            return self._traces[key]

    async def wait_until_ended(self) -> None:
        """Wait until the process of a cancelled request has ended, which was killed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_SECONDS), self._tracing:
                pass

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
        await self._source.wait_copied(position)
        envelope = self._source.copy.read(position)
        return None if envelope is None else _event(envelope)

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


async def _run_trace(log: str, episode: str, attempt: int) -> bytes:
    """Run `areal-actors show --trace` on the copy; returns its JSON."""
    words = [sys.executable, "-m", "areal_actors", "show", "--trace", log, episode, "--attempt", str(attempt), "--json"]
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), TRACE_SECONDS)
    except TimeoutError:
        raise SetupError(
            f"advantages of episode {episode} took over {TRACE_SECONDS:.0f} s; `{COMMAND} show --trace` has no limit"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise SetupError(lines[-1] if lines else "the process that computes advantages failed without a reason")
    return output
