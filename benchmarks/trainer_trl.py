"""Steps of TRL's GRPOTrainer on a prepared batch; one process of `trainer.py`, in a separate environment.

    python benchmarks/trainer_trl.py MODEL_FOLDER BATCH.json STEPS ROWS DTYPE

Its own `train()` runs. `_generate_and_score_completions` is replaced by one that returns the prepared batch, padded
over the whole batch like the original: generation, rewards and advantages have no cost. A step is counted from
on_step_begin to on_step_end: forward and backward passes over micro-batches of ROWS rows, metrics, gradient clipping
and the optimizer.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GROUP_SIZE = 8


class Prepared(GRPOTrainer):
    """A GRPOTrainer with prepared completions."""

    prepared: dict[str, torch.Tensor]

    # Every step trains the same
    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:  # noqa: ARG002
        return dict(self.prepared)


class Clock(TrainerCallback):
    """CPU and wall seconds of each step, and the process's memory before the first."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.before = 0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self.before = self.before or memory("VmRSS")
        self.began = time.process_time(), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop the clock."""
        self.cpu.append(time.process_time() - self.began[0])
        self.wall.append(time.perf_counter() - self.began[1])


def memory(field: str) -> int:
    """Bytes of this process, by a field of its status: VmRSS for the current value, VmHWM for the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def padded(sequences: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask `[rows, longest]`."""
    longest = max(map(len, sequences))
    rows = [([0] * (longest - len(ids)) + ids, [0] * (longest - len(ids)) + [1] * len(ids)) for ids in sequences]
    if not left:
        rows = [(ids + [0] * (longest - len(ids)), [1] * len(ids) + [0] * (longest - len(ids))) for ids in sequences]
    return torch.tensor([ids for ids, _ in rows]), torch.tensor([mask for _, mask in rows])


def main(folder: str, batch_file: str, steps: int, rows: int, dtype: str) -> None:
    """Train and print one line of figures."""
    torch.set_num_threads(1)
    batch = json.loads(Path(batch_file).read_text())
    rewards = np.array(batch["rewards"]).reshape(-1, GROUP_SIZE)
    spread = rewards.std(1, keepdims=True, ddof=1)
    advantages = np.where(spread > 0, (rewards - rewards.mean(1, keepdims=True)) / np.maximum(spread, 1e-9), 0.0)
    prompt_ids, prompt_mask = padded(batch["prompts"], left=True)
    completion_ids, completion_mask = padded(batch["completions"], left=False)
    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(
            output_dir=output,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=len(batch["prompts"]) // rows,
            num_generations=GROUP_SIZE,
            max_completion_length=completion_ids.shape[1],
            max_steps=steps,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            loss_type="dapo",
            beta=0.0,
            bf16=dtype == "bfloat16",
            gradient_checkpointing=False,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Prepared(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": ["prompt"] * len(batch["prompts"])}),
            processing_class=AutoTokenizer.from_pretrained(folder),
            callbacks=[clock],
        )
        trainer.prepared = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.from_numpy(advantages).flatten().float(),
            "num_items_in_batch": completion_mask.sum(),
        }
        trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    figures = {
        "cpu": clock.cpu,
        "wall": clock.wall,
        "before": clock.before,
        "peak": memory("VmHWM"),
        "grad_norm": norms[0],
    }
    print(json.dumps({**figures, "computed_tokens": prompt_ids.numel() + completion_ids.numel()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
