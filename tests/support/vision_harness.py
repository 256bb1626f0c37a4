"""A gateway for a tiny model with vision, with an engine behind it, and a trainer of the same model."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from support.gateway_harness import GatewayHarness
from support.samples import batch, work
from support.tiny_vision import CONTEXT, data_url

from areal_actors.core.settings import GatewaySettings, ImageSettings
from areal_actors.core.values import SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.settings import GenerationSettings
from areal_actors.messages import WeightsLoaded, WeightsPublished
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.training.algorithms import Grpo
from areal_actors.training.settings import OptimizerSettings, TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer
from areal_actors.vision.files import ImageFolder
from areal_actors.vision.processor import vision_of
from areal_actors.weights.transfer import location_of

ENGINE = GenerationSettings(device="cpu", max_num_seqs=4, max_model_len=CONTEXT)


class VisionHarness(GatewayHarness):
    """`images` are settings of `[gateway.images]`."""

    def __init__(self, model, run_folder, *, tokens=10, **images):
        self.folder, self.images = model, ImageFolder.of_run(run_folder)
        # A random model would write the text that stands for an image, which no trained one does.
        bias = {vision_of(model).placeholder: -100.0}
        self.sampling = SamplingParams(max_tokens=tokens, logit_bias=bias)
        config, chat = GatewaySettings(images=ImageSettings(**images)), ChatTokenizer.load(model)
        super().__init__(config, chat=chat, max_model_len=CONTEXT, sampling=self.sampling, run_folder=run_folder)

    async def begin(self):
        await self.serve("session_manager-0", self.manager)
        await self.publish(WeightsPublished(weight_version=0, location=location_of(self.folder)))

    async def engine(self, name, engine):
        loaded = self.until(WeightsLoaded)
        await self.serve(name, InferenceWorker(lambda _: engine, name=name, concurrency=8, run_folder=self.images.path.parent))
        await loaded
        return engine

    def work(self, episode="0.0"):
        return work(episode, sampling=self.sampling)

    async def finished(self, opened, episode="0.0"):
        return await self.trajectory(opened, run=self.work(episode))


@asynccontextmanager
async def seeing(model, run_folder, make=None, **options):
    """A harness with an engine, the embedded one unless `make` makes another."""
    harness = VisionHarness(model, run_folder, **options)
    engine = make() if make is not None else TransformersEngine(model, ENGINE)
    try:
        await harness.begin()
        await harness.engine("inference_worker-0", engine)
        yield harness
    finally:
        await engine.close()
        await harness.end()


def asked(text: str, *images: bytes) -> dict[str, Any]:
    """A user's message of OpenAI's chat completions, the images first."""
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def trainer_of(model, lr=1e-3, **settings):
    return TorchTrainer(
        model, Grpo(), TrainerSettings(device="cpu", optimizer=OptimizerSettings(lr=lr), **settings), total_steps=10, max_staleness=2
    )


def rows_of(trajectory, folder, step=0):
    """The training sequences of a trajectory, and the refused ones."""
    found = batch_sequences(batch(step, 0), [(0, trajectory)], Credit(), SequenceLimits(), folder)
    return list(found.sequences), found.refused


def worse(row):
    """The row as another episode of its group that got no reward: only its first call is trained."""
    (call, *_) = row.calls
    trained = row.loss_mask & (np.arange(len(row.token_ids)) < call.end)
    return msgspec.structs.replace(row, reward=0.0, loss_mask=trained, calls=(msgspec.structs.replace(call, reward=0.0),), episode="other")
