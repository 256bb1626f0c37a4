"""Metrics of a batch: staleness per token and per head, share of masked tokens, lengths and rewards of episodes."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import PROMPT_VERSION, TrainingSequence
from areal_actors.messages import BatchFormed
from areal_actors.sequences.episodes import calls_of, own_tokens, sequences_by_episode

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")


REWARD_METRIC = "reward/"
"""Prefix of metrics from the reward function in `StepCompleted`."""

SOURCE_METRIC = "source/"
"""Prefix of metrics of one source of a mixture, before its name."""

UNREAD_CALLS = "tool_call_error"
"""Metric of tool calls that did not reach the agent as calls, and prefix of its causes."""

BASELINE_METRIC = "baseline/"
"""Prefix of role-wise baselines, before the name of the role."""

SAMPLED_ONLY_METRICS = frozenset(
    {"groups", "groups_without_signal", "train_infer_logprob_diff_max", "parity_tokens", UNREAD_CALLS}
)
REWARD_METRIC_PREFIXES = ("reward_", "advantage_")
"""Prefixes of metrics that do not apply to examples."""


def batch_metrics(sequences: Sequence[TrainingSequence], batch: BatchFormed) -> dict[str, float]:
    """Staleness of trained tokens and of each episode's first sampled token, and metrics of episodes.

    Staleness is in weight versions, at the version that trains the tokens. Shares and means are over episodes, of any
    number of sequences, unless stated otherwise: `mean_tokens` (sampled tokens of an episode), `truncated_frac` (its
    last call was cut by length, or the model ended it), `ended_by_model` (see `task.overflow_reward`), `reward_mean`.
    `unanswered_calls` is the number of calls that were in flight when their agent returned, or that it had left. Every
    sampled token counts once, in the sequence that trains its call; `masked_frac` is the share of them that no sequence
    trains. `length_bias` is the mean length of trained trajectories over that of trained and dropped ones together;
    below 1, dropping favours short answers. `calls_without_credit` is the number of calls whose reward is 0 since
    nothing that continues them has one (`task.turn_discount`), `calls_with_ignored_fields` of those whose request had
    fields without effect.
    """
    episodes = sequences_by_episode(sequences)
    sampled = [
        np.concatenate([sequence.versions[own_tokens(sequence)] for sequence in episode]) for episode in episodes
    ]
    trained = np.concatenate([sequence.versions[sequence.loss_mask] for sequence in sequences])
    heads = np.array([versions[0] for versions in sampled if len(versions)], dtype=np.int32)
    lengths = np.array([len(versions) for versions in sampled])
    return {
        **_distribution("token_staleness", batch.step - trained),
        **_distribution("head_staleness", batch.step - heads),
        "masked_frac": float(1.0 - len(trained) / max(lengths.sum(), 1)),
        "versions_in_batch": float(len(np.unique(trained))),
        "sampled_tokens": float(lengths.sum()),
        "mean_tokens": float(lengths.mean()),
        "length_bias": _length_bias(batch),
        "dropped_tokens": float(batch.dropped_tokens),
        "filtered_groups": float(batch.filtered_groups),
        "truncated_frac": float(np.mean([calls_of(episode[-1])[-1].truncated for episode in episodes])),
        **_credit(sequences),
        "ended_by_model": float(np.mean([episode[0].ended_by == "model" for episode in episodes])),
        "unanswered_calls": float(sum(episode[0].unanswered_calls for episode in episodes)),
        "reward_mean": float(np.mean([episode[0].reward for episode in episodes])),
        **_unread_call_shares(sequences),
        **_ignored_fields(sequences),
        **_by_source(episodes),
        **_baselines(batch),
    }


def _baselines(batch: BatchFormed) -> dict[str, float]:
    """Mean of the role-wise baselines of the episodes of the batch, by role; nothing without such baselines."""
    by_name: dict[str, list[float]] = {}
    for member in (member for group in batch.groups for member in group):
        for name, baseline in member.baselines.items():
            by_name.setdefault(name, []).append(baseline)
    return {f"{BASELINE_METRIC}{name}": float(np.mean(baselines)) for name, baselines in sorted(by_name.items())}


def _by_source(episodes: Sequence[Sequence[TrainingSequence]]) -> dict[str, float]:
    """Number of groups, and mean reward of the episodes, of each source of a mixture; nothing without one."""
    members: dict[str, list[TrainingSequence]] = {}
    for episode in episodes:
        if episode[0].source:
            members.setdefault(episode[0].source, []).append(episode[0])
    metrics: dict[str, float] = {}
    for source, rows in sorted(members.items()):
        metrics[source_metric(source, "groups")] = float(len({row.group for row in rows}))
        metrics[source_metric(source)] = float(np.mean([row.reward for row in rows]))
    return metrics


def is_source_mean(name: str) -> bool:
    """Returns True for the metric with the mean reward of a source."""
    return name.startswith(SOURCE_METRIC) and name.count("/") == 1


def source_metric(source: str, name: str = "") -> str:
    """Returns the name of a metric of a source; without a `name`, of its mean reward."""
    return f"{SOURCE_METRIC}{source}{f'/{name}' if name else ''}"


def _unread_call_shares(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """Shares of the trained calls in which a tool call did not reach the agent as one.

    There is a share of all causes, and one by the name of each.
    """
    problems = [call.call_problem for sequence in sequences for call in calls_of(sequence)]
    counts = Counter(filter(None, problems))
    shares = {f"{UNREAD_CALLS}/{cause}": count / len(problems) for cause, count in sorted(counts.items())}
    return {UNREAD_CALLS: counts.total() / max(len(problems), 1), **shares}


def mean_metrics(scored: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each metric of reward functions over the episodes that have it, first seen first."""
    values: dict[str, list[float]] = {}
    for metrics in scored:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(samples) / len(samples) for name, samples in values.items()}


