"""Request validation that all generation engines share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from areal_actors.core.errors import RequestError
from areal_actors.core.values import SamplingParams


def validate_prompt(
    prompt_ids: Sequence[int], sampling: SamplingParams, sampled: int, vocabulary_size: int, context: int
) -> NDArray[np.int64]:
    """Returns the prompt's ids as an array.

    Raises:
        RequestError: a token id is out of range, prompt and max_tokens exceed the context, or `sampled` exceeds the prompt.
    """
    ids = np.array(prompt_ids, dtype=np.int64)
    if not len(ids):
        raise RequestError("prompt_ids is empty: send at least one token", field="prompt_ids")
    outside = ids[(ids < 0) | (ids >= vocabulary_size)]
    if len(outside):
        raise RequestError(
            f"prompt_ids holds {outside[0]}, but this model's ids are 0 to {vocabulary_size - 1}: use its own tokenizer", "prompt_ids"
        )
    if not 0 <= sampled < len(ids):
        raise RequestError(f"'sampled' is {sampled}, but the prompt has {len(ids)} ids, and the first cannot be sampled", "sampled")
    if len(ids) + sampling.max_tokens > context:
        raise RequestError(
            f"{len(ids)} prompt tokens and max_tokens {sampling.max_tokens} exceed the context of {context}: "
            "lower max_tokens or raise generation.max_model_len",
            field="max_tokens",
        )
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocabulary_size:
            raise RequestError(
                f"'logit_bias' holds {token_id}, but this model's ids are 0 to {vocabulary_size - 1}: use its own tokenizer", "logit_bias"
            )
        if not math.isfinite(bias):
            raise RequestError(f"'logit_bias' is {bias} for {token_id}: write a finite number, such as -100", "logit_bias")
    return ids
