"""Examples for learning without episodes: demonstrations and preference pairs.

    {"messages": [...]}                                   a conversation; its assistant messages are learned
    {"prompt": ..., "completion": ...}                    the same; the completion is learned
    {"question": "...", "answer": "..."}                  a task with its worked answer, as in GSM8K
    {"prompt": ..., "chosen": ..., "rejected": ...}       a pair
    {"chosen": [...], "rejected": [...]}                  a pair of conversations; answers begin where they diverge
    {"input_ids": [...], "completion_mask": [...]}        tokens of an episode (`tokenized_conversation.py`)
    {"log": "...", "session": "...", ...}                 tokens of a recorded session (`recorded_session.py`)

`prompt`, `completion`, `chosen` and `rejected` are a text or a list of chat messages; `tools` is optional; further
fields are ignored.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.supervised.recorded_session import RecordedRow, read_recorded_row
from areal_actors.supervised.tokenized_conversation import (
    PAIR,
    SEQUENCE,
    TokenizedConversation,
    read_pair,
    read_sequence,
)
from areal_actors.tasks.arithmetic import Calculation, Split, WordProblem, problems
from areal_actors.tasks.datasets import ARITHMETIC, ARITHMETIC_ROWS, HELD_OUT_SEED, choose_held_out
from areal_actors.tasks.rows import DatasetRows, field_names
from areal_actors.tasks.sources import open_source
from areal_actors.training.algorithms.base import ExampleKind


class LengthLimit(msgspec.Struct, frozen=True):
    """Largest length of a sequence, and the treatment of longer examples."""

    tokens: int = 0
    """Largest number of tokens; 0 for the model's context, which no sequence may exceed."""
    drop: bool = False
    """Drop longer examples instead of raising an error."""
    min_examples: int = 1
    """Minimum number of examples left after dropping."""


Kind = ExampleKind
Message = dict[str, Any]

DIRECT_SHARE = 0.5
"""Share of generated pairs whose rejected answer is correct but has no working; in the others it misreads a number."""
ROLES = ("system", "developer", "user", "assistant", "tool")
FORMS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "demonstrations": (SEQUENCE, ("messages",), ("prompt", "completion"), ("question", "answer")),
    "pairs": (PAIR, ("chosen", "rejected")),
    "sessions": (("log", "session"),),
}


class ExampleConversation(msgspec.Struct, frozen=True):
    """Chat messages, some of which are learned."""

    messages: tuple[Message, ...]
    first: int
    """Index of the first message to learn: assistant messages from here on; those before are context."""
    tools: tuple[dict[str, Any], ...] = ()
    unlearned: frozenset[int] = frozenset()
    """Indices of assistant messages that are context only."""


class Example(msgspec.Struct, frozen=True):
    """A demonstration, or a preference pair."""

    conversations: tuple[ExampleConversation | TokenizedConversation | RecordedRow, ...]
    """The demonstration; or the chosen and the rejected conversation; or what was recorded of a session."""
    place: str
    """Location of the example, for error messages."""


class Examples(Protocol):
    """Examples in a fixed order, by number."""

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def __getitem__(self, number: int) -> Example:
        """Returns an example by number, counted from 0.

        Raises:
            SetupError: the row is not a valid example; the message has its location and what to write.
        """
        ...


