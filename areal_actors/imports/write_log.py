"""Writes episodes of another program as a log: the events that a run of this program would have published of them.

Tokens and log-probabilities are only those that the other program wrote. Texts alone give no tokens, so such episodes
are read, compared and scored again, but never trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import Interaction, SamplingParams, Task, TokenColumns, Trajectory
from areal_actors.imports.foreign_episode import ForeignEpisode
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeScored,
    InteractionRecorded,
    RunEpisode,
    RunFinished,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
)
from areal_actors.messages.run import IMPORTED
from areal_actors.messages.training import TrajectoryRef
from areal_actors.recipe.recipe import Recipe, redact_recipe
from areal_actors.training.algorithms.grpo import Grpo
from areal_bus.base import Envelope, Stamp
from areal_bus.message import Event
from areal_bus.recorded import LogWriter

NO_REWARD = "the imported row has no reward"


class LogOfEpisodes:
    """A log that is written event by event."""

    def __init__(self, writer: LogWriter, run: str, time: float) -> None:
        """`time`: that of the first event, in seconds since the epoch; each later one is a millisecond after."""
        self._writer = writer
        self._run = run
        self._time = time
        self.sequence = 0

    def write(self, event: Event, sender: str, time: float = 0.0) -> int:
        """Write an event; returns its position."""
        self.sequence += 1
        self._time = max(time, self._time + 1e-3)
        stamp = Stamp(id=f"{IMPORTED}-{self.sequence}", sender=sender, time=self._time)
        envelope = Envelope.seal(event, stamp, self._run)
        self._writer.write(msgspec.structs.replace(envelope, sequence=self.sequence))
        return self.sequence


def write_log(path: Path, run: str, episodes: Sequence[ForeignEpisode], *, source: str, model: str, time: float) -> int:
    """Write the log of these episodes; returns the number of events.

    Args:
        path: the file, which appears under its name once it is complete.
        run: name of the run.
        episodes: in the order of the other program.
        source: folder of its files, for readers.
        model: name of the model, for readers.
        time: of the first event, in seconds since the epoch.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    steps = sorted({episode.step for episode in episodes})
    with LogWriter(unfinished, run, suffix=path.suffix) as writer:
        log = LogOfEpisodes(writer, run, time)
        groups = [list(groups_of([episode for episode in episodes if episode.step == step])) for step in steps]
        largest = max((len(group) for of_step in groups for group in of_step), default=1)
        recipe = Recipe(
            run=run,
            steps=max(steps[-1], 1),
            model=model or IMPORTED,
            task=TaskSettings(),
            algorithm=Grpo(group_size=largest),
        )
        started = RunStarted(
            recipe=redact_recipe(recipe), profile=IMPORTED, reason=count_episodes(episodes), folder=source
        )
        log.write(started, "supervisor")
        number = trained = 0
        for step, of_step in zip(steps, groups, strict=True):
            refs = [ref for offset, group in enumerate(of_step) if (ref := _write_group(log, number + offset, group))]
            number += len(of_step)
            if step:
                trained += sum(map(len, refs))
                _write_step(log, step, refs, trained, [episode for group in of_step for episode in group])
        log.write(RunFinished(steps=steps[-1]), "supervisor")
    unfinished.replace(path)
    return log.sequence


def count_episodes(episodes: Sequence[ForeignEpisode]) -> str:
    """Returns the number of episodes, as `3 episodes`."""
    return f"{len(episodes)} episode{'' if len(episodes) == 1 else 's'}"


def groups_of(episodes: Sequence[ForeignEpisode]) -> Iterator[list[ForeignEpisode]]:
    """Yields the episodes of each group: of a name, or else of a prompt."""
    groups: dict[tuple[str, str], list[ForeignEpisode]] = {}
    for episode in episodes:
        groups.setdefault((episode.group, "" if episode.group else episode.prompt), []).append(episode)
    yield from groups.values()


def _write_group(log: LogOfEpisodes, number: int, group: Sequence[ForeignEpisode]) -> tuple[TrajectoryRef, ...]:
    version = max(group[0].step - 1, 0)
    log.write(CapacityGranted(first_group=number, groups=1, weight_version=version), "staleness_gate")
    refs: list[TrajectoryRef] = []
    for member, episode in enumerate(group):
        name = f"{number}.{member}"
        data = {"question": episode.prompt, **episode.data}
        work = RunEpisode(
            episode=name, group=str(number), task=Task(id=f"{number}", data=data), sampling=SamplingParams()
        )
        if episode.reward is None:
            log.write(EpisodeAbandoned(work=work, reason="reward", detail=NO_REWARD), "reward_worker-0", episode.time)
            continue
        scored = EpisodeScored(
            work=work, session=name, reward=episode.reward, metrics=episode.metrics, output=episode.completion
        )
        log.write(scored, "reward_worker-0", episode.time)
        trajectory = _trajectory(episode, name, str(number))
        exported = TrajectoryExported(trajectory=trajectory, recorded=tuple(_record_calls(trajectory, version)))
        refs.append(TrajectoryRef(episode=name, sequence=log.write(exported, "session_manager-0", episode.time)))
    return tuple(refs)


def _trajectory(episode: ForeignEpisode, name: str, group: str) -> Trajectory:
    if episode.trajectory is not None:
        return msgspec.structs.replace(episode.trajectory, episode=name, group=group, attempt=1)
    call = Interaction(
        id=f"{name}-1-1", prompt_suffix=b"", completion=TokenColumns(), finish_reason="stop", trained=False
    )
    return Trajectory(
        episode=name,
        group=group,
        attempt=1,
        task=group,
        reward=episode.reward or 0.0,
        interactions=(call,),
        metrics=episode.metrics,
    )


def _record_calls(trajectory: Trajectory, version: int) -> Iterator[InteractionRecorded]:
    lengths: dict[str, int] = {}
    for call in trajectory.interactions:
        prompt = lengths.get(call.prefix, 0) + len(call.prompt_suffix) // 4
        lengths[call.id] = prompt + len(call.completion)
        yield InteractionRecorded(
            session=trajectory.episode,
            episode=trajectory.episode,
            interaction=call.id,
            parent=call.parent,
            prefix=call.prefix,
            prompt_tokens=prompt,
            completion_tokens=len(call.completion),
            finish_reason=call.finish_reason,
            weight_version=version,
            trained=call.trained,
            attempt=1,
        )


def _write_step(
    log: LogOfEpisodes,
    step: int,
    refs: Sequence[tuple[TrajectoryRef, ...]],
    trained: int,
    episodes: Sequence[ForeignEpisode],
) -> None:
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    formed = BatchFormed(
        step=step - 1,
        groups=tuple(refs),
        oldest_version=0,
        trained_trajectories=trained,
        trained_tokens=0,
        dropped_trajectories=0,
        dropped_tokens=0,
    )
    log.write(formed, "batcher")
    names = {name for episode in episodes for name in episode.metrics}
    metrics = {
        f"reward/{name}": fmean(episode.metrics[name] for episode in episodes if name in episode.metrics)
        for name in sorted(names)
    }
    if rewards:
        metrics["reward_mean"] = fmean(rewards)
    log.write(StepCompleted(step=step, metrics=metrics, sequences_checksum="", weights_checksum=IMPORTED), "trainer")
