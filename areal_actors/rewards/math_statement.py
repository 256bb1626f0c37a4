r"""Finds the result stated in a text, and rewrites LaTeX that `math-verify` misreads.

A box is `\boxed`, `\fbox` or `\framebox`, with or without a space before its brace, or `\boxed 18` without braces. Of
nested boxes the outer one counts. Everything is text processing: nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_COMMAND = r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*"
_BOX = re.compile(_COMMAND + r"(?:\{|(?P<bare>(?:\\[A-Za-z]+(?=[{\d])|-?\.?\d)[^\s$]*))")
_COMMANDS = re.compile(_COMMAND + r"(?=\{)")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BETWEEN = re.compile(r"(?:[\s$,;.]|\\[(),;\] \[]|\\q?quad|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)*")
_ENDS = re.compile(r"^(?:\$+|\\\(|\\\[)|(?:(?<!\\)\$+|\\\)|(?<!\\)\\\])$")

_HASHES = re.compile(r"#{4,}[ \t]*([^\n]*\w[^\n]*)")
_PROSE = re.compile(r"(?:^|\s)[A-Za-z]{3,}(?=[\s.,;:!?]|$)")
_STATED = re.compile(r"(?<!\\)\$|\\\(|\\\[")
_HEADING = re.compile(r"[*_ ]*[A-Za-z]{3,}(?=[\s.,;:!?*_]|$)")

_TEXT = r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{"
_STATES = r"[^{}\\$\d=]*(?:\b(?:is|are|equals?)\b\s*:?|:)\s*"
_ALL_IN_TEXT = re.compile(rf"{_TEXT}{_STATES}([^{{}}\\$]*)\}}")
_LEADING_WORDS = re.compile(
    rf"(?:{_TEXT}{_STATES}\}}|[A-Za-z][A-Za-z ,]*\b(?:is|are|equals?)\b\s*:?|\\approx(?![A-Za-z])|=)(?:\s|~|\\["
    r" ,;:])*(?=\S)"
)
_LETTER = re.compile(r"\(?([A-J])[.):]{1,2}\s+(?=[\d\\$.(-])")
_STOP = re.compile(r"(?<!\\)[.,;\s]+$")
_CHOICE = re.compile(rf"{_TEXT}\s*\(?([A-J])[).:]{{1,2}}\s*\}}(?:\s|~|\\[ ,;:]|\\q?quad)*(?=\S)")
_WORDS = r"\\(?:text|textrm|mathrm|mbox)\s*\{[^{}]*\}"
_UNIT = re.compile(rf"(?P<value>.*{_WORDS}.*)(?<!\}})\s*{_WORDS}(?:\^\{{?\d\}}?)?$", re.DOTALL)

_DIGITS = r"(?<![\d.])(\d{1,30})?\.(\d{0,30})"
_OVERLINE = re.compile(_DIGITS + r"\\(?:overline|bar)\s*(?:\{\s*(\d{1,30})\s*\}|(\d))")
_DOTS = re.compile(_DIGITS + r"\\dot\s*(?:\{(\d)\}|(\d))(?:(\d{0,30})\\dot\s*(?:\{(\d)\}|(\d)))?")
_IN_BRACKETS = re.compile(r"(?<![\d.])(\d{1,30})\.()\((\d{1,30})\)")
_SET_BUILDER = re.compile(
    r"^(?:(?P<name>[a-z])\s*\\in\s*)?(?:\\left)?\\\{\s*(?P<variable>[a-z])\s*(?:\\in\s*(?:\\mathbb\s*\{R\}|\\mathbb\s*R|\\R))?\s*"
    r"(?:\\mid(?![A-Za-z])|\\vert(?![A-Za-z])|\\colon(?![A-Za-z])|\\(?:,|:)?\s*\||:|\|)\s*"
    r"(?P<condition>(?=[^{}]*(?P=variable))[^|]*?)\s*(?:\\right)?\\\}$"
)
_TO_BASE = re.compile(r"(?<![\w.\\])(\d{1,60})_\{?(\d{1,2})\}?(?!\d)")
_THIN_SPACES = re.compile(r"(?<![\d.,])\d{1,3}(?:\\[,;: ]\d{3})+(?!\d)")

_REWRITES = (
    (re.compile(r"\\varnothing(?![A-Za-z])|∅"), r"\\emptyset"),
    (re.compile(r"\\(?:[dt]?binom)\s*(\d)\s*(\d)"), r"\\binom{\1}{\2}"),
    (re.compile(r"(?:\\left\s*)?\\langle(?![A-Za-z])"), "("),
    (re.compile(r"(?:\\right\s*)?\\rangle(?![A-Za-z])"), ")"),
    (re.compile(r"\\(?:mathrm|text|mathit|operatorname)\s*\{i\}|\\imath(?![A-Za-z])"), " i "),
    (
        re.compile(
            r"\\(?:mathrm|text|textrm|operatorname|mathit|rm)\s*\{e\}|\{\\rm\s+e\}|\\(?:mathrm|rm)\s+e(?![A-Za-z])"
        ),
        "{e}",
    ),
    (re.compile(r"(?<![\w.}])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,5})(?![\w.])"), r"\1 \\times 10^{\2}"),
    (re.compile(r"√\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\d+|[A-Za-z]))"), r"\\sqrt{\1\2\3}"),
    (re.compile(r"∞"), r"\\infty "),
    (re.compile(r"×"), r"\\times "),
    (re.compile(r"\\mathbf\s*\{([A-Za-z])\}"), r" \1 "),
    (re.compile(r"(?<=[\d}])\s*°"), r"^\\circ"),
    (re.compile(r"(?<!\\)~(?!=)"), " "),
    (re.compile(r"(\}|\\[dt]?frac\s*\d\s*\d)\s*\\%"), r"\1"),
)


class Box(NamedTuple):
    """A box of a text."""

    start: int
    end: int
    content: str
    """Empty if the box is never closed."""


def boxes(text: str) -> list[Box]:
    """Returns the outermost boxes, in order; an unclosed one is included only if it is the last."""
    closing = _closing_braces(text)
    closed: list[Box] = []
    last_open = None
    for match in _BOX.finditer(text):
        if closed and match.start() < closed[-1].end:
            continue
        if match["bare"] is not None:
            closed.append(Box(match.start(), match.end(), match["bare"]))
        elif (end := closing.get(match.end() - 1)) is not None:
            closed.append(Box(match.start(), end + 1, _COMMANDS.sub("", text[match.end() : end])))
        else:
            last_open = Box(match.start(), len(text), "")
    if last_open is not None and (not closed or closed[-1].start < last_open.start):
        closed.append(last_open)
    return closed


def _closing_braces(text: str) -> dict[int, int]:
    """Returns the position of the closing brace of each opening one; escaped braces are ignored."""
    open_at: list[int] = []
    closing: dict[int, int] = {}
    for match in _BRACES.finditer(text):
        if match[0] == "{":
            open_at.append(match.start())
        elif match[0] == "}" and open_at:
            closing[open_at.pop()] = match.start()
    return closing


def last_list(text: str, all_boxes: Sequence[Box]) -> list[Box]:
    """Returns the last box, and those before it separated only by commas, `and`, `or` and dollars."""
    first = len(all_boxes) - 1
    while first > 0 and _BETWEEN.fullmatch(text, all_boxes[first - 1].end, all_boxes[first].start):
        first -= 1
    return list(all_boxes[max(first, 0) :])


def hashes(text: str) -> tuple[int, str] | None:
    """Returns position and text of the last line after four hashes that is not a heading (`#### Step 2`)."""
    lines = [match for match in _HASHES.finditer(text) if not _HEADING.match(match[1])]
    return (lines[-1].start(), lines[-1][1].strip("$*_` .")) if lines else None


def without_set_builder(latex: str) -> str:
    r"""Returns the condition of a set of real numbers, `x > 1` of `\{x \mid x > 1\}`; other texts unchanged."""
    match = _SET_BUILDER.match(latex)
    return match["condition"] if match and re.search(r"[<>=≤≥]|\\(?:le|ge|ne|in)", match["condition"]) else latex


def is_prose(text: str) -> bool:
    r"""True if the text has words outside of `\text{}`, or marks its expression with dollars."""
    return bool(_STATED.search(text) or _PROSE.search(re.sub(_WORDS, "", text)))


def contents(box: str) -> list[str]:
    r"""Returns the expressions in the content of a box; two for a choice with its value, `\textbf{(B)}\ 18`."""
    text = _ENDS.sub("", " ".join(box.split())).strip()
    if whole := _ALL_IN_TEXT.fullmatch(text):
        text = whole[1]
    if words := _LEADING_WORDS.match(text):
        text = text[words.end() :]
    text = _STOP.sub("", text)
    if choice := _CHOICE.match(text) or _LETTER.match(text):
        return [choice[1], text[choice.end() :]]
    if unit := _UNIT.fullmatch(text):
        text = unit["value"]  # the library would drop everything from the first words to these
    return [text] if text else []


def normalize_latex(text: str) -> str:
    r"""Returns the text with repeating decimals as fractions, and other LaTeX in a form that the library parses.

    `0.1\overline{6}`, `0.1\dot{6}` and `0.(6)` repeat; `0.1(6)` may be a product and stays.
    """
    for pattern in (_OVERLINE, _DOTS, _IN_BRACKETS):
        text = pattern.sub(_fraction, text)
    text = _TO_BASE.sub(_to_decimal, text)
    text = _THIN_SPACES.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _to_decimal(match: re.Match[str]) -> str:
    """Returns a number to a base as a decimal one; the library would drop the base."""
    base = int(match[2])
    valid = 2 <= base <= 36 and all(int(digit) < base for digit in match[1])
    return str(int(match[1], base)) if valid else match[0]


def _fraction(match: re.Match[str]) -> str:
    """Returns a repeating decimal as a fraction.

    It is all digits minus the non-repeating ones, over as many nines and zeros.
    """
    whole, fixed, *rest = (group or "" for group in match.groups())
    repeating = "".join(rest)
    numerator = int(whole + fixed + repeating) - int(whole + fixed or "0")
    return rf"\frac{{{numerator}}}{{{(10 ** len(repeating) - 1) * 10 ** len(fixed)}}}"
