"""A frozen policy of the recipe as a judge: checks, calibration by its engine, its gateway in a run, and kills."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from aiohttp import web
from support.judging import CONTEXT, work

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.policy_settings import PolicySettings
from areal_actors.messages import OpenPolicySession, ScoreEpisode, SessionOpened
from areal_actors.policies.call_router import OPEN_PATH, PolicyAddress
from areal_actors.policies.policy_judge import PolicyModel
from areal_actors.recipe.load import load
from areal_actors.rewards.judge.inquiry import JudgeUnavailable
from areal_actors.rewards.judge.panel import JudgePanel
from areal_actors.rewards.judge.settings import ModelJudge, asks_engines
from areal_actors.rewards.reward_worker import JudgingRewardWorker, RewardWorker
from areal_actors.supervision.nats_server import _declared_by

BASE = 'run = "r"\nsteps = 1\nmodel = "embedded"\ntask.dataset = "arithmetic"\ntask.reward = "judge"\n'
FROZEN = '[policies.grader]\nkind = "frozen"\n'


def loaded(tmp_path, table, policies=FROZEN):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"{BASE}[task.reward_options]\n{table}\n{policies}")
    return load([recipe], [], CudaDevices(count=0, reason="none here")).recipe


@pytest.mark.parametrize(
    ("table", "policies", "complaint"),
    [
        (
            'policy = "grade"',
            FROZEN,
            '`task.reward_options.policy`: found "grade", but [policies] has no frozen policy',
        ),
        ('policy = "grade"', FROZEN, "did you mean `grader`?"),
        ('policy = "grader"', "", 'write `[policies.grader]` with kind = "frozen"'),
        ('policy = "grader"', '[policies.grader]\nkind = "trained"\n', "has no frozen policy of this name"),
        ('policy = "grader"\nurl = "http://x/v1"', FROZEN, "beside a `policy`, which is its own model; leave one out"),
    ],
)
def test_a_wrong_policy_is_named_with_the_remedy(tmp_path, table, policies, complaint):
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, table, policies)
    assert complaint in str(raised.value)


def test_a_policy_that_judges_lets_rewards_ask_nothing_on_the_bus(tmp_path):
    recipe = loaded(tmp_path, 'policy = "grader"')
    assert not asks_engines(recipe.task.reward, recipe.task.reward_options)
    assert _declared_by(recipe, RewardWorker.kind()) is RewardWorker
    own = loaded(tmp_path, "samples = 1")
    assert _declared_by(own, RewardWorker.kind()) is JudgingRewardWorker


class PolicyGateway:
    """A server with the two endpoints of a policy's gateway that a judge uses."""

    def __init__(self, folder):
        self.folder, self.opened, self.calls, self.generation = folder, [], [], 0
        self.down = False

    async def start(self):
        app = web.Application()
        app.router.add_post(OPEN_PATH, self.open)
        app.router.add_post("/v1/chat/completions", self.complete)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        address = PolicyAddress(url=f"http://127.0.0.1:{port}", admin_key="admin")
        (self.folder / "grader.json").write_bytes(msgspec.json.encode(address))
        return self

    async def open(self, request):
        assert request.headers["Authorization"] == "Bearer admin"
        question = msgspec.msgpack.decode(await request.read(), type=OpenPolicySession)
        self.opened.append(question.session)
        key = f"{question.session}-{self.generation}"
        return web.Response(body=msgspec.msgpack.encode(SessionOpened(session=question.session, api_key=key)))

    async def complete(self, request):
        key = request.headers["Authorization"].removeprefix("Bearer ")
        if not key.endswith(f"-{self.generation}"):
            return web.json_response({"error": {"message": "no such session"}}, status=401)
        if self.down:
            return web.json_response({"error": {"message": "no inference worker"}}, status=503)
        self.calls.append((key, await request.json()))
        verdict = {"quality": 5, "reason": "so"}
        return web.json_response({"choices": [{"message": {"content": json.dumps(verdict)}}]})


@pytest.fixture
async def gateway(tmp_path):
    running = await PolicyGateway(tmp_path).start()
    yield running
    await running.runner.cleanup()


def panel_of(folder, **settings):
    judge = ModelJudge(policy="grader", **settings)
    policy = PolicySettings(kind="frozen", start_seconds=2.0)
    return JudgePanel(
        {"judge": judge}, seed=0, group_size=2, model_of=lambda asked: PolicyModel(asked, policy, folder, 30.0)
    )


def scored(episode="0.0", output="an answer"):
    return ScoreEpisode(work=work(episode), session=f"{episode}-1", output=output)


async def test_a_judge_asks_the_policy_with_the_session_of_the_answer(gateway, tmp_path):
    panel = panel_of(tmp_path)
    judged = await asyncio.gather(*(panel.judge(scored(f"0.{n}", f"answer {n}"), CONTEXT) for n in range(3)))
    assert sorted(gateway.opened) == ["0.0-1", "0.1-1", "0.2-1"]
    assert sorted(key for key, _ in gateway.calls) == ["0.0-1-0", "0.1-1-0", "0.2-1-0"]
    assert all(one.metrics["judge_calls"] == 1 for one in judged)
    assert {body["model"] for _, body in gateway.calls} == {"grader"}
    assert all("x-guidance" in body["response_format"]["json_schema"]["schema"] for _, body in gateway.calls)
    await panel.close()


async def test_a_gateway_that_was_replaced_is_found_again(gateway, tmp_path):
    panel = panel_of(tmp_path)
    await panel.judge(scored(output="first"), CONTEXT)
    gateway.generation = 1  # another process, which has none of the sessions
    judged = await panel.judge(scored(output="second"), CONTEXT)
    assert gateway.opened == ["0.0-1", "0.0-1"]
    assert judged.metrics["judge_calls"] == 2
    await panel.close()


async def test_a_policy_without_an_engine_is_a_failure_by_name_after_all_retries(gateway, tmp_path):
    panel = panel_of(tmp_path, retries=1)
    gateway.down = True
    with pytest.raises(JudgeUnavailable, match=r"judge judge: no answer of policy 'grader' after 2 calls: status 503"):
        await panel.judge(scored(), CONTEXT)
    gateway.down = False
    assert (await panel.judge(scored(), CONTEXT)).metrics["judge_calls"] == 1
    await panel.close()


async def test_a_policy_that_never_starts_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("areal_actors.policies.call_router.MARGIN_SECONDS", 0.0)
    panel = panel_of(tmp_path, retries=0)
    with pytest.raises(JudgeUnavailable, match=r"policies.grader.start_seconds = 2 s"):
        await panel.judge(scored(), CONTEXT)
    await panel.close()
