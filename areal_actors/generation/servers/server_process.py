"""An inference server: its address, its process if it was started here, and requests to it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import structlog

from areal_actors.core.errors import EngineError, EngineUnavailable, RequestError, SetupError
from areal_actors.core.module_command import module_command
from areal_actors.core.programs import environment_command
from areal_actors.generation.settings import ServerSettings

SERVER_SIDE = Path(__file__).with_name("server_side")
"""Programs and modules that run in the interpreter of a server."""
KEEP_ALIVE_SECONDS = 3.0
"""Below the 5 s after which SGLang and vLLM close idle connections: a request on a closed one would be lost."""
IDLE_SECONDS = "3600"
"""The same for servers that are started here, so that a process that was paused does not use a closed one either."""
ADMIN_SECONDS = 60.0
"""Time limit of a request that samples nothing."""
TAIL_BYTES = 8192
TAIL_LINES = 12
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02
SIGNALLED = 128
"""The exit status of a program that a signal ended is above this."""
LINE_BYTES = 64 * 2**20
"""Longest line of a streamed answer: the whole of it, if the server does not stream differences."""

logger = structlog.get_logger(__name__)


class ServerProcess:
    """A server in a process tree of its own, which ends with this process; its output is a file."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start the command.

        Raises:
            SetupError: the interpreter or the log cannot be opened.
        """
        self.name, self.log, self.began = name, log, time.monotonic()
        guard = module_command("areal_actors.generation.servers.process_guard", *command)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                self._offset = output.tell()
                self._guard = subprocess.Popen(
                    guard,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,  # Ctrl-C goes to the run, which ends its servers in order
                )
        except OSError as error:
            raise SetupError(f"cannot start {name}: {error}") from error
        logger.info("started a server", server=name, command=" ".join(command), log=str(log), pid=self._guard.pid)

    @property
    def pid(self) -> int:
        """Process id of the server's guard, which lives as long as the server."""
        return self._guard.pid

    def describe_end(self) -> str:
        """Returns how the server ended, with the end of its output; empty while it runs."""
        status = self._poll()
        if status is None:
            return ""
        return (
            f"{self.name} ended with status {status} after {time.monotonic() - self.began:.0f} s; the end of"
            f" {self.log}:\n{self.tail()}"
        )

    def was_killed(self) -> bool:
        """True if the server was ended by a signal, such as the kernel's for lack of memory."""
        status = self._poll() or 0
        return status < 0 or status > SIGNALLED

    def _poll(self) -> int | None:
        """Returns the exit status, None while the server runs.

        A guard that was killed leaves processes of the server, which are killed.
        """
        earlier, status = self._guard.returncode, self._guard.poll()
        if earlier is None and status is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._guard.pid, signal.SIGKILL)
        return status

    def tail(self, lines: int = TAIL_LINES) -> str:
        """Returns the last lines of the server's output since it was started."""
        with suppress(OSError), self.log.open("rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(self._offset, size - TAIL_BYTES))
            text = output.read().decode(errors="replace")
            return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
        return ""

    def stop(self) -> None:
        """End the process tree; may be called twice."""
        assert self._guard.stdin is not None
        with suppress(OSError):
            self._guard.stdin.close()
        deadline = time.monotonic() + STOP_SECONDS
        while self._poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if self._guard.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()


class ServerClient:
    """Requests to one server. A server that does not answer is an `EngineUnavailable`."""

    def __init__(self, name: str, url: str, process: ServerProcess | None = None) -> None:
        self.name, self.url, self.process = name, url.rstrip("/"), process
        self._session: aiohttp.ClientSession | None = None

    def find_address(self) -> None:
        """Look up the address of a server with another owner; raises EngineUnavailable if there is none yet."""

    def has_copy(self, model: str) -> bool:  # noqa: ARG002 - only a server with another owner has
        """Returns True if the server was started with this model folder, of which that of the engine is a copy."""
        return False

    async def post(self, path: str, body: Mapping[str, Any], seconds: float | None = ADMIN_SECONDS) -> tuple[int, Any]:
        """Send JSON; returns status and decoded answer (its text, where that is not JSON).

        Raises:
            EngineUnavailable: no answer within `seconds`.
        """
        return await self._request("POST", path, body, seconds)

    async def get(self, path: str, seconds: float = ADMIN_SECONDS) -> tuple[int, Any]:
        """Returns status and decoded answer.

        Raises:
            EngineUnavailable: no answer within `seconds`.
        """
        return await self._request("GET", path, None, seconds)

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float | None
    ) -> tuple[int, Any]:
        try:
            timeout = aiohttp.ClientTimeout(total=seconds)
            async with self._http().request(
                method, self.url + path, data=_encode_body(body), headers=JSON, timeout=timeout
            ) as answer:
                return answer.status, _decode_content(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self.unavailable(error) from error

    async def lines(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield the decoded `data:` lines of a server-sent stream, without the last, `[DONE]`.

        Raises:
            EngineUnavailable: the connection broke.
            RequestError: the server refused the request.
            EngineError: the server failed.
        """
        try:
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._http().post(
                self.url + path, data=_encode_body(body), headers=JSON, timeout=timeout
            ) as answer:
                if answer.status != OK:
                    raise self.refusal_error(answer.status, _decode_content(await answer.read()))
                async for line in answer.content:
                    content = line.strip().removeprefix(b"data:").strip()
                    if content and content != b"[DONE]":
                        yield _decode_content(content)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self.unavailable(error) from error

    def refusal_error(self, status: int, answer: Any) -> EngineError | RequestError:
        """Returns the error for an answer with another status than 200."""
        text = message_of(answer)
        if status in REQUEST_STATUSES:
            return RequestError(f"{self.name}: {text}", "request")
        if status == UNAVAILABLE or ENGINE_DEAD in text:
            return EngineUnavailable(f"{self.name} at {self.url} answered {status}: {text}")
        return EngineError(f"{self.name} at {self.url} answered {status}: {text}")

    def unavailable(self, error: Exception) -> EngineUnavailable:
        """Returns the error for a request without an answer; names the end of the server's process, if it ended."""
        if self.process is not None and (ended := self.process.describe_end()):
            return EngineUnavailable(ended)
        return EngineUnavailable(f"{self.name} at {self.url} does not answer ({type(error).__name__}: {error})")

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=LINE_BYTES)
        return self._session

    async def close(self) -> None:
        """Close connections, and end the server's process if it was started here."""
        if self._session is not None:
            await self._session.close()
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)


