"""Customer service: the model talks with a customer whose wish it has to ask for, and has tools on a database.

The reward is the end: the orders are as the rules want them, and the customer got what was asked for. The customer
is a script, or another policy of the recipe, which is asked through the same client and is not trained.
"""

import json
from collections.abc import Mapping
from typing import Any

from areal_actors.client import LightClient

RULES = "Cancel only open orders. Refund only delivered orders. Look first."
TURNS = 8
STOP = "STOP"
"""Word with which a customer who is a model ends the conversation."""
ALLOWED = {"cancel": ("open", "cancelled"), "refund": ("delivered", "refunded")}
"""State that an order needs for an action, and the one that it gets."""


def _tool(name: str, description: str) -> Any:
    parameters = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: list[Any] = [_tool("look", "An order."), _tool("cancel", "Cancel it."), _tool("refund", "Refund it.")]


class CustomerServiceAgent:
    """Answers the customer, and calls tools in between, until the customer ends the conversation."""

    def __init__(self, customer: str = "script") -> None:
        """Talk with `customer`: `script`, or the name of a policy of the recipe."""
        self._customer = customer

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Returns the orders at the end and the messages to the customer, as JSON, which `reward` scores."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        customer = ScriptedCustomer(task) if self._customer == "script" else ModelCustomer(task, self._customer, client)
        orders = {number: dict(order) for number, order in task["orders"].items()}
        messages: list[Any] = [{"role": "system", "content": RULES}, {"role": "user", "content": task["opening"]}]
        answered: list[str] = []
        for _ in range(TURNS):
            completion = await client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
            answer = completion.choices[0].message
            messages.append(answer.model_dump(exclude_none=True))
            if answer.tool_calls:
                calls: list[Any] = answer.tool_calls
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": call_tool(orders, call.function)}
                    for call in calls
                ]
                continue
            answered.append(answer.content or "")
            reply = await customer.reply(answered[-1])
            if not reply:
                break
            messages.append({"role": "user", "content": reply})
        return json.dumps({"orders": orders, "answered": answered})


class ScriptedCustomer:
    """Names order and wish when first spoken to, and leaves after the next answer."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._replies = [task["detail"]]

    async def reply(self, _message: str) -> str:
        """The next reply; empty where the customer leaves."""
        return self._replies.pop() if self._replies else ""


class ModelCustomer:
    """A policy of the recipe that plays the customer: only it sees the wish, and its calls belong to that policy."""

    def __init__(self, task: Mapping[str, Any], policy: str, client: LightClient) -> None:
        self._policy, self._client = policy, client
        wish = f"You are a customer. {task['detail']} Write {STOP} when you have an answer."
        self._messages: list[Any] = [
            {"role": "system", "content": wish},
            {"role": "assistant", "content": task["opening"]},
        ]

    async def reply(self, message: str) -> str:
        """The policy's reply; empty where it ends the conversation."""
        self._messages.append({"role": "user", "content": message})
        completion = await self._client.chat.completions.create(model=self._policy, messages=self._messages)
        reply = completion.choices[0].message.content or ""
        self._messages.append({"role": "assistant", "content": reply})
        return "" if STOP in reply else reply


def call_tool(orders: dict[str, dict[str, Any]], function: Any) -> str:
    """Call a tool on the orders; its answer, or an error that the model can read. It does not know the rules."""
    try:
        order = orders[str(json.loads(function.arguments)["order"])]
    except (ValueError, KeyError, TypeError):
        return "error: there is no such order"
    if function.name == "look":
        return f"{order['count']} {order['item']}, {order['state']}."
    if function.name not in ALLOWED:
        return "error: there is no such tool"
    order["state"] = ALLOWED[function.name][1]
    return f"{order['state']}."


def reward(task: Mapping[str, Any], output: str) -> dict[str, float]:
    """1 if the orders are as wanted at the end and the customer got what was asked, else 0; further both."""
    end = json.loads(output)
    kept = float(end["orders"] == task["wanted"])
    answered = float(all(any(word in message.split() for message in end["answered"]) for word in task["outputs"]))
    return {"reward": kept * answered, "orders_right": kept, "answered": answered}
