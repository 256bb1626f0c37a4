"""Decode thread: at every token boundary it receives commands, then samples one token per slot in use.

Invariants: the KV cache always belongs to the current weights, so every log-probability equals that of a plain forward
over the full sequence under the weight version of the token. The cache of a slot holds all its tokens but the last,
which the next step feeds. The slot of an ended completion keeps them until another request needs it (`prefix_cache`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.routes import RouteShape
from areal_actors.embedded.batch_invariance import pad_rows
from areal_actors.embedded.decoders import SlotDecoder
from areal_actors.embedded.prefill import prefill
from areal_actors.embedded.prefix_cache import PrefixCache
from areal_actors.embedded.released_weights import ReleasedWeights
from areal_actors.embedded.sampling import Sampler
from areal_actors.embedded.slots import DecodeRequest, DecodeSlots
from areal_actors.generation.engine import BusyClock, EngineCounters, TokenChunk


class Abort(NamedTuple):
    """Drop this request: its client has left."""

    request: DecodeRequest


class Swap(NamedTuple):
    """Verified weights to load at the next token boundary."""

    tensors: Mapping[str, torch.Tensor]
    weight_version: int
    done: asyncio.Future[None]


class Release(NamedTuple):
    """Free KV cache and weights at the next token boundary, until a `Swap`; completions wait meanwhile."""

    done: asyncio.Future[int]
    """Number of bytes that were freed on the model's device."""


class Close(NamedTuple):
    """End the thread."""


class StepPlan(NamedTuple):
    """State derived from the set of running requests; created again when the set changes."""

    sampler: Sampler
    watched: frozenset[int]
    """Rows that stream or have stop strings: a chunk is due after each token."""


