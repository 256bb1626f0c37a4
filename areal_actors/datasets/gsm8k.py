"""GSM8K (openai/gsm8k) as it is on the Hugging Face hub."""

from __future__ import annotations

from typing import Any, Literal

from areal_actors.datasets import library
from areal_actors.datasets.rows import Rows

NAME = "openai/gsm8k"
CONFIG = "main"
_REMEDY = (
    " Without it: task.dataset=PATH names a .jsonl file with `question` and `answer`, and profile=embedded trains on problems made here"
)


def split(name: Literal["train", "test"], config: str = "") -> Rows:
    """A split, with `question` and `answer`.

    Raises:
        SetupError: the library is not installed, or the dataset is neither cached nor reachable.
    """
    return library.from_hub(NAME, config or CONFIG, name, _REMEDY)


def rows(name: Literal["train", "test"]) -> list[dict[str, Any]]:
    """Every row of a split; raises as `split` does."""
    found = split(name)
    return [found.row(number) for number in range(len(found))]
