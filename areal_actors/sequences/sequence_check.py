"""Validation of training sequences: invalid sequences are left out of the step and reported, the others are trained.

The decision depends only on the batch, its trajectories in the log and the limits of the model, so a step replayed
after a restart leaves out the same sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from areal_actors.core.column_check import ColumnFault, number_fault, trajectory_fault
from areal_actors.core.errors import ImageLost
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import TrainingSequence, Trajectory
from areal_actors.messages import BatchFormed, RefusedSequence
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.step_metrics import mean_metrics
from areal_actors.vision.files import ImageFolder
from areal_bus.message import FrozenMeta


class SequenceLimits(msgspec.Struct, metaclass=FrozenMeta):
    """Limits of the trained model; 0 if its configuration has none."""

    vocabulary: int = 0
    """Number of token ids."""
    context: int = 0
    """Longest sequence, in tokens."""
    routes: RouteShape | None = None
    """Mixtures of experts."""


class BatchSequences(msgspec.Struct, metaclass=FrozenMeta):
    """Valid sequences of a batch, and the refused ones."""

    sequences: Sequence[TrainingSequence]
    refused: tuple[RefusedSequence, ...] = ()
    reward_metrics: Mapping[str, float] = {}
    """Means of the further numbers from the reward function, over the trajectories that have them."""


def batch_sequences(
    batch: BatchFormed,
    trajectories: Iterable[tuple[int, Trajectory]],
    credit: Credit,
    limits: SequenceLimits,
    folder: ImageFolder | None = None,
) -> BatchSequences:
    """Returns the sequences of trajectories, given with the index of their group; invalid ones are listed in `refused`.

    With a `folder` of images, sequences whose images are missing or damaged are invalid.
    """
    sequences: list[TrainingSequence] = []
    refused: list[RefusedSequence] = []
    metrics: list[Mapping[str, float]] = []
    baselines = {member.episode: member.baselines for members in batch.groups for member in members}
    index = 0
    for group, trajectory in trajectories:
        if (fault := trajectory_fault(trajectory)) is not None:
            refused.append(RefusedSequence(episode=trajectory.episode, cause=str(fault)))
            continue
        metrics.append(trajectory.metrics)
        of_episode = baselines.get(trajectory.episode, {})
        for sequence in sequences_of(trajectory, group, batch.oldest_version, credit, of_episode):
            fault = sequence_fault(sequence, limits, batch.step)
            if fault is None and sequence.images and folder is not None:
                fault = image_fault(sequence, folder)
                # The same sequence
                sequence = msgspec.structs.replace(sequence, image_folder=str(folder.path))  # noqa: PLW2901
            if fault is None:
                sequences.append(sequence)
            else:
                refused.append(
                    RefusedSequence(episode=trajectory.episode, sequence=index, token=fault.position, cause=str(fault))
                )
            index += 1
    return BatchSequences(sequences=sequences, refused=tuple(refused), reward_metrics=mean_metrics(metrics))


def image_fault(sequence: TrainingSequence, folder: ImageFolder) -> ColumnFault | None:
    """Returns the reason why the images of a sequence cannot be shown to the model; None if they can."""
    for image in sequence.images:
        try:
            folder.load(image.digest)
        except ImageLost as error:
            return ColumnFault(check="image", detail=str(error), position=image.start)
    return None


def sequence_fault(sequence: TrainingSequence, limits: SequenceLimits, weight_version: int) -> ColumnFault | None:
    """Returns the reason why a sequence cannot be trained on weights of this version; None if it can."""
    if limits.context and len(sequence.token_ids) > limits.context:
        return ColumnFault(
            check="context", detail=f"{len(sequence.token_ids)} tokens; the model's context has {limits.context}"
        )
    if (fault := number_fault(sequence.token_ids, sequence.logprobs, limits.vocabulary)) is not None:
        return fault
    if (
        limits.routes is not None
        and (fault := limits.routes.fault(sequence.routes, len(sequence.token_ids) - 1)) is not None
    ):
        return fault
    if int(sequence.versions.max()) > weight_version:
        place = int(sequence.versions.argmax())
        cause = f"weight version {int(sequence.versions[place])}; the trainer's weights are of version {weight_version}"
        return ColumnFault(check="weight version", detail=cause, position=place)
    return None
