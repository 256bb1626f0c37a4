"""Coding agents as they are: their recorded requests, sent again, and their programs, installed with npm."""

from __future__ import annotations

import json
import os
import shutil

import aiohttp
import pytest
from support.coding_agents import (
    AGENTS,
    PATCH,
    ClaudeCode,
    ClaudeCodeTeam,
    Codex,
    CodexPatch,
    CodexScript,
    OpenCode,
    OpenCodeTeam,
    QwenCode,
    QwenCodeTeam,
)
from support.coding_harness import FINAL, FIRST, LAST, OUTPUT, Programs, opened_coding_gateway, results_in, run_program
from support.framework_harness import parents, prefixes
from support.gateway_harness import root
from support.recorded_requests import (
    FOLDER,
    RECORD,
    impersonal,
    noting,
    read_recorded,
    recorded_requests,
    write_recorded,
)

CORPUS = "coding_agents"


def events(text):
    """The data of server-sent events."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def tool_uses(found):
    """Names and inputs of the tool calls in a stream of Anthropic's events."""
    names = {
        one["index"]: one["content_block"]["name"]
        for one in found
        if one.get("content_block", {}).get("type") == "tool_use"
    }
    pieces = dict.fromkeys(names, "")
    for one in found:
        if one["type"] == "content_block_delta" and one["index"] in pieces:
            pieces[one["index"]] += one["delta"]["partial_json"]
    return [(names[index], json.loads(pieces[index])) for index in names]


def function_calls(found):
    """Names and inputs of the tool calls in a stream of chat completion chunks."""
    pieces = {}
    for one in (
        call for chunk in found for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())
    ):
        name, arguments = pieces.get(one["index"], ("", ""))
        pieces[one["index"]] = name + one["function"].get("name", ""), arguments + one["function"]["arguments"]
    return [(name, json.loads(arguments)) for name, arguments in pieces.values()]


def call_items(found):
    """Types, namespaces if any, names and inputs of the tool calls in a stream of a response's events."""
    items = [one["item"] for one in found if one["type"] == "response.output_item.done"]
    inputs = {
        "function_call": lambda item: json.loads(item["arguments"]),
        "custom_tool_call": lambda item: item["input"],
    }
    return [
        tuple(
            value for value in (item["type"], item.get("namespace"), item["name"], inputs[item["type"]](item)) if value
        )
        for item in items
        if item["type"] in inputs
    ]


def assert_conversations(agent, trajectory):
    """Each call extends the one before in its conversation; no call is outside the agent's conversations."""
    before = prefixes(trajectory)
    assert before == parents(trajectory)
    assert lengths(before) == list(agent.conversations)


def lengths(before):
    """Numbers of calls from each last one back to the first, ascending."""
    counted = []
    for earlier in before:
        counted.append(1 + (counted[earlier] if earlier >= 0 else 0))
    return sorted(counted[place] for place in set(range(len(before))) - set(before))


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
                answers.append(
                    events(text.replace("data: [DONE]\n", "")) if one["body"].get("stream") else [json.loads(text)]
                )
                ignored.append(response.headers.get("x-areal-ignored"))
        return answers, ignored, await harness.exported(session)


REPORTED = {
    ClaudeCode: ["metadata, context_management, cache_control, anthropic-beta"],
    ClaudeCodeTeam: [
        "metadata, context_management, cache_control, anthropic-beta",
        "metadata, cache_control, anthropic-beta",
    ],
    Codex: ["client_metadata, prompt_cache_key, tools[8] (web_search)"],
    CodexPatch: [
        (
            "client_metadata, prompt_cache_key, text.verbosity, tools[8] (tool_search), tools[9] (web_search),"
            " tools[].format"
        )
    ],
    CodexScript: [
        "client_metadata, prompt_cache_key, reasoning.context, text.verbosity, input[0].tools[0].tools[].format"
    ],
    OpenCode: [None],
    OpenCodeTeam: [None],
    QwenCode: [None],
    QwenCodeTeam: [None],
}
"""Fields of each agent that have no effect; a second agent of Claude Code has no thinking to manage."""


def commands_of(agent):
    return [("exec_command", {"cmd": command, "workdir": FOLDER}) for command in agent.commands]


def test_conversations_are_counted_along_their_calls_and_a_branch_is_one_more():
    assert lengths([-1, 0, -1, 2, 1]) == [2, 3]
    assert lengths([-1, 0, 0, 2]) == [2, 3]
    assert lengths([-1, -1]) == [1, 1]


def test_the_recorded_versions_are_those_of_the_programs():
    assert {name: one["version"] for name, one in read_recorded(CORPUS).items()} == {
        agent.name: agent.version for agent in AGENTS
    }


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_recorded_requests_are_answered_and_extend_each_other(agent):
    answers, ignored, trajectory = await replayed(agent)
    assert set(ignored) == set(REPORTED[agent])
    assert len(answers) == sum(agent.conversations)
    assert_conversations(agent, trajectory)


