"""Log-probabilities of a prompt's tokens, and of likely or requested tokens at its positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.core.errors import RequestError
from areal_actors.tinker.datums import EMPTY_TOP, TargetLogprobs, TopLogprobs
from areal_actors.tinker.requests import Sample

SCORED_POSITIONS = 512
"""Prompt positions whose logits are in memory at a time."""
NOT_WANTED = -1
"""Token of a target that asks for nothing."""
FIELD = "target_prompt_logprobs"


class TargetTokens(msgspec.Struct, frozen=True):
    """Tokens to score at positions of a prompt: entry i is token `ids[i]` at position `positions[i]`."""

    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    """`NOT_WANTED` where there is none."""
    shape: tuple[int, int]
    rows: tuple[int, ...] | None
    """Row pointers of a sparse request, whose response has the same layout."""
    columns: tuple[int, ...] | None


class PromptScores(msgspec.Struct, frozen=True):
    """Scores of a prompt."""

    logprobs: NDArray[np.float32]
    """`[tokens]`; not a number where none was computed."""
    top: TopLogprobs | None
    targets: TargetLogprobs | None


def target_tokens(tensor: Mapping[str, Any], prompt_length: int, vocabulary: int) -> TargetTokens:
    """Read `target_prompt_logprobs`: row i names tokens at position i + 1.

    Raises:
        RequestError: its shape or a token does not fit.
    """
    try:
        ids = np.array(tensor["data"], dtype=np.int64)
        height, width = (int(size) for size in tensor["shape"])
        rows, columns = tensor.get("sparse_crow_indices"), tensor.get("sparse_col_indices")
        counts = _counts(height, width, rows)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"{FIELD} is not a matrix of tokens ({error}): send int64 of shape [prompt - 1, k]", FIELD
        ) from error
    fits = (
        height == prompt_length - 1
        and len(counts) == height
        and bool((counts >= 0).all())
        and int(counts.sum()) == len(ids)
    )
    if not fits or (rows is not None and len(columns or ()) != len(ids)):
        raise RequestError(
            f"{FIELD} has shape [{height}, {width}] and {len(ids)} values, expected [{prompt_length - 1}, k]", FIELD
        )
    if len(ids) and not NOT_WANTED <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise RequestError(f"{FIELD} holds a token outside of 0 to {vocabulary - 1}: use the model's tokenizer", FIELD)
    layout = (None, None) if rows is None else (tuple(rows), tuple(columns or ()))
    return TargetTokens(np.repeat(np.arange(1, height + 1), counts), ids, (height, width), *layout)


def _counts(height: int, width: int, rows: Sequence[int] | None) -> NDArray[np.int64]:
    """Number of tokens in each row of a matrix, which row pointers make sparse."""
    if rows is None:
        return np.full(height, width, dtype=np.int64)
    starts = np.array(rows, dtype=np.int64)
    return starts[1:] - starts[:-1]


@torch.inference_mode()
def score_prompt(model: Any, prompt: NDArray[np.int64], request: Sample) -> PromptScores:
    """Score a prompt, whose first token has no log-probability.

    Raises:
        RequestError: the request names positions or tokens that the prompt or the model does not have.
    """
    last = request.prompt_logprobs_last_n
    if last is not None and not 1 <= last < len(prompt):
        raise RequestError(f"prompt_logprobs_last_n is {last}: write 1 to {len(prompt) - 1}", "prompt_logprobs_last_n")
    start = len(prompt) - last if last else 1
    k = request.topk_prompt_logprobs
    vocabulary = int(model.config.get_text_config().vocab_size)
    targets = (
        target_tokens(request.target_prompt_logprobs, len(prompt), vocabulary)
        if request.target_prompt_logprobs
        else None
    )
    ids = torch.from_numpy(prompt).to(model.device)
    hidden = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    scores = np.full(len(prompt), np.nan, dtype=np.float32)
    top = TopLogprobs(
        np.zeros((len(prompt), k), dtype=np.int32), np.full((len(prompt), k), EMPTY_TOP, dtype=np.float32)
    )
    wanted_logprobs = np.zeros(len(targets.ids) if targets else 0, dtype=np.float32)
    for begin in range(1 if targets else start, len(prompt), SCORED_POSITIONS):
        end = min(begin + SCORED_POSITIONS, len(prompt))
        logprobs: Tensor = model.get_output_embeddings()(hidden[begin - 1 : end - 1]).float().log_softmax(-1)
        scores[begin:end] = logprobs.gather(1, ids[begin:end, None])[:, 0].cpu().numpy()
        if k:
            best = logprobs.topk(k)
            top.token_ids[begin:end], top.logprobs[begin:end] = best.indices.cpu().numpy(), best.values.cpu().numpy()
        if targets:
            selected = np.flatnonzero(
                (targets.positions >= begin) & (targets.positions < end) & (targets.ids != NOT_WANTED)
            )
            wanted_logprobs[selected] = logprobs.cpu().numpy()[
                targets.positions[selected] - begin, targets.ids[selected]
            ]
    scores[:start] = np.nan
    top.logprobs[:start] = EMPTY_TOP
    top.token_ids[:start] = 0
    return PromptScores(
        scores,
        top if k else None,
        TargetLogprobs(wanted_logprobs, targets.shape, targets.rows, targets.columns) if targets else None,
    )
