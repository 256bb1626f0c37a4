r"""Aligns the forms of two expressions, where `math-verify` treats equivalent forms as different.

A vector and a point become tuples (`\begin{pmatrix}1\\2\end{pmatrix}`, `(1, 2)`), `x < 1 \text{ or } x > 2` becomes a
union, and the symbol `i` the imaginary unit. Expressions are `sympy` objects; sympy is imported only together with the
library.
"""

from __future__ import annotations

import importlib
from functools import cache
from itertools import combinations
from typing import Any


@cache
def _sympy() -> Any:
    return importlib.import_module("sympy")


def substitute_imaginary_unit(expression: Any) -> Any:
    """Replaces free symbols named `i` by the imaginary unit, if possible."""
    units = [symbol for symbol in getattr(expression, "free_symbols", ()) if symbol.name == "i"]
    if not units or isinstance(expression, _sympy().Interval | _sympy().And):
        return expression
    try:
        return expression.subs(dict.fromkeys(units, _sympy().I))
    except Exception:  # noqa: BLE001 - sympy raises many kinds of errors if a replacement makes no sense
        return expression


def lists_elements(truth: Any) -> bool:
    r"""True if this is a set of several elements, such as `\{1, 2\}`, `1, 2`, `\pm 2` and `x = \pm 2`."""
    if isinstance(truth, _sympy().Eq):
        truth = truth.rhs
    return isinstance(truth, _sympy().FiniteSet) and len(truth) > 1


def align_forms(truth: Any, answer: Any) -> tuple[Any, Any]:
    """Returns both in the same form; unchanged if there is no common one."""
    if _is_point(truth) and _is_vector(answer):
        return truth, _tuple(answer)
    if _is_vector(truth) and _is_point(answer):
        return _tuple(truth), answer
    try:
        if (
            _is_bounds(truth)
            and _is_bounds(answer)
            and len(truth.free_symbols) == 1
            and truth.free_symbols == answer.free_symbols
        ):
            return truth.as_set(), answer.as_set()
        return _as_set(truth, answer), _as_set(answer, truth)
    except Exception:  # noqa: BLE001 - sympy cannot find the solution set of every statement
        return truth, answer


def comparable(truth: Any, answer: Any) -> bool:
    """False for bounds and a list of elements: the library would treat `1 < x < 2` as the pair of 1 and 2."""
    return not (_is_bounds(truth) and _is_list(answer)) and not (_is_bounds(answer) and _is_list(truth))


def _is_bounds(expression: Any) -> bool:
    if isinstance(expression, _sympy().Eq):
        return isinstance(expression.rhs, _sympy().Interval) and isinstance(expression.lhs, _sympy().Symbol)
    parts = expression.args if isinstance(expression, _sympy().And) else (expression,)
    return all(isinstance(part, _sympy().Rel) and not isinstance(part, _sympy().Eq) for part in parts)


def _is_list(expression: Any) -> bool:
    if isinstance(expression, _sympy().FiniteSet):
        return not any(_is_bounds(part) for part in expression.args)
    return isinstance(expression, _sympy().Tuple)


def _is_vector(expression: Any) -> bool:
    return isinstance(expression, _sympy().MatrixBase) and min(expression.shape) == 1 < max(expression.shape)


def _is_point(expression: Any) -> bool:
    """True for a tuple, and for a finite open interval, as which `(1, 2)` is parsed."""
    if isinstance(expression, _sympy().Interval):
        return bool(expression.is_open and expression.start.is_finite and expression.end.is_finite)
    return isinstance(expression, _sympy().Tuple)


def _tuple(vector: Any) -> Any:
    return _sympy().Tuple(*vector)


def _as_set(expression: Any, counterpart: Any) -> Any:
    """Returns the solution set of a statement about a variable, if the other is or states a set.

    Alternatives (`x < 1, x > 2`) are a union only if they are disjoint: `x > 1, x < 2` may mean both at once.
    """
    if (
        isinstance(expression, _sympy().Eq)
        and isinstance(expression.rhs, _sympy().Set)
        and not isinstance(counterpart, _sympy().Eq)
    ):
        return expression.rhs
    values = counterpart.rhs if isinstance(counterpart, _sympy().Eq) else counterpart
    if not isinstance(values, _sympy().Interval | _sympy().Union | _sympy().Complement) or not isinstance(
        expression, _sympy().FiniteSet
    ):
        return expression
    if len(expression.free_symbols) != 1 or not all(
        isinstance(part, _sympy().Rel | _sympy().And) for part in expression.args
    ):
        return expression
    parts = [part.as_set() for part in expression.args]
    disjoint = all(first.intersect(second).is_empty for first, second in combinations(parts, 2))
    return _sympy().Union(*parts) if disjoint else expression
