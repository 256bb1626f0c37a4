"""Training programs of AReaL's documentation, unchanged: they train the embedded model on generated problems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.areal_programs import CONFIG, MATH_AGENT, TRAIN, TRAIN_AGENT

ROOT = Path(__file__).parent.parent
SMALL = ("train_dataset.batch_size=2", "rollout.max_concurrent_rollouts=4", "valid_dataset.path=held_out.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs, which share the embedded model that the first of them makes."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("program", "overrides", "evaluated"),
    [
        (TRAIN, ("trial_name=workflow",), True),
        (TRAIN_AGENT, ("trial_name=agent",), False),
        (
            TRAIN_AGENT,
            ("trial_name=processes", "+rollout.agent.mode=subproc", "+rollout.agent.subproc_max_workers=2"),
            False,
        ),
    ],
    ids=["workflow", "agent", "agent in processes"],
)
def test_a_program_trains_as_it_is_written(tmp_path, runs, program, overrides, evaluated):
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "my_agent.py").write_text(MATH_AGENT)
    (tmp_path / "held_out.jsonl").write_text(json.dumps({"question": "What is 2 plus 3?", "answer": "#### 5"}) + "\n")
    (tmp_path / "config.yaml").write_text(CONFIG % {"folder": runs, "model": "embedded", "dataset": "arithmetic"})
    command = [
        sys.executable,
        "-m",
        "areal_actors.compat.areal",
        "train.py",
        "--config",
        "config.yaml",
        *SMALL,
        *overrides,
    ]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    run = runs / f"gsm8k-grpo-{overrides[0].removeprefix('trial_name=')}"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all({"reward_mean", "loss"} <= line.keys() for line in lines)
    assert [(line["sequences"], line["trained_tokens"] > 0) for line in lines] == [(8, True)] * 2
    assert max(line["train_infer_logprob_diff_max"] for line in lines) < 1e-3
    assert ("rollout/reward" in lines[0]) == evaluated  # recorded by the workflow; this agent has no tracker
    assert [word.split(":")[0] for word in ended.stdout.splitlines() if word.startswith("step ")] == [
        "step 1",
        "step 2",
    ]
    assert ("eval/reward_mean" in lines[1], "eval-rollout/reward" in lines[1]) == (evaluated, evaluated)
    assert (run / "checkpoints/step-2/model.safetensors").is_file()
