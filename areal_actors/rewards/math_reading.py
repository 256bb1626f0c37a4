r"""Reads the result that a reference or an answer states, and compares two of them.

The place that counts is the last of a box, a line after four hashes and an `<answer>`; without one of them what follows
`Answer:`, a text that is nothing but its result, or the last formula or number of the text. A result is compared as
text first, then as its kind (`math_text`), as an amount with a unit (`math_units`), and only then as an expression by
`math-verify`.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from areal_actors.rewards.checks import optional_package
from areal_actors.rewards.math_alignment import align_forms, comparable, lists_elements, substitute_imaginary_unit
from areal_actors.rewards.math_places import after_mark, find_tagged, first_sentence, is_one_line, remove_decoration
from areal_actors.rewards.math_size import differ_in_size, has_value, is_false_equation
from areal_actors.rewards.math_statement import (
    boxes,
    contents,
    hashes,
    is_prose,
    last_list,
    normalize_latex,
    without_set_builder,
)
from areal_actors.rewards.math_text import canonical, in_words, is_readable, kind, same_kind
from areal_actors.rewards.math_units import amount

_FORMULA = re.compile(r"(?<!\\)\$([^$]{1,400})(?<!\\)\$|\\\((.{1,400}?)\\\)", re.DOTALL)
_AFTER_THOUGHT = re.compile(r"</think(?:ing)?>|◁/think▷", re.IGNORECASE)


class Statement(NamedTuple):
    """A stated result."""

    texts: tuple[str, ...]
    """LaTeX; two texts for a choice with its value; empty if a box states nothing."""
    listed: tuple[str, ...] = ()
    """Contents of the boxes of a list, if there are several."""
    from_prose: bool = False
    """The text is a sentence: its formula or its last number counts."""


class Reference(NamedTuple):
    """The result of a task."""

    statement: Statement
    whole: str
    """Canonical form of the whole text, to which an answer may be equal."""

    @property
    def is_readable(self) -> bool:
        """False if no answer could be equal to it."""
        if not self.statement.texts:
            return False
        if self.statement.from_prose:
            return bool(_read_prose(self.statement.texts[0]))
        return any(is_readable(text) or bool(expressions(text)) for text in self.statement.texts)

    @property
    def is_text_only(self) -> bool:
        """True if answers are compared with it as text only: it is neither an expression nor of a known kind."""
        return not self.statement.from_prose and not any(
            kind(text) or amount(text, in_words(text)) or expressions(text) for text in self.statement.texts
        )


@cache
def library() -> Any:
    """Returns the `math_verify` package; raises like `optional_package`, also without its grammar."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no timeout; the rule sets one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optional_package("math_verify", "math", "math-verify")


def read_reference(solution: str) -> Reference:
    """Returns the result that a task's solution states, or is."""
    solution = solution.strip()
    statement = _marked_result(solution)
    if statement is None:
        texts = tuple(contents(remove_decoration(solution)))
        prose = is_prose(solution) and not any(kind(text) or amount(text, in_words(text)) for text in texts)
        marked = after_mark(solution) if prose else None
        if marked:
            statement = _alone(first_sentence(marked))
        elif prose and (_read_prose(solution) or not is_readable(solution)):
            statement = Statement((solution,), from_prose=True)
        else:
            statement = Statement(texts)
    return Reference(statement, canonical(solution))


def states(reference: Reference, answer: str) -> bool:
    """True if an answer states the result of the reference."""
    thought = list(_AFTER_THOUGHT.finditer(answer))
    after = answer[thought[-1].end() :] if thought else answer
    stated = _marked_result(after)
    if stated is None and not (after_mark(after) or is_one_line(after)):
        stated, after = _marked_result(answer), answer  # nothing but a greeting follows the thought
    if stated is None:
        return _states_unmarked(reference, after)
    if same(reference, stated):
        return True
    together = [box.content for box in boxes(answer)]
    truth = read_statement(reference.statement)
    return len(together) > 1 and any(map(lists_elements, truth)) and _equal(truth, _read_list(together))


def same_text(reference: Reference, stated: Statement) -> bool:
    """True if a stated result is the text of the reference, apart from notation."""
    texts = () if reference.statement.listed else reference.statement.texts
    truths = {canonical(text) for text in texts if is_readable(text)} | {reference.whole}
    return any(text in truths for text in map(canonical, stated.texts) if text)


def same(reference: Reference, stated: Statement) -> bool:
    """True if a stated result is that of the reference: as text, by its kind, or as an expression."""
    if same_text(reference, stated):
        return True
    if reference.statement.listed or reference.statement.from_prose or stated.from_prose:
        return _equal(read_statement(reference.statement), read_statement(stated))
    return any(_same_text(truth, text) for truth in reference.statement.texts for text in stated.texts)


