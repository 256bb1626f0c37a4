"""The recipe's tables for what surrounds learning: tasks, gateway, bus, watchdog, placement and supervision.

They stand apart from what they parametrise, so that a recipe can be read without loading it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from areal_actors.config import Config, Fraction, NonNegativeInt, PositiveFloat, PositiveInt

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class TaskSettings(Config):
    """`[task]`: what is learned, by which agent, and how it is judged."""

    dataset: str = ""
    """`arithmetic` (generated here), `owner/name` or `owner/name:config` on the Hugging Face hub, the path of a `.jsonl` or `.parquet`
    file, of a folder of them, or of a saved dataset; a path may have `*` in it. None when online.
    Of runs that learn from examples: demonstrations or pairs, see docs/supervised.md."""
    agent: str = ""
    """`path.py:Name` or `package.module:Name` of a class, an object or a function, relative to the current directory; or a
    script, `path.py`, for which the runner is `subprocess`. `online`: agents outside the run come to the gateway."""
    command: tuple[str, ...] = ()
    """Instead of an agent: a program and its arguments, in any language, for which the runner is `subprocess`."""
    agent_options: dict[str, Any] = {}
    """Keyword arguments of the agent's class or function."""
    runner: Literal["inline", "subprocess"] = "inline"
    """`inline`: in the rollout worker's process, all episodes at once. `subprocess`: in processes of their own, which can be killed."""
    python: str = ""
    """Of `subprocess`: the interpreter, where the agent needs an environment of its own; empty for this one."""
    processes: PositiveInt = 4
    """Of `subprocess`: how many, each for one episode at a time, per rollout worker."""
    episodes_per_process: NonNegativeInt = 0
    """Of `subprocess`: replace a process after so many; 0 keeps it."""
    memory_mb: NonNegativeInt = 0
    """Of `subprocess`: what one process may allocate; 0 sets no limit."""
    reward: str = ""
    """`gsm8k`, `math`, `python_tests`, `json_schema`, `weighted`, `path.py:function`, or `model:folder` of a trained reward model;
    none when online. See docs/rewards.md."""
    reward_options: dict[str, Any] = {}
    """Options of the reward, or keyword arguments of the function."""
    timeout_seconds: PositiveFloat = 120.0
    """Of one attempt at an episode."""
    reward_timeout_seconds: PositiveFloat = 10.0
    retries: NonNegativeInt = 2
    """How often an abandoned episode is tried again."""
    should_accept: str = ""
    """`path.py:function`: is this scored episode wanted for training? Empty wants all."""
    retry_rejected: bool = False
    """Try an episode again that `should_accept` rejects, while retries are left."""
    dump_to_file: bool = False
    """Write every ended episode, with its texts, to `episodes.jsonl` in the run's folder."""
    held_out: NonNegativeInt | str = 200
    """Tasks kept for evaluation: how many of the dataset's own, or a second dataset that is read from files."""
    columns: dict[str, str] = {}
    """Where the dataset calls a field otherwise: its name there, as in `columns = { question = "problem", answer = "solution" }`."""
    max_length: NonNegativeInt = 0
    """Of examples: tokens that a row may have; 0 for as many as the model's context has, which no row may exceed."""
    too_long: Literal["refuse", "drop"] = "refuse"
    """What becomes of longer examples: the run does not start, or they are left out and their number is told."""
    turn_discount: Fraction | None = None
    """Share of the reward of the calls that continue a model call which that call inherits. Without it one reward belongs to every
    call of the episode, and rewards by interaction id to their own calls; see docs/rewards.md."""
    branch_credit: Literal["mean", "sum"] = "mean"
    """Under a discount: how several calls that continue the same one count together."""
    export_style: Literal["concat", "individual"] = "concat"
    """A row for each path of calls whose tokens extend each other, or for each call; every token has its call's reward in both."""
    baseline_over: Literal["episodes", "calls"] = "episodes"
    """What the statistics of a group count: each episode once, with the mean reward of its calls, or each call once (process rewards)."""


