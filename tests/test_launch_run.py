"""Files that `areal-actors run --on` writes are started: runs with real processes; the commands of Slurm are stand-ins,
Ray is genuine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from support.live_run import PATIENT, RECIPE, ROOT, SMALL, LiveRun
from support.slurm_commands import SBATCH, SCANCEL, SQUEUE, SRUN
from test_launch import LAUNCHERS

from areal_actors.core.free_ports import find_free_ports
from areal_actors.messages import RunFinished, ScaleDecided, StepCompleted, WorkerJoined, WorkerLeft

pytestmark = pytest.mark.long
HOSTS = ("hosts.inference_worker.count=1", "hosts.rollout_worker.count=1", "hosts.run.cpus=1")
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_health_check_timeout_ms": "600000",
    "RAY_agent_register_timeout_ms": "600000",
}
"""Variables of Ray: nothing is sent, and a busy machine has time."""


@pytest.fixture
def started() -> Iterator[list[psutil.Process]]:
    """Processes that a test starts; those that are left, and all below them, are ended after it."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        try:
            family = [*process.children(recursive=True), process]
        except psutil.NoSuchProcess:
            continue
        for one in family:
            one.kill()
        process.wait()


def launch(*words: str, folder: Path) -> str:
    """Runs `areal-actors run --on` to its end; returns its output."""
    command = [sys.executable, "-m", "areal_actors", "run", str(RECIPE), *SMALL, f"folder={folder}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def start(started: list[psutil.Process], command: list[str], output: Path, **changes: str) -> psutil.Popen:
    with output.open("wb") as file:
        process = psutil.Popen(
            command,
            cwd=changes.pop("cwd", str(ROOT)),
            env={**os.environ, **changes},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started.append(process)
    return process


def until_printed(words: str, output: Path, process: psutil.Popen) -> None:
    """Waits for words in the output of a process."""
    until = time.monotonic() + PATIENT
    while words not in output.read_text():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.1)


async def assert_joined(folder: Path, steps: int, roles: dict[str, int]) -> None:
    """The run has done its steps with joined workers of these roles only, and all have left in order."""
    run = LiveRun.__new__(LiveRun)
    run.folder = folder / "gsm8k-grpo"
    log = [event for _, event in await run.log()]
    assert [event.step for event in log if isinstance(event, StepCompleted)] == list(range(1, steps + 1))
    assert len([event for event in log if isinstance(event, RunFinished)]) == 1
    joined = [event.role for event in log if isinstance(event, WorkerJoined)]
    assert {role: joined.count(role) for role in joined} == roles
    assert [event.reason for event in log if isinstance(event, WorkerLeft)] == [""] * len(joined)


async def test_a_run_and_its_workers_are_started_on_this_machine_with_a_certificate_that_no_other_can_replace(
    tmp_path, started
):
    areal = [sys.executable, "-m", "areal_actors"]
    command = [
        *areal,
        "launch",
        str(RECIPE),
        "--on",
        "local",
        *SMALL,
        *HOSTS,
        "bus.tls=true",
        "--output",
        str(tmp_path / "launch"),
    ]
    output = tmp_path / "output.txt"
    process = start(started, [*command, "hosts.gateway.count=1", "steps=2", f"folder={tmp_path}"], output)
    until_printed("areal-actors join tls://", output, process)
    address, known = re.search(
        r"areal-actors join (tls://127.0.0.1:\d+/gsm8k-grpo)#([0-9a-f]{64}) ", output.read_text()
    ).groups()
    another = [*areal, "join", f"{address}#{'0' * 64}", "--token", "0" * 32, "--wait", "600"]
    refused = start(started, another, tmp_path / "refused.txt")
    assert refused.wait(PATIENT) == 1
    assert (
        f"its certificate has the fingerprint {known[:16]}…, not {'0' * 16}…: take the address"
        in (tmp_path / "refused.txt").read_text()
    )
    assert process.wait(PATIENT) == 0, output.read_text()
    await assert_joined(tmp_path, 2, {"inference_worker": 1, "rollout_worker": 1, "session_manager": 1})
    assert "run 'gsm8k-grpo' has ended" in (tmp_path / "gsm8k-grpo.hosts" / "rollout_worker-0.log").read_text()
    audit = start(started, [*areal, "audit", "gsm8k-grpo", "--folder", str(tmp_path)], tmp_path / "audit.txt")
    assert audit.wait(PATIENT) == 0, (tmp_path / "audit.txt").read_text()
    key = tmp_path / "launch" / ".gsm8k-grpo-tls" / "key.pem"
    secret = key.read_bytes().splitlines()[1]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()] == [key]