def _same_text(truth: str, text: str) -> bool:
    true_kind, stated_kind = kind(truth), kind(text)
    if true_kind or stated_kind:
        return same_kind(true_kind, canonical(truth), stated_kind, canonical(text))
    true_amount, stated_amount = amount(truth, in_words(truth)), amount(text, in_words(text))
    if true_amount and stated_amount and true_amount.dimension and stated_amount.dimension:
        if true_amount.dimension != stated_amount.dimension:
            return False
        if true_amount.factor != stated_amount.factor:
            sides = [
                [value * side.factor for value in expressions(side.value)] for side in (true_amount, stated_amount)
            ]
            return _equal(tuple(sides[0]), sides[1])
    return _equal(
        expressions(true_amount.value if true_amount else truth),
        list(expressions(stated_amount.value if stated_amount else text)),
    )


def _marked_result(text: str) -> Statement | None:
    """Returns the result in the last box, line after hashes or `<answer>`; None if there is none of them."""
    marked_boxes, line, tag = boxes(text), hashes(text), find_tagged(text)
    last_box = marked_boxes[-1].end if marked_boxes else -1
    if tag and tag[0] > last_box and not (line and line[0] > tag[0]):
        return _marked_result(tag[1]) or _alone(tag[1])
    if line and not (marked_boxes and marked_boxes[-1].start > line[0]):
        stated = _alone(line[1])
        if not marked_boxes or read_statement(stated) or any(map(kind, stated.texts)):
            return stated
    if not marked_boxes:
        return None
    listed = tuple(box.content for box in last_list(text, marked_boxes))
    return Statement(tuple(contents(remove_decoration(marked_boxes[-1].content))), listed if len(listed) > 1 else ())


def _alone(text: str) -> Statement:
    """Returns the result of a text that is a result, or has a formula or a number among its words."""
    text = remove_decoration(text.strip())
    texts = tuple(contents(text))
    if any(kind(part) or amount(part, in_words(part)) for part in texts) or not is_prose(text):
        return Statement(texts)
    return Statement((text,), from_prose=True)


def _states_unmarked(reference: Reference, answer: str) -> bool:
    """Compares with what follows `Answer:`, with a text that is only its result, or with the last formula or number."""
    for line, marked in ((after_mark(answer), True), (answer if is_one_line(answer) else None, False)):
        if line is None:
            continue
        for text in dict.fromkeys((line, first_sentence(line))):
            stated = _alone(text)
            if same_text(reference, stated):
                return True
            if (
                stated.texts
                and not stated.from_prose
                and (_is_of_kind(stated, marked=marked) or read_statement(stated))
            ):
                return same(reference, stated)
    if any(map(kind, reference.statement.texts)):
        formulas = _FORMULA.findall(answer)
        return bool(formulas) and same(reference, _alone(next(filter(None, formulas[-1]))))
    return _equal(read_statement(reference.statement), list(_read_prose(answer)))


def _is_of_kind(stated: Statement, *, marked: bool) -> bool:
    """True for a result of a kind; words only after a mark, because `That makes 18` states a number."""
    return any(
        statement_kind is not None and (marked or statement_kind.name != "words")
        for statement_kind in map(kind, stated.texts)
    )


def read_statement(statement: Statement) -> tuple[Any, ...]:
    """Returns the expressions of a statement; none of a kind that is no expression."""
    if statement.listed:
        return tuple(_read_list(statement.listed))
    if statement.from_prose:
        return _read_prose(statement.texts[0])
    values: list[Any] = []
    for text in statement.texts:
        if kind(text) is None:
            stated = amount(text, in_words(text))
            values.extend(expressions(stated.value if stated else text))
    return tuple(values)


@lru_cache(maxsize=4096)
def expressions(latex: str) -> tuple[Any, ...]:
    """Parses an expression as a whole or not at all: never only a number in it.

    Cached: a group shares its reference.
    """
    return tuple(_read(f"${without_set_builder(latex.strip())}$", [library().LatexExtractionConfig()]))


def _read_list(boxed: Sequence[str]) -> list[Any]:
    """Parses the contents of several boxes as one set."""
    return list(expressions(", ".join(stated for content in boxed for stated in contents(content))))


@lru_cache(maxsize=1024)
def _read_prose(text: str) -> tuple[Any, ...]:
    return tuple(_read(text))


def _read(text: str, config: Sequence[Any] | None = None) -> list[Any]:
    """Returns the expressions that the library finds in a text, without unparsable ones and ones without a value."""
    options = {} if config is None else {"extraction_config": config}
    read = library().parse(normalize_latex(text), parsing_timeout=None, **options)
    return [
        substitute_imaginary_unit(expression)
        for expression in read
        if not isinstance(expression, str) and has_value(expression)
    ]


def _equal(truth: Sequence[Any], answer: Sequence[Any]) -> bool:
    pairs = [
        (true, stated)
        for true in truth
        for stated in answer
        if comparable(true, stated) and not is_false_equation(stated)
    ]
    return any(
        library().verify(*align_forms(true, stated), timeout_seconds=None, allow_set_relation_comp=True)
        and not differ_in_size(*align_forms(true, stated))
        for true, stated in pairs
    )
