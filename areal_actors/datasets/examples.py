"""What is learned from without episodes: demonstrations, and pairs of answers of which one is preferred.

    {"messages": [...]}                                   a conversation; what the assistant says in it is learned
    {"prompt": ..., "completion": ...}                    the same, with what is learned apart
    {"question": "...", "answer": "..."}                  a task with its worked answer, as GSM8K has it
    {"prompt": ..., "chosen": ..., "rejected": ...}       a pair
    {"chosen": [...], "rejected": [...]}                  a pair of whole conversations: where they part, the answers begin

`prompt`, `completion`, `chosen` and `rejected` are a text or a list of chat messages; `tools` may stand beside them, and
further fields are passed over.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, Protocol

import msgspec

from areal_actors.datasets.arithmetic import Problem, Split, Step, problems
from areal_actors.datasets.rows import Rows
from areal_actors.datasets.sources import open_source
from areal_actors.errors import RecipeError, SetupError

Kind = Literal["demonstrations", "pairs"]
Message = dict[str, Any]

ARITHMETIC_EXAMPLES = 10_000
HELD_OUT_SEED = 0
"""The held-out examples that are made here are the same in every run, so that runs can be compared."""
DIRECT_SHARE = 0.5
"""Pairs made here whose other answer is right but shows no working; in the rest it misreads a number."""
ROLES = ("system", "developer", "user", "assistant", "tool")
FORMS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "demonstrations": (("messages",), ("prompt", "completion"), ("question", "answer")),
    "pairs": (("chosen", "rejected"),),
}


class Conversation(msgspec.Struct, frozen=True):
    """Chat messages of which some are learned."""

    messages: tuple[Message, ...]
    first: int
    """What the assistant says from this message on is learned; before, it is context."""
    tools: tuple[dict[str, Any], ...] = ()
    unlearned: frozenset[int] = frozenset()
    """Indices of messages of the assistant that are not learned, only answered to."""


class Example(msgspec.Struct, frozen=True):
    """A demonstration, or a pair."""

    conversations: tuple[Conversation, ...]
    """The one that is shown; or the preferred one and the other."""
    place: str
    """Where it stands, for complaints about it."""


class Examples(Protocol):
    """Examples in a fixed order, by number."""

    def __len__(self) -> int:
        """How many."""
        ...

    def example(self, number: int) -> Example:
        """The one of this number, counted from 0.

        Raises:
            SetupError: the row is no such example; the message says which, and what to write.
        """
        ...


class Listed(msgspec.Struct, frozen=True):
    """Examples that are in memory."""

    examples: tuple[Example, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def example(self, number: int) -> Example:
        """See `Examples`."""
        return self.examples[number]


class Read(msgspec.Struct, frozen=True):
    """Examples that are read when they are drawn."""

    rows: Rows
    numbers: Sequence[int]
    """Which of the rows."""
    kind: Kind
    spec: str
    columns: Mapping[str, str]
    """What the dataset calls a field, by what it is called here."""

    def __len__(self) -> int:
        return len(self.numbers)

    def example(self, number: int) -> Example:
        """See `Examples`."""
        row = self.numbers[number]
        place = f"{self.spec}, row {row + 1}"
        try:
            return _example(_renamed(self.rows.row(row), self.columns, place), self.kind, place)
        except msgspec.DecodeError as error:
            raise SetupError(f"{place}: not JSON: {error}") from error


class ExampleSet(msgspec.Struct, frozen=True):
    """What is trained on, and what is not."""

    train: Examples
    held_out: Examples


def open_examples(spec: str, kind: Kind, *, seed: int, held_out: int | str, columns: Mapping[str, str]) -> ExampleSet:
    """Open `arithmetic`, or whatever else `[task] dataset` may name.

    Args:
        spec: which dataset.
        kind: what its rows are.
        seed: decides which rows are held out.
        held_out: another dataset, or how many examples: of the dataset's test split where it has one, else rows that are then
            not trained on, nor are others with the same prompt.
        columns: where the dataset calls a field otherwise: its name there.

    Raises:
        RecipeError: there is no such dataset, or it has too few rows to hold out so many.
        SetupError: it cannot be had, or a row is not such an example; the message says where and what to do.
    """
    count = held_out if isinstance(held_out, int) else 0
    kept: Examples
    if spec == "arithmetic":
        train: Examples = Listed(arithmetic_examples(kind, "train", ARITHMETIC_EXAMPLES, seed))
        kept = Listed(arithmetic_examples(kind, "test", count, HELD_OUT_SEED))
    else:
        source = open_source(spec)
        train = Read(source.train, range(len(source.train)), kind, spec, columns)
        if source.test is None:
            train, kept = _split(train, count, seed)
        else:
            kept = _enough(Read(source.test, range(len(source.test)), kind, f"{spec}, held out", columns), count)
    if isinstance(held_out, str):
        rows = open_source(held_out).train
        kept = Read(rows, range(len(rows)), kind, held_out, columns)
        train = _without(train, kept, spec) if isinstance(train, Read) else train
    return ExampleSet(train, kept)


# ---------------------------------------------------------------- made here


def arithmetic_examples(kind: Kind, split: Split, count: int, seed: int) -> tuple[Example, ...]:
    """Word problems of this project's own: worked answers; for pairs each against one that is worse."""
    rng = random.Random(f"pairs {split} {seed}")
    made = islice(problems(split, seed), count)
    return tuple(_told(problem, kind, f"{kind} made here, number {number}", rng) for number, problem in enumerate(made))


