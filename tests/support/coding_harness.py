"""Coding agents before a gateway whose model follows a rule: the task, the rules, and the agents' programs, installed
with npm."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from support.fake_engine import ScriptEngine
from support.framework_harness import THINKING_TEMPLATE, ChatGatewayHarness, call, chat_tokenizer
from support.gateway_harness import opened
from support.npm_packages import install
from support.samples import work

from areal_actors.core.values import SamplingParams
from areal_actors.gateway.settings import GatewaySettings

CONTEXT = 1_000_000
"""The tokenizer of the tests is small: a prompt of 30 thousand tokens has several times as many here."""
RUN_SECONDS = 240
TASK = "Create hello.py, which prints hello, change it to print hello world, run it, and report its output."
OUTPUT = "hello world"
FIRST, LAST = "print('hello')\n", "print('hello world')\n"
FINAL = f"It prints {OUTPUT}."
CHANGE = "sed -i s/hello/hello\\ world/ hello.py"
SHELL = f"{CHANGE} && python3 hello.py"
CHECKS = tuple(f"python3 hello.py {number}" for number in range(7))
"""Commands that make a conversation ten calls long; each is another one, because some agents end a loop of equal
calls."""
SUBTASK = "Change hello.py to print hello world."


class RuleEngine(ScriptEngine):
    """Generates what the `rule` of the script answers to a prompt's text."""

    async def completion(self, prompt_ids, sampling, resumed):
        if not resumed:
            self.script.lines.append(self.script.rule(self.chat.decode(list(prompt_ids), skip_special=False)))
        return await super().completion(prompt_ids, sampling, resumed)


class CodingHarness(ChatGatewayHarness):
    """See `ChatGatewayHarness`; Codex CLI sends `store: false` with every call."""

    def __init__(self, rule):
        super().__init__(chat=chat_tokenizer(THINKING_TEMPLATE), make_engine=RuleEngine)
        self.script.rule = rule
        self.manager.max_model_len = CONTEXT
        self.manager.calls.config = GatewaySettings(store_false="train")
        self.run = work(sampling=SamplingParams(max_tokens=400))

    async def exported(self, session):
        """The trajectory of the session, whose tokens are those that the engine sampled."""
        trajectory = await self.trajectory(session, run=self.run)
        sampled = [list(turn.completion.ids_array()) for turn in trajectory.interactions]
        assert sorted(sampled) == sorted(self.script.sampled)
        assert sampled
        return trajectory


def opened_coding_gateway(rule):
    return opened(CodingHarness(rule))


def results_in(prompt):
    """Number of tool results in a prompt."""
    return prompt.count("<tool_response>\n")


def calling(name, **arguments):
    return call(name, json.dumps(arguments))


def answering(lines, tool):
    """The rule of one conversation; side calls do not have this tool."""
    return lambda prompt: lines[results_in(prompt)] if f'"name": "{tool}"' in prompt else "A greeting"


def thinking(thought, *parts):
    """An answer that begins with reasoning."""
    return "\n".join([f"<think>\n{thought}\n</think>\n", *parts])


class FileToolsAgent:
    """An agent with tools that write and edit files, and a shell; each class names them as the agent does."""

    beside = ()
    """Further packages that the program needs."""
    conversations = (4,)
    """Numbers of calls of its conversations, ascending."""

    @classmethod
    def rule(cls, folder):
        """Write, edit, run, and report; side calls have no tools."""
        _, old, new = cls.fields
        edit = calling(cls.edit, **{cls.fields[0]: f"{folder}/hello.py", old: "'hello'", new: "'hello world'"})
        return answering(
            ["I create it.\n" + cls.writing(folder, "hello.py"), edit, cls.running("python3 hello.py"), FINAL],
            cls.write,
        )

    @classmethod
    def writing(cls, folder, name):
        """The call that writes a file."""
        return calling(cls.write, **{cls.fields[0]: f"{folder}/{name}", "content": FIRST})

    @classmethod
    def running(cls, command):
        """The call that runs a command."""
        return calling(cls.shell, command=command)


class Team:
    """An agent with reasoning, two calls at once, a second agent, which changes the file and runs it, and ten calls in
    a row."""

    conversations = (2, 10)

    @classmethod
    def rule(cls, folder):
        """See `FileToolsAgent`."""
        first = thinking(
            "Two files.", "I create them.", *[cls.writing(folder, name) for name in ("hello.py", "first.py")]
        )
        second = calling(cls.second, description="Change it", prompt=SUBTASK, **cls.second_options)
        checks = [thinking("Once more.", cls.running(command)) for command in CHECKS]
        lines = [first, "", second, *checks, thinking("Done.", FINAL)]
        own = [thinking("One command.", cls.running(SHELL)), FINAL]

        def answer(prompt):
            is_second = SUBTASK in prompt and f'"prompt": "{SUBTASK}"' not in prompt
            return answering(own if is_second else lines, cls.write)(prompt)

        return answer


class Programs:
    """Programs of agents, each package installed once; the one before is removed, because each has 350 MB."""

    def __init__(self, folder):
        self.folder, self.refused = folder, ""

    def of(self, agent):
        """The program of an agent; skips the test, and all further ones, where npm cannot install it."""
        place = self.folder / agent.program
        program = place / "node_modules" / ".bin" / agent.program
        if not self.refused and not program.exists():
            shutil.rmtree(self.folder)
            place.mkdir(parents=True)
            self.refused = install(place, f"{agent.package}@{agent.version}", *agent.beside)
        if self.refused:
            pytest.skip(self.refused)
        return program


async def run_program(agent, program, session, folder, home):
    """Run an agent on the task; returns its exit status and what it printed."""
    command, environment = agent.command(str(program), session)
    path = f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"HOME": str(home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8"}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=own | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, printed.decode(errors="replace")
