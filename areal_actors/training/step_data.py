"""The data of a step without forward passes: columns of the tokens, minibatches, masks, metrics of rewards."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from areal_actors.core.errors import UntrainableBatch
from areal_actors.core.values import PROMPT_VERSION, TrainingSequence
from areal_actors.sequences.episodes import own_tokens
from areal_actors.training.algorithms.base import Advantages, StepTokens
from areal_actors.training.algorithms.groups import last_by
from areal_actors.training.step_columns import step_columns


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
        [index for index, sequence in enumerate(sequences) if minibatch[sequence.group] == number]
        for number in range(count)
    ]


def step_tokens(sequences: Sequence[TrainingSequence], weight_version: int) -> StepTokens:
    """Returns the columns of a step that cost no forward pass, as tensors on the CPU; see `step_columns`."""
    return step_columns(sequences, weight_version, torch.from_numpy)


def cut_sequences(
    sequences: Sequence[TrainingSequence], tokens: StepTokens
) -> tuple[list[int], list[TrainingSequence]]:
    """Sequences whose episode was cut by length at their end, extended so that the value after them is scored.

    Returns:
        Indices of those with trained tokens.
        Each of these sequences up to its last token (masked tokens of its calls included) and one dummy token, the only
        one selected: it is never fed to the model, and is scored at the position of the token before it.
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
    fewer = msgspec.structs.replace(tokens, spans=None, **{name: of(getattr(tokens, name)) for name in names})
    reduced = msgspec.structs.replace(
        advantages, tokens=advantages.tokens[kept], returns=of(advantages.returns), kept=None
    )
    return masked, fewer, reduced
