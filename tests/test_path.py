"""The path of one sample: traced through a real run, short enough to read, in one direction, and as docs/path.md
describes it."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "scripts"))
import path as sample_path  # noqa: E402 - a script, beside the package

FILES, LINES, BODY_LINES = 124, 7000, 4760
"""Upper bounds of the path."""
COMMON = 0.95
"""Share of the documented functions that each run meets; a few depend on the order of events."""


@pytest.fixture(scope="module")
def traced():
    return sample_path.trace()


def documented():
    """Rows of docs/path.md: file and function."""
    found = re.findall(r"^\| \[[^]]+\]\(\.\./([^)]+)\) \| `([^`]+)` \|", sample_path.PAGE.read_text(), re.MULTILINE)
    return set(found)


@pytest.mark.slow
def test_the_path_is_short(traced):
    found = sample_path.figures(traced)
    assert found["files"] <= FILES
    assert found["lines"] <= LINES
    assert found["body_lines"] <= BODY_LINES


@pytest.mark.slow
def test_a_sample_meets_every_hop_in_one_direction(traced):
    assert set(traced) == set(sample_path.HOPS)
    every_run_begins_with = ("InferenceWorker WeightsPublished", "StalenessGate WeightsLoaded")
    once = [hop for hop in traced if hop not in every_run_begins_with]
    assert once == [hop for hop in sample_path.HOPS if hop not in every_run_begins_with]


@pytest.mark.slow
def test_the_page_is_current(traced):
    met = {(one.file, one.name.replace(".<locals>", "")) for functions in traced.values() for one in functions}
    described = documented()
    assert len(described) > 300
    assert {file for file, _ in met} - {file for file, _ in described} == set(), "just path writes the page anew"
    assert len(met & described) >= COMMON * len(described), (
        f"just path writes the page anew; not met: {sorted(described - met)}"
    )
