"""Validates the algorithm, the optimizer, the layout of ranks, the folder for weights, and `trainer.compile`.

`torch.compile` generates C++ for a CPU, and Triton kernels with launchers in C for a GPU: this machine needs the
compilers.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_actors.core.devices import detect_cuda
from areal_actors.core.layers import Key
from areal_actors.core.model_names import model_problems
from areal_actors.core.problems import Problems, is_installed, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.training.algorithms.base import INITIAL, Algorithm
from areal_actors.training.algorithms.custom import CustomAlgorithm
from areal_actors.training.distributed.layout import layout_problem
from areal_actors.training.settings import OptimizerSettings, TrainerSettings

ONLY_RANKS = ("tensor_parallel", "sequence_parallel", "pipeline_parallel", "ranks_address", "rank_timeout_seconds")
"""Settings of `[trainer]` that several ranks use."""
SWITCHES: tuple[tuple[Key, str, object], ...] = (
    (("kl",), "coefficient", 0.0),
    (("correction", "mismatch"), "importance_sampling", "off"),
)
"""Tables of algorithms, the setting that turns each off, and its value."""


def find_problems(trainer: TrainerSettings, algorithm: Algorithm, facts: RunFacts) -> Problems:
    """Yields what keeps the algorithm and the trainer from being used."""
    if facts.is_serving:
        yield from _served_problems(algorithm)
        return
    yield from _algorithm_problems(algorithm)
    yield from _optimizer_problems(trainer.optimizer)
    if trainer.lora is not None and algorithm.head == "value":
        yield (
            ("trainer", "lora"),
            "found a table, but an adapter has no scalar head, which this algorithm trains; leave it out",
        )
    if trainer.lora is not None and trainer.optimizer.name == "muon":
        fault = 'found "muon", whose orthogonal steps of two factors are none of the adapter, their product'
        yield ("trainer", "optimizer", "name"), f'{fault}; write "adamw", or leave out [trainer.lora]'
    yield from trainer_problems(trainer)


def _served_problems(algorithm: Algorithm) -> Problems:
    """Yields a problem if the recipe's model cannot be served to agents."""
    if algorithm.head == "value":
        remedy = "serve a recipe of another algorithm, and name this checkpoint as its reward"
        yield ("algorithm", "name"), f"found a reward model, which scores conversations and generates no text; {remedy}"


def _algorithm_problems(written: Algorithm) -> Problems:
    """Check the algorithm's own table, and the models that it needs beside the trained one."""
    problems = list(written.problems())
    yield from ((("algorithm", *key), complaint) for key, complaint in problems)
    is_custom = isinstance(written, CustomAlgorithm)
    if is_custom and problems:
        return
    algorithm = written.resolve()
    models: dict[Key, str] = {
        (role,) if role in algorithm.__struct_fields__ else ("kl", role): model
        for role, model in algorithm.models.items()
    }
    if algorithm.critic is not None:
        models["critic", "model"] = algorithm.critic.model
    for key, model in models.items():
        if model and model != INITIAL:
            yield from model_problems(("algorithm", *(("options",) if is_custom else ()), *key), model, f'"{INITIAL}"')


def _optimizer_problems(optimizer: OptimizerSettings) -> Problems:
    """Yields settings of the optimizer without effect."""
    table = ("trainer", "optimizer")
    if (momentum := optimizer.momentum) and optimizer.name != "sgd":
        fault = f"found {momentum:g}, which {optimizer.name} does not use"
        yield (*table, "momentum"), f'{fault}; leave it out, or write name = "sgd"'
    if (rate := optimizer.muon_lr) is not None and optimizer.name != "muon":
        yield (*table, "muon_lr"), f'found {rate:g}, which {optimizer.name} does not use; leave it out, or write "muon"'
    if (ratio := optimizer.minimum_ratio) and optimizer.schedule == "constant":
        fault = f'found {ratio:g}, but schedule = "constant" never falls'
        yield (*table, "minimum_ratio"), f'{fault}; leave it out, or write "linear" or "cosine"'


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


def unused_settings(trainer: TrainerSettings, algorithm: Algorithm) -> Iterator[Key]:
    """Yields settings of several ranks for one, and settings that another one of the same table turns off."""
    if trainer.ranks == 1:
        yield from (("trainer", name) for name in ONLY_RANKS)
    if trainer.optimizer.schedule == "constant":
        yield ("trainer", "optimizer", "minimum_ratio")
    if trainer.optimizer.name != "sgd":
        yield ("trainer", "optimizer", "momentum")
    if trainer.optimizer.name != "muon":
        yield ("trainer", "optimizer", "muon_lr")
    for table, switch, off in SWITCHES:
        part: Any = algorithm
        for name in table:
            part = getattr(part, name, None)
        if part is not None and getattr(part, switch, None) == off:
            yield from (("algorithm", *table, name) for name in part.__struct_fields__ if name != switch)
    if getattr(getattr(algorithm, "correction", None), "level", "") == "token":
        yield ("algorithm", "correction", "aggregation")
    if getattr(algorithm, "loss_aggregation", "constant") != "constant":
        yield ("algorithm", "constant_length")
