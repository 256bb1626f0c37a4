"""`areal-actors serve` for real: processes, nats-server, the embedded model, and an agent in a process of its own with
the openai SDK."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.recipe.load import load

ROOT = Path(__file__).parent.parent
SMALL = (
    "profile=embedded",
    "warm_start.steps=40",
    "warm_start.tail_steps=10",
    "staleness_gate.max_concurrent=2",
    "algorithm.group_size=1",
)

AGENT = """
import sys

import httpx2
import openai

root, admin, reader = sys.argv[1:]
sys.path.insert(0, reader)
from areal_actors.sequences.export import sequences

gateway = httpx2.Client(base_url=root, headers={"Authorization": f"Bearer {admin}"}, timeout=300)
assert gateway.get("/ready").status_code == 200
assert gateway.post("/grant_capacity").status_code == 200
given = gateway.post("/rl/start_session", json={"task_id": "sum", "group_size": 4}).raise_for_status().json()
agent = openai.OpenAI(base_url=given["base_url"], api_key=given["api_key"], max_retries=0)
messages = [{"role": "user", "content": "2 + 3 ="}]
sampled = []
for _ in range(2):
    answer = agent.chat.completions.create(model="default", messages=messages, max_tokens=8)
    sampled.append(answer.usage.completion_tokens)
    messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
    messages += [{"role": "user", "content": "and 4 + 4 ="}]
own = httpx2.Client(base_url=root, headers={"x-api-key": given["api_key"]}, timeout=300)
assert own.post("/rl/set_reward", json={"reward": 1}).json() == {"status": "ok"}
ended = own.post("/rl/end_session").json()
assert (ended["interaction_count"], ended["state"]) == (2, "exported"), ended
try:
    agent.chat.completions.create(model="default", messages=messages)
except openai.APIStatusError as error:
    assert error.status_code == 410
else:
    raise AssertionError("a session that has ended took a call")
asked = {"session_id": given["session_id"], "discount": 0.9, "style": "individual"}
export = gateway.post("/export_trajectories", json=asked, headers={"Accept": "application/msgpack"}).raise_for_status()
made = sequences(export.content)
assert [int(row["loss_mask"].sum()) for row in made] == sampled
assert [round(float(row["rewards"][0]), 6) for row in made] == [0.9, 1.0]
assert all((row["versions"][row["loss_mask"] == 1] == 0).all() and (row["logprobs"] <= 0).all() for row in made)
print("done", sum(sampled))
"""


@pytest.mark.long
def test_any_recipe_is_served_by_the_gateway_and_its_engines_alone(monkeypatch):
    monkeypatch.chdir(ROOT)
    recipe = load(
        [ROOT / "recipes/gsm8k_grpo.toml"],
        ["task.dataset=nowhere.jsonl", "actors.rollout_worker.count=3"],
        CudaDevices(0, "none"),
        serving=True,
    ).recipe
    assert recipe.is_served()
    assert {name for name in recipe.actors.__struct_fields__ if getattr(recipe.actors, name).count} == {
        "session_manager",
        "inference_worker",
    }


@pytest.mark.long
@pytest.mark.slow
def test_an_agent_with_the_openai_sdk_from_its_session_to_its_rows(tmp_path):
    output = tmp_path / "serve.txt"
    command = [sys.executable, "-m", "areal_actors", "serve", "recipes/gsm8k_grpo.toml", f"folder={tmp_path}", *SMALL]
    with output.open("wb") as file:
        serving = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        root, admin = _served(serving, output)
        script = tmp_path / "agent.py"
        script.write_text(AGENT)
        done = subprocess.run(
            [sys.executable, str(script), root, admin, str(ROOT)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr + output.read_text()
        assert done.stdout.startswith("done ")
        serving.send_signal(signal.SIGINT)
        assert serving.wait(300) == 0, output.read_text()
    finally:
        if serving.poll() is None:
            serving.kill()
            serving.wait()
    assert (tmp_path / "gsm8k-grpo-serve/admin_key").stat().st_mode & 0o077 == 0
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert _left(tmp_path) == []


@pytest.mark.long
@pytest.mark.slow
def test_an_online_run_trains_on_what_agents_outside_bring(tmp_path):
    """Two steps of two groups of four, played by the script that comes with the repository."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"question": "{n} + 3 =", "answer": "{n + 3}"}}\n' for n in range(4)))
    settings = ("trainer.batch_size=2", "staleness_gate.max_concurrent=4", "steps=2", "algorithm.group_size=4")
    output = tmp_path / "run.txt"
    command = [
        sys.executable,
        "-m",
        "areal_actors",
        "run",
        "recipes/online.toml",
        f"folder={tmp_path}",
        *SMALL[:3],
        *settings,
    ]
    with output.open("wb") as file:
        run = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while "warm start 50/50" not in output.read_text():
            assert run.poll() is None, output.read_text()
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.05)
        root = re.search(r"external agents: (http://\S+),", output.read_text())[1]
        admin = (tmp_path / "online/admin_key").read_text()
        played = subprocess.run(
            [sys.executable, "agents/online_script.py", root, admin, str(tasks)], cwd=ROOT, timeout=300, check=False
        )
        assert played.returncode == 0
        assert run.wait(300) == 0, output.read_text()
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    text = output.read_text()
    assert "finished after 2 steps" in text
    assert "16 episodes exported" in text
    assert _left(tmp_path) == []


def _served(serving, output):
    until = time.monotonic() + 300
    while not (found := re.search(r"at (http://\S+), 2 sessions at once.*\nadmin key: (\S+)\n", output.read_text())):
        assert serving.poll() is None, output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.05)
    return found.groups()


def _left(folder):
    """Processes that still live."""
    running = psutil.process_iter(["cmdline", "status"])
    return [
        process.pid
        for process in running
        if str(folder) in " ".join(process.info["cmdline"] or []) and process.pid != os.getpid()
    ]
