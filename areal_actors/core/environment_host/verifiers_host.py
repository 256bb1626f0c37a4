"""Lists the tasks of a `verifiers` environment and plays them; runs in the environment's own interpreter.

The version of verifiers there decides which of its two interfaces the environment has: tasksets and agents
(`verifiers_v1.py`), or, before 0.2, a module with `load_environment`, a dataset and a rubric (`verifiers_rubrics.py`).
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))  # this program runs where the package is not installed

if find_spec("verifiers.envs") is not None:
    from verifiers_rubrics import RubricAgent as VerifiersAgent
    from verifiers_rubrics import list_tasks
else:
    from verifiers_v1 import VerifiersAgent, list_tasks

__all__ = ["VerifiersAgent", "list_tasks"]

if __name__ == "__main__":
    list_tasks(json.load(sys.stdin))
