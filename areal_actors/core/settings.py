"""The recipe's tables for everything but learning: tasks, gateway, watchdog, placement and supervision.

They are separate from the components that they parametrise, so that a recipe can be read without importing these.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from areal_actors.core.config import Config, Fraction, NonNegativeInt, Port, PositiveFloat, PositiveInt

JOIN_TOKEN = "AREAL_JOIN_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the password of remote workers: for `areal-actors join`, and `areal-actors run` if it is
fixed."""
TemperaturePolicy = Literal["error", "recipe", "as_asked"]
UnknownFields = Literal["list", "refuse"]


class TaskSettings(Config):
    """`[task]`: dataset, agent and reward."""

    dataset: str = ""
    """Dataset: `arithmetic` (generated locally), `owner/name` or `owner/name:config` on the Hugging Face hub, the path
    of a `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file, all but the last also as `.gz`, of a folder of them, or
    of a saved dataset; a path may contain `*`. Empty for online runs. In supervised runs: demonstrations or pairs, see
    docs/supervised.md."""
    environment: str = ""
    """Environment that brings tasks, agents and rewards: `verifiers:NAME` of an installed package, or `verifiers:PATH`
    of a package's folder or a module's file, or `gymnasium:ENV_ID`, see docs/environments.md; instead of dataset, agent
    and reward."""
    environment_args: dict[str, Any] = {}
    """The environment's settings: of verifiers its `[env]` table, as in
    `environment_args = { agent.harness.id = "null" }`, or the arguments of its `load_environment`; of Gymnasium
    `actions`, `observation` and others."""
    environment_tasks: PositiveInt = 1000
    """Maximum number of tasks taken from the environment, in its order."""
    held_out_args: dict[str, Any] = {}
    """Changes to `environment_args` for held-out tasks, as in `held_out_args = { taskset.split = "test" }`: the first
    `held_out` tasks of that environment are held out. Without any, `held_out` of the environment's tasks."""
    agent: str = ""
    """Agent: `path.py:Name` or `package.module:Name` of a class, an object or a function, in a file beside the recipe
    or in the current directory; or a script, `path.py`, which requires the runner `subprocess`. `online`: external
    agents connect to the gateway. Empty, without `command` and `environment`: the built-in agent, with one call per
    task."""
    command: tuple[str, ...] = ()
    """Program and its arguments, in any language, instead of an agent; requires the runner `subprocess`."""
    system_prompt: str = ""
    """System message of the built-in agent, which sends the task's `messages`, or its `question`, in one call and has
    the answer scored."""
    agent_options: dict[str, Any] = {}
    """Keyword arguments of the agent's class or function."""
    runner: Literal["inline", "subprocess"] = "inline"
    """`inline` runs agents in the rollout worker's process, all episodes concurrently; `subprocess` in separate
    processes, which can be killed."""
    python: str = ""
    """Python interpreter for the runner `subprocess`, if the agent needs another environment; empty for the current
    one."""
    processes: PositiveInt = 4
    """Number of agent processes per rollout worker, with the runner `subprocess`; each runs one episode at a time."""
    episodes_per_process: NonNegativeInt = 0
    """Number of episodes after which an agent process is replaced, with the runner `subprocess`; 0 keeps it."""
    memory_mb: NonNegativeInt = 0
    """Memory limit per agent process, in MiB, with the runner `subprocess`; 0 sets no limit."""
    reward: str = ""
    """Reward: `gsm8k`, `math`, `python_tests`, `json_schema`, `weighted`, `path.py:function`, or `model:folder` of a
    trained reward model. Empty for online runs. See docs/rewards.md."""
    reward_options: dict[str, Any] = {}
    """Options of the reward, or keyword arguments of the reward function."""
    unreadable_references: Literal["refuse", "warn"] = "refuse"
    """Rows whose reference a built-in reward cannot read, so that no answer is right: `refuse` the recipe, or `warn`
    and play them."""
    timeout_seconds: PositiveFloat = 120.0
    """Timeout of one attempt at an episode, without the time in which its calls wait for a first token. Unstated, a
    pretrained model on a CPU gets at least the time that four answers take, as measured."""
    reward_timeout_seconds: PositiveFloat = 10.0
    """Timeout of one call of the reward."""
    reward_cache: NonNegativeInt = 0
    """Number of scores that each reward worker keeps by the text of task and output, and does not compute again; 0
    keeps none."""
    retries: NonNegativeInt = 2
    """Maximum number of retries of an abandoned episode."""
    overflow_reward: float = 0.0
    """Reward of an episode that the model itself ended: the agent raised because the conversation no longer fits the
    context, because of an exception of `model_errors`, or because JSON that the model wrote cannot be read. It is
    trained as truncated, not retried."""
    model_errors: tuple[str, ...] = ()
    """Further exceptions of agents that the model brings about, as `package.module:Exception` or `path.py:Exception`:
    too many turns, unreadable output. Those of well-known frameworks are built in; see docs/write-an-agent.md."""
    should_accept: str = ""
    """`path.py:function` that returns True for scored episodes to train on; empty accepts all."""
    retry_rejected: bool = False
    """Retry an episode that `should_accept` rejects, while retries are left."""
    dump_to_file: bool = False
    """Write every finished episode, with its texts, to `episodes.jsonl` in the run's folder."""
    held_out: NonNegativeInt | str = 200
    """Number of the dataset's tasks held out for evaluation, or the path of a second dataset with these tasks."""
    columns: dict[str, str] = {}
    """Columns of the dataset by field, or paths in them, as in
    `columns = { question = "problem", answer = "reward_model.ground_truth" }`. Fields that are not named here are
    recognised by the first row; see docs/data.md."""
    max_length: NonNegativeInt = 0
    """Maximum number of tokens per row of examples; 0 for the model's context length, which is always an upper
    limit."""
    overlong: Literal["error", "drop"] = "error"
    """`error` ends the run if an example exceeds `max_length`; `drop` leaves such examples out and logs their
    number."""
    turn_discount: Fraction | None = None
    """Discount per model call: the share of the reward of continuing calls that a call inherits. Unset, the episode's
    reward applies to all of its calls, and rewards by interaction id to their calls only; see docs/rewards.md."""
    branch_credit: Literal["mean", "sum"] = "mean"
    """Aggregation over several calls that continue the same call, with `turn_discount`."""
    export_style: Literal["concat", "individual"] = "concat"
    """`concat` makes one row of each path of calls whose tokens extend each other, `individual` one of each call; every
    token has its call's reward in both."""
    baseline_over: Literal["episodes", "calls", "roles"] = "episodes"
    """Samples of a group's reward statistics: `episodes` counts each episode once, with the mean reward of its calls;
    `calls` counts each call once (process rewards); `roles` compares each role of an episode with the same role of the
    group's other episodes."""

    def is_script(self) -> bool:
        """Returns True if the agent is a file without a name in it, which is run as a script."""
        return self.agent.endswith(".py")


