"""Differences relative to size: two values are not equal because both are small.

`math-verify` rounds to six decimals, or compares to 15 places after the point, so that below 1e-17 everything equals
everything. What it finds equal is compared here once more, by relative differences.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

EXACT_DIGITS = 60
"""Digits to which expressions without decimal points are computed."""
EXACT = 1e-50
"""Largest relative difference of equal expressions without decimal points."""
ROUNDED = 1e-5
"""Largest relative difference if a decimal point occurs: 0.33333 is a third, 0.3333 is not."""
_PLACES = ("1.3717", "0.7391")
"""Values of all free symbols at which two expressions in them must agree."""


@cache
def _sympy() -> Any:
    return importlib.import_module("sympy")


def differ_in_size(truth: Any, answer: Any) -> bool:
    """True if two expressions that were found equal are not, relative to their size."""
    sympy = _sympy()
    truth, answer = _value(truth), _value(answer)
    if isinstance(truth, sympy.Interval) and isinstance(answer, sympy.Interval):
        return differ_in_size(truth.start, answer.start) or differ_in_size(truth.end, answer.end)
    if isinstance(truth, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        return any(differ_in_size(*pair) for pair in zip(truth.flat(), answer.flat(), strict=False))
    if isinstance(truth, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
        return _lacks_counterpart(truth.args, answer.args) or _lacks_counterpart(answer.args, truth.args)
    if isinstance(truth, sympy.Tuple) and isinstance(answer, sympy.Tuple):
        return any(differ_in_size(*pair) for pair in zip(truth.args, answer.args, strict=False))
    if isinstance(truth, sympy.Expr) and isinstance(answer, sympy.Expr):
        percent = sympy.UnevaluatedExpr(sympy.Rational(1, 100))
        return _differ(truth, answer) and _differ(truth.subs(percent, 1), answer.subs(percent, 1))
    return False


def has_value(expression: Any) -> bool:
    """False for what divides by zero."""
    return expression not in (_sympy().nan, _sympy().zoo)


def is_false_equation(expression: Any) -> bool:
    """True for an equation of two numbers that differ, such as `6 = 5`: the library would take its right side."""
    parts = expression.args if isinstance(expression, _sympy().And) else (expression,)
    return any(
        isinstance(part, _sympy().Eq)
        and isinstance(part.lhs, _sympy().Expr)
        and isinstance(part.rhs, _sympy().Expr)
        and not part.lhs.free_symbols
        and not part.rhs.free_symbols
        and _differ(part.lhs, part.rhs)
        for part in parts
    )


def _value(expression: Any) -> Any:
    return (
        expression.rhs
        if isinstance(expression, _sympy().Eq) and isinstance(expression.lhs, _sympy().Symbol)
        else expression
    )


def _lacks_counterpart(elements: Iterable[Any], counterparts: Iterable[Any]) -> bool:
    return any(all(differ_in_size(element, counterpart) for counterpart in counterparts) for element in elements)


def _differ(truth: Any, answer: Any) -> bool:
    sympy = _sympy()
    symbols = truth.free_symbols | answer.free_symbols
    tolerance = ROUNDED if truth.has(sympy.Float) or answer.has(sympy.Float) else EXACT
    if not symbols:
        return _numbers_differ(truth, answer, tolerance)
    for place in _PLACES:
        values = {
            symbol: sympy.Rational(place) + sympy.Rational(number, 7)
            for number, symbol in enumerate(sorted(symbols, key=str))
        }
        with suppress(Exception):  # functions that have no value there
            if _numbers_differ(truth.subs(values), answer.subs(values), tolerance):
                return True
    return False


def _numbers_differ(truth: Any, answer: Any, tolerance: float) -> bool:
    sympy = _sympy()
    truth_value, answer_value = sympy.N(truth, EXACT_DIGITS), sympy.N(answer, EXACT_DIGITS)
    if not (truth_value.is_number and answer_value.is_number and truth_value.is_finite and answer_value.is_finite):
        return False
    truth_value, answer_value = sympy.N(truth_value), sympy.N(answer_value)
    largest = max(abs(truth_value), abs(answer_value))
    if largest == 0 or (largest < sympy.Float("1e-25") and (truth.equals(0) and answer.equals(0))):
        return False
    difference = sympy.N(truth - answer, EXACT_DIGITS)
    return bool(difference.is_number and abs(difference) > tolerance * largest)
