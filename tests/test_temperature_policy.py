"""A client's temperature, where it is not the recipe's: refused, replaced, or sampled, recorded and trained."""

from __future__ import annotations

import pytest
from support.manager_harness import Manager
from support.samples import work

from areal_actors.core.errors import RequestError
from areal_actors.gateway.completion import trainable_temperature
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import EpisodeScored, ModelResponsePart


async def test_what_is_evaluated_may_be_sampled_at_any_temperature(send):
    manager = await Manager(send).ready()
    opened = await manager.open(work(purpose="evaluate"))
    await manager.chat(opened.session, "a", temperature=0.5)
    assert manager.asked[0].sampling.temperature == 0.5


@pytest.mark.parametrize(
    ("policy", "sampled", "recorded", "ignored"), [("recipe", 1.0, None, ("temperature",)), ("as_asked", 0.5, 0.5, ())]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_another_temperature_is_sampled_and_recorded_by_the_recipe_s_policy(
    send, policy, sampled, recorded, ignored, stream
):
    manager = await Manager(send, settings=GatewaySettings(temperature_policy=policy)).ready()
    opened = await manager.open()
    answers = [
        *await manager.chat(opened.session, "a", stream=stream, temperature=0.5),
        *await manager.chat(opened.session, "b", stream=stream),
        *await manager.chat(opened.session, "c", stream=stream, temperature=1.0),
    ]
    assert [asked.sampling.temperature for asked in manager.asked] == [sampled, 1.0, 1.0]
    parts = [part for part in answers if isinstance(part, ModelResponsePart)]
    firsts = {part.interaction: part.ignored for part in reversed(parts)}
    assert list(firsts.values())[::-1] == [ignored, (), ()]
    (left,) = await manager(EpisodeScored(work=work(), session=opened.session, reward=1.0))
    assert [turn.temperature for turn in left.trajectory.interactions] == [recorded, None, None]


async def test_a_server_without_training_samples_at_any_temperature(send):
    manager = await Manager(send, capacity=ExternalCapacity(1, slots=2)).ready()
    opened = await manager.open()
    await manager.chat(opened.session, "a", temperature=0)
    assert manager.asked[0].sampling.temperature == 0


@pytest.mark.parametrize(
    ("asked", "policy", "complaint"),
    [
        (
            0.0,
            "error",
            (
                r"'temperature' is 0, but this run trains at 0.8: leave it out, or set"
                r" gateway.temperature_policy='as_asked'"
            ),
        ),
        (
            0.0,
            "as_asked",
            r"'temperature' is 0, but tokens are trained at 0.1 to 10: .* gateway.temperature_policy='recipe'",
        ),
        (0.09, "as_asked", r"'temperature' is 0.09, but tokens are trained at 0.1 to 10"),
        (20.0, "as_asked", r"'temperature' is 20, but tokens are trained at 0.1 to 10"),
    ],
)
def test_a_temperature_that_cannot_be_trained_is_refused(asked, policy, complaint):
    with pytest.raises(RequestError, match=complaint) as refused:
        trainable_temperature(asked, 0.8, policy)
    assert refused.value.field == "temperature"


def test_a_temperature_that_a_client_asks_for_is_trained_if_the_recipe_allows_it():
    assert trainable_temperature(0.1, 0.8, "as_asked") == 0.1
