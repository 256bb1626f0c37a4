"""Agents of mathematics that hand over to each other: `areal.workflow.openai_agent.math_agent`."""

from __future__ import annotations

import importlib
from typing import Any

SPECIALISTS = {
    "analyst": "Read the problem, name what is given and what is asked, and hand over to the solver.",
    "solver": "Solve the problem step by step, and hand over to the verifier.",
    "verifier": "Check the solution. Correct what is wrong, and state the final answer.",
}
"""Names and instructions, in the order of handing over."""


def build_math_agent() -> Any:
    """Return a coordinator of the OpenAI Agents SDK with its specialists; needs `openai-agents`."""
    sdk = importlib.import_module("agents")  # of the distribution openai-agents
    following: list[Any] = []
    for name, instructions in reversed(SPECIALISTS.items()):
        following = [sdk.Agent(name=name, instructions=instructions, handoffs=[*following])]
    return sdk.Agent(
        name="coordinator",
        instructions="Solve the problem. Hand over to the analyst if it needs several steps, or answer at once.",
        handoffs=following,
    )
