"""A hand-written loop as each of several ranks runs it; `torchrun` starts it, see test_controllers_ranks.py."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch.distributed as dist
from safetensors.torch import load_file
from support.controller_harness import ROWS, OneCallWorkflow, recipe_for

from areal_actors.generation.settings import GenerationSettings, ScriptedSettings
from areal_actors.library.controllers import (
    LogReader,
    RolloutController,
    TrainController,
    broadcast,
    join_ranks,
    processes,
)
from areal_actors.training.settings import OptimizerSettings, TrainerSettings


class Graded(OneCallWorkflow):
    """The reward follows from the task's number, so that there is something to learn."""

    async def arun_episode(self, engine, data):
        """Play one episode."""
        await super().arun_episode(engine, data)
        return float(int(engine.api_key[-1], 16) % 3)


def main(folder: Path, model: str) -> None:
    trainer_settings = TrainerSettings(
        ranks=2, batch_size=2, device="cpu", logprob_check_sequences=0, optimizer=OptimizerSettings(lr=1e-3)
    )
    scripted = GenerationSettings(engine="scripted", scripted=ScriptedSettings(shortest=2, longest=9))
    recipe = msgspec.structs.replace(recipe_for(folder, generation=scripted, group_size=4), trainer=trainer_settings)
    ranks = join_ranks(recipe, seconds=60)
    with ExitStack() as stack:
        rollouts = stack.enter_context(RolloutController(recipe, processes)) if ranks.first else None
        dist.barrier()
        source = rollouts or stack.enter_context(LogReader.of(recipe))
        train = stack.enter_context(TrainController(recipe, source, model_folder=model, ranks=ranks))
        single = msgspec.structs.replace(
            recipe, run="alone", trainer=msgspec.structs.replace(trainer_settings, ranks=1)
        )
        alone = stack.enter_context(TrainController(single, source, model_folder=model))
        published = train.upload_weights()
        reported = []
        for _ in range(2):
            if rollouts is not None:
                rollouts.update_weights(published)
            batch = broadcast(rollouts and rollouts.prepare_batch(ROWS, Graded))
            expected, metrics = alone.train_batch(batch), train.train_batch(batch)
            published = train.upload_weights()
            reported.append(
                {
                    "loss": [expected["loss"], metrics["loss"]],
                    "grad_norm": [expected["grad_norm"], metrics["grad_norm"]],
                }
            )
        if ranks.first:
            sharded = load_file(Path(published.location.folder) / "model.safetensors")
            whole = load_file(Path(alone.upload_weights().location.folder) / "model.safetensors")
            reported.append(
                {"largest_difference": max(float((whole[name] - sharded[name]).abs().max()) for name in whole)}
            )
        (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(reported))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
