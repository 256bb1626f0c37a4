"""The table `[task]` of a recipe, which tasks, rollout, rewards and evaluation read."""

from __future__ import annotations

from typing import Any, Literal

from areal_actors.core.config import Config, Fraction, NonNegativeInt, PositiveFloat, PositiveInt


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
    """Reward: `gsm8k`, `math`, `python_tests`, `json_schema`, `length`, `format`, `judge`, `weighted`,
    `path.py:function`, or `model:folder` of a trained reward model; or a list of several, which are added up, as in
    `["math", "length:512", "judge:quality"]`. Empty for online runs. See docs/rewards.md."""
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
