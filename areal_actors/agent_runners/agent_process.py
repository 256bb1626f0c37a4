"""A process that serves an agent's episodes, seen from outside: started, asked, listened to, killed with all it started."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from areal_actors.agent_host.faults import describe_exit
from areal_actors.agent_host.processes import kill_tree
from areal_actors.config import Config, NonNegativeInt
from areal_actors.errors import AgentError, SetupError

BOOT = """
import importlib.util, sys
folder, descriptor = sys.argv[1:]
spec = importlib.util.spec_from_file_location("areal_agent_host", folder + "/__init__.py", submodule_search_locations=[folder])
package = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = package
spec.loader.exec_module(package)
from areal_agent_host.serving import main
sys.argv = [""]
main(int(descriptor))
"""
"""Loads the folder by its path, under a name of its own: none of its neighbours gets onto the child's module path."""
HOST = Path(__file__).parent.parent / "agent_host"
START_SECONDS = 300.0
END_SECONDS = 1.0
"""Between the closing of a child's socket and its end."""
KEPT_BYTES = 64 * 1024
SHOWN_LINES, SHOWN_CHARACTERS = 20, 2000


class AgentProgram(Config):
    """What an agent's processes run."""

    agent: str = ""
    """As `[task] agent` names it; empty when there is a command."""
    command: tuple[str, ...] = ()
    root: str
    """The folder that paths count from; the processes work there."""
    python: str = ""
    """The interpreter; empty for this one."""
    options: dict[str, Any] = {}
    memory_mb: NonNegativeInt = 0
    """What one process may allocate; 0 sets no limit."""

    def name(self) -> str:
        """How errors call it."""
        return self.agent or " ".join(self.command)


class AgentProcess:
    """One child with the agent loaded; `start` and then `run`, one episode at a time, until `kill`."""

    def __init__(self, program: AgentProgram) -> None:
        self.program = program
        self.episodes = 0
        self.retire_reason = ""
        """Why it should serve no more episodes; empty while it may."""
        self._output = bytearray()
        self._held = AsyncExitStack()

    async def start(self) -> None:
        """Start the child and wait until it has loaded the agent.

        Raises:
            SetupError: the interpreter cannot be started.
            AgentError: the agent cannot be loaded; the message says why.
        """
        try:
            await self._spawn()
            await self._loaded()
        except BaseException:
            await self.close()
            raise

    async def _spawn(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self._pipe, write_end = os.pipe()
        self._held.callback(ours.close)
        self._held.callback(os.close, self._pipe)
        os.set_blocking(self._pipe, False)
        command = [self.program.python or sys.executable, "-c", BOOT, str(HOST), str(theirs.fileno())]
        try:
            self._child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                cwd=self.program.root,
                env=_environment(own_python=not self.program.python),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise SetupError(f"task.python: cannot start {command[0]}: {error.strerror}; name a Python interpreter") from error
        finally:
            theirs.close()
            os.close(write_end)
        self._held.push_async_callback(self._child.wait)
        loop.add_reader(self._pipe, self._listen)
        self._held.callback(loop.remove_reader, self._pipe)
        self._held.callback(self.kill)
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._held.push_async_callback(_closed, self._writer)

    async def _loaded(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                reply = await self._ask(self._start_request())
        except TimeoutError as error:
            raise AgentError(f"agent {self.program.name()} was not loaded after {START_SECONDS:g} s{self.output_tail()}") from error
        if refused := reply.get("refused"):
            raise AgentError(refused)

    def _start_request(self) -> dict[str, Any]:
        program = self.program
        return {
            "agent": program.agent,
            "command": program.command,
            "options": program.options,
            "root": program.root,
            "memory_bytes": program.memory_mb * 2**20,
        }

    async def run(self, task: Mapping[str, Any], *, base_url: str, api_key: str, environment: Mapping[str, str]) -> Any:
        """What the agent returned, as JSON carries it. When this is cancelled, the process must be killed.

        Raises:
            AgentError: the agent failed, or its process ended.
        """
        self._listen()
        self._output.clear()
        self.episodes += 1
        reply = await self._ask({"task": task, "base_url": base_url, "api_key": api_key, "environment": environment})
        self.retire_reason = reply.get("left", "")
        if fault := reply.get("fault"):
            raise AgentError(f"agent {self.program.name()} {fault}{self.output_tail()}")
        return reply["returned"]

    async def _ask(self, request: Mapping[str, Any]) -> Any:
        try:
            body = json.dumps(request).encode()
        except (TypeError, ValueError) as error:
            raise AgentError(f"the task cannot be sent to agent {self.program.name()} as JSON: {error}") from error
        try:
            self._writer.write(len(body).to_bytes(4, "big") + body)
            await self._writer.drain()
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return json.loads(await self._reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError) as error:
            self.retire_reason = "its end"
            raise AgentError(f"agent {self.program.name()} {await self._end()}{self.output_tail()}") from error

    async def _end(self) -> str:
        try:
            return describe_exit(await asyncio.wait_for(self._child.wait(), END_SECONDS))
        except TimeoutError:
            return "closed the socket through which it is asked"

    def _listen(self) -> None:
        """Take what the child has printed and keep the end of it."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 1 << 16):
                self._output += chunk
                del self._output[:-KEPT_BYTES]
                if len(chunk) == 1 << 16:
                    return
            asyncio.get_running_loop().remove_reader(self._pipe)

    def output_tail(self) -> str:
        """The end of what it has printed during the episode, to be put behind an error; empty if it has printed nothing."""
        self._listen()
        lines = self._output.decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]
        text = "\n".join(lines)[-SHOWN_CHARACTERS:]
        return f"; it last printed:\n{text}" if text else ""

    def is_running(self) -> bool:
        """It has not ended by itself."""
        return self._child.returncode is None

    def kill(self) -> None:
        """End the process and everything it has started, at once."""
        if self._child.returncode is None:
            kill_tree(self._child.pid)

    async def close(self) -> None:
        """Kill it and wait until it is gone."""
        await self._held.aclose()


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _environment(*, own_python: bool) -> dict[str, str]:
    """The child's: without a token that would be preferred to the episode's key; another interpreter finds its own modules."""
    left_out = {"ANTHROPIC_AUTH_TOKEN"} | (set() if own_python else {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})
    return {name: value for name, value in os.environ.items() if name not in left_out}
