"""`open_run`: a live, finished or exported run as tables of steps, evaluations, episodes, interactions, tokens and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.core.values import Interaction
from areal_actors.display.recall import restore_fold, trimmed_notice
from areal_actors.display.run_state import RunState
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated, InteractionRecorded
from areal_actors.messages.fields import fields_of
from areal_actors.reader.records import EndedEpisode, Records
from areal_actors.reader.run_files import run_folder
from areal_actors.reader.table import Table
from areal_actors.run.monitor import open_log
from areal_actors.run.run_folder import RunFolder
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_bus.base import Envelope
from areal_bus.errors import BusError
from areal_bus.recorded import read_log

T = TypeVar("T")

STEPS = ("step", "time")
EVALUATIONS = ("weight_version", "time", "mode", "tasks", "failed", "accuracy", "reward_mean", "common_reward_mean", "mean_tokens")
EPISODES = (
    *("episode", "attempt", "group", "purpose", "task_id", "outcome", "step", "reward", "reason", "detail", "output"),
    *("interactions", "prompt_tokens", "completion_tokens", "oldest_version", "newest_version", "seconds", "time", "sequence"),
)
INTERACTIONS = (
    *("episode", "attempt", "interaction", "parent", "prefix", "prompt", "completion", "prompt_tokens", "completion_tokens"),
    *("finish_reason", "oldest_version", "newest_version", "mean_logprob", "reward", "trained", "worker"),
    *("prefix_break_reason", "tool_call_error"),
)
TOKENS = ("episode", "attempt", "interaction", "position", "token_id", "token", "logprob", "weight_version")
EVENTS = ("sequence", "time", "subject", "sender", "id", "cause", "message")


class Run:
    """A run as it was when it was opened, read from its log."""

    def __init__(self, name: str, records: Records, *, notice: str, read: Callable[[], Sequence[Envelope]], folder: Path | None) -> None:
        self.name = name
        self.folder = folder
        """Folder of the run; None for an exported log."""
        self.notice = notice
        """Sentence about what the log no longer holds; empty if it is whole."""
        self.records = records
        self._read = read

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe, with all defaults."""
        return self.state.started.recipe if self.state.started else {}

    @property
    def state(self) -> RunState:
        """Steps, evaluations, checkpoints and failures."""
        return self.records.state

    @cached_property
    def steps(self) -> Table:
        """One row per step, counted from 1, with all its metrics."""
        return Table.of("steps", STEPS, ({"step": one.number, "time": one.time, **one.metrics} for one in self.state.steps))

    @cached_property
    def evaluations(self) -> Table:
        """One row per evaluation on held-out tasks, with the reward function's numbers."""
        times: list[float | None] = [None] * (len(self.state.evaluations) - len(self.records.evaluated_at))
        rows = (
            {field: getattr(one, field, time) for field in EVALUATIONS} | one.reward_metrics
            for one, time in zip(self.state.evaluations, [*times, *self.records.evaluated_at], strict=True)
        )
        return Table.of("evaluations", EVALUATIONS, rows)

    @cached_property
    def episodes(self) -> Table:
        """One row per ended attempt at an episode; `step` is the one that trained it, None if none did."""
        return Table.of("episodes", EPISODES, (self._episode(ended) for ended in self.records.ended.values()))

    @cached_property
    def interactions(self) -> Table:
        """One row per completed model call of ended attempts; texts and log-probabilities for exported episodes only."""
        return Table.of("interactions", INTERACTIONS, (row for ended in self.records.ended.values() for row in self._interactions(ended)))

    def tokens(self, episode: str = "") -> Table:
        """One row per sampled token of exported episodes, or of one: id, text, log-probability and weight version as sampled."""
        columns: dict[str, list[Any]] = {field: [] for field in TOKENS}
        for ended in self.records.ended.values():
            for call in ended.trajectory.interactions if ended.trajectory and episode in ("", ended.episode) else ():
                ids = call.completion.ids_array().tolist()
                values: dict[str, list[Any]] = {
                    "episode": [ended.episode] * len(ids),
                    "attempt": [ended.attempt] * len(ids),
                    "interaction": [call.id] * len(ids),
                    "position": list(range(len(ids))),
                    "token_id": ids,
                    "token": [self.text([number]) for number in ids],
                    "logprob": call.completion.logprobs_array().tolist(),
                    "weight_version": call.completion.versions_array().tolist(),
                }
                for field, column in values.items():
                    columns[field] += column
        return Table("tokens", columns)

    def events(self, subject: str = "") -> Table:
        """One row per event of the log, or per event of one subject; the message is JSON, with bytes as their number."""
        rows = (_event(envelope) for envelope in self._read() if subject in ("", envelope.subject))
        return Table.of("events", EVENTS, rows)

    @cached_property
    def tokenizer(self) -> ChatTokenizer | None:
        """The model's tokenizer; None for an exported log, which does not hold it."""
        if self.folder is None or not self.records.model:
            return None
        return ChatTokenizer.load(str(self.folder / self.records.model))

    def text(self, ids: list[int]) -> str | None:
        """Returns the text of token ids with special tokens; None without a tokenizer."""
        return self.tokenizer.decode(ids, skip_special=False) if self.tokenizer else None

    def __repr__(self) -> str:
        return f"<run {self.name}: {len(self.state.steps)} steps, {len(self.records.ended):,} ended episodes>"

    def _episode(self, ended: EndedEpisode) -> dict[str, Any]:
        event, calls = ended.event, self._interactions(ended, texts=False)
        versions = [call[field] for call in calls for field in ("oldest_version", "newest_version")]
        failed = event if isinstance(event, EpisodeAbandoned) else None
        trained = self.records.trained.get(ended.sequence)
        return {
            "episode": ended.episode,
            "attempt": ended.attempt,
            "group": ended.group,
            "purpose": ended.purpose,
            "task_id": ended.task_id,
            "outcome": ended.outcome,
            "step": trained,
            "reward": ended.reward,
            "reason": self.records.reason_of(ended),
            "detail": failed.detail if failed else "",
            "output": ended.output,
            "interactions": len(calls),
            "prompt_tokens": sum(call["prompt_tokens"] or 0 for call in calls),
            "completion_tokens": event.completion_tokens
            if isinstance(event, EpisodeEvaluated)
            else sum(call["completion_tokens"] for call in calls),
            "oldest_version": min(versions, default=None),
            "newest_version": max(versions, default=None),
            "seconds": ended.seconds,
            "time": ended.time,
            "sequence": ended.sequence,
        }

    def _interactions(self, ended: EndedEpisode, *, texts: bool = True) -> list[dict[str, Any]]:
        recorded = {one.interaction: one for one in ended.recorded}
        if ended.trajectory is None:
            found = [_recorded(one) for one in ended.recorded]
        else:
            found = [self._sampled(call, recorded.get(call.id), texts=texts) for call in ended.trajectory.interactions]
        return [{"episode": ended.episode, "attempt": ended.attempt, **row} for row in found]

    def _sampled(self, call: Interaction, recorded: InteractionRecorded | None, *, texts: bool) -> dict[str, Any]:
        versions, logprobs = call.completion.versions_array(), call.completion.logprobs_array()
        return {
            "interaction": call.id,
            "parent": call.parent,
            "prefix": call.prefix,
            "prompt": call.prompt_text(self.text) if texts else None,
            "completion": self.text(call.completion.ids_array().tolist()) if texts else None,
            "prompt_tokens": recorded.prompt_tokens if recorded else None,
            "completion_tokens": len(call.completion),
            "finish_reason": call.finish_reason,
            "oldest_version": int(versions.min()) if len(versions) else None,
            "newest_version": int(versions.max()) if len(versions) else None,
            "mean_logprob": float(np.mean(logprobs)) if len(logprobs) else None,
            "reward": call.reward,
            "trained": call.trained,
            "worker": call.worker,
            "prefix_break_reason": recorded.prefix_break_reason if recorded else "",
            "tool_call_error": recorded.tool_call_error if recorded else "",
        }


