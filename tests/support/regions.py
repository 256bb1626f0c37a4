"""The two regions of the package: the base, which needs no package of an extra, and what computes with torch."""

from __future__ import annotations

import os
from pathlib import Path

from areal_actors.core.extras import EXTRAS

ROOT = Path(__file__).parents[2]
TOPS = ("bus/areal_bus", "areal_actors")
ABSENT = frozenset(module for modules in EXTRAS.values() for module in modules)
"""Packages that a base install lacks."""
BLOCKING = Path(__file__).with_name("base_install")
"""Folder that takes them from interpreters with it on their path."""

WITH_TORCH = (
    *(
        "embedded",
        "training",
        "weights",
        "calibration.measure",
        "learn.support",
        "promote.divergence",
        "models.convert",
        "rewards.reward_model",
        "vision.embedding",
    ),
    *("contracts.algorithm", "contracts.random_model"),
    *("processes.tensor_process", "processes.training_engine"),
    *("replay.recompute", "replay.recompute_stretches", "replay.repeated_trainer", "replay.what_if_side"),
    "replay.what_if",
    *("library.controllers", "tinker", "compat"),
)
"""Folders and modules with torch: only they import it, and the base imports none of them."""
TORCH_FREE = (
    *(
        "embedded.engine_description",
        "embedded.settings",
        "tinker.command",
        "training.algorithms",
        "training.checkpoint_retention",
        "training.checkpoint_store",
    ),
    *(
        "training.checkpointer",
        "training.distributed.layout",
        "training.engine",
        "training.engine_mismatch",
        "training.quantized_base.recipe_check",
        "training.recipe_check",
        "training.settings",
        "training.span_columns",
        "training.step_columns",
    ),
    *(
        "training.trainer",
        "training.trainer_history",
        "training.trainer_recovery",
        "training.trainer_sleep",
        "weights.folders",
        "weights.manifest",
        "weights.model_hub",
        "weights.pulled",
        "weights.sending",
    ),
    *("weights.training_notes", "weights.weight_files"),
)
"""Modules of the base in these folders, which the processes of gateway, rollout, rewards, control and command line
import."""
ELSEWHERE = ("core.environment_host", "generation.servers.server_side")
"""Folders for interpreters with other packages."""


def module_of(path: Path) -> str:
    """Returns the dotted name of a file's module."""
    top = ROOT / "bus" if path.is_relative_to(ROOT / "bus") else ROOT
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def is_one_of(module: str, names: tuple[str, ...]) -> bool:
    """True if a module is one of these of the package, or below one."""
    return any(f"{module}.".startswith(f"areal_actors.{name}.") for name in names)


def is_base(module: str) -> bool:
    """True if the module belongs to a base install's region."""
    is_package = module.count(".") == 1  # an empty __init__.py of a folder
    return is_package or is_one_of(module, TORCH_FREE) or not is_one_of(module, (*WITH_TORCH, *ELSEWHERE))


def base_modules() -> list[str]:
    """Returns the modules of the base; without those that run when they are imported."""
    files = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py")) if path.name != "__main__.py"]
    return [module for module in map(module_of, files) if is_base(module)]


def base_environment() -> dict[str, str]:
    """Returns the environment of a process in which the packages of extras are absent."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(BLOCKING), str(ROOT)]),
        "ABSENT_PACKAGES": ",".join(sorted(ABSENT)),
    }
