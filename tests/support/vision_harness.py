"""A gateway for a tiny model with vision, with an engine behind it, and a trainer of the same model."""

from __future__ import annotations

import io
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import torch
from PIL import Image
from support.gateway_harness import GatewayHarness
from support.samples import batch, work
from support.tiny_vision import CONTEXT, PREPROCESSING, TOP_K, data_url, picture
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from areal_actors.contracts.engine import joined
from areal_actors.core.values import ImageRef, SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.gateway.settings import GatewaySettings, ImageSettings
from areal_actors.generation.engine import PromptImages
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
from areal_actors.weights.weight_files import location_of

ENGINE = GenerationSettings(device="cpu", max_num_seqs=4, max_model_len=CONTEXT)
EXACT = 1e-4


class VisionHarness(GatewayHarness):
    """`images` are settings of `[gateway.images]`."""

    def __init__(self, model, run_folder, *, tokens=10, **images):
        self.folder, self.images = model, ImageFolder.of_run(run_folder)
        self.sampling = SamplingParams(max_tokens=tokens, top_k=TOP_K)
        config, chat = GatewaySettings(images=ImageSettings(**images)), ChatTokenizer.load(model)
        super().__init__(config, chat=chat, max_model_len=CONTEXT, sampling=self.sampling, run_folder=run_folder)

    async def begin(self):
        await self.serve("session_manager-0", self.manager)
        await self.publish(WeightsPublished(weight_version=0, location=location_of(self.folder)))

    async def engine(self, name, engine):
        loaded = self.until(WeightsLoaded)
        await self.serve(
            name, InferenceWorker(lambda _: engine, name=name, concurrency=8, run_folder=self.images.path.parent)
        )
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
        model,
        Grpo(),
        TrainerSettings(device="cpu", optimizer=OptimizerSettings(lr=lr), **settings),
        total_steps=10,
        max_staleness=2,
    )


def rows_of(trajectory, folder, step=0):
    """The training sequences of a trajectory, and the refused ones."""
    found = batch_sequences(batch(step, 0), [(0, trajectory)], Credit(), SequenceLimits(), folder)
    return list(found.sequences), found.refused


def worse(row):
    """The row as another episode of its group that got no reward: only its first call is trained."""
    call, *_ = row.calls
    trained = row.loss_mask & (np.arange(len(row.token_ids)) < call.end)
    return msgspec.structs.replace(
        row, reward=0.0, loss_mask=trained, calls=(msgspec.structs.replace(call, reward=0.0),), episode="other"
    )


def plain_model(folder):
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def processor_of_transformers():
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": PREPROCESSING["min_pixels"], "longest_edge": PREPROCESSING["max_pixels"]}
    )


@torch.no_grad()
def plain_logprobs(plain, token_ids, images):
    """Log-probability of every token but the first: the model's own forward, with transformers' processor and
    positions."""
    ids = torch.tensor([token_ids])
    inputs = processor_of_transformers()(
        images=[Image.open(io.BytesIO(image)).convert("RGB") for image in images], return_tensors="pt"
    )
    kinds = (ids == plain.config.image_token_id).int()
    logits = plain(input_ids=ids, mm_token_type_ids=kinds, **inputs).logits[0, :-1]
    plain.model.rope_deltas = None
    return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()


class PictureCompletions:
    """Completions of an engine about one of two images, whose prompts have equal tokens; `folders` has a model for each
    version."""

    def __init__(self, engine, folders, place):
        self.engine, self.folders, self.folder = engine, folders, ImageFolder(place)
        self.plains = [plain_model(folder) for folder in folders]
        processor = vision_of(folders[0])
        self.pictures = [picture(seed) for seed in (1, 2)]
        seen = [processor.as_seen(content, 16) for content in self.pictures]
        vision_start, vision_end = (
            ChatTokenizer.load(folders[0]).encode(mark)[0] for mark in ("<|vision_start|>", "<|vision_end|>")
        )
        self.text = [*range(20, 60), vision_start]
        tokens = processor.tokens(seen[0][1])
        self.images = [
            ImageRef(digest=self.folder.store(png), start=len(self.text), grid=grid, tokens=tokens)
            for png, grid in seen
        ]
        self.prompt = [*self.text, *[processor.placeholder] * tokens, vision_end, 61]

    async def sampled(self, index, sampling, resumed=(), version=None):
        """A completion about an image; with `version`, the weights of this version are loaded as soon as it runs."""
        shown = PromptImages((self.images[index],), self.folder)
        chunks = []
        async for chunk in self.engine.generate(
            "r", [*self.prompt, *resumed], sampling, stream=True, resumed_tokens=len(resumed), images=shown
        ):
            if not chunks and version is not None:
                await self.engine.load_weights(location_of(self.folders[version % len(self.folders)]), version)
            chunks.append(chunk)
        return joined(chunks)

    def assert_exact(self, columns, index):
        """Each token's log-probability is that of a plain forward with the weights of its version."""
        ids, versions = columns.ids_array().tolist(), columns.versions_array()
        for version in set(versions.tolist()):
            plain = self.plains[version % len(self.plains)]
            own = plain_logprobs(plain, [*self.prompt, *ids], [self.pictures[index]])[len(self.prompt) - 1 :]
            assert np.abs(own - columns.logprobs_array())[versions == version].max() < EXACT
