"""Section `parity`: log-probabilities of sampled tokens from the engine, the trainer and a plain forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from measuring import complete, device_of, make_engine, make_trainer, random_prompts, training_sequence, with_engine
from options import GROUP, Dtype, Options
from report import Figures, Report, free_memory
from torch import Tensor
from transformers import AutoModelForCausalLM

from areal_actors.core.values import TrainingSequence


def measure(report: Report, options: Options) -> None:
    """Compare them in each dtype."""
    for dtype in options.sizes.dtypes:
        report.case(dtype, partial(compare, options, dtype))


def compare(options: Options, dtype: Dtype) -> Iterator[Figures]:
    """Yield the differences between each two of them, over all sampled tokens.

    In bfloat16 the engine and the plain forward have weights in bfloat16; the trainer has float32 weights with the same
    values, and computes in bfloat16 by autocast.
    """
    rows = sampled_rows(options, dtype)
    engine = torch.cat([torch.from_numpy(row.logprobs[row.loss_mask]) for row in rows])
    free_memory()
    plain = plain_logprobs(options, dtype, rows)
    free_memory()
    yield difference("engine - plain", engine, plain)
    trainer = make_trainer(options, dtype).logp(rows)
    yield difference("engine - trainer", engine, trainer)
    yield difference("trainer - plain", trainer, plain)


def difference(pair: str, left: Tensor, right: Tensor) -> Figures:
    """Return the absolute differences of two columns, in nats, and the mean of the first for scale."""
    distance = (left - right).abs()
    return {
        "pair": pair,
        "tokens": len(left),
        "max_difference": float(distance.max()),
        "mean_difference": float(distance.mean()),
        "mean_logprob": float(left.mean()),
    }


def sampled_rows(options: Options, dtype: Dtype) -> list[TrainingSequence]:
    """Return rows of completions sampled by the engine, in groups with one prompt."""
    sizes = options.sizes
    prompts = [
        prompt
        for prompt in random_prompts(options, sizes.parity_groups, sizes.parity_prompt, seed=len(dtype))
        for _ in range(GROUP)
    ]
    engine = make_engine(options, dtype, len(prompts), sizes.parity_prompt + sizes.parity_completion)
    completions = with_engine(engine, lambda engine: complete(engine, prompts, sizes.parity_completion))
    return [
        training_sequence(prompt, columns.ids_array(), columns.logprobs_array(), number // GROUP, float(number % 2))
        for number, (prompt, columns) in enumerate(zip(prompts, completions, strict=True))
    ]


@torch.inference_mode()
def plain_logprobs(options: Options, dtype: Dtype, rows: Sequence[TrainingSequence]) -> Tensor:
    """Return the log-probabilities from the model's own forward pass over each row alone.

    float32 `[tokens]` on the CPU.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, dtype))
    model.to(device_of(options)).eval()
    found = []
    for row in rows:
        ids = torch.from_numpy(row.token_ids).to(model.device)
        logprobs = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float().log_softmax(-1)
        found.append(logprobs.gather(1, ids[1:, None])[:, 0].cpu()[torch.from_numpy(row.loss_mask[1:])])
    return torch.cat(found)
