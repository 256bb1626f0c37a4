"""Steps of a plain training loop over transformers and torch on a prepared batch; one process of `trainer.py`.

    python benchmarks/trainer_plain.py MODEL_FOLDER BATCH.json STEPS ROWS DTYPE

As one would write it by hand: micro-batches of ROWS rows padded on the right, logits of all positions, log-softmax, the
policy gradient of GRPO's advantages with token weights of the whole batch, gradient clipping, fused AdamW; bfloat16 is
autocast.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from trainer_ours import GROUP_SIZE, memory
from transformers import AutoModelForCausalLM


def main(folder: str, batch_file: str, steps: int, rows: int, dtype: str) -> None:
    """Train and print one line of figures."""
    torch.set_num_threads(1)
    batch = json.loads(Path(batch_file).read_text())
    rewards = np.array(batch["rewards"]).reshape(-1, GROUP_SIZE)
    spread = rewards.std(1, keepdims=True, ddof=1)
    advantages = np.where(
        spread > 0, (rewards - rewards.mean(1, keepdims=True)) / np.maximum(spread, 1e-9), 0.0
    ).ravel()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    sequences = [prompt + completion for prompt, completion in zip(batch["prompts"], batch["completions"], strict=True)]
    trained = sum(map(len, batch["completions"]))
    before, computed = memory("VmRSS"), 0
    cpu, wall, norms = list[float](), list[float](), list[float]()
    for _ in range(steps):
        began, computed = (time.process_time(), time.perf_counter()), 0
        optimizer.zero_grad()
        for start in range(0, len(sequences), rows):
            chosen = range(start, min(start + rows, len(sequences)))
            longest = max(len(sequences[row]) for row in chosen)
            ids = torch.tensor([sequences[row] + [0] * (longest - len(sequences[row])) for row in chosen])
            mask = torch.tensor([[1] * len(sequences[row]) + [0] * (longest - len(sequences[row])) for row in chosen])
            scored = torch.tensor(
                [
                    [len(batch["prompts"][row]) <= place < len(sequences[row]) for place in range(1, longest)]
                    for row in chosen
                ]
            )
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
            logps = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            gains = torch.tensor([advantages[row] for row in chosen], dtype=torch.float32)[:, None]
            loss = -((logps - logps.detach()).exp() * gains * scored).sum() / trained
            loss.backward()
            computed += ids.numel()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        cpu.append(time.process_time() - began[0])
        wall.append(time.perf_counter() - began[1])
    figures = {"cpu": cpu, "wall": wall, "before": before, "peak": memory("VmHWM"), "grad_norm": norms[0]}
    print(json.dumps({**figures, "computed_tokens": computed}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