async def test_a_signal_ends_a_launch_on_this_machine_with_a_checkpoint(tmp_path, started):
    command = [sys.executable, "-m", "areal_actors", "run", str(RECIPE), "--on", "local", *SMALL, *HOSTS]
    output = tmp_path / "output.txt"
    process = start(started, [*command, "steps=100000", f"folder={tmp_path}"], output)
    run = attached(tmp_path, process, output)
    async with run.listening():
        await run.until(StepCompleted, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENT) == 130, output.read_text()
    assert list((run.folder / "checkpoints").glob("step-*"))
    assert run.processes_left() == []


def attached(folder: Path, process: psutil.Popen, output: Path) -> LiveRun:
    """The run of a process that a launcher has started."""
    run = LiveRun.__new__(LiveRun)
    run.folder, run.output_file, run.process, run.events = folder / "gsm8k-grpo", output, process, []
    return run


def slow_rewards(folder: Path) -> tuple[str, ...]:
    """Settings of a run that decides on more reward workers."""
    reward = folder / "slow_reward.py"
    reward.write_text(
        "import time\n\n\ndef slow(task, output):\n    time.sleep(0.5)\n    return float(len(output) % 2)\n"
    )
    autoscale = ("enabled=true", "window_seconds=3", "cooldown_seconds=1", "reward_worker.max=2")
    return (*(f"autoscale.{one}" for one in autoscale), f"task.reward={reward}:slow")


async def test_a_decision_on_more_workers_starts_them(tmp_path, started):
    settings = slow_rewards(tmp_path)
    command = [sys.executable, "-m", "areal_actors", "run", str(RECIPE), "--on", "local", *SMALL]
    output = tmp_path / "output.txt"
    encrypted = ("bus.tls=true", "--output", str(tmp_path / "launch"))
    process = start(started, [*command, "steps=100000", f"folder={tmp_path}", *settings, *encrypted], output)
    run = attached(tmp_path, process, output)
    async with run.listening():
        decision, *_ = await run.until(ScaleDecided, 1)
        assert (decision.role, decision.before, decision.workers) == ("reward_worker", 1, 2)
        joined, *_ = await run.until(WorkerJoined, 1)
        assert joined.role == "reward_worker"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENT) == 130, output.read_text()
    assert run.processes_left() == []
    audit = start(
        started, [sys.executable, "-m", "areal_actors", "audit", "gsm8k-grpo", "--folder", str(tmp_path)], output
    )
    assert audit.wait(PATIENT) == 0, output.read_text()


async def test_the_batch_script_runs_a_job(tmp_path, started):
    more = ("hosts.rollout_worker.count=2", "hosts.gateway.count=1", "steps=2", "bus.tls=true")
    launch("--on", "slurm", "--output", str(tmp_path), *HOSTS, *more, folder=tmp_path)
    script = (tmp_path / "gsm8k-grpo.sbatch").read_text()
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "srun").write_text(SRUN)
    (commands / "srun").chmod(0o755)
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SRUN_LOG": str(tmp_path / "srun.txt"),
        "SLURM_JOB_ID": str(os.getpid()),
    }
    place = script.replace("--output=areal", f"--output={tmp_path}/areal")
    (tmp_path / "job.sh").write_text(place)
    output = tmp_path / "output.txt"
    job = start(started, ["bash", str(tmp_path / "job.sh")], output, **environment)
    assert job.wait(PATIENT) == 0, output.read_text()
    assert (tmp_path / "srun.txt").read_text().count("tasks") == 4
    await assert_joined(tmp_path, 2, {"inference_worker": 1, "rollout_worker": 2, "session_manager": 1})
    workers = sorted(path.name for path in tmp_path.glob("areal-*.log"))
    assert len(workers) == 4
    assert all("has ended" in path.read_text() for path in tmp_path.glob("areal-*.log"))

    # a run that cannot start ends the job, with its status, although workers wait for it
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        (tmp_path / "job.sh").write_text(place.replace(" steps=2 ", f" steps=2 gateway.port={taken.getsockname()[1]} "))
        job = start(started, ["bash", str(tmp_path / "job.sh")], output, **environment)
        assert job.wait(PATIENT) == 1, output.read_text()
    assert "gateway.port: cannot listen on 0.0.0.0" in output.read_text()


