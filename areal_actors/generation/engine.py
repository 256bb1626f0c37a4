"""Protocol of generation engines, and the validation of requests that all of them share. Engines never use the bus."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from areal_actors.core.errors import RequestError
from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import ImageRef, SamplingParams, TokenColumns, Value, WeightsLocation
from areal_actors.generation.abilities import (
    ADVISORY_ABILITIES,
    CONSTRAINT_ABILITIES,
    IMAGES,
    SAMPLING_ABILITIES,
)
from areal_actors.generation.engines import missing_ability_error
from areal_actors.vision.files import ImageFolder

__all__ = [
    "EngineCounters",
    "EnginePlace",
    "GenerationEngine",
    "PromptImages",
    "RoutingEngine",
    "SleepingEngine",
    "TokenChunk",
    "refuse_unable",
    "validate_prompt",
]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")


DEFAULT_SAMPLING = SamplingParams()
NO_SLEEP = 'write generation.sleep = "off"'
"""Remedy where an engine cannot release its memory."""
REFUSABLE_FIELDS = sorted({ability.partition(":")[0] for ability in SAMPLING_ABILITIES - ADVISORY_ABILITIES})
"""Fields of `SamplingParams` that an engine without the ability refuses."""


class TokenChunk(Value):
    """The next tokens of a completion.

    There is at least one, except in the last chunk of a completion that already has some.
    """

    columns: TokenColumns
    top_ids: bytes = b""
    """u32 [tokens, sampling.top_logprobs]: the most likely tokens at each position, most likely first."""
    top_logprobs: bytes = b""
    """f32, same shape: their log-probabilities."""
    routes: bytes = b""
    """Experts of the next positions from `routes_from` on (see `RoutingEngine`), by the last chunk of all that were
    computed."""
    finish_reason: str = ""
    """`stop` or `length` in the last chunk, empty before."""


class AdapterRoom(NamedTuple):
    """Room of a server for adapters."""

    rank: int = 0
    """Largest rank of an adapter; 0 if it is given whole models."""
    targets: tuple[str, ...] = ()
    """Names of the layers that adapters change, such as `q_proj`; empty for the linear layers of the blocks."""
    policies: int = 1
    """Policies that use the server at once, each under an adapter of its own."""


class SharedServer(NamedTuple):
    """A server that several policies use at once."""

    address: Path
    """File with its address: written by the worker that owns it, read by those of the other policies."""
    room: AdapterRoom
    """For the adapters of all of them."""
    policy: str = ""
    """Policy that uses it beside its owner; empty for the owner."""

    @property
    def prefix(self) -> str:
        """Begin of the names of this policy's adapters at the server; those of the owner begin with `v`."""
        return f"policy-{self.policy}." if self.policy else ""


class EnginePlace(NamedTuple):
    """Worker and surroundings of an engine."""

    worker: str = "inference_worker-0"
    """Inference worker that it serves."""
    logs: Path = Path("logs")
    """Folder of logs."""
    seed: int = 0
    """Seed of its random numbers, another one for each worker."""
    temperature: float | None = 1.0
    """Temperature of the completions that are trained; None if each has its own."""
    memory_fraction: float = 1.0
    """Share of the memory of its CUDA devices, which are those in `CUDA_VISIBLE_DEVICES`; 1 without a limit."""
    watches_usage: bool = False
    """Asks a server every second how busy it is, for `EngineCounters.waiting` and `kv_cache_usage`."""
    adapter_rank: int = 0
    """Rank of the adapters that it is given as weights; 0 if it is given whole models."""
    adapter_targets: tuple[str, ...] = ()
    """Names of the layers that they change, such as `q_proj`; empty for the linear layers of the blocks."""
    routes: Literal["auto", "on", "off"] = "off"
    """Reports the experts of each position (`trainer.routing_replay`) if the model is a mixture of them; `on`: it must
    be able to."""
    shared: SharedServer | None = None
    """The server, if other policies use it too."""

    @property
    def adapter_room(self) -> AdapterRoom:
        """Room that a server needs for adapters."""
        return self.shared.room if self.shared else AdapterRoom(self.adapter_rank, self.adapter_targets)

    @property
    def is_guest(self) -> bool:
        """True if the worker of another run owns the server."""
        return self.shared is not None and bool(self.shared.policy)

    @property
    def number(self) -> int:
        """Number of the inference worker."""
        return int(self.worker.rpartition("-")[2])


