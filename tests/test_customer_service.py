"""Conversations of two sides: the customer's words are never trained, tools change orders, and the end is scored."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain

import pytest
from support.framework_harness import ROOT, agent_here, assert_extends, call, opened_chat_gateway
from support.samples import batch

from areal_actors.core.loading import load_named
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences

AGENT = "agents/customer_service.py:CustomerServiceAgent"
PEN, SENT = {"item": "pens", "count": 3, "state": "open"}, {"item": "cups", "count": 12, "state": "sent"}
TASK = {
    "opening": "I need help.",
    "detail": "Order 41. Please cancel it.",
    "orders": {"41": PEN, "42": SENT},
    "wanted": {"41": {**PEN, "state": "cancelled"}, "42": SENT},
    "outputs": [],
}
ASK, LOOK, CANCEL = "Which order?", call("look", '{"order": "41"}'), call("cancel", '{"order": "41"}')


async def test_only_the_words_of_the_model_are_trained():
    async with opened_chat_gateway() as harness, agent_here(AGENT) as (run, module):
        output, trajectory = await harness.play(run, [ASK, LOOK, CANCEL, "Done."], **TASK)
        assert_extends(harness, trajectory)
        assert module.reward(TASK, output) == {"reward": 1.0, "orders_right": 1.0, "answered": 1.0}
        assert "Please cancel it." not in harness.prompt_text(0)
        assert "<|im_start|>user\nOrder 41. Please cancel it.<|im_end|>" in harness.prompt_text(1)
        assert "3 pens, open." in harness.prompt_text(2)
        (row,) = batch_sequences(batch(0, 0), [(0, trajectory)], Credit(), SequenceLimits()).sequences
        trained = [token for token, is_trained in zip(row.token_ids.tolist(), row.loss_mask, strict=True) if is_trained]
        assert trained == list(chain.from_iterable(harness.script.sampled))
        assert harness.text(trained) == "".join(f"{words}<|im_end|>" for words in (ASK, LOOK, CANCEL, "Done."))
        whole = harness.text(row.token_ids.tolist())
        assert whole.count("Please cancel it.") == whole.count("cancelled.") == 1


@pytest.mark.parametrize(
    ("script", "changes", "scored"),
    [
        ([ASK, CANCEL, "Done."], {"wanted": TASK["orders"]}, (0.0, 1.0)),  # the rules forbid what was done
        ([ASK, LOOK, "Not possible."], {"wanted": TASK["orders"]}, (1.0, 1.0)),
        ([ASK, call("refund", '{"order": "41"}'), "Done."], {}, (0.0, 1.0)),
        ([ASK, call("cancel", '{"order": "42"}'), "Done."], {}, (0.0, 1.0)),
        ([ASK, call("cancel", '{"order": "99"}'), CANCEL, "Done."], {}, (1.0, 1.0)),
        ([ASK, call("burn", '{"order": "41"}'), "Done."], {}, (0.0, 1.0)),
        (["Hm.", "Hm."], {}, (0.0, 1.0)),
        ([LOOK] * 8, {}, (0.0, 1.0)),  # no turns are left
        ([ASK, LOOK, "You have 3 of them"], {"wanted": TASK["orders"], "outputs": ["3"]}, (1.0, 1.0)),
        ([ASK, LOOK, "You have 13"], {"wanted": TASK["orders"], "outputs": ["3"]}, (1.0, 0.0)),
    ],
)
async def test_the_end_of_the_conversation_is_scored(script, changes, scored):
    async with opened_chat_gateway() as harness, agent_here(AGENT) as (run, module):
        task = {**TASK, **changes}
        output, trajectory = await harness.play(run, script, **task)
        right, answered = scored
        assert module.reward(task, output) == {"reward": right * answered, "orders_right": right, "answered": answered}
        assert len(trajectory.interactions) == len(script)
        assert json.loads(output)["orders"].keys() == TASK["orders"].keys()


def test_customers_are_the_same_each_time_and_want_what_the_rules_allow():
    tasks = load_named("agents/customer_orders.py:tasks", ROOT)
    assert tasks() == tasks()
    changed = Counter()
    for task in tasks():
        number, state = task["order"], task["orders"][task["order"]]["state"]
        wanted = task["wanted"][number]["state"]
        changed[task["wish"], wanted != state] += 1
        assert wanted == {("cancel", "open"): "cancelled", ("refund", "delivered"): "refunded"}.get(
            (task["wish"], state), state
        )
        assert number not in task["opening"]
    assert changed["cancel", False] > changed["cancel", True] > 0
    assert changed["count", True] == 0
