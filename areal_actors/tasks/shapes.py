"""Recognises the columns of published data sets, and reads their rows as tasks.

A task has a `question`, an `answer` and, for chats, `messages`. A column that `task.columns` names is taken; what it
does not name is recognised by the first row. The same columns are read in every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.tasks.rows import DatasetRows, field_names, list_paths, paths_of
from areal_actors.tasks.values import MISSING, as_messages, as_text, split_answer, text_of, value_at

QUESTIONS = (
    "question",
    "prompt",
    "problem",
    "messages",
    "conversations",
    "conversation",
    "query",
    "instruction",
    "input",
    "text",
)
"""Columns in which published data sets have what is asked, in order of preference."""
ANSWERS = (
    *(
        "answer",
        "reward_model.ground_truth",
        "ground_truth",
        "final_answer",
        "expected_answer",
        "reference_answer",
        "solution",
    ),
    *("answers", "target", "gold", "label", "response", "output", "completion", "chosen"),
)
"""Columns in which they have the answer; without any, that of a chat is what follows its last message of a user."""
CONTEXT = "input"
"""Column of Alpaca's rows whose text, if there is any, follows the instruction."""
LOOKED_AT = 1000
"""Number of rows in which a further field of `task.columns` must occur."""


class Shape(msgspec.Struct, frozen=True):
    """Columns of a data set by the field of a task."""

    columns: Mapping[str, str]
    """Column or path by field."""
    recognised: Mapping[str, str] = {}
    """Those of them that `task.columns` does not name."""
    chat: bool = False
    """True if the question is a list of messages."""
    answer_in_chat: bool = False
    """True if the answer is what follows the last message of a user."""

    def is_plain(self) -> bool:
        """True if every field is a column with a text or a number, which needs no reading of its own."""
        return not self.chat and not self.answer_in_chat and not any("." in path for path in self.columns.values())

    def describe(self) -> str:
        """The recognised columns; empty if all are named as usual."""
        parts = [f"{field} = `{path}`" for field, path in self.recognised.items() if field != path or self.chat]
        if self.chat and parts:
            parts[0] += " (chat messages)"
        return ", ".join(
            [*parts, *(["answer = what follows the last message of the user"] if self.answer_in_chat else [])]
        )


def find_shape(rows: DatasetRows, name: str, columns: Mapping[str, str], *, answers: bool) -> Shape:
    """Find the columns of a data set.

    Raises:
        SetupError: `columns` name what no row has, or nothing is recognised; the message has the columns that exist.
    """
    _raise_first_error(rows, [])
    first = rows.row(0) if len(rows) else {}
    _check_named(rows, name, columns)
    question = columns.get("question") or next((path for path in QUESTIONS if _is_question(value_at(first, path))), "")
    if not question:
        _raise_first_error(rows, ["question"])
        raise SetupError(f"{name}, row 0: `question` is missing; {_remedy(first, 'question')}")
    chat = as_messages(value_at(first, question))
    candidates = [path for path in ANSWERS if path != question]
    answer = columns.get("answer") or next(
        (path for path in candidates if (as_text(value_at(first, path)) or "").strip()), ""
    )
    in_chat = not answer and chat is not None and split_answer(chat)[1] is not None
    if answers and not answer and not in_chat:
        several = next((path for path in candidates if isinstance(value_at(first, path), list)), "")
        if several:
            raise SetupError(f"{name}, row 0: {_choose_value('answer', several)}")
        _raise_first_error(rows, ["answer"])
        raise SetupError(f"{name}, row 0: `answer` is missing; {_remedy(first, 'answer')}")
    fields = {**columns, "question": question, **({"answer": answer} if answer else {})}
    recognised = {field: path for field, path in fields.items() if field not in columns}
    return Shape(columns=fields, recognised=recognised, chat=chat is not None, answer_in_chat=in_chat)


def _raise_first_error(rows: DatasetRows, fields: Sequence[str]) -> None:
    """Raise the error of the first row, which names its place in the file."""
    next(iter(rows.texts(fields)), None)


def _is_question(value: Any) -> bool:
    return as_messages(value) is not None or (isinstance(value, str) and bool(value.strip()))


def _check_named(rows: DatasetRows, name: str, columns: Mapping[str, str]) -> None:
    """Refuse a path that finds nothing."""
    wanted = {field: path for field, path in columns.items() if field not in {"question", "answer"} or "." in path}
    looked_at = min(len(rows), LOOKED_AT)
    for number in range(looked_at):
        row = rows.row(number)
        wanted = {field: path for field, path in wanted.items() if value_at(row, path) is MISSING}
        if not wanted:
            return
    for field, path in wanted.items():
        where = f"none of the first {looked_at} rows" if looked_at > 1 else "the first row"
        raise SetupError(
            f'{name}: `task.columns` has {field} = "{path}", which {where} has; the columns are'
            f" {field_names(paths_of(rows.row(0)))}"
        )


def _remedy(row: Mapping[str, Any], field: str) -> str:
    return f"the row has {list_paths(row)}; if it is one of these, write `task.columns = {{ {field} = … }}`"


def _choose_value(field: str, path: str) -> str:
    return f'`{path}` has several values; choose one: `task.columns = {{ {field} = "{path}.0" }}`'


class ShapedRows:
    """Rows of a source with the fields of a task, beside their own."""

    def __init__(self, source: DatasetRows, shape: Shape, name: str) -> None:
        self.source = source
        self.shape = shape
        self.name = name

    def __len__(self) -> int:
        return len(self.source)

    def row(self, number: int) -> dict[str, Any]:
        """See `DatasetRows`; also raises if a field is missing in this row."""
        return self._convert_row(self.source.row(number), number)

    def texts(self, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """See `DatasetRows`; the text of a chat is that of all its messages."""
        for number in range(len(self.source)):
            row = self.row(number)
            texts = {
                **row,
                "question": repr(row["messages"]) if "messages" in row and self.shape.chat else row["question"],
            }
            yield tuple(texts[field] for field in fields)

    def _convert_row(self, row: dict[str, Any], number: int) -> dict[str, Any]:
        shape, place = self.shape, f"{self.name}, row {number}"
        named = {field: value_at(row, path) for field, path in shape.columns.items()}
        fields = {field: value for field, value in named.items() if value is not MISSING}
        if shape.chat:
            messages = as_messages(named["question"])
            if messages is None:
                raise SetupError(f"{place}: `{shape.columns['question']}` must be a list of messages, as in row 0")
            prompt, answer = split_answer(messages)
            fields |= {"messages": prompt, "question": text_of(prompt)}
            if shape.answer_in_chat:
                fields["answer"] = answer
        for field in ("question", *(["answer"] if "answer" in shape.columns or shape.answer_in_chat else [])):
            text = as_text(fields.get(field))
            if text is None or not text.strip():
                path = shape.columns.get(field, shape.columns["question"])
                if isinstance(value := fields.get(field), list) and len(value) > 1 and as_text(value[0]) is not None:
                    raise SetupError(f"{place}: {_choose_value(field, path)}")
                raise SetupError(
                    f"{place}: `{path}` must be a non-empty text or a number, got {fields.get(field)!r:.40}"
                )
            fields[field] = text
        return {**row, **fields}
