"""What can go wrong, by whose fault it is.

    ArealError
    ├── RecipeError      the recipe cannot be run as written; found before anything starts
    ├── SetupError       the machine lacks something: model, dataset, port, binary, disk
    ├── AgentError       the user's agent raised, hung, or returned what is not a reward
    ├── RewardError      the reward function raised, hung, or returned what is not a finite number
    ├── SessionError     the gateway was called with an unknown, ended or foreign session
    ├── RequestError     a field of an API request is wrong or cannot be honoured
    ├── EngineError      a generation or training engine failed
    │   └── UntrainableBatch   a training step can change no weight; the engine is sound
    ├── RanksLost        ranks of the trainer died; fresh ones have the first weights
    ├── CheckpointError  a checkpoint is incomplete or does not fit
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


class RewardError(ArealError):
    """Raised when a reward function raises, hangs, or returns something that is not a finite number."""


class SessionError(ArealError):
    """Raised when a session is unknown, over, or somebody else's."""


class RequestError(ArealError):
    """Raised when a request's field is wrong or cannot be honoured; `field` names it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


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


class RolloutError(ArealError):
    """Raised when what a hand-written loop asked of its controller cannot be had."""


class RolloutTimeout(ArealError, TimeoutError):
    """Raised when what a hand-written loop waits for did not come in time; the message says what stands in the way."""
