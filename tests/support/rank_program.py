"""Program of the ranks in tests of layouts, started by `torchrun`: train under one layout after the other and save the
results.

A layout of fewer ranks than there are leaves the last ones idle.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms import AnyAlgorithm
from areal_actors.training.distributed.commands import decode
from areal_actors.training.distributed.layout import Layout
from areal_actors.training.distributed.sharded import ShardedRanks
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

MICROBATCH_TOKENS = 60
SETTINGS = {"device": "cpu", "microbatch_tokens": MICROBATCH_TOKENS, "optimizer": {"lr": 1e-3}}
"""`[trainer]` of every case."""


class Case(msgspec.Struct, kw_only=True):
    """One layout, and what is done under it."""

    name: str
    layout: tuple[int, ...]
    """Replicas, sequence parts, tensor parts, and stages if there are several."""
    model: str
    load: str = ""
    steps: tuple[int, ...] = (0, 1)
    save: str = ""
    publish: str = ""
    rows: str = ""
    """Name of the batches; default: those of the model."""
    algorithm: dict[str, object] = {}
    """Default: GRPO without options."""
    settings: dict[str, object] = {}
    scored: bool = True
    """The log-probabilities before the first step are among the results."""


def main(folder: Path) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, is_master=False)
    batches = decode((folder / "rows").read_bytes(), dict[str, list[list[TrainingSequence]]])
    for case in msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case]):
        layout = Layout(*case.layout)
        if rank >= layout.ranks:
            continue
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(case.name, store),
            rank=rank,
            world_size=layout.ranks,
            timeout=timedelta(seconds=600),
        )
        found = run(case, layout, batches[case.rows or case.model])
        if rank == 0:
            torch.save(found, folder / f"{case.name}.pt")
        dist.barrier()
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # it would find the groups of this layout for equal meshes of the next


def run(case, layout, batches):
    settings = msgspec.convert(SETTINGS | case.settings, TrainerSettings)
    algorithm = msgspec.convert(case.algorithm or {"name": "grpo"}, AnyAlgorithm)
    trainer = TorchTrainer(
        case.model, algorithm, settings, total_steps=10, ranks=ShardedRanks(layout, torch.device("cpu"))
    )
    if case.load:
        trainer.load(case.load)
    computed = logp_and_values(trainer, batches[0]) if case.scored else {}
    metrics, gradients = [], []
    for number in case.steps:
        metrics.append(trainer.step(batches[number]))
        gradients.append(of_all_stages(gradients_of(trainer)))
    if case.save:
        trainer.save(case.save)
    published = trainer.publish(case.publish).checksum if case.publish else ""
    return computed | {
        "metrics": metrics,
        "gradients": gradients,
        "version": trainer.weight_version,
        "published": published,
    }


def logp_and_values(trainer, rows):
    """Log-probabilities, and values, of a model that has them."""
    computed = {} if trainer._algorithm.head == "value" else {"logp": trainer.logp(rows)}
    return computed | ({"values": trainer.values(rows)} if trainer._critic or not computed else {})


def gradients_of(trainer):
    """Whole gradients of what is trained, by name."""
    models = {"": trainer._model} | ({"critic.": trainer._critic.model} if trainer._critic else {})
    return {
        prefix + name: whole(parameter.grad).clone()
        for prefix, model in models.items()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def of_all_stages(gradients):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, gradients)
    for theirs in every:
        for name in theirs.keys() & gradients.keys():
            assert torch.equal(theirs[name], gradients[name]), f"two ranks have learned differently of {name}"
    return {name: gradient for theirs in every for name, gradient in theirs.items()}


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


if __name__ == "__main__":
    main(Path(sys.argv[1]))
