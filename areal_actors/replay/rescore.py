"""Scores the recorded outputs of a run again with another reward function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from math import inf, isclose
from typing import Any

from areal_actors.core.errors import RewardError
from areal_actors.core.span_rewards import SpanReward
from areal_actors.core.values import Value
from areal_actors.messages import EpisodeScored
from areal_actors.rewards import Reward, Score, check_score
from areal_bus.base import Envelope

ROUNDING = 1e-9


class RewardedParts(Value):
    """Rewards of spans and of calls, as a reward function stated them."""

    spans: tuple[SpanReward, ...] = ()
    places: dict[str, float] = {}


class Rescored(Value):
    """A recorded output with the reward that it had and the one that it gets now."""

    episode: str
    attempt: int
    sequence: int
    """Sequence of its `episode.scored` in the log."""
    task: str
    output: str
    recorded: float
    now: float | None
    """None if the reward function failed."""
    error: str = ""
    """Error of the reward function; empty if there was none."""
    metrics: dict[str, float] = {}
    """Further numbers that it gets now."""
    parts: RewardedParts = RewardedParts()
    """Rewards of its parts now."""
    recorded_parts: RewardedParts = RewardedParts()
    """Those that it had."""
    recorded_metrics: dict[str, float] = {}
    """Further numbers that it had."""

    def differs(self) -> bool:
        """True if the rewards differ by more than rounding, or the reward function failed."""
        return self.now is None or abs(self.now - self.recorded) > ROUNDING

    def differing_metrics(self) -> list[str]:
        """Returns the names of further numbers that differ by more than rounding, or that one side lacks.

        None without an output: an episode that the model ended was not given to the reward function.
        """
        return [
            name
            for name in sorted(self.metrics.keys() | self.recorded_metrics.keys())
            if self.output
            and not isclose(
                self.metrics.get(name, inf), self.recorded_metrics.get(name, inf), rel_tol=ROUNDING, abs_tol=ROUNDING
            )
        ]


async def rescore(
    envelope: Envelope, reward: Reward, tasks: Mapping[str, Mapping[str, Any]] | None = None
) -> Rescored | None:
    """Returns the scores of an `episode.scored` event.

    None for any other event, and if the agent set its rewards itself. `tasks`: rows by episode, with the verdicts of
    judges, that replace the recorded ones.
    """
    if envelope.subject != EpisodeScored.subject:
        return None
    event = envelope.open(EpisodeScored)
    if event.reward is None:
        return None
    data = (tasks or {}).get(event.work.episode, event.work.task.data)
    now, error = await _score(reward, data, event.output)
    work = event.work
    return Rescored(
        episode=work.episode,
        attempt=work.attempt,
        sequence=envelope.sequence,
        task=work.task.id,
        output=event.output,
        recorded=event.reward,
        now=None if now is None else float(now),
        error=error,
        metrics={} if now is None else dict(now.metrics),
        parts=RewardedParts() if now is None else RewardedParts(spans=now.spans, places=dict(now.places)),
        recorded_parts=RewardedParts(spans=event.spans, places=event.places),
        recorded_metrics=event.metrics,
    )


async def _score(reward: Reward, task: Mapping[str, Any], output: str) -> tuple[Score | None, str]:
    try:
        value = reward(dict(task), output)
        return check_score(await value if inspect.isawaitable(value) else value), ""
    except RewardError as error:
        return None, str(error)
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    # The user's function may raise anything: pytest's outcomes are no `Exception`
    except BaseException as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"


async def rescored_log(log: Iterator[Envelope], reward: Reward) -> AsyncIterator[Rescored]:
    """Yields every scored episode of a log, in order."""
    for envelope in log:
        if (rescored := await rescore(envelope, reward)) is not None:
            yield rescored