class DatasetExamples(msgspec.Struct, frozen=True):
    """Examples of a dataset, read when they are drawn."""

    rows: DatasetRows
    numbers: Sequence[int]
    """TrainingSequence number of each example."""
    kind: Kind
    spec: str
    columns: Mapping[str, str]
    """Column of the dataset by field name."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Example:
        """See `Examples`."""
        row = self.numbers[number]
        place = f"{self.spec}, row {row + 1}"
        try:
            return _example(_rename_columns(self.rows.row(row), self.columns, place), self.kind, place)
        except msgspec.DecodeError as error:
            raise SetupError(f"{place}: not JSON: {error}") from error


class ExampleSet(msgspec.Struct, frozen=True):
    """Examples to train on, and held-out examples."""

    train: Examples
    held_out: Examples


def open_examples(spec: str, kind: Kind, *, seed: int, held_out: int | str, columns: Mapping[str, str]) -> ExampleSet:
    """Open `arithmetic` or any other dataset of `[task] dataset`.

    Args:
        spec: name of the dataset.
        kind: kind of its rows.
        seed: determines the held-out rows.
        held_out: another dataset, or a number of examples: from the test split if the dataset has one, else rows
            excluded from training together with all others of the same prompt.
        columns: column of the dataset by field name, where they differ.

    Raises:
        RecipeError: there is no such dataset, or it has too few rows to hold out.
        SetupError: it cannot be read, or a row is not a valid example; the message has the location and the remedy.
    """
    count = held_out if isinstance(held_out, int) else 0
    kept: Examples
    if spec == ARITHMETIC:
        train: Examples = arithmetic_examples(kind, "train", ARITHMETIC_ROWS, seed)
        kept = arithmetic_examples(kind, "test", count, HELD_OUT_SEED)
    else:
        source = open_source(spec)
        train = DatasetExamples(source.train, range(len(source.train)), kind, spec, columns)
        if source.test is None:
            train, kept = _split(train, count, seed)
        else:
            kept = _first(
                DatasetExamples(source.test, range(len(source.test)), kind, f"{spec}, held out", columns), count
            )
    if isinstance(held_out, str):
        rows = open_source(held_out).train
        kept = DatasetExamples(rows, range(len(rows)), kind, held_out, columns)
        train = _without_prompts_of(train, kept, spec) if isinstance(train, DatasetExamples) else train
    return ExampleSet(train, kept)


# ---------------------------------------------------------------- generated


def arithmetic_examples(kind: Kind, split: Split, count: int, seed: int) -> tuple[Example, ...]:
    """Returns generated word problems with worked answers; for pairs, each with a worse answer."""
    rng = random.Random(f"pairs {split} {seed}")
    made_problems = islice(problems(split, seed), count)
    return tuple(
        _arithmetic_example(problem, kind, f"generated {kind}, number {number}", rng)
        for number, problem in enumerate(made_problems)
    )


def _arithmetic_example(problem: WordProblem, kind: Kind, place: str, rng: random.Random) -> Example:
    answers = [problem.answer]
    if kind == "pairs":
        answers.append(problem.direct_answer if rng.random() < DIRECT_SHARE else _misread(problem, rng).answer)
    asked = {"role": "user", "content": problem.question}
    return Example(
        tuple(ExampleConversation((asked, {"role": "assistant", "content": answer}), 1) for answer in answers), place
    )


def _misread(problem: WordProblem, rng: random.Random) -> WordProblem:
    """Returns the problem with another number in one of its steps, worked to the end."""
    wrong = rng.randrange(len(problem.steps))
    while True:
        steps: list[Calculation] = []
        for number, step in enumerate(problem.steps):
            left = steps[-1].result if steps else step.left
            steps.append(Calculation(left, step.sign, rng.randint(1, 9) if number == wrong else step.right))
        if steps[-1].result != problem.result and all(step.result > 0 for step in steps):
            return WordProblem(problem.question, problem.item, (steps[0], steps[1]))


# ---------------------------------------------------------------- from rows


def _rename_columns(row: object, columns: Mapping[str, str], place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise SetupError(f"{place}: expected an object, got {type(row).__name__}")
    if missing := [name for name in columns.values() if name not in row]:
        raise SetupError(f"{place}: task.columns names `{missing[0]}`; the row has {field_names(row)}")
    return {**row, **{ours: row[column] for ours, column in columns.items()}}


def _forms(kind: Kind) -> str:
    written = (form for form in FORMS[kind] if form not in (SEQUENCE, PAIR))  # no row of tokens is written by hand
    return " or ".join(" and ".join(f"`{name}`" for name in form) for form in written)


def _example(row: dict[str, Any], kind: Kind, place: str) -> Example:
    form = next((form for form in FORMS[kind] if all(name in row for name in form)), None)
    if form is None:
        raise SetupError(f"{place}: expected {_forms(kind)}; the row has {field_names(row)}")
    if kind == "sessions":
        return Example((read_recorded_row(row, place),), place)
    if form == SEQUENCE:
        return Example((read_sequence(row, place),), place)
    if form == PAIR:
        return Example(read_pair(row, place), place)
    tools = tuple(row.get("tools") or ())
    if kind == "pairs":
        return Example(
            tuple(msgspec.structs.replace(answer_messages, tools=tools) for answer_messages in _pair(row, place)), place
        )
    if form == ("messages",):
        messages = _messages(row["messages"], "assistant", f"{place}: `messages`")
        first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
        return Example((ExampleConversation(messages, first, tools, _find_unlearned(messages, first, place)),), place)
    asked, answered = (row[name] for name in form)
    prompt = _messages(asked, "user", f"{place}: `{form[0]}`")
    messages, first = prompt + _answer(answered, f"{place}: `{form[1]}`"), len(prompt)
    return Example((ExampleConversation(messages, first, tools, _find_unlearned(messages, first, place)),), place)


def _find_unlearned(messages: Sequence[Message], first: int, place: str) -> frozenset[int]:
    """Returns the indices of answers with `weight: 0`, as OpenAI's format for fine-tuning has it."""
    answers = {
        index: messages[index].get("weight", 1)
        for index in range(first, len(messages))
        if messages[index]["role"] == "assistant"
    }
    if wrong := [index for index, weight in answers.items() if weight not in (None, 0, 1)]:
        raise SetupError(
            f"{place}: message {wrong[0]} has weight {answers[wrong[0]]!r:.40}; write 1 to learn the message, or 0"
        )
    unlearned = frozenset(index for index, weight in answers.items() if weight == 0)
    if unlearned and len(unlearned) == len(answers):
        raise SetupError(f"{place}: every assistant message has weight 0; there is nothing to learn from it")
    return unlearned