class DecodeLoop:
    """Owns slots, decoder and model; other threads only send commands."""

    def __init__(
        self,
        model: Any,
        decoder: SlotDecoder,
        slots: DecodeSlots,
        weight_version: int,
        threads: int,
        routes: RouteShape | None = None,
    ) -> None:
        """`routes`: the mixtures of experts that requests may ask about."""
        self._routes = routes
        self.weight_version = weight_version
        self._model = model
        self._decoder = decoder
        self._slots = slots
        self._prefixes = PrefixCache(slots, decoder.kv_cache)
        self._threads = threads
        self._invariant = decoder.kv_cache.batch_invariant
        self._waiting: deque[DecodeRequest] = deque()
        self._plan: StepPlan | None = None
        self._swapping: Swap | None = None
        self._asleep: ReleasedWeights | None = None
        """Set from a `Release` to the next `Swap`."""
        self._outgoing: list[tuple[DecodeRequest, TokenChunk | EngineError | RequestError]] = []
        self._inbox: queue.SimpleQueue[DecodeRequest | Abort | Swap | Release | Close] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: EngineError | None = None
        self._counters = EngineCounters()
        self._busy = BusyClock()
        self.thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def send(self, command: DecodeRequest | Abort | Swap | Release | Close) -> None:
        """Queue a command for the next token boundary.

        Raises:
            EngineError: the thread has ended.
        """
        with self._lock:
            if self._ended is not None:
                raise EngineError(str(self._ended))
            self._inbox.put(command)

    def take_counters(self) -> EngineCounters:
        """Counts since the last call."""
        with self._lock:
            counters, self._counters = self._counters, EngineCounters()
        return msgspec.structs.replace(
            counters, busy_seconds=self._busy.take_seconds(), running=len(self._slots), waiting=len(self._waiting)
        )

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._receive_commands():
                    self._admit()
                    if len(self._slots):
                        self._step()
                    self._deliver_chunks()
            ended = EngineError("the generation engine is closed")
        except Exception as error:  # noqa: BLE001 - any failure of this thread must reach all waiting requests
            ended = EngineError(f"the generation engine failed: {type(error).__name__}: {error}")
        self._end(ended)

    def _receive_commands(self) -> bool:
        """Process all queued commands, blocking if there is nothing to decode, or no memory for it.

        False after `Close`.
        """
        while True:
            idle = self._asleep is not None or not (len(self._slots) or self._waiting)
            if idle:
                self._busy.stop()
            try:
                command = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            self._busy.start()
            match command:
                case DecodeRequest():
                    self._waiting.append(command)
                case Abort(request):
                    self._abort(request)
                case Swap():
                    self._swap(command)
                case Release(done):
                    call_in_loop(done.get_loop(), resolve_future, done, self._release())
                case Close():
                    return False

    def _admit(self) -> None:
        """Assign free slots in order of arrival.

        Computes each prompt, without its cached prefix, once for all requests that share it.
        """
        computed, copied = self._place_waiting()
        if self._plan is None:
            self._prefixes.compact()
        if not computed and not copied:
            return
        rows = [request.row for request in computed]
        cached = int(self._slots.cached[rows].sum())
        prefilled = prefill(self._decoder, self._slots, rows, equal=self._invariant)
        for request, holder in copied:
            length = len(request.prompt_ids) - 1
            self._decoder.kv_cache.copy(holder.row, request.row, length)
            self._slots.cached[request.row] = length
            cached += length
        self._count(prefilled_tokens=prefilled, cached_tokens=cached)

    def _place_waiting(self) -> tuple[list[DecodeRequest], list[tuple[DecodeRequest, DecodeRequest]]]:
        """Requests that got a slot: those to prefill, and those to copy, each with the one that has the same prompt."""
        arrived = list(islice(self._waiting, self._slots.capacity - len(self._slots)))
        if not arrived:
            return [], []
        holders = {request.prompt_key: request for request in self._slots.running.values()}
        computed, copied = [], []
        for request in arrived:
            holder = holders.setdefault(request.prompt_key, request)
            if holder is request:
                computed.append(request)
            else:
                copied.append((request, holder))
        self._prefixes.place(computed)
        for request, _ in copied:
            self._prefixes.place_empty(request)
        for request in arrived:
            self._waiting.popleft()
            request.end_wait()
        self._plan = None
        return computed, copied

    def _step(self) -> None:
        """Sample one token for every slot in use."""
        if self._plan is None:
            running = [self._slots.running[row] for row in range(len(self._slots))]
            processors = [request.processor for request in running]
            sampler = Sampler([request.sampling for request in running], self._model.device, processors)
            watched = frozenset(
                row
                for row, completion in enumerate(running)
                if completion.stream or completion.announces or completion.stops is not None
            )
            self._plan = StepPlan(sampler, watched)
        last, positions, numbers = self._slots.step_inputs()
        if self._invariant:
            logits = self._decoder.decode(pad_rows(last), pad_rows(positions))[: len(last)]
        else:
            logits = self._decoder.decode(last, positions)
        draws = self._plan.sampler.sample(logits, numbers)
        logprobs = np.delete(draws.logprobs, list(draws.failed)) if draws.failed else draws.logprobs
        if not np.isfinite(logprobs).all():
            raise EngineError(
                f"the model returns probabilities that are not finite under weight version {self.weight_version}"
            )
        ended = set(self._slots.append(draws.token_ids, draws.logprobs, self.weight_version).tolist())
        if draws.top is not None:
            self._slots.set_top_logprobs(draws.top)
        self._count(tokens=len(draws.token_ids))
        finished = list(draws.failed)
        self._outgoing.extend((self._slots.running[row], error) for row, error in draws.failed.items())
        for row in sorted((ended | self._plan.watched).difference(finished)):
            chunk = self._slots.chunk(row, ended=row in ended)
            if chunk is not None:
                chunk = self._with_routes(self._slots.running[row], chunk)
                self._outgoing.append((self._slots.running[row], chunk))
                if chunk.finish_reason:
                    finished.append(row)
        self._free(finished)

    def _collect_routes(self, request: DecodeRequest) -> None:
        """Collect the experts of the positions computed since the last call, before others replace them."""
        computed = int(self._slots.cached[request.row])
        if request.routed is not None and request.routed < computed:
            request.routes.append(self._decoder.kv_cache.routes(request.row, request.routed, computed))
            request.routed = computed

    def _with_routes(self, request: DecodeRequest, chunk: TokenChunk) -> TokenChunk:
        """Returns the chunk with the experts that its request asks about."""
        self._collect_routes(request)
        if self._routes is None or not request.routes:
            return chunk
        packed = b"".join(self._routes.pack(chosen) for chosen in request.routes)
        request.routes.clear()
        return msgspec.structs.replace(chunk, routes=packed)

    def _free(self, rows: Sequence[int]) -> None:
        if rows:
            self._prefixes.retain(rows)
            self._plan = None

    def _abort(self, request: DecodeRequest) -> None:
        if request.row >= 0:
            self._free([request.row])
        elif request in self._waiting:
            self._waiting.remove(request)

    def _release(self) -> int:
        """Free KV cache and weights; returns the bytes that the device has more.

        Weights on a CPU stay: there is no other memory.
        """
        if self._asleep is not None:
            return 0
        device = self._model.device
        self._prefixes.drop()
        freed = self._decoder.kv_cache.release()
        self._asleep = ReleasedWeights(self._model.parameters() if device.type != "cpu" else ())
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return freed + self._asleep.bytes

    def _swap(self, swap: Swap) -> None:
        """Load new weights, recompute the KV cache of all running requests, and drop that of ended ones."""
        self._swapping = swap
        if self._asleep is not None:
            self._asleep.restore()
            self._asleep = None
        for name, tensor in self._model.state_dict().items():
            if name in swap.tensors:
                tensor.copy_(swap.tensors[name])
        self._decoder.refresh()
        self.weight_version = swap.weight_version
        for request in self._slots.running.values():
            self._collect_routes(request)
        self._prefixes.drop()
        prefilled = self._compute_again(list(self._slots.running.values()))
        self._swapping = None
        self._count(prefilled_tokens=prefilled)
        call_in_loop(swap.done.get_loop(), resolve_future, swap.done, None)

    def _compute_again(self, requests: Sequence[DecodeRequest]) -> int:
        """Compute the KV cache of running requests, the prompt of a group once; returns the number of tokens computed.

        The moment at which weights arrive is random anyway, so batches need not be of equal length, and what follows a
        copied prompt is computed as one piece.
        """
        holders = {request.prompt_key: request for request in requests}
        if self._invariant or len(holders) == len(requests):
            return prefill(self._decoder, self._slots, [request.row for request in requests], equal=False)
        computed = prefill(self._decoder, self._slots, [holder.row for holder in holders.values()], equal=False)
        siblings = [request for request in requests if holders[request.prompt_key] is not request]
        for request in siblings:
            length = len(request.prompt_ids) - 1
            self._decoder.kv_cache.copy(holders[request.prompt_key].row, request.row, length)
            self._slots.cached[request.row] = length
        return computed + prefill(self._decoder, self._slots, [request.row for request in siblings], equal=False)

    def _deliver_chunks(self) -> None:
        """Deliver the chunks of this step with one call per event loop."""
        outgoing, self._outgoing = self._outgoing, []
        by_loop: dict[
            asyncio.AbstractEventLoop, list[tuple[DecodeRequest, TokenChunk | EngineError | RequestError]]
        ] = {}
        for request, chunk in outgoing:
            by_loop.setdefault(request.loop, []).append((request, chunk))
        for loop, chunks in by_loop.items():
            call_in_loop(loop, put_chunks, chunks)

    def _end(self, error: EngineError) -> None:
        """Fail all waiting and all later requests."""
        self._busy.stop()
        with self._lock:
            self._ended = error
        waiting = [*self._slots.running.values(), *self._waiting]
        awaited: list[asyncio.Future[Any]] = [self._swapping.done] if self._swapping is not None else []
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, DecodeRequest):
                waiting.append(command)
            elif isinstance(command, Swap | Release):
                awaited.append(command.done)
        for done in awaited:
            call_in_loop(done.get_loop(), resolve_future, done, error)
        self._outgoing.extend((request, error) for request in waiting)
        self._deliver_chunks()

    def _count(self, *, tokens: int = 0, prefilled_tokens: int = 0, cached_tokens: int = 0) -> None:
        with self._lock:
            self._counters = self._counters.plus(tokens=tokens, prefilled=prefilled_tokens, cached=cached_tokens)


def put_chunks(chunks: Sequence[tuple[DecodeRequest, TokenChunk | EngineError | RequestError]]) -> None:
    """Put chunks into the queues of their requests; runs in the event loop."""
    for request, chunk in chunks:
        request.chunks.put_nowait(chunk)


def resolve_future(done: asyncio.Future[Any], result: object) -> None:
    """Resolve a future with a result or an error, unless it was cancelled; runs in the event loop."""
    if done.done():
        return
    if isinstance(result, EngineError):
        done.set_exception(result)
    else:
        done.set_result(result)


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """Schedule a callback in an event loop; does nothing if the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *arguments)
