"""What can go wrong, by whose fault it is.

    ArealError
    ├── RecipeError      the recipe cannot be run as written; found before anything starts
    ├── SetupError       the machine lacks something: model, dataset, port, binary, disk
    ├── AgentError       the user's agent raised, hung, or returned what is not a reward
    ├── AgentsBlocked    an agent holds the event loop of all agents of its process and does not let go
    ├── RewardError      the reward function raised, hung, or returned what is not a finite number
    ├── SandboxError     a process for a program that nobody trusts cannot be made
    ├── SessionError     the gateway was called with an unknown, ended or foreign session
    ├── RequestError     a field of an API request is wrong or cannot be honoured
    │   └── PromptTooLong      the prompt leaves no room in the model's context
    ├── EngineError      a generation or training engine failed
    │   └── UntrainableBatch   a training step can change no weight; the engine is sound
    ├── RanksLost        ranks of the trainer died; fresh ones have the first weights
    ├── CheckpointError  a checkpoint is incomplete or does not fit
    ├── StepMismatch     a step that was taken again came to other weights than the log has
    ├── RolloutError     rollouts that a hand-written loop asked for cannot come
    └── RolloutTimeout   or did not come in time

A failure is an event with a name, never a value that looks like data: none of these becomes a training row.
"""


class ArealError(Exception):
    """Base of all errors of the run; the message says what to do."""


class RecipeError(ArealError):
    """Raised when a recipe cannot be run as written."""


class SetupError(ArealError):
    """Raised when the machine lacks something that the recipe needs."""


class AgentError(ArealError):
    """Raised when an agent raises, hangs, or returns something that is not a reward."""


class AgentsBlocked(ArealError):
    """Raised when no further agent can run in this process, since one has not given their event loop back; a fresh process can."""


class RewardError(ArealError):
    """Raised when a reward function raises, hangs, or returns something that is not a finite number."""


class SandboxError(ArealError):
    """Raised when the sandbox for a program cannot be made: what the program is or does is never the reason."""


class SessionError(ArealError):
    """Raised when a session is unknown, over, or somebody else's."""


class RequestError(ArealError):
    """Raised when a request's field is wrong or cannot be honoured; `field` names it, and `code` is OpenAI's word for the case."""

    def __init__(self, message: str, field: str = "", code: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class PromptTooLong(RequestError):
    """Raised when a prompt leaves no room in the context; worded as clients of both protocols recognise it."""

    def __init__(self, tokens: int, context: int, field: str, *, at_least: bool = False) -> None:
        bound = ", counted from its length" if at_least else ""
        super().__init__(
            f"prompt is too long: {tokens} tokens > {context} maximum{bound}; "
            f"this model's maximum context length is {context} tokens: shorten '{field}'",
            field,
            "context_length_exceeded",
        )


class EngineError(ArealError):
    """Raised when an engine cannot do what it was asked."""


class UntrainableBatch(EngineError):
    """Raised when a step can change no weight: no token of it is trained, or its loss or gradient is not finite.

    Weights and optimizer are as before the step, which has not been counted.
    """


class RanksLost(ArealError):
    """Raised when ranks of the trainer have died; whoever asks next starts them anew, with the weights that they began with."""


class CheckpointError(ArealError):
    """Raised when a checkpoint is incomplete or does not fit the model."""


class StepMismatch(ArealError):
    """Raised when a step that is taken again comes to other rows or other weights than the log has for it."""


class RolloutError(ArealError):
    """Raised when what a hand-written loop asked of its controller cannot be had."""


class RolloutTimeout(ArealError, TimeoutError):
    """Raised when what a hand-written loop waits for did not come in time; the message says what stands in the way."""
