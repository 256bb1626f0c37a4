"""Modules of AReaL that programs import and that are not here, each with the reason and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

from areal_actors.core.command import COMMAND

MISSING: Mapping[str, str] = {
    "areal.api.cli_args.AgentConfig": f"of the agent service; `{COMMAND} serve` answers users, docs/feedback.md",
    "areal.experimental.agent_service": f"serves agents; `{COMMAND} serve` answers users, docs/feedback.md",
    "areal.experimental.inference_service": (
        f'serves a model to external agents; `{COMMAND} gateway`, `{COMMAND} serve`, or `task.agent = "online"`'
    ),
    "areal.infra.async_task_runner": "part of AReaL's own executor; `submit` and `wait` of an engine",
    "areal.infra.rpc": "calls between AReaL's workers, and their tensors; actors send messages on the bus",
    "areal.infra.sandbox": "a hosted service (Daytona); `task.container` and `areal_actors.containers.Container`",
    "areal.tests": "AReaL's own tests",
    "areal.v2": f"services of AReaL 2; `{COMMAND} gateway`, `{COMMAND} serve`, `{COMMAND} model`",
}
"""Beginnings of dotted names."""


def missing_reason(name: str) -> str:
    """Return the reason for a dotted name; empty if it has none."""
    return next((reason for start, reason in MISSING.items() if name == start or name.startswith(f"{start}.")), "")
