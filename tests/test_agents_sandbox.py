"""Abilities and limits of a model's program in the sandbox."""

from __future__ import annotations

import sys

import pytest
from support.framework_harness import ROOT

from areal_actors import sandbox
from areal_actors.core.loading import load_named

MODULE = sys.modules[load_named("agents/python_tools.py:PythonToolsAgent", ROOT).__module__]


async def test_a_program_prints_its_result():
    assert await MODULE.run_python("print(6 * 7)") == "42\n"


async def test_for_a_program_that_prints_nothing_the_exit_status_is_reported():
    assert await MODULE.run_python("x = 1") == "the program printed nothing and ended with 0"


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("print(", "SyntaxError"),
        ("import no_such", "ModuleNotFoundError"),
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("open('big', 'wb').write(b'x' * (1 << 20))", "File too large"),
        ("import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))", "[]"),
        ("import numpy", "ModuleNotFoundError"),
    ],
)
async def test_what_goes_wrong_is_what_it_prints(code, complaint):
    assert complaint in await MODULE.run_python(code)


async def test_its_interpreter_is_the_sandbox():
    """The sandbox itself is tested in test_sandbox_reach.py."""
    assert MODULE.run_python is sandbox.run_python


@pytest.mark.parametrize(
    ("expression", "value"),
    [("9 * 2", "18"), ("(1 + 2) / 4 - -3", "3.75"), ("1/3", "0.333333333333"), ("10**2", None), ("x", None)],
)
def test_the_calculator(expression, value):
    if value is None:
        with pytest.raises(ValueError, match="numbers"):
            MODULE.calculate(expression)
    else:
        assert MODULE.calculate(expression) == value