def _pair(row: dict[str, Any], place: str) -> list[ExampleConversation]:
    names = ("chosen", "rejected")
    answers = [_answer(row[name], f"{place}: `{name}`") for name in names]
    unweighted = [
        [{name: value for name, value in message.items() if name != "weight"} for message in answer]
        for answer in answers
    ]
    if unweighted[0] == unweighted[1]:
        raise SetupError(f"{place}: `chosen` and `rejected` are the same; leave the row out")
    if all(answer[0]["role"] == "assistant" for answer in answers):
        if "prompt" not in row:
            raise SetupError(f"{place}: `prompt` is missing, and `chosen` is not a whole conversation; add the prompt")
        prompt = _messages(row["prompt"], "user", f"{place}: `prompt`")
        return [
            _side(prompt + answer, len(prompt), f"{place}: `{name}`")
            for name, answer in zip(names, answers, strict=True)
        ]
    together = zip(*unweighted, strict=False)
    first = next(
        (index for index, (first_message, second_message) in enumerate(together) if first_message != second_message),
        min(map(len, answers)),
    )
    if first == min(map(len, answers)):
        raise SetupError(f"{place}: one of `chosen` and `rejected` is a prefix of the other; each needs its own answer")
    return [_side(answer, first, f"{place}: `{name}`") for name, answer in zip(names, answers, strict=True)]


def _side(messages: tuple[Message, ...], first: int, place: str) -> ExampleConversation:
    return ExampleConversation(messages, first, unlearned=_find_unlearned(messages, first, place))


def _answer(value: Any, place: str) -> tuple[Message, ...]:
    """Returns messages, the last of which is from the assistant."""
    messages = _messages(value, "assistant", place)
    if messages[-1]["role"] != "assistant":
        raise SetupError(
            f"{place} ends with a message of role {messages[-1]['role']}; it must end with an assistant message"
        )
    return messages


def _messages(value: Any, role: str, place: str) -> tuple[Message, ...]:
    """Returns chat messages, or a text as one message of this role."""
    if isinstance(value, str) and value.strip():
        return ({"role": role, "content": value},)
    if not isinstance(value, list) or not value:
        raise SetupError(f"{place} must be a non-empty text or a list of chat messages, got {value!r:.60}")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise SetupError(
                f"{place}[{index}] must be an object whose `role` is one of {', '.join(ROLES)}, got {message!r:.60}"
            )
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise SetupError(f"{place}[{index}] must have `content` or `tool_calls`, got {message!r:.60}")
    if role == "assistant" and all(message["role"] != "assistant" for message in value):
        raise SetupError(f"{place} has no assistant message; there is nothing to learn from it")
    return tuple(value)


# ---------------------------------------------------------------- held out


def _prompt(example: Example) -> bytes:
    conversation = example.conversations[0]
    if not isinstance(conversation, ExampleConversation):
        return msgspec.json.encode(conversation.prompt)
    return msgspec.json.encode(conversation.messages[: conversation.first])


def _first(examples: DatasetExamples, count: int) -> DatasetExamples:
    if count > len(examples):
        most = len(examples)
        raise RecipeError(
            f"`task.held_out`: found {count}, but {examples.spec} has {most} examples; write at most {most}"
        )
    return msgspec.structs.replace(examples, numbers=examples.numbers[:count])


def _split(examples: DatasetExamples, count: int, seed: int) -> tuple[DatasetExamples, DatasetExamples]:
    """Splits off `count` held-out examples; excludes others with their prompts.

    Both parts are in the order of the dataset.
    """
    kept = choose_held_out(len(examples), count, seed, examples.spec)
    held_out = msgspec.structs.replace(examples, numbers=kept)
    return (_without_prompts_of(examples, held_out, f"{count} rows held out") if kept else examples), held_out


def _without_prompts_of(examples: DatasetExamples, kept: Examples, what: str) -> DatasetExamples:
    prompts = {_prompt(kept[number]) for number in range(len(kept))}
    left = [row for number, row in enumerate(examples.numbers) if _prompt(examples[number]) not in prompts]
    if not left:
        raise RecipeError(
            f"`task.held_out`: every prompt of {examples.spec} is held out with {what}; name other examples, or hold"
            " out fewer"
        )
    return msgspec.structs.replace(examples, numbers=left)
