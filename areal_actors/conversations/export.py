"""A session's trajectory on the wire, and back into arrays.

On the wire it is msgpack, tree-encoded: a call holds its own tokens only, as bytes, and points to the call it continues, so
that a conversation is not sent once per turn. `rows` makes the rows of it that a trainer wants:

    answer = requests.post(f"{gateway}/export_trajectories", json={"session_id": session},
                           headers={"Authorization": f"Bearer {admin_key}", "Accept": "application/msgpack"})
    for row in rows(answer.content):
        row["input_ids"], row["loss_mask"], row["logprobs"], row["versions"], row["attention_mask"], row["rewards"]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.conversations.credit import Credit, ExportStyle, row_ends, row_rewards
from areal_actors.values import PROMPT_VERSION, TokenColumns, Trajectory, Value, VersionSpan

ExportedRow = dict[str, NDArray[Any]]
"""`input_ids` int32, `loss_mask` int32 (1: sampled, and not trained in an earlier row), `logprobs` float32 (0 in prompts),
`versions` int32 (-1 in prompts), `attention_mask` bool: each of shape [tokens]; `rewards` float32, shape [1]."""


class ExportedCall(Value, array_like=True):
    """One completed model call."""

    id: str
    parent: int
    """Index of the call whose prompt and completion this prompt continues; -1 at a root."""
    prompt_suffix: bytes
    """u32: the prompt's tokens after the parent's; all at a root."""
    token_ids: bytes
    """u32, sampled."""
    logprobs: bytes
    """f32."""
    versions: tuple[VersionSpan, ...]
    finish_reason: str
    reward: float | None
    """As it was set, before credit."""


class ExportedEnd(Value, array_like=True):
    """Where a row ends, and what it is worth."""

    call: int
    reward: float


class Export(Value):
    """A trajectory with the credit of its rows."""

    session_id: str
    task_id: str
    episode: str
    group: str
    style: ExportStyle
    discount: float
    calls: tuple[ExportedCall, ...]
    ends: tuple[ExportedEnd, ...]
    """One for each row."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Export)


def exported(session: str, trajectory: Trajectory, credit: Credit) -> Export:
    """A trajectory as it leaves the gateway; the same every time."""
    index = {turn.id: place for place, turn in enumerate(trajectory.interactions)}
    worth = row_rewards(trajectory, credit)
    return Export(
        session_id=session,
        task_id=trajectory.task,
        episode=trajectory.episode,
        group=trajectory.group,
        style=credit.style,
        discount=1.0 if credit.discount is None else credit.discount,
        calls=tuple(
            ExportedCall(
                id=turn.id,
                parent=index.get(turn.parent, -1),
                prompt_suffix=turn.prompt_suffix,
                token_ids=turn.completion.token_ids,
                logprobs=turn.completion.logprobs,
                versions=turn.completion.versions,
                finish_reason=turn.finish_reason,
                reward=turn.reward,
            )
            for turn in trajectory.interactions
        ),
        ends=tuple(ExportedEnd(call=index[turn.id], reward=worth[turn.id]) for turn in row_ends(trajectory.interactions, credit.style)),
    )


def to_msgpack(export: Export) -> bytes:
    """The compact form."""
    return _ENCODER.encode(export)


def from_msgpack(payload: bytes) -> Export:
    """What `to_msgpack` wrote.

    Raises:
        msgspec.MsgspecError: it is something else.
    """
    return _DECODER.decode(payload)


def to_json(export: Export) -> dict[str, Any]:
    """The readable form: rows with their columns as lists."""
    told = [
        {
            "interaction_id": export.calls[end.call].id,
            "finish_reason": export.calls[end.call].finish_reason,
            "reward": end.reward,
            **{name: column.tolist() for name, column in row.items()},
        }
        for end, row in zip(export.ends, rows(export), strict=True)
    ]
    whole: dict[str, Any] = {name: getattr(export, name) for name in ("session_id", "task_id", "episode", "group", "style", "discount")}
    return {**whole, "rows": told}


def rows(export: Export | bytes) -> list[ExportedRow]:
    """The rows of an export: of every leaf path (`concat`), or of every call (`individual`).

    A sampled token has a 1 in the loss mask of one row only. Where leaf paths share a beginning, the later ones keep it as
    context; in the row of a call, the earlier calls of its conversation are context.
    """
    export = from_msgpack(export) if isinstance(export, bytes) else export
    made: list[ExportedRow] = []
    trained: set[int] = set()
    for end in export.ends:
        path = _path(export.calls, end.call)
        new = {end.call} if export.style == "individual" else set(path) - trained
        trained |= new
        made.append(_row([(export.calls[place], place in new) for place in path], end.reward))
    return made


def _path(calls: Sequence[ExportedCall], end: int) -> list[int]:
    path = [end]
    while (parent := calls[path[-1]].parent) >= 0:
        path.append(parent)
    return path[::-1]


def _row(path: Sequence[tuple[ExportedCall, bool]], reward: float) -> ExportedRow:
    """Prompt and completion after one another; the flag says whether the completion is trained here."""
    length = sum((len(call.prompt_suffix) + len(call.token_ids)) // 4 for call, _ in path)
    ids = np.empty(length, dtype=np.int32)
    mask, logprobs = np.zeros(length, dtype=np.int32), np.zeros(length, dtype=np.float32)
    versions = np.full(length, PROMPT_VERSION, dtype=np.int32)
    at = 0
    for call, new in path:
        sampled = TokenColumns(token_ids=call.token_ids, logprobs=call.logprobs, versions=call.versions)
        start = at + len(call.prompt_suffix) // 4
        end = start + len(sampled)
        ids[at:start] = np.frombuffer(call.prompt_suffix, dtype="<u4")
        ids[start:end] = sampled.ids_array()
        mask[start:end] = new
        logprobs[start:end] = sampled.logprobs_array()
        versions[start:end] = sampled.versions_array()
        at = end
    return {
        "input_ids": ids,
        "loss_mask": mask,
        "logprobs": logprobs,
        "versions": versions,
        "attention_mask": np.ones(length, dtype=np.bool_),
        "rewards": np.array([reward], dtype=np.float32),
    }