async def follower_of(job: psutil.Popen, *, after: int = 0) -> psutil.Process:
    """The follower of a batch script, once it reads decisions; another one than the killed one, if `after` is its
    process id."""
    async with asyncio.timeout(PATIENT):
        while True:
            for one in psutil.Process(job.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if one.pid != after and "--follow" in one.cmdline() and one.children():
                        return one
            await asyncio.sleep(0.1)


async def test_the_batch_script_submits_jobs_for_the_workers_that_the_run_decides_on(tmp_path, started):
    launch(
        "--on",
        "slurm",
        "--output",
        str(tmp_path),
        "steps=100000",
        "bus.tls=true",
        *slow_rewards(tmp_path),
        folder=tmp_path,
    )
    commands, jobs = tmp_path / "bin", tmp_path / "jobs"
    jobs.mkdir()
    commands.mkdir()
    for name, text in {"srun": SRUN, "sbatch": SBATCH, "scancel": SCANCEL, "squeue": SQUEUE}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SRUN_LOG": str(tmp_path / "srun.txt"),
        "SLURM_JOB_ID": str(os.getpid()),
    }
    output = tmp_path / "output.txt"
    job = start(started, ["bash", str(tmp_path / "gsm8k-grpo.sbatch")], output, **environment, JOBS=str(jobs))
    run = attached(tmp_path, job, output)
    async with run.listening():
        joined, *_ = await run.until(WorkerJoined, 1)
        started.append(psutil.Process(int((jobs / "1").read_text())))
        assert joined.role == "reward_worker"
        killed = await follower_of(job)
        killed.kill()
        (await follower_of(job, after=killed.pid)).terminate()
        left, *_ = await run.until(WorkerLeft, 1)
        assert (left.worker, left.reason) == (joined.worker, "")
        assert [place.name for place in jobs.iterdir()] == ["1"]
        assert (tmp_path / "jobs.scancel").read_text().splitlines() == ["--state=PENDING 1", "--signal=TERM --batch 1"]
        (server,) = [
            one
            for one in psutil.Process(job.pid).children(recursive=True)
            if one.cmdline()[1:4] == ["-m", "areal_actors", "run"]
        ]
        server.terminate()
        assert job.wait(PATIENT) == 130, output.read_text()
    assert "SIGTERM" in (tmp_path / "jobs.areal-gsm8k-grpo-reward_worker-added-0.log").read_text()