async def test_the_tool_calls_of_claude_code_arrive_as_it_declared_the_tools():
    answers, _, _ = await replayed(ClaudeCode)
    file = f"{FOLDER}/hello.py"
    assert [tool_uses(found) for found in answers] == [
        [("Write", {"file_path": file, "content": FIRST})],
        [("Edit", {"file_path": file, "old_string": "'hello'", "new_string": "'hello world'"})],
        [("Bash", {"command": "python3 hello.py"})],
        [],
    ]
    deltas = [one for found in answers for one in found if one["type"] == "message_delta"]
    assert [one["context_management"] for one in deltas] == [{"applied_edits": []}] * 4


async def test_the_tool_calls_of_codex_arrive_as_it_declared_the_tools():
    answers, _, _ = await replayed(Codex)
    assert [call_items(found) for found in answers] == [[("function_call", *call)] for call in commands_of(Codex)] + [
        []
    ]
    answers, _, _ = await replayed(CodexPatch)
    first, _, last = commands_of(CodexPatch)
    assert [call_items(found) for found in answers] == [
        [("function_call", *first)],
        [("custom_tool_call", "apply_patch", PATCH)],
        [("function_call", *last)],
        [],
    ]
    answers, _, _ = await replayed(CodexScript)
    scripts = [
        [("custom_tool_call", "functions", "exec", CodexScript.script(command, FOLDER))]
        for command in CodexScript.commands
    ]
    assert [call_items(found) for found in answers] == [*scripts, []]


async def test_the_tool_calls_of_opencode_and_qwen_code_arrive_as_they_declared_the_tools():
    file = f"{FOLDER}/hello.py"
    wanted = {
        OpenCode: [
            [],
            [("write", {"filePath": file, "content": FIRST})],
            [("edit", {"filePath": file, "oldString": "'hello'", "newString": "'hello world'"})],
            [("bash", {"command": "python3 hello.py"})],
            [],
        ],
        QwenCode: [
            [("write_file", {"file_path": file, "content": FIRST})],
            [("edit", {"file_path": file, "old_string": "'hello'", "new_string": "'hello world'"})],
            [("run_shell_command", {"command": "python3 hello.py"})],
            [],
        ],
    }
    for agent, calls in wanted.items():
        answers, _, _ = await replayed(agent)
        assert [function_calls(found) for found in answers] == calls


THOUGHTS = {
    CodexPatch: {"A patch.", "It is changed."},
    **{agent: {"Two files.", "One command.", "Once more."} for agent in (ClaudeCodeTeam, OpenCodeTeam, QwenCodeTeam)},
}
"""Reasoning before the last answer of each agent."""


def reasoning_in(body):
    """Reasoning that a request sends back: blocks of Anthropic's messages and of OpenAI's responses, fields of its chat
    messages."""
    items = body.get("messages") or body["input"]
    blocks = [block for item in items if isinstance(item.get("content"), list) for block in item["content"]]
    texts = [block.get("thinking") or (block["type"] == "reasoning_text" and block["text"]) for block in blocks]
    return {text for text in [*texts, *[item.get("reasoning_content") for item in items]] if text}


@pytest.mark.parametrize("agent", THOUGHTS, ids=lambda agent: agent.name)
def test_reasoning_is_sent_back_as_such(agent):
    found = [reasoning_in(one["body"]) for one in recorded_requests(CORPUS, agent)]
    assert set().union(*found) == THOUGHTS[agent]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The programs of the agents, which are removed."""
    folder = tmp_path_factory.mktemp("npm")
    yield Programs(folder)
    shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_the_program_completes_a_task_and_its_trajectory_has_the_sampled_tokens(agent, programs, tmp_path):
    program, folder, home, requests = programs.of(agent), tmp_path / "task", tmp_path / "home", []
    folder.mkdir()
    home.mkdir()
    async with opened_coding_gateway(agent.rule(folder)) as harness:
        session = await harness.open(harness.run, lease=600)
        with noting(requests):
            status, printed = await run_program(agent, program, session, folder, home)
        assert status == 0, printed
        trajectory = await harness.exported(session)
        last = max((harness.text(prompt) for prompt in harness.script.prompts), key=results_in)
        assert OUTPUT in last.rpartition("<tool_response>")[2]
    assert (folder / "hello.py").read_text() == LAST
    assert FINAL in printed
    assert "<think>" not in printed
    assert_conversations(agent, trajectory)
    if os.environ.get(RECORD):
        write_recorded(CORPUS, agent, impersonal(requests, folder, home))
