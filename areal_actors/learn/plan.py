"""The rows that `learn` learns from, and the recipe with which it does, before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import SetupError
from areal_actors.core.problems import toml_value
from areal_actors.history.run_events import run_events
from areal_actors.learn.baselines import Baseline, choose_baseline
from areal_actors.learn.recorded_calls import RecordedSessions, read_sessions
from areal_actors.learn.rehearsal import read_rehearsal
from areal_actors.learn.reward_rule import apply_rule, drop_empty, load_rule
from areal_actors.messages import WeightsPublished
from areal_actors.reader.run import Run, open_run
from areal_actors.recipe.recipe import Recipe, recorded_recipe
from areal_actors.stages.run_stages import newest_checkpoint
from areal_actors.supervised.recorded_session import RecordedRow
from areal_actors.training.settings import TrainerSettings

FOLDER = "learn"
"""Folder for rows and recipes in that of the run that recorded them."""
BATCH_ROWS = 128
PASSES = 4.0
LEAST_ROWS = 16
HELD_OUT_SHARE = 0.1
MOST_HELD_OUT = 256
NOT_LEARNT_WITH = {"batch_size", "logprob_check_sequences", "ranks_address", "weights_folder"}
"""Settings of `[trainer]` that are those of the run that recorded the sessions, and not of the learning."""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions that are learned from, their rewards, and how long."""

    since: float = 0.0
    """Seconds since the epoch; older sessions are left out."""
    passes: float = PASSES
    """Passes over all rows."""
    tokens: int = 0
    """Largest number of tokens that are trained, over all passes; 0 for any."""
    reward: str = ""
    """`FILE.py:FUNCTION` of a rule that turns feedback into rewards; empty for the feedback itself."""
    rehearse: Sequence[str] = ()
    """Runs whose newest rows are mixed in."""
    rehearse_share: float = 0.2
    """Share of the rows of each of them among its own and those of the sessions."""


class LearningPlan(msgspec.Struct, frozen=True):
    """Rows, and the recipe that learns from them."""

    rows: Path
    recipe: Path
    run: str
    folder: Path
    """Folder of the runs."""
    model: str
    lines: tuple[str, ...]
    """Sentences for people."""


