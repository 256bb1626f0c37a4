"""The embedded generation engine: continuous batching over the slots of one Hugging Face model in this process.

This module validates requests and yields chunks in the event loop; `decode_loop` decodes in its own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress

import torch
from transformers import AutoModelForImageTextToText

from areal_actors.core.errors import EngineError, RequestError, SetupError
from areal_actors.core.model_config import has_vision, route_shape_of
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import SamplingParams, TokenColumns, WeightsLocation
from areal_actors.embedded.constraints import Grammars
from areal_actors.embedded.decode_loop import Abort, Close, DecodeLoop, Release, Swap
from areal_actors.embedded.decoders import ModelDecoder, load_model
from areal_actors.embedded.engine_description import DESCRIPTION
from areal_actors.embedded.logits_processor import LogitsProcessor
from areal_actors.embedded.slots import DecodeRequest, DecodeSlots
from areal_actors.embedded.start_check import make_decoder, probe_ids
from areal_actors.embedded.vision_decoder import VisionDecoder
from areal_actors.generation.engine import EngineCounters, EnginePlace, PromptImages, TokenChunk, validate_prompt
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.weights.adapters import AdapterMerger
from areal_actors.weights.folders import holds_adapter
from areal_actors.weights.model_class import language_model_class
from areal_actors.weights.source_tensors import model_tensors, note_source
from areal_actors.weights.transfer import check_fit, read_weights


class TransformersEngine:
    """See `GenerationEngine` for the contract. Construction blocks while the model loads.

    Raises:
        SetupError: the model, its tokenizer or the device is missing, or the model cannot be decoded from slots.
    """

    abilities = DESCRIPTION.abilities

    def __init__(
        self,
        model_folder: str,
        settings: GenerationSettings,
        *,
        weight_version: int = 0,
        place: EnginePlace | None = None,
    ) -> None:
        reports = place is not None and place.routes != "off"
        self.routes: RouteShape | None = route_shape_of(model_folder) if reports else None
        """The mixtures of experts that requests may ask about; None if the model has none, or if the run does not
        ask."""
        self.tokenizer = ChatTokenizer.load(model_folder)
        self.context = settings.max_model_len
        if not has_vision(model_folder) and language_model_class(model_folder) is AutoModelForImageTextToText:
            raise SetupError(
                f"`{model_folder}`: the embedded engine runs no model with a vision tower of this type: use an"
                " inference server"
            )
        model = load_model(model_folder, settings)
        note_source(model, model_folder)
        self.vocabulary_size = int(model.config.get_text_config().vocab_size)
        invariant, unfused = (
            settings.batch_invariant == "on",
            VisionDecoder if has_vision(model_folder) else ModelDecoder,
        )
        decoder, self.warning = make_decoder(
            model,
            settings.max_num_seqs,
            settings.max_model_len,
            probe_ids(self.tokenizer, self.vocabulary_size),
            start_check=settings.start_check,
            batch_invariant=invariant,
            routes=self.routes,
            unfused=unfused,
        )
        """The decoder, and a finding of its check; empty if there is none."""
        slots = DecodeSlots(settings.max_num_seqs, settings.max_model_len, self.vocabulary_size, self.tokenizer)
        self._vision = decoder if isinstance(decoder, VisionDecoder) else None
        if self._vision is not None:
            self._vision.tokens = slots.tokens
        self.model = model
        """The model itself. Its weights change in `load_weights` only: between two calls others may run its plain
        forward, too."""
        self._weights = model.state_dict()
        self._merger = AdapterMerger(model_folder, self._weights)
        self._device: torch.device = model.device
        self._grammars = Grammars(self.tokenizer, self.vocabulary_size)
        self._loading = asyncio.Lock()
        self._loop = DecodeLoop(model, decoder, slots, weight_version, settings.threads, self.routes)
        self._loop.thread.start()

    @property
    def weight_version(self) -> int:
        """Weight version of the next token."""
        return self._loop.weight_version

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
        routes_from: int | None = None,
        images: PromptImages | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion in one chunk at its end, or token by token when `stream` is set.

        See `RoutingEngine`, too.

        Raises:
            RequestError: a token id is out of range, prompt and max_tokens exceed the context, the model has no vision,
                or the constraint is invalid or cannot be satisfied.
            EngineError: the engine failed or was closed; ImageLost: the file of an image is missing or damaged.
        """
        ids = validate_prompt(prompt_ids, sampling, resumed_tokens, self.vocabulary_size, self.context)
        if images is not None:
            if self._vision is None:
                raise RequestError(
                    "'images': this model reads text only; leave them out, or set `model` to one with vision", "images"
                )
            ids = self._vision.with_images(ids, images)
        processor = await self._logits_processor(sampling, prompt_ids[len(prompt_ids) - resumed_tokens :])
        completion = DecodeRequest(
            request_id,
            ids,
            sampling,
            self.tokenizer,
            stream=stream,
            resumed_tokens=resumed_tokens,
            processor=processor,
            routes_from=None if self.routes is None else routes_from,
        )
        if completion.finished:
            yield TokenChunk(columns=TokenColumns(), finish_reason="stop")
            return
        self._loop.send(completion)
        ended = False
        try:
            while not ended:
                chunk = await completion.chunks.get()
                ended = not isinstance(chunk, TokenChunk) or bool(chunk.finish_reason)
                if isinstance(chunk, RequestError):
                    raise RequestError(str(chunk), chunk.field)
                if isinstance(chunk, EngineError):
                    raise EngineError(f"{request_id}: {chunk}") from chunk
                yield chunk
        finally:
            if not ended:
                with suppress(EngineError):
                    self._loop.send(Abort(completion))

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        """Read and verify weights while decoding continues, then swap at a token boundary and recompute the KV cache.

        An adapter is merged with the base weights while decoding continues, too.

        Raises:
            EngineError: the folder is incomplete, the checksum differs, or the tensors do not fit the model; the old
                weights stay loaded.
        """
        async with self._loading:
            tensors: Mapping[str, torch.Tensor]
            if holds_adapter(location.folder):
                tensors = await asyncio.to_thread(self._merger.merge, location)
            else:
                tensors = await asyncio.to_thread(self._read, location)
                check_fit(self._weights, tensors, location.folder)
                self._merger.discard_base()
            swap = Swap(tensors, weight_version, asyncio.get_running_loop().create_future())
            self._loop.send(swap)
            await swap.done

    async def release_memory(self) -> int:
        """See `SleepingEngine`.

        On a CPU the KV cache is freed; on other devices also the weights, which move to the host's memory.
        """
        async with self._loading:
            release = Release(asyncio.get_running_loop().create_future())
            self._loop.send(release)
            return await release.done

    def _read(self, location: WeightsLocation) -> Mapping[str, torch.Tensor]:
        return model_tensors(self.model, read_weights(location))

    def take_counters(self) -> EngineCounters:
        """Counts since the last call, for telemetry."""
        return self._loop.take_counters()

    async def close(self) -> None:
        """Abort all requests and end the decode thread; may be called twice."""
        with suppress(EngineError):
            self._loop.send(Close())
        await asyncio.to_thread(self._loop.thread.join)

    async def _logits_processor(self, sampling: SamplingParams, resumed: Sequence[int]) -> LogitsProcessor | None:
        matcher = None
        if sampling.constraint is not None:
            matcher = await asyncio.to_thread(self._grammars.matcher, sampling.constraint, resumed)
        return LogitsProcessor.of(sampling, matcher, self.vocabulary_size, self._device, resumed)
