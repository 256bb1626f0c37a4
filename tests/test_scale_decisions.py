"""Decisions about workers: within bounds, after several windows, once for each cooldown, never back and forth."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal_actors.cli import main
from areal_actors.core.autoscale_settings import AutoscaleSettings, WorkerBounds
from areal_actors.core.devices import pretended_cuda
from areal_actors.core.errors import RecipeError
from areal_actors.messages import LoadMeasured, RoleLoad, RunResumed, ScaleDecided
from areal_actors.recipe.load import load as load_recipe
from areal_actors.recipe.plan import exhausted_bounds, plan
from areal_actors.scaling.decisions import DOWN_WINDOWS, PENDING_SECONDS, UP_WINDOWS, Decider

WINDOW = 10.0
RECIPE = Path(__file__).parent.parent / "recipes" / "gsm8k_grpo.toml"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("reward_worker.min=3", "reward_worker.max=2"),
            "`autoscale.reward_worker.max`: found 2, but autoscale.reward_worker.min = 3",
        ),
        (
            ("enabled=true",),
            "`autoscale.enabled`: found true, but no role has bounds; write autoscale.rollout_worker.max",
        ),
        (("rollout_worker.max=-1",), "autoscale.rollout_worker.max"),
        (("trainer.max=2",), "autoscale.trainer"),
    ],
)
def test_bounds_that_do_not_agree_are_refused(words, complaint):
    with pytest.raises(RecipeError) as refused:
        load_recipe([RECIPE], ["profile=embedded", *(f"autoscale.{word}" for word in words)], pretended_cuda("0"))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        (
            "actors.rollout_worker.count=3",
            "found 2, but actors.rollout_worker.count = 3; write 3 or more, or 0",
        ),
        (
            "hosts.rollout_worker.count=3",
            (
                "`autoscale.rollout_worker.max`: found 2, but hosts.rollout_worker starts 3: count × workers; write 3"
                " or more, or 0"
            ),
        ),
        ("staleness_gate.max_staleness=0", "take turns with staleness_gate.max_staleness = 0"),
    ],
)
def test_bounds_that_do_not_fit_the_run_are_refused(word, complaint):
    scaled = ("profile=embedded", "autoscale.enabled=true", "autoscale.rollout_worker.max=2")
    with pytest.raises(RecipeError) as refused:
        load_recipe([RECIPE], [*scaled, word], pretended_cuda("0"))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("words", "notices"),
    [
        (
            ("hosts.rollout_worker.count=1", "hosts.rollout_worker.workers=2", "actors.reward_worker.count=1"),
            ["hosts.rollout_worker starts 2, as many as autoscale.rollout_worker.max allows: no decision can add one"],
        ),
        (
            ("actors.rollout_worker.count=2",),
            [
                (
                    "actors.rollout_worker.count = 2 is as many as autoscale.rollout_worker.max allows: no decision can"
                    " add one"
                )
            ],
        ),
        (("hosts.rollout_worker.count=1",), []),
        (("hosts.rollout_worker.count=2", "autoscale.enabled=false"), []),
    ],
)
def test_bounds_that_leave_no_room_are_noted_before_anything_is_started(words, notices, capsys):
    scaled = ["profile=embedded", "autoscale.enabled=true", "autoscale.rollout_worker.max=2", *words]
    recipe = load_recipe([RECIPE], scaled, pretended_cuda("0")).recipe
    assert list(exhausted_bounds(recipe)) == notices
    assert [line for line in plan(recipe) if line.startswith("autoscale")] == [
        f"autoscale   {notice}" for notice in notices
    ]
    main(["run", str(RECIPE), *scaled, "--on", "slurm", "--dry-run"])
    assert capsys.readouterr().err == "".join(f"autoscale: {notice}\n" for notice in notices)


def settings(least=0, most=4, *, enabled=True, cooldown=0.0):
    return AutoscaleSettings(
        enabled=enabled,
        window_seconds=WINDOW,
        cooldown_seconds=cooldown,
        reward_worker=WorkerBounds(min=least, max=most),
    )


def short(workers, waits=0.5):
    return measured(waits, RoleLoad(workers=workers, slots=workers, busy=workers, waiting=20.0))


def ample(workers, busy=0.2):
    return measured(0.0, RoleLoad(workers=workers, slots=workers, busy=busy, waiting=0.0))


def measured(waits, reward):
    roles = {"reward_worker": reward, "rollout_worker": RoleLoad(workers=1, slots=9, busy=3.0, waiting=0.0)}
    return LoadMeasured(seconds=WINDOW, trainer_waits=waits, episodes=20.0, allowed=40, roles=roles)


class Story:
    """Windows in a row, with the workers that the decisions ask for."""

    def __init__(self, chosen):
        self.decider, self.time, self.found = Decider(chosen), 0.0, []

    def windows(self, *loads):
        for load in loads:
            self.time += WINDOW
            if (decision := self.decider.receive(load, self.time)) is not None:
                self.found.append((decision.before, decision.workers))
                self.decider.receive(decision, self.time)
        return self.found


def test_several_windows_in_a_row_have_to_be_short_of_workers():
    story = Story(settings())
    assert story.windows(short(1), ample(1), short(1)) == []
    assert story.windows(short(1)) == [(1, 2)]
    assert UP_WINDOWS == 2


def test_nothing_is_decided_unless_it_is_enabled_and_the_role_is_scaled():
    assert Story(settings(enabled=False)).windows(*[short(1)] * 5) == []
    assert Story(settings(most=0)).windows(*[short(1)] * 5) == []


def test_the_bounds_hold():
    assert Story(settings(most=3)).windows(
        short(1, 0.9), short(1, 0.9), short(2, 0.8), short(2, 0.8), *[short(3, 0.6)] * 5
    ) == [
        (1, 2),
        (2, 3),
    ]
    assert Story(settings(least=3)).windows(ample(1), *[ample(3)] * 9) == [(1, 3)], (
        "and the smallest number is reached at once"
    )


def test_the_cooldown_and_the_start_of_workers_are_waited_for():
    story = Story(settings(cooldown=4 * WINDOW))
    assert story.windows(short(1), short(1)) == [(1, 2)]
    assert story.windows(short(1), short(2, 0.3), short(2, 0.3)) == [(1, 2)]
    assert story.windows(short(2, 0.3)) == [(1, 2), (2, 4)]


def test_workers_that_never_come_are_not_waited_for_for_ever():
    story = Story(settings())
    story.windows(short(1), short(1), short(1), short(1))
    assert story.found == [(1, 2)]
    story.time += PENDING_SECONDS
    assert story.windows(short(1), short(1)) == [(1, 2), (1, 2)]


def test_only_added_workers_are_stopped_and_a_number_that_was_too_small_is_not_returned_to():
    assert Story(settings()).windows(*[ample(3)] * 9) == [], "those of the recipe stay"
    story = Story(settings(most=6))
    story.windows(short(2, 0.6), short(2, 0.6))
    assert story.found == [(2, 4)]
    story.windows(*[ample(4)] * DOWN_WINDOWS)
    assert story.found == [(2, 4), (4, 3)]
    assert story.windows(*[ample(3)] * 9) == [(2, 4), (4, 3)], "two were too few"


def test_an_increase_that_does_not_help_is_undone_and_not_tried_again():
    story = Story(settings())
    story.windows(short(1), short(1), short(2), short(2))
    assert story.found == [(1, 2), (2, 1)]
    assert story.windows(*[short(1)] * 9) == [(1, 2), (2, 1)]


def test_a_resumed_run_begins_again_with_the_workers_of_its_recipe():
    story = Story(settings())
    story.windows(short(1), short(1))
    story.decider.receive(RunResumed(recipe={}, reason="", folder=""), story.time)
    assert story.windows(short(1), short(1)) == [(1, 2), (1, 2)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_log_of_the_decisions_gives_the_same_again(workers):
    story, log = Story(settings()), []
    for load in [short(workers, 0.5)] * 2 + [short(2 * workers, 0.3)] * 2:
        before = len(story.found)
        log.append(load)
        story.windows(load)
        log += [ScaleDecided(role="reward_worker", before=a, workers=b, reason="") for a, b in story.found[before:]]
    again = Decider(settings())
    decided = [one for number, event in enumerate(log) if (one := again.receive(event, number * WINDOW)) is not None]
    assert [(one.before, one.workers) for one in decided] == story.found
