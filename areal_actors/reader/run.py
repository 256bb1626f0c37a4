"""`open_run`: a live, finished or exported run as tables.

There are tables of steps, evaluations, episodes, interactions, tokens and events.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from areal_actors.core.lazy import LazyModule
from areal_actors.display.recorded_state import recorded_state
from areal_actors.display.run_state import RunState
from areal_actors.history.database import History
from areal_actors.messages.fields import fields_of
from areal_actors.reader.attempt_rows import episode_row, interaction_rows
from areal_actors.reader.log_source import FileLog, FolderLog, positions_of, trimmed_sentence
from areal_actors.reader.recorded_history import history_of_file, read_history
from areal_actors.reader.records import Records
from areal_actors.reader.run_files import run_folder
from areal_actors.reader.table import Table
from areal_bus.base import Envelope

if TYPE_CHECKING:
    from areal_actors.tokenization.tokenizer import ChatTokenizer

TOKENIZER: Any = LazyModule("areal_actors.tokenization.tokenizer")
STEPS = ("step", "time")
EVALUATIONS = (
    "weight_version",
    "time",
    "mode",
    "tasks",
    "failed",
    "accuracy",
    "reward_mean",
    "common_reward_mean",
    "mean_tokens",
)
EPISODES = (
    *("episode", "attempt", "group", "purpose", "task_id", "outcome", "step", "reward", "reason", "detail", "output"),
    *(
        "interactions",
        "prompt_tokens",
        "completion_tokens",
        "oldest_version",
        "newest_version",
        "seconds",
        "time",
        "sequence",
    ),
)
INTERACTIONS = (
    *(
        "episode",
        "attempt",
        "interaction",
        "parent",
        "prefix",
        "prompt",
        "completion",
        "prompt_tokens",
        "completion_tokens",
    ),
    *("finish_reason", "oldest_version", "newest_version", "mean_logprob", "reward", "trained", "worker"),
    *("prefix_break_reason", "tool_call_error", "trace", "trace_span", "trace_state", "baggage"),
)
TOKENS = ("episode", "attempt", "interaction", "position", "token_id", "token", "logprob", "weight_version")
EVENTS = ("sequence", "time", "subject", "sender", "id", "cause", "message")


class EventSource(Protocol):
    """Source of the events of a log."""

    def read_all(self) -> list[Envelope]:
        """Returns the events that the run had when it was opened."""
        ...

    def read_some(self, positions: Collection[int]) -> list[Envelope]:
        """Returns the events at these positions, in order, without those that the log no longer has."""
        ...

    def restore(self, state: RunState) -> int:
        """Restore the state before the first event of a log with a trimmed beginning.

        Returns the position after which it goes on.
        """
        ...


class Run:
    """A run as it was when it was opened: its history, and, where texts or tokens are asked for, its log."""

    def __init__(self, name: str, history: History, *, log: EventSource, folder: Path | None) -> None:
        self.name = name
        self.folder = folder
        """Folder of the run; None for an exported log."""
        self.history = history
        """Rows of the log, for queries."""
        self._log = log

    @cached_property
    def notice(self) -> str:
        """Sentence about what the log no longer holds; empty if it is whole."""
        return self.history.notice or (
            trimmed_sentence(self.state, self.history.progress.first) if self._is_trimmed() else ""
        )

    def _is_trimmed(self) -> bool:
        return self.history.progress.first > 1 or bool(
            self.history.value("SELECT count(*) FROM notice WHERE kind = 'log.trimmed'")
        )

    @cached_property
    def records(self) -> Records:
        """Ended episodes with texts and tokens: the whole log, decoded."""
        return Records.of(self.history, self._log.read_all(), self.recipe)

    def only(self, episodes: Collection[str]) -> Run:
        """Returns the run with the ended attempts of these episodes alone, of whose events alone the log is read."""
        part = Run(self.name, self.history, log=self._log, folder=self.folder)
        part.state = self.state
        part.records = Records.of(self.history, self._log.read_some(positions_of(self.history, episodes)), self.recipe)
        return part

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe, with all defaults."""
        return self.state.started.recipe if self.state.started else {}

    @cached_property
    def state(self) -> RunState:
        """Steps, evaluations, checkpoints and failures."""
        if self.history.progress.first <= 1:
            return recorded_state(self.history)
        state = RunState()
        known = self._log.restore(state)
        for envelope in self._log.read_all():
            if envelope.sequence > known:
                state.receive(envelope)
        return state

    @cached_property
    def steps(self) -> Table:
        """One row per step, counted from 1, with all its metrics."""
        return Table.of(
            "steps", STEPS, ({"step": step.number, "time": step.time, **step.metrics} for step in self.state.steps)
        )

    @cached_property
    def evaluations(self) -> Table:
        """One row per evaluation on held-out tasks, with the reward function's numbers."""
        times = self.history.query("SELECT completed_at FROM evaluation WHERE mode <> 'examples' ORDER BY completed")
        missing: list[float | None] = [None] * (len(self.state.evaluations) - len(times))
        rows = (
            {field: getattr(evaluation, field, time) for field in EVALUATIONS} | evaluation.reward_metrics
            for evaluation, time in zip(self.state.evaluations, [*missing, *times], strict=True)
        )
        return Table.of("evaluations", EVALUATIONS, rows)

    @cached_property
    def episodes(self) -> Table:
        """One row per ended attempt at an episode; `step` is the one that trained it, None if none did."""
        return Table.of("episodes", EPISODES, (episode_row(ended) for ended in self.records.ended.values()))

    @cached_property
    def interactions(self) -> Table:
        """One row per completed model call of ended attempts.

        They have texts and log-probabilities if the log has them: of exported episodes, and as `[log.conversations]`
        keeps others.
        """
        return Table.of(
            "interactions",
            INTERACTIONS,
            (row for ended in self.records.ended.values() for row in interaction_rows(ended, self.text)),
        )

    def tokens(self, episode: str = "") -> Table:
        """One row per sampled token of exported episodes, or of one episode, trained or not.

        It has the id, text, log-probability and weight version as sampled.
        """
        columns: dict[str, list[Any]] = {field: [] for field in TOKENS}
        for ended in self.records.ended.values():
            for call in ended.interactions if episode == ended.episode or (ended.trajectory and not episode) else ():
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
        """One row per event of the log, or per event of one subject.

        The message is JSON, with bytes as their number.
        """
        rows = (_event(envelope) for envelope in self._log.read_all() if subject in ("", envelope.subject))
        return Table.of("events", EVENTS, rows)

    @cached_property
    def tokenizer(self) -> ChatTokenizer | None:
        """The model's tokenizer; None for an exported log, which does not hold it."""
        if self.folder is None or not self.history.progress.model:
            return None
        tokenizer: ChatTokenizer = TOKENIZER.ChatTokenizer.load(str(self.folder / self.history.progress.model))
        return tokenizer

    def text(self, ids: list[int]) -> str | None:
        """Returns the text of token ids with special tokens; None without a tokenizer."""
        return self.tokenizer.decode(ids, skip_special=False) if self.tokenizer else None

    def __repr__(self) -> str:
        ended = self.history.value("SELECT count(*) FROM attempt WHERE ended IS NOT NULL")
        return f"<run {self.name}: {len(self.state.steps)} steps, {ended:,} ended episodes>"


def open_run(run: str | Path = "", *, folder: str | Path = "runs") -> Run:
    """Open a run by its name, its folder or its exported log; without an argument, the latest of `folder`.

    A live run is read as far as it has come; it is not affected. What a finished run's `history.sqlite` has is read
    from there; for texts and tokens its log is served by a nats-server for as long as it is read. Memory of a table
    with texts: about the size of the log.

    Raises:
        SetupError: there is no such run, its log is on an external server and the run is over, or the file is no log.
        BusError: its log cannot be opened. Of a damaged log the events before the damage are read, and `notice` names
            it.
    """
    path = Path(run)
    if path.is_file():
        return _open_file(path)
    place = run_folder(str(run), Path(folder))
    history = read_history(place)
    return Run(place.path.name, history, log=FolderLog(place, history.progress.last), folder=place.path)


def _open_file(path: Path) -> Run:
    history = history_of_file(path)
    return Run(history.progress.run or path.name, history, log=FileLog(path, history.progress.last), folder=None)


def _event(envelope: Envelope) -> dict[str, Any]:
    row = {field: getattr(envelope, field) for field in EVENTS if field != "message"}
    return row | {"message": json.dumps(_plain(fields_of(envelope)), ensure_ascii=False)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
