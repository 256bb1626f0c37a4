"""The same seed is the same run: two synchronous runs, in real processes, the second beside busy loops on every
core."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from support.live_run import ROOT, SMALL
from support.samples import exported, published

SETTINGS = [
    *SMALL,
    "steps=3",
    "evaluation.every_steps=1",
    "evaluation.periodic_tasks=4",
    "sampling.max_tokens=24",
    "generation.max_num_seqs=12",
]
"""Fewer slots than episodes: who is decoded beside whom is chance."""


@pytest.fixture(scope="module")
def determinism() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("determinism")
        for name in ("determinism", "history"):
            sys.modules.pop(name, None)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_synchronous_runs_of_one_seed_are_the_same_in_a_crowd_too(determinism: ModuleType) -> None:
    alone = determinism.run("multi_turn", SETTINGS)
    with determinism.busy_loops(os.cpu_count() or 1):
        crowded = determinism.run("multi_turn", SETTINGS)
    assert len(alone.episodes) == 3 * 16
    assert alone.episodes == crowded.episodes
    assert len(alone.versions) == len(set(alone.versions.values())) == 4
    assert alone.versions == crowded.versions
    assert alone.steps == crowded.steps
    assert set(alone.evaluations) == {
        (0, "sampled"),
        (0, "greedy"),
        (1, "sampled"),
        (2, "sampled"),
        (3, "sampled"),
        (3, "greedy"),
    }
    assert alone.evaluations == crowded.evaluations
    assert determinism.is_the_same(determinism.row("multi_turn", "", alone, crowded))


def test_the_benchmark_counts_what_differs_and_what_only_one_run_has(determinism: ModuleType) -> None:
    one = determinism.outcome(iter([exported("0.0"), exported("0.1"), published(0), published(1)]))
    other = determinism.outcome(
        iter([exported("0.0"), exported("0.1", 3), exported("0.2"), published(0), published(1)])
    )
    assert determinism.same(one.episodes, other.episodes) == (3, 1)
    line = determinism.row("gsm8k_grpo", "alone", one, other)
    assert line[:8] == ["gsm8k_grpo", "alone", 3, 1, 0, 0, 2, 2]
    assert not determinism.is_the_same(line)
    assert determinism.is_the_same(determinism.row("gsm8k_grpo", "alone", one, one))


def test_a_crowd_is_busy_and_ends_with_its_context(determinism: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started, real = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *words, **options: started.append(real(*words, **options)) or started[-1]
    )
    with determinism.busy_loops(2, seconds=30.0):
        assert [process.poll() for process in started] == [None, None]
    assert all(process.returncode is not None for process in started)
