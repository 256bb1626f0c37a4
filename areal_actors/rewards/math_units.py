"""Amounts with units: `5 dollars`, `3 cm`, `2 feet 3 inches`, `1 hour 30 minutes`. Nothing is evaluated."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

_TABLE: dict[str, dict[str, str]] = {
    "length": {
        "1": "m meter meters metre metres",
        "1/100": "cm centimeter centimeters centimetre centimetres",
        "1/1000": "mm millimeter millimeters millimetre millimetres",
        "1000": "km kilometer kilometers kilometre kilometres",
        "127/5000": "in inch inches",
        "381/1250": "ft foot feet",
        "1143/1250": "yd yard yards",
        "201168/125": "mi mile miles",
    },
    "time": {
        "1": "s sec secs second seconds",
        "60": "min mins minute minutes",
        "3600": "h hr hrs hour hours",
        "86400": "day days",
        "604800": "week weeks",
    },
    "years": {"1": "yr yrs year years", "1/12": "month months"},
    "mass": {
        "1": "kg kilogram kilograms",
        "1/1000": "g gram grams",
        "1/1000000": "mg milligram milligrams",
        "45359237/100000000": "lb lbs pound pounds",
        "45359237/1600000000": "oz ounce ounces",
    },
    "volume": {"1": "l liter liters litre litres", "1/1000": "ml milliliter milliliters millilitre millilitres"},
    "dollars": {"1": "dollar dollars usd", "1/100": "cent cents"},
    "euros": {"1": "euro euros eur"},
    "yen": {"1": "yen"},
    "yuan": {"1": "yuan 元"},
    "angle": {"1": "degree degrees deg"},
    "speed": {"1": "mph", "3125/5029": "km/h kph"},
    "velocity": {"1": "m/s"},
    "percent": {"1": "percent"},
}
UNITS: dict[str, tuple[str, Fraction]] = {
    name: (dimension, Fraction(factor))
    for dimension, sizes in _TABLE.items()
    for factor, names in sizes.items()
    for name in names.split()
}
"""Dimension and size of each unit that is known by name."""
_AREAS = re.compile(r"^(square|cubic|sq)\.?\s+([a-z]+)$")
_POWER = re.compile(r"^(.*?)\s*\^\s*\{?\s*([23])\s*\}?$")
_WORDS = r"(?:[A-Za-z]+(?:/[A-Za-z]+)?\.?|[\u4e00-\u9fff]{1,4})"
_NUMBER = r"\\?\$?\s?-?\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?"
_AMOUNT = re.compile(
    rf"^(?P<value>.*(?:[\d)}}]|\\pi))\s*(?P<unit>{_WORDS}(?:\s+{_WORDS})*(?:\s*\^\s*\{{?[23]\}}?)?)$", re.DOTALL
)
_PART = re.compile(rf"({_NUMBER})\s*({_WORDS})(?:\s+and|,)?\s*")
_DOLLARS = re.compile(r"^\\?\$\s?(?=-?[\d.])|^-\\?\$\s?(?=[\d.])")
_IN_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox|operatorname)\b|\d\s+[A-Za-z]{3,}|[\u4e00-\u9fff]")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[A-Za-z]{3,}|[\u4e00-\u9fff]")
_NO_UNIT = re.compile(r"\b(?:and|or|if|when|for|base|mod|is|are|to|am|pm|st|nd|rd|th)\b", re.IGNORECASE)
LONGEST = 300
"""Characters of a text that may be an amount."""


class Amount(NamedTuple):
    """A value and its unit."""

    value: str
    """LaTeX."""
    dimension: str
    """Empty for a unit that the table does not have."""
    factor: Fraction


def amount(text: str, in_words: str) -> Amount | None:
    r"""Returns the amount that a result states; None if it states no unit.

    `text` is the LaTeX, `in_words` the same with `\text{…}` replaced by its content.
    """
    if len(in_words) > LONGEST:
        return None
    plain = in_words.strip().rstrip(".")
    if total := _sum(plain):
        return total
    if dollars := _DOLLARS.match(plain):
        sign = "-" if dollars[0].startswith("-") else ""
        return Amount(sign + plain[dollars.end() :], *UNITS["dollars"])
    match = _AMOUNT.match(plain)
    if match is None or _NO_UNIT.search(match["unit"]) or _WORD.search(_COMMAND.sub("", match["value"])):
        return None
    dimension, factor = _unit(match["unit"].strip())
    single = len(match["unit"]) == 1 and match["unit"].isascii()
    if not (_IN_TEXT.search(text) and (dimension or not single)) and not (dimension and not single):
        return None  # letters outside of a text are variables, unless they are a unit of several letters
    return Amount(match["value"].strip(), dimension, factor)


def _unit(name: str) -> tuple[str, Fraction]:
    """Returns dimension and factor; an empty dimension for an unknown unit."""
    name = name.strip().rstrip(".")
    power = 1
    if match := _POWER.match(name):
        name, power = match[1], int(match[2])
    elif match := _AREAS.match(name.lower()):
        name, power = match[2], 3 if match[1] == "cubic" else 2
    unit = UNITS.get(name) or UNITS.get(name.lower() if len(name) > 2 else name)
    if unit is None:
        return "", Fraction(1)
    return f"{unit[0]}^{power}" if power > 1 else unit[0], unit[1] ** power


def _sum(text: str) -> Amount | None:
    """Returns the sum of several amounts of one dimension, in its first unit: `2 feet 3 inches`."""
    parts = list(_PART.finditer(text))
    if len(parts) < 2 or "".join(part[0] for part in parts) != text:
        return None
    units = [_unit(part[2]) for part in parts]
    if not units[0][0] or len({dimension for dimension, _ in units}) != 1:
        return None
    try:
        values = [Fraction(part[1].replace(",", "").replace(" ", "").lstrip("\\$")) for part in parts]
    except (ValueError, ZeroDivisionError):
        return None
    total = sum((value * factor for value, (_, factor) in zip(values, units, strict=True)), Fraction(0))
    return Amount(f"\\frac{{{total.numerator}}}{{{total.denominator}}}", units[0][0], Fraction(1))
