"""Converts the tensor dict of `arun_episode` to rewards of recorded calls.

A dict with tokens that were not sampled so is refused. The trained columns are always those that the engine recorded. A
row is accepted if they are exactly the columns that it has: the same ids after the same prompt, the same
log-probabilities and weight versions, at every position with `loss_mask` 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from areal_actors.core.errors import AgentError
from areal_actors.library.workflow import InteractionColumns
from areal_actors.rewards import check_reward

REQUIRED = ("input_ids", "attention_mask", "loss_mask", "rewards")
OPTIONAL = ("logprobs", "versions")
REMEDY = "build the row from the input_tokens and output_tokens of engine.agenerate, in the order of the conversation"


class TensorRow(NamedTuple):
    """One row without its padding: columns of shape [tokens]."""

    number: int
    ids: list[int]
    trained: NDArray[np.bool_]
    logprobs: NDArray[np.float32] | None
    versions: NDArray[np.int64] | None
    reward: float


def tensor_rewards(returned: Mapping[str, Any], calls: Mapping[str, InteractionColumns]) -> dict[str, float]:
    """Returns the reward of each trained call by interaction id: the mean over the rows that train it.

    Args:
        returned: tensors or arrays: `input_ids`, `attention_mask`, `loss_mask` [rows, tokens], `rewards` [rows], and
            optionally `logprobs` and `versions` [rows, tokens].
        calls: the calls of the episode by interaction id.

    Raises:
        AgentError: a tensor is missing or has the wrong shape, no token is trained, or a row has tokens,
            log-probabilities or versions that are not those of a call.
        RewardError: a reward is not a finite number.
    """
    rewards: dict[str, list[float]] = {}
    for row in rows_of(returned):
        for identifier in _trained_calls(row, calls, rewards):
            rewards.setdefault(identifier, []).append(row.reward)
    if not rewards:
        raise AgentError(
            "arun_episode returned tensors without a token whose loss_mask is 1; return None to reject the episode"
        )
    return {identifier: sum(each) / len(each) for identifier, each in rewards.items()}


def rows_of(returned: Mapping[str, Any]) -> list[TensorRow]:
    """Returns the rows of a tensor dict without their padding.

    Raises:
        AgentError: a tensor is missing, has the wrong shape, or is padded on the left.
        RewardError: a reward is not a finite number.
    """
    columns = {name: _array(returned[name]) for name in (*REQUIRED, *OPTIONAL) if name in returned}
    if missing := [name for name in REQUIRED if name not in columns]:
        raise AgentError(f"arun_episode returned tensors without `{missing[0]}`; it must have {', '.join(REQUIRED)}")
    shape = columns["input_ids"].shape
    if len(shape) != 2:
        raise AgentError(
            f"`input_ids` has shape {list(shape)}; expected [rows, tokens], so add a dimension with unsqueeze(0)"
        )
    for name, column in columns.items():
        expected = shape[:1] if name == "rewards" else shape
        if column.shape != expected:
            raise AgentError(
                f"`{name}` has shape {list(column.shape)}; expected {list(expected)}, as `input_ids` has {list(shape)}"
            )
    return [_row(number, {name: column[number] for name, column in columns.items()}) for number in range(shape[0])]


def _array(tensor: Any) -> NDArray[Any]:
    return np.asarray(tensor.detach().cpu() if hasattr(tensor, "detach") else tensor)


def _row(number: int, columns: Mapping[str, NDArray[Any]]) -> TensorRow:
    valid = columns["attention_mask"].astype(bool)
    length = int(valid.sum())
    if not valid[:length].all():
        raise AgentError(f"row {number}: `attention_mask` has zeros before ones; pad rows at their end")
    return TensorRow(
        number=number,
        ids=columns["input_ids"][:length].tolist(),
        trained=columns["loss_mask"][:length].astype(bool),
        logprobs=columns["logprobs"][:length].astype(np.float32) if "logprobs" in columns else None,
        versions=columns["versions"][:length].astype(np.int64) if "versions" in columns else None,
        reward=check_reward(columns["rewards"].item()),
    )


def _trained_calls(row: TensorRow, calls: Mapping[str, InteractionColumns], used: Mapping[str, object]) -> list[str]:
    """Returns the calls that a row trains.

    A call that no earlier row trains comes before one with the same tokens that is used.
    """
    covered = np.zeros(len(row.ids), dtype=bool)
    trained: list[str] = []
    for identifier in sorted(calls, key=lambda name: name in used):
        call = calls[identifier]
        start, end = len(call.prompt_token_ids), len(call.prompt_token_ids) + len(call.token_ids)
        if covered[start:end].any() or row.ids[:end] != call.prompt_token_ids + call.token_ids:
            continue
        mask = row.trained[start:end]
        if mask.any() and not mask.all():
            raise AgentError(
                f"row {row.number}: loss_mask is 1 for {int(mask.sum())} of the {len(mask)} sampled tokens of call"
                f" {identifier}; a call is trained as a whole or not at all: set it to 1 or to 0 for all of them"
            )
        if not mask.any() or _differs(row, call, start, end):
            continue
        covered[start:end] = True
        trained.append(identifier)
    if (uncovered := row.trained & ~covered).any():
        raise AgentError(_unknown(row, int(np.argmax(uncovered)), calls))
    return trained


def _differs(row: TensorRow, call: InteractionColumns, start: int, end: int) -> str:
    """Returns the difference of log-probabilities and versions between a row and a call with the same tokens.

    Empty if there is none.
    """
    recorded: tuple[tuple[str, NDArray[Any] | None, Sequence[float]], ...] = (
        ("logprobs", row.logprobs, np.asarray(call.logprobs, dtype=np.float32).tolist()),
        ("versions", row.versions, call.weight_versions),
    )
    for name, column, expected in recorded:
        if column is not None and (actual := column[start:end].tolist()) != expected:
            place = next(
                place
                for place, (actual_value, expected_value) in enumerate(zip(actual, expected, strict=True))
                if actual_value != expected_value
            )
            return f"`{name}` of token {start + place} is {actual[place]}, but the engine recorded {expected[place]}"
    return ""


def _unknown(row: TensorRow, position: int, calls: Mapping[str, InteractionColumns]) -> str:
    """Returns the message for a trained token that no call has sampled so."""
    for identifier, call in calls.items():
        start, end = len(call.prompt_token_ids), len(call.prompt_token_ids) + len(call.token_ids)
        if start <= position < end and row.ids[:end] == call.prompt_token_ids + call.token_ids:
            return (
                f"row {row.number}: {_differs(row, call, start, end)} for call {identifier}; return the engine's own"
                " columns"
            )
    return (
        f"row {row.number}: token {position} (id {row.ids[position]}) has loss_mask 1, but it is not part of a"
        f" completion that the engine sampled in this episode after exactly the tokens before it; {REMEDY}, with all"
        " tokens of each call"
    )
