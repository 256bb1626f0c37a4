"""Copies of the weights for corrections: where they are kept, and that they cost no checkpoint."""

import math
import shutil
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import torch
from support import tiny_trainer
from support.tiny_trainer import make_trainer, same, sequences_of, write_model

from areal_actors.training import logprob_check
from areal_actors.training.algorithms import Grpo
from areal_actors.training.algorithms.correction import Correction, Mismatch
from areal_actors.training.step_data import step_tokens


@pytest.mark.parametrize("sequences", [0, 16])
def test_copies_in_the_memory_of_the_host_are_as_good_and_in_no_checkpoint(tmp_path, sequences):
    split = Grpo(correction=Correction(mismatch=Mismatch(importance_sampling="truncate", lowest=0.0, highest=1.0)))
    found = []
    for older_weights in ("on", "host"):
        trainer = make_trainer(
            write_model(tmp_path), split, older_weights=older_weights, logprob_check_sequences=sequences
        )
        mixed = sequences_of(trainer)
        for _ in range(3):
            trainer.step(mixed)
            mixed += [
                msgspec.structs.replace(row, group=row.group + 4 * trainer.weight_version)
                for row in sequences_of(trainer)
            ]
        before = tiny_trainer.weights(trainer)
        found.append(trainer._logprob_check.rescore(mixed, 3))
        assert same(tiny_trainer.weights(trainer), before)
    assert not found[0].isnan().all()
    assert torch.equal(*(column.nan_to_num(nan=9.0) for column in found))
    assert trainer._logprob_check.copies == {}
    trainer.save(str(tmp_path / "checkpoint"))
    trainer.load(str(tmp_path / "checkpoint"))
    resumed = trainer._logprob_check.rescore(mixed, 3)
    current = step_tokens(mixed, 3).versions == 3
    assert resumed[~current].isnan().all(), "the others are gone"


def test_published_files_serve_as_copies_of_a_larger_model_and_take_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(logprob_check, "SMALL_MODEL", 0)
    folder, found = write_model(tmp_path), []
    for older_weights in ("on", "auto"):
        trainer = make_trainer(folder, Grpo(), older_weights=older_weights, logprob_check_sequences=16)
        mixed = sequences_of(trainer)
        trainer.publish(str(tmp_path / older_weights / "v0"))
        for version in range(1, 4):
            trainer.step(mixed)
            trainer.publish(str(tmp_path / older_weights / f"v{version}"))
            mixed += [
                msgspec.structs.replace(row, group=row.group + 4 * trainer.weight_version)
                for row in sequences_of(trainer)
            ]
        before = tiny_trainer.weights(trainer)
        found.append(trainer._logprob_check.rescore(mixed, 3))
        assert same(tiny_trainer.weights(trainer), before)
    assert not found[0].isnan().all()
    assert torch.equal(*(column.nan_to_num(nan=9.0) for column in found))
    assert (trainer._logprob_check.copies, trainer._logprob_check._host_copies) == ({}, {})
    shutil.rmtree(tmp_path / "auto" / "v1")
    versions = step_tokens(mixed, 3).versions
    lacking = trainer._logprob_check.rescore(mixed, 3)
    assert lacking[versions == 1].isnan().all(), "its files are gone"
    assert torch.equal(lacking[versions == 2], found[0][versions == 2])


@pytest.mark.parametrize(
    ("parameters", "versions", "complete", "place"),
    [
        (50_000_000, 3, True, "on"),
        (50_000_001, 3, False, "host"),
        (50_000_001, 3, True, "off"),
        (50_000_001, 1, False, "off"),
        (1_000_000_000, 3, False, "off"),
    ],
)
def test_where_copies_are_kept_follows_the_size_of_the_model_and_of_the_machine(
    monkeypatch, parameters, versions, complete, place
):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=40 * 10**9))
    assert logprob_check._place(parameters, versions, complete=complete) == place


@pytest.mark.parametrize(("older_weights", "kept"), [("auto", [0, 1]), ("on", [0, 1]), ("off", [])])
def test_copies_are_kept_as_the_recipe_sets_and_without_them_only_the_current_version_is_known(
    tmp_path, older_weights, kept
):
    split = Grpo(correction=Correction(mismatch=Mismatch(importance_sampling="truncate", lowest=0.0, highest=1.0)))
    trainer = make_trainer(write_model(tmp_path), split, older_weights=older_weights)
    rows = sequences_of(trainer)
    trainer.step(rows)
    assert sorted(trainer._logprob_check.copies) == kept
    mixed = rows + [msgspec.structs.replace(row, group=row.group + 4) for row in sequences_of(trainer, seed=5)]
    rescored = trainer._logprob_check.rescore(mixed, 1)
    old = step_tokens(mixed, 1).versions == 0
    assert bool(rescored[old].isnan().all()) is (older_weights == "off")
    assert not rescored[~old].isnan().any()
    assert math.isfinite(trainer.step(mixed)["loss"])
