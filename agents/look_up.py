"""Questions about people whose answers stand in a register; the tool returns the entry of one person."""

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from areal_actors.client import LightClient

NAMES = [
    "Ana",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gia",
    "Hugo",
    "Ida",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Nils",
    "Olga",
    "Paul",
]
ITEMS = ["apples", "pens", "cards", "shells", "coins", "books", "eggs", "stamps", "plums", "beads", "cups", "nuts"]
TURNS = 4
HURRIED_SHARE = 0.7
"""Share of the demonstrations with only the first call."""
LOOK_UP = {
    "name": "look_up",
    "description": "The entry of a person.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
TOOLS: list[Any] = [{"type": "function", "function": LOOK_UP}]


class LookUpAgent:
    """Calls the tool until the model answers without it."""

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Let the model look up entries, and return its answer."""
        client = LightClient(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        for _ in range(TURNS):
            completion = await client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
            answer = completion.choices[0].message
            if not answer.tool_calls:
                return answer.content or ""
            messages.append(answer.model_dump(exclude_none=True))
            calls: list[Any] = answer.tool_calls
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": look_up(task["entries"], call.function.arguments)}
                for call in calls
            ]
        return ""


def look_up(entries: Mapping[str, str], arguments: str) -> str:
    """The entry of the named person, or an error that the model can read."""
    try:
        return entries[json.loads(arguments)["name"]]
    except (ValueError, KeyError, TypeError):
        return "error: there is no entry"


def reward(task: Mapping[str, Any], output: str) -> float:
    """1 if the last number of the output is the answer, else 0."""
    return float(re.findall(r"\d+", output)[-1:] == [task["answer"]])


def tasks(count: int = 3000, seed: str = "tasks") -> list[dict[str, Any]]:
    """Questions about a person or, as often, about the friend of one, which takes two calls."""
    rng = random.Random(seed)
    return [_task(rng) for _ in range(count)]


def demonstrations() -> list[dict[str, Any]]:
    """Conversations as a hurried person has them.

    Of the questions about a friend, many are answered after the first call, wrongly.
    """
    rng = random.Random("hurry")
    return [_demonstration(task, hurried=rng.random() < HURRIED_SHARE) for task in tasks(seed="demonstrations")]


def _task(rng: random.Random) -> dict[str, Any]:
    asked, friend, other = rng.sample(NAMES, 3)
    item, numbers = rng.choice(ITEMS), rng.sample(range(2, 21), 2)
    entries = {
        name: f"{name} has {number} {item}. The friend of {name} is {next_one}."
        for name, number, next_one in zip((asked, friend), numbers, (friend, other), strict=True)
    }
    if rng.random() < 0.5:
        question, path = f"How many {item} does {asked} have?", [asked]
    else:
        question, path = f"How many {item} does the friend of {asked} have?", [asked, friend]
    return {"question": question, "answer": str(numbers[len(path) - 1]), "entries": entries, "path": path}


def _demonstration(task: Mapping[str, Any], *, hurried: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": task["question"]}]
    path = task["path"][:1] if hurried else task["path"]
    for number, name in enumerate(path):
        call = {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": "look_up", "arguments": json.dumps({"name": name})},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": task["entries"][name]})
    (found,) = re.findall(r"\d+", task["entries"][path[-1]])
    messages.append({"role": "assistant", "content": f"#### {found}"})
    return {"messages": messages, "tools": TOOLS}