class PromptImages(NamedTuple):
    """Images of a prompt, whose token ids have a placeholder for each of their tokens."""

    images: tuple[ImageRef, ...]
    """By position."""
    folder: ImageFolder
    """Their files."""

    def verify(self) -> None:
        """Check that the files are there and undamaged; raises ImageLost."""
        for image in self.images:
            self.folder.load(image.digest)


RESTING_SECONDS = 1.0
"""Time between two looks at an engine that has computed nothing since the last."""


class EngineCounters(Value):
    """Counters of an engine since the last call, and its current load."""

    tokens: int = 0
    """Sampled tokens."""
    prefilled_tokens: int = 0
    """Prompt tokens computed (shared ones once), and all tokens recomputed after weight updates."""
    cached_tokens: int = 0
    """Prompt tokens whose KV cache was reused: from an earlier completion, or from another one with the same prompt."""
    busy_seconds: float = 0.0
    """Seconds in which it worked, those of a step that is not yet finished included."""
    running: int = 0
    waiting: int = 0
    """Completions in progress without a slot or room in the KV cache."""
    kv_cache_usage: float = 0.0
    """Used share of the KV cache; 0 if the engine does not report it."""

    def is_idle(self) -> bool:
        """Returns True if the engine has done nothing since the last call, and has nothing to do."""
        return not (self.tokens or self.busy_seconds or self.running or self.waiting)

    def plus(self, *, tokens: int = 0, prefilled: int = 0, cached: int = 0, seconds: float = 0.0) -> EngineCounters:
        """Returns the counters with more sampled, prefilled and cached tokens, and busy seconds."""
        return EngineCounters(
            tokens=self.tokens + tokens,
            prefilled_tokens=self.prefilled_tokens + prefilled,
            cached_tokens=self.cached_tokens + cached,
            busy_seconds=self.busy_seconds + seconds,
        )


class BusyClock:
    """Runs while the engine works.

    It may be read in the middle of a step, from another thread, however long the step takes.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._since: float | None = None
        """Start of the time that is not yet in `_seconds`; None while the engine is idle."""

    def start(self) -> None:
        """Note that the engine works from now on; does nothing if it works already."""
        with self._lock:
            if self._since is None:
                self._since = self._clock()

    def stop(self) -> None:
        """Note that the engine is idle from now on; does nothing if it is idle already."""
        with self._lock:
            self._add()
            self._since = None

    def take_seconds(self) -> float:
        """Returns the busy seconds since the last call."""
        with self._lock:
            self._add()
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _add(self) -> None:
        if self._since is not None:
            now = self._clock()
            self._seconds += now - self._since
            self._since = now


class SleepingEngine(Protocol):
    """A generation engine that can release its memory, for `generation.sleep`."""

    async def release_memory(self) -> int:
        """Interrupt at a token boundary and release KV cache and weights until `load_weights`.

        All completions continue then.

        Returns:
            Bytes released on the engine's device; 0 if a server does not report them.

        Raises:
            EngineUnavailable: the server is gone.
            EngineError: the engine has ended, or its server refused.
        """
        ...


class Arrival(NamedTuple):
    """The last version that a server took."""

    channel: str
    """`folder`, `broadcast`, `tensors`, `delta` or `adapter`."""
    checksum: str
    """Reported by the server; that of the verified files if it loaded a folder."""
    sent_bytes: int = 0
    """Bytes that were sent."""
    whole_bytes: int = 0
    """Bytes of all tensors of the version."""
    failure: str = ""
    """Cause for which the recipe's channel was not used; empty if it was."""


