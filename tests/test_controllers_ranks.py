"""Under torchrun every rank runs the same hand-written loop; rank 0 drives the rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_trainer import write_model

LOOP = Path(__file__).with_name("support") / "ranks_loop.py"


@pytest.mark.long
@pytest.mark.slow
def test_two_ranks_that_pull_the_same_batches_train_as_one_does(tmp_path):
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(LOOP),
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{LOOP.parents[2]}:{LOOP.parents[1]}"}
    done = subprocess.run(
        [*command, str(tmp_path / "model")], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first[:2] == second
    for step in first[:2]:
        for alone, together in step.values():
            assert together == pytest.approx(alone, rel=1e-4, abs=1e-6)
        assert step["grad_norm"][0] > 0
    assert first[2]["largest_difference"] < 1e-4
