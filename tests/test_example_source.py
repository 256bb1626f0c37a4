from __future__ import annotations

from support.samples import published

from areal_actors.messages import ExamplesDrawn, RunResumed, RunStopping, StepCompleted
from areal_actors.supervised.example_source import ExampleSource


def source(examples=10, batch_size=4, steps=6, seed=3):
    return ExampleSource(examples=examples, seed=seed, batch_size=batch_size, steps=steps)


def stepped(step):
    return StepCompleted(step=step, metrics={}, sequences_checksum="00")


async def test_each_epoch_draws_every_example_once_in_an_order_of_its_own(send):
    emitted = await send(source(steps=5), published(0), *map(stepped, range(1, 5)))
    assert [event.step for event in emitted] == [0, 1, 2, 3, 4]
    assert [event.epoch for event in emitted] == [0, 0, 0, 1, 1]
    numbers = [number for event in emitted for number in event.numbers]
    assert sorted(numbers[:10]) == sorted(numbers[10:]) == list(range(10))
    assert numbers[:10] != numbers[10:]


async def test_the_same_seed_draws_the_same_and_another_seed_another_order(send):
    (first,), (again,), (other,) = [await send(source(seed=seed), published(0)) for seed in (3, 3, 4)]
    assert first == again
    assert first.numbers != other.numbers


async def test_a_repeated_step_event_gives_the_same_draw(send):
    actor = source()
    first, second, again = await send(actor, published(0), stepped(1), stepped(1))
    assert second == again
    assert first.numbers != second.numbers


async def test_a_trainer_that_continues_from_a_checkpoint_gets_that_steps_examples(send):
    (third,) = await send(source(), stepped(3))
    assert await send(source(), published(3)) == [third]
    assert isinstance(third, ExamplesDrawn)


async def test_nothing_is_drawn_after_the_last_step_or_while_the_run_stops(send):
    assert await send(source(steps=2), stepped(2), stepped(3)) == []
    assert await send(source(), RunStopping(reason="enough"), stepped(1)) == []


RESUMED = RunResumed(recipe={}, reason="", folder="runs/taught")


async def test_a_run_that_continues_draws_what_it_would_have_drawn(send):
    undisturbed = await send(source(), published(0), stepped(1))
    actor = source()
    before = await send(actor, published(0), RunStopping(reason="enough"), stepped(1))
    assert before + await send(actor, RESUMED) == undisturbed
    assert await send(actor, RESUMED) == [], "what is drawn and not trained is in the log"
    assert await send(source(), RESUMED) == [], "there were no weights yet"


async def test_it_reports_its_progress(send):
    actor = source()
    assert actor.status() == {"steps_drawn": 0, "epoch": 0}
    await send(actor, published(0), stepped(1), stepped(2))
    assert actor.status() == {"steps_drawn": 3, "epoch": 1}
