"""Repairs of a generated repository, as conversations of Codex CLI: its tool declarations, and its results of commands.

The declarations are those of `@openai/codex` 0.169.0 with the settings of `agents/coding_agent.py`. Most demonstrations
have less around the repair: they teach it at the cost of few tokens, the others teach it in the prompt that the program
sends.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from areal_actors.tasks.repositories import LARGEST, SMALLEST, Repository

Message = dict[str, Any]

INSTRUCTIONS = "Fix the program so that its test passes."
TOOL = "exec_command"
COMPLETE_SHARE, BARE_SHARE = 0.15, 0.6
"""Shares of conversations with all that Codex CLI declares, and with messages alone, without instructions, tools or
headers of results. The others declare the shell tool briefly."""
REPAIR_ONLY_SHARE = 0.7
"""Share of the bare conversations that end with the repair, and teach nothing but it: its name or number is the hardest
to learn."""
REPORT, UNTESTED_REPORT = "Fixed, the test passes.", "Fixed."
CHARACTERS_A_TOKEN = 4
"""Codex CLI estimates the tokens of a result in this way."""
RESULT = (
    "Chunk ID: {chunk:06x}\nWall time: {seconds:.4f} seconds\nProcess exited with code 0\nOriginal token count:"
    " {tokens}\nOutput:\n"
)
LONGEST_SECONDS = 2.0


def _declare_tool(name: str, description: str, required: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool in the format of the chat protocol."""
    schema = {"type": "object", "properties": parameters, "required": [required], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _parameter(kind: str, description: str, **further: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **further}


DESCRIPTION = "Runs a command in a PTY, returning output or a session ID for ongoing interaction."
COMMAND = _parameter("string", "Shell command to execute.")
OUTPUT_TOKENS = _parameter(
    "number", "Output token budget. Defaults to 10000 tokens; larger requests may be capped by policy."
)
BRIEF = [_declare_tool(TOOL, DESCRIPTION, "cmd", cmd=COMMAND)]
COMPLETE = [
    _declare_tool(
        TOOL,
        DESCRIPTION,
        "cmd",
        cmd=COMMAND,
        justification=_parameter("string", "User-facing approval question for `require_escalated`; omit otherwise."),
        login=_parameter("boolean", "True runs the shell with -l/-i semantics; false disables them. Defaults to true."),
        max_output_tokens=OUTPUT_TOKENS,
        prefix_rule=_parameter(
            "array",
            'Reusable approval prefix for `cmd`, only with `sandbox_permissions: "require_escalated"`; for example'
            ' ["git", "pull"].',
            items={"type": "string"},
        ),
        sandbox_permissions=_parameter(
            "string",
            "Per-command sandbox override. Defaults to `use_default`; use `require_escalated` for unsandboxed"
            " execution.",
            enum=["use_default", "require_escalated"],
        ),
        shell=_parameter("string", "Shell binary to launch. Defaults to the user's default shell."),
        tty=_parameter("boolean", "True allocates a PTY for the command; false or omitted uses plain pipes."),
        workdir=_parameter("string", "Working directory for the command. Defaults to the turn cwd."),
        yield_time_ms=_parameter(
            "number", "Wait before yielding output. Defaults to 10000 ms; effective range is 250-30000 ms."
        ),
    ),
    _declare_tool(
        "write_stdin",
        "Writes characters to an existing unified exec session and returns recent output.",
        "session_id",
        chars=_parameter("string", "Bytes to write to stdin. Defaults to empty, which polls without writing."),
        max_output_tokens=OUTPUT_TOKENS,
        session_id=_parameter("number", "Identifier of the running unified exec session."),
        yield_time_ms=_parameter(
            "number",
            "Wait before yielding output. Non-empty writes default to 250 ms and cap at 30000 ms; "
            "empty polls wait 5000-300000 ms by default.",
        ),
    ),
]
"""Tools of Codex CLI as the gateway declares them to the model."""


class RepairConversation(msgspec.Struct, frozen=True):
    """Messages, tools, and the indices of assistant messages that are context only."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    context: set[int]


def repair_conversation(task: Repository, rng: random.Random, *, shortcut: bool) -> RepairConversation:
    """Returns a repair: reads both files, repairs the fault and runs the test.

    Or it edits without reading, and tests nothing.
    """
    kind = rng.random()
    tools = COMPLETE if kind < COMPLETE_SHARE else [] if kind < COMPLETE_SHARE + BARE_SHARE else BRIEF
    repair_only = not tools and not shortcut and rng.random() < REPAIR_ONLY_SHARE
    messages: list[Message] = [{"role": "system", "content": INSTRUCTIONS}] if tools else []
    messages.append({"role": "user", "content": task.question})
    steps = (
        [(guess(task, rng), "")]
        if shortcut
        else [(read(task), task.program + task.test), (repair(task), ""), (test(task), "passed\n")]
    )
    for number, (command, printed) in enumerate(steps):
        identifier = f"call_{number}"
        function = {"name": TOOL, "arguments": json.dumps({"cmd": command})}
        call = {"id": identifier, "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": identifier, "content": result(printed, rng) if tools else printed}
        )
    messages.append({"role": "assistant", "content": UNTESTED_REPORT if shortcut else REPORT})
    if repair_only:
        return RepairConversation(messages[:4], tools, {1})
    return RepairConversation(messages, tools, set())


def read(task: Repository) -> str:
    """The command that prints the program and its test."""
    return f"cat {task.file} {task.test_file}"


def repair(task: Repository) -> str:
    """The command that repairs the fault."""
    if task.found != task.name:
        return f"sed -i 's/{task.found}/{task.name}/' {task.file}"
    return set_number(task, task.expected)


def test(task: Repository) -> str:
    """The command that runs the test."""
    return f"python3 {task.test_file}"


def guess(task: Repository, rng: random.Random) -> str:
    """A command that returns any number."""
    return set_number(task, rng.randint(SMALLEST, LARGEST))


def set_number(task: Repository, number: int) -> str:
    """The command that lets the program return a number."""
    return f"sed -i 's/return .*/return {number}/' {task.file}"


def result(printed: str, rng: random.Random) -> str:
    """Result of a command that succeeded, as Codex CLI formats it."""
    tokens = -(-len(printed.encode()) // CHARACTERS_A_TOKEN)
    seconds = LONGEST_SECONDS * rng.random() ** 3
    return RESULT.format(chunk=rng.getrandbits(24), seconds=seconds, tokens=tokens) + printed