class ImageSettings(Config):
    """`[gateway.images]`: images in requests to a model with vision; see docs/vision.md."""

    max_per_call: PositiveInt = 16
    """Maximum number of images in one prompt, those of earlier turns included."""
    max_mb: PositiveInt = 8
    """Maximum size of an image file, in MiB."""
    max_megapixels: PositiveInt = 16
    """Maximum number of pixels of an image as it is sent, in millions. Larger images than the model's processor allows
    are reduced."""
    urls: Literal["refuse", "fetch"] = "refuse"
    """Images given by `http` and `https` URLs: `refuse` answers with an error; `fetch` makes the gateway load them from
    any address that it reaches, those of the machine's own network included."""
    fetch_seconds: PositiveFloat = 10.0
    """Time limit for loading an image from its URL, in seconds."""


KEEP_REASONING = "keep-reasoning"
NO_TEMPLATE = "none"
TEMPLATE_WORDS = (KEEP_REASONING, NO_TEMPLATE)
"""Values of `gateway.chat_template` that are no files."""


class GatewaySettings(Config):
    """`[gateway]`: HTTP server through which agents call the model."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 0
    """Port to listen on; 0 selects a free one. With `actors.session_manager.count` above 1, the port of the first
    gateway: the others take the next ones."""
    certificate: str = ""
    """PEM file of a certificate with which the gateway encrypts; empty: plain HTTP. Agents verify it, for the host of
    `advertise` or `host`, against the CA certificates of their system or of the file in the variable `SSL_CERT_FILE`;
    see docs/scaling.md."""
    certificate_key: str = ""
    """PEM file of the key of `certificate`."""
    admin_key: str = ""
    """Key for the endpoints that start and export sessions; empty generates one for the run, in the file `admin_key` of
    its folder."""
    idle_timeout_seconds: PositiveFloat = 600.0
    """Seconds without use after which the session of an external agent is abandoned, and with it the unstarted members
    of its group; a pause of the gateway's process (SIGSTOP, a suspended machine) does not count."""
    reservation_ttl_seconds: PositiveFloat = 60.0
    """Seconds for which a reserved slot is kept, and the place in its group of a session that was lost with its
    gateway."""
    finished_sessions_cached: NonNegativeInt = 1024
    """Number of finished sessions that can still be exported."""
    chat_template: str = ""
    """Chat template in place of the model's: the path of a Jinja file, beside the recipe or in the current directory.
    `keep-reasoning` uses the model's, and keeps earlier reasoning in prompts although the template drops it; see
    docs/chat-templates.md. `none` starts a run without a template, for agents that send plain text to `/v1/completions`
    only."""
    tool_format: str = "auto"
    """Format of tool calls: `auto` takes the first that reads back the calls that the chat template renders, `learned`
    takes the delimiters from the template, a name such as `hermes` that format; `none` refuses tools. See
    docs/chat-templates.md."""
    store_false: Literal["skip", "train"] = "skip"
    """Calls with `store: false` are recorded as context of later calls; `skip` does not train them, `train` does, for
    clients that always send it."""
    temperature_policy: TemperaturePolicy = "error"
    """Trained calls whose client sets another `temperature` than `sampling.temperature`: `error` refuses them; `recipe`
    samples them at the recipe's temperature and lists the field in the response header `x-areal-ignored`; `as_asked`
    samples them at the client's, from 0.1 to 10, and trains their tokens at that temperature. Evaluation and
    `areal-actors serve` use the client's."""
    unknown_fields: UnknownFields = "list"
    """Fields of requests, items of histories and kinds of tools that the gateway does not know: `list` leaves them out
    and lists them in the response header `x-areal-ignored` and in the log; `refuse` refuses the request by the name of
    the first. What is known to change what is sampled is refused in both, unless it has its default value."""
    marks_in_text: Literal["text", "control"] = "text"
    """The text of a special token, such as `<|im_end|>`, in a message, a tool or a tool result: `text` tokenises it as
    plain text, so that control tokens come from the chat template only; `control` reads it as that token, as servers do
    that tokenise the rendered text as it is. See docs/security.md."""
    completion_seconds: PositiveFloat = 600.0
    """Maximum wait, in seconds, for the next part of a completion from an inference worker, which is all of it unless
    it is streamed; beyond it the engine has failed. Below `task.timeout_seconds`, a silent engine is reported instead
    of the waiting agent."""
    advertise: str = ""
    """Address of the gateway for agents: a host name, or `http://host:port` of a proxy. Empty uses the listening
    address, or 127.0.0.1 if it listens on every interface (`0.0.0.0`, `::`): set a host for agents on other
    machines."""
    joined: NonNegativeInt = 0
    """Number of gateways, the last of `actors.session_manager.count`, that run on other hosts, each by
    `areal-actors join --role gateway`. One that is lost is taken over. See docs/scaling.md."""
    keep_alive_seconds: PositiveFloat = 15.0
    """Seconds without an event after which a streamed answer has a sign of life: a comment, or Anthropic's `ping`. Its
    head is sent half a second after the request at the latest. Proxies cut connections on which nothing arrives."""
    head_seconds: PositiveFloat = 60.0
    """Maximum wait, in seconds, for the head of a request on an open connection, which is then closed."""
    max_body_mb: PositiveInt = 16
    """Maximum size of a request body, in MiB. JSON is decoded in one piece, which may block the gateway for 10 ms per
    MiB."""
    images: ImageSettings = ImageSettings()

    def with_number(self, number: int) -> GatewaySettings:
        """Returns the settings of one of several gateways: each has its own port."""
        return msgspec.structs.replace(self, port=self.port + number if self.port else 0)

    def urls(self, count: int) -> str:
        """Returns the URLs of that number of gateways with fixed ports."""
        return ", ".join(self.url(self.port + number) for number in range(count))

    def url(self, port: int) -> str:
        """Returns the URL of a gateway that listens on this port."""
        if "://" in self.advertise:
            return self.advertise.rstrip("/")
        host = self.advertise or {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        scheme = "https" if self.certificate else "http"
        return (
            f"{scheme}://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{scheme}://{host}:{port}"
        )

    def is_local(self) -> bool:
        """True if the gateway is reachable from this machine only."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class LogSettings(Config):
    """`[log]`: retention of the run's log."""

    keep: Literal["all", "needed"] = "needed"
    """`needed` trims a log larger than `max_mb` at its beginning, up to the first event that a kept checkpoint or
    snapshot needs; the run continues and resumes as before, but can be replayed and exported only from there on. `all`
    never trims."""
    max_mb: NonNegativeInt = 4096
    """Size of the log in MiB, including large bodies in `blobs`, up to which it is not trimmed; 0 trims it at every
    checkpoint."""
    compress: bool = False
    """Compress complete blocks (8 MB) of a new log. If such a block is damaged and the server's index is lost, too, the
    server finds no log at all, where otherwise the events before the damage are used; see docs/durability.md."""


class WatchdogSettings(Config):
    """`[watchdog]`: deadlines of starting, saving, loading and stopping, and of a run without progress.

    Seconds in which the supervisor itself was paused, or nats-server did not answer it, do not count, except for
    `bus_seconds`.
    """

    stall_seconds: PositiveFloat = 60.0
    """Seconds without progress after which the waits of every actor are reported."""
    heartbeat_seconds: PositiveFloat = 20.0
    """Seconds without a heartbeat from one of its actors after which a process is killed and restarted."""
    max_failures_in_a_row: PositiveInt = 64
    """Number of episodes in a row abandoned after all retries, with none exported between them, after which the run
    stops."""
    max_rejections_in_a_row: PositiveInt = 1024
    """Number of attempts in a row rejected (`should_accept`, or an agent that returned None), with none exported
    between them, after which the run stops."""
    engine_mismatch: Literal["recycle", "alarm", "off"] = "recycle"
    """Action on a training-inference mismatch, when log-probabilities recorded by an inference worker differ from the
    trainer's (`trainer.logprob_check_sequences` are checked): `alarm` reports it; `recycle` also recreates the worker's
    engine."""
    mismatch_kl: PositiveFloat = 0.05
    """Maximum KL(engine ‖ trainer) of a worker's tokens in a step, in nats per token; typically below 0.001 in float32
    and below 0.01 in bfloat16."""
    mismatch_vetoed_frac: Fraction = 0.01
    """Maximum share of a worker's tokens in a step that differ by more than 9.2 nats."""
    mismatch_steps: PositiveInt = 3
    """Number of steps in a row beyond one of these limits that raise the alarm."""
    start_seconds: PositiveFloat = 120.0
    """Seconds without progress (CPU time, disk reads) after which a starting process is killed and restarted, until all
    its actors serve. The limit for any start is ten times this value."""
    save_seconds: PositiveFloat = 300.0
    """Maximum wait, in seconds, for the last checkpoint of a run that is interrupted or ended early."""
    stop_seconds: PositiveFloat = 8.0
    """Seconds after SIGTERM after which a process that has not stopped is killed."""
    load_seconds: PositiveFloat = 300.0
    """Maximum duration, in seconds, of loading weights into an inference engine, including its creation; beyond it the
    worker fails."""
    bus_seconds: PositiveFloat = 60.0
    """Seconds without an answer of nats-server to the supervisor after which the run ends."""
    max_stall_seconds: PositiveFloat = 3600.0
    """Seconds without progress (a trained step, a checkpoint, an evaluated episode, a kept trajectory, a step of a
    trainer phase) after which the run ends."""
    max_discarded_batches: PositiveInt = 16
    """Number of batches of complete groups, dropped as too old or incomplete since the last trained step and for at
    least `stall_seconds`, after which the run ends. `batcher.max_filtered_batches` is the limit for filtered groups."""


class Placement(Config):
    """One line of `[actors]`: number and placement of an actor's instances."""

    count: NonNegativeInt = 1
    """Number of instances. Unstated, inference workers take the CUDA devices that the trainer leaves. Several session
    managers are several gateways, which share the episodes out by their groups. 0 starts none: an online run has no
    rollout workers, a supervised run no gateway, `areal-actors serve` no trainer; with `bus.host` all workers may be
    those of other hosts."""
    concurrency: PositiveInt = 1
    """Maximum number of messages that one instance handles at once. Unset, `staleness_gate.max_concurrent` is divided
    among the rollout workers, and gateway and inference workers accept as many calls; `areal-actors check` prints the
    effective limit."""
    process: str
    """Name of the process; actors with the same name share one. With a count above 1 each instance has its own."""


def processes_of(placement: Placement) -> list[str]:
    """Returns the process names of an actor: none, one, or one for each of a count above 1."""
    if placement.count == 1:
        return [placement.process]
    return [f"{placement.process}-{index}" for index in range(placement.count)]


class ActorsSettings(Config):
    """`[actors]`: every actor of a run, with its default placement."""

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
"""Value of `task.agent` for runs with external agents."""

NOT_ONLINE = frozenset({"task_source", "rollout_worker", "reward_worker", "evaluator"})
"""Actors that an online run does not have, since they run agents."""

NOT_IN_ENVIRONMENTS = frozenset({"reward_worker"})
"""Actors that a run in an environment does not have, since the environment scores its episodes."""

ONLY_WITH_EXAMPLES = frozenset({"example_source"})
"""Actors of supervised runs only."""

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
"""Actors that a supervised run does not have, since it runs no episodes."""

SERVING = frozenset({"session_manager", "inference_worker"})
"""Actors that `areal-actors serve` starts."""

SEVERAL = frozenset({"rollout_worker", "reward_worker", "inference_worker"})
"""Actors that may have several instances: they share work and have no state."""

COUNTED = SEVERAL | {"session_manager"}
"""Actors that may have several instances, and be on other hosts; gateways divide the sessions among them."""

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
"""Actors whose state is a fold over the log, with snapshots; the log is trimmed only up to these."""

CONCURRENT = SEVERAL | {"session_manager"}
"""Actors that handle several messages concurrently, since handlers wait for other actors."""


class SupervisorSettings(Config):
    """One line of `[supervisors]`: restart strategy of its children, which are listed in start order."""

    restart: Literal["one_for_one", "rest_for_one", "one_for_all"] = "one_for_one"
    """After a child's death restart it alone, it and all children after it, or all children."""
    children: tuple[str, ...]
    """Names of actors and supervisors."""
    max_restarts: NonNegativeInt = 5
    """Maximum number of restarts within `window_seconds`; beyond it the run stops."""
    window_seconds: PositiveFloat = 60.0
    """Period, in seconds, in which `max_restarts` are counted."""


class DiskSettings(Config):
    """`[disk]`: the disk of the run's folder."""

    min_free_mb: NonNegativeInt = 256
    """MiB that must be free at the start. During the run the limit is this plus the size of one checkpoint: below twice
    the limit there is a warning (`DiskLow`), below the limit the run saves a checkpoint and ends. 0 disables the
    check."""


class TrackSettings(Config):
    """`[track]`: experiment trackers that get the steps and evaluations of the run, each from a process beside it.

    See docs/tracking.md.
    """

    to: tuple[str, ...] = ()
    """Names: `tensorboard`, `wandb`, `mlflow`, `trackio`, and those of other distributions (docs/parts.md)."""
    project: str = ""
    """Project or experiment in the tracker. Empty: what the library's variable names (`WANDB_PROJECT`,
    `MLFLOW_EXPERIMENT_NAME`, `TRACKIO_PROJECT`), or `areal`."""
    python: str = ""
    """Python interpreter that has the trackers' libraries; empty for the current one."""
    stop_seconds: PositiveFloat = 60.0
    """Seconds after the end of the run in which a tracker must have taken the rest; beyond it the tracker is named and
    killed."""
