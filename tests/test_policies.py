"""Several policies: which one a call names, its reward, the ends of its episodes, and versions of the past."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from support.live_run import RECIPE

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.policy_settings import PolicyRole, PolicySettings
from areal_actors.core.values import SamplingParams, Task, Trajectory, WeightsLocation
from areal_actors.gateway.http_answers import errors_in_dialect_format
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.table import Session
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import (
    CapacityGranted,
    EndPolicySession,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    OpenPolicySession,
    RunEpisode,
    SessionOpened,
    TrajectoryExported,
)
from areal_actors.messages.episode_ends import UNUSED
from areal_actors.policies.call_router import OPEN_PATH, PolicyAddress, PolicyRouter
from areal_actors.policies.episode_endings import EpisodeEndings
from areal_actors.policies.policy_reward import policy_reward
from areal_actors.policies.policy_session_manager import PolicySessionManager
from areal_actors.recipe.load import load
from areal_actors.recipe.policies import policy_recipe
from areal_actors.run.policy_serving import PastVersions
from areal_bus.base import Envelope, Stamp

NO_CUDA = CudaDevices(count=0, reason="none")


def work(episode="3.1", attempt=1, left=2, purpose="train"):
    return RunEpisode(
        episode=episode,
        group=episode.partition(".")[0],
        attempt=attempt,
        attempts_left=left,
        task=Task(id="t", data={"question": "2 + 2"}),
        purpose=purpose,
        sampling=SamplingParams(),
    )


def recipe_with(*settings):
    return load([RECIPE], ["profile=embedded", *settings], NO_CUDA).recipe


# ---------------------------------------------------------------- calls


@asynccontextmanager
async def routed(folder, policies, answer=None):
    """A gateway that answers with the name of its own policy, behind a router; and the gateway of a policy."""
    asked = []

    async def open_session(request):
        question = msgspec.msgpack.decode(await request.read(), type=OpenPolicySession)
        asked.append(question)
        return web.Response(body=msgspec.msgpack.encode(SessionOpened(session=question.session, api_key="its key")))

    async def of_policy(request):
        asked.append((request.headers["Authorization"], await request.json()))
        if answer is not None:
            return await answer(request)
        return web.json_response({"by": "policy"}, headers={"x-areal-ignored": "seed"})

    async def of_own(_):
        return web.json_response({"by": "own"})

    other = web.Application()
    other.router.add_post(OPEN_PATH, open_session)
    other.router.add_post("/v1/chat/completions", of_policy)
    async with TestServer(other) as server:
        url = f"http://127.0.0.1:{server.port}"
        address = PolicyAddress(url=url, admin_key="the admin key")
        for name in policies:
            (folder / f"{name}.json").write_bytes(msgspec.json.encode(address))
        registry = SessionRegistry(b"secret")
        registry.open(Session(id="s", api_key="key", work=work(), lease_seconds=60, expires=2e9))
        policies = {
            name: msgspec.structs.replace(settings, url=f"{url}/v1") if settings.kind == "remote" else settings
            for name, settings in policies.items()
        }
        router = PolicyRouter(policies, folder, 60.0)
        app = web.Application(middlewares=[errors_in_dialect_format])
        app.router.add_post("/{session}/v1/chat/completions", of_own)
        router.add_routes(registry, app, SimpleNamespace(session_of=lambda request: "s"))
        async with TestClient(TestServer(app)) as client:
            yield client, asked, registry


async def call(client, model):
    return await client.post("/s/v1/chat/completions", json={"model": model, "messages": []})


async def test_a_call_goes_to_the_policy_that_it_names_and_every_other_name_is_the_run_s_own(tmp_path):
    async with routed(tmp_path, {"worker": PolicySettings()}) as (client, asked, registry):
        assert (await (await call(client, "gpt-4o")).json()) == {"by": "own"}
        assert asked == []
        assert not registry.get("s").calls_policies
        answers = await asyncio.gather(*(call(client, "worker") for _ in range(3)))
        assert [await answer.json() for answer in answers] == [{"by": "policy"}] * 3
        assert answers[0].headers["x-areal-ignored"] == "seed"
        opened = [entry for entry in asked if isinstance(entry, OpenPolicySession)]
        assert [(entry.session, entry.work.episode) for entry in opened] == [("s", "3.1")]
        assert {entry[0] for entry in asked if isinstance(entry, tuple)} == {"Bearer its key"}
        assert registry.get("s").calls_policies


async def test_a_remote_policy_gets_its_own_name_and_key(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "secret")
    remote = PolicySettings(kind="remote", served_model="big-model", api_key_variable="TEACHER_KEY")
    async with routed(tmp_path, {"teacher": remote}) as (client, asked, _):
        assert (await (await call(client, "teacher")).json()) == {"by": "policy"}
        assert asked == [("Bearer secret", {"model": "big-model", "messages": []})]


async def test_a_streamed_answer_arrives_as_it_is_sent(tmp_path):
    sent = asyncio.Event()

    async def stream(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await sent.wait()
        await response.write(b"data: 2\n\n")
        return response

    async with routed(tmp_path, {"worker": PolicySettings()}, stream) as (client, _, _):
        answer = await call(client, "worker")
        assert await answer.content.readuntil(b"\n\n") == b"data: 1\n\n"
        sent.set()
        assert await answer.content.read() == b"data: 2\n\n"


async def test_an_error_of_a_policy_reaches_the_agent_as_it_is(tmp_path):
    async def refuse(_):
        return web.json_response({"error": {"message": "no session has this API key"}}, status=401)

    async with routed(tmp_path, {"worker": PolicySettings()}, refuse) as (client, _, _):
        answer = await call(client, "worker")
        assert answer.status == 401
        assert "no session" in (await answer.json())["error"]["message"]


async def test_a_policy_that_never_starts_is_a_refusal_that_names_the_setting(tmp_path, monkeypatch):
    monkeypatch.setattr("areal_actors.policies.call_router.MARGIN_SECONDS", 0.0)
    async with routed(tmp_path, {"worker": PolicySettings(start_seconds=0.5)}) as (client, _, _):
        (tmp_path / "worker.json").unlink()
        answer = await call(client, "worker")
        assert answer.status == 503
        assert "policies.worker.start_seconds = 0.5 s" in (await answer.json())["error"]["message"]


async def test_a_body_that_is_no_json_is_left_to_the_gateway(tmp_path):
    async with routed(tmp_path, {"worker": PolicySettings()}) as (client, asked, _):
        answer = await client.post("/s/v1/chat/completions", data=b"{model: worker")
        assert await answer.json() == {"by": "own"}
        assert asked == []


# ---------------------------------------------------------------- rewards and ends


@pytest.mark.parametrize(
    ("setting", "reward"), [("same", 0.5), ("opposite", -0.5), ("metric:worker", 0.25), ("metric:absent", None)]
)
def test_the_reward_of_a_policy_follows_its_setting(setting, reward):
    assert policy_reward(setting, 0.5, {"worker": 0.25}) == reward


def ends_of(*events):
    endings = EpisodeEndings()
    envelopes = [Envelope.seal(event, Stamp(id="1", sender="a", time=0.0), "run") for event in events]
    return [end for envelope in envelopes if (end := endings.receive(envelope)) is not None]


def scored(reward=1.0, **fields):
    return EpisodeScored(work=work(), session="s", reward=reward, output="its text", metrics={"m": 2.0}, **fields)


def test_an_exported_episode_ends_with_its_reward_and_no_attempt_is_left():
    trajectory = Trajectory(
        episode="3.1", group="3", attempt=1, task="t", reward=1.0, interactions=(), metrics={"m": 2.0}
    )
    (end,) = ends_of(scored(), TrajectoryExported(trajectory=trajectory))
    assert (end.work.episode, end.work.attempts_left, end.reward, end.metrics) == ("3.1", 0, 1.0, {"m": 2.0})
    assert end.output == "its text"


def test_an_abandoned_attempt_ends_with_its_reason_and_others_may_follow():
    (end,) = ends_of(scored(), EpisodeAbandoned(work=work(), reason="engine", detail="lost"))
    assert end == EndPolicySession(work=work(), reason="engine", detail="lost")


def test_an_episode_without_a_call_of_the_run_s_own_policy_ends_with_its_score():
    (end,) = ends_of(scored(-1.0), EpisodeAbandoned(work=work(left=0), reason=UNUSED, detail=""))
    assert (end.reward, end.reason, end.work.attempts_left) == (-1.0, "", 0)


def test_a_held_out_episode_ends_too():
    held_out = work("evaluation-0.1", purpose="evaluate")
    event = EpisodeEvaluated(work=held_out, reward=0.0, output="a", completion_tokens=3)
    (end,) = ends_of(event)
    assert (end.work.purpose, end.reward) == ("evaluate", 0.0)


def manager_of_policy(**fields):
    manager = PolicySessionManager(
        GatewaySettings(),
        lambda folder: None,
        secret=b"secret",
        max_model_len=64,
        serve_http=False,
        role=PolicyRole(name="worker", run="main"),
        follow_run=None,
        group_size=4,
        lease_seconds=60.0,
        waits_for_grants=True,
    )
    for name, value in fields.items():
        setattr(manager, name, value)
    return manager


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, UNUSED),
        ({"opened": {"3.1"}}, "session"),
        ({"known_from": 4}, "session"),
        ({"known_from": 3}, UNUSED),
    ],
)
def test_an_episode_without_a_session_was_not_called_or_has_lost_it(fields, reason):
    end = EndPolicySession(work=work(left=0), reward=1.0)
    (abandoned,) = manager_of_policy(**fields)._end_attempt(end, SimpleNamespace(now=0.0))
    assert (abandoned.reason, abandoned.work.attempts_left) == (reason, 0)


async def test_an_end_before_the_grant_of_its_group_waits_for_it():
    ends = [(work("0.0", left=0), 1.0), (work("7.0", left=0), 1.0), (work("1.0", left=0), 1.0)]

    async def follow():
        for episode, reward in ends:
            trajectory = Trajectory(
                episode=episode.episode, group=episode.group, attempt=1, task="t", reward=reward, interactions=()
            )
            yield Envelope.seal(TrajectoryExported(trajectory=trajectory), Stamp(id="1", sender="a", time=0.0), "run")
        await asyncio.Event().wait()

    submitted = []

    async def submit(end):
        submitted.append(end.work.episode)
        yield None

    manager = manager_of_policy(granted=2, follow_run=follow)
    following = asyncio.create_task(manager._end_sessions(submit))
    async with asyncio.timeout(30):
        while len(submitted) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert submitted == ["0.0", "1.0"]
    await manager.capacity_granted(CapacityGranted(first_group=2, groups=6, weight_version=1))
    async with asyncio.timeout(30):
        while len(submitted) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert submitted == ["0.0", "1.0", "7.0"]
    following.cancel()


# ---------------------------------------------------------------- recipes


def test_a_policy_has_the_recipe_of_its_run_with_its_own_changes():
    recipe = recipe_with("policies.worker.settings.trainer.optimizer.lr=1e-4", "policies.worker.reward=opposite")
    own = policy_recipe(recipe, "worker")
    assert own.trainer.optimizer.lr == 1e-4
    assert recipe.trainer.optimizer.lr != 1e-4
    assert own.algorithm.group_size == recipe.algorithm.group_size
    assert (own.run, own.folder) == (f"{recipe.run}-worker", f"runs/{recipe.run}/policies")
    assert own.is_online()
    assert not own.policies
    assert own.policy.settings.reward == "opposite"
    assert [name for name in ("task_source", "rollout_worker", "evaluator") if getattr(own.actors, name).count] == []
    assert msgspec.json.decode(msgspec.json.encode(own), type=type(own)) == own


def test_a_policy_that_is_not_trained_has_no_trainer():
    own = policy_recipe(recipe_with("policies.past.kind=past"), "past")
    assert own.is_served()
    assert own.actors.session_manager.count == own.actors.inference_worker.count == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["policies.worker.reward=half"], '`policies.worker.reward`: found "half"; write "same"'),
        (["policies.worker.kind=remote"], "`policies.worker.url`"),
        (["policies.worker.kind=frozen", "policies.worker.reward=opposite"], 'a policy of the kind "frozen" has none'),
        (["policies.worker.kind=past", "policies.worker.model=other"], "past versions are of the recipe's model"),
        (["policies.worker.url=http://a/v1"], "`policies.worker.url`"),
        (["policies.worker.settings.trainer.optimiser.lr=1"], "`policies.worker.settings`"),
        (["policies.worker.settings.steps=3"], "`policies.worker.settings.steps`"),
        (
            ["trainer.optimizer.schedule=cosine", "policies.worker.kind=trained"],
            "`policies.worker.settings.trainer.optimizer.schedule`",
        ),
        (["policies.default.kind=trained"], "`policies.default`"),
        (
            ["run=a-name-that-is-nearly-as-long-as-a-name-of-a-run-may-be-in-all", "policies.worker.kind=trained"],
            "`run`",
        ),
        (
            ["actors.session_manager.count=2", "gateway.joined=1", "bus.host=127.0.0.1", "policies.worker.kind=past"],
            "`gateway.joined`",
        ),
    ],
)
def test_what_keeps_a_policy_from_answering_is_refused_by_name(settings, text):
    with pytest.raises(RecipeError) as refused:
        recipe_with(*settings)
    assert text in str(refused.value)


# ---------------------------------------------------------------- earlier versions


def published(root, version):
    folder = root / f"v{version}"
    folder.mkdir()
    (folder / "model.safetensors").write_text(str(version))
    return WeightsLocation(folder=str(folder), checksum=f"c{version}", model="m")


def test_versions_of_the_past_are_kept_and_drawn_by_the_seed_alone(tmp_path):
    draws = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        past = PastVersions(tmp_path / place / "past", seed=3, every=2, keep=3)
        drawn = []
        for version in range(12):
            location = published(tmp_path / place, version)
            if (draw := past.take_up(version, location)) is not None:
                number, files = draw
                drawn.append(number)
                assert (tmp_path / place / "past" / f"version-{number}" / "model.safetensors").read_text() == str(
                    number
                )
                assert files.folder.endswith(f"version-{number}")
        assert len(past.kept) == 3
        assert len(list((tmp_path / place / "past").iterdir())) == 3
        draws.append(drawn)
    assert draws[0] == draws[1]
    assert len(draws[0]) == 6
    assert len(set(draws[0])) > 1


def test_a_version_that_is_gone_is_left_out(tmp_path):
    past = PastVersions(tmp_path / "past", seed=0, every=1, keep=2)
    gone = WeightsLocation(folder=str(tmp_path / "gone"), checksum="c", model="m")
    assert past.take_up(0, gone) is None
    assert past.take_up(0, published(tmp_path, 0))[0] == 0
    assert past.take_up(0, gone) is None
    assert json.dumps(past.kept) == "[0]"
