"""`areal-actors why`: who waits for whom in a run, which bound limits it, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from areal_actors import __version__
from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.display.limit import limit_of, with_chosen_limits
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import duration, model_ends_text
from areal_actors.display.waiting import BOUNDS, waiting_summary
from areal_actors.display.warnings import attention
from areal_actors.folder.next_commands import run_command
from areal_actors.folder.run_folder import RunFolder
from areal_actors.lint.fault import LearningFault
from areal_actors.lint.rules import to_lines
from areal_actors.messages import LoadMeasured
from areal_actors.reader.run import Run, open_run
from areal_actors.recipe.limits import Limit, limits
from areal_actors.recipe.recipe import Recipe, recorded_recipe
from areal_actors.replay.measured_load import LimitVerdict, describe_served, measured_lines
from areal_actors.replay.time_shares import LogFindings, OpenWait, TimeShares, share
from areal_actors.reward_hacking.alarm import HackAlarm
from areal_actors.scaling.balance import Recommendation, mean_load, recommend
from areal_actors.scaling.limit import has_free_core

log_findings: Any = LazyModule("areal_actors.replay.log_findings")
ANSWER = f"why 2 of {__version__}"
"""Name of what is kept of the log in the history; its number is that of `LogFindings`."""
BALANCED = 0.1
"""Share of waiting up to which the trainer counts as busy all the time."""
MAIN = 0.5
"""Share of the time from which a bound is named as the cause."""
LONG_PUBLISHING = 0.2
"""Share of the time from which publishing weights is mentioned."""
MOST_ALARMS = 3
"""Number of features that are printed."""
OPEN_WAITS = 8
"""Number of open waits that are printed."""


class Why(msgspec.Struct, kw_only=True):
    """Findings about the limit of a run."""

    run: str
    status: str
    """`live`, `finished`, `ended early`, or `not finished`."""
    step: int
    steps: int
    seconds: float
    shares: TimeShares
    limits: list[Limit]
    """Limits of concurrent episodes, the lowest first."""
    without_gate: str
    """Reason why the gate's bounds are not known; empty if they are."""
    now: str
    """Sentence about the present wait of a live run."""
    open_waits: list[OpenWait]
    attention: list[str]
    """Causes for which it may not learn."""
    ended_by_model: str
    """Sentence about the episodes that the model itself ended; empty if there are none."""
    signal: list[LearningFault]
    """The same from its first episodes."""
    hacks: list[HackAlarm] = []
    """Features of outputs that are paid whatever the task."""
    show: str
    """Command that shows an episode."""
    workers: list[Recommendation]
    """Number of workers of each role that would balance the run; empty if its load was not measured."""
    load: LoadMeasured | None = None
    """Mean load, of which the verdict is; None if it was not measured."""
    verdict: str
    advice: list[str]
    further: list[str] = []
    """At most two further findings."""

    def to_text(self) -> str:
        """Returns the findings as lines of text."""
        steps = f", step {self.step} of {self.steps}" if self.steps else ""
        lines = [f"{self.run}: {self.status}{steps}, {duration(self.seconds)}", "", self.verdict]
        lines += [*(f"  - {sentence}" for sentence in self.advice), *(f"  also: {also}" for also in self.further), ""]
        return "\n".join([*lines, *self.figures()])

    def figures(self) -> list[str]:
        """Returns the figures behind the verdict as lines, each with a label in its first twelve columns."""
        lines = measured_lines(self.load) if self.load is not None else list(self._share_lines())
        lines += [
            f"{'limits' if number == 0 else '':<12}{limit.setting}: {limit.count}"
            for number, limit in enumerate(self.limits)
        ]
        lines += [f"{'workers' if number == 0 else '':<12}{_workers(one)}" for number, one in enumerate(self.workers)]
        lines += [f"{'now':<12}{self.now}"] if self.now else []
        for wait in self.open_waits[:OPEN_WAITS]:
            lines.append(
                f"{'':<12}{wait.actor} waits {wait.seconds:.0f} s for {wait.name}, for {wait.seconds_left:.0f} s more"
                " at most"
            )
        lines += [f"{'ended':<12}{self.ended_by_model}"] if self.ended_by_model else []
        lines += [
            f"{'attention' if number == 0 else '':<12}{sentence}" for number, sentence in enumerate(self.attention)
        ]
        lines += to_lines(self.signal, self.show)
        lines += [
            f"{'reward' if number == 0 else '':<12}{line}"
            for number, line in enumerate(line for alarm in self.hacks[:MOST_ALARMS] for line in alarm.lines())
        ]
        return lines

    def _share_lines(self) -> Iterator[str]:
        """Yield lines about the time of a run whose load was not measured."""
        yield f"{'trainer':<12}{_shares(self.shares.trainer) or 'no time on record'}"
        if self.shares.bounds:
            yield f"{'gate':<12}while the trainer waits: {_bounds(self.shares.bounds)}"
        if self.shares.bounds_in_training:
            yield f"{'':<12}while it trains: {_bounds(self.shares.bounds_in_training)}"
        if self.without_gate:
            yield f"{'gate':<12}not known: {self.without_gate}"
        if self.shares.counted_seconds:
            yield f"{'in flight':<12}while the trainer waits, on average: {', '.join(self._in_flight())}"

    def _in_flight(self) -> Iterator[str]:
        seconds = self.shares.counted_seconds
        yield f"{self.shares.complete / seconds:.1f} complete groups"
        for stage, spent in sorted(self.shares.stages.items(), key=lambda stage_seconds: -stage_seconds[1]):
            yield f"{spent / seconds:.1f} episodes {stage}"


