"""A rule of the user's own that turns feedback into the reward that is learned, with the texts of the call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.loading import load_named
from areal_actors.learn.recorded_calls import RecordedSessions
from areal_actors.reader.run import Run
from areal_actors.supervised.recorded_session import RecordedRow

Rule = Callable[[float, str, str], float | None]
"""Reward by feedback, prompt and answer, both as the model had them; None leaves the call out."""
LEFT_OUT = "no reward by the rule"


def load_rule(spec: str) -> Rule:
    """Returns the function of `FILE.py:FUNCTION`.

    Raises:
        SetupError: there is no such file or function.
    """
    rule: Rule = load_named(spec, Path.cwd())
    if not callable(rule):
        raise SetupError(f"--reward: `{spec}` is no function; write FILE.py:FUNCTION")
    return rule


def apply_rule(read: RecordedSessions, rule: Rule, spec: str, run: Run) -> str:
    """Give the judged calls of a run the rewards of a rule; those without one become context.

    Returns:
        A sentence about what it changed.

    Raises:
        SetupError: the rule failed, or returned no finite number; names the session.
    """
    changed = 0
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
    return f"reward: {spec} changed {changed} of {len(rewards)} rewards, and left {len(left)} calls out"


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
