"""`areal-actors what-if`.

What the recorded episodes of a run would have trained under other settings or another reward function.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.decoding import decode
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.extras import TRAIN, require_extra
from areal_actors.core.layers import Key, Layer
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import RunResumed, RunStarted
from areal_actors.reader.run_files import run_folder
from areal_actors.recipe.checks import problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import read_override
from areal_actors.replay.command import log_of
from areal_actors.replay.recorded_batches import RECEIVED, RecordedBatches
from areal_actors.replay.rejudge import JudgeBill, RecordedOutputs, read_outputs, rejudge
from areal_actors.replay.reward_lab import RewardLab, compare_rewards
from areal_actors.replay.what_if_draws import compare_draws
from areal_actors.replay.what_if_side import Side, mean_of, side_of
from areal_actors.replay.what_if_training import STEP_METRICS, TrainedSteps, train_again
from areal_actors.rewards import MODEL, Reward, resolve_reward
from areal_actors.rewards.judge.answer_store import ANSWERS
from areal_actors.rewards.judge.settings import has_judge

EVENTS = {kind.subject: kind for kind in (RunStarted, RunResumed, *RECEIVED)}
ANSWERED: tuple[Key, ...] = (
    *(("batcher",), ("algorithm",), ("staleness_gate", "max_staleness"), ("trainer", "batch_size")),
    *(("task", name) for name in ("reward", "reward_options", "turn_discount", "export_style", "baseline_over")),
)
"""Settings that decide what becomes of recorded episodes."""
DRAWN: Key = ("task", "curriculum")
"""Settings that decide which tasks are drawn; they are answered alone."""
COMPARED = (
    *("reward_mean", "reward_std", "groups_without_signal", "advantage_std", "advantage_max", "advantage_min"),
    *("mean_tokens", "length_bias", "masked_frac", "token_staleness_mean", "token_staleness_max"),
)
"""Means over the steps that are printed."""


class WhatIf(msgspec.Struct):
    """Result of the comparison."""

    run: str
    settings: list[str]
    recorded: Side
    replayed: Side
    loss_only: bool
    """True if the algorithms differ, so that the loss may differ where advantages do not."""
    judges: JudgeBill | None = None
    """Questions to judges; None if no judge was asked."""
    trained: tuple[TrainedSteps, TrainedSteps] | None = None
    """Recorded steps of the trainer, and those on the recorded episodes with the settings."""
    lab: RewardLab | None = None
    """Effect of another reward, with intervals; None if the reward is as recorded."""

    def first_change(self) -> int:
        """Number, from 1, of the first step that trains other episodes or with other advantages; 0 if there is none."""
        pairs = zip(self.recorded.steps, self.replayed.steps, strict=False)
        trained = zip(self.recorded.episodes, self.replayed.episodes, strict=False)
        for number, ((was, now), (episodes, other_episodes)) in enumerate(zip(pairs, trained, strict=True), start=1):
            if was != now or episodes != other_episodes:
                return number
        equal = len(self.recorded.steps) == len(self.replayed.steps)
        return 0 if equal else min(len(self.recorded.steps), len(self.replayed.steps)) + 1

    def verdict(self) -> str:
        """Sentence about what the comparison can show."""
        first = self.first_change()
        if not first and self.trained is None and self.loss_only:
            return (
                "every step trains the same tokens with the same advantages; --train also compares losses, gradients"
                " and weights"
            )
        if not first:
            return "every step trains the same tokens with the same advantages"
        exact = "Its episodes are those that were recorded, so it is exact"
        if 0 < self.replayed.newer <= first:
            exact = "It is not exact either, since its tokens are of newer weights"
        return (
            f"step {first} is the first that differs. {exact}. Later episodes were sampled by the weights of the"
            " recorded run, not by those that this training would have had: from there on the figures show what the"
            " recorded data would train, not the run that would have followed"
        )

    def to_text(self) -> str:
        """Returns the comparison as lines of text."""
        rows = list(self._rows())
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{self.run} with {', '.join(self.settings)}", ""]
        lines += [
            f"{name:<{widths[0]}}  {before:>{widths[1]}}  {after:>{widths[2]}}".rstrip() for name, before, after in rows
        ]
        lab = ["", *self.lab.lines()] if self.lab else []
        return "\n".join([*lines, *lab, "", *self._notes(), self.verdict(), *self._of_training()])

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        was, now = self.recorded, self.replayed
        shared = sum(
            len(episodes & other_episodes) for episodes, other_episodes in zip(was.episodes, now.episodes, strict=False)
        )
        yield "", "recorded", "what if"
        yield "steps", f"{len(was.steps):,}", f"{len(now.steps):,}"
        yield "episodes trained", f"{sum(map(len, was.episodes)):,}", f"{sum(map(len, now.episodes)):,}"
        yield "  in the same step", "", f"{shared:,}"
        yield "tokens trained", f"{sum(was.trained_tokens):,}", f"{sum(now.trained_tokens):,}"
        for reason in sorted({*was.dropped, *now.dropped}):
            yield f"groups dropped: {reason}", f"{was.dropped.get(reason, 0):,}", f"{now.dropped.get(reason, 0):,}"
        for name in COMPARED:
            if not (math.isnan(was.mean(name)) and math.isnan(now.mean(name))):
                yield f"{name} (mean)", _number(was.mean(name)), _number(now.mean(name))

    def _of_training(self) -> Iterator[str]:
        if self.trained is None:
            return
        was, now = self.trained
        changed = next(
            (version for version, digest in now.checksums.items() if was.checksums.get(version) != digest), None
        )
        yield ""
        yield f"{'trainer, means over the steps':<32}  {'recorded':>10}  {'what if':>10}"
        for name in STEP_METRICS:
            before, after = (mean_of([step[name] for step in side.metrics if name in step]) for side in (was, now))
            if not (math.isnan(before) and math.isnan(after)):
                yield f"{name:<32}  {_number(before):>10}  {_number(after):>10}"
        equal = (
            f"the weights differ from version {changed} on"
            if changed is not None
            else "every version has the recorded checksum"
        )
        if was.repeated:
            yield (
                "this machine computes other bits than that of the run (processor or torch differ), so both sides were"
                " computed here"
            )
            equal = equal.replace("the recorded checksum", "the same checksum on both sides")
        yield f"{equal} ({len(now.checksums):,} versions)"
        if changed is not None and (
            sizes := [step.get("effective_sample_size", 1.0) for step in now.metrics[changed:]]
        ):
            yield (
                "from there on the trained tokens are off-policy for these weights: their effective sample size, a"
                f" share of the tokens, is {mean_of(sizes):.3f} on average and {min(sizes):.3f} at the least (1 is on"
                " policy)"
            )

    def _notes(self) -> Iterator[str]:
        now = self.replayed
        if self.judges is not None:
            yield self.judges.sentence()
        if now.unscored:
            first = next(iter(now.unscored.values()))
            yield f"the reward function failed on {len(now.unscored):,} episodes, which are not trained: {first}"
        if now.ended:
            yield f"the run would have ended: {now.ended}"
        if now.newer:
            yield (
                f"from step {now.newer} on batches have tokens of newer weights than those of the step: the recorded"
                " run had trained more steps when it sampled them. A log cannot answer what this setting does to the"
                " age of tokens beyond that step"
            )
        if now.without_advantages:
            yield f"advantages are not compared: {now.without_advantages}"

    def to_builtins(self) -> dict[str, Any]:
        """Returns the comparison as data for JSON."""
        return {
            **msgspec.to_builtins(self),
            "first_change": self.first_change(),
            "verdict": self.verdict(),
            "rows": list(self._rows()),
            "notes": list(self._notes()),
        }


def what_if(run: str, settings: Sequence[str], *, folder: Path, train: bool = False, as_json: bool = False) -> int:
    """Compare the recorded batches of a run with those under other settings; returns the exit status.

    Args:
        run: name or path of a run, or path of an exported log; empty for the latest run.
        settings: overrides of the recorded recipe, each `KEY=VALUE`; `reward` is short for `task.reward`.
        folder: where runs are written.
        train: also repeat the steps of the trainer, from the recorded episodes.
        as_json: print the comparison as JSON.

    Raises:
        SetupError: there is no such run, its log was trimmed, or it has no episodes.
        RecipeError: a setting is invalid, or decides nothing about recorded episodes.
        BusError: the log cannot be read.
    """
    settings = [f"task.{setting}" if setting.startswith("reward=") else setting for setting in settings]
    over = reduce(lambda below, override: read_override(override).over(below), settings, Layer({}, {}))
    if over.data and all(key[:2] == DRAWN for key in _keys(over.data)):
        place = None if Path(run).is_file() else run_folder(run, folder)
        draws = asyncio.run(compare_draws(place, Path(run), list(settings), over))
        sys.stdout.write(f"{msgspec.json.encode(draws).decode() if as_json else draws.to_text()}\n")
        return 0
    _refuse_unanswerable(over)
    if train:
        require_extra(TRAIN, "--train")
    comparison = asyncio.run(_compare_runs(run, list(settings), over, folder, train=train))
    sys.stdout.write(f"{msgspec.json.encode(comparison.to_builtins()).decode() if as_json else comparison.to_text()}\n")
    return 0


def _refuse_unanswerable(over: Layer) -> None:
    if not over.data:
        raise RecipeError(f"name at least one setting, as in `{COMMAND} what-if RUN task.turn_discount=0.9`")
    answers = ", ".join(".".join(known) for known in (*ANSWERED, DRAWN))
    for key in _keys(over.data):
        if not any(key[: len(answered)] == answered for answered in ANSWERED):
            raise RecipeError(
                f"`{'.'.join(key)}` decides how episodes are sampled or how the model is trained, which a log cannot"
                f" answer: run it. Recorded episodes answer {answers}"
            )


def _keys(data: Mapping[str, Any], table: Key = ()) -> Iterator[Key]:
    for name, value in data.items():
        if isinstance(value, Mapping) and value and (*table, name) != ("task", "reward_options"):
            yield from _keys(value, (*table, name))
        else:
            yield (*table, name)


async def _compare_runs(run: str, settings: list[str], over: Layer, folder: Path, *, train: bool) -> WhatIf:
    place = None if Path(run).is_file() else run_folder(run, folder)  # noqa: ASYNC240 - nothing else runs in this loop
    was, now, bill = await _fold(place, Path(run), over)
    loss_only = was.recipe.algorithm != now.recipe.algorithm
    (before, advantages), (after, other_advantages) = side_of(was), side_of(now)
    comparison = WhatIf(place.path.name if place else run, settings, before, after, loss_only, bill)
    if now.has_other_reward:
        comparison.lab = compare_rewards(was.trajectories, now.trajectories, advantages, other_advantages)
    if train:
        comparison.trained = await train_again(
            lambda: log_of(place, Path(run)), was, now, place.path if place else None
        )
    return comparison


async def _fold(
    place: RunFolder | None, file: Path, over: Layer
) -> tuple[RecordedBatches, RecordedBatches, JudgeBill | None]:
    sides: tuple[RecordedBatches, RecordedBatches] | None = None
    bill: JudgeBill | None = None
    scores_again = any(key[1].startswith("reward") for key in _keys(over.data) if key[0] == "task")
    outputs = await read_outputs(log_of(place, file)) if scores_again else RecordedOutputs([], {})
    async with aclosing(log_of(place, file)) as log:
        async for envelope in log:
            kind = EVENTS.get(envelope.subject)
            if kind is None:
                continue
            message = envelope.open(kind)
            if sides is None:
                if not isinstance(message, RunStarted):
                    raise SetupError(
                        f'the log begins with event {envelope.sequence}; log.keep = "all" keeps the events of a'
                        " whole run"
                    )
                was, now, reward = _recipes(message.recipe, over)
                tasks: dict[str, Mapping[str, Any]] = {}
                if reward is not None and has_judge(now.task.reward, now.task.reward_options):
                    answers = place.path / ANSWERS if place else file.with_name(f"{file.name}.{ANSWERS}")
                    tasks, bill = await rejudge(outputs, now, answers)
                folder = place.path if place else None
                sides = RecordedBatches(was), RecordedBatches(now, reward=reward, tasks=tasks, folder=folder)
            for side in sides:
                await side.receive(envelope, message)
    if sides is None:
        raise SetupError("the log is empty")
    return (*sides, bill)


def _recipes(recorded: dict[str, Any], over: Layer) -> tuple[Recipe, Recipe, Reward | None]:
    """Returns the recipe as recorded, that with the settings, and its reward if that is another one."""
    recipes: list[Recipe] = []
    own: set[Key] = set()
    for layer in (Layer({}, {}), over):
        recipe, complaints = decode(layer.over(Layer(_without_table_of_another(recorded, layer), {})), Recipe)
        violations = [] if recipe is None else problems(recipe)
        if not layer.data:
            # the run began without these: the file of its agent may be elsewhere, and is not needed here
            own = {problem.key for problem in violations}
        asked = set(_keys(layer.data))
        complaints += [
            problem.sentence(layer.place(problem.key))
            for problem in violations
            if problem.key in asked or problem.key not in own
        ]
        if recipe is None or (complaints and not recipe.is_served()):
            raise RecipeError("\n".join(complaints))
        if recipe.learns_from_examples():
            raise SetupError("this run learns from examples and has no episodes; start it again with the settings")
        if recipe.is_served():
            raise SetupError(
                f"this model is served, and trains nothing: `{COMMAND} learn RUN --reward FILE.py:FUNCTION --dry-run`"
                " compares another reward with its feedback"
            )
        recipes.append(recipe)
    was, now = recipes
    if was.algorithm.group_size != now.algorithm.group_size:
        raise RecipeError(
            f"`algorithm.group_size`: the recorded groups have {was.algorithm.group_size} episodes; leave it out"
        )
    reward = None
    if (was.task.reward, was.task.reward_options) != (now.task.reward, now.task.reward_options):
        if now.task.reward.startswith(MODEL):
            raise RecipeError(
                "`task.reward`: a reward model is no function of the recorded text alone here; name a rule or"
                " `path.py:function`"
            )
        reward = resolve_reward(now.task.reward, Path.cwd(), now.task.reward_options)
    return was, now, reward


def _without_table_of_another(recorded: dict[str, Any], layer: Layer) -> dict[str, Any]:
    """Returns the recorded recipe; if another algorithm is named, without the recorded one's own settings."""
    algorithm = recorded["algorithm"]
    if layer.data.get("algorithm", {}).get("name", algorithm["name"]) == algorithm["name"]:
        return recorded
    return recorded | {"algorithm": {name: algorithm[name] for name in ("name", "group_size", "minibatches")}}


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"
