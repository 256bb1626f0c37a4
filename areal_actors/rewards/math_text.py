r"""Results that are compared by their text: one canonical form of a notation, and kinds that are no expression.

A reference equals itself before any parser reads it: `July 4`, `12:00`, `2nd place`, `\text{Evelyn}`, `ACD`. Numbers to
a base (`2516_8`), congruences (`x \equiv 3 \pmod{7}`), times of day, dates, choices and words are never read as the
number in them. Nothing is evaluated.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|texttt|mathrm|mathbf|mathit|mathsf|mbox|operatorname\*?|rm|bf)\s*\{([^{}]*)\}"
)
_DROPPED = re.compile(
    r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle|limits)(?![A-Za-z])|\\[!,;:> ]|~|(?<!\\)\$|\\[()\[\]]"
)
_FORMS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"([\^_])\s*\{\s*(\w)\s*\}"), r"\1\2"),
    (re.compile(r"\\leq(?![A-Za-z])|≤"), r"\\le"),
    (re.compile(r"\\geq(?![A-Za-z])|≥"), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])|≠"), r"\\ne"),
    (re.compile(r"\{:\}|：|\\colon(?![A-Za-z])"), ":"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"−|–|—"), "-"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\mid(?![A-Za-z])|\\vert(?![A-Za-z])"), "|"),
)
_ALL_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{\s*[A-Za-z][^{}\d]+\}\.?")
_BROKEN = re.compile(r"\\.|[{}]", re.DOTALL)

_DIGITS_TO_BASE = re.compile(
    r"^\(?\s*(?P<sign>-?)\s*\(?(?P<digits>\d[\dA-Z]*|[A-Z]+\d[\dA-Z]*|[A-Z]{2,}(?=\)?\s*_\s*\{?\s*(?:1[1-9]|[23]\d)\b))\)?\s*"
    r"(?:_\s*\{?\s*\(?(?P<base>\d{1,2}|[a-z]{3,9})\)?\s*\}?|\s(?:in\s+)?base[\s-](?P<named>\d{1,2}|[a-z]{3,9}))\s*\)?$"
)
_BASES = dict(
    zip(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "sixteen"],
        [*range(2, 13), 16],
        strict=True,
    )
)
_FIGURE = re.compile(
    r"^\\(?P<figure>angle|triangle|overline|widehat|overleftrightarrow)\s*\{?\s*(?P<points>[A-Z](?:\s*[A-Z]){1,4})\s*\}?$"
)
_MODULUS = re.compile(r"\(?\s*\\?(?:p?mod|bmod)\b\s*\{?\s*(\d{1,60})\s*\}?\s*\)?$|\\pmod\s*(\d)$")
_RESIDUES = re.compile(r"^(?:(?P<left>.+?)\s*(?:\\equiv(?![A-Za-z])|≡|=)\s*)?(?P<values>[-+±\d\s,\\pmandor]*\d)$")
_TIME = re.compile(
    r"^(\d{1,2}):([0-5]\d)(?::([0-5]\d))?\s*(?:(a|p)\.?\s?m\.?)?$|^(\d{1,2})\s*(a|p)\.?\s?m\.?$", re.IGNORECASE
)
_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_DATE = re.compile(
    r"^(?:(?P<m1>[a-z]{3,9})\.? (?P<d1>\d{1,2})(?:st|nd|rd|th)?|(?P<d2>\d{1,2})(?:st|nd|rd|th)?(?: of)?"
    r" (?P<m2>[a-z]{3,9})\.?)"
    r"(?:,? (?P<year>\d{4}))?$"
)
_CHOICES = re.compile(r"^(?:\(?[A-J]\)?\.?(?:\s*(?:,|;|and|&|\\&)\s*|\s*)(?:and\s+)?)*\(?[A-J]\)?\.?$")
_WORDS_ONLY = re.compile(r"^[^\W\d_][\w .,'’\-/()]*$")
_ORDINAL = re.compile(r"^\d+(?:st|nd|rd|th)\b[\w .,'’\-]*$", re.IGNORECASE)
_ORDINALS = dict(
    zip(
        ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"],
        ["1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th", "9th", "10th"],
        strict=True,
    )
)
_FUNCTION = re.compile(
    r"\b(?:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|sqrt|pi|max|min|gcd|lcm|infinity|inf|and|or|mod|base)\b"
)
_WORD = re.compile(r"(?:^|[^\W\d_]|\b)(?:[A-Z][a-z]+|[^\W\d_]{4,})\b")
MOST_WORDS = 4
"""Words of a text that is a result by itself; a longer one is a sentence that has to mark its result."""


class Kind(NamedTuple):
    """A result that no parser of expressions reads: kind and value, which are compared."""

    name: str
    value: Any


def in_words(text: str) -> str:
    r"""Returns the text with `\text{…}` replaced by its content and without spacing commands."""
    for _ in range(3):
        text = _WRAPPER.sub(r" \1 ", text)
    return " ".join(_DROPPED.sub(" ", text).split())


def canonical(text: str) -> str:
    """Returns one form of notations that differ in nothing but how they are set; words are compared without case."""
    text = in_words(text)
    for pattern, replacement in _FORMS:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".,;:").strip()
    if _is_words(text):
        text = text.casefold()
    text = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda match: match[0].replace(",", ""), text)
    return re.sub(r"\s+", "", text)


def is_readable(text: str) -> bool:
    """False for a text without letters and digits, with unbalanced braces, or of more words than a result has."""
    if not re.search(r"\w", text):
        return False
    depth = 0
    for brace in _BROKEN.findall(text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    words = re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[A-Za-z]+", " ", in_words(text)))
    return depth == 0 and len(words) <= MOST_WORDS


def kind(text: str) -> Kind | None:
    """Returns the kind and value of a result that is no expression; None for everything else."""
    is_text = _ALL_TEXT.fullmatch(text.strip()) is not None
    text = in_words(text).strip().rstrip(".").strip()
    if not text or len(text) > 200:
        return None
    for read in (_read_figure, _read_base, _read_congruence, _read_time, _read_date, _read_choices):
        if (value := read(text)) is not None:
            return value
    return _read_words(text, is_text=is_text)


def _read_figure(text: str) -> Kind | None:
    """Reads what its points name: a segment or an angle is the same from its other end."""
    match = _FIGURE.match(text)
    if match is None:
        return None
    points = match["points"].replace(" ", "")
    named = "".join(sorted(points)) if match["figure"] == "triangle" else min(points, points[::-1])
    return Kind("figure", (match["figure"], named))


def _read_base(text: str) -> Kind | None:
    match = _DIGITS_TO_BASE.match(text)
    if match is None:
        return None
    named = match["base"] or match["named"]
    base = int(named) if named.isdigit() else _BASES.get(named, 0)
    try:
        int(match["digits"], base if base > 1 else 99)
    except ValueError:
        return None
    return Kind("base", (match["sign"] + match["digits"].lstrip("0").rjust(1, "0"), base))


def _read_congruence(text: str) -> Kind | None:
    modulus = _MODULUS.search(text)
    match = _RESIDUES.match(text[: modulus.start()].strip()) if modulus else None
    if modulus is None or match is None:
        return None
    size = int(modulus[1] or modulus[2])
    residues: set[int] = set()
    for sign, digits in re.findall(r"(\\pm|±|-)?\s*(\d{1,60})", match["values"]):
        value = int(digits)
        residues |= {value, -value} if sign in {"\\pm", "±"} else {-value if sign == "-" else value}
    if not size or not residues:
        return None
    left = re.sub(r"\s+", "", match["left"] or "")
    return Kind("congruence", (left, frozenset(value % size for value in residues), size))


def _read_time(text: str) -> Kind | None:
    match = _TIME.match(re.sub(r"\{:\}|：", ":", text))
    if match is None:
        return None
    hour, minute, half = int(match[1] or match[5]), int(match[2] or 0), (match[4] or match[6] or "").lower()
    if hour > 24 or (not half and minute >= 10 and not 0 < hour < 25):
        return None
    if not half and minute >= 10 and match[3] is None:
        return None  # `3:30` may be a ratio
    return Kind("time", (hour, minute, int(match[3] or 0), half))


def _read_date(text: str) -> Kind | None:
    match = _DATE.match(text.lower())
    if match is None:
        return None
    name = match["m1"] or match["m2"]
    months = [number for number, month in enumerate(_MONTHS) if month == name or name in {month[:3], month[:4]}]
    return Kind("date", (months[0], int(match["d1"] or match["d2"]), match["year"])) if months else None


def _read_choices(text: str) -> Kind | None:
    if not _CHOICES.match(text):
        return None
    letters = re.findall(r"[A-J]", text)
    if len(set(letters)) != len(letters) or (
        len(letters) > 1 and letters != sorted(letters) and re.fullmatch(r"[A-J]+", text)
    ):
        return None  # `BA` may be a segment or a product; choices are written in order
    return Kind("choices", frozenset(letters))


def _read_words(text: str, *, is_text: bool) -> Kind | None:
    if not _is_words(text, is_text=is_text) or len(re.findall(r"[^\W\d_]{2,}", text)) > MOST_WORDS:
        return None
    words = text.casefold().strip(" .")
    words = re.sub(r"^(?:the|an?)\s+", "", words)
    words = " ".join(_ORDINALS.get(word, word) for word in re.split(r"[\s,]+", words))
    return Kind("words", words)


def _is_words(text: str, *, is_text: bool = False) -> bool:
    if _ORDINAL.match(text):
        return True
    has_word = _WORD.search(text) or (is_text and len(text) > 1)
    return bool(_WORDS_ONLY.match(text) and has_word and not _FUNCTION.search(text.lower()))


def same_kind(truth: Kind | None, truth_text: str, stated: Kind | None, stated_text: str) -> bool:
    """Compares two results, of which at least one is of a kind; the texts are canonical."""
    if truth and stated:
        return truth.name == stated.name and _SAME.get(truth.name, Kind.__eq__)(truth, stated)
    if truth:  # the answer is a plain number or expression
        if truth.name == "base":
            return bool(stated_text.strip("()") == truth.value[0])
        return bool(truth.name == "congruence" and truth.value[0] == "" and _is_residue(stated_text, truth))
    if stated and stated.name == "base":
        return bool(stated.value[1] == 10 and truth_text == stated.value[0])
    return stated is not None and stated.name == "congruence" and _is_residue(truth_text, stated)


def _same_congruence(truth: Kind, stated: Kind) -> bool:
    (left, *rest), (other_left, *other_rest) = truth.value, stated.value
    return rest == other_rest and (left == other_left or not left or not other_left)


def _is_residue(text: str, congruence: Kind) -> bool:
    """True for the smallest non-negative number of a class."""
    _, residues, size = congruence.value
    return bool(re.fullmatch(r"\d{1,60}", text)) and int(text) < size and residues == {int(text)}


def _same_time(truth: Kind, stated: Kind) -> bool:
    return bool(truth.value[:3] == stated.value[:3] and truth.value[3] in {"", stated.value[3]})


def _same_date(truth: Kind, stated: Kind) -> bool:
    return bool(truth.value[:2] == stated.value[:2] and truth.value[2] in {None, stated.value[2]})


_SAME = {"congruence": _same_congruence, "time": _same_time, "date": _same_date}
