"""Repairs a small repository with Codex CLI, an unmodified program from npm; the repository's test is the reward.

Each episode has its own folder with the repository and the program's home. Codex runs the model's commands in its own
sandbox, which lets them write in the repository only; the reward runs the repaired program in the sandbox of this
package, against the task's own statements, which the model cannot change.
"""

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from areal_actors.sandbox import Limits, run_program
from areal_actors.tasks.repositories import rows

CODEX = ".environments/codex/node_modules/.bin/codex"
INSTRUCTIONS = "Fix the program so that its test passes."
TRAINING_REPOSITORIES, HELD_OUT_REPOSITORIES = 5000, 200
SANDBOX_SECONDS = 60
CUT = "Incomplete response returned, reason: max_output_tokens"
"""The program's error when an answer reaches `sampling.max_tokens`: the model's doing, so the repository is tested as
it is."""
REWARD_LIMITS = Limits(seconds=5.0)
SETTINGS = """
model                      = "default"
model_provider             = "areal"
model_instructions_file    = {instructions}
approval_policy            = "never"
sandbox_mode               = "workspace-write"
web_search                 = "disabled"
allow_login_shell          = false
check_for_update_on_startup = false
include_environment_context = false
include_permissions_instructions = false

[model_providers.areal]
name                   = "areal"
base_url               = {base_url}
env_key                = "OPENAI_API_KEY"
wire_api               = "responses"
request_max_retries    = 0
stream_max_retries     = 0

[sandbox_workspace_write]
exclude_slash_tmp           = true
exclude_tmpdir_env_var      = true

[shell_environment_policy]
inherit = "core"
set     = {{ PYTHONDONTWRITEBYTECODE = "1" }}

[analytics]
enabled = false

[skills]
include_instructions = false
bundled.enabled      = false

[tools]
experimental_request_user_input.enabled = false

[features]
goals          = false
multi_agent    = false
shell_snapshot = false
unbounded_connection_retries = false
view_image     = false
"""
"""Codex with one shell tool, a prompt of one sentence, and nothing that asks a person or calls another service."""


class CodingAgent:
    """Starts the program once for each episode."""

    def __init__(self, program: str = CODEX, seconds: float = 100.0) -> None:
        """Check that the program, and its sandbox, can be started; an episode fails after `seconds`."""
        self._seconds = seconds
        self._program = str(Path(program).expanduser().absolute()) if os.sep in program else program
        try_program(self._program)

    async def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> str:
        """Let the program repair the repository.

        Returns the repaired file and the commands that the model ran, as JSON.
        """
        with tempfile.TemporaryDirectory(prefix="areal-repository-") as folder:
            home, repository = unpack(task, Path(folder))
            write_settings(home, base_url)
            commands = await self._commands(task["question"], repository, home, api_key)
            return json.dumps({"program": content_of(repository / task["file"]), "commands": commands})

    async def _commands(self, question: str, repository: Path, home: Path, api_key: str) -> list[str]:
        """Run the program to its end; returns the commands that the model ran."""
        own = {"HOME": str(home), "CODEX_HOME": str(home), "OPENAI_API_KEY": api_key}
        arguments = ("exec", "--skip-git-repo-check", "--ephemeral", "--json", question)
        process = await asyncio.create_subprocess_exec(
            self._program,
            *arguments,
            cwd=repository,
            env=os.environ | own,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._seconds):
                printed, errors = await process.communicate()
        except TimeoutError as error:
            raise TimeoutError(f"{self._program} did not end within {self._seconds:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        events = [json.loads(line) for line in printed.splitlines()]
        failures = [event["error"]["message"] for event in events if event["type"] == "turn.failed"]
        if (process.returncode or failures) and failures != [CUT]:
            reason = "; ".join(failures) or errors.decode(errors="replace")[-500:]
            raise RuntimeError(f"{self._program} ended with status {process.returncode}: {reason}")
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        return [item["command"] for item in items if item["type"] == "command_execution"]


def try_program(program: str) -> None:
    """Run an empty command in the program's sandbox.

    Raises:
        RuntimeError: it is not installed, or has no sandbox here; the message has the remedy.
    """
    try:
        tried = subprocess.run(
            [program, "sandbox", "true"], capture_output=True, text=True, timeout=SANDBOX_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "install Node.js 18 or later with npm, and run `just environments codex`"
        raise RuntimeError(
            f"{remedy}; Codex CLI cannot be started as {program} ({getattr(error, 'strerror', None) or error})"
        ) from error
    if tried.returncode:
        raise RuntimeError(
            f"Codex CLI ({program}) cannot create its sandbox on this machine: {tried.stderr.strip()[-500:]}"
        )


def unpack(task: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Create a home for the program and write the repository; returns both folders."""
    home, repository = folder / "home", folder / "repository"
    home.mkdir()
    repository.mkdir()
    for name, content in task["files"].items():
        (repository / name).write_text(content)
    return home, repository


def write_settings(home: Path, base_url: str) -> None:
    """Write the program's settings and instructions into its home."""
    instructions = home / "instructions.md"
    instructions.write_text(INSTRUCTIONS)
    settings = SETTINGS.format(instructions=json.dumps(str(instructions)), base_url=json.dumps(base_url))
    (home / "config.toml").write_text(settings)


def content_of(file: Path) -> str:
    """The text of a file, empty if there is none."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def reward(task: Mapping[str, Any], output: str) -> dict[str, float]:
    """1 if the repaired program passes the task's tests, else 0; and what the model did.

    Commands, and whether it read and tested.

    Raises:
        SandboxError: no sandbox can be created here.
    """
    episode = json.loads(output)
    commands = episode["commands"]
    return {
        "reward": float(run_program(episode["program"], checks=task["tests"], limits=REWARD_LIMITS).proved),
        "commands": float(len(commands)),
        "read": float(any("cat " in command for command in commands)),
        "tested": float(any("python3 test_" in command for command in commands)),
    }


def repositories() -> dict[str, list[dict[str, Any]]]:
    """The tasks to train on, and held-out ones."""
    return {"train": rows("train", TRAINING_REPOSITORIES, seed=0), "test": rows("test", HELD_OUT_REPOSITORIES, seed=0)}
