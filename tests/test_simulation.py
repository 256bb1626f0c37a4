"""The whole system in seeded runs: for any order of messages and any deaths of actors, these hold.

`AREAL_SIMULATION_SEEDS=5000` makes it a long search; a failing seed is named in the assertion.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
from support.simulation import BATCH, GROUP, Simulation, ends
from support.toy_parts import Outcome, opened, versions

from areal_actors.batching.assembler import BatcherConfig
from areal_actors.core.values import PROMPT_VERSION, TrainingSequence
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    BatchFormed,
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EvaluationCompleted,
    InteractionRecorded,
    InteractionsRecorded,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    WeightsPublished,
    recorded_calls,
)
from areal_actors.sequences.build import sequences_of

SEEDS = int(os.environ.get("AREAL_SIMULATION_SEEDS", "80"))
AT_ONCE = 8
"""Seeds per test case."""
KEPT = 40
"""Number of seeds whose runs are kept for another test."""


def sampled(row: TrainingSequence) -> np.ndarray:
    """True for the tokens of a row that were sampled."""
    return row.versions != PROMPT_VERSION


def variant(seed: int) -> Simulation:
    """A run whose settings are drawn from its seed."""
    dice, other, last = random.Random(f"variant {seed}"), random.Random(f"filter {seed}"), random.Random(f"last {seed}")
    return Simulation(
        seed=seed,
        max_staleness=dice.choice([0, 1, 1, 2]),
        surplus=last.choice([0, 0, 2, BATCH]),
        batcher=BatcherConfig(
            exit_policy=last.choice([dice.choice(["mask", "mask", "drop", "keep"])] * 3 + ["wait"]),
            incomplete_groups=dice.choice(["train_partial", "drop"]),
            dynamic_sampling=other.choice([False, True]),
            dynamic_batch=other.random() < 0.3,
        ),
        trouble=dice.choice([0.0, 0.05, 0.15]),
        kills=dice.choice([0, 3, 6, 10]),
        retries=dice.choice([0, 1, 2]),
    )


@lru_cache(maxsize=KEPT)
def ended(seed: int) -> tuple[Simulation, Outcome]:
    """A run and how it ended; the first of them are looked at by two tests."""
    simulation = variant(seed)
    return simulation, simulation.run()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_seed_keeps_the_invariants(first):
    for seed in range(first, min(first + AT_ONCE, SEEDS)):
        simulation = variant(seed)
        try:
            simulation, outcome = ended(seed) if seed < KEPT else (simulation, simulation.run())
            for check in INVARIANTS:
                check(simulation, outcome)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, {simulation.batcher}, max_staleness {simulation.max_staleness}"
            ) from error


def every_step_is_trained_once_and_published(simulation: Simulation, outcome: Outcome) -> None:
    assert versions(outcome) == list(range(simulation.steps + 1))
    assert [event.step for event in opened(outcome, StepCompleted)] == list(range(1, simulation.steps + 1))
    assert [event.step for event in opened(outcome, BatchFormed)] == list(range(simulation.steps))
    assert len(outcome.trainer.rows) == simulation.steps


def every_granted_slot_comes_back_exactly_once(simulation: Simulation, outcome: Outcome) -> None:
    grants = list(opened(outcome, CapacityGranted))
    granted = [number for grant in grants for number in range(grant.first_group, grant.first_group + grant.groups)]
    assert granted == list(range(len(granted)))

    trained = Counter(number for batch in opened(outcome, BatchFormed) for number in batch.group_numbers())
    dropped = {int(event.group) for event in opened(outcome, TrajectoryDropped)}
    kept = {int(event.trajectory.group) for event in opened(outcome, TrajectoryExported)}
    assert set(trained.values()) <= {1}
    assert not set(trained) & dropped
    assert set(trained) | dropped == kept
    assert kept <= set(granted)

    ledger = outcome.gate.ledger
    assert (len(ledger.running), len(ledger.complete), len(ledger.in_batch)) == (0, 0, 0)
    assert ledger.trained == len(trained)
    if not simulation.batcher.dynamic_batch:
        assert ledger.trained == simulation.steps * BATCH
    assert ledger.granted == len(granted)


# A second ledger, from the log alone
def the_entry_bound_is_never_exceeded(simulation: Simulation, outcome: Outcome) -> None:  # noqa: C901
    ahead: set[int] = set()
    in_batch: set[int] = set()
    ended: Counter[int] = Counter()
    seen: set[str] = set()
    with_rows: set[int] = set()
    for envelope in outcome.log:
        if envelope.subject == CapacityGranted.subject:
            grant = envelope.open(CapacityGranted)
            ahead |= set(range(grant.first_group, grant.first_group + grant.groups))
            assert len(ahead) <= (simulation.max_staleness + 1) * BATCH
        elif envelope.subject == TrajectoryExported.subject:
            trajectory = envelope.open(TrajectoryExported).trajectory
            with_rows.add(int(trajectory.group))
            if trajectory.episode not in seen:
                seen.add(trajectory.episode)
                ended[int(trajectory.group)] += 1
        elif envelope.subject == EpisodeAbandoned.subject:
            work = envelope.open(EpisodeAbandoned).work
            if work.purpose == "train" and work.attempts_left == 0 and work.episode not in seen:
                seen.add(work.episode)
                ended[int(work.group)] += 1
                if ended[int(work.group)] == GROUP and int(work.group) not in with_rows:
                    ahead.discard(int(work.group))
        elif envelope.subject == TrajectoryDropped.subject:
            ahead.discard(int(envelope.open(TrajectoryDropped).group))
        elif envelope.subject == BatchFormed.subject:
            in_batch = set(envelope.open(BatchFormed).group_numbers())
        elif envelope.subject == WeightsPublished.subject:
            ahead -= in_batch


def no_group_is_trained_in_part(simulation: Simulation, outcome: Outcome) -> None:
    exported = {event.trajectory.episode for event in opened(outcome, TrajectoryExported)}
    lost = {
        event.work.episode
        for event in opened(outcome, EpisodeAbandoned)
        if event.work.purpose == "train" and event.work.attempts_left == 0
    }
    for batch in opened(outcome, BatchFormed):
        assert len(batch.groups) == BATCH or (simulation.batcher.dynamic_batch and batch.groups)
        for number, group in zip(batch.group_numbers(), batch.groups, strict=True):
            named = [f"{number}.{member}" for member in range(GROUP)]
            assert [member.episode for member in group] == [name for name in named if name in exported]
            assert all(name in exported or name in lost for name in named)
            if simulation.batcher.incomplete_groups == "drop":
                assert len(group) == GROUP


def the_rows_are_those_of_the_batches(_: Simulation, outcome: Outcome) -> None:
    for batch, given in zip(opened(outcome, BatchFormed), outcome.trainer.rows, strict=True):
        expected: list[TrainingSequence] = []
        for index, group in enumerate(batch.groups):
            for member in group:
                trajectory = outcome.log[member.sequence - 1].open(TrajectoryExported).trajectory
                assert trajectory.episode == member.episode
                expected += sequences_of(trajectory, index, batch.oldest_version)
        assert len(given) == len(expected)
        for row, wanted in zip(given, expected, strict=True):
            assert np.array_equal(row.token_ids, wanted.token_ids)
            assert np.array_equal(row.loss_mask, wanted.loss_mask)


def every_sampled_token_is_as_its_engine_made_it(_: Simulation, outcome: Outcome) -> None:
    for row in (row for rows in outcome.trainer.rows for row in rows):
        ids = row.token_ids.tolist()
        for place in np.flatnonzero(sampled(row)):
            token = (tuple(ids[:place]), ids[place], float(row.logprobs[place]), int(row.versions[place]))
            assert token in outcome.sampled
        assert not row.logprobs[~sampled(row)].any()
        assert not row.loss_mask[~sampled(row)].any()


def no_trained_token_is_older_than_the_bound(simulation: Simulation, outcome: Outcome) -> None:
    if simulation.batcher.exit_policy == "keep":
        return
    for step, rows in enumerate(outcome.trainer.rows):
        for row in rows:
            staleness = step - row.versions[row.loss_mask]
            assert (staleness >= 0).all()
            assert (staleness <= simulation.max_staleness).all()
            if simulation.batcher.exit_policy == "drop":
                assert (step - row.versions[sampled(row)] <= simulation.max_staleness).all()


def only_groups_with_signal_are_trained_and_only_others_are_filtered(simulation: Simulation, outcome: Outcome) -> None:
    rewards: dict[str, list[float]] = {}
    for event in opened(outcome, TrajectoryExported):
        rewards.setdefault(event.trajectory.group, []).append(event.trajectory.reward)
    with_signal = {group for group, values in rewards.items() if len(set(values)) > 1}
    filtered = {event.group for event in opened(outcome, TrajectoryDropped) if event.reason == "filtered"}
    assert not filtered & with_signal
    if simulation.batcher.dynamic_sampling:
        assert {
            str(number) for batch in opened(outcome, BatchFormed) for number in batch.group_numbers()
        } <= with_signal
    else:
        assert not filtered
    counted = sum(batch.filtered_groups for batch in opened(outcome, BatchFormed))
    assert counted <= len(filtered)


def every_group_is_the_draw_of_its_number(_: Simulation, outcome: Outcome) -> None:
    for event in opened(outcome, TrajectoryExported):
        assert event.trajectory.task == f"toy-{event.trajectory.group}"


def an_evaluation_lists_the_versions_that_sampled_it(simulation: Simulation, outcome: Outcome) -> None:
    done = list(opened(outcome, EvaluationCompleted))
    assert len({(event.weight_version, event.mode) for event in done}) == len(done)
    for event in done:
        mine = [
            one
            for one in opened(outcome, EpisodeEvaluated)
            if one.work.group == f"evaluation-{event.weight_version}-{event.mode}"
        ]
        assert sum(event.sampled_by.values()) == sum(one.completion_tokens for one in mine)
        if event.weight_version in {0, simulation.steps}:
            assert set(event.sampled_by) <= {event.weight_version}
        assert min(event.sampled_by, default=event.weight_version) >= event.weight_version


def nothing_is_held_when_the_run_is_over(_: Simulation, outcome: Outcome) -> None:
    assert outcome.sessions_left == 0


def an_episode_has_at_most_one_result_and_a_failed_one_has_none(simulation: Simulation, outcome: Outcome) -> None:
    results = ends(outcome)
    assert set(results.values()) <= {1}
    rows = sum(len(list(sequences_of(event.trajectory, 0, 0))) for event in opened(outcome, TrajectoryExported))
    assert sum(map(len, outcome.trainer.rows)) <= rows
    for event in opened(outcome, TrajectoryExported):
        assert 1 <= event.trajectory.attempt <= simulation.retries + 1
        assert event.trajectory.sampled_tokens() > 0


def calls_recorded(outcome: Outcome) -> Iterator[InteractionRecorded]:
    for event in (*opened(outcome, InteractionsRecorded), *opened(outcome, TrajectoryExported)):
        yield from recorded_calls(event)


def every_exported_interaction_was_recorded(_: Simulation, outcome: Outcome) -> None:
    recorded = {call.interaction: call for call in calls_recorded(outcome)}
    for event in opened(outcome, TrajectoryExported):
        for turn in event.trajectory.interactions:
            assert recorded[turn.id].completion_tokens == len(turn.completion)
            assert recorded[turn.id].parent == turn.parent


INVARIANTS = (
    every_step_is_trained_once_and_published,
    every_granted_slot_comes_back_exactly_once,
    the_entry_bound_is_never_exceeded,
    no_group_is_trained_in_part,
    the_rows_are_those_of_the_batches,
    every_sampled_token_is_as_its_engine_made_it,
    no_trained_token_is_older_than_the_bound,
    only_groups_with_signal_are_trained_and_only_others_are_filtered,
    every_group_is_the_draw_of_its_number,
    an_evaluation_lists_the_versions_that_sampled_it,
    nothing_is_held_when_the_run_is_over,
    an_episode_has_at_most_one_result_and_a_failed_one_has_none,
    every_exported_interaction_was_recorded,
)


def log_digest(outcome: Outcome) -> str:
    """A run's whole log, but for what differs between processes."""
    digest = hashlib.blake2b()
    for envelope in outcome.log:
        body = b"" if envelope.subject == ActorStarted.subject else envelope.body
        digest.update(
            repr((envelope.subject, envelope.id, envelope.sender, envelope.cause, envelope.time)).encode() + body
        )
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    first, again, other = (Simulation(seed=seed, kills=4).run() for seed in (7, 7, 8))
    assert first.kills > 0
    assert log_digest(first) == log_digest(again)
    assert log_digest(first) != log_digest(other)


