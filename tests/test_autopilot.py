"""Limits of the staleness gate that a run raises by itself: where they hold it back, one at a time, back if in vain."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.samples import published

from areal_actors.core.autoscale_settings import AutoscaleSettings, WorkerBounds
from areal_actors.core.devices import pretended_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.display.limit import limit_of, with_chosen_limits
from areal_actors.display.run_state import RunState
from areal_actors.messages import (
    CapacityGranted,
    Heartbeat,
    LimitDecided,
    LoadMeasured,
    OffPolicyChanged,
    RoleLoad,
    RunResumed,
    RunStarted,
    ScaleDecided,
    StepCompleted,
)
from areal_actors.recipe.load import load as load_recipe
from areal_actors.scaling.autopilot import Autopilot
from areal_actors.scaling.decisions import Decider
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_actors.supervision.load_watch import decide

RECIPE = Path(__file__).parent.parent / "recipes" / "gsm8k_grpo.toml"
WORDS = ("enabled=true", "min_staleness=1", "min_concurrent=16")
GATE = ("staleness_gate.max_staleness=3", "staleness_gate.max_concurrent=64", "trainer.batch_size=16")


def recipe_with(*words, gate=GATE):
    settings = [*gate, *(f"autopilot.{word}" for word in words)]
    return load_recipe([RECIPE], ["profile=embedded", *settings], pretended_cuda("0")).recipe


@pytest.fixture(scope="module")
def recipe():
    return recipe_with(*WORDS)


def role(workers, slots, busy, waiting=0.0):
    return RoleLoad(workers=workers, slots=slots, busy=busy, waiting=waiting)


def load(waits, *, concurrency=0.0, staleness=0.0, busy=50.0):
    """A window in which the trainer waited, with the shares of that in which the gate was at its bounds."""
    roles = {"rollout_worker": role(1, 500, busy), "inference_worker": role(1, 500, busy)}
    bounds = {"concurrency": concurrency, "staleness": staleness}
    return LoadMeasured(
        seconds=15.0, trainer_waits=waits, episodes=busy, allowed=500, roles=roles, bounds=bounds, calls=busy
    )


def fly(pilot, *messages):
    """Returns what is decided; each decision is received itself, as from the log."""
    decisions, left = [], list(messages)
    while left:
        if (decision := pilot.receive(left.pop(0))) is not None:
            decisions.append(decision)
            left.insert(0, decision)
    return [(decision.setting, decision.before, decision.value) for decision in decisions]


def test_the_limit_that_holds_groups_back_is_raised_and_a_change_in_vain_is_taken_back(recipe):
    pilot = Autopilot(recipe)
    assert fly(pilot, load(0.6, concurrency=0.9)) == [("max_concurrent", 16, 32)]
    assert fly(pilot, load(0.4, staleness=0.9)) == [("max_staleness", 1, 2)], "it helped, and another one is reached"
    in_vain = load(0.42, staleness=0.9)
    assert fly(pilot, in_vain) == [("max_staleness", 2, 1)]
    assert fly(pilot, in_vain, in_vain) == [], "not tried again"


def test_a_limit_is_tried_again_once_the_other_one_has_changed_for_the_better(recipe):
    pilot = Autopilot(recipe)
    fly(pilot, load(0.6, staleness=0.9), load(0.6, staleness=0.9))
    assert pilot.limits == {"max_staleness": 1, "max_concurrent": 16}
    assert fly(pilot, load(0.6, concurrency=0.9), load(0.3, staleness=0.9)) == [
        ("max_concurrent", 16, 32),
        ("max_staleness", 1, 2),
    ]


def test_both_limits_are_raised_where_each_alone_is_held_back_by_the_other(recipe):
    pilot = Autopilot(recipe)
    held = load(0.6, concurrency=0.6, staleness=0.4)
    assert fly(pilot, held, held) == [("max_concurrent", 16, 32), ("max_staleness", 1, 2)]
    in_vain = fly(pilot, held)
    assert sorted(in_vain) == [("max_concurrent", 32, 16), ("max_staleness", 2, 1)]
    assert pilot.limits == {"max_staleness": 1, "max_concurrent": 16}
    assert fly(pilot, held) == []


@pytest.mark.parametrize(
    "window",
    [
        load(0.05, concurrency=1.0),
        load(0.6, concurrency=0.04),
        msgspec.structs.replace(load(0.6, concurrency=0.9), cores=2, machine_cpu=2.0, run_cpu=1.9),
    ],
    ids=["the trainer is busy", "the gate is seldom at a bound", "no core is free"],
)
def test_nothing_changes_where_the_advice_is_another_one(recipe, window):
    assert fly(Autopilot(recipe), window, window) == []


def test_limits_of_the_recipe_are_never_exceeded_nor_what_staleness_allows(recipe):
    pilot = Autopilot(recipe)
    decisions = fly(pilot, *(load(0.9 - 0.08 * number, concurrency=0.6, staleness=0.4) for number in range(9)))
    assert [value for setting, _, value in decisions if setting == "max_concurrent"] == [32, 48, 64]
    assert pilot.limits == {"max_staleness": 3, "max_concurrent": 64}


def step(number, **metrics):
    return StepCompleted(step=number, metrics=metrics, sequences_checksum="")


def test_staleness_is_not_raised_where_steps_would_drift_and_falls_when_they_do(recipe):
    pilot, held = Autopilot(recipe), load(0.6, staleness=0.9)
    assert fly(pilot, step(1, effective_sample_size=0.5), held) == [], "1 - .5 × 3/2 is below .3"
    assert fly(pilot, step(2, effective_sample_size=0.9), held) == [("max_staleness", 1, 2)]
    drifted = OffPolicyChanged(step=3, outside=("approx_kl 0.6, at most 0.5",), max_staleness=0, before=3)
    assert fly(pilot, drifted) == [("max_staleness", 2, 1)]
    assert fly(pilot, load(0.6, staleness=0.9)) == []


@pytest.mark.parametrize(("metrics", "value"), [({"approx_kl": 0.6}, 1), ({"masked_frac": 0.6}, 2)])
def test_a_guard_that_only_reports_has_staleness_fall_too_but_not_for_masked_tokens(recipe, metrics, value):
    pilot = Autopilot(recipe)
    fly(pilot, step(1), load(0.6, staleness=0.9))
    fly(pilot, step(2, **metrics), OffPolicyChanged(step=2, outside=("one",), max_staleness=3, before=3))
    assert pilot.limits["max_staleness"] == value


def test_a_resumed_run_goes_on_with_the_limits_of_its_gate(recipe):
    pilot = Autopilot(recipe)
    assert fly(pilot, RunResumed(recipe={}, reason="", folder=""), load(0.6, concurrency=0.9)) == [], "not known yet"
    status = {"max_concurrent": 32.0, "max_staleness": 2.0}
    beat = Heartbeat(
        actor="staleness_gate-0",
        process="control",
        pid=1,
        handling={},
        waits=(),
        status=status,
        cpu_seconds=0.0,
        peak_memory_bytes=0,
    )
    assert fly(pilot, beat, load(0.6, concurrency=0.9)) == [("max_concurrent", 32, 48)]


def test_limits_and_workers_do_not_change_at_once(recipe):
    bounds = AutoscaleSettings(enabled=True, cooldown_seconds=0.0, rollout_worker=WorkerBounds(max=4))
    pilot, decider = Autopilot(recipe), Decider(bounds)
    both = msgspec.structs.replace(
        load(0.6, concurrency=0.9), roles={"rollout_worker": role(1, 16, 16.0, 40.0), **load(0.6).roles}
    )
    decisions = []
    for number in range(4):
        if (decision := decide(pilot, decider, both, float(number))) is not None:
            decisions.append(decision)
            decide(pilot, decider, decision, float(number))
    assert isinstance(decisions[0], LimitDecided | ScaleDecided)
    assert len({type(decision) for decision in decisions[:2]}) == 1, "the second waits for the effect of the first"


async def test_the_gate_grants_within_the_chosen_limits_and_keeps_them(send):
    config = StalenessGateConfig(max_staleness=3, max_concurrent=64)

    def gate():
        return StalenessGate(
            config, group_size=1, batch_size=4, steps=100, chosen={"max_staleness": 0, "max_concurrent": 4}
        )

    def grants(emitted):
        return [message.groups for message in emitted if isinstance(message, CapacityGranted)]

    actor = gate()
    from_four = LimitDecided(setting="max_concurrent", before=4, value=12, reason="")
    assert grants(await send(actor, published(0))) == []  # synchronous until its engine has loaded them
    actor.ledger.weights_loaded("inference_worker-0", 0)
    one = LimitDecided(setting="max_staleness", before=0, value=1, reason="")
    assert grants(await send(actor, one)) == [4]
    assert grants(await send(actor, from_four)) == [4], "8 groups ahead are as many as one version allows"
    assert actor.status()["max_concurrent"] == 12
    again = gate()
    again.restore(actor.snapshot())
    assert again.chosen == {"max_staleness": 1, "max_concurrent": 12}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("enabled=true",), "`autopilot.enabled`: found true, but no limit may be chosen"),
        (("enabled=true", "min_staleness=4"), "found 4, above staleness_gate.max_staleness = 3; write 3 or less"),
        (("enabled=true", "min_concurrent=65"), "found 65, above staleness_gate.max_concurrent = 64"),
        (("enabled=true", "min_concurrent=8"), "one batch (trainer.batch_size) takes 16; write at least 16"),
        (("enabled=true", "min_staleness=-1"), "autopilot.min_staleness"),
    ],
)
def test_limits_that_cannot_be_chosen_are_refused(words, complaint):
    with pytest.raises(RecipeError) as refused:
        recipe_with(*words)
    assert complaint in str(refused.value)


def test_a_limit_that_already_follows_the_load_is_refused():
    with pytest.raises(RecipeError, match="already follows the load"):
        recipe_with(*WORDS, gate=(GATE[0], "staleness_gate.max_concurrent=auto", GATE[2]))


def test_the_verdict_names_the_limits_that_the_run_chose(recipe):
    def advice(*decided):
        state = RunState()
        started = RunStarted(recipe=msgspec.to_builtins(recipe), profile="", reason="", folder="")
        for event in (started, *decided, load(0.5, concurrency=0.9)):
            state.fold(event, 1.0)
        restored = RunState()
        restored.restore(state.snapshot())
        return " ".join(limit_of(restored).advice), with_chosen_limits(recipe, restored).staleness_gate

    words, gate = advice()
    assert (gate.max_staleness, gate.max_concurrent) == (1, 16)
    chosen = LimitDecided(setting="max_concurrent", before=16, value=32, reason="it helps")
    words, gate = advice(chosen)
    assert (gate.max_staleness, gate.max_concurrent) == (1, 32)
    assert "max_concurrent" in words
