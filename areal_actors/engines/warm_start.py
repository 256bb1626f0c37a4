"""The warm start: supervised steps on arithmetic word problems, with the trainer that later learns from rewards."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from areal_actors.algorithms.sft import Sft
from areal_actors.datasets.arithmetic import problems
from areal_actors.engines.settings import OptimizerSettings, TrainerSettings, WarmStart
from areal_actors.engines.torch_trainer import TorchTrainer
from areal_actors.tokenizer import ChatTokenizer
from areal_actors.values import PROMPT_VERSION, Row

Progress = Callable[[int, int, dict[str, float]], None]
"""Called with steps done, steps in all, and metrics."""

WARMUP_STEPS = 20


def warm_up(folder: Path, settings: WarmStart, seed: int, threads: int, progress: Progress) -> None:
    """Train the model in this folder on demonstrations, in place: first all worked, then a tail of mostly direct answers."""
    demonstrations = Demonstrations(folder, seed)
    total = settings.steps + settings.tail_steps
    worked = OptimizerSettings(lr=settings.lr, schedule="cosine", warmup_steps=WARMUP_STEPS)
    tail = OptimizerSettings(lr=settings.tail_lr, schedule="cosine")
    phases = ((0, settings.steps, worked, settings.direct_share), (settings.steps, settings.tail_steps, tail, settings.tail_direct_share))
    for before, steps, optimizer, direct_share in phases:
        trainer = TorchTrainer(
            str(folder),
            Sft(),
            TrainerSettings(device="cpu", threads=threads, optimizer=optimizer, parity_rows=0),
            total_steps=steps,
            seed=seed,
        )
        for step in range(steps):
            metrics = trainer.step(demonstrations.take(settings.batch_size, direct_share))
            progress(before + step + 1, total, metrics)
        trainer.save_model(str(folder))


class Demonstrations:
    """Worked and direct answers as rows, tokenized as the gateway renders the chat."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._tokenizer = ChatTokenizer.load(folder)
        self._problems = problems("train", seed)
        self._rng = random.Random(seed)

    def take(self, count: int, direct_share: float) -> list[Row]:
        """The next so many demonstrations, of which about this share has no working."""
        return [self._row(group, direct=self._rng.random() < direct_share) for group in range(count)]

    def _row(self, group: int, *, direct: bool) -> Row:
        problem = next(self._problems)
        answer = problem.direct_answer if direct else problem.answer
        prompt_ids = self._tokenizer.encode(self._tokenizer.render([{"role": "user", "content": problem.question}]))
        answer_ids = [*self._tokenizer.encode(answer), self._tokenizer.stop_ids[0]]
        mask = np.array([False] * len(prompt_ids) + [True] * len(answer_ids))
        return Row(
            token_ids=np.array(prompt_ids + answer_ids, dtype=np.int64),
            loss_mask=mask,
            logprobs=np.zeros(len(mask), dtype=np.float32),
            versions=np.full(len(mask), PROMPT_VERSION, dtype=np.int32),
            group=group,
            reward=0.0,
            truncated=False,
        )
