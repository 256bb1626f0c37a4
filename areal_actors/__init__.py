"""Fully asynchronous reinforcement learning of language-model agents, as asyncio actors on one bus."""

import sys
from importlib.util import find_spec
from pathlib import Path

__version__ = "0.2.0"

if find_spec("areal_bus") is None:  # a clone on `PYTHONPATH` of an interpreter in which it is not installed
    sys.path.append(str(Path(__file__).resolve().parents[1] / "bus"))
