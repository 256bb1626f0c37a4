"""An episode of another program, read from a row of its rollouts or from a trajectory in ATIF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.values import Trajectory
from areal_actors.export.atif import from_atif, is_own

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "input", "prompts", "question", "messages"),
    "completion": ("completion", "output", "response", "completions", "outputs"),
    "reward": ("reward", "score", "rewards", "scores"),
    "answer": ("answer", "gts", "ground_truth", "solution", "reference_answer"),
    "group": ("group", "group_id", "uid", "prompt_id"),
    "step": ("step", "global_step", "training_step"),
}
"""Columns by what they hold: those of verl's `rollout_data_dir`, of TRL's completions, of AReaL's dumps."""
OWN_WORDS = re.compile(r"ATIF-v\d")


class ForeignEpisode(msgspec.Struct, kw_only=True):
    """One episode; tokens and log-probabilities only where the other program wrote them."""

    place: str
    """File and row, for messages."""
    prompt: str
    """Text of its first prompt."""
    completion: str
    """Text of its last answer."""
    reward: float | None
    """None if the row has none; the episode is then abandoned, and never trained."""
    group: str = ""
    """Name of its group; empty for the episodes of the same prompt and step."""
    step: int = 0
    """Step that trained it, counted from 1; 0 if unknown."""
    metrics: dict[str, float] = {}
    """Other numbers of the row."""
    data: dict[str, Any] = {}
    """Other fields of the row: the task."""
    time: float = 0.0
    """Seconds since the epoch; 0 if unknown."""
    trajectory: Trajectory | None = None
    """The episode as this program exported it."""


def read_row(row: Mapping[str, Any], columns: Mapping[str, str], place: str) -> ForeignEpisode:
    """Returns the episode of a row.

    Args:
        row: a row, or an ATIF document.
        columns: column by what it holds, where its name is none of `COLUMNS`.
        place: file and row, for messages.

    Raises:
        SetupError: it has neither prompt and completion nor the form of ATIF; names the columns and the remedy.
    """
    if OWN_WORDS.match(str(row.get("schema_version", ""))):
        return _read_trajectory(row, columns, place)
    names = {kind: _column(row, kind, columns, place) for kind in COLUMNS}
    for kind in ("prompt", "completion"):
        if names[kind] is None:
            raise SetupError(
                f"{place}: no column holds the {kind}; found {', '.join(row)}: name it with --column {kind}=NAME"
            )
    values = {kind: row[name] for kind, name in names.items() if name is not None}
    others = {name: value for name, value in row.items() if name not in names.values()}
    return ForeignEpisode(
        place=place,
        prompt=_as_text(values["prompt"]),
        completion=_as_text(values["completion"]),
        reward=_as_number(values.get("reward"), f"{place}: {names['reward']}"),
        group=str(values.get("group", "")),
        step=_as_step(values.get("step"), f"{place}: {names['step']}"),
        metrics={name: float(value) for name, value in others.items() if _is_number(value)},
        data={name: value for name, value in others.items() if not _is_number(value)}
        | ({"answer": _as_text(values["answer"])} if "answer" in values else {}),
    )


def _column(row: Mapping[str, Any], kind: str, columns: Mapping[str, str], place: str) -> str | None:
    if kind in columns:
        if columns[kind] not in row:
            raise SetupError(f"{place}: there is no column `{columns[kind]}`; found {', '.join(row)}")
        return columns[kind]
    return next((name for name in COLUMNS[kind] if name in row), None)


def _read_trajectory(document: Mapping[str, Any], columns: Mapping[str, str], place: str) -> ForeignEpisode:
    steps = document.get("steps") or []
    if not all(isinstance(step, Mapping) and "source" in step for step in steps) or not steps:
        raise SetupError(f"{place}: a trajectory without `steps`, or with one without `source`")
    texts = [(step["source"], _as_text(step.get("message") or "")) for step in steps]
    extra = {**((document.get("final_metrics") or {}).get("extra") or {}), **(document.get("extra") or {})}
    name = columns.get("reward", "reward")
    own = from_atif(document) if is_own(document) else None
    return ForeignEpisode(
        place=place,
        prompt="\n".join(_before_agent(texts)),
        completion=next((text for source, text in reversed(texts) if source == "agent"), ""),
        reward=own.reward if own else _as_number(extra.get(name), f"{place}: extra.{name}"),
        group=own.group if own else str(extra.get("group", "")),
        metrics=own.metrics if own else {key: float(value) for key, value in extra.items() if _is_number(value)},
        data={"session_id": document.get("session_id") or "", "steps": steps if own is None else []},
        trajectory=own,
    )


def _before_agent(texts: list[tuple[str, str]]) -> Iterator[str]:
    for source, text in texts:
        if source == "agent":
            return
        yield text


def _as_text(value: Any) -> str:
    """Returns a text, the text of chat messages, or JSON of anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return "\n".join(_as_text(part.get("content", part.get("text")) or "") for part in value)
    return msgspec.json.encode(value).decode()


def _as_step(value: Any, place: str) -> int:
    try:
        return int(value or 0)
    except (TypeError, ValueError) as error:
        raise SetupError(f"{place}: the step is {value!r:.60}; expected a whole number") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _as_number(value: Any, place: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, bool) and not _is_number(value):
        raise SetupError(f"{place}: the reward is {value!r:.60}; expected a finite number")
    return float(value)
