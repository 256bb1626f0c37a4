"""Clients in JavaScript as they are: their recorded requests, sent again, and their programs, installed with npm."""

from __future__ import annotations

import os
import shutil

import aiohttp
import pytest
from support.framework_harness import assert_extends
from support.gateway_harness import root
from support.javascript_clients import (
    CLIENTS,
    LINES,
    PACKAGES,
    RUN,
    TURNS,
    installed_programs,
    opened_javascript_gateway,
    run_client,
    without_key,
)
from support.recorded_requests import RECORD, noting, read_recorded, recorded_requests, write_recorded

CORPUS = "javascript_clients"


async def assert_exported(harness, session):
    """Ten turns are one conversation: each prompt is the earlier one, the tokens sampled for it, and a suffix."""
    trajectory = await harness.trajectory(session, run=RUN)
    sampled = [turn.completion.ids_array().tolist() for turn in trajectory.interactions]
    assert sampled == harness.script.sampled
    assert [harness.text(ids[:-1]) for ids in sampled] == LINES
    assert_extends(harness, trajectory)


def test_the_turns_are_ten_and_each_kind_of_answer_comes_whole_and_streamed():
    assert len(TURNS) == 10
    for kind in (lambda answer: answer.calls == 0, lambda answer: answer.calls > 0, lambda answer: answer.reasoning):
        assert {turn.stream for turn in TURNS for answer in turn.answers if kind(answer)} == {False, True}


def test_every_package_has_a_client_and_the_recorded_versions_are_those_of_the_packages():
    assert {name for name in PACKAGES if name not in {"@langchain/core", "ai", "zod"}} == {
        client.package for client in CLIENTS
    }
    recorded = read_recorded(CORPUS)
    assert {name: one["version"] for name, one in recorded.items()} == {
        client.name: client.version for client in CLIENTS
    }


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_recorded_requests_are_answered_and_extend_each_other(client):
    ignored = []
    async with opened_javascript_gateway() as harness:
        session = await harness.open(RUN, lease=600)
        key = {"Authorization": f"Bearer {session.api_key}"}
        async with aiohttp.ClientSession(root(session), headers=key) as http:
            for one in recorded_requests(CORPUS, client):
                async with http.post(one["path"], json=one["body"], headers=one["headers"]) as response:
                    assert response.status == 200, await response.text()
                    await response.read()
                ignored.append(response.headers.get("x-areal-ignored", ""))
        await assert_exported(harness, session)
        assert [", ".join(recorded.ignored) for recorded in harness.recorded()] == ignored
    assert {one for one in ignored if one} == client.ignored


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of the programs with their packages, which is removed."""
    folder = tmp_path_factory.mktemp("npm")
    yield installed_programs(folder)
    shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_ten_turns_of_a_client_are_read_as_sampled_and_extend_each_other(client, programs):
    requests = []
    async with opened_javascript_gateway() as harness:
        session = await harness.open(RUN, lease=600)
        with noting(requests):
            found = await run_client(client, programs, session)
        await assert_exported(harness, session)
    wanted = [answer.read(with_reasoning=client.shows_reasoning) for turn in TURNS for answer in turn.answers]
    assert [one | {"text": one["text"].strip()} for one in found] == wanted
    if os.environ.get(RECORD):
        write_recorded(CORPUS, client, requests)


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_with_a_placeholder_for_its_key_has_its_session_by_the_address(client, programs):
    async with opened_javascript_gateway() as harness:
        session = await harness.open(RUN, lease=600)
        found = await run_client(client, programs, without_key(session))
        await assert_exported(harness, session)
    assert len(found) == len(LINES)
