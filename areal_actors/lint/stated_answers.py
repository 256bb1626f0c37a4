"""Finds out whether an output states a task's reference as its result, without the rule that scores it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from areal_actors.rewards.gsm8k import final_number
from areal_actors.rewards.math_places import after_mark, find_tagged, remove_decoration

REFERENCES = ("answer", "solution", "target", "ground_truth", "expected_answer", "label")
"""Columns that may have a task's result, in order of preference."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")


def reference_of(task: Mapping[str, object]) -> str:
    """Returns the result of a task, from the text of its first column of `REFERENCES`; empty if there is none.

    That is what follows `####` there, if it is there, else the whole text.
    """
    for name in REFERENCES:
        value = task.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value).rpartition("####")[2].strip()
    return ""


def states_reference(output: str, reference: str) -> bool:
    """True if the result that an output states, in a usual place or at its end, is the reference."""
    if not reference or not output.strip():
        return False
    if _NUMBER.fullmatch(reference):
        wanted = Fraction(reference.replace(",", ""))
        numbers = _NUMBER.findall(output)
        return final_number(output) == wanted or (bool(numbers) and Fraction(numbers[-1].replace(",", "")) == wanted)
    tagged = find_tagged(output)
    places = [tagged[1] if tagged else None, after_mark(output), *_BOX.findall(output)[-1:]]
    if any(place is not None and _plain(place) == _plain(reference) for place in places):
        return True
    return re.search(rf"(?:^|\W){re.escape(_plain(reference))}$", _plain(output.strip().splitlines()[-1])) is not None


def _plain(text: str) -> str:
    return remove_decoration(text).strip(" .*`\"'()$").casefold()
