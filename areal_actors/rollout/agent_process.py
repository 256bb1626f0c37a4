"""A child process that serves an agent's episodes: started, sent requests, and killed with all its descendants."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from areal_actors.core.agent_host.faults import describe_exit
from areal_actors.core.agent_host.model_errors import NO_TRAITS, ErrorTraits, traits_of_output
from areal_actors.core.agent_host.processes import kill_tree
from areal_actors.core.config import Config, NonNegativeInt
from areal_actors.core.errors import AgentError, SetupError
from areal_actors.rollout.client_environment import client_environment

BOOT = """
import importlib, importlib.util, sys
folder, module, *arguments = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "areal_agent_host", folder + "/__init__.py", submodule_search_locations=[folder]
)
package = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = package
spec.loader.exec_module(package)
main = importlib.import_module("areal_agent_host." + module).main
sys.argv = [""]
main(*arguments)
"""
"""Loads the folder by its path, under a unique name: no sibling package gets onto the child's module path."""
HOST = Path(__file__).parent.parent / "core" / "agent_host"
START_SECONDS = 300.0
END_SECONDS = 1.0
"""Time limit for a child to exit after its socket has closed."""
KEPT_BYTES = 64 * 1024
SHOWN_LINES, SHOWN_CHARACTERS = 20, 2000


class AgentProgram(Config):
    """Program of an agent's processes."""

    agent: str = ""
    """Name as in `[task] agent`; empty if there is a command."""
    command: tuple[str, ...] = ()
    title: str = ""
    """Name in errors; empty for that of the agent or the command."""
    root: str
    """Working directory of the processes, and base of relative paths."""
    python: str = ""
    """Python interpreter; empty for the current one."""
    options: dict[str, Any] = {}
    memory_mb: NonNegativeInt = 0
    """Memory limit of one process; 0 for none."""
    model_errors: tuple[str, ...] = ()
    """Names of exceptions that the model brings about, as in `task.model_errors`."""

    def name(self) -> str:
        """The agent's name in errors."""
        return self.title or self.agent or " ".join(self.command)


class AgentProcess:
    """One child with the agent loaded; `start` and then `run`, one episode at a time, until `kill`."""

    def __init__(self, program: AgentProgram) -> None:
        self.program = program
        self.episodes = 0
        self.retire_reason = ""
        """Reason why it must be replaced; empty while it can serve episodes."""
        self._output = bytearray()
        self._resources = AsyncExitStack()

    async def start(self) -> None:
        """Start the child and wait until it has loaded the agent.

        Raises:
            SetupError: the interpreter cannot be started.
            AgentError: the agent cannot be loaded; the message has the reason.
        """
        try:
            await self._spawn()
            await self._await_loaded()
        except BaseException:
            await self.close()
            raise

    async def _spawn(self) -> None:
        ours, child_end = socket.socketpair()
        self._resources.callback(ours.close)
        command = [self.program.python or sys.executable, "-c", BOOT, str(HOST), "serving", str(child_end.fileno())]
        with child_end:
            await self._start_child(
                command,
                "task.python: name a Python interpreter",
                cwd=self.program.root,
                env=_environment(own_python=not self.program.python),
                pass_fds=[child_end.fileno()],
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._resources.push_async_callback(close_writer, self._writer)

    async def _start_child(self, command: Sequence[str], remedy: str, **options: Any) -> None:
        """Start a program whose output is kept.

        Raises:
            SetupError: it cannot be started; `remedy` names the setting, and what to do.
        """
        loop = asyncio.get_running_loop()
        self._pipe, write_end = os.pipe()
        self._resources.callback(os.close, self._pipe)
        os.set_blocking(self._pipe, False)
        try:
            self._child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
                **options,
            )
        except OSError as error:
            setting, _, action = remedy.partition(": ")
            raise SetupError(f"{setting}: cannot start {command[0]}: {error.strerror}; {action}") from error
        finally:
            os.close(write_end)
        self._resources.push_async_callback(self._child.wait)
        loop.add_reader(self._pipe, self._read_output)
        self._resources.callback(loop.remove_reader, self._pipe)
        self._resources.callback(self.kill)

    def data_limit_mb(self) -> int:
        """Returns the limit of the process's data segment in MiB; 0 for none."""
        return self.program.memory_mb

    def reach_gateway(self, base_url: str) -> str:
        """Returns the address under which the process reaches the gateway of its next episode."""
        return base_url

    async def _await_loaded(self) -> None:
        program = self.program
        request = {name: getattr(program, name) for name in ("agent", "command", "options", "root", "model_errors")}
        try:
            async with asyncio.timeout(START_SECONDS):
                reply = await self._ask(request | {"memory_bytes": self.data_limit_mb() * 2**20})
        except TimeoutError as error:
            raise AgentError(
                f"agent {program.name()} was not loaded within {START_SECONDS:g} s{self.output_tail()}"
            ) from error
        if refused := reply.get("refused"):
            raise AgentError(refused)

    async def run(self, task: Mapping[str, Any], *, base_url: str, api_key: str, environment: Mapping[str, str]) -> Any:
        """Run one episode; returns the agent's return value as JSON types.

        After a cancellation the process must be killed.

        Raises:
            AgentError: the agent failed, or its process ended.
        """
        self._read_output()
        self._output.clear()
        self.episodes += 1
        reply = await self._ask({"task": task, "base_url": base_url, "api_key": api_key, "environment": environment})
        self.retire_reason = reply.get("left", "")
        if fault := reply.get("fault"):
            output = self.output_tail()
            raise AgentError(f"agent {self.program.name()} {fault}{output}", self._traits(reply.get("traits"), output))
        return reply["returned"]

    def _traits(self, of_exception: list[Any] | None, output: str) -> ErrorTraits:
        """The cause of a failure as the agent's exception has it, or the last output of a program."""
        if of_exception is not None:
            return ErrorTraits(*of_exception)
        return traits_of_output(output, self.program.model_errors) if self.program.command else NO_TRAITS

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
            self.retire_reason = "it exited"
            raise AgentError(f"agent {self.program.name()} {await self._end()}{self.output_tail()}") from error

    async def _end(self) -> str:
        try:
            return describe_exit(await asyncio.wait_for(self._child.wait(), END_SECONDS))
        except TimeoutError:
            return "closed its control socket"

    def _read_output(self) -> None:
        """Read the child's output and keep its tail."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 1 << 16):
                self._output += chunk
                del self._output[:-KEPT_BYTES]
                if len(chunk) == 1 << 16:
                    return
            asyncio.get_running_loop().remove_reader(self._pipe)

    def output_tail(self) -> str:
        """The tail of the episode's output, as a suffix of an error; empty if there is no output."""
        self._read_output()
        lines = self._output.decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]
        text = "\n".join(lines)[-SHOWN_CHARACTERS:]
        return f"; it last printed:\n{text}" if text else ""

    def is_running(self) -> bool:
        """True if it has not exited; the event loop may not have noticed yet that it has."""
        if self._child.returncode is not None:
            return False
        try:
            return bool(psutil.Process(self._child.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> None:
        """Kill the process and all its descendants."""
        if self._child.returncode is None:
            kill_tree(self._child.pid)

    async def close(self) -> None:
        """Kill the process and wait for its exit."""
        await self._resources.aclose()


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whose other end may be gone."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _environment(*, own_python: bool) -> dict[str, str]:
    """The child's environment for clients.

    It has neither a token that would override its key, nor module paths of another interpreter.
    """
    left_out = {"ANTHROPIC_AUTH_TOKEN"} | (set() if own_python else {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return inherited | client_environment(inherited)
