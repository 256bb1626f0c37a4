"""The data of a step before its first update: columns over all trained tokens, advantages and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from areal_actors.core.errors import UntrainableBatch
from areal_actors.core.values import PROMPT_VERSION, TrainingSequence
from areal_actors.sequences.episodes import own_tokens, sequences_by_episode
from areal_actors.training.algorithms.base import Advantages, Algorithm, Batch, StepTokens
from areal_actors.training.algorithms.groups import last_by, mean_by
from areal_actors.training.packing.tensors import MicroBatch
from areal_actors.training.ranks import Ranks
from areal_actors.training.step_columns import step_columns

Columns = TypeVar("Columns", StepTokens, Advantages)


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A step before its first update: sequences, advantages of their tokens, and the sequences of each update."""

    sequences: Sequence[TrainingSequence]
    """The loss trains the tokens of their masks."""
    tokens: StepTokens
    """Columns of the trained tokens, on the CPU."""
    advantages: Advantages
    """Advantages of the trained tokens, on the CPU; `kept` is already applied."""
    minibatches: list[list[int]]
    """Indices of the sequences of each update."""
    metrics: dict[str, float]


def make_minibatches(sequences: Sequence[TrainingSequence], most: int, generator: torch.Generator) -> list[list[int]]:
    """Indices of the sequences of each of at most `most` minibatches.

    Whole groups, in random order if there are several.
    """
    groups = sorted({sequence.group for sequence in sequences})
    count = min(most, len(groups))
    if count == 1:
        return [list(range(len(sequences)))]
    order = torch.randperm(len(groups), generator=generator).tolist()
    minibatch = {groups[place]: turn % count for turn, place in enumerate(order)}
    return [
        [index for index, sequence in enumerate(sequences) if minibatch[sequence.group] == part]
        for part in range(count)
    ]


def step_tokens(sequences: Sequence[TrainingSequence], weight_version: int) -> StepTokens:
    """Returns the columns of a step that cost no forward pass, as tensors on the CPU; see `step_columns`."""
    return step_columns(sequences, weight_version, torch.from_numpy)


def cut_sequences(
    sequences: Sequence[TrainingSequence], tokens: StepTokens
) -> tuple[list[int], list[TrainingSequence]]:
    """Sequences whose episode was cut by length at their end, extended so that the value after their last token is scored.

    Returns:
        Indices of those with trained tokens.
        Each of these sequences up to its last token (masked tokens of its calls included) and one dummy token, the only one selected:
        it is never fed to the model, and is scored at the position of the token before it.
    """
    last_of_sample, last_of_sequence = last_by(tokens.samples), set(last_by(tokens.call_sequences).tolist())
    cut = {call for call in last_of_sample[tokens.truncated[last_of_sample]].tolist() if call in last_of_sequence}
    cut_numbers = sorted(set(tokens.call_sequences[sorted(cut)].tolist()) & set(tokens.sequences.tolist()))
    ended = []
    for index in cut_numbers:
        end = int(np.flatnonzero(own_tokens(sequences[index]) | sequences[index].loss_mask)[-1]) + 1
        ended.append(
            msgspec.structs.replace(
                sequences[index],
                token_ids=np.append(sequences[index].token_ids[:end], 0),
                loss_mask=np.arange(end + 1) == end,
                logprobs=np.append(sequences[index].logprobs[:end], np.float32(0)),
                versions=np.append(sequences[index].versions[:end], np.int32(PROMPT_VERSION)),
                calls=(),
            )
        )
    return cut_numbers, ended


def reward_metrics(
    sequences: Sequence[TrainingSequence], tokens: StepTokens, advantages: Advantages
) -> dict[str, float]:
    """Means and deviations of rewards over episodes, and of advantages over samples (a sample's advantage is its tokens' mean)."""
    rewards, groups = (
        torch.tensor([episode[0].reward for episode in sequences_by_episode(sequences)], dtype=torch.float64),
        tokens.groups,
    )
    samples = tokens.samples[tokens.calls]
    by_sample = mean_by(advantages.tokens.double(), samples, len(groups))[torch.unique(samples)]
    present, with_signal = torch.unique(groups), torch.unique(groups[samples[advantages.tokens != 0]])
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std(correction=0)),
        "advantage_mean": float(by_sample.mean()),
        "advantage_std": float(by_sample.std(correction=0)),
        "advantage_max": float(by_sample.max()),
        "advantage_min": float(by_sample.min()),
        "groups": float(len(present)),
        "groups_without_signal": float(len(present) - len(with_signal)),
        **advantages.metrics,
    }


