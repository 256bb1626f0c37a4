"""The reward of every sampled token, from HTTP calls to exported rows and to the trainer's rows, on real chat
templates.

Each cell plays one episode through the gateway with the OpenAI SDK, rewards and ends it over HTTP, exports it, and
compares what every sampled token is trained with to R(call), computed here from the tree that the client has in mind.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from statistics import fmean

import aiohttp
import numpy as np
import openai
import pytest
from support.conversation_families import family
from support.fake_engine import ScriptEngine
from support.framework_harness import opened_chat_gateway
from support.gateway_harness import ADMIN
from test_token_fidelity import TEMPLATES

from areal_actors.messages import CapacityGranted, TrajectoryExported
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit
from areal_actors.sequences.export import sequences

FAMILIES = {"qwen2_5": False, "qwen3": True, "glm4moe": True}
"""True if the template drops earlier reasoning, and so breaks the tokens of a chain."""
EDIT = {
    "name": "edit",
    "parameters": {"type": "object", "properties": {"file": {"type": "string"}, "all": {"type": "boolean"}}},
}
TOOLS = [{"type": "function", "function": EDIT}]

pytestmark = pytest.mark.skipif(
    not (TEMPLATES / "qwen3.jinja").exists(), reason="there are no chat templates; set AREAL_CHAT_TEMPLATES"
)


class Numbered(ScriptEngine):
    """Gives all tokens of its n-th completion the log-probability -(n + 1), so that rows show which call sampled a
    token."""

    calls = 0

    def begun(self):
        self.calls += 1

    def logprob(self, place):
        return -self.calls


@asynccontextmanager
async def opened(template):
    chat = family((TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8"))
    async with opened_chat_gateway(1, chat=chat, make_engine=Numbered) as harness:
        await harness.publish(CapacityGranted(first_group=0, groups=1, weight_version=0))
        yield harness


class Episode:
    """An agent outside the run, and the tree that it has in mind: a parent for each of its calls."""

    def __init__(self, harness, http, given, client):
        self.harness, self.http, self.given, self.client = harness, http, given, client
        self.ids: list[str] = []
        self.parents: list[int | None] = []
        self.rewards: dict[int, float] = {}

    async def call(self, parent, messages, answer, tools=()):
        """One model call with this answer; returns the messages with the answer as the SDK gives it."""
        opened = self.harness.chat.render(messages, tools)
        written = self.harness.chat.render([*messages, answer], tools, add_generation_prompt=False)
        thought = f"<think>\n{answer['reasoning_content']}\n</think>\n\n" if answer.get("reasoning_content") else ""
        plain = f"{thought}{answer['content']}"
        text = written[len(opened) :] if answer.get("tool_calls") and written.startswith(opened) else plain
        for stop in self.harness.chat.stop_ids:
            text = text.split(self.harness.chat.decode([stop], skip_special=False))[0]
        self.harness.script.lines = [text]
        got = await self.client.chat.completions.create(
            model="m", messages=messages, **({"tools": list(tools)} if tools else {})
        )
        self.ids.append(got.id)
        self.parents.append(parent)
        return [*messages, got.choices[0].message.model_dump(exclude_none=True)]

    async def reward(self, place, value):
        self.rewards[place] = value
        await self.post("/rl/set_reward", {"interaction_id": self.ids[place], "reward": value}, self.given["api_key"])

    async def post(self, path, body, key):
        async with self.http.post(
            self.harness.manager.gateway.root + path,
            json=body,
            headers={"Authorization": f"Bearer {key}", "Accept": "application/msgpack"},
        ) as response:
            assert response.status == 200, await response.text()
            return await response.read()


def credit_of(episode, discount):
    """R(call) for each call, from the definition in docs/rewards.md, by recursion from the roots."""

    def reward(place):
        later = [reward(child) for child, parent in enumerate(episode.parents) if parent == place]
        own = episode.rewards.get(place)
        if discount is not None:
            return (own or 0.0) + (discount * fmean(later) if later else 0.0)
        if own is not None:
            return own
        return fmean(later) if later else episode.rewards[max(episode.rewards)]

    return [reward(place) for place in range(len(episode.parents))]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text, "reasoning_content": "let me think"}


async def chain(episode):
    messages = [user("a")]
    for number in range(3):
        messages = [
            *await episode.call(number - 1 if number else None, messages, assistant(f"answer {number}")),
            user(f"and {number}?"),
        ]
    await episode.reward(2, 1.0)


async def split(episode):
    messages = [*await episode.call(None, [user("a")], assistant("one")), user("b")]
    await episode.call(0, messages, assistant("two"), tools=TOOLS)
    await episode.reward(1, 1.0)


async def branch(episode):
    messages = await episode.call(None, [user("a")], assistant("one"))
    messages = await episode.call(0, [*messages, user("b")], assistant("two"))
    await episode.call(1, [*messages, user("left")], assistant("three"))
    await episode.call(1, [*messages, user("right")], assistant("four"))
    await episode.reward(2, 0.0)
    await episode.reward(3, 1.0)


async def by_id(episode):
    messages = await episode.call(None, [user("a")], assistant("one"))
    await episode.call(0, [*messages, user("b")], assistant("two"))
    await episode.reward(0, 1.0)
    await episode.reward(1, 0.0)


async def normalised(episode):
    """The client fills a default in and reorders the keys, under the id that it was given."""
    written = {"id": "x", "type": "function", "function": {"name": "edit", "arguments": json.dumps({"file": "f"})}}
    messages = await episode.call(
        None, [user("a")], {"role": "assistant", "content": "", "tool_calls": [written]}, tools=TOOLS
    )
    (made,) = messages[-1]["tool_calls"]
    made["function"]["arguments"] = json.dumps({"all": False, "file": "f"})
    messages.append({"role": "tool", "tool_call_id": made["id"], "content": "done"})
    await episode.call(0, messages, assistant("two"), tools=TOOLS)
    await episode.reward(1, 1.0)


EPISODES = {play.__name__: play for play in (chain, split, branch, by_id, normalised)}


@pytest.mark.parametrize("discount", [None, 0.9])
@pytest.mark.parametrize("play", EPISODES)
@pytest.mark.parametrize("template", FAMILIES)
async def test_every_sampled_token_is_trained_with_the_reward_of_its_call(template, play, discount):
    async with opened(template) as harness, aiohttp.ClientSession() as http:
        episode = await played(harness, http, EPISODES[play])
        expected = credit_of(episode, discount)
        (event,) = [
            found.open(TrajectoryExported) for found in harness.bus._log if found.subject == TrajectoryExported.subject
        ]
        assert [turn.id for turn in event.trajectory.interactions] == episode.ids
        parents = [episode.ids.index(turn.parent) if turn.parent else None for turn in event.trajectory.interactions]
        assert parents == episode.parents
        if play == "chain":
            broken = [not turn.prefix for turn in event.trajectory.interactions]
            assert broken == [True, FAMILIES[template], FAMILIES[template]], "the template splits, or does not"
        for style in ("concat", "individual"):
            asked = {"session_id": episode.given["session_id"], "style": style, "discount": discount}
            exported = trained(sequences(await episode.post("/export_trajectories", asked, ADMIN)))
            assert exported == {(number, reward) for number, reward in enumerate(map(np.float32, expected))}
            counts = sum(
                int(row["loss_mask"].sum())
                for row in sequences(await episode.post("/export_trajectories", asked, ADMIN))
            )
            assert counts == event.trajectory.sampled_tokens(), "every sampled token once"
            assert in_training(event.trajectory, Credit(discount=discount, style=style)) == pytest.approx(
                dict(enumerate(expected))
            )


async def played(harness, http, play):
    """The episode, ended and exported."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    while True:
        async with http.post(
            harness.manager.gateway.root + "/rl/start_session", json={"task_id": "t"}, headers=headers
        ) as answer:
            if answer.status == 200:
                given = await answer.json()
                break
            assert answer.status in {429, 503}
    async with openai.AsyncOpenAI(base_url=given["base_url"], api_key=given["api_key"], max_retries=0) as client:
        episode = Episode(harness, http, given, client)
        await play(episode)
    await episode.post("/rl/end_session", {}, given["api_key"])
    return episode


def trained(exported):
    """(call, reward) of every token in a loss mask."""
    return {
        (round(-float(logprob)) - 1, reward)
        for row in exported
        for logprob, reward in zip(
            row["logprobs"][row["loss_mask"] == 1], row["token_rewards"][row["loss_mask"] == 1], strict=True
        )
    }


def in_training(trajectory, credit):
    """Reward of each call by the trainer's rows, whose spans must hold exactly the trained tokens."""
    found: dict[int, float] = {}
    for row in sequences_of(trajectory, 0, 0, credit):
        covered = np.zeros(len(row.token_ids), dtype=bool)
        for call in row.calls:
            covered[call.start : call.end] = True
            (number,) = set(np.round(-row.logprobs[call.start : call.end]).astype(int) - 1)
            assert number not in found, "a call is trained in one row"
            found[number] = call.reward
        assert (covered == row.loss_mask).all()
    return found
