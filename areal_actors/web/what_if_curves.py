"""Curves of `areal-actors what-if --json`, to be laid over the recorded ones."""

from __future__ import annotations

from pathlib import Path

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError


class WhatIfCurves(msgspec.Struct, frozen=True):
    """Metrics of the steps that other settings would have trained."""

    label: str
    """The settings."""
    steps: list[dict[str, float]]
    """Metrics of each step, from the first."""
    first_change: int
    """First step that differs from the recorded one; 0 if there is none."""


class _Side(msgspec.Struct):
    steps: list[dict[str, float | None]]


class _Trained(msgspec.Struct):
    metrics: list[dict[str, float | None]]


class _Comparison(msgspec.Struct):
    settings: list[str]
    replayed: _Side
    first_change: int = 0
    trained: tuple[_Trained, _Trained] | None = None


def read_curves(path: Path) -> WhatIfCurves:
    """Returns the curves of a file.

    Raises:
        SetupError: it cannot be read, or is something else.
    """
    try:
        return curves_of(path.read_bytes())
    except OSError as error:
        raise SetupError(f"--what-if {path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        reason = f"--what-if {path}: is not the output of `{COMMAND} what-if RUN KEY=VALUE --json`: {error}"
        raise SetupError(f"{reason}; write it with `> {path}`") from error


def curves_of(answer: bytes) -> WhatIfCurves:
    """Returns the curves of the output of `areal-actors what-if --json`.

    Raises:
        MsgspecError: it is something else.
    """
    comparison = msgspec.json.decode(answer, type=_Comparison)
    trained = comparison.trained[1].metrics if comparison.trained else []
    steps = []
    for number, metrics in enumerate(comparison.replayed.steps):
        both = {**metrics, **(trained[number] if number < len(trained) else {})}
        steps.append({name: value for name, value in both.items() if value is not None})
    return WhatIfCurves(label=", ".join(comparison.settings), steps=steps, first_change=comparison.first_change)
