"""Jobs that decisions submit and end, by the commands of Slurm, which are stand-ins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.hosts.launchers.decision_reader import ScaleChange
from areal_actors.hosts.launchers.plan import launch_plan
from areal_actors.hosts.launchers.scaled_hosts import ScaledHosts
from areal_actors.hosts.launchers.slurm_hosts import ADDRESS, SlurmHosts
from areal_actors.recipe.load import load

RECIPE = Path(__file__).parent.parent / "recipes/gsm8k_grpo.toml"
SETTINGS = ("profile=embedded", "autoscale.enabled=true", "autoscale.rollout_worker.max=3")
LOGGED = 'echo "$(basename "$0") $* conf=${SLURM_CONF:-} job=${SLURM_JOB_ID:-} account=${SBATCH_ACCOUNT:-}" >>"$LOG"'

Commands = Callable[..., Path]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Puts stand-ins on the PATH: name and what it prints; returns their log."""
    log = tmp_path / "log"
    log.touch()
    for name, value in {"LOG": str(log), ADDRESS: "nats://head:20001/gsm8k-grpo", "SLURM_CONF": "/site.conf"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "ours")

    def put(**printed: str) -> Path:
        for name, text in printed.items():
            (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{LOGGED}\n{text}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return log

    return put


RESOLVED = load([RECIPE], SETTINGS, CudaDevices(0, "none"))
PLAN = launch_plan(RESOLVED.recipe, [str(RECIPE), *SETTINGS[1:]], RESOLVED.profile)


def hosts() -> tuple[ScaledHosts, SlurmHosts]:
    starter = SlurmHosts(PLAN)
    return ScaledHosts(PLAN, starter), starter


def test_a_job_is_submitted_as_outside_of_the_job_of_the_run(commands: Commands) -> None:
    log = commands(sbatch="echo '12;cluster'")
    _, starter = hosts()
    assert starter.start("rollout_worker") == "rollout_worker-added-0"
    line = log.read_text()
    assert "--job-name=areal-gsm8k-grpo-rollout_worker-added-0" in line
    assert "join nats://head:20001/gsm8k-grpo --role rollout_worker" in line
    assert "conf=/site.conf job= account=ours" in line


@pytest.mark.parametrize(("listed", "signalled"), [("12", True), ("7", False)], ids=["runs", "waited in the queue"])
def test_a_job_that_leaves_is_cancelled_in_the_queue_or_gets_sigterm(
    commands: Commands,
    listed: str,
    signalled: bool,  # noqa: FBT001
) -> None:
    log = commands(sbatch="echo 12", scancel="", squeue=f"echo {listed}")
    _, starter = hosts()
    starter.leave(starter.start("rollout_worker"))
    calls = log.read_text()
    assert "scancel --state=PENDING 12" in calls
    assert ("scancel --signal=TERM --batch 12" in calls) is signalled


def test_a_follower_that_is_started_again_takes_over_the_jobs_of_its_run(commands: Commands) -> None:
    listed = (
        "7 areal-gsm8k-grpo-rollout_worker-added-4 nats://head:20001/gsm8k-grpo",
        "3 areal-gsm8k-grpo-rollout_worker-added-1 nats://head:20001/gsm8k-grpo",
        "8 areal-gsm8k-grpo-rollout_worker-added-5 nats://other:20001/gsm8k-grpo",
        "9 areal-gsm8k-grpo nats://head:20001/gsm8k-grpo",
        "11 a-job-without-comment",
    )
    log = commands(sbatch="echo 12", scancel="", squeue="\n".join(f"echo {line}" for line in listed))
    starter = SlurmHosts(PLAN)
    assert starter.adopt() == {"rollout_worker-added-1": "rollout_worker", "rollout_worker-added-4": "rollout_worker"}
    assert starter.start("rollout_worker") == "rollout_worker-added-5"
    assert "--comment=nats://head:20001/gsm8k-grpo" in log.read_text()
    starter.leave("rollout_worker-added-4")
    assert "scancel --state=PENDING 7" in log.read_text()


def test_a_follower_without_squeue_begins_with_no_jobs(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands()
    monkeypatch.setenv("PATH", "/nowhere")
    assert SlurmHosts(PLAN).adopt() == {}
    assert "are not found: squeue is not on the PATH" in capsys.readouterr().err


def test_a_refusal_is_written_and_the_follower_goes_on(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands(sbatch="echo 'no such partition' >&2; exit 1")
    scaled, starter = hosts()
    scaled.apply(ScaleChange(role="rollout_worker", before=1, workers=2))
    assert (
        "autoscale: no rollout_worker is started: sbatch failed with status 1: no such partition"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SetupError, match="sbatch is not on the PATH"):
        starter.start("rollout_worker")