class GatewaySettings(Config):
    """`[gateway]`: where agents find the model."""

    host: str = "127.0.0.1"
    port: Port = 0
    """0 takes a free one."""
    admin_key: str = ""
    """Opens the endpoints that start and export sessions; empty makes one for the run, in its folder's `admin_key`."""
    lease_seconds: PositiveFloat = 600.0
    """A session of an agent outside the run that is not used for so long is abandoned; so are members of its group not yet started."""
    grant_seconds: PositiveFloat = 60.0
    """How long a reserved slot is kept."""
    kept_sessions: NonNegativeInt = 1024
    """How many sessions that are over can still be exported."""
    store_false: Literal["skip", "train"] = "skip"
    """Calls made with `store: false` are recorded and are context of later calls; `skip` does not train them, `train` does, for
    clients that always send it."""
    completion_seconds: PositiveFloat = 600.0
    """How long an inference worker may take for the next part of a completion, which is all of it unless it is streamed; then the
    engine has failed. Below `task.timeout_seconds`, an engine that is silent is named instead of the agent that waits for it."""
    advertise: str = ""
    """Where agents find the gateway: a host name, or `http://host:port` of a proxy before it. Empty is the address it listens on, and
    127.0.0.1 for one that listens on every interface (`0.0.0.0`, `::`): name a host for agents on other machines."""
    head_seconds: PositiveFloat = 60.0
    """For the head of a request to come on an open connection; then the connection is closed."""
    max_body_mb: PositiveInt = 16
    """Largest body of a request. JSON is decoded in one piece, which may take the gateway 10 ms a megabyte."""

    def url(self, port: int) -> str:
        """Where agents find a gateway that listens on this port."""
        if "://" in self.advertise:
            return self.advertise.rstrip("/")
        host = self.advertise or {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"

    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class BusSettings(Config):
    """`[bus]`: which NATS server carries the messages."""

    url: str = ""
    """`nats://host:port` of a server that runs already, as `nats://user:password@host:port` where it has users; empty starts one
    for this run, with a user for each process and passwords of its own."""
    monitor_url: str = ""
    """Of a server that runs already: the URL of a user who may only watch, for `monitor.json`; empty hands out `url`."""
    lease_seconds: PositiveFloat = 5.0
    """Work (an episode, a score) that its worker has not renewed for so long goes to another worker. Renewed three times as often, by
    the worker's own event loop, on which no agent runs. Higher where processes are paused or the network is away for seconds; what a
    dead worker had in hand waits for so long."""
    sync: Literal["5s", "1s", "always"] = "5s"
    """How often the run's own server syncs the log to the disk: what a power failure can take of it. `always` syncs before every
    confirmation. A checkpoint counts only when the log before it is on the disk, whatever stands here."""
    max_restarts: NonNegativeInt = 10
    """The run's own server is started again when it dies, at most so often within `window_seconds`; then the run ends."""
    window_seconds: PositiveFloat = 60.0
    answer_seconds: PositiveFloat = 15.0
    """The run's own server is killed and started again when it has answered nothing for so long."""


class LogSettings(Config):
    """`[log]`: how much of the run's log is kept."""

    keep: Literal["all", "needed"] = "needed"
    """`needed` removes events from the beginning of a log that has become larger than `max_mb`, as far as no kept checkpoint and no
    snapshot needs them; the run goes on and resumes as before, but can be replayed and exported only from there on. `all` removes
    nothing."""
    max_mb: NonNegativeInt = 4096
    """Up to this size, large bodies that lie in `blobs` included, the log is kept whole; 0 trims it at every checkpoint."""


class WatchdogSettings(Config):
    """`[watchdog]`: deadlines of starting, saving, loading and stopping, and of a run without progress.

    Seconds in which the supervisor itself was paused, or nats-server did not answer it, do not count, except for `bus_seconds`.
    """

    stall_seconds: PositiveFloat = 60.0
    """Report what every actor waits for after this number of seconds without progress."""
    heartbeat_seconds: PositiveFloat = 20.0
    """A process one of whose actors has sent no heartbeat for this number of seconds is killed and started again."""
    max_failures_in_a_row: PositiveInt = 64
    """Episodes abandoned for good, with none exported between them, after which the run stops."""
    max_rejections_in_a_row: PositiveInt = 1024
    """Attempts rejected (`should_accept`, or an agent that returned None), with none exported between them, after which the run stops."""
    engine_mismatch: Literal["recycle", "alarm", "off"] = "recycle"
    """When log-probabilities recorded by an inference worker are not the trainer's own (`trainer.parity_rows` are checked): `alarm`
    reports it; `recycle` also has the worker make its engine anew and load the current weights."""
    mismatch_kl: PositiveFloat = 0.05
    """Largest KL(engine ‖ trainer) of a worker's tokens in a step, in nats per token; of a sound engine it is below 0.001 in float32,
    below 0.01 in bfloat16."""
    mismatch_vetoed_share: Fraction = 0.01
    """Largest share of a worker's tokens in a step that differ by more than 9.2 nats."""
    mismatch_steps: PositiveInt = 3
    """Steps in a row beyond one of these bounds that make an alarm."""
    start_seconds: PositiveFloat = 120.0
    """A process that has been started, or started again, and makes no progress (no CPU time used, nothing read from disk) for this
    number of seconds before all its actors serve is killed and started again. Ten times this number is the limit for any start."""
    save_seconds: PositiveFloat = 300.0
    """Maximum wait for the last checkpoint of a run that is interrupted or ended early."""
    stop_seconds: PositiveFloat = 8.0
    """A process that does not stop within this number of seconds after SIGTERM is killed."""
    load_seconds: PositiveFloat = 300.0
    """Maximum duration of loading a version of the weights into an inference engine, its creation included; then the worker fails."""
    bus_seconds: PositiveFloat = 60.0
    """The run ends when nats-server has not answered the supervisor for this number of seconds."""
    max_stall_seconds: PositiveFloat = 3600.0
    """The run ends when there has been no progress (a trained step, a checkpoint, an evaluated episode, a trajectory that was kept, a
    further step of a phase of the trainer) for this number of seconds."""
    max_discarded_batches: PositiveInt = 16
    """The run ends when, since the last trained step and for `stall_seconds` at least, this number of batches of complete groups was
    dropped because they were too old or incomplete. `batcher.max_filtered_batches` is the limit for `batcher.filter`."""


class Placement(Config):
    """One line of `[actors]`: how many of an actor there are and where they run."""

    count: NonNegativeInt = 1
    """0 does not start it: an online run has no rollout workers, one that learns from examples no gateway, `areal serve` no trainer."""
    concurrency: PositiveInt = 1
    """Messages that one of them handles at once. Unstated, rollout workers share out the episodes that
    `staleness_gate.max_concurrent` allows, and gateway and inference workers take as many calls; `areal check` names the limit that
    binds."""
    process: str
    """Actors with the same process name share one process; of an actor with a count above 1, each has its own."""


class ActorsSettings(Config):
    """`[actors]`: every actor of a run, with the place it has unless the recipe says otherwise."""

    staleness_gate: Placement = Placement(process="control")
    task_source: Placement = Placement(process="control")
    batcher: Placement = Placement(process="control")
    example_source: Placement = Placement(process="control", count=0)
    evaluator: Placement = Placement(process="control")
    checkpointer: Placement = Placement(process="control")
    metrics: Placement = Placement(process="control")
    session_manager: Placement = Placement(process="gateway", concurrency=256)
    rollout_worker: Placement = Placement(process="rollout_worker", concurrency=64)
    reward_worker: Placement = Placement(process="reward_worker", concurrency=8)
    inference_worker: Placement = Placement(process="inference_worker", concurrency=256)
    trainer: Placement = Placement(process="trainer")


ONLINE = "online"
"""The agent of runs whose agents are outside and come to the gateway."""

NOT_ONLINE = frozenset({"task_source", "rollout_worker", "reward_worker", "evaluator"})
"""Actors of which an online run has none: they run agents of the run's own."""

ONLY_WITH_EXAMPLES = frozenset({"example_source"})
"""Actors of runs that learn from examples, and of no others."""

NOT_WITH_EXAMPLES = frozenset(
    {
        "staleness_gate",
        "task_source",
        "batcher",
        "evaluator",
        "session_manager",
        "rollout_worker",
        "reward_worker",
        "inference_worker",
    }
)
"""Actors of which a run that learns from examples has none: no episode is run."""

SERVING = frozenset({"session_manager", "inference_worker"})
"""All the actors that `areal serve` starts."""

SEVERAL = frozenset({"rollout_worker", "reward_worker", "inference_worker"})
"""Actors of which a run may have more than one: they share work and keep no state of the run."""

FOLDING = frozenset(
    {
        "staleness_gate",
        "task_source",
        "batcher",
        "example_source",
        "evaluator",
        "checkpointer",
        "metrics",
        "episode_log",
        "session_manager",
        "trainer",
    }
)
"""Actors whose state is a fold over the log, of which they keep snapshots: what these do not cover is not trimmed."""

CONCURRENT = SEVERAL | {"session_manager"}
"""Actors that wait for others while they handle a message, and meanwhile handle more."""


class SupervisorSettings(Config):
    """One line of `[supervisors]`: who is restarted with whom; children are listed in the order in which they start."""

    restart: Literal["one_for_one", "rest_for_one", "one_for_all"] = "one_for_one"
    """After a child's death start it alone again, or it and those to its right, or all."""
    children: tuple[str, ...]
    """Actors and supervisors."""
    max_restarts: NonNegativeInt = 5
    window_seconds: PositiveFloat = 60.0
    """More than `max_restarts` within so long stop the run."""


class DiskSettings(Config):
    """`[disk]`: the disk that the run's folder lies on."""

    min_free_mb: NonNegativeInt = 256
    """MiB that must be free at the start. While the run goes on, so much and the size of one checkpoint: with twice that there is a
    warning (`DiskLow`), with less the run saves a checkpoint and ends. 0 watches nothing."""