def open_run(run: str | Path = "", *, folder: str | Path = "runs") -> Run:
    """Open a run by its name, its folder or its exported log; without an argument, the latest of `folder`.

    A live run is read as far as it has come; it is not affected. The log of a finished run on disk is served by a nats-server that
    ends before this returns. Memory: about the size of the log.

    Raises:
        SetupError: there is no such run, its log is on an external server and the run is over, or the file is no log.
        BusError: its log cannot be opened. Of a damaged log the events before the damage are read, and `notice` names it.
    """
    path = Path(run)
    if path.is_file():
        return _open_file(path)
    place = run_folder(str(run), Path(folder))
    log = _in_thread(_read_folder(place))
    return Run(place.path.name, log.records, notice=log.notice, read=lambda: _in_thread(_read_folder(place)).envelopes, folder=place.path)


class _Log:
    """A log as far as it can be read."""

    def __init__(self) -> None:
        self.records = Records()
        self.envelopes: list[Envelope] = []
        self.notice = ""

    def damaged(self, error: Exception) -> None:
        """Record where the readable part of the log ends."""
        self.notice = f"only the first {len(self.envelopes):,} events are read: {error}"


def _open_file(path: Path) -> Run:
    log = _read_file(path)
    if not log.envelopes and log.notice:
        raise SetupError(f"{path} cannot be read as an exported log: {log.notice}; `{COMMAND} export RUN FILE` writes one")
    return Run(log.records.state.run or path.name, log.records, notice=log.notice, read=lambda: _read_file(path).envelopes, folder=None)


def _read_file(path: Path) -> _Log:
    log = _Log()
    try:
        for envelope in read_log(path):
            log.records.receive(envelope)
            log.envelopes.append(envelope)
    except BusError as error:
        log.damaged(error)
    return log


async def _read_folder(place: RunFolder) -> _Log:
    log = _Log()
    async with open_log(place) as bus:
        known = await restore_fold(bus, SnapshotStore(place.snapshots), log.records.state)
        try:
            async for envelope in bus.log():
                log.records.receive(envelope, known=envelope.sequence <= known)
                log.envelopes.append(envelope)
            log.notice = await trimmed_notice(bus, log.records.state)
        except BusError as error:
            log.damaged(error)
        return log


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread: notebooks have an event loop of their own in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _recorded(one: InteractionRecorded) -> dict[str, Any]:
    return {
        "interaction": one.interaction,
        "parent": one.parent,
        "prefix": one.prefix,
        "prompt_tokens": one.prompt_tokens,
        "completion_tokens": one.completion_tokens,
        "finish_reason": one.finish_reason,
        "oldest_version": one.weight_version,
        "newest_version": one.weight_version,
        "trained": one.trained,
        "prefix_break_reason": one.prefix_break_reason,
        "tool_call_error": one.tool_call_error,
    }


def _event(envelope: Envelope) -> dict[str, Any]:
    row = {field: getattr(envelope, field) for field in EVENTS if field != "message"}
    return row | {"message": json.dumps(_plain(fields_of(envelope)), ensure_ascii=False)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