OK, UNAVAILABLE = 200, 503
ENGINE_DEAD = "EngineCore encountered an issue"
"""Sentence of vLLM's server, with status 500, between the death of its engine's process and its own end."""
REQUEST_STATUSES = (400, 404, 413, 422)
JSON = {"Content-Type": "application/json"}


def _encode_body(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


def _decode_content(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content.decode(errors="replace")


def message_of(answer: Any) -> str:
    """Returns the sentence in an error's body, in the forms of SGLang, vLLM and FastAPI."""
    while isinstance(answer, dict) and (inner := answer.get("error") or answer.get("message") or answer.get("detail")):
        answer = inner
    return str(answer)


def interpreter(engine: str, settings: ServerSettings, root: Path) -> str:
    """Returns the interpreter that runs a server; see `ServerSettings.python`.

    Raises:
        SetupError: there is none; states the remedy.
    """
    key = "generation.server.python"
    if settings.python:
        path = root / Path(settings.python).expanduser()
        if not os.access(path, os.X_OK):
            raise SetupError(f"{key}: there is no program {path}; name a Python interpreter that has {engine}")
        return str(path)
    if importlib.util.find_spec(engine) is not None:
        return sys.executable
    path = root / ".environments" / engine / "bin" / "python"
    if not os.access(path, os.X_OK):
        raise SetupError(
            f'generation.engine = "{engine}": it is neither installed beside this program nor in {path.parent.parent};'
            f" run `{environment_command(engine)}`, name an interpreter that has it in {key}, or a running server in"
            " generation.server.urls"
        )
    return str(path)


def flags(values: Mapping[str, Any]) -> list[str]:
    """Returns settings as a command line: `true` is a flag without a value, `false` and None are left out."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
    return words
