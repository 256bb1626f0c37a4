"""The seed of a model call follows from the run's seed, its episode, and its request."""

from __future__ import annotations

import msgspec
import pytest
from test_session_manager import Manager, work

from areal_actors.core.token_digest import TokenDigest
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.sessions.calls import SEED_BYTES, encode_sampling, sampling_seed, seed_label
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import OpenSession

HOW = SamplingParams(max_tokens=20)


@pytest.fixture
def fresh(send):
    """`await fresh(seed)`: a session manager of a run with this seed, which has done nothing yet."""

    async def made(seed=0):
        manager = await Manager(send).ready()
        manager.actor.calls.seed = seed
        return manager

    return made


async def seeds_of(manager, attempt, *questions, **options):
    """The seeds that a session's calls are sampled with."""
    opened, before = await manager.open(attempt), len(manager.asked)
    for question in questions:
        await manager.chat(opened.session, question, **options)
    return [generate.sampling.seed for generate in manager.asked[before:]]


async def test_two_runs_of_one_seed_sample_alike_although_their_messages_have_other_ids(fresh):
    one, other = await fresh(), await fresh()
    await other(OpenSession(work=work("9.9"), lease_seconds=30.0))
    assert await seeds_of(one, work("0.0"), "a", "b") == await seeds_of(other, work("0.0"), "a", "b")
    assert await seeds_of(await fresh(1), work("0.0"), "a") != await seeds_of(await fresh(2), work("0.0"), "a")


async def test_episodes_calls_and_attempts_sample_differently_and_an_attempt_handed_out_again_alike(fresh):
    manager = await fresh()
    first = await seeds_of(manager, work("0.0"), "a", "a", "b")
    again = await seeds_of(manager, work("0.0"), "a", "a", "b")
    second = await seeds_of(manager, work("0.0", attempt=2), "a", "a", "b")
    sibling = await seeds_of(manager, work("0.1"), "a", "a", "b")
    assert again == first
    assert len({*first, *second, *sibling}) == 9


async def test_in_which_order_different_calls_of_a_session_arrive_does_not_matter(fresh):
    one = await seeds_of(await fresh(), work("0.0"), "a", "b", "b")
    other = await seeds_of(await fresh(), work("0.0"), "b", "a", "b")
    assert one == [other[1], other[0], other[2]]


async def test_a_clients_seed_holds_in_evaluation_and_in_training_members_and_attempts_still_differ(fresh):
    """A client that always sends one seed would make all members of a group equal."""
    assert await seeds_of(await fresh(), work("0.0", purpose="evaluate"), "a", seed=42) == [42]
    manager = await fresh()
    attempts = (work("0.0"), work("0.1"), work("0.0", attempt=2))
    seeds = [await seeds_of(manager, attempt, "a", "a", seed=42) for attempt in attempts]
    assert len({seed for pair in seeds for seed in pair}) == 6
    assert await seeds_of(await fresh(), work("0.0"), "a", "a", seed=42) == seeds[0]
    assert await seeds_of(await fresh(), work("0.0"), "a", seed=43) != seeds[0][:1]


async def test_how_to_sample_is_part_of_what_is_asked(fresh):
    cold = await seeds_of(await fresh(), work("0.0"), "a", top_p=0.5)
    assert cold != await seeds_of(await fresh(), work("0.0"), "a", top_p=0.6)


async def test_a_held_out_task_is_sampled_alike_at_every_version(fresh):
    found = [
        await seeds_of(await fresh(), work(f"evaluation-{version}-sampled.{place}", purpose="evaluate"), "a")
        for version, place in ((0, 3), (40, 3), (0, 4))
    ]
    assert found[0] == found[1] != found[2]


async def test_interactions_have_the_same_ids_in_both_runs(fresh):
    ids = []
    for manager in (await fresh(), await fresh()):
        opened = await manager.open(work("2.1"))
        (answer,) = await manager.chat(opened.session, "a")
        (recorded,) = manager.recorded()
        ids.append((recorded.interaction, answer.interaction))
    assert ids == [("2.1-1-1", "2.1-1-1")] * 2


def session(**options):
    return Session(id="sum-4", api_key="k", work=work("7.1"), lease_seconds=1.0, expires=1.0, **options)


def test_a_session_of_an_agent_outside_is_its_task_and_number_in_any_group():
    assert seed_label(session(external=True)) == "sum-4"
    assert seed_label(session()) == "7.1-1"


def test_seeds_are_whole_numbers_that_json_keeps_exactly_and_choices_count_on_from():
    what = TokenDigest(encode_sampling(HOW) + b"abc").value()
    seeds = {sampling_seed(run, session().count_call(what), what) for run in range(500)}
    assert len(seeds) == 500
    assert all(0 <= seed < 256**SEED_BYTES < 2**53 for seed in seeds)


def test_the_order_of_a_bias_s_entries_does_not_matter():
    one, other = (
        msgspec.structs.replace(HOW, logit_bias=dict(order)) for order in ([(1, 2.0), (3, 4.0)], [(3, 4.0), (1, 2.0)])
    )
    assert encode_sampling(one) == encode_sampling(other) != encode_sampling(HOW)
