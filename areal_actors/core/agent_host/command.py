"""A program in any language as an agent.

The task comes on standard input, the result is the last line of standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

from .faults import AgentFault, describe_exit

LONGEST_LINE = 16 * 2**20
"""Maximum size of the last line in bytes: a million escaped characters."""
LONGEST_VARIABLE = 100_000
"""Maximum size of an environment variable in bytes; the limit of Linux is 128 KiB."""
PATIENCE_SECONDS = 1.0
"""Wait for the rest of a program's output after its exit; its children may hold the pipe open."""

KINDS = {"output": (str,), "reward": (int, float), "rewards": (dict,)}
BESIDE = {"metrics": dict, "spans": list}
"""Fields beside a reward, or rewards."""
REMEDY = 'print {"output": "…"}, {"reward": 1.0}, {"rewards": {"<interaction id>": 1.0}} or null as the last line'


class CommandAgent:
    """Runs the program once per episode."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    # They are in the environment
    def run(self, task: dict[str, Any], *, base_url: str, api_key: str) -> Any:  # noqa: ARG002
        """The result that the program prints.

        Raises:
            AgentFault: it cannot be started, exits with a status other than 0, or prints something else.
        """
        text = json.dumps(task).encode()
        environment = dict(os.environ)
        if len(text) < LONGEST_VARIABLE:
            environment["AREAL_TASK"] = text.decode()
        with tempfile.TemporaryFile() as given:
            given.write(text)
            given.seek(0)
            try:
                process = subprocess.Popen(self.command, stdin=given, stdout=subprocess.PIPE, env=environment)
            except OSError as error:
                raise AgentFault(f"cannot be started: {error.strerror}: {self.command[0]}") from error
        assert process.stdout is not None
        last_line = _LastLine(process.stdout)
        status = process.wait()
        if status:
            raise AgentFault(describe_exit(status))
        return _result(last_line.text())


class _LastLine:
    """Reads a stream to its end, passes it on to standard output, and keeps its last line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream as stream:
            while chunk := os.read(stream.fileno(), 1 << 16):
                os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, chunk)
                self._kept += chunk
                if len(self._kept) > 2 * LONGEST_LINE:
                    del self._kept[:-LONGEST_LINE]

    def text(self) -> str:
        self._thread.join(PATIENCE_SECONDS)
        return bytes(self._kept).rstrip().rpartition(b"\n")[2].decode(errors="replace").strip()


def _result(line: str) -> Any:
    if not line:
        raise AgentFault(f"printed nothing; {REMEDY}")
    try:
        result = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AgentFault(f"printed `{line[:200]}`, which is not JSON; {REMEDY}") from error
    if not isinstance(result, dict):
        return result
    wanted = [key for key, kinds in KINDS.items() if isinstance(result.get(key), kinds)]
    if len(wanted) != 1 and result:
        raise AgentFault(f"printed `{line[:200]}`; {REMEDY}")
    beside = {key: result[key] for key, kind in BESIDE.items() if isinstance(result.get(key), kind)}
    if wanted and wanted[0] != "output" and beside:
        return {wanted[0]: result[wanted[0]], **beside}
    return result[wanted[0]] if wanted else None
