"""Writes the log of a run whose episodes are invented: short answers to arithmetic, with rewards of a rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from areal_actors.core.values import Interaction, SamplingParams, Task, TokenColumns, Trajectory, WeightsLocation
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeScored,
    RunEpisode,
    RunFinished,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
    TrajectoryRef,
    WeightsPublished,
)
from areal_bus.base import Envelope, Stamp
from areal_bus.message import Event
from areal_bus.recorded import LogWriter, read_log

RECORDED = Path(__file__).parent.parent / "tests/recordings/log-3.xz"
"""A log whose recipe is the pattern."""


def write_synthetic_log(path: Path, episodes: int, *, group_size: int = 8, batch_size: int = 125, seed: int = 0) -> int:
    """Write the log of a run of `episodes` episodes in whole batches; returns the number of steps."""
    steps = episodes // (group_size * batch_size)
    recipe = _recipe(steps, group_size, batch_size)
    with LogWriter(path, recipe["run"]) as log:
        for sequence, event in enumerate(_events(recipe, np.random.default_rng(seed)), start=1):
            stamp = Stamp(id=f"{sequence:020x}", sender="benchmark", time=1.8e9 + sequence * 1e-3)
            sealed = Envelope.seal(event, stamp, recipe["run"])
            log.write(msgspec.structs.replace(sealed, sequence=sequence))
    return steps


def _recipe(steps: int, group_size: int, batch_size: int) -> dict[str, Any]:
    recipe = next(iter(read_log(RECORDED))).open(RunStarted).recipe
    recipe |= {"run": "synthetic", "steps": steps}
    recipe["algorithm"] |= {"group_size": group_size}
    recipe["trainer"] |= {"batch_size": batch_size}
    return recipe


def _events(recipe: dict[str, Any], random: np.random.Generator) -> Iterator[Event]:
    group_size, batch_size = recipe["algorithm"]["group_size"], recipe["trainer"]["batch_size"]
    yield RunStarted(recipe=recipe, profile="embedded", reason="", folder="synthetic")
    sequence, trained, tokens = 1, 0, 0
    for step in range(recipe["steps"] + 1):
        yield WeightsPublished(weight_version=step, location=WeightsLocation(folder="", checksum="0", model="model"))
        sequence += 1
        if step == recipe["steps"]:
            break
        yield CapacityGranted(first_group=step * batch_size, groups=batch_size, weight_version=step)
        sequence += 1
        members: list[tuple[TrajectoryRef, ...]] = []
        for group in range(step * batch_size, (step + 1) * batch_size):
            refs: list[TrajectoryRef] = []
            for member in range(group_size):
                scored, exported = _episode(group, member, step, recipe["steps"], random)
                yield scored
                yield exported
                sequence += 2
                tokens += exported.trajectory.sampled_tokens()
                refs.append(TrajectoryRef(episode=scored.work.episode, sequence=sequence))
            members.append(tuple(refs))
        trained += batch_size * group_size
        yield BatchFormed(
            step=step, groups=tuple(members), oldest_version=-2, trained_trajectories=trained, trained_tokens=tokens,
            dropped_trajectories=0, dropped_tokens=0,
        )  # fmt: skip
        yield StepCompleted(step=step + 1, metrics={}, sequences_checksum="")
        sequence += 2
    yield RunFinished(steps=recipe["steps"])


def _episode(
    group: int, member: int, step: int, steps: int, random: np.random.Generator
) -> tuple[EpisodeScored, TrajectoryExported]:
    """An episode, whose answers become right and shorter over the steps."""
    first, second = group % 40 + 2, group * 7 % 30 + 1
    question, answer = f"Ann had {first} coins and got {second}.", str(first + second)
    is_right = random.random() < 0.2 + 0.6 * step / steps
    words = int(random.integers(1, 12 - 6 * step // steps))
    output = f"{'so ' * words}#### {answer if is_right else random.integers(0, 80)}"
    task = Task(id=f"task-{group % 1000}", data={"question": question, "answer": f"#### {answer}"})
    episode = f"{group}.{member}"
    work = RunEpisode(episode=episode, group=str(group), task=task, sampling=SamplingParams(max_tokens=64))
    reward = float(output.rsplit(" ", 1)[1] == answer)
    columns = TokenColumns.of([7] * (words + 3), [-0.5] * (words + 3), [step] * (words + 3))
    call = Interaction(
        id=f"{episode}-1-1", prompt_suffix=bytes(4 * 24), completion=columns, finish_reason="stop", reward=reward
    )
    trajectory = Trajectory(
        episode=episode, group=str(group), attempt=1, task=task.id, reward=reward, interactions=(call,)
    )
    scored = EpisodeScored(work=work, session=f"{episode}-1", reward=reward, output=output)
    return scored, TrajectoryExported(trajectory=trajectory)
