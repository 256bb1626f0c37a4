"""A run in which the customer is a model: a policy of its own, whose calls train nothing."""

from __future__ import annotations

import pytest
from support.live_run import BY_SUBJECT, ROOT

from areal_actors.folder.connections import open_log
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import StepCompleted, TrajectoryExported

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


async def test_a_customer_who_is_a_model_is_asked_and_not_trained(live):
    run = live(
        *("steps=2", "run=gsm8k-grpo", "task.agent_options.customer=customer", "policies.customer.kind=past"),
        *("task.held_out=20", "sampling.max_tokens=12"),
        recipe=ROOT / "recipes" / "customer_service.toml",
    )
    assert await run.ended() == 0, run.output()
    served = [event for _, event in await run.log()]
    async with open_log(RunFolder(run.folder / "policies" / "gsm8k-grpo-customer")) as bus:
        asked = [envelope.open(BY_SUBJECT[envelope.subject]) async for envelope in bus.log()]
    conversations = [event.trajectory for event in asked if isinstance(event, TrajectoryExported)]
    assert conversations
    assert all(call.completion for trajectory in conversations for call in trajectory.interactions)
    assert not [event for event in asked if isinstance(event, StepCompleted)]
    assert len([event for event in served if isinstance(event, StepCompleted)]) == 2
