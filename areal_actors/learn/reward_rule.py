"""A rule of the user's own that turns feedback into the reward that is learned, with the texts of the call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.core.loading import load_named
from areal_actors.learn.recorded_calls import RecordedSessions
from areal_actors.reader.run import Run
from areal_actors.replay.group_bootstrap import Interval, group_intervals
from areal_actors.supervised.recorded_session import RecordedRow

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

Rule = Callable[[float, str, str], float | None]
"""Reward by feedback, prompt and answer, both as the model had them; None leaves the call out."""
LEFT_OUT = "no reward by the rule"


def load_rule(spec: str) -> Rule:
    """Returns the function of `FILE.py:FUNCTION`.

    Raises:
        SetupError: there is no such file or function.
    """
    rule: Rule = load_function(spec)
    return rule


def load_function(spec: str) -> Any:
    """Returns the function of `--reward FILE.py:FUNCTION`, relative to the working folder.

    Raises:
        SetupError: there is no such file or function.
    """
    function = load_named(spec, Path.cwd())
    if not callable(function):
        raise SetupError(f"--reward: `{spec}` is no function; write FILE.py:FUNCTION")
    return function


def apply_rule(read: RecordedSessions, rule: Rule, spec: str, run: Run) -> str:
    """Give the judged calls of a run the rewards of a rule; those without one become context.

    Returns:
        A sentence about what it changed.

    Raises:
        SetupError: the rule failed, or returned no finite number; names the session.
    """
    changed = 0
    before = {(call.row, call.call): call.reward for call in read.calls}
    rewards = dict[tuple[int, int], float | None]()
    for call in read.calls:
        row = read.rows[call.row]
        end = row.calls[call.call].end
        answer = run.text(row.input_ids[len(call.prompt) : end]) or ""
        reward = _reward(rule, call.reward, run.text(list(call.prompt)) or "", answer, spec, call.session)
        rewards[call.row, call.call] = reward
        changed += reward != call.reward
    read.rows[:] = [_with_rewards(row, number, rewards) for number, row in enumerate(read.rows)]
    left = [call for call in read.calls if rewards[call.row, call.call] is None]
    read.calls[:] = [
        msgspec.structs.replace(call, reward=reward)
        for call in read.calls
        if (reward := rewards[call.row, call.call]) is not None
    ]
    kept = [(call.session, before[call.row, call.call], call.reward) for call in read.calls]
    compared = f"; {_compare(kept)}" if kept else ""
    return f"reward: {spec} changed {changed} of {len(rewards)} rewards, and left {len(left)} calls out{compared}"


def _compare(calls: Sequence[tuple[str, float, float]]) -> str:
    """Returns both means and the share of changed signs, with intervals by resampling sessions."""
    names = {name: number for number, name in enumerate(dict.fromkeys(session for session, _, _ in calls))}
    owners = np.array([names[session] for session, _, _ in calls])
    rewards = np.array([[feedback, reward] for _, feedback, reward in calls])
    relative = np.sign(rewards - rewards.mean(axis=0))
    columns = (np.ones(len(calls)), rewards[:, 0], rewards[:, 1], relative[:, 0] != relative[:, 1])
    sums = np.stack([np.bincount(owners, column, len(names)) for column in columns], axis=1).astype(np.float64)
    figures = {
        name: lambda totals, column=column: totals[..., column] / totals[..., 0]
        for column, name in enumerate(("feedback", "reward", "signs"), start=1)
    }
    found = group_intervals(sums, figures, ranges={"signs": (0.0, 1.0)})
    feedback, reward, signs = (found[name] for name in figures)
    return (
        f"mean of the feedback {_in_text(feedback)}, of the rule {_in_text(reward)}; the share of calls that change"
        f" between better and worse than the mean is {_in_text(signs)}"
    )


def _in_text(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def drop_empty(read: RecordedSessions) -> None:
    """Leave out the rows without a token to learn, and number those of the calls anew."""
    kept = [number for number, row in enumerate(read.rows) if row.is_preference() or any(row.completion_mask)]
    places = {number: place for place, number in enumerate(kept)}
    read.left_out += Counter({LEFT_OUT: len(read.rows) - len(kept)})
    read.rows[:] = [read.rows[number] for number in kept]
    read.calls[:] = [msgspec.structs.replace(call, row=places[call.row]) for call in read.calls if call.row in places]


def _reward(rule: Rule, feedback: float, prompt: str, answer: str, spec: str, session: str) -> float | None:
    try:
        reward = rule(feedback, prompt, answer)
    except Exception as error:
        raise SetupError(f"--reward: {spec} raised {error!r} for session {session}") from error
    if reward is not None and not math.isfinite(reward):
        raise SetupError(
            f"--reward: {spec} returned {reward!r} for session {session}, expected a finite number or None"
        )
    return None if reward is None else float(reward)


def _with_rewards(row: RecordedRow, number: int, rewards: dict[tuple[int, int], float | None]) -> RecordedRow:
    mask, calls = list(row.completion_mask), list(row.calls)
    for place, call in enumerate(row.calls):
        reward = rewards.get((number, place), call.reward)
        if reward is None:
            mask[call.start : call.end] = [0] * (call.end - call.start)
        else:
            calls[place] = msgspec.structs.replace(call, reward=reward)
    return msgspec.structs.replace(row, completion_mask=mask, calls=calls)
