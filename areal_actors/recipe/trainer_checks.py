"""Validates the layout of the trainer's ranks, its folder for weights, and that this machine has the compilers of `trainer.compile`.

`torch.compile` generates C++ for a CPU, and Triton kernels with launchers in C for a GPU.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from areal_actors.core.devices import detect_cuda
from areal_actors.recipe.errors import Problems, is_installed, toml_value
from areal_actors.training.distributed.layout import layout_problem
from areal_actors.training.settings import TrainerSettings


def trainer_problems(trainer: TrainerSettings, environment: Mapping[str, str] = os.environ) -> Problems:
    """Yields key and complaint of an impossible layout, of a folder that cannot be used, and of a missing compiler."""
    if problem := layout_problem(trainer):
        yield ("trainer", problem[0]), problem[1]
    if (folder := trainer.weights_folder) and not (Path(folder).is_absolute() and os.access(folder, os.W_OK | os.X_OK)):
        fault = f"found {toml_value(folder)}, which is no absolute path of a folder that can be written"
        yield ("trainer", "weights_folder"), f"{fault}; name one that engines see at the same path, or leave it out"
    if not trainer.compile:
        return
    cuda = trainer.device == "cuda" or (trainer.device == "auto" and detect_cuda().count > 0)
    if missing := _triton_problem(environment) if cuda else _cpp_problem(environment):
        yield ("trainer", "compile"), f"found true, but {missing}; or write false"


def _cpp_problem(environment: Mapping[str, str]) -> str | None:
    name = environment.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name, path=environment.get("PATH")) is None:
        return f"there is no C++ compiler {name}; install one, or name yours in CXX"
    return _header_problem()


def _triton_problem(environment: Mapping[str, str]) -> str | None:
    if not is_installed("triton"):
        return "triton is not installed, which torch for CUDA comes with; install it"
    names = [environment["CC"]] if "CC" in environment else ["gcc", "clang"]
    if not any(shutil.which(name, path=environment.get("PATH")) for name in names):
        return f"there is no C compiler ({' or '.join(names)}); install one, or name yours in CC"
    return _header_problem()


def _header_problem() -> str | None:
    header = Path(sysconfig.get_path("include"), "Python.h")
    return None if header.is_file() else f"there is no {header}; install the headers of this Python (python3-dev)"
