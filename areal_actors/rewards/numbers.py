r"""Parses numbers, as written by people and language models, as exact fractions.

    18   1,234.50   $-5   −7   .5   1/2   1 1/2   ½   \frac{1}{2}   2\dfrac12   1.5e3   1.5 \times 10^{3}   50%

A percent sign and a unit are not part of the number: `50%` is 50 and `5 km` is 5. Digits inside a word, a version or an
exponent (`m2`, `1.2.3`, `m^2`) are not numbers, nor is anything with more than 300 digits or a division by zero. Whole
numbers compare exactly; if one side is not whole, the tolerance is a millionth, so that 0.30000000000000004 is 0.3.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from itertools import pairwise

TOLERANCE = Fraction(1, 1_000_000)
"""Largest difference of equal numbers, if at least one of them is not whole."""

MAX_DIGITS = 300

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_OPERAND = rf"-?\s?{_DECIMAL}"
_NUMBER = re.compile(
    rf"""
    (?<![^\W_]) (?<!\d\.) (?<!\^) (?<!\^\{{)                     # outside of words, versions and exponents
    (?P<sign> (?<![)\]}}%]) [-+] )?                              # the minus of `(1)-2` is not a sign
    (?: (?: [$€£¥₹] | USD | EUR | GBP | Rs\.? ) \s? (?P<inner_sign> - )? )?
    (?:
        (?: (?P<whole> \d+ ) \s+ (?:and\s+)? )? (?P<top> \d+ ) \s?/\s? (?P<bottom> \d+ ) (?! [\d/] | \.\d )
      | (?P<decimal> {_DECIMAL} ) (?: [eE] (?P<exponent> [-+]?\d{{1,2}} ) (?! \d ) )?
    )
    """,
    re.VERBOSE,
)
_LATEX_FRACTION = re.compile(
    rf"\\[dt]?frac\s?(?:\{{\s?(?P<top>{_OPERAND})\s?\}}|(?P<top_digit>\d))\s?(?:\{{\s?(?P<bottom>{_OPERAND})\s?\}}|(?P<bottom_digit>\d))"
)
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\uff0d", "-"))
_VULGAR_FRACTIONS = str.maketrans(
    {sign: " " + unicodedata.normalize("NFKC", sign).replace("\u2044", "/") for sign in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
)
_REWRITES = (
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d)(?:\\[,!]|[\u00a0\u2009\u202f])(?=\d{3})"), ""),
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s?\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\(?:left|right)(?![A-Za-z])"), ""),
    (re.compile(r"\\[,;:! ]|~"), " "),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"(?<=\d)\s?(?:×|x|\*|\\times|\\cdot)\s?10\^\{?([-+]?\d{1,2})(?!\d)\}?"), r"e\1"),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "*"),
)


def plain(text: str) -> str:
    """Replaces LaTeX, typographic signs and thin spaces in and around numbers by plain characters."""
    text = text.translate(_DASHES).translate(_VULGAR_FRACTIONS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _LATEX_FRACTION.sub(_slash_fraction, text)


def numbers(text: str) -> list[Fraction]:
    """Returns every number of a plain text, in order."""
    return [value for match in _NUMBER.finditer(text) if (value := _value(match)) is not None]


def leading_number(text: str) -> Fraction | None:
    """Returns the number at the beginning of a plain text, if there is one."""
    match = _NUMBER.match(text)
    return _value(match) if match else None


def same_number(first: Fraction, second: Fraction) -> bool:
    """True if two numbers are equal: exactly if both are whole, else within `TOLERANCE`."""
    if first.denominator == 1 and second.denominator == 1:
        return first == second
    return abs(first - second) <= TOLERANCE


def all_same(values: list[Fraction]) -> bool:
    """True if all numbers are equal."""
    return all(same_number(first, second) for first, second in pairwise(values))


def _value(match: re.Match[str]) -> Fraction | None:
    if match.end() - match.start() > MAX_DIGITS:
        return None
    if match["decimal"]:
        digits, exponent = match["decimal"].replace(",", ""), match["exponent"]
        # `Fraction` reads texts with a pattern of its own, which takes many times as long.
        size = Fraction(int(digits) if digits.isdecimal() else digits)
        if exponent:
            size *= Fraction(10) ** int(exponent)
    elif int(match["bottom"]):
        size = int(match["whole"] or 0) + Fraction(int(match["top"]), int(match["bottom"]))
    else:
        return None
    negative = (match["sign"] == "-") != bool(match["inner_sign"])
    return -size if negative else size


def _slash_fraction(match: re.Match[str]) -> str:
    r"""`\frac{-1}{2}` as ` -1/2`; other operands are divided here."""
    operands = [(match[name] or match[f"{name}_digit"]).replace(",", "").replace(" ", "") for name in ("top", "bottom")]
    if len("".join(operands)) > MAX_DIGITS or not float(operands[1]):
        return " "
    quotient = Fraction(operands[0]) / Fraction(operands[1])
    whole_before = match.string[: match.start()][-1:].isdigit()
    return f"{' ' if whole_before else ''}{quotient.numerator}/{quotient.denominator} "