def _told(problem: Problem, kind: Kind, place: str, rng: random.Random) -> Example:
    answers = [problem.answer]
    if kind == "pairs":
        answers.append(problem.direct_answer if rng.random() < DIRECT_SHARE else _misread(problem, rng).answer)
    asked = {"role": "user", "content": problem.question}
    return Example(tuple(Conversation((asked, {"role": "assistant", "content": answer}), 1) for answer in answers), place)


def _misread(problem: Problem, rng: random.Random) -> Problem:
    """The problem with another number in one of its steps, worked to the end."""
    wrong = rng.randrange(len(problem.steps))
    while True:
        steps: list[Step] = []
        for number, step in enumerate(problem.steps):
            left = steps[-1].result if steps else step.left
            steps.append(Step(left, step.sign, rng.randint(1, 9) if number == wrong else step.right))
        if steps[-1].result != problem.result and all(step.result > 0 for step in steps):
            return Problem(problem.question, problem.item, (steps[0], steps[1]))


# ---------------------------------------------------------------- from rows


def _renamed(row: object, columns: Mapping[str, str], place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise SetupError(f"{place}: expected an object, got {type(row).__name__}")
    if missing := [name for name in columns.values() if name not in row]:
        raise SetupError(f"{place}: task.columns names `{missing[0]}`; the row has {', '.join(f'`{name}`' for name in row) or 'no fields'}")
    return {**row, **{ours: row[theirs] for ours, theirs in columns.items()}}


def _forms(kind: Kind) -> str:
    return " or ".join(" and ".join(f"`{name}`" for name in form) for form in FORMS[kind])


def _example(row: dict[str, Any], kind: Kind, place: str) -> Example:
    form = next((form for form in FORMS[kind] if all(name in row for name in form)), None)
    if form is None:
        raise SetupError(f"{place}: expected {_forms(kind)}; the row has {', '.join(f'`{name}`' for name in row) or 'no fields'}")
    tools = tuple(row.get("tools") or ())
    if kind == "pairs":
        return Example(tuple(msgspec.structs.replace(one, tools=tools) for one in _pair(row, place)), place)
    if form == ("messages",):
        messages = _messages(row["messages"], "assistant", f"{place}: `messages`")
        first = next(index for index, message in enumerate(messages) if message["role"] == "assistant")
        return Example((Conversation(messages, first, tools),), place)
    asked, answered = (row[name] for name in form)
    prompt = _messages(asked, "user", f"{place}: `{form[0]}`")
    return Example((Conversation(prompt + _answer(answered, f"{place}: `{form[1]}`"), len(prompt), tools),), place)


def _pair(row: dict[str, Any], place: str) -> list[Conversation]:
    names = FORMS["pairs"][0]
    answers = [_answer(row[name], f"{place}: `{name}`") for name in names]
    if answers[0] == answers[1]:
        raise SetupError(f"{place}: `chosen` and `rejected` are the same; leave the row out")
    if all(answer[0]["role"] == "assistant" for answer in answers):
        if "prompt" not in row:
            raise SetupError(f"{place}: `prompt` is missing, and `chosen` is no whole conversation; add what is answered")
        prompt = _messages(row["prompt"], "user", f"{place}: `prompt`")
        return [Conversation(prompt + answer, len(prompt)) for answer in answers]
    together = zip(*answers, strict=False)
    first = next((index for index, (one, other) in enumerate(together) if one != other), min(map(len, answers)))
    if first == min(map(len, answers)):
        raise SetupError(f"{place}: one of `chosen` and `rejected` is the beginning of the other; each needs an answer of its own")
    return [Conversation(answer, first) for answer in answers]


def _answer(said: Any, place: str) -> tuple[Message, ...]:
    """Messages, the last of which is the assistant's."""
    messages = _messages(said, "assistant", place)
    if messages[-1]["role"] != "assistant":
        raise SetupError(f"{place} ends with a message of the {messages[-1]['role']}; it must end with the assistant's")
    return messages


def _messages(said: Any, role: str, place: str) -> tuple[Message, ...]:
    """Chat messages as they stand, or a text as one message of this role."""
    if isinstance(said, str) and said.strip():
        return ({"role": role, "content": said},)
    if not isinstance(said, list) or not said:
        raise SetupError(f"{place} must be a text that is not empty or a list of chat messages, got {said!r:.60}")
    for index, message in enumerate(said):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise SetupError(f"{place}[{index}] must be an object whose `role` is one of {', '.join(ROLES)}, got {message!r:.60}")
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise SetupError(f"{place}[{index}] must have `content` or `tool_calls`, got {message!r:.60}")
    if role == "assistant" and all(message["role"] != "assistant" for message in said):
        raise SetupError(f"{place} has no message of the assistant; there is nothing to learn from it")
    return tuple(said)


# ---------------------------------------------------------------- held out


def _prompt(example: Example) -> bytes:
    conversation = example.conversations[0]
    return msgspec.json.encode(conversation.messages[: conversation.first])


def _enough(examples: Read, count: int) -> Read:
    if count > len(examples):
        raise RecipeError(f"`task.held_out`: found {count}, but {examples.spec} has {len(examples)} examples; write at most so many")
    return msgspec.structs.replace(examples, numbers=examples.numbers[:count])


def _split(examples: Read, count: int, seed: int) -> tuple[Read, Read]:
    """All but `count` examples and their like, and those; both in the order of the dataset."""
    if count >= len(examples):
        raise RecipeError(
            f"`task.held_out`: found {count}, but {examples.spec} has {len(examples)} rows; hold out fewer, or name a second file"
        )
    kept = sorted(random.Random(f"held out {seed}").sample(range(len(examples)), count))
    held_out = msgspec.structs.replace(examples, numbers=kept)
    return (_without(examples, held_out, f"{count} rows held out") if kept else examples), held_out


def _without(examples: Read, kept: Examples, what: str) -> Read:
    prompts = {_prompt(kept.example(number)) for number in range(len(kept))}
    left = [row for number, row in enumerate(examples.numbers) if _prompt(examples.example(number)) not in prompts]
    if not left:
        raise RecipeError(
            f"`task.held_out`: every prompt of {examples.spec} is held out with {what}; name other examples, or hold out fewer"
        )
    return msgspec.structs.replace(examples, numbers=left)
