"""Coding agents as they are: their recorded requests, sent again, and their programs, installed with npm."""

from __future__ import annotations

import json
import os
import shutil

import aiohttp
import pytest
from support.coding_agents import (
    AGENTS,
    FINAL,
    FIRST,
    LAST,
    OUTPUT,
    PATCH,
    ClaudeCode,
    ClaudeCodeTeam,
    Codex,
    CodexPatch,
    CodexScript,
    installed,
    opened_coding_gateway,
    run_program,
)
from support.framework_harness import parents, prefixes
from support.gateway_harness import root
from support.recorded_requests import FOLDER, RECORD, impersonal, noting, recorded_requests, write_recorded

CORPUS = "coding_agents"


def events(text):
    """The data of server-sent events."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def tool_uses(found):
    """Names and inputs of the tool calls in a stream of Anthropic's events."""
    names = {one["index"]: one["content_block"]["name"] for one in found if one.get("content_block", {}).get("type") == "tool_use"}
    pieces = dict.fromkeys(names, "")
    for one in found:
        if one["type"] == "content_block_delta" and one["index"] in pieces:
            pieces[one["index"]] += one["delta"]["partial_json"]
    return [(names[index], json.loads(pieces[index])) for index in names]


def call_items(found):
    """Types, namespaces if any, names and inputs of the tool calls in a stream of a response's events."""
    items = [one["item"] for one in found if one["type"] == "response.output_item.done"]
    inputs = {"function_call": lambda item: json.loads(item["arguments"]), "custom_tool_call": lambda item: item["input"]}
    return [
        tuple(value for value in (item["type"], item.get("namespace"), item["name"], inputs[item["type"]](item)) if value)
        for item in items
        if item["type"] in inputs
    ]


async def replayed(agent):
    """Send recorded requests; returns events and ignored fields of each response, and the trajectory."""
    answers, ignored = [], []
    async with opened_coding_gateway(agent.rule(FOLDER)) as harness:
        session = await harness.open(harness.run, lease=600)
        key = {"Authorization": f"Bearer {session.api_key}"}
        async with aiohttp.ClientSession(root(session), headers=key) as http:
            for one in recorded_requests(CORPUS, agent):
                async with http.post(one["path"], json=one["body"], headers=one["headers"]) as response:
                    text = await response.text()
                    assert response.status == 200, text
                answers.append(events(text) if one["body"].get("stream") else [json.loads(text)])
                ignored.append(response.headers.get("x-areal-ignored"))
        return answers, ignored, await harness.exported(session)


REPORTED = {
    ClaudeCode: ["metadata, context_management, cache_control, anthropic-beta"],
    ClaudeCodeTeam: ["metadata, context_management, cache_control, anthropic-beta", "metadata, cache_control, anthropic-beta"],
    Codex: ["client_metadata, prompt_cache_key, tools[8] (web_search)"],
    CodexPatch: ["client_metadata, prompt_cache_key, text.verbosity, tools[8] (tool_search), tools[9] (web_search), tools[].format"],
    CodexScript: ["client_metadata, prompt_cache_key, reasoning.context, text.verbosity, input[0].tools[0].tools[].format"],
}
"""Fields of each agent that have no effect; a second agent of Claude Code has no thinking to manage."""


def commands_of(agent):
    return [("exec_command", {"cmd": command, "workdir": FOLDER}) for command in agent.commands]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_recorded_requests_are_answered_and_extend_each_other(agent):
    answers, ignored, trajectory = await replayed(agent)
    assert set(ignored) == set(REPORTED[agent])
    assert len(answers) == len(agent.parents)
    assert prefixes(trajectory) == parents(trajectory) == list(agent.parents)


async def test_the_tool_calls_of_claude_code_arrive_as_it_declared_the_tools():
    answers, _, _ = await replayed(ClaudeCode)
    file = f"{FOLDER}/hello.py"
    assert [tool_uses(found) for found in answers] == [
        [("Write", {"file_path": file, "content": FIRST})],
        [("Edit", {"file_path": file, "old_string": "'hello'", "new_string": "'hello world'"})],
        [("Bash", {"command": "python3 hello.py", "description": "Run the program"})],
        [],
    ]
    deltas = [one for found in answers for one in found if one["type"] == "message_delta"]
    assert [one["context_management"] for one in deltas] == [{"applied_edits": []}] * 4


async def test_the_tool_calls_of_codex_arrive_as_it_declared_the_tools():
    answers, _, _ = await replayed(Codex)
    assert [call_items(found) for found in answers] == [[("function_call", *call)] for call in commands_of(Codex)] + [[]]
    answers, _, _ = await replayed(CodexPatch)
    first, _, last = commands_of(CodexPatch)
    assert [call_items(found) for found in answers] == [
        [("function_call", *first)],
        [("custom_tool_call", "apply_patch", PATCH)],
        [("function_call", *last)],
        [],
    ]
    answers, _, _ = await replayed(CodexScript)
    scripts = [[("custom_tool_call", "functions", "exec", CodexScript.script(command, FOLDER))] for command in CodexScript.commands]
    assert [call_items(found) for found in answers] == [*scripts, []]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program of an agent; each package is installed once, and removed: the two have 640 MB."""
    folder = tmp_path_factory.mktemp("npm")
    yield lambda agent: installed(agent, folder / agent.program)
    shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_the_program_completes_a_task_and_its_trajectory_has_the_sampled_tokens(agent, programs, tmp_path):
    program, folder, home, requests = programs(agent), tmp_path / "task", tmp_path / "home", []
    folder.mkdir()
    home.mkdir()
    async with opened_coding_gateway(agent.rule(folder)) as harness:
        session = await harness.open(harness.run, lease=600)
        with noting(requests):
            status, printed = await run_program(agent, program, session, folder, home)
        assert status == 0, printed
        trajectory = await harness.exported(session)
        assert OUTPUT in harness.text(harness.script.prompts[-1]).rpartition("<tool_response>")[2]
    assert (folder / "hello.py").read_text() == LAST
    assert FINAL in printed
    assert prefixes(trajectory) == list(agent.parents)
    if os.environ.get(RECORD):
        write_recorded(CORPUS, agent, impersonal(requests, folder, home))
