"""The thread that decodes: at every token boundary it takes in what has arrived, then draws one token per slot in use.

Invariants: a completion's keys and values are always those of the weights in force, so every log-probability is what a
plain forward over the full sequence gives under the version that the token is stamped with. A completion in a slot
holds the keys and values of all its tokens but the last, which the next step feeds.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from areal_actors.engines.base import EngineCounters, TokenChunk
from areal_actors.engines.batch_invariance import batches_of_one_length, rows_computed, with_all_rows
from areal_actors.engines.decoders import Decoder
from areal_actors.engines.sampling import Sampler
from areal_actors.engines.slots import Completion, Slots, padded_batches
from areal_actors.errors import EngineError, RequestError

PREFILL_TOKENS = 4096
"""Padded tokens per forward over prompts: what fits the caches of a CPU, and a bound on memory."""


Batches = Callable[[Sequence[int], int], list[list[int]]]
"""From lengths of sequences and a budget of tokens to the indices of those that are computed together."""


class Abort(NamedTuple):
    """Nobody waits for this completion any more."""

    completion: Completion


class Swap(NamedTuple):
    """Verified weights to put in force at the next token boundary."""

    tensors: Mapping[str, torch.Tensor]
    weight_version: int
    done: asyncio.Future[None]


class Close(NamedTuple):
    """End the thread."""


class Plan(NamedTuple):
    """What follows from which completions are running; made anew when they change."""

    sampler: Sampler
    watched: frozenset[int]
    """Rows whose text is followed token by token."""


class DecodeLoop:
    """Owns slots, decoder and model from its thread; everybody else only sends commands."""

    def __init__(self, model: Any, decoder: Decoder, slots: Slots, weight_version: int, threads: int, clock: Callable[[], float]) -> None:
        self.weight_version = weight_version
        self._model = model
        self._decoder = decoder
        self._slots = slots
        self._threads = threads
        self._invariant = decoder.key_values.batch_invariant
        self._clock = clock
        self._waiting: deque[Completion] = deque()
        self._plan: Plan | None = None
        self._swapping: Swap | None = None
        self._outgoing: list[tuple[Completion, TokenChunk | EngineError | RequestError]] = []
        self._inbox: queue.SimpleQueue[Completion | Abort | Swap | Close] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: EngineError | None = None
        self._counters = EngineCounters()
        self.thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def send(self, command: Completion | Abort | Swap | Close) -> None:
        """Have a command acted upon at the next token boundary.

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
        return msgspec.structs.replace(counters, running=len(self._slots), waiting=len(self._waiting))

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._take_in():
                    began = self._clock()
                    self._admit()
                    if len(self._slots):
                        self._step()
                    self._hand_over()
                    self._count(busy_seconds=self._clock() - began)
            ended = EngineError("the generation engine is closed")
        except Exception as error:  # noqa: BLE001 - whatever ends this thread must reach everybody who waits for it
            ended = EngineError(f"the generation engine failed: {type(error).__name__}: {error}")
        self._end(ended)

    def _take_in(self) -> bool:
        """Act on all that has arrived, waiting for something when there is nothing to decode; False at the end."""
        while True:
            try:
                command = self._inbox.get(block=not (len(self._slots) or self._waiting))
            except queue.Empty:
                return True
            match command:
                case Completion():
                    self._waiting.append(command)
                case Abort(completion):
                    self._abort(completion)
                case Swap():
                    self._swap(command)
                case Close():
                    return False

    def _admit(self) -> None:
        """Give free slots to those who wait longest, computing each prompt once for all its siblings."""
        if not self._waiting or len(self._slots) == self._slots.capacity:
            return
        holders = {completion.prompt_key: row for row, completion in enumerate(self._slots.running)}
        computed, copied = [], []
        while self._waiting and len(self._slots) < self._slots.capacity:
            completion = self._waiting.popleft()
            row = self._slots.add(completion)
            holder = holders.setdefault(completion.prompt_key, row)
            if holder == row:
                computed.append(row)
            else:
                copied.append((holder, row, len(completion.prompt_ids) - 1))
        self._prefill(computed, batches_of_one_length if self._invariant else padded_batches)
        for holder, row, length in copied:
            self._decoder.key_values.copy(holder, row, length)
        self._plan = None

    def _prefill(self, rows: Sequence[int], batches: Batches) -> None:
        """Compute the keys and values of all tokens but the last of these rows, in such batches."""
        rows = [row for row in rows if self._slots.lengths[row] > 1]
        lengths = [int(self._slots.lengths[row]) - 1 for row in rows]
        for batch in batches(lengths, PREFILL_TOKENS):
            members = [rows[index] for index in batch]
            longest = max(lengths[index] for index in batch)
            if self._invariant:
                longest = rows_computed(longest)
            # Beyond a row's own tokens lies what an earlier completion left: computed for nothing, and never looked at.
            self._decoder.prefill(members, self._slots.tokens[members, :longest])
        self._count(prefilled_tokens=sum(lengths))

    def _step(self) -> None:
        """Draw one token for every slot in use."""
        if self._plan is None:
            running = self._slots.running
            leanings = [completion.leaning for completion in running]
            sampler = Sampler([completion.sampling for completion in running], self._model.device, leanings)
            watched = frozenset(row for row, one in enumerate(running) if one.stream or one.stops is not None)
            self._plan = Plan(sampler, watched)
        last, positions, numbers = self._slots.step_inputs()
        if self._invariant:
            logits = self._decoder.decode(with_all_rows(last), with_all_rows(positions))[: len(last)]
        else:
            logits = self._decoder.decode(last, positions)
        draws = self._plan.sampler.sample(logits, numbers)
        sound = np.delete(draws.logprobs, list(draws.failed)) if draws.failed else draws.logprobs
        if not np.isfinite(sound).all():
            raise EngineError(f"the model gives probabilities that are not finite under weight version {self.weight_version}")
        ended = set(self._slots.append(draws.token_ids, draws.logprobs, self.weight_version).tolist())
        if draws.top is not None:
            self._slots.keep_top(draws.top)
        self._count(tokens=len(draws.token_ids))
        finished = list(draws.failed)
        self._outgoing.extend((self._slots.running[row], error) for row, error in draws.failed.items())
        for row in sorted((ended | self._plan.watched).difference(finished)):
            chunk = self._slots.chunk(row, ended=row in ended)
            if chunk is not None:
                self._outgoing.append((self._slots.running[row], chunk))
                if chunk.finish_reason:
                    finished.append(row)
        self._free(finished)

    def _free(self, rows: Sequence[int]) -> None:
        for source, target, length in self._slots.remove(rows):
            self._decoder.key_values.copy(source, target, length)
        if rows:
            self._plan = None

    def _abort(self, completion: Completion) -> None:
        if completion in self._slots.running:
            self._free([self._slots.running.index(completion)])
        elif completion in self._waiting:
            self._waiting.remove(completion)

    def _swap(self, swap: Swap) -> None:
        """Put new weights in force, and recompute all that the running completions hold of the old ones."""
        began = self._clock()
        self._swapping = swap
        for name, tensor in self._model.state_dict().items():
            if name in swap.tensors:
                tensor.copy_(swap.tensors[name])
        self._decoder.refresh()
        self.weight_version = swap.weight_version
        # When weights arrive in the midst of completions is chance in any case, so speed decides.
        self._prefill(range(len(self._slots)), padded_batches)
        self._swapping = None
        self._count(busy_seconds=self._clock() - began)
        call_in(swap.done.get_loop(), settle, swap.done, None)

    def _hand_over(self) -> None:
        """Wake each event loop once with all that its completions got in this step."""
        outgoing, self._outgoing = self._outgoing, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Completion, TokenChunk | EngineError | RequestError]]] = {}
        for completion, chunk in outgoing:
            by_loop.setdefault(completion.loop, []).append((completion, chunk))
        for loop, chunks in by_loop.items():
            call_in(loop, hand_out, chunks)

    def _end(self, error: EngineError) -> None:
        """Tell everybody who waits, and everybody who will ask, that it is over."""
        with self._lock:
            self._ended = error
        waiting = [*self._slots.running, *self._waiting]
        swaps = [self._swapping] if self._swapping is not None else []
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, Completion):
                waiting.append(command)
            elif isinstance(command, Swap):
                swaps.append(command)
        for swap in swaps:
            call_in(swap.done.get_loop(), settle, swap.done, error)
        self._outgoing.extend((completion, error) for completion in waiting)
        self._hand_over()

    def _count(self, *, tokens: int = 0, prefilled_tokens: int = 0, busy_seconds: float = 0.0) -> None:
        with self._lock:
            self._counters = EngineCounters(
                tokens=self._counters.tokens + tokens,
                prefilled_tokens=self._counters.prefilled_tokens + prefilled_tokens,
                busy_seconds=self._counters.busy_seconds + busy_seconds,
            )


def hand_out(chunks: Sequence[tuple[Completion, TokenChunk | EngineError | RequestError]]) -> None:
    """Put chunks where their completions wait for them; runs in the event loop."""
    for completion, chunk in chunks:
        completion.chunks.put_nowait(chunk)


def settle(done: asyncio.Future[None], error: EngineError | None) -> None:
    """Settle a future that its waiter may have given up; runs in the event loop."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """Have a loop call this, unless it is closed: then nobody is there to hear."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *arguments)
