"""Export of a session's trajectory: msgpack on the wire, and arrays for a trainer.

The msgpack is tree-encoded: a call holds only its own tokens, as bytes, and refers to the call whose tokens it extends,
so that a conversation is not sent once per turn. `sequences` converts it to training sequences:

    answer = requests.post(f"{gateway}/export_trajectories", json={"session_id": session},
                           headers={"Authorization": f"Bearer {admin_key}", "Accept": "application/msgpack"})
    for sequence in sequences(answer.content):
        sequence["input_ids"], sequence["loss_mask"], sequence["logprobs"], sequence["versions"],
        sequence["token_rewards"]
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.core.values import (
    PROMPT_VERSION,
    Interaction,
    TokenColumns,
    TrainingSequence,
    Trajectory,
    Value,
    VersionSpan,
)
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit, ExportStyle, call_rewards, sequence_ends

ExportedSequence = dict[str, NDArray[Any]]
"""`input_ids` int32, `loss_mask` int32 (1: sampled, and not trained in an earlier sequence), `logprobs` float32 (0 in
prompts), `versions` int32 (-1 in prompts), `attention_mask` bool, `token_rewards` float32 (R(call) where the loss mask
is 1, else 0): each of shape [tokens]; `rewards` float32, shape [1]: R(call) of the sequence's last call."""


class ExportedCall(Value, array_like=True):
    """One completed model call."""

    id: str
    parent: int
    """Index of the call whose conversation this one continues; -1 for the first of a conversation."""
    prefix: int
    """Index of the call whose prompt and completion tokens this prompt begins with; -1 for none."""
    prompt_suffix: bytes
    """u32: the prompt's tokens after the prefix; all of them without a prefix."""
    token_ids: bytes
    """u32, sampled."""
    logprobs: bytes
    """f32."""
    versions: tuple[VersionSpan, ...]
    finish_reason: str
    reward: float | None
    """Reward as set, before credit assignment."""
    call_reward: float
    """R(call), after credit assignment."""
    trained: bool
    """False: context of other calls, but in no loss mask."""
    temperature: float | None = None
    """Temperature of `logprobs`, if it is not the recipe's."""


class Export(Value):
    """Trajectory with the returns of its calls."""

    session_id: str
    task_id: str
    episode: str
    group: str
    style: ExportStyle
    discount: float | None
    calls: tuple[ExportedCall, ...]
    ends: tuple[int, ...]
    """Index of the last call of each sequence."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Export)


def export_trajectory(session: str, trajectory: Trajectory, credit: Credit) -> Export:
    """Convert a trajectory to its export; deterministic."""
    index = {turn.id: place for place, turn in enumerate(trajectory.interactions)}
    rewards = call_rewards(trajectory, credit)
    return Export(
        session_id=session,
        task_id=trajectory.task,
        episode=trajectory.episode,
        group=trajectory.group,
        style=credit.style,
        discount=credit.discount,
        calls=tuple(
            ExportedCall(
                id=turn.id,
                parent=index.get(turn.parent, -1),
                prefix=index.get(turn.prefix, -1),
                prompt_suffix=turn.prompt_suffix,
                token_ids=turn.completion.token_ids,
                logprobs=turn.completion.logprobs,
                versions=turn.completion.versions,
                finish_reason=turn.finish_reason,
                reward=turn.reward,
                call_reward=rewards[turn.id],
                trained=turn.trained,
                temperature=turn.temperature,
            )
            for turn in trajectory.interactions
        ),
        ends=tuple(index[turn.id] for turn in sequence_ends(trajectory.interactions, credit.style)),
    )


def to_msgpack(export: Export) -> bytes:
    """Encode as msgpack."""
    return _ENCODER.encode(export)


def from_msgpack(payload: bytes) -> Export:
    """Decode the output of `to_msgpack`.

    Raises:
        msgspec.MsgspecError: the payload is not an export.
    """
    return _DECODER.decode(payload)


def to_json(export: Export) -> dict[str, Any]:
    """Convert to JSON: sequences with their columns as lists."""
    listed = [
        {
            "interaction_id": export.calls[end].id,
            "finish_reason": export.calls[end].finish_reason,
            "reward": export.calls[end].call_reward,
            **{name: column.tolist() for name, column in sequence.items()},
        }
        for end, sequence in zip(export.ends, sequences(export), strict=True)
    ]
    whole: dict[str, Any] = {
        name: getattr(export, name) for name in ("session_id", "task_id", "episode", "group", "style", "discount")
    }
    return {**whole, "sequences": listed}


def sequences(export: Export | bytes) -> list[ExportedSequence]:
    """Sequences of an export: one per leaf path (`concat`), or one per call (`individual`).

    A sampled token has a 1 in the loss mask of one sequence only. Leaf paths with a common prefix train it in the first
    of them; in the sequence of a call, the earlier calls of its conversation are context.
    """
    export = from_msgpack(export) if isinstance(export, bytes) else export
    calls = tuple(
        Interaction(
            id=call.id,
            prefix=export.calls[call.prefix].id if call.prefix >= 0 else "",
            prompt_suffix=call.prompt_suffix,
            completion=TokenColumns(token_ids=call.token_ids, logprobs=call.logprobs, versions=call.versions),
            finish_reason=call.finish_reason,
            reward=call.call_reward,
            trained=call.trained,
            temperature=call.temperature,
        )
        for call in export.calls
    )
    trajectory = Trajectory(
        episode=export.episode, group=export.group, attempt=0, task=export.task_id, reward=0.0, interactions=calls
    )
    return [
        _export_sequence(sequence)
        for sequence in sequences_of(trajectory, 0, PROMPT_VERSION, Credit(style=export.style))
    ]


def _export_sequence(sequence: TrainingSequence) -> ExportedSequence:
    rewards = np.zeros(len(sequence.token_ids), dtype=np.float32)
    for call in sequence.calls:
        rewards[call.start : call.end] = call.reward
    return {
        "input_ids": sequence.token_ids.astype(np.int32),
        "loss_mask": sequence.loss_mask.astype(np.int32),
        "logprobs": sequence.logprobs,
        "versions": sequence.versions,
        "attention_mask": np.ones(len(sequence.token_ids), dtype=np.bool_),
        "token_rewards": rewards,
        "rewards": np.array([sequence.calls[-1].reward], dtype=np.float32),
    }