def _credit(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """Number of trained calls that no reward reaches under the recipe's discount; nothing if there is none."""
    missing = sum(not call.credited for sequence in sequences for call in calls_of(sequence))
    return {"calls_without_credit": float(missing)} if missing else {}


def _ignored_fields(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """Number of trained calls whose requests had fields without effect; nothing if there is none."""
    count = sum(call.fields_ignored for sequence in sequences for call in calls_of(sequence))
    return {"calls_with_ignored_fields": float(count)} if count else {}


def _length_bias(batch: BatchFormed) -> float:
    generated_tokens = batch.trained_tokens + batch.dropped_tokens
    generated_trajectories = batch.trained_trajectories + batch.dropped_trajectories
    return (batch.trained_tokens / batch.trained_trajectories) / (generated_tokens / generated_trajectories)


def _distribution(name: str, values: np.ndarray[tuple[int], np.dtype[np.int32]]) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_p99": float(np.percentile(values, 99)),
        f"{name}_max": float(values.max()),
    }


def sequences_checksum(sequences: Sequence[TrainingSequence]) -> str:
    """CRC-32 of the sampled ids and log-probabilities, in sequence order.

    The audit compares it with that of the logged trajectories.
    """
    checksum = 0
    for sequence in sequences:
        sampled = sequence.versions != PROMPT_VERSION
        checksum = zlib.crc32(sequence.token_ids[sampled].astype("<u4").tobytes(), checksum)
        checksum = zlib.crc32(sequence.logprobs[sampled].astype("<f4").tobytes(), checksum)
    return f"{checksum:08x}"


def example_metrics(metrics: dict[str, float], sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    """Metrics of a step or an evaluation, without those that apply to sampled sequences only."""
    kept = {
        name: value
        for name, value in metrics.items()
        if name not in SAMPLED_ONLY_METRICS and not name.startswith(REWARD_METRIC_PREFIXES)
    }
    sources = _by_source(sequences_by_episode(sequences))
    return {**kept, **sources, "examples": float(len({sequence.group for sequence in sequences}))}


def examples_checksum(sequences: Sequence[TrainingSequence]) -> str:
    """CRC-32 of ids and loss masks of all sequences, in sequence order."""
    value = 0
    for sequence in sequences:
        value = zlib.crc32(sequence.token_ids.astype("<u4").tobytes(), value)
        value = zlib.crc32(sequence.loss_mask.tobytes(), value)
    return f"{value:08x}"
