"""Datasets, tokenizers and names: the functions with which AReaL's programs prepare a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers

from areal_actors.compat.areal.config import DatasetConfig
from areal_actors.compat.areal.names import MODULES, location
from areal_actors.core.errors import RecipeError
from areal_actors.core.loading import load_named
from areal_actors.tasks import arithmetic
from areal_actors.tasks.datasets import ARITHMETIC, ARITHMETIC_ROWS, HELD_OUT_SEED
from areal_actors.tasks.rows import DatasetRows, ListedRows
from areal_actors.tasks.sources import GSM8K, open_source
from areal_actors.weights.model_hub import model_folder

BOXED = "\nPlease put your final answer within \\boxed{}."
"""Added to the questions of GSM8K, so that prompts are those of AReaL."""
TEST_ROWS = 500
"""Generated problems of the test split of `arithmetic`."""


def get_custom_dataset(
    split: str | None = None, dataset_config: DatasetConfig | None = None, tokenizer: Any = None, **options: Any
) -> list[dict[str, Any]]:
    """Rows with `messages` and `answer`, of a dataset of the hub, of files, or of the generated problems `arithmetic`.

    Rows that have `messages` stay as they are; a `question` becomes a user's message. With a tokenizer and `max_length`
    longer questions are left out.

    Raises:
        RecipeError: there is no such dataset, or its type is not `rl`.
        SetupError: it cannot be read.
    """
    config = dataset_config or DatasetConfig(**options)
    if config.type != "rl":
        raise RecipeError(
            f"the dataset's type is {config.type!r}; PPOTrainer trains on `type: rl`; for others see docs/supervised.md"
        )
    rows = [_with_messages(row, config.path) for row in _rows(config.path, split or config.split)]
    if tokenizer is None or config.max_length is None:
        return rows
    return [row for row in rows if len(tokenizer.encode(row["messages"][0]["content"])) <= config.max_length]


def _rows(path: str, split: str) -> Iterator[dict[str, Any]]:
    dataset: DatasetRows
    if path == ARITHMETIC:
        count, seed = (ARITHMETIC_ROWS, 0) if split == "train" else (TEST_ROWS, HELD_OUT_SEED)
        dataset = ListedRows(arithmetic.rows("train" if split == "train" else "test", count, seed), ARITHMETIC)
    else:
        source = open_source(path)
        dataset = source.train if split == "train" or source.test is None else source.test
    yield from (dataset.row(number) for number in range(len(dataset)))


def _with_messages(row: dict[str, Any], path: str) -> dict[str, Any]:
    if "messages" in row:
        return row
    if "question" not in row:
        raise RecipeError(
            f"dataset {path}: a row has neither `messages` nor `question`, but {', '.join(row)}; add one of them"
        )
    question = row.pop("question") + (BOXED if path == GSM8K else "")
    return {"messages": [{"role": "user", "content": question}], **row}


def load_hf_tokenizer(model_name_or_path: str, fast_tokenizer: bool = True, padding_side: str | None = None) -> Any:  # noqa: FBT001, FBT002
    """The tokenizer of a model folder or hub id; its padding token is the end token if it has none.

    Raises:
        SetupError: there is no such model.
    """
    side = {} if padding_side is None else {"padding_side": padding_side}
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        model_folder(model_name_or_path), use_fast=fast_tokenizer, **side
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
    return tokenizer


def apply_chat_template(
    tokenizer: Any, messages: list[dict[str, Any]], *, tokenize: bool = True, **options: Any
) -> Any:
    """Token ids of messages, or with `tokenize=False` their text."""
    if not tokenize:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)["input_ids"])


def import_from_string(module_path: str) -> Any:
    """The object `package.module.name`, also of a module of AReaL.

    Those of the program are beside it and in the current directory.

    Raises:
        RecipeError: there is no such module or name.
    """
    module, _, name = module_path.rpartition(".")
    if name in MODULES.get(module, ()):
        module, name = location(name)
    return load_named(f"{module}:{name}", Path())
