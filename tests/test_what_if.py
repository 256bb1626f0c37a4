"""Recorded episodes under other settings train the same where nothing changes, and exactly that at the first step that
differs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from areal_actors import cli
from areal_actors.messages import RunStarted, StepCompleted, WeightsPublished
from areal_actors.replay import what_if
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import FORMAT_VERSION, LogWriter, read_log

LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"

LATER = {"ended_by_model", "tool_call_error", "unanswered_calls"}
"""Metrics that the recorded release did not have."""


def asked(*settings, capsys, train=False):
    assert cli.main(["what-if", str(LOG), *settings, "--json", *(["--train"] if train else [])]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def recorded_steps():
    return [
        envelope.open(StepCompleted).metrics for envelope in read_log(LOG) if envelope.subject == StepCompleted.subject
    ]


@pytest.mark.parametrize(
    "setting", ["batcher.exit_policy=mask", "trainer.batch_size=4", "task.reward=gsm8k", "algorithm.clip=0.2"]
)
def test_the_recorded_settings_give_the_recorded_metrics(setting, capsys, recorded_steps):
    found = asked(setting, capsys=capsys)
    assert found["first_change"] == 0
    for side in ("recorded", "replayed"):
        steps = found[side]["steps"]
        assert len(steps) == len(recorded_steps) == 4
        for step, metrics in zip(steps, recorded_steps, strict=True):
            assert step.keys() - metrics.keys() <= LATER
            known = {name: value for name, value in step.items() if name in metrics}
            assert known == pytest.approx({name: metrics[name] for name in known}, nan_ok=True)
            assert {"advantage_std", "token_staleness_max", "reward_mean"} <= step.keys()


def rewarded(tmp_path, body):
    path = tmp_path / "rewards.py"
    path.write_text(f"def reward(task, output):\n    {body}\n")
    return f"task.reward={path}:reward"


def test_another_reward_changes_rewards_and_advantages_but_no_episode(capsys, tmp_path):
    found = asked(rewarded(tmp_path, "return float(len(output) % 2)"), capsys=capsys)
    was, now = found["recorded"], found["replayed"]
    assert was["episodes"] == now["episodes"]
    assert found["first_change"] == 1
    assert [step["reward_mean"] for step in was["steps"]] != [step["reward_mean"] for step in now["steps"]]
    assert "exact" in found["verdict"]
    assert "not the run that would have followed" in found["verdict"]


def test_a_reward_that_fails_on_some_outputs_trains_their_groups_without_them(capsys, tmp_path):
    found = asked(rewarded(tmp_path, "return 1.0 if len(output) % 3 else 1 / 0"), capsys=capsys)
    failed = found["replayed"]["unscored"]
    assert failed
    assert set(failed.values()) == {"ZeroDivisionError: division by zero"}
    trained = {episode for step in found["replayed"]["episodes"] for episode in step}
    assert trained
    assert not trained & failed.keys()


def test_a_filter_a_bound_and_an_algorithm_are_answered(capsys):
    filtered = asked("batcher.dynamic_sampling=true", capsys=capsys)["replayed"]
    assert filtered["dropped"]["filtered"] > 5
    fresh = asked("staleness_gate.max_staleness=0", capsys=capsys)
    assert fresh["replayed"]["dropped"]["stale"] > 0
    assert all(step["token_staleness_max"] == 0 for step in fresh["replayed"]["steps"])
    assert max(step["token_staleness_max"] for step in fresh["recorded"]["steps"]) > 0
    assert fresh["recorded"]["newer"] == 0
    means = [step["token_staleness_mean"] for step in fresh["replayed"]["steps"]]
    assert fresh["replayed"]["newer"] == next((number for number, mean in enumerate(means, start=1) if mean < 0), 0)
    assert fresh["replayed"]["newer"] != fresh["first_change"] or "It is not exact either" in fresh["verdict"]
    other = asked("algorithm.name=rloo", capsys=capsys)
    assert other["recorded"]["episodes"] == other["replayed"]["episodes"]
    assert [step["advantage_max"] for step in other["recorded"]["steps"]] != [
        step["advantage_max"] for step in other["replayed"]["steps"]
    ]
    assert "needs values" in asked("algorithm.name=ppo", capsys=capsys)["replayed"]["without_advantages"]


def test_a_recorded_run_is_asked_from_any_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without the agent's file
    assert asked("batcher.dynamic_sampling=true", capsys=capsys)["replayed"]["dropped"]["filtered"] > 5
    assert cli.main(["what-if", str(LOG), "task.reward=nothing.py:here"]) == cli.WRONG_RECIPE
    assert "nothing.py" in capsys.readouterr().err


def test_the_command_prints_both_sides(capsys):
    assert cli.main(["what-if", str(LOG), "batcher.dynamic_sampling=true"]) == 0
    printed = capsys.readouterr().out
    assert "recorded" in printed
    assert "groups dropped: filtered" in printed
    assert cli.main(["what-if", str(LOG), "algorithm.clip=0.01"]) == 0
    assert "--train also compares losses" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ((), "name at least one setting"),
        (("trainer.optimizer.lr=1e-3",), "which a log cannot answer: run it"),
        (("sampling.temperature=0.5",), "which a log cannot answer: run it"),
        (("algorithm.group_size=8",), "the recorded groups have 4 episodes"),
        (("batcher.exit_polcy=keep",), "exit_policy"),
        (("task.reward=nothing.py:here",), "nothing.py"),
        (("task.reward=model:folder",), "no such folder"),
    ],
)
def test_what_a_log_cannot_answer_is_refused_with_the_remedy(settings, sentence, capsys):
    assert cli.main(["what-if", str(LOG), *settings]) == cli.WRONG_RECIPE
    assert sentence in capsys.readouterr().err


def test_answered_settings_exist():
    recipe = next(read_log(LOG)).open(RunStarted).recipe
    for table, *rest in what_if.ANSWERED:
        assert table in recipe
        assert not rest or rest[0] in recipe[table]


def recorded_checksums(log):
    published = [
        envelope.open(WeightsPublished) for envelope in read_log(log) if envelope.subject == WeightsPublished.subject
    ]
    return {str(one.weight_version): one.location.checksum for one in published}


@pytest.mark.long
@pytest.mark.slow
def test_the_trainer_repeats_the_recorded_weights_and_differs_where_the_reward_does(capsys, tmp_path):
    was, now = asked("algorithm.clip=0.2", capsys=capsys, train=True)["trained"]
    assert was["checksums"] == now["checksums"]
    assert was["checksums"].keys() == recorded_checksums(LOG).keys()
    here = was["repeated"]  # this machine computes other bits than the one that recorded
    assert (was["checksums"] == recorded_checksums(LOG)) == (not here)
    was, now = asked(rewarded(tmp_path, "return float(len(output))"), capsys=capsys, train=True)["trained"]
    assert was["repeated"] == here
    assert [version for version, found in was["checksums"].items() if now["checksums"][version] == found] == ["0"]
    assert len(now["metrics"]) == 4
    assert now["metrics"][-1]["effective_sample_size"] < was["metrics"][-1]["effective_sample_size"]


def of_another_machine(envelope):
    """Returns an event of the log with weights that no trainer here computes."""
    if envelope.subject != WeightsPublished.subject:
        return envelope
    event = envelope.open(WeightsPublished)
    other = msgspec.structs.replace(event.location, checksum=event.location.checksum[::-1])
    stamp = Stamp(id=envelope.id, sender=envelope.sender, time=envelope.time, cause=envelope.cause)
    sealed = Envelope.seal(msgspec.structs.replace(event, location=other), stamp, envelope.run)
    return msgspec.structs.replace(sealed, sequence=envelope.sequence)


@pytest.mark.long
@pytest.mark.slow
def test_weights_of_another_kind_of_machine_are_computed_here_on_both_sides(capsys, tmp_path):
    path = tmp_path / "other.log"
    with LogWriter(path, "gsm8k-grpo") as writer:
        for envelope in read_log(LOG):
            writer.write(of_another_machine(envelope))
    assert cli.main(["what-if", str(path), "algorithm.clip=0.2", "--train"]) == 0
    printed = capsys.readouterr().out
    assert "both sides were computed here" in printed
    assert "every version has the same checksum on both sides (5 versions)" in printed
