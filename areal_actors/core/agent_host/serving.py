"""The child's side: loads the agent once, then runs it for one episode after the other, each in a clean environment.

The control socket carries frames: a length (4 bytes, big-endian) and JSON. The first is {"agent", "options", "command",
"root", "model_errors", "memory_bytes"}, answered by {} or {"refused"}. Then for each episode {"task", "base_url",
"api_key", "environment"}, answered by {"returned"} or {"fault", "traits"}, and {"left"} if something of the episode
still runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import os
import queue
import resource
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import thread as executors
from contextlib import suppress
from pathlib import Path
from typing import Any

from .agent_loader import Agent, address_arguments, load, make_agent, run_function
from .command import CommandAgent
from .faults import AgentFault, AgentLoadError, format_error
from .model_errors import traits_of
from .processes import adopt_orphans, children, kill_tree

TASK_SECONDS = 1.0
"""Time limit for an episode's cancelled tasks to end."""


def main(descriptor: int | str) -> None:
    """Serve until the control socket is closed; then kill this process's group."""
    adopt_orphans()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with socket.socket(fileno=int(descriptor)) as control:
        control.set_inheritable(False)
        threading.Thread(target=_receive, args=(control, requests), daemon=True).start()
        start = requests.get()
        try:
            host = Host(start)
        except AgentLoadError as error:
            _send(control, {"refused": str(error)})
            return
        _send(control, {})
        while True:
            reply = host.episode(requests.get())
            _flush()
            _send(control, reply)


class Host:
    """The agent, and this process's state before the first episode."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        if start["memory_bytes"]:
            resource.setrlimit(resource.RLIMIT_DATA, (start["memory_bytes"], start["memory_bytes"]))
        self.root = start["root"]
        self.model_errors = start["model_errors"]
        self.agent = _agent(start)
        self.loop = asyncio.new_event_loop()
        self.environment = dict(os.environ)
        self.threads = set(threading.enumerate())
        self.children = set(children(os.getpid()))

    def episode(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the agent once; whatever it raises is a fault."""
        os.environ.update(request["environment"])
        reply: dict[str, Any]
        try:
            reply = {"returned": contextvars.copy_context().run(self._run_agent, request)}
        except AgentFault as error:
            reply = {"fault": str(error)}
        except MemoryError as error:
            reply = {
                "fault": f"raised {format_error(error)}; raise task.memory_mb if it needs more",
                "left": "too little memory",
            }
        except BaseException as error:  # noqa: BLE001 - the agent is the user's code and may raise anything
            reply = {
                "fault": f"raised {format_error(error)}",
                "traits": traits_of(error, self.model_errors, Path(self.root)),
            }
        if left := self._clean() or self._still_running():
            reply["left"] = left
        return reply

    def _run_agent(self, request: Mapping[str, Any]) -> Any:
        address = address_arguments(self.agent, request["base_url"], request["api_key"])
        returned = self.agent(request["task"], **address)
        if inspect.isawaitable(returned):
            returned = self.loop.run_until_complete(_await_value(returned))
        return _plain(returned)

    def _clean(self) -> str:
        """Reset this process to its state before the first episode; returns the tasks that do not end."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        running = self._wait_for(tasks) if tasks else set()
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        os.chdir(self.root)
        return ", ".join(f"task {task.get_name()}" for task in running)

    def _wait_for(self, tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
        """Wait for cancelled tasks; returns those that do not end.

        One that raises `SystemExit` ends itself, not this process.
        """
        waiting = self.loop.create_task(asyncio.wait(tasks, timeout=TASK_SECONDS))
        while not waiting.done():
            with suppress(SystemExit, KeyboardInterrupt):  # asyncio re-raises these from the loop
                self.loop.run_until_complete(waiting)
        return waiting.result()[1]

    def _still_running(self) -> str:
        """Threads and processes that the episode left running, besides daemon and pool threads; empty if none."""
        pooled = set(executors._threads_queues)  # noqa: SLF001 - the only way to identify pool threads
        threads = [
            thread for thread in threading.enumerate() if not thread.daemon and thread not in self.threads | pooled
        ]
        started = set(children(os.getpid())) - self.children
        return ", ".join([f"thread {thread.name}" for thread in threads] + [f"process {pid}" for pid in started])


def _agent(start: Mapping[str, Any]) -> Agent:
    if start["command"]:
        return CommandAgent(start["command"]).run
    name, root = start["agent"], Path(start["root"])
    return run_function(make_agent(load(name, root), name, start["options"], environment=True), name, environment=True)


async def _await_value(returned: Any) -> Any:
    return await returned


def _plain(returned: Any) -> Any:
    """A return value as JSON types; the parent process interprets it."""
    if returned is None or isinstance(returned, str):
        return returned
    try:
        if isinstance(returned, Mapping):
            nested = any(isinstance(value, Mapping | list | tuple) for value in returned.values())
            read = _number_or_numbers if nested else _number
            return {str(key): list(value) if key == "spans" else read(value) for key, value in returned.items()}
        return _number(returned)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise AgentFault(
            f"returned {returned!r:.200}: a reward must be a real number; return one, text, numbers by id, or None"
        ) from error


def _number_or_numbers(value: Any) -> Any:
    return (
        {str(key): _number(number) for key, number in value.items()} if isinstance(value, Mapping) else _number(value)
    )


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(type(value).__name__)
    return float(value)


def _receive(control: socket.socket, requests: queue.SimpleQueue[Any]) -> None:
    """Queue incoming frames; kill this process tree once the parent closes the stream."""
    with control.makefile("rb") as stream:
        while len(header := stream.read(4)) == 4:
            requests.put(json.loads(stream.read(int.from_bytes(header, "big"))))
    kill_tree(os.getpid())
    os._exit(1)  # a container's first process is not ended by its own signals


def _send(control: socket.socket, reply: Mapping[str, Any]) -> None:
    body = json.dumps(reply).encode()
    control.sendall(len(body).to_bytes(4, "big") + body)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the agent may have replaced it
            stream.flush()
