"""The outcome of every station of a run for a tiny copy of a published model, each against plain transformers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from support.published_models import mtp_tensors, published_class
from support.tiny_engine import complete

from areal_actors.core.errors import ArealError
from areal_actors.core.values import SamplingParams, TrainingSequence
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.training.algorithms import Sft
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

LENGTHS = (23, 9, 16, 30, 12, 12)
"""Tokens of the training sequences; longer than the windows of the families, and than a chunk of their convolutions."""
PROMPT = 4
LR = 0.05


@dataclass(frozen=True)
class Step:
    """A training step beside that of a plain loop, from the same weights."""

    trainer: TorchTrainer
    folder: str
    gradient: float
    """Largest difference of a gradient, relative to the largest entry of its tensor's plain gradient (at least
    1e-3)."""
    weights: float
    """Largest difference of a weight."""
    loss: float
    """Difference of the losses."""


def sequences(seed: int = 0, lengths: Sequence[int] = LENGTHS) -> list[TrainingSequence]:
    """Demonstrations in groups of two with one prompt."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        if number % 2 == 0:
            prompt = rng.integers(3, 300, PROMPT)
        ids = np.concatenate([prompt, rng.integers(3, 300, length - PROMPT)]).astype(np.int64)
        rows.append(
            TrainingSequence(
                token_ids=ids,
                loss_mask=np.arange(length) >= PROMPT,
                logprobs=np.zeros(length, np.float32),
                versions=np.full(length, -1, np.int32),
                group=number // 2,
                reward=0.0,
                truncated=False,
            )
        )
    return rows


def make_trainer(folder: str, **settings: Any) -> TorchTrainer:
    """A trainer whose update is the gradient times `LR`."""
    optimizer = OptimizerSettings(name="sgd", lr=LR, grad_clip=1e9)
    return TorchTrainer(
        folder, Sft(), TrainerSettings(device="cpu", threads=1, optimizer=optimizer, **settings), total_steps=10
    )


def plain_model(name: str, folder: str) -> Any:
    """The published class with the folder's weights, by transformers alone."""
    return published_class(name).from_pretrained(folder, dtype=torch.float32).eval()


def plain_step(model: Any, rows: Sequence[TrainingSequence]) -> float:
    """One step of gradient descent on the mean negative log-probability, sequence by sequence; returns the loss."""
    count = sum(int(row.loss_mask[1:].sum()) for row in rows)
    total = 0.0
    for row in rows:
        ids = torch.from_numpy(row.token_ids)
        logp = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        loss = -logp[torch.from_numpy(row.loss_mask[1:])].sum() / count
        loss.backward()
        total += float(loss.detach())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad * LR)
    return total


def step_beside_plain(name: str, folder: str, lengths: Sequence[int] = LENGTHS, **settings: Any) -> Step:
    """A step of the trainer and of a plain loop."""
    trainer, plain, rows = make_trainer(folder, **settings), plain_model(name, folder), sequences(lengths=lengths)
    metrics = trainer.step(rows)
    loss = plain_step(plain, rows)
    own = dict(trainer._model.named_parameters())
    by_name = {_text_name(key): parameter for key, parameter in plain.named_parameters()}
    gradient = weights = 0.0
    for key, parameter in own.items():
        theirs = by_name[_text_name(key)]
        if parameter.grad is None or theirs.grad is None:
            assert parameter.grad is None or not parameter.grad.any(), key
            assert theirs.grad is None or not theirs.grad.any(), key
            continue
        scale = max(float(theirs.grad.abs().max()), 1e-3)
        gradient = max(gradient, float((parameter.grad - theirs.grad).abs().max()) / scale)
        weights = max(weights, float((parameter.detach() - theirs.detach()).abs().max()))
    return Step(trainer, folder, gradient, weights, abs(metrics["loss"] - loss))


def _text_name(name: str) -> str:
    return name.replace("model.language_model.", "model.")


def lost_tensors(name: str, source: str, saved: str) -> list[str]:
    """Problems of a checkpoint beside the folder that was trained: tensors, configuration, and what plain transformers
    makes of it."""
    before, after = load_file(Path(source) / "model.safetensors"), load_file(Path(saved) / "model.safetensors")
    problems = [f"without {key}" for key in sorted(before.keys() - after.keys())] + [
        f"new {key}" for key in sorted(after.keys() - before)
    ]
    problems += [
        f"{key} of another shape" for key in before.keys() & after.keys() if before[key].shape != after[key].shape
    ]
    problems += [f"{key} changed" for key in mtp_tensors(name) if not torch.equal(before[key], after[key])]
    ours, theirs = (json.loads((Path(place) / "config.json").read_text()) for place in (saved, source))
    if _without_types(ours) != _without_types(theirs):
        problems.append("another configuration")
    model, report = published_class(name).from_pretrained(saved, dtype=torch.float32, output_loading_info=True)
    if report["missing_keys"] or report["unexpected_keys"]:
        problems.append(f"transformers misses {report['missing_keys']} and does not know {report['unexpected_keys']}")
    if model.config.model_type != theirs["model_type"]:
        problems.append(f"model type {model.config.model_type}")
    return problems


def _without_types(config: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    return {key: _without_types(value) if isinstance(value, dict) else value for key, value in kept.items()}


def served(name: str, folder: str, trained: TorchTrainer | None, place: Path) -> str:
    """`yes` if the engine samples the greedy tokens of plain transformers, of the folder and of published weights; else
    its refusal."""
    return asyncio.run(_served(name, folder, trained, place))


async def _served(name: str, folder: str, trained: TorchTrainer | None, place: Path) -> str:
    try:
        engine = TransformersEngine(folder, GenerationSettings(device="cpu", max_num_seqs=2, max_model_len=64))
    except ArealError as error:
        return str(error)
    prompt = np.random.default_rng(0).integers(3, 250, 20).tolist()
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    try:
        chunks = [(await complete(engine, prompt, greedy), folder)]
        if trained is not None:
            await engine.load_weights(trained.publish(str(place / "published")), 1)
            trained.save_model(str(place / "exported"))
            chunks.append((await complete(engine, prompt, greedy), str(place / "exported")))
    finally:
        await engine.close()
    for chunk, source in chunks:
        assert_greedy(plain_model(name, source), prompt, np.frombuffer(chunk.columns.token_ids, dtype=np.int32))
    return "yes"


@torch.no_grad()
def assert_greedy(plain: Any, prompt: Sequence[int], sampled: Sequence[int]) -> None:
    """Each sampled token has the largest logit of plain transformers, or one as large but for rounding."""
    assert len(sampled)
    ids = list(prompt)
    for token in map(int, sampled):
        scores = plain(input_ids=torch.tensor([ids])).logits[0, -1]
        assert float(scores.max() - scores[token]) < 1e-4
        ids.append(token)