def why(run: str, *, folder: Path, as_json: bool = False) -> int:
    """Print what limits a live, finished or exported run; returns the exit status.

    Raises:
        SetupError: there is no such run, or another version wrote its recipe.
        BusError: its log cannot be read.
    """
    explanation = _find_out(run, folder)
    sys.stdout.write(f"{msgspec.json.encode(explanation).decode() if as_json else explanation.to_text()}\n")
    return 0


def _find_out(run: str, folder: Path) -> Why:
    opened = open_run(run, folder=folder)
    state, place = opened.state, RunFolder(opened.folder) if opened.folder else None
    if state.started is None:
        raise SetupError(f"the log of {run or 'the run'} has no event of its start; there is nothing to explain yet")
    recipe = recorded_recipe(state.started.recipe)
    found = _fold(opened, Path(run), recipe)
    recipe = with_chosen_limits(recipe, state)
    shares = found.shares
    live = place is not None and bool(place.live_supervisor()) and state.finished is None
    waits: list[OpenWait] = log_findings.listen(place, state) if live else []
    verdict = _judge(opened, recipe, shares)
    loads = [] if recipe.is_served() else state.loads
    return Why(
        run=state.run,
        status=_status(state, live=live),
        step=state.steps[-1].number if state.steps else 0,
        steps=0 if recipe.is_served() else state.steps_wanted(),
        seconds=sum(shares.trainer.values()),
        shares=shares,
        limits=[] if recipe.learns_from_examples() else sorted(limits(recipe), key=lambda limit: limit.episodes),
        without_gate=found.without_gate,
        now=waiting_summary(state) if live else "",
        open_waits=waits,
        attention=attention(state),
        ended_by_model=model_ends_text(state.episodes),
        show=run_command("show", place.path.name if place is not None else state.run, str(folder)),
        signal=found.signal,
        hacks=found.hacks,
        workers=_recommend(loads, recipe),
        load=mean_load(loads),
        verdict=verdict.sentence,
        advice=list(verdict.advice),
        further=list(verdict.further),
    )


def _judge(opened: Run, recipe: Recipe, shares: TimeShares) -> LimitVerdict:
    """Returns what limits a run: by its measured load, else by its time shares."""
    if recipe.is_served():
        return describe_served(opened)
    if "trains" in shares.trainer and (found := limit_of(opened.state, recipe)) is not None:
        return LimitVerdict(found.sentence, found.advice, found.further)
    sentence, advice = advise(shares, recipe)
    return LimitVerdict(sentence, tuple(advice))


def _fold(opened: Run, file: Path, recipe: Recipe) -> LogFindings:
    """Returns the findings that need the whole log; of a log that has not grown, those of an earlier command."""
    if kept := opened.history.answer(ANSWER):
        return msgspec.msgpack.decode(kept, type=LogFindings)
    found: LogFindings = log_findings.fold_log(opened.folder, file, recipe)
    opened.history.keep_answer(ANSWER, msgspec.msgpack.encode(found))
    return found


def _status(state: RunState, *, live: bool) -> str:
    if live:
        return "live"
    if state.finished is None:
        return "not finished"
    return "ended early" if state.finished.error else "finished"


def advise(shares: TimeShares, recipe: Recipe) -> tuple[str, list[str]]:
    """Returns the sentence that names what limits a run, and what to change."""
    if "trains" not in shares.trainer:
        return "no step has been trained yet: there is nothing to compare", []
    waiting = shares.waiting()
    if recipe.learns_from_examples():
        return f"the trainer limits this run: it waits for examples in {waiting:.0%} of the time", list(
            _faster_training(shares)
        )
    if waiting <= BALANCED:
        return f"training limits this run: the trainer waits for batches in only {waiting:.0%} of the time", [
            *_faster_training(shares),
            *_idle_engines(shares),
        ]
    return f"generation limits this run: the trainer waits for batches in {waiting:.0%} of the time", list(
        _more_episodes(shares, recipe)
    )


