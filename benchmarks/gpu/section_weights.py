"""Section `weights`: a weight version from the trainer to the embedded engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from measuring import complete, device_of, make_engine, make_trainer, random_prompts, synchronize, with_engine
from options import Options
from report import Figures, Report

from areal_actors.core.values import WeightsLocation
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.training.torch_trainer import TorchTrainer

TOKENS = 2


def measure(report: Report, options: Options) -> None:
    """Measure weight updates between one trainer and one idle engine."""
    report.case("update", lambda: updates(options))


def updates(options: Options) -> Iterator[Figures]:
    """Yield each weight update.

    `TorchTrainer.publish`, then `load_weights` of the engine until the weights are swapped.
    """
    trainer = make_trainer(options, options.sizes.dtype)
    engine = make_engine(options, options.sizes.dtype, 1, options.sizes.decode_prompt + TOKENS)
    yield from with_engine(engine, lambda engine: _updates(options, trainer, engine))


async def _updates(options: Options, trainer: TorchTrainer, engine: TransformersEngine) -> list[Figures]:
    found: list[Figures] = []
    prompts = random_prompts(options, 1, options.sizes.decode_prompt)
    for version in range(1, options.sizes.updates + 1):
        began = time.perf_counter()
        location = trainer.publish(str(Path(options.shared) / f"v{version}"))
        published = time.perf_counter()
        await engine.load_weights(location, version)
        synchronize(device_of(options))
        loaded = time.perf_counter()
        (columns,) = await complete(engine, prompts, TOKENS)
        if set(columns.versions_array().tolist()) != {version}:
            raise RuntimeError(f"the engine sampled with {columns.versions} after it had loaded version {version}")
        found.append(_figures(location, version, published - began, loaded - published))
    return found


def _figures(location: WeightsLocation, version: int, publish: float, load: float) -> Figures:
    return {
        "version": version,
        "bytes": sum(file.stat().st_size for file in Path(location.folder).iterdir()),
        "publish_seconds": publish,
        "load_seconds": load,
        "published_to_loaded_seconds": publish + load,
    }
