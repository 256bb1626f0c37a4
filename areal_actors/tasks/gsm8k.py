"""GSM8K (openai/gsm8k) from the Hugging Face hub."""

from __future__ import annotations

from typing import Any, Literal

from areal_actors.tasks import huggingface as library
from areal_actors.tasks.rows import DatasetRows

NAME = "openai/gsm8k"
CONFIG = "main"
_REMEDY = (
    ". Without it: task.dataset=PATH names a .jsonl file with `question` and `answer`, and profile=embedded trains on generated problems"
)


def split(name: Literal["train", "test"], config: str = "") -> DatasetRows:
    """Returns a split, with `question` and `answer`.

    Raises:
        SetupError: the library is not installed, or the dataset is neither cached nor reachable.
    """
    return library.from_hub(NAME, config or CONFIG, name, _REMEDY)


def rows(name: Literal["train", "test"]) -> list[dict[str, Any]]:
    """Returns every row of a split; raises the errors of `split`."""
    found = split(name)
    return [found.row(number) for number in range(len(found))]
