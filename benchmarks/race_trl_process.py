"""TRL's GRPOTrainer on the main recipe's task; one process of `race_trl.py`, in a separate environment.

    python benchmarks/race_trl_process.py SETTINGS.json

Model, tasks, reward, group size, batch and learning rate come from the settings; everything else is TRL's default,
except for Adam's second beta and gradient checkpointing, which are set as in the recipe. Weights are saved after every
`every` steps, and a line of `times.jsonl` is written at the beginning and after every step.
"""

from __future__ import annotations

import json
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from areal_actors.rewards.gsm8k import gsm8k


class Marks(TrainerCallback):
    """Notes the time of every step and saves the weights."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every

    def _mark(self, step: int) -> None:
        with (self.folder / "times.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "time": time.time()}) + "\n")

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Note the beginning."""
        self._mark(0)

    def on_step_end(self, _: Any, state: Any, __: Any, model: Any = None, **___: Any) -> None:
        """Note the step, then save."""
        self._mark(state.global_step)
        if state.global_step % self.every == 0:
            model.save_pretrained(self.folder / f"step-{state.global_step}")


def reward_of(spec: str, file: Path) -> Callable[..., list[float]]:
    """The recipe's reward of completions, `gsm8k` or `path.py:function`; writes the mean of each batch to a file."""
    score: Callable[[dict[str, str], str], Any] = gsm8k
    if spec != "gsm8k":
        path, _, name = spec.rpartition(":")
        score = runpy.run_path(path)[name]

    def reward(completions: list[list[dict[str, str]]], answer: list[str], **_: Any) -> list[float]:
        scores = [
            score({"answer": truth}, completion[0]["content"])
            for completion, truth in zip(completions, answer, strict=True)
        ]
        rewards = [float(scored["reward"] if isinstance(scored, dict) else scored) for scored in scores]
        line = {"kind": "step.completed", "metrics": {"reward_mean": statistics.fmean(rewards)}}
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
        return rewards

    return reward


def main(settings_file: str) -> None:
    """Train."""
    settings = json.loads(Path(settings_file).read_text(encoding="utf-8"))
    torch.set_num_threads(settings["threads"])
    rows = settings["group_size"] * settings["groups"]
    folder = Path(settings["output"])
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32),
        reward_funcs=reward_of(settings.get("reward", "gsm8k"), folder / "rewards.jsonl"),
        args=GRPOConfig(
            output_dir=str(folder),
            seed=settings["seed"],
            per_device_train_batch_size=settings["rows"],
            gradient_accumulation_steps=rows // settings["rows"],
            num_generations=settings["group_size"],
            max_completion_length=settings["max_tokens"],
            max_steps=settings["steps"],
            learning_rate=settings["lr"],
            lr_scheduler_type="constant",
            adam_beta2=settings["beta2"],
            shuffle_dataset=False,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(settings["tasks"]),
        processing_class=AutoTokenizer.from_pretrained(settings["model"]),
        callbacks=[Marks(folder, settings["every"])],
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
