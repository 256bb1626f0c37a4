"""A short form of the stall catalogue, `benchmarks/stalls.py`: real runs that stand still, and what is reported of
it."""

from __future__ import annotations

import importlib
import sys

import pytest
from support.live_run import ROOT

pytestmark = pytest.mark.long

SHORT = (
    "launcher paused for 8 s (Ctrl-Z)",
    "nats-server paused for 8 s",
    "replacement that never starts",
    "weights after the first never load",
)
SCALE = 2.0
"""Deadlines are this much longer than in the catalogue, for a machine that does other things meanwhile."""


@pytest.fixture(scope="module")
def stalls():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("stalls")
        for name in ("stalls", "stall_cases", "stall_run"):
            sys.modules.pop(name, None)


def test_the_catalogue_has_at_least_thirty_cases_with_a_handful_for_a_quick_look(stalls):
    assert len({case.name for case in stalls.CASES}) == len(stalls.CASES) >= 30
    assert 4 <= sum(case.quick for case in stalls.CASES) <= 10


@pytest.mark.parametrize("name", SHORT)
def test_a_stall_is_named_and_nothing_else_is_blamed(stalls, name, tmp_path):
    (case,) = [case for case in stalls.CASES if case.name == name]
    outcome = stalls.run(case, tmp_path, SCALE)
    assert outcome.problems == (), outcome.row()
