"""Rows of the tables of a run: an ended attempt at an episode, and its model calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import Interaction
from areal_actors.history.episode_rows import TRACE_COLUMNS, CallRecord
from areal_actors.messages import EpisodeAbandoned, EpisodeEvaluated
from areal_actors.reader.records import EndedEpisode

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")  # a list of episodes needs none


def episode_row(ended: EndedEpisode) -> dict[str, Any]:
    """Returns the row of an ended attempt."""
    event, calls = ended.event, interaction_rows(ended)
    fields = ("oldest_version", "newest_version")
    versions = [call[field] for call in calls for field in fields if call[field] is not None]
    failed = event if isinstance(event, EpisodeAbandoned) else None
    return {
        "episode": ended.episode,
        "attempt": ended.attempt,
        "group": ended.group,
        "purpose": ended.purpose,
        "task_id": ended.task_id,
        "outcome": ended.outcome,
        "step": ended.step,
        "reward": ended.reward,
        "reason": ended.reason,
        "detail": failed.detail if failed else "",
        "output": ended.output,
        "interactions": len(calls),
        "prompt_tokens": sum(call["prompt_tokens"] or 0 for call in calls),
        "completion_tokens": (
            event.completion_tokens
            if isinstance(event, EpisodeEvaluated)
            else sum(call["completion_tokens"] for call in calls)
        ),
        "oldest_version": min(versions, default=None),
        "newest_version": max(versions, default=None),
        "seconds": ended.seconds,
        "time": ended.time,
        "sequence": ended.sequence,
    }


def interaction_rows(
    ended: EndedEpisode, text: Callable[[list[int]], str | None] | None = None
) -> list[dict[str, Any]]:
    """Returns the rows of the model calls of an ended attempt.

    `text` decodes token ids, without it there are no texts.
    """
    recorded = {recorded_call.interaction: recorded_call for recorded_call in ended.recorded}
    sampled = {call.id: call for call in ended.interactions}
    names = sampled if ended.trajectory else recorded | sampled
    rows = [
        _sampled_call(sampled[name], recorded.get(name), text) if name in sampled else _recorded_call(recorded[name])
        for name in names
    ]
    return [{"episode": ended.episode, "attempt": ended.attempt, **row} for row in rows]


def _sampled_call(
    call: Interaction, recorded: CallRecord | None, text: Callable[[list[int]], str | None] | None
) -> dict[str, Any]:
    versions, logprobs = call.completion.versions_array(), call.completion.logprobs_array()
    return {
        "interaction": call.id,
        "parent": call.parent,
        "prefix": call.prefix,
        "prompt": call.prompt_text(text) if text else None,
        "completion": text(call.completion.ids_array().tolist()) if text else None,
        "prompt_tokens": recorded.prompt_tokens if recorded else None,
        "completion_tokens": len(call.completion),
        "finish_reason": call.finish_reason,
        "oldest_version": int(versions.min()) if len(versions) else None,
        "newest_version": int(versions.max()) if len(versions) else None,
        "mean_logprob": float(np.mean(logprobs)) if len(logprobs) else None,
        "reward": call.reward,
        "trained": call.trained,
        "worker": call.worker,
        "prefix_break_reason": recorded.prefix_break_reason if recorded else "",
        "tool_call_error": recorded.tool_call_error if recorded else "",
        **_trace_of(recorded),
    }


def _trace_of(call: CallRecord | None) -> dict[str, Any]:
    """Returns the ids of the client's trace and span, if it sent them, and recorded entries of its baggage."""
    return {name: getattr(call, name, "") for name in TRACE_COLUMNS}


def _recorded_call(call: CallRecord) -> dict[str, Any]:
    return {
        "interaction": call.interaction,
        "parent": call.parent,
        "prefix": call.prefix,
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
        "finish_reason": call.finish_reason,
        "oldest_version": call.oldest_version,
        "newest_version": call.newest_version,
        "trained": bool(call.trained),
        "prefix_break_reason": call.prefix_break_reason,
        "tool_call_error": call.tool_call_error,
        **_trace_of(call),
    }
