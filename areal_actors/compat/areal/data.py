"""Datasets, tokenizers and names: the functions with which AReaL's programs prepare a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import transformers

from areal_actors.compat.areal.config import DatasetConfig
from areal_actors.compat.areal.names import place_of
from areal_actors.core.errors import RecipeError
from areal_actors.core.loading import load_named
from areal_actors.tasks import arithmetic
from areal_actors.tasks.datasets import ARITHMETIC, ARITHMETIC_ROWS, HELD_OUT_SEED
from areal_actors.tasks.rows import DatasetRows, ListedRows
from areal_actors.tasks.sources import GSM8K, open_source
from areal_actors.weights.model_hub import model_folder

QUESTIONS = ("question", "problem")
"""Fields of the question of a row."""
BOXED = "\nPlease put your final answer within \\boxed{}."
"""Added to the questions of GSM8K, so that prompts are those of AReaL."""
TEST_ROWS = 500
"""Generated problems of the test split of `arithmetic`."""


def get_custom_dataset(
    split: str | None = None,
    dataset_config: DatasetConfig | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    **options: Any,
) -> list[dict[str, Any]] | None:
    """Rows of a dataset of the hub, of files, or of the generated problems `arithmetic`; None without a configuration.

    By `type`: `rl` has `messages`, and `images` where the dataset has some; `sft` has `input_ids` and `loss_mask`,
    `dpo` and `rw` have `chosen_ids` and `rejected_ids`. Rows that have `messages` stay as they are. With a tokenizer
    and `max_length` longer rows are left out. The gateway prepares pictures; `processor` is accepted without effect.

    Raises:
        RecipeError: there is no such dataset or type, or a row has not the fields of its type.
        SetupError: it cannot be read.
    """
    del processor
    if dataset_config is None and not options:
        return None
    config = dataset_config or DatasetConfig(**options)
    kind = config.type or "rl"
    if kind not in TYPES:
        raise RecipeError(f"the dataset's type is {config.type!r}; write one of {', '.join(TYPES)}")
    rows = [TYPES[kind](row, config.path, tokenizer) for row in _rows(config.path, split or config.split, kind)]
    if tokenizer is None or config.max_length is None:
        return rows
    return [row for row in rows if _length(row, tokenizer) <= config.max_length]


def _length(row: Mapping[str, Any], tokenizer: Any) -> int:
    """Tokens of the longest sequence of a row; of a prompt, those of its first message's text."""
    columns = [row[name] for name in ("input_ids", "chosen_ids", "rejected_ids") if name in row]
    if columns:
        return max(map(len, columns))
    content = row["messages"][0]["content"]
    text = content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
    return len(tokenizer.encode(text))


def _rows(path: str, split: str, kind: str) -> Iterator[dict[str, Any]]:
    dataset: DatasetRows
    if path == ARITHMETIC:
        part: Literal["train", "test"] = "train" if split == "train" else "test"
        count, seed = (ARITHMETIC_ROWS, 0) if part == "train" else (TEST_ROWS, HELD_OUT_SEED)
        generated = arithmetic.rows(part, count, seed)
        dataset = ListedRows([_pair(row) for row in generated] if kind in ("dpo", "rw") else generated, ARITHMETIC)
    else:
        source = open_source(path)
        dataset = source.train if split == "train" or source.test is None else source.test
    yield from (dataset.row(number) for number in range(len(dataset)))


def _pair(row: Mapping[str, Any]) -> dict[str, Any]:
    """A generated problem with its worked answer, and the same with another result."""
    work, mark, result = row["answer"].rpartition("#### ")
    question = f"{row['question']} "
    return {"chosen": f"{question}{work}{mark}{result}", "rejected": f"{question}{work}{mark}{int(result) + 1}"}


def _prompt_row(row: dict[str, Any], path: str, tokenizer: Any) -> dict[str, Any]:
    """A row with `messages`; a question with pictures has the places of its pictures before the text."""
    del tokenizer
    if "messages" in row:
        return row
    name = next((name for name in QUESTIONS if name in row), None)
    if name is None:
        raise _missing_fields(path, row, ("messages", *QUESTIONS))
    question = row.pop(name) + (BOXED if path == GSM8K else "")
    images = [{"type": "image"} for _ in row.get("images") or ()]
    content = [*images, {"type": "text", "text": question.replace("<image>", "")}] if images else question
    return {"messages": [{"role": "user", "content": content}], **row}


def _demonstration(row: dict[str, Any], path: str, tokenizer: Any) -> dict[str, Any]:
    """The tokens of a question and its answer, of which those of the answer are trained."""
    if "messages" in row or "input_ids" in row:
        return row
    if "question" not in row or "answer" not in row:
        raise _missing_fields(path, row, ("messages", "input_ids", "question and answer"))
    prompt = tokenizer.encode(row["question"])
    ids = tokenizer.encode(row["question"] + row["answer"] + tokenizer.eos_token)
    return {"input_ids": ids, "loss_mask": [0] * len(prompt) + [1] * (len(ids) - len(prompt))}


def _preference(row: dict[str, Any], path: str, tokenizer: Any) -> dict[str, Any]:
    """The tokens of the better and the worse text; rows of messages stay as they are."""
    if "chosen_ids" in row or isinstance(row.get("chosen"), list):
        return row
    if "chosen" not in row or "rejected" not in row:
        raise _missing_fields(path, row, ("chosen_ids and rejected_ids", "chosen and rejected"))
    return {f"{side}_ids": tokenizer.encode(row[side] + tokenizer.eos_token) for side in ("chosen", "rejected")}


def _missing_fields(path: str, row: Mapping[str, Any], expected: Iterable[str]) -> RecipeError:
    return RecipeError(f"dataset {path}: a row has {', '.join(row)}; expected one of {', '.join(expected)}")


TYPES = {"rl": _prompt_row, "sft": _demonstration, "dpo": _preference, "rw": _preference}
"""Functions that make a row of a type, by its name: row, path of the dataset, tokenizer."""


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


def load_hf_processor_and_tokenizer(
    model_name_or_path: str,
    fast_tokenizer: bool = True,  # noqa: FBT001, FBT002 - AReaL's signature
    padding_side: str | None = None,
) -> tuple[Any, Any]:
    """The processor of a model with vision, None if it has none, and its tokenizer; raises like `load_hf_tokenizer`."""
    tokenizer = load_hf_tokenizer(model_name_or_path, fast_tokenizer, padding_side)
    folder = Path(model_folder(model_name_or_path))
    has_processor = any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json"))
    loader: Any = transformers.AutoProcessor
    return (loader.from_pretrained(folder) if has_processor else None), tokenizer


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
    if (place := place_of(module, name)) is not None:
        module, name = place
    return load_named(f"{module}:{name}", Path())
