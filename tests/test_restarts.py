from __future__ import annotations

import msgspec
import pytest

from areal_actors.core.actor_settings import ActorsSettings, Placement
from areal_actors.recipe.run_settings import SupervisorSettings
from areal_actors.supervision.restarts import Decision, Restarts

PROCESSES = ("staleness_gate", "task_source", "batcher", "evaluator", "checkpointer", "metrics")
ACTORS = msgspec.structs.replace(
    ActorsSettings(),
    **{name: Placement(process=name) for name in PROCESSES},
    rollout_worker=Placement(process="rollout_worker", count=2),
)
REST = (
    "task_source",
    "evaluator",
    "checkpointer",
    "metrics",
    "session_manager",
    "rollout_worker",
    "reward_worker",
    "inference_worker",
)


def supervisor(restart, *children, max_restarts=2, window_seconds=10.0):
    return SupervisorSettings(
        restart=restart, children=children, max_restarts=max_restarts, window_seconds=window_seconds
    )


def tree(root="one_for_one", learner="one_for_one", **budget):
    """run: staleness_gate, learner (batcher, trainer), rest (everything else)."""
    return {
        "run": supervisor(root, "staleness_gate", "learner", "rest", max_restarts=1),
        "learner": supervisor(learner, "batcher", "trainer", **budget),
        "rest": supervisor("one_for_one", *REST, max_restarts=100),
    }


REST_PROCESSES = (
    *("task_source", "evaluator", "checkpointer", "metrics", "gateway", "rollout_worker-0", "rollout_worker-1"),
    *("reward_worker", "inference_worker"),
)
ALL = ("staleness_gate", "batcher", "trainer", *REST_PROCESSES)


def test_processes_start_in_the_order_of_the_tree_each_once():
    assert Restarts(tree(), ACTORS).start_order() == ALL
    control = Restarts(tree(), ActorsSettings()).start_order()
    assert len(set(control)) == len(control)
    assert control[:2] == ("control", "trainer")


@pytest.mark.parametrize(
    ("strategy", "dead", "restarted"),
    [
        ("one_for_one", "trainer", ("trainer",)),
        ("one_for_one", "batcher", ("batcher",)),
        ("rest_for_one", "batcher", ("batcher", "trainer")),
        ("rest_for_one", "trainer", ("trainer",)),
        ("one_for_all", "trainer", ("batcher", "trainer")),
    ],
)
def test_each_strategy_restarts_its_processes(strategy, dead, restarted):
    assert Restarts(tree(learner=strategy), ACTORS).decide_restart(dead, 0.0) == Decision(restart=restarted)


def test_of_several_workers_only_the_dead_one_is_restarted():
    assert Restarts(tree(), ACTORS).decide_restart("rollout_worker-1", 0.0).restart == ("rollout_worker-1",)


@pytest.mark.parametrize(
    ("root", "restarted"),
    [
        ("one_for_one", ("batcher", "trainer")),
        ("rest_for_one", ("batcher", "trainer", *REST_PROCESSES)),
        ("one_for_all", ALL),
    ],
)
def test_a_supervisor_beyond_its_budget_fails_and_its_parent_decides(root, restarted):
    restarts = Restarts(tree(root), ACTORS)
    assert [restarts.decide_restart("trainer", now).restart for now in (0.0, 1.0)] == [("trainer",)] * 2
    assert restarts.decide_restart("trainer", 2.0) == Decision(restart=restarted)


def test_after_an_escalation_the_supervisor_has_its_whole_budget_again():
    restarts = Restarts(tree(), ACTORS)
    deaths = [restarts.decide_restart("trainer", float(now)).restart for now in range(5)]
    assert deaths == [("trainer",), ("trainer",), ("batcher", "trainer"), ("trainer",), ("trainer",)]
    assert (
        restarts.decide_restart("trainer", 5.0).give_up
        == "trainer died, and supervisor `run` allows more than 1 restarts in 10 s"
    )


def test_deaths_longer_ago_than_the_window_are_forgiven():
    restarts = Restarts(tree(), ACTORS)
    assert all(restarts.decide_restart("trainer", now * 6.0).restart == ("trainer",) for now in range(20))


def test_a_supervisor_without_restarts_gives_up_at_once_and_names_the_dead_process():
    decision = Restarts(tree(max_restarts=0), ACTORS).decide_restart("trainer", 0.0)
    assert decision == Decision(give_up="trainer died, and supervisor `learner` allows no restarts")


def test_a_process_that_hosts_actors_of_several_supervisors_is_restarted_once():
    actors = msgspec.structs.replace(
        ACTORS, batcher=Placement(process="control"), task_source=Placement(process="control")
    )
    decision = Restarts(tree(learner="one_for_all"), actors).decide_restart("control", 0.0)
    assert decision.restart == ("control", "trainer")


def test_the_tree_of_every_recipe_starts_every_process():
    from_defaults = Restarts({"run": supervisor("one_for_one", *ActorsSettings.__struct_fields__)}, ActorsSettings())
    assert set(from_defaults.start_order()) == {
        "control",
        "gateway",
        "rollout_worker",
        "reward_worker",
        "inference_worker",
        "trainer",
    }
