"""Statements as tests of a program: honest programs in all usual forms, and programs that try to pass without an
answer."""

import pytest
from support.forged_programs import FORGERIES, IS_PIPE
from support.program_cases import HONEST

from areal_actors.sandbox import Limits, run_program

LIMITS = Limits(seconds=60)
WAITS = "no message at all"
"""A forgery that blocks in a full pipe until its time is over."""


@pytest.mark.parametrize("name", HONEST)
def test_the_right_program_passes_and_the_wrong_one_does_not(name):
    case = HONEST[name]
    ran = run_program(case.right, checks=[case.tests], limits=LIMITS, errors=True)
    assert ran.proved, ran.output.decode()
    assert not run_program(case.wrong, checks=[case.tests], limits=LIMITS).proved


@pytest.mark.parametrize("name", FORGERIES)
def test_a_program_does_not_pass_without_an_answer(name):
    program, tests = FORGERIES[name]
    seconds = 0.5 if "while True" in program else 5 if name == WAITS else 60
    assert not run_program(IS_PIPE + program, checks=[tests], limits=Limits(seconds=seconds)).proved


def test_a_program_whose_process_is_gone_passes_no_test_even_if_the_test_catches_everything():
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert not run_program("import os\ndef f(x): os._exit(0)", checks=[tests], limits=LIMITS).proved
    assert run_program("def f(x): raise ValueError", checks=[tests], limits=LIMITS).proved


def test_the_program_reaches_nothing_of_a_function_that_its_test_passes_but_its_call():
    tests = (
        "secret = 42\nclass Box:\n    _hidden = 1\n    shown = 2\nprobe = lambda: secret\nassert f(probe, Box()) == [0,"
        " 0, 2, 42]"
    )
    program = (
        "def get(function):\n    try:\n        return function()\n    except BaseException:\n        return 0\ndef"
        " f(probe, box): return [get(lambda: probe.__globals__['secret']), get(lambda: box._hidden), box.shown,"
        " probe()]"
    )
    ran = run_program(program, checks=[tests], limits=LIMITS, errors=True)
    assert ran.proved, ran.output.decode()
