"""Environment of the clients that agents make.

It leads past the proxies to the gateway, and has keys where the user has none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from areal_actors.core.proxies import proxy_exceptions

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
"""Variables without which clients of the SDKs refuse to be made, unless they get a key."""
PLACEHOLDER = "the-session-is-in-the-address"


def client_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that agents' clients need besides those of an environment."""
    return {**{name: PLACEHOLDER for name in KEYS if name not in environment}, **proxy_exceptions(environment)}


def set_client_environment() -> None:
    """Set these variables in this process."""
    os.environ.update(client_environment(os.environ))
