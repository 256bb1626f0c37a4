"""The command launch."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from pathlib import Path

from areal_actors.cli.check_static import files_and_overrides
from areal_actors.cli.command import Options
from areal_actors.core.devices import CudaDevices, detect_cuda, pretended_cuda
from areal_actors.core.durable_files import PRIVATE_MODE, atomic_write
from areal_actors.core.errors import SetupError
from areal_actors.hosts.launchers.encryption import with_certificate
from areal_actors.hosts.launchers.following import follow_run
from areal_actors.hosts.launchers.kubernetes import manifests
from areal_actors.hosts.launchers.kubernetes_api import JobsApi
from areal_actors.hosts.launchers.kubernetes_hosts import ScaledJobs
from areal_actors.hosts.launchers.local import launch_here, local_commands
from areal_actors.hosts.launchers.plan import LaunchPlan, launch_plan
from areal_actors.hosts.launchers.ray import RayHosts, ray_program
from areal_actors.hosts.launchers.scaled_hosts import ScaledHosts
from areal_actors.hosts.launchers.slurm import batch_script
from areal_actors.hosts.launchers.slurm_hosts import SlurmHosts
from areal_actors.recipe.load import load, written_value
from areal_actors.recipe.plan import exhausted_bounds

SUBMIT = {"slurm": "sbatch", "kubernetes": "kubectl apply --filename", "ray": "ray job submit -- python"}
SUFFIXES = {"slurm": ".sbatch", "kubernetes": ".yaml", "ray": "-ray.py"}


def launch(options: Options) -> int:
    """Start a run with the hosts of its recipe, or write what a cluster starts."""
    files, overrides = files_and_overrides(options)
    cuda = detect_cuda() if options.on == "local" else _devices_there(files, overrides)
    resolved = load(files, overrides, cuda)
    plan = launch_plan(resolved.recipe, [*map(str, files), *overrides], resolved.profile)
    if options.follow:
        return _follow(plan, options.on)
    for notice in exhausted_bounds(resolved.recipe):
        sys.stderr.write(f"autoscale: {notice}\n")
    plan = with_certificate(plan, options.output, write=not options.dry_run)
    if options.on == "local":
        return _launch_here(plan, cuda, dry_run=options.dry_run)
    folder = Path.cwd()
    if options.on == "slurm":
        text = batch_script(plan, folder)
    elif options.on == "kubernetes":
        text = manifests(plan, files, folder, shown=options.dry_run)
    else:
        text = ray_program(plan, folder)
    if options.dry_run:
        print(text, end="")
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"{resolved.recipe.run}{SUFFIXES[options.on]}"
    atomic_write(file, text.encode(), mode=PRIVATE_MODE)
    print("\n".join(plan.describe()))
    print(f"submit it: {SUBMIT[options.on]} {shlex.quote(str(file))}", flush=True)
    return 0


def _follow(plan: LaunchPlan, target: str) -> int:
    """Act on the decisions of a run, beside it.

    The program for Ray, the batch script for Slurm and the run's pod start this.
    """
    if target == "local":
        raise SetupError("--follow: files for clusters start it, and `--on local` has no use for it; leave it out")
    if not plan.added:
        raise SetupError(
            "--follow: [autoscale] of this recipe lets no decision add a worker; set enabled = true, and a larger max"
        )
    stopped = threading.Event()
    if target == "kubernetes":
        return follow_run(ScaledJobs(plan, JobsApi.of_this_pod()), stopped)
    if target == "ray":
        return follow_run(ScaledHosts(plan, RayHosts(stopped), since=time.time()), stopped)
    jobs = SlurmHosts(plan)
    return follow_run(ScaledHosts(plan, jobs, jobs.adopt(), since=time.time()), stopped)


def _launch_here(plan: LaunchPlan, cuda: CudaDevices, *, dry_run: bool) -> int:
    commands = local_commands(plan, cuda)
    print("\n".join(command.shell_line() for command in commands), flush=True)
    return 0 if dry_run else launch_here(plan, commands, cuda)


def _devices_there(files: list[Path], overrides: list[str]) -> CudaDevices:
    """Returns the devices of the run's host, which choose the profile.

    An invalid number is reported with the recipe's other errors.
    """
    gpus = written_value(files, overrides, ("hosts", "run", "gpus"))
    return pretended_cuda(str(gpus if isinstance(gpus, int) and gpus > 0 else 0))
