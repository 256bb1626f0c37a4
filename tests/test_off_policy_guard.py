"""Steps that are off policy are reported, and lower the staleness bound until steps are on policy again."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from areal_actors.batching.assembler import BatcherConfig
from areal_actors.batching.batcher import Batcher
from areal_actors.core.values import WeightsLocation
from areal_actors.display.sentences import plain_line
from areal_actors.messages import (
    CapacityGranted,
    OffPolicyChanged,
    RunStarted,
    StepCompleted,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.recipe.recipe import Recipe, recorded_recipe
from areal_actors.replay.recorded_batches import RECEIVED, RecordedBatches
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.staleness.off_policy_guard import OffPolicyGuard, OffPolicyGuardConfig
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_bus.recorded import FORMAT_VERSION, read_log

LENGTHS = """\
import os
from pathlib import Path

def marked_lengths(task, output):
    Path(os.environ["GUARD_MARK"]).touch()
    return len(output) / 64
"""
PARTS = Path(__file__).parents[1] / "benchmarks" / "guard_parts.py"
LOG = Path(__file__).parent / "recordings" / f"log-{FORMAT_VERSION}.xz"
RECEIVED_BY_SUBJECT = {kind.subject: kind for kind in RECEIVED}
TIGHTEN = OffPolicyGuardConfig(action="tighten", settle_steps=2)
OUTSIDE = ("effective_sample_size 0.1, at least 0.3",)


FAR, NEAR = {"effective_sample_size": 0.1}, {"effective_sample_size": 0.9}
MASKED = {"effective_sample_size": 0.9, "masked_frac": 0.9}


def bounds(steps, *, most=4, config=TIGHTEN):
    """Returns the bound after each step: `x` is off policy, `m` masks most of its tokens."""
    guard, found = OffPolicyGuard(max_staleness=most), []
    for step, mark in enumerate(steps, start=1):
        guard = guard.after(step, {"x": FAR, "m": MASKED}.get(mark, NEAR), config, most)
        found.append(guard.max_staleness)
    return found


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("......", [4] * 6),
        ("x.........", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        ("..xx.......", [4, 4, 0, 0, 0, 1, 1, 2, 2, 3, 3]),
        ("x.....x..", [0, 0, 1, 1, 2, 2, 0, 0, 1]),
        ("x.x.x.", [0] * 6),
    ],
)
def test_the_bound_falls_to_0_when_a_step_is_off_policy_and_grows_by_one_after_some_that_are_not(steps, expected):
    assert bounds(steps) == expected


def test_masked_tokens_are_reported_and_neither_lower_the_bound_nor_keep_it_low():
    """A lower bound masks more tokens, so the bound would be kept low by itself."""
    assert bounds("mmmm") == [4] * 4
    assert bounds("xmmmm") == [0, 0, 1, 1, 2]
    assert OffPolicyGuard(max_staleness=8).after(1, MASKED, TIGHTEN, 8).off_policy


MEASURED = [
    ("1.00 1.00 .99 .97 .94 .88 .75 .64 .57 .60 .67 .78", ".00 .00 .00 .01 .02 .04 .08 .15 .27 .33 .40 .34", 0),
    ("1.00 .97 .97 .96 .97 .85 .91 .86 .84 .85 .84 .85", ".00 .01 .01 .02 .01 .07 .04 .09 .05 .05 .08 .06", 0),
    ("1.00 .99 .97 .97 .94 .88 .84 .52 .59 .64 .62 .74", ".00 .00 .01 .02 .03 .05 .08 .14 .15 .18 .18 .23", 0),
    ("1.00 .91 .65 .27 .45 .38 .45 .42 .36 .82 .93 .97", ".00 .03 .15 .79 .92 1.08 1.24 1.51 2.35 .83 .22 .08", 4),
    ("1.00 .74 .69 .57 .44 .38 .29 .34 .35 .67 .84 .96", ".00 .13 .14 .25 .35 .81 .95 1.02 1.03 .54 .29 .10", 6),
    ("1.00 .91 .55 .41 .40 .38 .39 .38 .04 .69 .93 .84", ".00 .05 .30 .56 .70 1.16 2.09 1.98 2.15 1.04 .31 .27", 4),
]
"""Effective sample size and `approx_kl` of the first steps at staleness 8, seeds 0 to 2: at the learning rate of
recipes/gsm8k_grpo.toml, and at four times that, which diverges; and the step at which the bands notice
(docs/benchmarks.md)."""


@pytest.mark.parametrize(("sizes", "divergences", "noticed"), MEASURED)
def test_the_bands_separate_measured_runs_that_diverge_from_sound_ones(sizes, divergences, noticed):
    steps = zip(map(float, sizes.split()), map(float, divergences.split()), strict=True)
    outside = [
        step
        for step, (size, divergence) in enumerate(steps, start=1)
        if any(OffPolicyGuardConfig().outside({"effective_sample_size": size, "approx_kl": divergence}))
    ]
    assert next(iter(outside), 0) == noticed


def test_a_guard_that_reports_leaves_the_bound_and_a_repeated_step_counts_once():
    assert bounds("xxxx", config=OffPolicyGuardConfig()) == [4] * 4
    guard = OffPolicyGuard(max_staleness=8).after(3, FAR, TIGHTEN, 8)
    assert guard.after(3, FAR, TIGHTEN, 8) is guard
    assert guard.after(2, NEAR, TIGHTEN, 8) is guard


@pytest.mark.parametrize(
    ("metrics", "count"),
    [
        ({}, 0),
        ({"effective_sample_size": 0.3, "approx_kl": 0.5, "masked_frac": 0.5}, 0),
        ({"effective_sample_size": 0.29, "approx_kl": 0.1}, 1),
        ({"approx_kl": 0.51, "masked_frac": 0.6}, 2),
        ({"effective_sample_size": math.nan, "approx_kl": math.nan}, 2),
    ],
)
def test_metrics_outside_of_their_bands_are_named(metrics, count):
    found = list(OffPolicyGuardConfig().outside(metrics))
    assert len(found) == count
    assert all(any(sentence.startswith(name) for name in metrics) for sentence in found)


def gate(action="tighten", *, max_staleness=4):
    guard = OffPolicyGuardConfig(action=action, settle_steps=1)
    config = StalenessGateConfig(max_staleness=max_staleness, max_concurrent=100, guard=guard)
    return StalenessGate(config, group_size=1, batch_size=4, steps=100)


def published(version):
    return WeightsPublished(weight_version=version, location=WeightsLocation(folder="", checksum="", model=""))


def completed(step, **metrics):
    return StepCompleted(step=step, metrics=metrics, sequences_checksum="")


async def test_the_gate_grants_fewer_groups_while_the_bound_is_lower(send):
    actor = gate()
    assert await send(actor, published(0)) == [CapacityGranted(first_group=0, groups=20, weight_version=0)]
    changed = await send(actor, completed(1, effective_sample_size=0.1))
    assert changed == [OffPolicyChanged(step=1, outside=OUTSIDE, max_staleness=0, before=4)]
    assert await send(actor, published(1)) == []
    assert actor.status()["max_staleness"] == 0
    assert await send(actor, completed(2, effective_sample_size=0.9)) == [
        OffPolicyChanged(step=2, outside=(), max_staleness=1, before=0)
    ]
    assert await send(actor, completed(2, effective_sample_size=0.1)) == []


async def test_a_gate_that_reports_names_the_beginning_and_the_end(send):
    actor = gate("report")
    emitted = [
        await send(actor, completed(step, approx_kl=kl)) for step, kl in enumerate((0.1, 0.9, 0.8, 0.2, 0.1), start=1)
    ]
    assert [len(messages) for messages in emitted] == [0, 1, 0, 1, 0]
    assert plain_line(emitted[1][0]) == "step 2 is off policy, approx_kl 0.9, at most 0.5"
    assert plain_line(emitted[3][0]) == "steps to 4 are on policy"
    assert await send(gate("off"), completed(1, approx_kl=9.0)) == []


async def test_a_restored_gate_continues_with_the_lower_bound(send):
    actor = gate(max_staleness=8)
    await send(actor, completed(1, approx_kl=0.9))
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(actor.snapshot()), type=type(actor.snapshot()))
    other = gate(max_staleness=8)
    other.restore(state)
    assert other.guard == actor.guard
    assert other.status()["max_staleness"] == 0


async def test_the_batcher_masks_by_the_lower_bound(send):
    batcher = Batcher(BatcherConfig(), group_size=1, batch_size=1, max_staleness=8, steps=10)
    await send(batcher, OffPolicyChanged(step=5, outside=OUTSIDE, max_staleness=2, before=8))
    assert batcher.max_staleness == 2
    other = Batcher(BatcherConfig(), group_size=1, batch_size=1, max_staleness=8, steps=10)
    other.restore(batcher.snapshot())
    assert other.max_staleness == 2


async def test_a_bound_of_zero_is_synchronous_training(send):
    actor = gate(max_staleness=1)
    await send(actor, published(0))
    assert (await send(actor, completed(1, approx_kl=2.0)))[0].max_staleness == 0
    await send(actor, published(1))
    assert actor.status()["bound"] == "weights"
    await send(actor, WeightsLoaded(worker="inference_worker-0", weight_version=1, checksum=""))
    assert actor.status()["bound"] == "staleness"


def test_the_settings_are_in_the_recipe():
    guard = msgspec.convert({"action": "tighten", "max_approx_kl": 0.2}, OffPolicyGuardConfig)
    assert (guard.action, guard.max_approx_kl) == ("tighten", 0.2)
    assert "staleness_gate" in Recipe.__struct_fields__


async def test_a_what_if_has_the_batches_of_a_run_whose_bound_was_lowered():
    recipe = recorded_recipe(next(read_log(LOG)).open(RunStarted).recipe)
    found = RecordedBatches(recipe)
    lowered = OffPolicyChanged(step=1, outside=OUTSIDE, max_staleness=0, before=2)
    for envelope in read_log(LOG):
        message = (
            envelope.open(RECEIVED_BY_SUBJECT[envelope.subject]) if envelope.subject in RECEIVED_BY_SUBJECT else None
        )
        if message is None:
            continue
        await found.receive(envelope, message)
        if isinstance(message, WeightsPublished) and message.weight_version == 0:
            await found.receive(envelope, lowered)
    bounds = [batch.event.step - batch.event.oldest_version for batch in found.batches]
    assert bounds
    assert set(bounds) == {0}


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_live_run_that_is_off_policy_becomes_synchronous(live, tmp_path, monkeypatch):
    """Its trainer waits for generation (benchmarks/guard_parts.py), so that the tokens are as old as the bound
    allows."""
    mark = tmp_path / "mark"
    mark.touch()
    monkeypatch.setenv("GUARD_MARK", str(mark))
    (tmp_path / "rewards.py").write_text(LENGTHS)
    run = live(
        "steps=7",
        "evaluation.tasks=0",
        "staleness_gate.max_staleness=4",
        "staleness_gate.max_concurrent=20",
        "staleness_gate.guard.action=tighten",
        "staleness_gate.guard.max_approx_kl=0.0001",
        "trainer.optimizer.lr=5e-3",
        "algorithm.name=custom",
        f"algorithm.path={PARTS}:PatientGrpo",
        f"task.reward={tmp_path}/rewards.py:marked_lengths",
    )
    assert await run.ended() == 0, run.output()
    events = [event for _, event in await run.log()]
    lowered = [event for event in events if isinstance(event, OffPolicyChanged) and event.max_staleness < event.before]
    assert [(event.before, event.max_staleness) for event in lowered] == [(4, 0)]
    staleness = [event.metrics["token_staleness_max"] for event in events if isinstance(event, StepCompleted)]
    after = lowered[0].step + 1  # the next batch may have been formed before
    assert max(staleness[:after]) > 0
    assert set(staleness[after:]) == {0.0}, staleness
