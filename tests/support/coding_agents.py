"""Coding agents before a gateway whose model follows a rule: their programs, unmodified, and their requests as recorded."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess

import pytest
from support.fake_engine import ScriptEngine
from support.framework_harness import ChatGatewayHarness, call
from support.gateway_harness import opened
from support.samples import work

from areal_actors.core.settings import GatewaySettings
from areal_actors.core.values import SamplingParams

CONTEXT = 1_000_000
"""The tokenizer of the tests is small: a prompt of 30 thousand tokens has several times as many here."""
INSTALL_SECONDS, RUN_SECONDS = 300, 240
TASK = "Create hello.py, which prints hello, change it to print hello world, run it, and report its output."
OUTPUT = "hello world"
FIRST, LAST = "print('hello')\n", "print('hello world')\n"
FINAL = f"It prints {OUTPUT}."
CHANGE = "sed -i s/hello/hello\\ world/ hello.py"
SHELL = f"{CHANGE} && python3 hello.py"
PATCH = """\
*** Begin Patch
*** Update File: hello.py
@@
-print('hello')
+print('hello world')
*** End Patch
"""


class RuleEngine(ScriptEngine):
    """Generates what the `rule` of the script answers to a prompt's text."""

    async def completion(self, prompt_ids, sampling, resumed):
        if not resumed:
            self.script.lines.append(self.script.rule(self.chat.decode(list(prompt_ids), skip_special=False)))
        return await super().completion(prompt_ids, sampling, resumed)


class CodingHarness(ChatGatewayHarness):
    """See `ChatGatewayHarness`; Codex CLI sends `store: false` with every call."""

    def __init__(self, rule):
        super().__init__(make_engine=RuleEngine)
        self.script.rule = rule
        self.manager.max_model_len = CONTEXT
        self.manager.config = GatewaySettings(store_false="train")
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


class ClaudeCode:
    """Claude Code, over Anthropic's messages."""

    name, package, version, program = "claude-code", "@anthropic-ai/claude-code", "2.1.197", "claude"
    parents = (-1, 0, 1, 2)
    tools = "Write,Edit,Bash"
    environment = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

    @staticmethod
    def rule(folder):
        """Two files tools, the shell, and the report; side calls have no tools."""
        file = f"{folder}/hello.py"
        lines = [
            "I create it.\n" + calling("Write", file_path=file, content=FIRST),
            calling("Edit", file_path=file, old_string="'hello'", new_string="'hello world'"),
            calling("Bash", command="python3 hello.py", description="Run the program"),
            FINAL,
        ]
        return lambda prompt: lines[results_in(prompt)] if '"name": "Write"' in prompt else "A greeting"

    @classmethod
    def command(cls, program, session):
        """Command line and environment."""
        tools = ("--permission-mode", "acceptEdits", "--allowedTools", cls.tools)
        given = {"ANTHROPIC_BASE_URL": session.base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": session.api_key}
        return [program, "-p", TASK, *tools], given | cls.environment


class ClaudeCodeTeam(ClaudeCode):
    """The same with thinking, two tool calls at once, and a second agent, which changes the file and runs it."""

    name = "claude-code-team"
    parents = (-1, 0, -1, 2, 1)
    """The second agent begins a conversation of its own."""
    tools = "Write,Bash,Agent"
    subtask = "Change hello.py to print hello world."

    @classmethod
    def rule(cls, folder):
        """See `ClaudeCode`."""
        writing = [calling("Write", file_path=f"{folder}/{name}", content=FIRST) for name in ("hello.py", "first.py")]
        second = calling("Agent", description="Change it", prompt=cls.subtask, subagent_type="general-purpose")
        lines = ["\n".join(["<think>\nTwo files.\n</think>\n\nI create them.", *writing]), "", second, FINAL]
        own = ["<think>\nOne command.\n</think>\n\n" + calling("Bash", command=SHELL, description="Change and run it"), FINAL]

        def answer(prompt):
            if '"name": "Write"' not in prompt:
                return "A greeting"
            is_second = cls.subtask in prompt and f'"prompt": "{cls.subtask}"' not in prompt
            return (own if is_second else lines)[results_in(prompt)]

        return answer


class Codex:
    """Codex CLI, over OpenAI's responses, with a model that it does not know: the shell edits files."""

    name, package, version, program = "codex", "@openai/codex", "0.169.0", "codex"
    model, tool = "areal", "exec_command"
    parents = (-1, 0, 1, 2)
    commands = (f'echo "{FIRST.strip()}" > hello.py', CHANGE, "python3 hello.py")

    @classmethod
    def rule(cls, folder):
        """The calls, one after the other, and the report; side calls have no tools."""
        lines = ["I create it.\n" + cls.calls(str(folder))[0], *cls.calls(str(folder))[1:], FINAL]
        return lambda prompt: lines[results_in(prompt)] if f'"name": "{cls.tool}"' in prompt else "A greeting"

    @classmethod
    def calls(cls, folder):
        """The tool calls."""
        return [calling("exec_command", cmd=command, workdir=folder) for command in cls.commands]

    @classmethod
    def command(cls, program, session):
        """Command line and environment."""
        provider = f'{{name="areal", base_url="{session.base_url}", env_key="OPENAI_API_KEY", wire_api="responses"}}'
        settings = (f"model={cls.model}", "model_provider=areal", f"model_providers.areal={provider}")
        how = ("--skip-git-repo-check", "--sandbox", "danger-full-access", *[word for one in settings for word in ("-c", one)])
        return [program, "exec", *how, TASK], {"OPENAI_API_KEY": session.api_key}


class CodexPatch(Codex):
    """The same with a model that it knows: a custom tool edits files."""

    name, model = "codex-patch", "gpt-5.5"

    @classmethod
    def calls(cls, folder):
        """See `Codex`."""
        first, _, last = super().calls(folder)
        return [first, calling("apply_patch", input=PATCH), last]


class CodexScript(Codex):
    """The same with a model of its default kind: a custom tool in a namespace takes scripts, which call the other tools."""

    name, model, tool = "codex-script", "gpt-6-sol", "functions__exec"

    @classmethod
    def calls(cls, folder):
        """See `Codex`."""
        return [calling("functions__exec", input=cls.script(command, folder)) for command in cls.commands]

    @staticmethod
    def script(command, folder):
        """A script that runs a command."""
        return f"const result = await tools.exec_command({json.dumps({'cmd': command, 'workdir': folder})});\ntext(result.output);\n"


AGENTS = (ClaudeCode, ClaudeCodeTeam, Codex, CodexPatch, CodexScript)


def installed(agent, folder):
    """The program of an agent, installed with npm into this folder."""
    if shutil.which("npm") is None:
        pytest.skip("this needs node and npm")
    program = folder / "node_modules" / ".bin" / agent.program
    if not program.exists():
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", f"{agent.package}@{agent.version}"]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=True)
        except subprocess.SubprocessError as error:
            pytest.skip(f"npm cannot install {agent.package}@{agent.version}: {str(getattr(error, 'stderr', ''))[-300:] or error}")
    return program


async def run_program(agent, program, session, folder, home):
    """Run an agent on the task; returns its exit status and what it printed."""
    command, environment = agent.command(str(program), session)
    own = {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb", "LANG": "C.UTF-8"}
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
