"""The reward of the agent in agent.mjs."""

import re
from typing import Any


def reward(task: dict[str, Any], output: str) -> float:
    """Score an output: 1.0 if its last number is the task's answer."""
    numbers = re.findall(r"-?\d+", output)
    return float(bool(numbers) and numbers[-1] == task["answer"])