class GenerationEngine(Protocol):
    """Samples completions.

    Weights change only at a token boundary, and every token carries the weight version that sampled it.
    """

    @property
    def abilities(self) -> frozenset[str]:
        """Those of `ABILITIES` that it supports; requests that need others are refused before."""
        ...

    @property
    def weight_version(self) -> int:
        """Weight version that samples the next token."""
        ...

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion, in one chunk or (`stream`) as it is sampled; closing the iterator aborts it.

        `prompt_ids` is a list; an `array("I")` for an engine whose attribute `takes_arrays` is true.

        The last `resumed_tokens` of the prompt's ids belong to the completion: another worker sampled them before it
        died. They are not yielded again and do not count towards max_tokens; penalties, stop strings, constraint and
        seed continue from them.

        An engine with the ability `images` has another argument, `images: PromptImages | None = None`, which only
        prompts with images are given.

        Raises:
            RequestError: a token id is out of range, or prompt and max_tokens exceed the context.
            EngineError: the engine failed.
        """
        ...

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        """Interrupt at a token boundary, load the weights, recompute the KV cache, and continue.

        Raises:
            EngineError: the folder is incomplete or the checksum differs; the old weights stay loaded.
        """
        ...

    def take_counters(self) -> EngineCounters:
        """Counts since the last call."""
        ...

    async def close(self) -> None:
        """Abort everything and free the model."""
        ...


class RoutingEngine(Protocol):
    """A `GenerationEngine` with the ability `routed_experts`."""

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
        routes_from: int | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion, and the experts of each position from `routes_from` to the one before the last token.

        A position has the experts of its first computation: that of the forward pass that sampled the token after it,
        or of the prompt. Weights that change in mid-completion change those of later positions only, although the KV
        cache is computed again. A prompt position whose KV cache was kept from an earlier completion has the experts
        that computed it.
        """
        ...


def refuse_unable(engine: GenerationEngine, sampling: SamplingParams, images: Sequence[ImageRef] = ()) -> None:
    """Refuse a request with images or sampling parameters that this engine does not support.

    Those of `ADVISORY_ABILITIES` are not refused. An engine is named by its attribute `title`, if it has one, else by
    its class.

    Raises:
        RequestError: names the field, the kind of the constraint, and the engine.
    """
    if images and IMAGES not in engine.abilities:
        raise missing_ability_error(IMAGES, getattr(engine, "title", type(engine).__name__))
    for field in REFUSABLE_FIELDS:
        if (stated := getattr(sampling, field)) == getattr(DEFAULT_SAMPLING, field):
            continue
        ability = CONSTRAINT_ABILITIES[stated.kind] if field == "constraint" else field
        if ability not in engine.abilities:
            raise missing_ability_error(ability, getattr(engine, "title", type(engine).__name__))


def validate_prompt(
    prompt_ids: Sequence[int], sampling: SamplingParams, resumed_tokens: int, vocabulary_size: int, context: int
) -> NDArray[np.int64]:
    """Returns the prompt's ids as an array.

    Raises:
        RequestError: a token id is out of range, prompt and max_tokens exceed the context, or `sampled` exceeds the
            prompt.
    """
    ids = np.array(prompt_ids, dtype=np.int64)
    if not len(ids):
        raise RequestError("prompt_ids is empty: send at least one token", field="prompt_ids")
    outside = ids[(ids < 0) | (ids >= vocabulary_size)]
    if len(outside):
        raise RequestError(
            f"prompt_ids holds {outside[0]}, but this model's ids are 0 to {vocabulary_size - 1}: use its own"
            " tokenizer",
            "prompt_ids",
        )
    if not 0 <= resumed_tokens < len(ids):
        raise RequestError(
            f"'resumed_tokens' is {resumed_tokens}, but the prompt has {len(ids)} ids, and the first cannot be sampled",
            "resumed_tokens",
        )
    if len(ids) + sampling.max_tokens > context:
        raise RequestError(
            f"{len(ids)} prompt tokens and max_tokens {sampling.max_tokens} exceed the context of {context}: "
            "lower max_tokens or raise generation.max_model_len",
            field="max_tokens",
        )
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocabulary_size:
            raise RequestError(
                f"'logit_bias' holds {token_id}, but this model's ids are 0 to {vocabulary_size - 1}: use its own"
                " tokenizer",
                "logit_bias",
            )
        if not math.isfinite(bias):
            raise RequestError(
                f"'logit_bias' is {bias} for {token_id}: write a finite number, such as -100", "logit_bias"
            )
    return ids
