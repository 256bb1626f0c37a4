"""Converts a trajectory to training sequences.

There is one per path of calls whose tokens extend each other, or one per call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import PROMPT_VERSION, ImageRef, Interaction, SequenceCall, TrainingSequence, Trajectory
from areal_actors.sequences.credit import Credit, baseline_name, call_rewards, calls_without_credit, sequence_ends
from areal_actors.sequences.named_rewards import named_call_rewards
from areal_actors.sequences.span_credit import credited_spans, span_shares

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")


EPISODE = Credit()
"""One reward applies to every call of the episode."""


def apply_rewards(
    interactions: Sequence[Interaction], reward: float | None, rewards: Mapping[str, float]
) -> tuple[Interaction, ...]:
    """Set the rewards of interactions: `rewards` by id, and `reward` on the last trained one."""
    by_id = dict(rewards)
    if reward is not None and interactions:
        by_id[last_trained(interactions).id] = reward
    return tuple(
        msgspec.structs.replace(call, reward=by_id[call.id]) if call.id in by_id else call for call in interactions
    )


def last_trained(interactions: Sequence[Interaction]) -> Interaction:
    """The last trained interaction; the last one if none is trained."""
    return next((call for call in reversed(interactions) if call.trained), interactions[-1])


def sequences_of(
    trajectory: Trajectory,
    group: int,
    oldest_version: int,
    credit: Credit = EPISODE,
    baselines: Mapping[str, float] = MappingProxyType({}),
) -> list[TrainingSequence]:
    """Sequences of a trajectory, each call with its R(call).

    Every sampled token is trained in one sequence only: where paths share a prefix, it is context in later sequences,
    and so are earlier calls in the sequence of a call, tokens older than `oldest_version`, and calls that are not
    trained. `baselines` are the role-wise ones of the episode, by name.
    """
    by_id, ended = {call.id: call for call in trajectory.interactions}, last_call_of_model(trajectory)
    rewards = call_rewards(trajectory, credit)
    uncredited = calls_without_credit(trajectory, credit)
    named = named_call_rewards(trajectory, credit, last_trained(trajectory.interactions).id) if rewards else {}
    spans = {call.id: call.spans for call in by_id.values() if call.spans}
    shares = span_shares(trajectory, credit) if spans else {}
    sequences: list[TrainingSequence] = []
    done = {call.id for call in trajectory.interactions if not call.trained}
    for end in sequence_ends(trajectory.interactions, credit.style):
        path = token_path(end, by_id)
        context = by_id.keys() - {end.id} if credit.style == "individual" else done
        calls = tuple(
            SequenceCall(
                start=start,
                end=end_of_call,
                reward=rewards[call.id],
                truncated=call.finish_reason == "length" or call.id == ended,
                sample={"calls": call.id, "roles": call.role}.get(credit.baseline_over, ""),
                role=call.role if credit.baseline_over == "roles" else "",
                worker=call.worker,
                temperature=call.temperature,
                credited=call.id not in uncredited,
                call_problem=call.call_problem,
                fields_ignored=call.fields_ignored,
                named_rewards=named.get(call.id, ()),
                baseline=baselines.get(baseline_name(trajectory, call, credit)),
                spans=credited_spans(call, start, end_of_call, shares, spans) if spans else (),
            )
            for call, start, end_of_call in call_places(path)
            if call.id not in context
        )
        sequences.append(_row(path, context, calls, trajectory, group, oldest_version))
        done |= {call.id for call in path}
    return sequences


def last_call_of_model(trajectory: Trajectory) -> str:
    """Id of the call after which the model itself ended the episode, which is truncated there.

    Empty if the agent ended it.
    """
    return last_trained(trajectory.interactions).id if trajectory.ended_by == "model" else ""


def token_path(end: Interaction, by_id: Mapping[str, Interaction]) -> list[Interaction]:
    """Calls on the token path from the root to this one."""
    path = [end]
    while path[-1].prefix:
        path.append(by_id[path[-1].prefix])
    return path[::-1]


def call_places(path: Sequence[Interaction]) -> Iterator[tuple[Interaction, int, int]]:
    """Yield each call of a path with the range of its sampled tokens."""
    end = 0
    for call in path:
        start = end + len(call.prompt_suffix) // 4
        end = start + len(call.completion)
        yield call, start, end


def _row(
    path: Sequence[Interaction],
    context: AbstractSet[str],
    calls: tuple[SequenceCall, ...],
    trajectory: Trajectory,
    group: int,
    oldest_version: int,
) -> TrainingSequence:
    ids: list[np.ndarray[Any, Any]] = []
    mask: list[np.ndarray[Any, Any]] = []
    logprobs: list[np.ndarray[Any, Any]] = []
    versions: list[np.ndarray[Any, Any]] = []
    images: list[ImageRef] = []
    for call in path:
        prompt = np.frombuffer(call.prompt_suffix, dtype="<u4")
        made_by = call.completion.versions_array()
        ids += [prompt, call.completion.ids_array()]
        mask += [np.zeros(len(prompt), dtype=bool), (made_by >= oldest_version) & (call.id not in context)]
        logprobs += [np.zeros(len(prompt), dtype=np.float32), call.completion.logprobs_array()]
        versions += [np.full(len(prompt), PROMPT_VERSION, dtype=np.int32), made_by]
        if call.images:
            start = sum(map(len, ids[:-2]))
            images += [msgspec.structs.replace(image, start=start + image.start) for image in call.images]
    return TrainingSequence(
        token_ids=np.concatenate(ids).astype(np.int64),
        loss_mask=np.concatenate(mask),
        logprobs=np.concatenate(logprobs).astype(np.float32),
        versions=np.concatenate(versions),
        group=group,
        reward=trajectory.reward,
        truncated=path[-1].finish_reason == "length" or path[-1].id == last_call_of_model(trajectory),
        ended_by=trajectory.ended_by,
        unanswered_calls=trajectory.unanswered_calls,
        source=trajectory.source,
        episode=trajectory.episode,
        calls=calls,
        routes=b"".join(call.routes for call in takewhile(lambda call: call.routes, path)),
        images=tuple(images),
    )