def drop_masked_tokens(
    sequences: Sequence[TrainingSequence], tokens: StepTokens, advantages: Advantages
) -> tuple[list[TrainingSequence], StepTokens, Advantages]:
    """Remove tokens that the algorithm does not keep from masks, columns and advantages.

    Raises:
        UntrainableBatch: no token is kept.
    """
    kept = advantages.kept
    assert kept is not None
    if not kept.any():
        raise UntrainableBatch(
            "the algorithm masks every token of this batch: relax its masks under [algorithm] (for example"
            " `shaping.truncated`)"
        )
    masked = []
    for sequence, own in zip(
        sequences, torch.split(kept, [int(sequence.loss_mask[1:].sum()) for sequence in sequences]), strict=True
    ):
        mask = sequence.loss_mask.copy()
        mask[1:][mask[1:]] = own.numpy()
        masked.append(msgspec.structs.replace(sequence, loss_mask=mask))

    def of(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[kept]

    names = ("sequences", "calls", "behaviour", "versions", "proximal", "reference", "values", "teacher", "rescored")
    fewer = msgspec.structs.replace(tokens, **{name: of(getattr(tokens, name)) for name in names})
    reduced = msgspec.structs.replace(
        advantages, tokens=advantages.tokens[kept], returns=of(advantages.returns), kept=None
    )
    return masked, fewer, reduced


def to_device(columns: Columns, device: torch.device) -> Columns:
    """Copy columns to a device."""
    own = msgspec.structs.asdict(columns)
    return msgspec.structs.replace(
        columns, **{name: value.to(device) for name, value in own.items() if isinstance(value, Tensor)}
    )


def token_weights(algorithm: Algorithm, tokens: StepTokens, indices: Sequence[int]) -> Tensor:
    """Weight of each token in the loss of an update on these sequences.

    float32 `[tokens]`, 0 for tokens of other sequences.
    """
    counts = tokens.calls.bincount(minlength=len(tokens.rewards)).double()
    dealt = torch.isin(tokens.call_sequences, torch.tensor(indices, dtype=torch.int64, device=counts.device))
    counts[dealt] = algorithm.shares(counts[dealt], tokens.samples[dealt])
    return (counts * dealt)[tokens.calls].float()


def loss_batch(
    batch: MicroBatch, tokens: StepTokens, advantages: Advantages, proximal: Tensor, *, exact: bool
) -> Batch:
    """Makes the `Batch` that the loss takes.

    `tokens` and `advantages` are on its device, `exact` is `Batch.proximal_exact`.
    """
    at = batch.token_index

    def of(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[at]

    calls, versions, rescored = tokens.calls[at], tokens.versions[at], of(tokens.rescored)
    return Batch(
        sequences=tokens.sequences[at],
        groups=tokens.groups[tokens.samples[calls]],
        rewards=tokens.rewards[calls].float(),
        advantages=advantages.tokens[at],
        behaviour=tokens.behaviour[at],
        versions=versions,
        weight_version=tokens.weight_version,
        proximal=proximal,
        proximal_exact=exact,
        reference=of(tokens.reference),
        teacher=of(tokens.teacher),
        values=of(tokens.values),
        returns=of(advantages.returns),
        rescored=None if rescored is None else proximal.where(versions == tokens.weight_version, rescored),
    )


class TokenColumn:
    """Collects a column of all trained tokens from micro-batches."""

    def __init__(self) -> None:
        self._columns: list[Tensor] = []
        self._indices: list[Tensor] = []

    def add(self, batch: MicroBatch, column: Tensor) -> None:
        """Add the entries of a micro-batch, `[its tokens]`; also of a filler, which has none."""
        self._columns.append(column)
        self._indices.append(batch.token_index)

    def gather(self, ranks: Ranks, tokens: int) -> Tensor:
        """Gathers the column `[tokens]` of all replicas on the CPU."""
        return ranks.gather(torch.cat(self._columns), torch.cat(self._indices), tokens).cpu()


class StepMetricSums:
    """Means over the trained tokens of a step (maxima for names ending in `_max`), and token counts."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._counts = dict.fromkeys(("trained_tokens", "sequence_tokens", "computed_tokens"), 0.0)

    def add(self, batch: MicroBatch, columns: dict[str, Tensor]) -> None:
        """Add columns `[tokens]` of a micro-batch that has tokens.

        The sums stay on its device, so that nothing waits for it.
        """
        for name, column in columns.items():
            if name.endswith("_max"):
                largest = column.detach().max()
                self._largest[name] = torch.maximum(self._largest[name], largest) if name in self._largest else largest
            else:
                total = column.detach().sum(dtype=torch.float64)
                self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts["trained_tokens"] += len(batch.labels)
        self._counts["sequence_tokens"] += batch.sequence_tokens
        self._counts["computed_tokens"] += batch.computed_tokens

    def metrics(self, ranks: Ranks) -> tuple[dict[str, float], dict[str, float]]:
        """Returns counts, and means and maxima, by name.

        Of the counts, `sequence_tokens` are tokens without prefix sharing, `computed_tokens` those computed.
        """
        sums, largest = ranks.merge_metrics({**_values(self._sums), **self._counts}, _values(self._largest))
        counts = {name: sums.pop(name) for name in self._counts}
        return counts, {name: total / counts["trained_tokens"] for name, total in sums.items()} | largest


def _values(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Numbers of scalars, copied from their device together."""
    if not scalars:
        return {}
    return dict(zip(scalars, torch.stack([scalar.double() for scalar in scalars.values()]).tolist(), strict=True))