async def test_the_containers_of_the_manifests_run_as_processes(tmp_path, started):
    ports = [f"{name}={find_free_ports()}" for name in ("bus.port", "bus.objects_port", "gateway.port")]
    pods = ("hosts.image=areal", "hosts.wait_seconds=600", "bus.tls=true", *ports)
    launch("--on", "kubernetes", "--output", str(tmp_path), *HOSTS, "steps=2", *pods, folder=tmp_path)
    objects = list(yaml.safe_load_all((tmp_path / "gsm8k-grpo.yaml").read_text()))
    secrets = {one["metadata"]["name"]: one["stringData"] for one in objects if one["kind"] == "Secret"}
    token = secrets["areal-gsm8k-grpo-join"]["token"]
    contents = next(one for one in objects if one["kind"] == "ConfigMap")["data"]
    service = next(one for one in objects if one["kind"] == "Service")["metadata"]["name"]
    runs = tmp_path / "runs"
    processes = []
    for job in reversed([one for one in objects if one["kind"] == "Job"]):  # workers before their run
        pod = job["spec"]["template"]["spec"]
        there = tmp_path / job["metadata"]["name"]
        there.mkdir()
        for volume in pod["volumes"]:
            for item in volume.get("configMap", {}).get("items", ()):
                (there / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                (there / item["path"]).write_text(contents[item["key"]])
            for name, content in secrets.get(volume.get("secret", {}).get("secretName"), {}).items():
                (there / name).write_text(content)
        (container,) = pod["containers"]
        assert container["env"] == [
            {
                "name": "AREAL_JOIN_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "areal-gsm8k-grpo-join", "key": "token"}},
            }
        ]
        command = [
            word.replace(service, socket.gethostname()).replace("folder=/runs", f"folder={runs}")
            for word in container["command"]
        ]
        command = [word.replace("=/tls/", f"={there}/") for word in command]
        assert command[0] == "areal-actors"
        command[:1] = [str(Path(sys.executable).with_name("areal-actors"))]
        processes.append(start(started, command, there / "output.txt", AREAL_JOIN_TOKEN=token, cwd=str(there)))
    assert [process.wait(PATIENT) for process in processes] == [0, 0, 0], [
        path.read_text() for path in tmp_path.glob("*/output.txt")
    ]
    await assert_joined(runs, 2, {"inference_worker": 1, "rollout_worker": 1})


def ray_cluster(started: list[psutil.Process], output: Path) -> str:
    """Starts a cluster on this machine; returns its address."""
    # a port that is not fixed must be known within 15 s, which a busy machine does not keep
    ports = (
        "--port",
        "--dashboard-agent-grpc-port",
        "--dashboard-agent-listen-port",
        "--metrics-export-port",
        "--runtime-env-agent-port",
    )
    fixed = {port: find_free_ports() for port in ports}
    head = [str(LAUNCHERS.with_name("ray")), "start", "--head", "--block", "--num-cpus=8", "--include-dashboard=false"]
    cluster = start(started, [*head, *(f"{port}={number}" for port, number in fixed.items())], output, **RAY)
    until_printed("Ray runtime started.", output, cluster)
    return f"127.0.0.1:{fixed['--port']}"


@pytest.mark.skipif(
    not LAUNCHERS.exists(), reason="`just environments launchers` makes the interpreter that this needs"
)
async def test_the_ray_program_runs_on_ray(tmp_path, started):
    launch("--on", "ray", "--output", str(tmp_path), *HOSTS, "steps=2", "bus.tls=true", folder=tmp_path)
    output = tmp_path / "output.txt"
    address = ray_cluster(started, tmp_path / "ray.txt")
    job = start(started, [str(LAUNCHERS), str(tmp_path / "gsm8k-grpo-ray.py")], output, **RAY, RAY_ADDRESS=address)
    assert job.wait(PATIENT) == 0, output.read_text() + (tmp_path / "ray.txt").read_text()
    await assert_joined(tmp_path, 2, {"inference_worker": 1, "rollout_worker": 1})
    assert json.loads((tmp_path / "gsm8k-grpo" / "recipe.json").read_text())["actors"]["rollout_worker"]["count"] == 0


@pytest.mark.skipif(
    not LAUNCHERS.exists(), reason="`just environments launchers` makes the interpreter that this needs"
)
async def test_the_ray_program_follows_the_decisions_of_the_run(tmp_path, started):
    launch(
        "--on",
        "ray",
        "--output",
        str(tmp_path),
        "steps=100000",
        "hosts.run.cpus=1",
        *slow_rewards(tmp_path),
        folder=tmp_path,
    )
    output = tmp_path / "output.txt"
    address = ray_cluster(started, tmp_path / "ray.txt")
    process = start(started, [str(LAUNCHERS), str(tmp_path / "gsm8k-grpo-ray.py")], output, **RAY, RAY_ADDRESS=address)
    run = attached(tmp_path, process, output)
    async with run.listening():
        joined, *_ = await run.until(WorkerJoined, 1)
        assert joined.role == "reward_worker"
        assert [(one.before, one.workers) for one in run.received(ScaleDecided)] == [(1, 2)]
        # one that no longer follows has the hosts that it has added leave
        (follower,) = [
            one
            for one in psutil.process_iter(["cmdline"])
            if {"--follow", f"folder={tmp_path}"} <= set(one.info["cmdline"] or ())
        ]
        follower.terminate()
        left, *_ = await run.until(WorkerLeft, 1)
        assert (left.worker, left.reason) == (joined.worker, "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENT) == 130, output.read_text()
    assert run.processes_left() == []
