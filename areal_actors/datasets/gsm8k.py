"""GSM8K (openai/gsm8k) through the `datasets` library, which downloads it once and keeps it."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from areal_actors.errors import SetupError

NAME = "openai/gsm8k"
_REMEDY = (
    "Without it: task.dataset=PATH names a .jsonl file with `question` and `answer`, and profile=embedded trains on problems made here"
)


def rows(split: Literal["train", "test"]) -> list[dict[str, Any]]:
    """Every row of a split, with `question` and `answer`.

    Raises:
        SetupError: the library is not installed, or the dataset is neither cached nor reachable.
    """
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        raise SetupError(f"{NAME} needs the `datasets` library: pip install 'areal-actors[data]'. {_REMEDY}") from error
    try:
        return [dict(row) for row in library.load_dataset(NAME, "main", split=split)]
    except Exception as error:
        raise SetupError(f"{NAME} cannot be had ({type(error).__name__}: {error}); is the Hugging Face hub reachable? {_REMEDY}") from error
