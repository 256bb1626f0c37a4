"""An agent that makes no call and sleeps until its run ends."""

from __future__ import annotations

import asyncio
from typing import Any


class SleepingAgent:
    """Sleeps in every episode."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:  # noqa: ARG002 - a run's agent
        """Sleep."""
        await asyncio.sleep(3600)
        return ""
