"""The place of a loop of AReaL's programs: no row is lost or trained twice, and a kill leaves a place that is whole."""

from __future__ import annotations

from itertools import islice

import msgspec
import pytest

from areal_actors.compat.areal.config import Recover
from areal_actors.compat.areal.loop_place import PLACE, Draws, LoopPlace, PlaceFolder
from areal_actors.core.errors import CheckpointError


def take(draws, count):
    return list(islice(draws.rows(), count))


def test_rows_in_no_batch_come_first_and_no_row_is_lost_or_taken_twice():
    draws = Draws(LoopPlace(), lambda draw: draw)
    assert take(draws, 6) == [0, 1, 2, 3, 4, 5]
    draws.train([0, 2, 3])
    place = draws.place(1)
    assert place == LoopPlace(step=1, next_draw=6, left=(1, 4, 5))
    resumed = Draws(place, lambda draw: draw)
    assert take(resumed, 2) == [1, 4]
    assert resumed.place(2).left == (1, 4, 5)
    resumed.train([1])
    assert resumed.place(2) == LoopPlace(step=2, next_draw=6, left=(1, 5))
    assert take(Draws(resumed.place(2), lambda draw: draw), 4) == [1, 5, 6, 7]


def test_a_draw_that_an_epoch_leaves_out_is_no_task():
    draws = Draws(LoopPlace(), lambda draw: None if draw % 3 == 2 else draw % 3)
    assert take(draws, 4) == [0, 1, 0, 1]
    draws.train([0, 1, 2])
    assert draws.place(1) == LoopPlace(step=1, next_draw=5, left=(4,))


def test_a_kill_while_it_is_kept_leaves_the_place_before(tmp_path):
    folder = PlaceFolder(tmp_path / "recover")
    assert folder.read() == LoopPlace()

    def save(path):
        path.mkdir(parents=True)
        (path / "weights").write_text("whole")

    def fail(path):
        path.mkdir(parents=True)
        raise KeyboardInterrupt

    folder.keep(LoopPlace(step=1, next_draw=4), save)
    with pytest.raises(KeyboardInterrupt):
        folder.keep(LoopPlace(step=2, next_draw=8), fail)
    place = folder.read()
    assert (place.step, (folder.folder / place.checkpoint / "weights").read_text()) == (1, "whole")
    folder.keep(LoopPlace(step=3, next_draw=12), save)
    assert sorted(path.name for path in folder.folder.iterdir()) == [PLACE, "step-3"]
    (folder.folder / PLACE).write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"place\.json is damaged: .*; remove .*recover to begin anew"):
        folder.read()
    assert msgspec.json.decode(msgspec.json.encode(place), type=LoopPlace) == place


def test_it_is_kept_after_every_step_unless_an_interval_is_stated():
    modes = ("disabled", "off", False, "on", "auto", True)
    assert [Recover(mode=mode).is_on for mode in modes] == [False] * 3 + [True] * 3
    assert Recover(mode="on").is_due(1, 10)
    assert [Recover(mode="on", freq_steps=2).is_due(step, 10) for step in (1, 2)] == [False, True]
