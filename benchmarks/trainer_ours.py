"""Steps of our trainer on a prepared batch; one process of `trainer.py`.

    python benchmarks/trainer_ours.py MODEL_FOLDER BATCH.json STEPS TOKENS DTYPE

A step is `TorchTrainer.step(rows)`: advantages from rewards, micro-batches of TOKENS tokens, forward and backward
passes, metrics, gradient clipping and the optimizer. The parity check is off, as TRL has none.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms import Grpo
from areal_actors.training.packing.tensors import make_micro_batches
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

GROUP_SIZE = 8


def memory(field: str) -> int:
    """Bytes of this process, by a field of its status: VmRSS for the current value, VmHWM for the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def sequences_of(batch_file: str) -> list[TrainingSequence]:
    """Read the rows, without log-probabilities."""
    batch = json.loads(Path(batch_file).read_text())
    rows = []
    for number, (prompt, completion, reward) in enumerate(
        zip(batch["prompts"], batch["completions"], batch["rewards"], strict=True)
    ):
        sampled = np.arange(len(prompt) + len(completion)) >= len(prompt)
        rows.append(
            TrainingSequence(
                token_ids=np.array([*prompt, *completion], dtype=np.int64),
                loss_mask=sampled,
                logprobs=np.zeros(len(sampled), dtype=np.float32),
                versions=np.where(sampled, 0, -1).astype(np.int32),
                group=number // GROUP_SIZE,
                reward=reward,
                truncated=False,
            )
        )
    return rows


def on_policy(trainer: TorchTrainer, rows: list[TrainingSequence]) -> list[TrainingSequence]:
    """Fill in the log-probabilities of the trainer's weights, so that both sides have the same gradient."""
    logps = trainer.logp(rows).numpy()
    filled, first = [], 0
    for row in rows:
        own = row.logprobs.copy()
        own[row.loss_mask] = logps[first : first + int(row.loss_mask.sum())]
        first += int(row.loss_mask.sum())
        filled.append(msgspec.structs.replace(row, logprobs=own))
    return filled


def main(folder: str, batch_file: str, steps: int, tokens: int, dtype: str) -> None:
    """Train and print one line of figures."""
    torch.set_num_threads(1)
    settings = msgspec.convert(
        {
            "device": "cpu",
            "dtype": dtype,
            "logprob_check_sequences": 0,
            "microbatch_tokens": tokens,
            "optimizer": {"lr": 1e-4},
        },
        TrainerSettings,
    )
    trainer = TorchTrainer(folder, Grpo(), settings, total_steps=steps)
    rows = on_policy(trainer, sequences_of(batch_file))
    before = memory("VmRSS")
    cpu, wall, norms = [], [], []
    for _ in range(steps):
        began = time.process_time(), time.perf_counter()
        norms.append(trainer.step(rows)["grad_norm"])
        cpu.append(time.process_time() - began[0])
        wall.append(time.perf_counter() - began[1])
    figures = {"cpu": cpu, "wall": wall, "before": before, "peak": memory("VmHWM"), "grad_norm": norms[0]}
    batches = make_micro_batches(rows, range(len(rows)), tokens, torch.device("cpu"), sharing=settings.prefix_sharing)
    print(json.dumps({**figures, "computed_tokens": sum(batch.computed_tokens for batch in batches)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