def oldest_trained(outcome: Outcome) -> int:
    return max(
        int((step - row.versions[row.loss_mask]).max())
        for step, rows in enumerate(outcome.trainer.rows)
        for row in rows
    )


def test_without_the_exit_door_some_seed_exceeds_the_bound():
    kept = [
        Simulation(seed=seed, max_staleness=1, batcher=BatcherConfig(exit_policy="keep"), kills=0).run()
        for seed in range(10)
    ]
    assert max(map(oldest_trained, kept)) > 1


def test_the_simulation_does_what_it_is_for():
    """It kills, it loses attempts and whole episodes, it masks and drops, it branches over several turns and
    workers."""
    outcomes = list(map(ended, range(KEPT)))
    subjects = [envelope.subject for _, outcome in outcomes for envelope in outcome.log]
    assert subjects.count(ActorFailed.subject) > 40
    assert subjects.count(TrajectoryDropped.subject) > 10
    assert subjects.count(EpisodeAbandoned.subject) > 100
    assert any(len(batch.groups) < BATCH for _, outcome in outcomes for batch in opened(outcome, BatchFormed))
    assert any(len(event.sampled_by) > 1 for _, outcome in outcomes for event in opened(outcome, EvaluationCompleted))
    masking = [outcome for simulation, outcome in outcomes if simulation.batcher.exit_policy == "mask"]
    rows = [row for outcome in masking for rows in outcome.trainer.rows for row in rows]
    assert any(row.loss_mask.any() and (~row.loss_mask & sampled(row)).any() for row in rows)
    assert any(len(set(row.versions[sampled(row)])) > 1 for row in rows)
    assert any(call.parent for _, outcome in outcomes for call in calls_recorded(outcome))
    assert any(event.reason == "surplus" for _, outcome in outcomes for event in opened(outcome, EpisodeAbandoned))
    assert {simulation.batcher.exit_policy for simulation, _ in outcomes} == {"mask", "drop", "keep", "wait"}
    assert {simulation.max_staleness for simulation, _ in outcomes} == {0, 1, 2}
