"""Messages of engines: their load and memory, their losses, and the weights that they have loaded."""

from __future__ import annotations

from typing import ClassVar, Literal

from areal_bus.message import Event, Reply, Request, Telemetry

LoadLevel = Literal["free", "busy", "full"]


class EngineMismatch(Event):
    """Training-inference mismatch.

    For several steps in a row the log-probabilities of inference worker and trainer differed.
    """

    subject: ClassVar[str] = "engine.mismatched"
    step: int
    """Weight version before the last of these steps."""
    worker: str
    """Inference worker; empty if it is not recorded, and then it may be any."""
    kl: float
    """Mean k3 estimate of KL(engine ‖ trainer) over the compared tokens of that step, in nats."""
    vetoed_frac: float
    """Share of the compared tokens beyond the veto threshold, which are excluded from `kl`."""
    tokens: int
    """Number of compared tokens of that step."""
    steps: int
    """Number of steps in a row."""
    recycle: bool
    """True if the worker has to recreate its engine and load the current weights; False if the mismatch is only
    reported."""
    episode: str
    """This and the next four describe the token with the largest difference."""
    position: int
    """Position in its sequence, counted from 0."""
    token: int
    """Id of the token."""
    recorded_logprob: float
    """Log-probability from the engine, in nats."""
    trainer_logprob: float
    """Log-probability from the trainer, in nats."""


class MemoryReleased(Reply):
    """An inference worker's engine has released its memory, or could not."""

    subject: ClassVar[str] = "memory.released"
    released_bytes: int = 0
    """Bytes of KV cache and weights; 0 if its server does not report them, and for an engine that holds none."""
    error: str = ""
    """Reason why it holds its memory; empty if it was released."""


class ReleaseMemory(Request[MemoryReleased]):
    """Release the memory of KV cache and weights until the next weights, for the trainer on the same device."""

    subject: ClassVar[str] = "memory.release"
    reply: ClassVar[type[Reply]] = MemoryReleased
    weight_version: int
    """Weight version on which the trainer takes its step; an engine with other weights releases nothing."""


class EngineSlept(Event):
    """An inference worker has released its engine's memory for an optimizer step.

    It serves again from the next `WeightsLoaded`.
    """

    subject: ClassVar[str] = "engine.slept"
    worker: str
    step: int
    """Step, as `BatchFormed.step`."""
    released_bytes: int
    """Bytes of KV cache and weights; 0 if the engine's server does not report them."""
    seconds: float
    """Time until they were released."""


class EngineStarting(Telemetry):
    """The inference server of a worker is starting."""

    subject: ClassVar[str] = "engine.starting"
    worker: str
    phase: str
    """The last line of the server's output."""
    seconds: float
    """Time since the start."""


class EngineLoad(Event):
    """The load of an inference worker's engine has changed, and stayed for two seconds."""

    subject: ClassVar[str] = "engine.load"
    worker: str
    level: LoadLevel
    """`full`: requests wait in the engine, or at least 95 % of its KV cache is used; `busy`: at least 85 %; `free`."""
    running: int
    """Number of completions in progress."""
    waiting: int
    """Number of completions that wait for a slot or for room in the KV cache."""
    kv_cache_usage: float
    """Used share of the KV cache; 0 if the engine does not report it."""


class EngineInexact(Event):
    """An engine's decoding differs from the model's plain forward by more than rounding explains.

    It serves all the same.
    """

    subject: ClassVar[str] = "engine.inexact"
    worker: str
    finding: str
    """Difference and what is allowed, in nats."""


class EngineLost(Event):
    """The inference server of a worker is gone or refused new weights.

    The worker starts or reaches it again, then `WeightsLoaded`.
    """

    subject: ClassVar[str] = "engine.lost"
    worker: str
    reason: str
    """Cause, with the end of the server's output if it was started by the run."""


class WeightsLoaded(Event):
    """An inference worker generates with these weights from now on."""

    subject: ClassVar[str] = "weights.loaded"
    worker: str
    weight_version: int
    checksum: str
    """Checksum of the loaded tensors as the inference server reports it, or of the files that it was given."""
    channel: str = "folder"
    """Weight transfer method: `folder`, `broadcast`, `tensors`, `delta` or `adapter`."""
    sent_bytes: int = 0
    """Bytes that were sent to an inference server; 0 if it read files."""
    whole_bytes: int = 0
    """Bytes of all tensors of the version; 0 if the server read files."""


class WeightTransferRefused(Event):
    """Weights did not reach an inference server in the way that the recipe names.

    Their folder was loaded, `WeightsLoaded` follows.
    """

    subject: ClassVar[str] = "weights.refused"
    worker: str
    weight_version: int
    reason: str
    """Cause: which channel, which server, and what it answered."""
