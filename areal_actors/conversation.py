"""The conversation tree of a session: which earlier call a prompt continues, to the token, and the rows it becomes.

An interaction whose messages continue an earlier one starts with that one's exact prompt and completion ids; only the
new tail is tokenised. Where the chat template rewrites history, the interaction becomes a root and says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from areal_actors.values import PROMPT_VERSION, Interaction, Row, TokenColumns, Trajectory, pack_ids
from bus.message import FrozenMeta

Message = Mapping[str, Any]


class Tokenizer(Protocol):
    """What the tree needs of a chat tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, its special tokens recognised and none added."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids."""
        ...

    def render(self, messages: Sequence[Message]) -> str:
        """Messages as the model's chat template writes them, ready for the model's answer."""
        ...


class Turn(msgspec.Struct, metaclass=FrozenMeta):
    """One model call, with what is needed to continue it."""

    interaction: Interaction
    messages: tuple[dict[str, Any], ...]
    """Those of the request, followed by the assistant's answer."""
    rendered: str
    """The prompt's text and the completion's, special tokens included."""
    token_ids: tuple[int, ...]
    """The prompt's ids and the completion's."""


class Prompt(msgspec.Struct, metaclass=FrozenMeta):
    """The tokens to continue."""

    parent: str
    text: str
    token_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    """What comes after the parent's tokens; everything at a root."""
    split: str = ""
    """Why the prompt does not continue an earlier call's tokens although its messages do."""


def prompt_for(turns: Sequence[Turn], messages: Sequence[Message], tokenizer: Tokenizer) -> Prompt:
    """Tokens for these messages, continuing the longest earlier call that they continue by value."""
    text = tokenizer.render(messages)
    parent = _longest_prefix(turns, messages)
    if parent is None:
        ids = tuple(tokenizer.encode(text))
        return Prompt(parent="", text=text, token_ids=ids, suffix_ids=ids)
    if not text.startswith(parent.rendered):
        ids = tuple(tokenizer.encode(text))
        return Prompt(parent="", text=text, token_ids=ids, suffix_ids=ids, split="the chat template rewrites earlier messages")
    suffix = tuple(tokenizer.encode(text[len(parent.rendered) :]))
    return Prompt(parent=parent.interaction.id, text=text, token_ids=(*parent.token_ids, *suffix), suffix_ids=suffix)


def _longest_prefix(turns: Sequence[Turn], messages: Sequence[Message]) -> Turn | None:
    wanted = [_by_value(message) for message in messages]
    candidates = [
        turn
        for turn in turns
        if len(turn.messages) < len(messages) and [_by_value(message) for message in turn.messages] == wanted[: len(turn.messages)]
    ]
    return max(candidates, key=lambda turn: len(turn.messages), default=None)


def _by_value(value: Any) -> Any:
    """A message as the model sees it: null, absent and empty are one; a list of text parts is a string; JSON text is its value."""
    if isinstance(value, Mapping):
        kept = {key: _by_value(entry) for key, entry in value.items() if key != "arguments"}
        if "arguments" in value:
            kept["arguments"] = _arguments(value["arguments"])
        return {key: entry for key, entry in sorted(kept.items()) if entry not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        parts = [_by_value(entry) for entry in value]
        if parts and all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
            return "".join(part.get("text", "") for part in parts)
        return parts
    return value


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def recorded(
    identifier: str,
    prompt: Prompt,
    messages: Sequence[dict[str, Any]],
    completion: TokenColumns,
    finish_reason: str,
    answer: dict[str, Any],
    tokenizer: Tokenizer,
) -> Turn:
    """A completed call as the tree keeps it."""
    ids = tuple(int(token) for token in completion.ids_array())
    interaction = Interaction(
        id=identifier,
        parent=prompt.parent,
        prompt_suffix=pack_ids(prompt.suffix_ids),
        completion=completion,
        finish_reason=finish_reason,
    )
    return Turn(
        interaction=interaction,
        messages=(*messages, answer),
        rendered=prompt.text + tokenizer.decode(ids, skip_special=False),
        token_ids=(*prompt.token_ids, *ids),
    )


def rewarded(interactions: Sequence[Interaction], reward: float | None, rewards: Mapping[str, float]) -> tuple[Interaction, ...]:
    """Interactions with their rewards: by id, and `reward` for the last completed one."""
    by_id = dict(rewards)
    if reward is not None and interactions:
        by_id[interactions[-1].id] = reward
    return tuple(msgspec.structs.replace(turn, reward=by_id.get(turn.id, turn.reward)) for turn in interactions)


def rows_of(trajectory: Trajectory, group: int, oldest_version: int) -> list[Row]:
    """One row per leaf path of the conversation tree.

    Every sampled token is trained in one row only: where paths share a beginning, later rows keep it as context. So are
    tokens older than `oldest_version`.
    """
    by_id = {turn.id: turn for turn in trajectory.interactions}
    parents = {turn.parent for turn in trajectory.interactions}
    rows: list[Row] = []
    trained: set[str] = set()
    for leaf in (turn for turn in trajectory.interactions if turn.id not in parents):
        path = _path(leaf, by_id)
        rows.append(_row(path, trained, trajectory.reward, group, oldest_version))
        trained |= {turn.id for turn in path}
    return rows


def _path(leaf: Interaction, by_id: Mapping[str, Interaction]) -> list[Interaction]:
    path = [leaf]
    while path[-1].parent:
        path.append(by_id[path[-1].parent])
    return path[::-1]


def _row(path: Sequence[Interaction], trained: set[str], reward: float, group: int, oldest_version: int) -> Row:
    ids: list[np.ndarray[Any, Any]] = []
    mask: list[np.ndarray[Any, Any]] = []
    logprobs: list[np.ndarray[Any, Any]] = []
    versions: list[np.ndarray[Any, Any]] = []
    for turn in path:
        prompt = np.frombuffer(turn.prompt_suffix, dtype="<u4")
        made_by = turn.completion.versions_array()
        ids += [prompt, turn.completion.ids_array()]
        mask += [np.zeros(len(prompt), dtype=bool), (made_by >= oldest_version) & (turn.id not in trained)]
        logprobs += [np.zeros(len(prompt), dtype=np.float32), turn.completion.logprobs_array()]
        versions += [np.full(len(prompt), PROMPT_VERSION, dtype=np.int32), made_by]
    return Row(
        token_ids=np.concatenate(ids).astype(np.int64),
        loss_mask=np.concatenate(mask),
        logprobs=np.concatenate(logprobs).astype(np.float32),
        versions=np.concatenate(versions),
        group=group,
        reward=reward,
        truncated=path[-1].finish_reason == "length",
    )
