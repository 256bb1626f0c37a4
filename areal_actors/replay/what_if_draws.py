"""`areal-actors what-if RUN task.curriculum.KEY=VALUE`: the tasks that another schedule would have drawn.

The groups of a recorded run end as they did; a task has the result of its recorded group nearest in the order of
groups. What a task that was never drawn would have given is not known, and is counted as that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.decoding import decode
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.layers import Layer
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import CapacityGranted, EpisodeScored, RunStarted
from areal_actors.processes.fold_actors import open_draws
from areal_actors.recipe.checks import problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.replay.command import log_of
from areal_actors.tasks.curriculum.schedule import SUCCESS, Schedule
from areal_bus.base import Envelope

EVENTS = {kind.subject: kind for kind in (RunStarted, CapacityGranted, EpisodeScored)}
OUTCOMES = ("mixed", "solved", "unsolved", "unknown")
"""Results of a group: successes and failures, from which group-relative algorithms learn; one of them only; no
record."""


class RecordedDraws(msgspec.Struct):
    """Grants and results of a run, in the order of its log."""

    recipe: dict[str, Any] = {}
    order: list[tuple[str, int]] = []
    """`grant` of a group, or `end` of one with a score for each of its episodes."""
    tasks: dict[int, str] = {}
    """Task by group."""
    scores: dict[int, dict[str, bool]] = {}
    """Success or failure of each scored episode, by group."""

    async def read(self, log: AsyncIterator[Envelope]) -> None:
        """Read a log from its first event.

        Raises:
            SetupError: its beginning was trimmed.
        """
        async for envelope in log:
            if (kind := EVENTS.get(envelope.subject)) is None:
                continue
            match envelope.open(kind):
                case RunStarted() as started:
                    self.recipe = started.recipe
                case CapacityGranted() as granted:
                    groups = range(granted.first_group, granted.first_group + granted.groups)
                    self.order += (("grant", number) for number in groups)
                case EpisodeScored() as scored if scored.work.purpose == "train":
                    self._score(scored)
        if not self.recipe:
            raise SetupError('the log has no start of its run; log.keep = "all" keeps the events of a whole run')

    def _score(self, event: EpisodeScored) -> None:
        number, by_call = int(event.work.group), list(event.rewards.values())
        reward = event.reward if event.reward is not None else by_call[-1] if by_call else None
        if reward is None:
            return
        scores = self.scores.setdefault(number, {})
        self.tasks[number] = event.work.task.id
        scores[event.work.episode] = reward >= SUCCESS
        if len(scores) == self.recipe["algorithm"]["group_size"]:
            self.order.append(("end", number))


class DrawComparison(msgspec.Struct):
    """Draws as recorded, and with the settings."""

    settings: list[str]
    recorded: dict[str, int]
    """Groups by result."""
    drawn: dict[str, int]
    tasks: tuple[int, int]
    """Different tasks on each side."""
    equal: int
    """Groups with the recorded task."""
    pools: dict[str, int]
    """Tasks by pool at the end, with the settings."""

    def to_text(self) -> str:
        """Returns the comparison as lines of text."""
        return "\n".join([f"draws with {', '.join(self.settings)}", "", *self._lines()])

    def _lines(self) -> Iterator[str]:
        yield f"{'':<28}  {'recorded':>10}  {'what if':>10}"
        yield f"{'groups':<28}  {sum(self.recorded.values()):>10,}  {sum(self.drawn.values()):>10,}"
        yield f"{'  of the recorded task':<28}  {'':>10}  {self.equal:>10,}"
        yield f"{'different tasks':<28}  {self.tasks[0]:>10,}  {self.tasks[1]:>10,}"
        for name in OUTCOMES:
            yield f"{'groups ' + name:<28}  {self.recorded.get(name, 0):>10,}  {self.drawn.get(name, 0):>10,}"
        yield ""
        yield "tasks at the end: " + ", ".join(f"{size:,} {pool}" for pool, size in self.pools.items())
        yield (
            "a task has the result of its recorded group nearest in order; a policy trained on other tasks would have"
            " had others, so the figures show what the recorded run knew, not the run that would have followed"
        )


async def compare_draws(place: RunFolder | None, file: Path, settings: list[str], over: Layer) -> DrawComparison:
    """Returns the draws of a run as recorded, and under another schedule.

    Raises:
        RecipeError: the settings are invalid.
        SetupError: the log was trimmed.
    """
    recorded = RecordedDraws()
    async with aclosing(log_of(place, file)) as log:
        await recorded.read(log)
    recipe = _with_settings(recorded.recipe, over)
    tasks = open_draws(recipe, place or RunFolder(Path(recipe.folder) / recipe.run))
    assert isinstance(tasks, Schedule), "the settings have a curriculum"
    by_task: dict[str, list[int]] = {}
    for number, task in recorded.tasks.items():
        by_task.setdefault(task, []).append(number)
    drawn: dict[int, str] = {}
    results: Counter[str] = Counter()
    for kind, number in recorded.order:
        if kind == "grant":
            drawn[number] = tasks.task(number).id
            continue
        groups = by_task.get(drawn[number], [])
        nearest = min(groups, key=lambda group: abs(group - number), default=None)
        successes = [] if nearest is None else list(recorded.scores[nearest].values())
        for member in range(recipe.algorithm.group_size):
            reward = float(successes[member]) if member < len(successes) else None
            tasks.end_episode(number, str(member), reward)
        results[_outcome(successes)] += 1
    ended = [number for kind, number in recorded.order if kind == "end"]
    return DrawComparison(
        settings=settings,
        recorded=Counter(_outcome(list(recorded.scores[number].values())) for number in ended),
        drawn=results,
        tasks=(len({recorded.tasks[number] for number in ended}), len({drawn[number] for number in ended})),
        equal=sum(recorded.tasks[number] == drawn[number] for number in ended),
        pools=_total(tasks),
    )


def _outcome(successes: list[bool]) -> str:
    if not successes:
        return "unknown"
    return "solved" if all(successes) else "mixed" if any(successes) else "unsolved"


def _total(tasks: Schedule) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for sizes in tasks.sizes().values():
        totals.update(sizes)
    return dict(totals)


def _with_settings(recorded: dict[str, Any], over: Layer) -> Recipe:
    below = {**recorded, "task": {**recorded["task"], "curriculum": recorded["task"].get("curriculum") or {}}}
    recipe, complaints = decode(over.over(Layer(below, {})), Recipe)
    if recipe is not None:
        complaints += [
            problem.sentence(over.place(problem.key))
            for problem in problems(recipe)
            if problem.key[:2] == ("task", "curriculum")
        ]
    if recipe is None or complaints:
        raise RecipeError("\n".join(complaints))
    return recipe
