"""The table `[hosts]` of a recipe: hosts that `areal-actors run --on` asks for.

They are for a run and the workers that join it.
"""

from __future__ import annotations

from areal_actors.core.config import Config, NonNegativeFloat, NonNegativeInt, PositiveInt

JOIN_TOKEN = "AREAL_JOIN_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the password of remote workers: for `areal-actors join`, and `areal-actors run` if it is
fixed."""


class RunHost(Config):
    """`[hosts.run]`: the host of `areal-actors run`, with trainer, gateway and control plane."""

    gpus: NonNegativeInt = 0
    """GPUs of the run's host."""
    cpus: PositiveInt = 4
    """CPU cores of the run's host."""
    memory_gb: NonNegativeInt = 0
    """Memory of the run's host, in GiB; 0 asks for none, so that the cluster's default holds."""


class JoinedHosts(Config):
    """`[hosts.rollout_worker]` and the tables of the other roles: equal hosts that join the run.

    Each has one `areal-actors join`.
    """

    count: NonNegativeInt = 0
    """Number of hosts: Slurm tasks, pods or Ray actors. Above 0 the run's own host starts no worker of this role."""
    workers: PositiveInt = 1
    """Workers of each host, each in a process."""
    gpus: NonNegativeInt = 0
    """GPUs of each host; those of an inference worker are `generation.tensor_parallel`, or none."""
    cpus: PositiveInt = 2
    """CPU cores of each host."""
    memory_gb: NonNegativeInt = 0
    """Memory of each host, in GiB; 0 asks for none, so that the cluster's default holds."""


class HostsSettings(Config):
    """`[hosts]`: the hosts that `areal-actors run --on` asks for; no other command uses it. See docs/scaling.md."""

    run: RunHost = RunHost()
    rollout_worker: JoinedHosts = JoinedHosts()
    inference_worker: JoinedHosts = JoinedHosts()
    reward_worker: JoinedHosts = JoinedHosts()
    gateway: JoinedHosts = JoinedHosts()
    """Hosts of gateways, of which the run gets as many: `gateway.joined`, and at least that for
    `actors.session_manager.count`."""
    wait_seconds: NonNegativeFloat = 900.0
    """Seconds for which workers that are started before the run wait for it."""
    slurm: tuple[str, ...] = ()
    """Options of sbatch for every part of the job, as `["--partition=gpu", "--time=24:00:00"]`."""
    image: str = ""
    """Container image for Kubernetes, with this version of areal-actors and the packages of the agent (see
    `Dockerfile`)."""
    storage_gb: PositiveInt = 50
    """Size of the volume for the run's folder in Kubernetes, in GiB."""

    def joined_hosts(self) -> dict[str, JoinedHosts]:
        """Returns the hosts that join, by the role of their workers."""
        by_role = {
            "inference_worker": self.inference_worker,
            "rollout_worker": self.rollout_worker,
            "reward_worker": self.reward_worker,
        }
        return {role: hosts for role, hosts in {**by_role, "gateway": self.gateway}.items() if hosts.count}
