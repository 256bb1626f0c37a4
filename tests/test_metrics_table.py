"""The table of metrics in docs/tracking.md has every name that a step writes, and no other."""

from __future__ import annotations

import re

import msgspec
import pytest
from support.algorithm_cases import EVERY
from support.live_run import ROOT
from support.tiny_trainer import make_trainer, sequences_of, write_model

from areal_actors.core.values import SequenceCall
from areal_actors.messages import BatchFormed
from areal_actors.sequences.step_metrics import REWARD_METRIC, batch_metrics, example_metrics
from areal_actors.training.algorithms.base import INITIAL
from areal_actors.training.engine_mismatch import reported_metrics

PAGE = ROOT / "docs" / "tracking.md"
LITERAL = re.compile(r'"([a-z_0-9/]+)"')
OPTIONAL = frozenset(
    {
        "base_rounding_error",
        "calls_with_ignored_fields",
        "calls_without_credit",
        "dual_clip_frac",
        "entropy_bonus",
        "overlong_penalty_mean",
        "reference_kl",
        "refused_sequences",
        "routing_mismatch",
        "routing_replayed",
        "skipped",
        "skipped_updates",
    }
)
"""Names of steps with certain settings or damage, which are literals of the code."""
BY_BOUND = re.compile(r"(weight|mismatch)_(truncated|masked|clipped)_frac")
"""Names that the code puts together."""


def documented():
    """Names of the first column; `_max` after `name_mean` is `name_max`."""
    names = set()
    table = PAGE.read_text().partition("| metric | meaning | unit |\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[1:]:
        first = ""
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            first = first or name
            names.add(first.rpartition("_")[0] + name if name.startswith("_") else name)
    return names


def with_baseline(row, reward):
    """The only call of a row, with a role-wise baseline."""
    return SequenceCall(start=0, end=len(row.token_ids), reward=reward, truncated=row.truncated, baseline=0.5)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Names of a step of every algorithm."""
    folder = write_model(tmp_path_factory.mktemp("model"))
    rows = [
        msgspec.structs.replace(row, reward=float(number % 2), calls=(with_baseline(row, float(number % 2)),))
        for number, row in enumerate(sequences_of(make_trainer(folder), members=2))
    ]
    batch = {
        "groups": (),
        "oldest_version": 0,
        "trained_trajectories": 8,
        "trained_tokens": 40,
        "dropped_trajectories": 0,
        "dropped_tokens": 0,
    }
    names = set(batch_metrics(rows, BatchFormed(step=0, **batch)))
    for kind in EVERY.values():
        algorithm = kind(**({"teacher": folder} if "teacher" in kind.__struct_fields__ else {}))
        if algorithm.critic is not None:
            algorithm = msgspec.structs.replace(
                algorithm, critic=msgspec.structs.replace(algorithm.critic, model=INITIAL)
            )
        metrics = make_trainer(folder, algorithm).step(rows)
        names |= set(reported_metrics(metrics) if kind.learns_from == "episodes" else example_metrics(metrics, rows))
    return names


def test_every_name_that_a_step_writes_is_in_the_table(written):
    assert {
        "loss",
        "gate_mean",
        "explained_variance",
        "teacher_kl",
        "chosen_score",
        "length_bias",
        "examples",
    } <= written
    assert written - documented() == set()


def test_every_name_of_the_table_is_written(written):
    assert f"{REWARD_METRIC}NAME" in documented()
    places = [path for folder in ("training", "sequences") for path in (ROOT / "areal_actors" / folder).rglob("*.py")]
    code = {name for path in places for name in LITERAL.findall(path.read_text())}
    unseen = {name for name in documented() - written if "/" not in name and not BY_BOUND.fullmatch(name)}
    assert unseen <= OPTIONAL | {"truncated_masked_frac"}
    assert unseen - code == set()
