"""`areal-actors check --data`.

It looks at every row of a recipe's dataset as the run would meet it, before anything is trained.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from areal_actors.core.errors import RequestError, RewardError, SetupError
from areal_actors.core.prompts import prompt_of
from areal_actors.core.values import Task
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.settings import TEMPLATE_WORDS
from areal_actors.processes.fold_actors import open_tasks
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards.reference_readers import ReferenceReader, reference_readers
from areal_actors.run.rehearsal import model_tokenizer
from areal_actors.tasks.datasets import Dataset
from areal_actors.tokenization.tokenizer import ChatTokenizer

SHOWN = 3
"""Number of rows named for each finding."""
AT_ONCE = 512
"""Number of rows looked at together."""


def check_data(recipe: Recipe) -> Iterator[str]:
    """Yields lines on every row.

    They are about references, prompts, lengths, duplicates, overlap with held-out tasks, and the time taken.

    Raises:
        SetupError: the data cannot be opened.
    """
    for name, source in source_recipes(recipe).items():
        if name:
            yield f"source {name}:"
        yield from _check_source(source)


def _check_source(recipe: Recipe) -> Iterator[str]:
    if recipe.learns_from_examples() or recipe.is_online() or recipe.plays_environment():
        yield "not checked: the run has no dataset of tasks"
        return
    began = time.monotonic()
    dataset = open_tasks(recipe, RunFolder(Path(recipe.folder) / recipe.run))
    looks: tuple[Look, ...] = (Duplicates(dataset), References(recipe), Prompts(recipe))
    tasks = chain(*(map(part.row_task, part.numbers) for part in (dataset.train, dataset.held_out)))
    while batch := list(islice(tasks, AT_ONCE)):
        for look in looks:
            look.add(batch)
    yield f"{len(dataset.train):,} tasks to train on, {len(dataset.held_out):,} held out"
    for look in looks:
        yield from look.lines()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield f"checked in {time.monotonic() - began:.1f} s, with at most {memory:,.0f} MiB of memory"


class Look(Protocol):
    """One kind of finding."""

    def add(self, rows: Sequence[Task]) -> None:
        """Look at these rows."""
        ...

    def lines(self) -> Iterator[str]:
        """Yields what was found in all rows."""
        ...


class Duplicates:
    """Tasks with the prompt of another one, and rows that are left out because they are held out."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.prompts: set[int] = set()
        self.repeated: list[str] = []

    def add(self, rows: Sequence[Task]) -> None:
        """See `Look`."""
        for row in rows:
            key = hash(str(prompt_of(row.data)))
            if key in self.prompts:
                self.repeated.append(row.id)
            self.prompts.add(key)

    def lines(self) -> Iterator[str]:
        """See `Look`."""
        if self.repeated:
            yield (
                f"{len(self.repeated):,} tasks have the prompt of an earlier one, and count that much more:"
                f" {_names(self.repeated)}"
            )
        train, held_out = self.dataset.train, self.dataset.held_out
        left_out = len(train.source) - len(train) - (len(held_out) if train.source is held_out.source else 0)
        if left_out:
            yield f"{left_out:,} rows have the question of a held-out task, and are not trained on"


class References:
    """References that the recipe's built-in rule cannot read."""

    def __init__(self, recipe: Recipe) -> None:
        self.reward = recipe.task.reward
        self.readers = [reader for _, reader in reference_readers(recipe.task)]
        self.causes: dict[str, str] = {}
        """Cause by reference, empty for a readable one."""
        self.rows: list[str] = []

    def add(self, rows: Sequence[Task]) -> None:
        """See `Look`."""
        for row in rows if self.readers else ():
            answer = str(row.data.get("answer", ""))
            if answer not in self.causes:
                self.causes[answer] = unread_reference(self.readers, row.data)
            if self.causes[answer]:
                self.rows.append(row.id)

    def lines(self) -> Iterator[str]:
        """See `Look`."""
        if not self.readers:
            yield f"references are not parsed: `{self.reward}` has no rule that reads them"
        elif not self.rows:
            yield f"all references are readable ({len(self.causes):,} different ones)"
        else:
            cause = next(filter(None, self.causes.values()))
            yield (
                f"{len(self.rows):,} references cannot be read, and their tasks have no reward: {_names(self.rows)};"
                f" the first: {cause}"
            )


def unread_reference(readers: Sequence[ReferenceReader], row: Mapping[str, Any]) -> str:
    """Returns why the rules of the recipe cannot read a row's reference; empty if they can."""
    for reader in readers:
        try:
            reader.read_reference(row)
        except RewardError as error:
            return str(error)
    return ""


class Prompts:
    """Prompts as the built-in agent sends them: rendered, tokenized, and compared with the limits."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.tokenizer = _tokenizer(recipe)
        self.lengths: list[int] = []
        self.refused: list[str] = []
        self.cause = ""
        self.too_long: list[str] = []
        self.cut: list[str] = []

    def add(self, rows: Sequence[Task]) -> None:
        """See `Look`."""
        if self.tokenizer is None:
            return
        texts: list[str] = []
        rendered: list[str] = []
        for row in rows:
            try:
                texts.append(self.tokenizer.render(prompt_of(row.data, self.recipe.task.system_prompt)))
                rendered.append(row.id)
            except (RequestError, SetupError) as error:
                self.refused.append(row.id)
                self.cause = self.cause or str(error)
        context, answer = self.recipe.generation.max_model_len, self.recipe.sampling.max_tokens
        encodings = self.tokenizer.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for identifier, encoding in zip(rendered, encodings, strict=True):
            self.lengths.append(length := len(encoding.ids))
            if length >= context:
                self.too_long.append(identifier)
            elif length + answer > context:
                self.cut.append(identifier)

    def lines(self) -> Iterator[str]:
        """See `Look`."""
        if self.tokenizer is None:
            yield f"prompts are not tokenized: the tokenizer of {self.recipe.model} is not on this machine"
            return
        limit, answer = self.recipe.generation.max_model_len, self.recipe.sampling.max_tokens
        if self.refused:
            yield f"{len(self.refused):,} prompts are refused: {_names(self.refused)}; the first: {self.cause}"
        if lengths := sorted(self.lengths):
            half, most = lengths[len(lengths) // 2], lengths[(len(lengths) - 1) * 99 // 100]
            yield (
                f"prompts of a single call: median {half:,} tokens, 99 % at most {most:,}, the longest {lengths[-1]:,}"
                f" of {limit:,}"
            )
        if self.too_long:
            yield f"{len(self.too_long):,} prompts leave no room in generation.max_model_len: {_names(self.too_long)}"
        if self.cut:
            yield (
                f"{len(self.cut):,} prompts leave less than sampling.max_tokens = {answer:,} for the answer:"
                f" {_names(self.cut)}"
            )


def _tokenizer(recipe: Recipe) -> ChatTokenizer | None:
    """The model's tokenizer with the recipe's chat template; None if it is not on this machine."""
    tokenizer, template = model_tokenizer(recipe.model), recipe.gateway.chat_template
    if tokenizer is not None and template and template not in TEMPLATE_WORDS:
        tokenizer.use_template(Path(template).expanduser().read_text(encoding="utf-8"))
    return tokenizer


def _names(rows: Sequence[str]) -> str:
    more = f" and {len(rows) - SHOWN:,} others" if len(rows) > SHOWN else ""
    return ", ".join(rows[:SHOWN]) + more
