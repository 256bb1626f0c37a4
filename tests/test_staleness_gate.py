from __future__ import annotations

import pytest
from support.samples import abandoned, batch, exported, loaded, published

from areal_actors.messages import (
    ActorFailed,
    ActorStopped,
    BatchFormed,
    CapacityGranted,
    EvaluationCompleted,
    RunResumed,
    RunStopping,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.staleness.staleness_gate import StalenessGate


def evaluated(mode, version=0):
    return EvaluationCompleted(weight_version=version, mode=mode, tasks=1, failed=0, accuracy=1.0, mean_tokens=1.0)


BASELINE = (evaluated("sampled"), evaluated("greedy"))


def gate(max_staleness=1, *, group_size=1, batch_size=4, max_concurrent=100, steps=100, **options):
    config = StalenessGateConfig(max_staleness=max_staleness, max_concurrent=max_concurrent)
    return StalenessGate(config, group_size=group_size, batch_size=batch_size, steps=steps, **options)


def groups(emitted):
    assert all(isinstance(message, CapacityGranted) for message in emitted)
    return [message.groups for message in emitted]


async def test_an_exported_trajectory_frees_no_slot_until_weights_advance(send):
    actor = gate()
    assert groups(await send(actor, published(0), *(exported(f"{n}.0") for n in range(4)))) == [8]
    assert groups(await send(actor, batch(0, 0, 1, 2, 3))) == []
    assert groups(await send(actor, published(1))) == [4]


async def test_a_run_that_continues_is_granted_what_it_was_refused_while_it_stopped(send):
    actor = gate()
    assert groups(
        await send(actor, published(0), RunStopping(reason="ctrl-c"), abandoned("3.0"), abandoned("4.0"))
    ) == [8]
    assert groups(await send(actor, RunResumed(recipe={}, reason="", folder="runs/mine"))) == [2]


async def test_grants_are_numbered_without_gap_and_carry_the_version(send):
    emitted = await send(
        gate(), published(0), *(exported(f"{n}.0") for n in range(4)), batch(0, 0, 1, 2, 3), published(1)
    )
    assert [(grant.first_group, grant.groups, grant.weight_version) for grant in emitted] == [(0, 8, 0), (8, 4, 1)]


async def test_an_episode_permanently_abandoned_gives_its_slot_back_at_once(send):
    assert groups(await send(gate(), published(0), abandoned("3.0"))) == [8, 1]


async def test_an_episode_that_will_be_tried_again_keeps_its_slot(send):
    assert groups(await send(gate(), published(0), abandoned("3.0", attempts_left=1))) == [8]


async def test_held_out_episodes_hold_no_slot(send):
    assert groups(await send(gate(), published(0), abandoned("evaluation-0-greedy.0", purpose="evaluate"))) == [8]


async def test_however_often_an_end_is_reported_the_slot_comes_back_once(send):
    ends = [abandoned("0.0"), abandoned("0.0"), exported("0.0")]
    assert groups(await send(gate(), published(0), *ends)) == [8, 1]


async def test_a_dropped_group_gives_its_slot_back_once_however_many_members_are_reported(send):
    actor = gate(group_size=2)
    drops = [TrajectoryDropped(episode=f"0.{member}", group="0", reason="stale") for member in range(2)]
    assert groups(await send(actor, published(0), exported("0.0"), exported("0.1"), *drops)) == [8, 1]


async def test_with_a_baseline_evaluation_the_gate_opens_after_it(send):
    actor = gate(after_baseline=True)
    assert groups(await send(actor, published(0))) == []
    assert actor.status()["bound"] == "baseline"
    assert groups(await send(actor, evaluated("greedy"), evaluated("greedy"))) == []
    assert groups(await send(actor, evaluated("sampled"))) == [8]


async def test_without_a_baseline_to_wait_for_no_evaluation_holds_the_gate_or_opens_it(send):
    actor = gate()
    assert groups(await send(actor, published(0))) == [8]
    assert groups(await send(actor, *BASELINE)) == []


async def test_synchronous_training_waits_for_every_evaluation_between_steps_so_that_no_weights_come_meanwhile(send):
    actor = gate(max_staleness=0, batch_size=1, steps=3, evaluations=(2, "greedy"))
    step = lambda n: (exported(f"{n}.0"), batch(n, n), published(n + 1), loaded("a", n + 1))  # noqa: E731
    assert groups(await send(actor, published(0), loaded("a", 0))) == [1]
    assert groups(await send(actor, *step(0))) == [1]
    assert groups(await send(actor, *step(1))) == []
    assert actor.status()["bound"] == "evaluation"
    assert groups(await send(actor, published(2), evaluated("sampled", 2), evaluated("greedy", 0))) == []
    assert groups(await send(actor, evaluated("greedy", 2))) == [1]


async def test_asynchronous_training_waits_for_no_evaluation_between_steps(send):
    actor = gate(max_staleness=1, batch_size=1, evaluations=(1, "sampled"))
    assert groups(await send(actor, published(0), exported("0.0"), batch(0, 0), published(1))) == [2, 1]


async def test_a_group_that_the_filter_dropped_is_drawn_again_under_another_number(send):
    actor = gate(steps=1, max_staleness=0, batch_size=2)
    await send(actor, loaded("a", 0))
    dropped = TrajectoryDropped(episode="0.0", group="0", reason="filtered")
    emitted = await send(actor, published(0), exported("0.0"), dropped, exported("1.0"), exported("2.0"))
    assert [(grant.first_group, grant.groups) for grant in emitted] == [(0, 2), (2, 1)]


async def test_smaller_batches_leave_no_more_groups_to_grant_after_the_last_step(send):
    actor = gate(steps=2, batch_size=2, max_staleness=0)
    emitted = await send(
        actor, loaded("a", 0), published(0), exported("0.0"), batch(0, 0), published(1), loaded("a", 1)
    )
    assert [grant.groups for grant in emitted] == [2, 1]
    assert groups(await send(actor, exported("1.0"), batch(1, 1), published(2), loaded("a", 2), exported("2.0"))) == []


async def test_synchronous_training_waits_for_the_weights_to_be_loaded_everywhere(send):
    actor = gate(max_staleness=0)
    assert groups(await send(actor, published(0))) == []
    assert actor.status()["bound"] == "weights"
    assert groups(await send(actor, loaded("a", 0), loaded("b", 0))) == [4]
    rest = [*(exported(f"{n}.0") for n in range(4)), batch(0, 0, 1, 2, 3), published(1), loaded("a", 1)]
    assert groups(await send(actor, *rest)) == []
    assert groups(await send(actor, ActorFailed(actor="b", process="p", reason="killed"))) == [4]


async def test_a_worker_that_was_stopped_is_not_waited_for_either(send):
    actor = gate(max_staleness=0)
    await send(actor, loaded("a", 0), loaded("b", -1), published(0))
    assert groups(await send(actor, ActorStopped(actor="b", process="p"))) == [4]


async def test_a_stopping_run_grants_nothing_more(send):
    actor = gate()
    assert groups(await send(actor, published(0), RunStopping(reason="ctrl-c"), abandoned("0.0"), *BASELINE)) == [8]
    assert actor.status()["bound"] == "stopped"


async def test_no_more_groups_start_than_the_remaining_steps_need(send):
    actor = gate(max_staleness=5, batch_size=2, steps=2)
    assert groups(await send(actor, published(0))) == [4]
    assert actor.status()["bound"] == "steps"


@pytest.mark.parametrize("cut", range(8))
async def test_a_fresh_gate_after_replay_continues_as_the_first_would(send, cut):
    log = [
        published(0),
        exported("0.0"),
        abandoned("1.0"),
        *(exported(f"{n}.0") for n in (2, 3, 4)),
        batch(0, 0, 2, 3, 4),
        published(1),
        exported("5.0"),
    ]
    first, second = gate(), gate()
    await send(first, *log[:cut])
    await send(second, *log[:cut])
    assert first.ledger == second.ledger
    assert await send(first, *log[cut:]) == await send(second, *log[cut:])


def test_the_gate_receives_the_events_that_move_groups():
    assert {WeightsPublished, TrajectoryExported, BatchFormed, TrajectoryDropped} <= set(StalenessGate.handlers)
    assert StalenessGate.handlers[WeightsPublished].emits == (CapacityGranted,)
