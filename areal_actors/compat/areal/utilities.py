"""Small functions with which AReaL's programs prepare and report: seeds, ports, tables, data loaders."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from areal_actors.compat.areal.config import DatasetConfig, StatsLoggerConfig
from areal_actors.core.free_ports import find_free_ports as find_port
from areal_actors.tasks.order import Order

SEEDS: dict[str, int] = {}
"""The seed of this process, under `seed`, once one is set."""


def set_random_seed(base_seed: int, key: str) -> None:
    """Seed Python, NumPy and torch, if it is loaded, from a number and the name of this process."""
    seed = (base_seed + int.from_bytes(hashlib.sha256(key.encode()).digest()[:4])) % 2**32
    SEEDS["seed"] = seed
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - programs draw from the global generator
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def get_seed() -> int:
    """The seed that `set_random_seed` set.

    Raises:
        ValueError: none was set.
    """
    if "seed" not in SEEDS:
        raise ValueError("no seed is set; call set_random_seed(base_seed, key) first")
    return SEEDS["seed"]


def tabulate_stats(data: Mapping[str, float], col: int = 4, floatfmt: str = ".4e") -> str:
    """Numbers and their names in `col` columns of text."""
    cells = [f"{name}: {value:{floatfmt}}" for name, value in data.items()]
    width = max(map(len, cells), default=0)
    rows = [cells[start : start + col] for start in range(0, len(cells), col)]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell in row).rstrip() for row in rows)


class BatchLoader:
    """Lists of rows of one batch; each iteration is an epoch, shuffled by the seed if the configuration asks for it."""

    def __init__(self, rows: Sequence[Any], settings: DatasetConfig) -> None:
        self.rows = rows
        self.settings = settings
        self._draws = 0

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        whole, rest = divmod(len(self.rows), self.settings.batch_size)
        return whole + bool(rest and not self.settings.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the batches of the next epoch."""
        order = Order(length=len(self.rows), seed=SEEDS.get("seed", 0) if self.settings.shuffle else None)
        first = self._draws
        self._draws += len(self.rows)
        indices = [order.row(first + draw) for draw in range(len(self.rows))]
        for start in range(0, len(self) * self.settings.batch_size, self.settings.batch_size):
            yield [self.rows[index] for index in indices[start : start + self.settings.batch_size]]


def create_dataloader(
    dataset: Sequence[Any], rank: int = 0, world_size: int = 1, dataset_config: DatasetConfig | None = None, **_: Any
) -> BatchLoader:
    """Batches of the rows of this rank: every `world_size`-th, from `rank` on."""
    rows = [dataset[index] for index in range(rank, len(dataset), world_size)]
    return BatchLoader(rows, dataset_config or DatasetConfig())


def is_single_controller() -> bool:
    """True: one process controls a run."""
    return True


def kill_process_tree(pid: int) -> None:
    """Kill a process and its descendants; one that has ended is none."""
    try:
        process = psutil.Process(pid)
        processes = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for each in processes:
        each.kill()
    psutil.wait_procs(processes, timeout=5)


def find_free_ports(count: int, **_: Any) -> list[int]:
    """Ports of this machine that were free when they were looked for."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(find_port())
    return sorted(ports)


def gethostip(**_: Any) -> str:
    """The address at which the processes of a program find each other: this machine's own."""
    return "127.0.0.1"


class StatsLogger:
    """The folder of a program's own files; `PPOTrainer` itself writes metrics.jsonl."""

    @staticmethod
    def get_log_path(config: StatsLoggerConfig) -> str:
        """The folder `logs` of the experiment, which exists after the call."""
        folder = Path(config.fileroot) / "logs" / config.experiment_name / config.trial_name
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)
