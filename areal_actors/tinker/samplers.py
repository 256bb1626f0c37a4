"""Sampling from any weights of one base model: one engine, whose weights change when a request needs others.

Requests are served in order of arrival. Those of the same weights run together; one that needs others waits until the
running ones have ended, and later ones wait behind it, so that none waits forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.core.errors import RequestError
from areal_actors.core.model_config import context_of
from areal_actors.core.values import SamplingParams, WeightsLocation
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tinker.datums import SampledTokenSequence, SampleOutput, TopLogprobs, prompt_tokens
from areal_actors.tinker.prompt_scores import score_prompt
from areal_actors.tinker.requests import Sample, SamplingRequestParams
from areal_actors.weights.weight_files import location_of

SLOTS = 64
"""Completions decoded together."""
LONGEST_CONTEXT = 8192
"""Longest prompt plus completion, if the model has not less."""
MOST_SAMPLES = 1024
MOST_TOP = 20
"""Most likely tokens that a request may ask for at each position."""
UNSUPPORTED = {
    "prompt_alt_tokens_k": "this server draws no alternatives to the prompt",
    "record_stability_info": (
        "only the loss stable_reinforce needs it, whose formula is not published; train with another loss"
    ),
}


class ModelSampler:
    """Samples from the base model and from any weights of its shape. Construction blocks while the model loads.

    Raises:
        SetupError: the folder contains no model that the embedded engine runs.
    """

    def __init__(self, folder: str, device: Literal["cpu", "cuda", "auto"] = "auto", threads: int = 1) -> None:
        self.context = min(context_of(folder) or LONGEST_CONTEXT, LONGEST_CONTEXT)
        settings = GenerationSettings(device=device, max_num_seqs=SLOTS, max_model_len=self.context, threads=threads)
        self.base = location_of(folder)
        """Weights of the base model."""
        self._engine = TransformersEngine(folder, settings)
        self._loaded = self.base
        self._loads = 0
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._turn = asyncio.Lock()

    async def sample(self, weights: WeightsLocation, request_id: str, request: Sample) -> SampleOutput:
        """Sample `num_samples` completions; score the prompt if the request asks for it.

        Raises:
            RequestError: a field is out of range or not supported.
            EngineError: the weights cannot be read, or the engine failed.
        """
        check_sample(request)
        prompt = prompt_tokens(request.prompt)
        sampling, stops = sampling_params(request, len(prompt), self.context, self._engine.tokenizer.stop_ids)
        async with self._with_weights(weights):
            samples = (
                self._complete(f"{request_id}:{number}", prompt, _with_seed(sampling, number), stops)
                for number in range(request.num_samples)
            )
            sequences = await asyncio.gather(*samples)
            if not (request.prompt_logprobs or request.topk_prompt_logprobs or request.target_prompt_logprobs):
                return SampleOutput(list(sequences))
            scores = await asyncio.to_thread(score_prompt, self._engine.model, prompt, request)
        return SampleOutput(
            list(sequences), scores.logprobs if request.prompt_logprobs else None, scores.top, scores.targets
        )

    async def close(self) -> None:
        """End the engine."""
        await self._engine.close()

    @asynccontextmanager
    async def _with_weights(self, weights: WeightsLocation) -> AsyncIterator[None]:
        """Holds these weights loaded."""
        async with self._turn:
            if weights != self._loaded:
                await self._idle.wait()
                self._loads += 1
                await self._engine.load_weights(weights, self._loads)
                self._loaded = weights
            self._running += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _complete(
        self, request_id: str, prompt: NDArray[np.int64], sampling: SamplingParams, stops: frozenset[int]
    ) -> SampledTokenSequence:
        """One completion; it ends at a token of `stops`, too."""
        ids: list[NDArray[np.uint32]] = []
        logprobs: list[NDArray[np.float32]] = []
        top: list[tuple[bytes, bytes]] = []
        reason = ""
        chunks = self._engine.generate(request_id, prompt.tolist(), sampling, stream=bool(stops))
        async with aclosing(chunks):
            async for chunk in chunks:
                ids.append(chunk.columns.ids_array())
                logprobs.append(chunk.columns.logprobs_array())
                top.append((chunk.top_ids, chunk.top_logprobs))
                reason = "stop" if stops.intersection(ids[-1].tolist()) else chunk.finish_reason
                if reason:
                    break
        return SampledTokenSequence(
            np.concatenate(ids).astype(np.int32),
            np.concatenate(logprobs).astype(np.float32),
            reason,
            _top_of(top, sampling.top_logprobs) if sampling.top_logprobs else None,
        )


def check_sample(request: Sample) -> None:
    """Check the numbers of a request.

    Raises:
        RequestError: names the field.
    """
    for field, reason in UNSUPPORTED.items():
        if getattr(request, field):
            raise RequestError(f"{field} is not supported: {reason}", field)
    if not 1 <= request.num_samples <= MOST_SAMPLES:
        raise RequestError(f"num_samples is {request.num_samples}: write 1 to {MOST_SAMPLES}", "num_samples")
    for field in ("topk_prompt_logprobs", "topk_sample_logprobs"):
        if not 0 <= (value := getattr(request, field)) <= MOST_TOP:
            raise RequestError(f"{field} is {value}: write 0 to {MOST_TOP}", field)
    if request.prompt_logprobs_last_n is not None and not request.prompt_logprobs:
        raise RequestError("prompt_logprobs_last_n needs prompt_logprobs", "prompt_logprobs_last_n")


def sampling_params(
    request: Sample, prompt_length: int, context: int, own_stops: tuple[int, ...]
) -> tuple[SamplingParams, frozenset[int]]:
    """Parameters for the engine, and the stop tokens that it does not know: it ends completions at the model's own.

    Raises:
        RequestError: a parameter is out of range or not supported.
    """
    wanted = request.sampling_params
    room = context - prompt_length
    tokens = room if wanted.max_tokens is None else wanted.max_tokens
    if prompt_length == 0:
        raise RequestError("the prompt is empty: send at least one token", "prompt")
    if not 1 <= tokens <= room:
        raise RequestError(
            f"{prompt_length} prompt tokens and max_tokens {tokens}: max_tokens is at least 1, and both are at most"
            f" {context}",
            "max_tokens",
        )
    stops = _stops(wanted)
    texts = tuple(stop for stop in stops if isinstance(stop, str) and stop)
    ids = frozenset(stop for stop in stops if isinstance(stop, int)) - set(own_stops)
    for name, value, low, high in (("temperature", wanted.temperature, 0.0, 100.0), ("top_p", wanted.top_p, 0.0, 1.0)):
        if not low <= value <= high:
            raise RequestError(f"sampling_params.{name} is {value}: write {low:g} to {high:g}", name)
    return (
        SamplingParams(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=max(wanted.top_k, 0),
            max_tokens=tokens,
            stop=texts,
            seed=wanted.seed,
            top_logprobs=request.topk_sample_logprobs,
        ),
        ids,
    )


def _stops(wanted: SamplingRequestParams) -> list[str | int]:
    """Stop strings and stop tokens of a request."""
    if wanted.stop == []:
        raise RequestError("stop is []: this server cannot sample beyond the model's end of turn; leave it out", "stop")
    if wanted.stop is None:
        return []
    return [wanted.stop] if isinstance(wanted.stop, str) else wanted.stop


def _with_seed(sampling: SamplingParams, number: int) -> SamplingParams:
    """Parameters of one of several completions: its seed is the request's plus its number."""
    return sampling if sampling.seed is None else msgspec.structs.replace(sampling, seed=sampling.seed + number)


def _top_of(parts: list[tuple[bytes, bytes]], k: int) -> TopLogprobs:
    """Most likely tokens of a completion from those of its chunks."""
    ids = np.frombuffer(b"".join(ids for ids, _ in parts), dtype="<u4").reshape(-1, k)
    logprobs = np.frombuffer(b"".join(logprobs for _, logprobs in parts), dtype="<f4").reshape(-1, k)
    return TopLogprobs(ids.astype(np.int32), logprobs.astype(np.float32))
