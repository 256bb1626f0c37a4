"""Trajectories in the Agent Trajectory Interchange Format (ATIF), version 1.7, and back.

One document is one episode. Texts are decoded from its tokens; ids and log-probabilities stand in the format's own
fields for them. What the format has no field for stands in `extra`, so that an episode that was written here is read
again as it was (specification: harbor-framework/harbor, rfcs/0001-trajectory-format.md).
"""

from __future__ import annotations

import datetime as dt
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.values import Interaction, TokenColumns, Trajectory, VersionSpan, pack_ids, unpack_ids
from areal_actors.sequences.build import token_path

VERSION = "ATIF-v1.7"
EXTRA = "areal_actors"
"""Key in `extra` of the root and of the steps of the agent."""
COLUMNS = ("prompt_suffix", "completion", "id_planes", "routes")
"""Fields of an interaction that are not written with its others."""

Text = Callable[[list[int]], str | None]
"""Returns the text of token ids without special tokens; None without a tokenizer."""


def to_atif(trajectory: Trajectory, *, run: str, version: str, model: str, time: float, text: Text) -> dict[str, Any]:
    """Returns an episode as a document.

    Args:
        trajectory: the episode.
        run: name of its run.
        version: of this program.
        model: model of the run.
        time: end of the episode, in seconds since the epoch.
        text: decodes token ids.
    """
    calls = {call.id: call for call in trajectory.interactions}
    steps: list[dict[str, Any]] = []
    for call in trajectory.interactions:
        steps += _steps_of_call(call, calls, model, text)
    steps[-1]["timestamp"] = dt.datetime.fromtimestamp(time, dt.UTC).isoformat()
    facts = {name: value for name, value in msgspec.to_builtins(trajectory).items() if name != "interactions"}
    return {
        "schema_version": VERSION,
        "session_id": f"{run}/{trajectory.episode}/{trajectory.attempt}",
        "agent": {"name": "areal-actors", "version": version, "model_name": model},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {
            "total_prompt_tokens": sum(step.get("metrics", {}).get("prompt_tokens", 0) for step in steps),
            "total_completion_tokens": trajectory.sampled_tokens(),
            "total_steps": len(steps),
        },
        "extra": {"reward": trajectory.reward, EXTRA: facts},
    }


def _steps_of_call(
    call: Interaction, calls: Mapping[str, Interaction], model: str, text: Text
) -> Iterator[dict[str, Any]]:
    """Yields what the model was given since the call that it continues, and its answer."""
    given, sampled = unpack_ids(call.prompt_suffix), call.completion.ids_array().tolist()
    logprobs = call.completion.logprobs_array().tolist()
    context = [
        token
        for earlier in token_path(call, calls)[:-1]
        for token in (*unpack_ids(earlier.prompt_suffix), *unpack_ids(earlier.completion.token_ids))
    ]
    is_finite = all(map(math.isfinite, logprobs))
    facts = {name: value for name, value in msgspec.to_builtins(call).items() if name not in COLUMNS}
    columns = {} if is_finite else {"logprobs": b64encode(call.completion.logprobs).decode()}
    if call.routes:
        columns["routes"] = b64encode(call.routes).decode()
    yield {"source": "user", "message": text(given) or ""}
    yield {
        "source": "agent",
        "message": text(sampled) or "",
        "model_name": model,
        "llm_call_count": 1,
        "metrics": {
            "prompt_tokens": len(context) + len(given),
            "completion_tokens": len(sampled),
            "prompt_token_ids": context + given,
            "completion_token_ids": sampled,
            **({"logprobs": logprobs} if is_finite else {}),
        },
        "extra": {EXTRA: {**facts, "versions": msgspec.to_builtins(call.completion.versions), **columns}},
    }


def is_own(document: Mapping[str, Any]) -> bool:
    """Returns True if the document was written by `to_atif`."""
    return EXTRA in (document.get("extra") or {})


def from_atif(document: Mapping[str, Any]) -> Trajectory:
    """Returns the episode of a document that `to_atif` has written.

    Raises:
        SetupError: fields are missing or damaged.
    """
    try:
        lengths: dict[str, int] = {}
        calls: list[Interaction] = []
        for step in document["steps"]:
            if step["source"] == "agent":
                calls.append(_read_call(step, lengths))
                lengths[calls[-1].id] = len(step["metrics"]["prompt_token_ids"]) + len(calls[-1].completion)
        facts = {**document["extra"][EXTRA], "interactions": ()}
        return msgspec.structs.replace(msgspec.convert(facts, Trajectory), interactions=tuple(calls))
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        name = document.get("session_id") or "a document"
        raise SetupError(f"{name}: cannot be read as {VERSION} of areal-actors: {error!r}") from error


def _read_call(step: Mapping[str, Any], lengths: Mapping[str, int]) -> Interaction:
    facts, metrics = dict(step["extra"][EXTRA]), step["metrics"]
    versions = msgspec.convert(facts.pop("versions"), tuple[VersionSpan, ...])
    encoded, routes = facts.pop("logprobs", ""), facts.pop("routes", "")
    sampled = metrics["completion_token_ids"]
    columns = TokenColumns.of(sampled, metrics.get("logprobs") or [0.0] * len(sampled), [0] * len(sampled))
    if encoded:
        columns = msgspec.structs.replace(columns, logprobs=b64decode(encoded))
    prefix = facts.get("prefix") or ""
    plain = {
        "prompt_suffix": b"",
        "completion": msgspec.to_builtins(TokenColumns()),
        "id_planes": 0,
        "routes": b"",
    }
    call = msgspec.convert({**facts, **plain}, Interaction)
    return msgspec.structs.replace(
        call,
        prompt_suffix=pack_ids(metrics["prompt_token_ids"][lengths.get(prefix, 0) :]),
        completion=msgspec.structs.replace(columns, versions=versions),
        routes=b64decode(routes),
    )
