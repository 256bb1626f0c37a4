"""The table `[task]` of a recipe, which tasks, rollout, rewards and evaluation read."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from areal_actors.core.config import Config, Fraction, NonNegativeInt, PositiveFloat, PositiveInt
from areal_actors.core.container_settings import ContainerSettings
from areal_actors.core.curriculum_settings import CurriculumSettings
from areal_actors.core.mix_settings import REPLACED, MixSource, stated_settings

WEIGHTED = "weighted"
"""Reward that is a sum of the rewards of `[task.reward_options]`; a list of rewards is its short form."""

CONTAINER = "container"
"""Argument of an agent whose tools run commands at `task.container.service`."""


class TaskSettings(Config):
    """`[task]`: dataset, agent and reward."""

    dataset: str = ""
    """Dataset: `arithmetic` (generated locally), `owner/name` or `owner/name:config` on the Hugging Face hub, the path
    of a `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file, all but the last also as `.gz`, of a folder of them, or
    of a saved dataset; a path may contain `*`. Empty for online runs. In supervised runs: demonstrations or pairs, see
    docs/supervised.md."""
    environment: str = ""
    """Environment that brings tasks, agents and rewards: `verifiers:NAME` of an installed package, or `verifiers:PATH`
    of a package's folder or a module's file, `gymnasium:ENV_ID`, or `openenv:` and the URL of a server, a package's
    folder or `PATH.py:APP`, see docs/environments.md; instead of dataset, agent and reward."""
    environment_args: dict[str, Any] = {}
    """The environment's settings: of verifiers its `[env]` table, as in
    `environment_args = { agent.harness.id = "null" }`, or the arguments of its `load_environment`; of Gymnasium
    and OpenEnv `observation`, `action_pattern` and others."""
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
    """Keyword arguments of the agent's class or function. `container` is added with `task.container.service`."""
    runner: Literal["inline", "subprocess", "container"] = "inline"
    """`inline` runs agents in the rollout worker's process, all episodes concurrently; `subprocess` in separate
    processes, which can be killed; `container` in a container for each of these, see docs/containers.md."""
    container: ContainerSettings = ContainerSettings()
    python: str = ""
    """Python interpreter for the runner `subprocess`, if the agent needs another environment; empty for the current
    one. In a container the image's, `python3` if it is empty."""
    processes: PositiveInt = 4
    """Number of agent processes per rollout worker, with the runners `subprocess` and `container`; each runs one
    episode at a time."""
    episodes_per_process: NonNegativeInt = 0
    """Number of episodes after which an agent process is replaced, with the runner `subprocess`; 0 keeps it. Each
    episode gets a new container unless this is above 1."""
    memory_mb: NonNegativeInt = 0
    """Memory limit per agent process or container, in MiB; 0 sets no limit."""
    reward: str = ""
    """Reward: `gsm8k`, `math`, `python_tests`, `json_schema`, `length`, `format`, `judge`, `weighted`,
    `path.py:function`, or `model:folder` of a trained reward model; or a list of several, which are added up, as in
    `["math", "length:512", "judge:quality"]`. Empty for online runs. See docs/rewards.md."""
    reward_options: dict[str, Any] = {}
    """Options of the reward, or keyword arguments of the reward function."""
    reward_weights: dict[str, float] = {}
    """Weights of the rewards that `algorithm.reward_normalization = "separate"` normalizes, by name. Unstated, those of
    a list of rewards; another reward returns a mapping with these names beside `reward`."""
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
    mix: tuple[MixSource, ...] = ()
    """Sources of tasks, each with its weight, agent, reward, sampling settings and held-out tasks; empty for the one
    that `[task]` describes. See docs/data.md."""
    curriculum: CurriculumSettings | None = None
    """Draws by measured difficulty; unset, every task is drawn once in each epoch."""

    def agent_arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of the agent's class or function."""
        added = {CONTAINER: self.container.tool_arguments()} if self.container.service else {}
        return {**added, **self.agent_options}

    def has_processes(self) -> bool:
        """Returns True if agents run in processes of their own."""
        return self.runner != "inline"

    def named_weights(self) -> dict[str, float]:
        """Returns the weights of the named rewards that make up the reward of an episode; empty for a single one."""
        if self.reward_weights or self.reward != WEIGHTED:
            return self.reward_weights
        weights = {name: table.get("weight") for name, table in self.reward_options.items() if isinstance(table, dict)}
        return {name: float(weight) for name, weight in weights.items() if isinstance(weight, int | float)}

    def is_script(self) -> bool:
        """Returns True if the agent is a file without a name in it, which is run as a script."""
        return self.agent.endswith(".py")

    def of_source(self, source: MixSource) -> TaskSettings:
        """Returns the settings of a source of the mixture, as if it were the only one."""
        stated = stated_settings(source)
        defaults = TaskSettings()
        dropped = {
            name: getattr(defaults, name)
            for setting, replaced in REPLACED.items()
            if setting in stated
            for name in replaced
        }
        runner = {"runner": "subprocess"} if stated.get("environment") else {}
        return msgspec.structs.replace(self, **{"mix": (), **dropped, **runner, **stated})
