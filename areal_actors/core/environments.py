"""Environments that bring tasks, agents and rewards; `core/environment_host` has the code that runs in their interpreters."""

from __future__ import annotations

from pathlib import Path

VERIFIERS = "verifiers:"
"""Prefix of `task.environment`, followed by the name of a package, its folder, or a module's file."""
VERIFIERS_HOST = Path(__file__).parent / "environment_host" / "verifiers_host.py"
"""Program that lists the tasks of a verifiers environment, and file of the agent that plays them."""
VERIFIERS_AGENT = f"{VERIFIERS_HOST}:VerifiersAgent"


def environment_name(environment: str) -> str:
    """Returns the package, folder or file that `task.environment` names."""
    return environment.removeprefix(VERIFIERS)