def plan_learning(names: Sequence[str], choices: Choices, folder: Path) -> LearningPlan:
    """Write the rows of runs, with baselines, and the recipe that learns from them.

    Args:
        names: names or folders of runs, the newest last; the model of the last one learns.
        choices: what is learned, and how long.
        folder: where runs are written.

    Raises:
        SetupError: a run does not exist, or there is too little to learn from; the message names the remedy.
    """
    runs = [open_run(name, folder=folder) for name in names]
    read, sentences = _read_learned(runs, choices)
    rows = list(read.rows)
    for name in choices.rehearse:
        rehearsed = open_run(name, folder=folder)
        if rehearsed.name in {run.name for run in runs}:
            raise SetupError(f"--rehearse: '{rehearsed.name}' is learned from already; name another run")
        rehearsal = read_rehearsal(rehearsed, rows=len(read.rows), share=choices.rehearse_share)
        _set_baselines(rehearsal.read)
        rows += rehearsal.read.rows
        sentences.append(rehearsal.sentence)
    source = runs[-1]
    assert source.folder is not None
    recipe = recorded_recipe(source.recipe)
    run = _free_name(recipe.run, folder)
    place = source.folder / FOLDER
    place.mkdir(exist_ok=True)
    path = place / f"{run}.jsonl"
    atomic_write(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    model = _model_of(source, recipe)
    written = place / f"{run}.toml"
    settings = dict(_settings(recipe, run, path.absolute(), model, rows, choices, folder))
    header = f"# Learns from {len(rows)} recorded rows of {', '.join(run.name for run in runs)}.\n"
    text = "".join(f"{key} = {toml_value(value)}\n" for key, value in settings.items())
    atomic_write(written, (header + text).encode())
    notices = (f"{recorded.name}: {recorded.notice}" for recorded in runs if recorded.notice)
    lines = (*notices, *sentences, f"rows: {path}; recipe: {written}")
    return LearningPlan(rows=path, recipe=written, run=run, folder=folder, model=model, lines=lines)


def _read_learned(runs: Sequence[Run], choices: Choices) -> tuple[RecordedSessions, list[str]]:
    """Returns the sessions of runs with their baselines, and sentences about them."""
    rule = load_rule(choices.reward) if choices.reward else None
    read, changes = RecordedSessions(), list[str]()
    for recorded in runs:
        sessions = read_sessions(recorded, since=choices.since)
        if rule is not None:
            changes.append(apply_rule(sessions, rule, choices.reward, recorded))
            drop_empty(sessions)
        read.add(sessions)
    if len(read.rows) < LEAST_ROWS:
        raise SetupError(
            f"found {len(read.rows)} judged sessions, expected at least {LEAST_ROWS}{_left_out(read)};"
            " send more feedback to `/rl/feedback`, or name a longer time with --since"
        )
    return read, [*_describe(read, _set_baselines(read)), *changes]


def _set_baselines(read: RecordedSessions) -> Baseline | None:
    """Give each judged call the baseline that leaves the least; returns it, or None without such calls."""
    if not read.calls:
        return None
    baseline = choose_baseline(read.calls)
    for call, value in zip(read.calls, baseline.values, strict=True):
        calls = list(read.rows[call.row].calls)
        calls[call.call] = msgspec.structs.replace(calls[call.call], baseline=value)
        read.rows[call.row] = msgspec.structs.replace(read.rows[call.row], calls=calls)
    return baseline


def _describe(read: RecordedSessions, baseline: Baseline | None) -> Iterator[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in read.counts().items() if count)
    yield f"learns from {len(read.rows)} rows: {counts}{_left_out(read)}"
    if baseline is None:
        return
    rewards = [call.reward for call in read.calls]
    yield f"rewards: mean {sum(rewards) / len(rewards):.4f} of {len(rewards)} calls"
    variances = ", ".join(f"{name} {variance:.4g}" for name, variance in baseline.variances.items())
    yield f"baseline: {baseline.name}, by the mean square of what it leaves: {variances}"


def _left_out(read: RecordedSessions) -> str:
    left = ", ".join(f"{count} with {reason}" for reason, count in read.left_out.items() if count)
    return f"; left out: {left}" if left else ""


def _free_name(name: str, folder: Path) -> str:
    candidates = (f"{name}-learn{f'-{number}' if number > 1 else ''}" for number in range(1, 10_000))
    return next(candidate for candidate in candidates if not (folder / candidate).exists())


def _model_of(run: Run, recipe: Recipe) -> str:
    """Returns the model that a run served last, or has trained."""
    assert run.folder is not None
    if not recipe.is_served():
        return str(newest_checkpoint(run.folder))
    published = [event.location for _, _, event in run_events(run.history) if isinstance(event, WeightsPublished)]
    if published and any((model := run.folder / published[-1].model).glob("*.safetensors")):
        return str(model.absolute())
    return recipe.model


def _settings(
    recipe: Recipe,
    run: str,
    path: Path,
    model: str,
    rows: Sequence[RecordedRow],
    choices: Choices,
    folder: Path,
) -> Iterator[tuple[str, Any]]:
    # with a held-out row all others of its prompt are left out
    has_own_prompts = 2 * len({tuple(row.prompt) for row in rows}) > len(rows)
    held_out = min(MOST_HELD_OUT, int(len(rows) * HELD_OUT_SHARE)) if has_own_prompts else 0
    trained = len(rows) - held_out
    batch = max(1, min(BATCH_ROWS, trained // 4))
    steps = max(1, round(choices.passes * trained / batch))
    if choices.tokens:
        mean = sum(row.longest for row in rows) / len(rows)
        steps = max(1, min(steps, int(choices.tokens / (mean * batch))))
    yield "run", run
    yield "folder", str(folder)
    yield "seed", recipe.seed
    yield "steps", steps
    yield "model", model
    yield "task.dataset", str(path)
    yield "task.held_out", held_out
    yield "algorithm.name", "offline"
    yield "evaluation.tasks", held_out
    yield "trainer.batch_size", batch
    yield "trainer.optimizer.lr", recipe.trainer.optimizer.lr
    usual = _flat(msgspec.to_builtins(TrainerSettings()))
    for key, value in _flat(msgspec.to_builtins(recipe.trainer)).items():
        if key.split(".")[0] not in NOT_LEARNT_WITH and key != "optimizer.lr" and value != usual.get(key):
            yield f"trainer.{key}", value


def limit_steps(plan: LearningPlan, steps: int) -> None:
    """Write the recipe of a plan again with fewer steps."""
    lines = plan.recipe.read_text(encoding="utf-8").splitlines()
    changed = [f"steps = {steps}" if line.startswith("steps = ") else line for line in lines]
    atomic_write(plan.recipe, ("\n".join(changed) + "\n").encode())


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns settings by dotted name; without those that are None."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat


def shown_command(plan: LearningPlan) -> str:
    """Returns the command that learns with the plan, for people."""
    return f"{COMMAND} run {json.dumps(str(plan.recipe)) if ' ' in str(plan.recipe) else plan.recipe}"
