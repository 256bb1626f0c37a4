"""A process that has loaded the modules of a run's processes, and forks one for each request of the supervisor.

Loaded once instead of in each: a second of CPU time for a light process, several for one with torch. It has no
threads, event loop or connection of its own. The supervisor adopts what it forks: it is the nearest subreaper above
the process between them, which ends at once. So a process has the supervisor as its parent as if it had been started
by it, and outlives its fork server.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from areal_actors.core.module_command import load_module, module_command

SOCKET = 0
"""Descriptor of the connection to the supervisor: standard input, as for every process of a run."""
READY = b"ready"
"""First message: the modules are loaded."""
REQUEST_BYTES = 65_536
SENT = 2
"""Descriptors that are sent with a request: standard input, and the file of output and errors."""
SPARE = "-" * 8
"""An argument that is room for those of what is forked, which are written over it."""
FORK_SERVER = "fork_server"
"""Last argument, as the name of a process of a run is."""
EXIT_THREADS = 6
"""Exit status when a loaded module has started threads, which a fork would lose."""


class ForkRequest(msgspec.Struct):
    """Request for a process with these arguments."""

    arguments: list[str]


class ForkReply(msgspec.Struct):
    """The id of the new process, or the error number of a fork that failed."""

    pid: int = 0
    error: int = 0


def main(arguments: list[str]) -> object:
    """Load a module, and fork processes that call its `main` until the connection closes.

    Returns in each forked process what that `main` returns.
    """
    # uvloop leaves a duplicate of the connection, which forks would keep open
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    program = load_module(arguments[0])
    gc.freeze()
    gc.disable()  # a collection would write to pages that are shared with what was forked
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return EXIT_THREADS
    connection = socket.socket(fileno=os.dup(SOCKET))
    connection.send(READY)
    while True:
        body, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, SENT)
        if not body:
            return 0
        request = msgspec.msgpack.decode(body, type=ForkRequest)
        reply = fork_adopted() if len(descriptors) == SENT else ForkReply(error=errno.EMFILE)
        if reply is None:
            connection.close()
            _become(arguments[0], request.arguments, descriptors)
            return program.main(request.arguments)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(msgspec.msgpack.encode(reply))


def fork_adopted() -> ForkReply | None:
    """Fork a process whose parent is the nearest subreaper above this one; None in the new process."""
    try:
        reading, writing = os.pipe()
    except OSError as error:
        return ForkReply(error=error.errno or errno.EMFILE)
    try:
        between = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        return ForkReply(error=error.errno or errno.EAGAIN)
    if between:
        os.close(writing)
        body = os.read(reading, REQUEST_BYTES)
        os.close(reading)
        os.waitpid(between, 0)
        return msgspec.msgpack.decode(body, type=ForkReply)
    try:
        pid = os.fork()
    except OSError as error:
        os.write(writing, msgspec.msgpack.encode(ForkReply(error=error.errno or errno.EAGAIN)))
        os._exit(1)
    if pid:
        os.write(writing, msgspec.msgpack.encode(ForkReply(pid=pid)))
        os._exit(0)
    os.close(reading)
    os.close(writing)
    return None


def _become(module: str, arguments: list[str], descriptors: list[int]) -> None:
    """Take the place of a process that had been started by itself."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in zip((0, 1, 2), (descriptors[0], descriptors[1], descriptors[1]), strict=True):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    if "numpy" in sys.modules:  # Python's own generator is seeded after a fork
        load_module("numpy.random").seed()
    command = module_command(module, *arguments)
    sys.argv = command[2:]
    with suppress(OSError, ValueError, IndexError):
        _show_command(command)
    gc.enable()


def _show_command(command: list[str]) -> None:
    """Write a command line over that of this process, as `ps` shows it; the path of its file takes the spare room."""
    # The name in parentheses may have spaces; arg_start and arg_end are the 48th and 49th field.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    spare = end - begin - sum(len(os.fsencode(word)) + 1 for word in command)
    if spare < 0 or not begin:
        return
    file = Path(command[2])
    command[2] = f"{file.parent}{'/' * spare}/{file.name}"
    ctypes.memmove(begin, b"".join(os.fsencode(word) + b"\0" for word in command), end - begin)
