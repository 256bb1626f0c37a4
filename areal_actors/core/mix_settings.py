"""The tables `[[task.mix]]` of a recipe: sources of tasks from which one run draws, by weight."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from areal_actors.core.config import Config, Fraction, NonNegativeInt, PositiveFloat, PositiveInt

SourceName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]


class MixSource(Config):
    """A source of `[[task.mix]]`. What it leaves out is as in `[task]`."""

    name: SourceName
    """Name in metrics, logs and ids of tasks: lowercase letters, digits and hyphens."""
    weight: PositiveFloat = 1.0
    """Share of the draws, relative to the weights of the other sources."""
    until: Fraction | None = None
    """Success rate from which the source is no longer drawn, over its last 32 groups; all are drawn again
    when every source has reached its rate. Unset, it is always drawn."""
    sampling: dict[str, Any] = {}
    """Changes to `[sampling]` for its episodes, as in `sampling = { max_tokens = 8 }`; all but `temperature`, at which
    every token of a run is trained."""
    dataset: str | None = None
    """`task.dataset`, of this source; leaves out the environment of `[task]`."""
    columns: dict[str, str] | None = None
    """`task.columns`, of this source."""
    environment: str | None = None
    """`task.environment`, of this source; leaves out dataset, agent and reward of `[task]`."""
    environment_args: dict[str, Any] | None = None
    """`task.environment_args`, of this source."""
    environment_tasks: PositiveInt | None = None
    """`task.environment_tasks`, of this source."""
    held_out: NonNegativeInt | str | None = None
    """`task.held_out`, of this source."""
    held_out_args: dict[str, Any] | None = None
    """`task.held_out_args`, of this source."""
    agent: str | None = None
    """`task.agent`, of this source; `""` is the built-in agent. It has no options but its own."""
    command: tuple[str, ...] | None = None
    """`task.command`, of this source."""
    agent_options: dict[str, Any] | None = None
    """`task.agent_options`, of this source."""
    system_prompt: str | None = None
    """`task.system_prompt`, of this source."""
    runner: Literal["inline", "subprocess"] | None = None
    """`task.runner`, of this source; `subprocess` with an environment."""
    python: str | None = None
    """`task.python`, of this source."""
    processes: PositiveInt | None = None
    """`task.processes`, of this source."""
    reward: str | None = None
    """`task.reward`, of this source, or a list of several. It has no options but its own."""
    reward_options: dict[str, Any] | None = None
    """`task.reward_options`, of this source."""
    unreadable_references: Literal["refuse", "warn"] | None = None
    """`task.unreadable_references`, of this source."""
    timeout_seconds: PositiveFloat | None = None
    """`task.timeout_seconds`, of this source."""
    reward_timeout_seconds: PositiveFloat | None = None
    """`task.reward_timeout_seconds`, of this source."""
    overflow_reward: float | None = None
    """`task.overflow_reward`, of this source."""
    model_errors: tuple[str, ...] | None = None
    """`task.model_errors`, of this source."""


OWN_FIELDS = ("name", "weight", "until", "sampling")
"""Fields of a source that are no settings of `[task]`."""
OF_A_SOURCE = ("environment", "environment_args", "held_out_args")
"""Settings of `[task]` that belong into a source."""
REPLACED = {
    "environment": (
        *("dataset", "columns", "agent", "command", "agent_options", "system_prompt"),
        *("reward", "reward_options"),
    ),
    "dataset": ("environment", "environment_args", "held_out_args", "columns"),
    "agent": ("command", "agent_options", "system_prompt"),
    "command": ("agent", "agent_options", "system_prompt"),
    "reward": ("reward_options",),
}
"""Settings of `[task]` that a source does not inherit, by the setting that it states."""


def stated_settings(source: MixSource) -> dict[str, Any]:
    """Returns the settings of `[task]` that a source states."""
    return {
        name: value
        for name in source.__struct_fields__
        if name not in OWN_FIELDS and (value := getattr(source, name)) is not None
    }