def _faster_training(shares: TimeShares) -> Iterator[str]:
    if (published := share(shares.trainer, "publishes weights")) > LONG_PUBLISHING:
        yield (
            f'publishing weights takes {published:.0%} of the time: trainer.published_dtype = "bfloat16" halves their'
            " size"
        )
    yield (
        "more devices or threads for the trainer (actors.trainer, trainer.threads), or fewer tokens a step"
        " (trainer.batch_size)"
    )


def _idle_engines(shares: TimeShares) -> Iterator[str]:
    held = share(shares.bounds_in_training, "staleness")
    if held >= MAIN:
        yield (
            f"generation stands still in {held:.0%} of the training time, since staleness_gate.max_staleness is"
            " reached: fewer inference workers would do"
        )


def _more_episodes(shares: TimeShares, recipe: Recipe) -> Iterator[str]:
    """Yield what makes batches come sooner, by the bound of the gate that held most while the trainer waited."""
    gate, bounds = recipe.staleness_gate, shares.bounds
    if (held := share(bounds, "staleness")) >= MAIN:
        yield from _younger(held, recipe)
    if (held := share(bounds, "concurrency")) >= MAIN:
        yield (
            f"staleness_gate.max_concurrent = {gate.max_concurrent} is reached in {held:.0%} of the waiting time: raise"
            " it if engines have room, else add inference workers"
        )
    if (held := share(bounds, "evaluation")) >= MAIN:
        yield (
            f"evaluations hold back new groups in {held:.0%} of the waiting time: raise evaluation.every_steps, or"
            " lower evaluation.periodic_tasks"
        )
    if (held := share(bounds, "weights")) >= MAIN:
        yield (
            f'weights are still to be loaded in {held:.0%} of the waiting time: trainer.published_dtype = "bfloat16"'
            " halves their size"
        )
    if (held := share(bounds, "steps")) >= MAIN:
        yield (
            f"in {held:.0%} of the waiting time all groups of the remaining steps are running: a longer run has less of"
            f" it, and with staleness_gate.surplus_groups = {recipe.trainer.batch_size} asynchronous training does not"
            " wait for the slowest of them"
        )
    if (held := share(bounds, "none")) >= MAIN:
        yield (
            f"no bound of the gate is reached in {held:.0%} of the waiting time: groups start as fast as workers take"
            " them"
        )
    lowest = min(limits(recipe), key=lambda limit: limit.episodes)
    if lowest.episodes < limits(recipe)[0].episodes and not lowest.setting.startswith("staleness_gate"):
        yield f"{lowest.setting} = {lowest.value} is the lowest limit of concurrent episodes ({lowest.count}): raise it"
    if share(shares.stages, "waiting for others of the group") >= MAIN:
        yield (
            "most episodes in flight have ended and wait for slower ones of their groups: cut the longest answers"
            " (sampling.max_tokens)"
        )


def _younger(held: float, recipe: Recipe) -> Iterator[str]:
    """Yield what lets groups start or batches form where the staleness bound holds them back this share of time."""
    bound = recipe.staleness_gate.max_staleness
    if bound == 0:
        yield (
            f"staleness_gate.max_staleness = 0 makes training synchronous: in {held:.0%} of the waiting time no group"
            " may start before the next weights; 1 or 2 lets generation go on while a step is trained"
        )
        return
    yield (
        f"staleness_gate.max_staleness = {bound} is reached in {held:.0%} of the waiting time: the last episodes of a "
        "batch are waited for; raise it, or cut the longest answers with sampling.max_tokens"
    )
    if recipe.batcher.exit_policy == "wait":
        yield (
            'batcher.exit_policy = "wait" has batches wait for every group that would become too old: "mask" waits for'
            " none of them"
        )


def _recommend(loads: list[LoadMeasured], recipe: Recipe) -> list[Recommendation]:
    """Returns the workers that balance a run; where trainer and generation take turns, or no core is free, none do."""
    load = mean_load(loads)
    if load is None or not recipe.staleness_gate.max_staleness or not has_free_core(load):
        return []
    return recommend(load)


def _workers(recommendation: Recommendation) -> str:
    number = (
        f"{recommendation.workers}"
        if recommendation.recommended == recommendation.workers
        else f"{recommendation.workers}, recommended {recommendation.recommended}"
    )
    return f"{recommendation.role}: {number}: {recommendation.reason}"


def _shares(seconds: Mapping[str, float]) -> str:
    names = sorted(seconds, key=lambda name: -seconds[name])
    return ", ".join(f"{name} {share(seconds, name):.0%}" for name in names if share(seconds, name) >= 0.005)


def _bounds(seconds: Mapping[str, float]) -> str:
    """Returns the bounds with their shares; words without values, which change over a run."""
    return _shares({BOUNDS.get(name, name).partition(" (")[0]: spent for name, spent in seconds.items()})
