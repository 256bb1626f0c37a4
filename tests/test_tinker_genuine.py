"""`areal-actors serve tinker` with the genuine client library and the cookbook's loops, unmodified, in an interpreter
of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from areal_actors.embedded.demonstrations import BOX_QUESTION, BOX_REQUEST, BOX_SOLUTION
from areal_actors.tasks.arithmetic import rows

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".environments" / "tinker" / "bin" / "python"
"""Interpreter with Tinker's client library and cookbook."""
PROGRAM = Path(__file__).parent / "support" / "tinker_program.py"
NAME = "Qwen/Qwen3-4B-Instruct-2507"
"""A name in the cookbook's table, whose turns are those of the embedded model."""
SUPERVISED = ["batch_size=32", "learning_rate=3e-3", "train_on_what=last_assistant_message", "save_every=20"]
REINFORCED = ["batch_size=16", "group_size=8", "learning_rate=4e-3", "max_tokens=64"]
"""Arguments of the loops, as docs/tinker.md has them; with save_every the first loop saves once on its way."""
SUPERVISED_STEPS, REINFORCED_STEPS = 30, 20

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON.exists(), reason="`just environments tinker` makes the interpreter that this needs"),
]


class Server:
    """The command, in a process of its own."""

    def __init__(self, state: Path, *options: str) -> None:
        self.state = state
        self.process = subprocess.Popen(
            [sys.executable, "-m", "areal_actors", "serve", "tinker", "--port", "0", "--state", str(state), *options],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.root = self._address()

    def _address(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"at (http://\S+);", line):
                return found[1]
        raise AssertionError(f"the server ended with status {self.process.wait()}")

    def run(self, *command: str, seconds: float = 1200.0) -> str:
        """The output of a client program, which runs in the state folder."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "TINKER_BASE_URL": self.root,
            "TINKER_API_KEY": "tml-local",
            "HF_HOME": str(self.state / "cache"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [str(PYTHON), *command],
            cwd=self.state,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return done.stdout

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(300)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = Server(tmp_path_factory.mktemp("tinker"), "--name", NAME)
    yield started
    assert started.stop() == 0


def write_lines(file: Path, lines: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def boxed(task: dict[str, str]) -> str:
    """A worked answer without annotations, whose result is in a box."""
    working, _, result = task["answer"].rpartition("#### ")
    return re.sub(r"<<[^>]*>>", "", working).strip() + f" \\boxed{{{result}}}"


def write_datasets(state: Path, examples: int, tasks: int) -> None:
    """The two datasets that the loops load by name, as folders where they run: chats with worked answers, and word
    problems."""
    example = [("user", BOX_QUESTION + BOX_REQUEST), ("assistant", BOX_SOLUTION)]
    chats = [
        [*example, ("user", task["question"] + BOX_REQUEST), ("assistant", boxed(task))]
        for task in rows("train", examples, seed=1)
    ]
    messages = [{"messages": [{"role": role, "content": content} for role, content in chat]} for chat in chats]
    write_lines(state / "HuggingFaceH4" / "no_robots" / "train.jsonl", messages)
    folder = state / "openai" / "gsm8k"
    write_lines(folder / "main" / "train.jsonl", list(rows("train", tasks, seed=2)))
    card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train.jsonl\n---\n"
    (folder / "README.md").write_text(card)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def saved(logs: Path) -> list[str]:
    return [json.loads(line)["name"] for line in (logs / "checkpoints.jsonl").read_text().splitlines()]


def test_the_cookbooks_loops_learn_unmodified(server, tmp_path):
    """sl_loop learns a style of answers that the model does not know; rl_loop continues from it, and learns to work out
    its answers."""
    last = SUPERVISED_STEPS + REINFORCED_STEPS
    write_datasets(server.state, examples=32 * SUPERVISED_STEPS, tasks=16 * last)
    logs = tmp_path / "logs"
    module = "tinker_cookbook.recipes"
    began = time.monotonic()
    server.run("-m", f"{module}.sl_loop", f"model_name={NAME}", f"log_path={logs}", *SUPERVISED)
    losses = [line["train_mean_nll"] for line in metrics_of(logs) if "train_mean_nll" in line]
    sys.stdout.write(f"losses {[round(loss, 2) for loss in losses]} in {time.monotonic() - began:.0f} s\n")
    assert len(losses) == SUPERVISED_STEPS
    assert losses[0] > 2.0, losses
    assert max(losses[-5:]) < 0.25, losses
    assert saved(logs) == ["000020", "final"]

    began = time.monotonic()
    server.run("-m", f"{module}.rl_loop", f"model_name={NAME}", f"log_path={logs}", *REINFORCED)
    found = {line["progress/batch"]: line["reward/total"] for line in metrics_of(logs) if "reward/total" in line}
    sys.stdout.write(f"rewards {[round(reward, 2) for reward in found.values()]} in {time.monotonic() - began:.0f} s\n")
    assert list(found) == list(range(SUPERVISED_STEPS, last))
    rewards = list(found.values())
    assert sum(rewards[:2]) / 2 < 0.5, rewards
    assert sum(rewards[-5:]) / 5 > sum(rewards[:2]) / 2 + 0.25, rewards
    assert saved(logs) == ["000020", "final", "000040", "final"]


def test_a_program_of_the_genuine_library_learns_and_its_other_calls_work(server, tmp_path):
    write_lines(tmp_path / "tasks.jsonl", list(rows("train", 1000, seed=3)))
    began = time.monotonic()
    found = json.loads(server.run(str(PROGRAM), NAME, str(tmp_path / "tasks.jsonl"), "16").splitlines()[-1])
    rewards = found["rewards"]
    sys.stdout.write(f"rewards {[round(reward, 2) for reward in rewards]} in {time.monotonic() - began:.0f} s\n")
    assert sum(rewards[-5:]) / 5 > sum(rewards[:3]) / 3 + 0.3, rewards
    assert max(found["restored"]) == 0.0
    assert found["info"] == [16, NAME]
    assert found["scored"] < 1e-3
    assert found["base_model"] == NAME
    assert (found["sampled"], found["sequence_ids"], found["base_tokens"]) == ([True, True], 2, 3)
    assert abs(found["custom"][0]) < 1e-2
    assert found["custom"][1] == 1.0
    assert found["refused"][0] == "user"
    assert "formula is not published" in found["refused"][1]
    assert found["models"][0] == NAME
    assert found["checkpoints"] == ["sampler_weights/named", "weights/state"]
    assert found["weights_info"] == 16
    assert found["left"] == ["sampler_weights/named"]


def test_gsm8k_runs_through_the_loop_at_its_default_model(server, tmp_path):
    """The loop with no argument but sizes: its default model's name, and the rows of the dataset that it loads."""
    gsm8k = Path(os.environ.get("AREAL_GSM8K", ROOT.parent / "shared" / "data" / "gsm8k")) / "train.jsonl"
    if not gsm8k.exists():
        pytest.skip(f"{gsm8k} does not exist")
    state = tmp_path / "state"
    write_datasets(state, examples=8, tasks=8)
    (state / "openai" / "gsm8k" / "main" / "train.jsonl").write_text(gsm8k.read_text())
    (model,) = (server.state / "models").iterdir()
    other = Server(state, "--model", str(model), "--name", "Qwen/Qwen3.5-9B-Base")
    try:
        sizes = ["batch_size=4", "group_size=2", "max_tokens=32", "max_steps=2"]
        other.run("-m", "tinker_cookbook.recipes.rl_loop", f"log_path={tmp_path / 'logs'}", *sizes)
    finally:
        assert other.stop() == 0
    rewards = [line["reward/total"] for line in metrics_of(tmp_path / "logs") if "reward/total" in line]
    assert len(rewards) == 2
    assert all(0.0 <= reward <= 1.0 for reward in rewards), rewards
