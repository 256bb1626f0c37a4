"""An agent of a framework whose clients are made without a key, as by a user who has none."""

from __future__ import annotations

import importlib
import os

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


class WithoutKey:
    """Plays the agent `module:Name` of this folder with the key None; a task's `key` stands in the environment, as for
    inline agents."""

    def __init__(self, wraps):
        module, _, name = wraps.partition(":")
        self.agent = getattr(importlib.import_module(module), name)()
        assert all(os.environ[name] for name in KEYS)

    def run(self, task, *, base_url, api_key):
        if task["key"]:
            os.environ.update(dict.fromkeys(KEYS, task["key"]))
        return self.agent.run(task, base_url=base_url, api_key=None)
