"""Errors of a run, by cause.

    ArealError
    ├── RecipeError      the recipe cannot be run as written; raised before the run starts
    ├── SetupError       the machine lacks something: model, dataset, port, binary, disk
    ├── AgentError       the user's agent raised, hung, or did not return a reward
    ├── AgentsBlocked    an agent blocks the event loop of all agents of its process
    ├── RewardError      the reward function raised, hung, or did not return a finite number
    ├── SandboxError     the sandbox for an untrusted program cannot be created
    ├── SessionError     the gateway was called with an unknown, ended or foreign session
    ├── RequestError     a field of an API request is invalid or not supported
    │   └── PromptTooLong      the prompt leaves no room in the model's context
    ├── EngineError      a generation or training engine failed
    │   ├── UntrainableBatch   a training step cannot change any weight; the engine is intact
    │   ├── ImageLost          the file of an image is missing or damaged
    │   ├── WeightsSuperseded  a weight version was removed before it was loaded: the next one is
    │   ├── EngineUnavailable  an inference server is starting, or is gone; another one can answer
    │   └── WeightTransferFailed  weights did not reach a server over the channel of the recipe; their folder is loaded
    ├── RanksLost        ranks of the trainer died; new ones have the initial weights
    │   └── RankFailed         a call failed with an exception on some of them
    ├── CheckpointError  a checkpoint is incomplete or does not match the model
    ├── StepMismatch     a repeated step gave other weights than the log has
    ├── RolloutError     rollouts requested by a hand-written loop cannot be produced
    └── RolloutTimeout   rollouts requested by a hand-written loop are late

A failure is a named event, never a value that looks like data: no error becomes a training row.
"""

from __future__ import annotations

from areal_actors.core.agent_host.model_errors import NO_TRAITS, ErrorTraits


class ArealError(Exception):
    """Base of all errors of the run; the message contains the remedy."""


class RecipeError(ArealError):
    """Raised when a recipe cannot be run as written."""


class SetupError(ArealError):
    """Raised when the machine lacks something that the recipe needs."""


class AgentError(ArealError):
    """Raised when an agent raises, hangs, or does not return a reward.

    `traits` has the cause as far as its own exception has it.
    """

    def __init__(self, message: str = "", traits: ErrorTraits = NO_TRAITS) -> None:
        super().__init__(message)
        self.traits = traits


class AgentsBlocked(ArealError):
    """Raised when an agent blocks the event loop, so that this process can run no further agents; a new process can."""


class RewardError(ArealError):
    """Raised when a reward function raises, hangs, or does not return a finite number."""


class SandboxError(ArealError):
    """Raised when the sandbox for a program cannot be created; never caused by the program itself."""


class SessionError(ArealError):
    """Raised when a session is unknown, over, or belongs to another key."""


class SessionElsewhere(SessionError):
    """The session is at another gateway of the run."""

    def __init__(self, named: str, owner: str) -> None:
        """`named`: the session, as the message names it; `owner`: its gateway."""
        super().__init__(
            f"{named} is at another gateway, {owner}: send its requests to the base_url that came with the session"
        )


class RequestError(ArealError):
    """Raised when a request's field is invalid or not supported; `field` is its name, `code` is OpenAI's error code."""

    def __init__(self, message: str, field: str = "", code: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class PromptTooLong(RequestError):
    """Raised when a prompt leaves no room in the context; clients of both protocols recognise the message."""

    def __init__(self, tokens: int, context: int, field: str, *, at_least: bool = False) -> None:
        bound = ", counted from its length" if at_least else ""
        super().__init__(
            f"prompt is too long: {tokens} tokens > {context} maximum{bound}; "
            f"this model's maximum context length is {context} tokens: shorten '{field}'",
            field,
            "context_length_exceeded",
        )


class EngineError(ArealError):
    """Raised when a generation or training engine fails."""


class UntrainableBatch(EngineError):
    """Raised when a step cannot change any weight.

    It has no trained token, its loss or gradient is not finite, or a pass failed.
    Weights, optimizer and step count are as before the step.
    """


class ImageLost(EngineError):
    """Raised when the file of an image that a prompt refers to is missing or damaged."""


class EngineUnavailable(EngineError):
    """Raised when an inference server does not answer: it is starting, was killed, or has failed.

    Nothing was sampled wrongly.
    """


class WeightsSuperseded(EngineError):
    """Raised when a weight version was removed, because newer ones were published, before a worker had it."""


class WeightTransferFailed(EngineError):
    """Raised when an inference server does not take weights over the channel that the recipe names.

    It is given their folder.
    """


class RanksLost(ArealError):
    """Raised when ranks of the trainer have died; the next call starts new ones with the initial weights."""


class RankFailed(RanksLost):
    """Raised when a call failed with an exception on some ranks, and the others were ended."""


class CheckpointError(ArealError):
    """Raised when a checkpoint is incomplete or does not match the model."""


class StepMismatch(ArealError):
    """Raised when a repeated step gives other rows or weights than the log has."""


class RolloutError(ArealError):
    """Raised when a controller cannot produce the rollouts that a hand-written loop requested."""


class RolloutTimeout(ArealError, TimeoutError):
    """Raised when rollouts for a hand-written loop did not arrive in time; the message names the cause."""
