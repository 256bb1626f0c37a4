"""Draws of a recorded run under a curriculum: recorded results, and what is not known counted as that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal_actors import cli
from areal_actors.messages import EpisodeScored
from areal_bus.recorded import FORMAT_VERSION, read_log

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"


def asked(*settings, capsys):
    assert cli.main(["what-if", str(LOG), *settings, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def recorded_groups():
    """Successes by group of the recorded log."""
    groups = {}
    for envelope in read_log(LOG):
        if envelope.subject == EpisodeScored.subject:
            event = envelope.open(EpisodeScored)
            if event.work.purpose == "train":
                groups.setdefault(event.work.group, {})[event.work.episode] = event.reward >= 0.5
    return {group: set(scores.values()) for group, scores in groups.items()}


def test_where_every_task_is_new_the_draws_are_those_of_the_order(capsys):
    found = asked("task.curriculum.mixed=0", "task.curriculum.solved=0", "task.curriculum.unsolved=0", capsys=capsys)
    groups = recorded_groups()
    assert found["recorded"] == found["drawn"]
    assert found["equal"] == sum(found["recorded"].values()) == found["tasks"][0] == found["tasks"][1]
    assert found["recorded"].get("mixed", 0) == sum(len(successes) == 2 for successes in groups.values())


def test_with_weights_on_measured_pools_tasks_are_drawn_again(capsys):
    found = asked("task.curriculum.mixed=50", "task.curriculum.retire_after=1", capsys=capsys)
    assert sum(found["drawn"].values()) == sum(found["recorded"].values())
    assert found["tasks"][1] < found["tasks"][0]
    assert found["drawn"]["mixed"] > found["recorded"]["mixed"]


@pytest.mark.parametrize("setting", ["task.curriculum.retire_after=0", "task.curriculum.retire=1"])
def test_a_wrong_setting_is_named(setting, capsys):
    assert cli.main(["what-if", str(LOG), setting]) == 2
    assert setting.partition("=")[0] in capsys.readouterr().err


def test_settings_of_draws_are_answered_alone(capsys):
    assert cli.main(["what-if", str(LOG), "task.curriculum.new=2", "batcher.exit_policy=drop"]) == 2
    assert "`task.curriculum.new`" in capsys.readouterr().err


def test_the_comparison_is_printed(capsys):
    assert cli.main(["what-if", str(LOG), "task.curriculum.retire_after=1"]) == 0
    printed = capsys.readouterr().out
    assert "tasks at the end: " in printed
    assert "groups mixed" in printed
