"""Every benchmark runs with `--quick`, as from the command line; it prints its table and leaves no files."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
BENCHMARKS = runpy.run_path(str(FOLDER / "bench.py"))["benchmarks"]()
KEPT = ("areal-benchmark-tokenizer-", "torchinductor_")
"""Beginnings of names in the folder for temporary files that stay there for the next time."""
LONGEST_SECONDS = 600.0
"""Time limit of a benchmark that takes seconds on an idle machine."""


def test_all_benchmarks_are_found():
    assert {"orchestration", "gateway", "async_vs_sync", "engine", "determinism", "rewards"} <= set(BENCHMARKS)
    helpers = {path.stem for path in FOLDER.glob("*.py")} - set(BENCHMARKS)
    assert {"bench", "history", "orchestration_process", "gateway_load"} <= helpers


@pytest.mark.long
@pytest.mark.timeout(LONGEST_SECONDS + 60)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_quickly_and_keeps_nothing(name, tmp_path):
    before = (FOLDER / "history.jsonl").read_bytes()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--quick"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:] + ended.stdout[-4000:]
    assert any(character.isdigit() for character in ended.stdout), ended.stdout
    assert (FOLDER / "history.jsonl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(KEPT)] == [], "what a benchmark writes it cleans up"
