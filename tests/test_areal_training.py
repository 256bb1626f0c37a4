"""Training programs of AReaL's documentation, unchanged: they train the embedded model on generated problems."""

from __future__ import annotations

import json
import os
import re
import signal
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


def trained(tmp_path, program, *overrides, until=""):
    """The output of a program; killed when its output has `until`."""
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "my_agent.py").write_text(MATH_AGENT)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bus'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "areal_actors.compat.areal", "train.py", "--config", "config.yaml", *overrides]
    started = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    with started:
        for line in started.stdout:
            lines.append(line)
            if until and line.startswith(until):
                started.kill()
    assert started.returncode == (-signal.SIGKILL if until else 0), "".join(lines)[-4000:]
    return lines


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_program_that_was_killed_continues_at_its_place(tmp_path, runs):
    (tmp_path / "config.yaml").write_text(CONFIG % {"folder": runs, "model": "embedded", "dataset": "arithmetic"})
    words = ("trial_name=killed", "recover.mode=on", "total_train_steps=4", *SMALL[:2], "~valid_dataset", "~evaluator")
    trained(tmp_path, TRAIN_AGENT, *words, until="step 2")
    lines = trained(tmp_path, TRAIN_AGENT, *words)
    assert any(line.startswith("continuing after step ") for line in lines), "".join(lines)
    steps = [line.split(":")[0] for line in lines if line.startswith("step ")]
    assert steps in (["step 2", "step 3", "step 4"], ["step 3", "step 4"])
    assert "continuing after step 4" in trained(tmp_path, TRAIN_AGENT, *words)[-1]


EXAMPLES = """
import sys
from areal import {kind}Trainer
from areal.api.cli_args import {kind}Config, load_expr_config
from areal.dataset import get_custom_dataset
from areal.utils.hf_utils import load_hf_tokenizer

config, _ = load_expr_config(sys.argv[1:], {kind}Config)
tokenizer = load_hf_tokenizer(config.tokenizer_path)
rows = [
    get_custom_dataset(split=split, dataset_config=config.train_dataset, tokenizer=tokenizer)
    for split in ("train", "test")
]
with {kind}Trainer(config, train_dataset=rows[0], valid_dataset=rows[1][:8]) as trainer:
    trainer.train()
"""
EXAMPLES_CONFIG = """
experiment_name: examples
trial_name: {kind}
total_train_steps: 4
cluster: {{fileroot: {folder}}}
actor:
  path: embedded
  is_critic: {critic}
  dtype: float32
  mb_spec: {{max_tokens_per_mb: 4096}}
  optimizer: {{lr: 1e-3, lr_scheduler_type: cosine}}
train_dataset: {{batch_size: 4, path: arithmetic, type: {kind}}}
evaluator: {{freq_steps: 2}}
"""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "name"), [("SFT", "sft"), ("DPO", "dpo"), ("RW", "rw")])
def test_a_program_that_trains_on_examples_is_a_run(tmp_path, runs, kind, name):
    text = EXAMPLES_CONFIG.format(kind=name, folder=runs, critic=str(kind == "RW").lower())
    (tmp_path / "config.yaml").write_text(text)
    printed = "".join(trained(tmp_path, EXAMPLES.format(kind=kind)))
    assert "finished after 4 steps" in printed
    before, after = map(float, re.search(r"held out, loss +([\d.]+) → ([\d.]+)", printed).groups())
    assert after < before


ENGINE = """
import sys
from areal.api.cli_args import GRPOConfig, load_expr_config
from areal.dataset import get_custom_dataset
from areal.engine import RemoteSGLangEngine
from areal.infra import LocalScheduler

if __name__ == "__main__":
    config, _ = load_expr_config(sys.argv[1:], GRPOConfig)
    rows = get_custom_dataset(split="test", dataset_config=config.valid_dataset)[:6]
    config.rollout.max_head_offpolicyness = int(1e12)
    engine = RemoteSGLangEngine.as_controller(config.rollout, LocalScheduler(exp_config=config))
    engine.initialize(role="eval", server_args={})
    options = dict(
        reward_fn="areal.reward.gsm8k.gsm8k_reward_fn", gconfig=config.gconfig, tokenizer=config.tokenizer_path
    )
    workflow = "areal.workflow.rlvr.RLVRWorkflow"
    for row in rows[:4]:
        engine.submit(row, workflow=workflow, workflow_kwargs=options, group_size=3)
    first, last = engine.wait(1), engine.wait(3, timeout=300)
    print("health", engine.check_health(), engine.get_version())
    print("shapes", [list(batch["rewards"].shape) for batch in [*first, *last]])
    (pair, other) = engine.rollout(rows[4:], workflow=workflow, workflow_kwargs=options, group_size=2)
    print("masks", pair["loss_mask"].shape == pair["input_ids"].shape, bool(pair["loss_mask"].any()))
    print("rewards", int(engine.export_stats()["rollout/reward__count"]))
    engine.destroy()
    print("health", engine.check_health())
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_engine_samples_outside_of_episodes(tmp_path, runs):
    (tmp_path / "config.yaml").write_text(CONFIG % {"folder": runs, "model": "embedded", "dataset": "arithmetic"})
    lines = [line.strip() for line in trained(tmp_path, ENGINE, "trial_name=engine", "train_dataset.batch_size=2")]
    assert lines[-5:] == [
        "health True 0",
        "shapes [[3], [3], [3], [3]]",
        "masks True True",
        "rewards 16",
        "health False",
    ]
