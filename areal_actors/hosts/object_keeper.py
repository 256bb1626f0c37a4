"""Starts the process that serves a run's files to remote workers, and replaces it when it dies.

It gets the workers' tokens from here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from areal_actors.core.durable_files import explain_os_error
from areal_actors.core.errors import SetupError
from areal_actors.core.module_command import module_command
from areal_actors.folder.run_folder import RunFolder
from areal_actors.hosts.object_process import NAME, Change, Grant, Listening, ServedObjects
from areal_actors.hosts.object_server import START_SECONDS
from areal_actors.supervision.supervisor import CREDENTIAL_VARIABLES, RESTART_SECONDS, reason_of_end
from areal_bus.tls import Certificate

ANSWER_SECONDS = 30.0
"""Time limit for the process to take a change, on a busy machine too."""
MAX_DEATHS, WINDOW_SECONDS = 5, 60.0
"""Deaths within this time after which the run ends."""

logger = structlog.get_logger(__name__)


class ObjectKeeper:
    """The server of a run's files, in a process of its own."""

    def __init__(self, run: str, folder: RunFolder, code: Mapping[str, Path], weights_folder: str = "") -> None:
        """`code`: files of the folder `code`, by their names in it; `weights_folder`: `trainer.weights_folder`."""
        self.folder = folder
        self.share = secrets.token_hex(8)
        """Identity, by which a host recognises that it has the weights' folder itself."""
        self.port = 0
        self._served = ServedObjects(
            run=run,
            folder=str(folder.path),
            code={name: str(path) for name, path in code.items()},
            weights_folder=weights_folder,
            share=self.share,
            host="",
            port=0,
        )
        self._grants: dict[str, Grant] = {}
        self._model = ""
        self._process: asyncio.subprocess.Process | None = None
        self._changing = asyncio.Lock()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)

    async def start(self, host: str, port: int, certificate: Certificate | None) -> None:
        """Listen on this address, encrypted with a certificate; 0: a free port, which a replaced process keeps.

        Raises:
            SetupError: the address cannot be used.
        """
        files = (str(certificate.certificate), str(certificate.key)) if certificate is not None else ("", "")
        self._served = msgspec.structs.replace(
            self._served, host=host, port=port, certificate=files[0], certificate_key=files[1]
        )
        async with self._changing:
            await self._spawn()

    async def watch(self) -> None:
        """Replace the process whenever it dies, until cancelled.

        Raises:
            SetupError: it died too often, or cannot be replaced.
        """
        while True:
            assert self._process is not None
            code = await self._process.wait()
            reason = reason_of_end(self.folder, NAME, code)
            logger.warning("the server of the run's files died and is replaced", reason=reason)
            now = time.monotonic()
            if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < WINDOW_SECONDS:
                limit = f"{MAX_DEATHS + 1} times within {WINDOW_SECONDS:g} s"
                raise SetupError(
                    f"the server of the run's files died {limit}: {reason}; see {self.folder.output_of(NAME)}"
                )
            self._deaths.append(now)
            await asyncio.sleep(RESTART_SECONDS)
            try:
                async with self._changing:
                    await self._spawn()
            except OSError as error:
                logger.warning("the server of the run's files cannot be started", reason=explain_os_error(error))

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def grant(self, grant: Grant) -> None:
        """Serve a worker; returns when it is served, or will be by the process that replaces one that died."""
        self._grants[grant.token] = grant
        await self._change(Change(grant=grant))

    async def revoke(self, token: str) -> None:
        """Serve a worker no longer."""
        self._grants.pop(token, None)
        await self._change(Change(revoke=token))

    async def publish_model(self, folder: Path) -> None:
        """Serve the model of this folder.

        The weights' folder may be shared with other processes of this host from now on.
        """
        if str(folder) != self._model:
            self._model = str(folder)
            await self._change(Change(model=str(folder)))

    async def _change(self, change: Change) -> None:
        async with self._changing:
            process = self._process
            if process is None or process.returncode is not None:
                return  # its successor starts with all changes
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(change) + b"\n")
            answer = b""
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await process.stdin.drain()
                    answer = await process.stdout.readline()
            if not answer:  # it has died, or is stuck: its successor starts with all changes
                with suppress(ProcessLookupError):
                    process.kill()

    async def _spawn(self) -> None:
        """Start the process with everything that it has to serve; its connections and files are its own."""
        environment = {name: value for name, value in os.environ.items() if name not in CREDENTIAL_VARIABLES}
        with self.folder.output_of(NAME).open("ab") as output:
            process = self._process = await asyncio.create_subprocess_exec(
                *module_command("areal_actors.hosts.object_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env=environment,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        served = msgspec.structs.replace(
            self._served, port=self.port or self._served.port, grants=tuple(self._grants.values())
        )
        process.stdin.write(msgspec.json.encode(msgspec.structs.replace(served, model=self._model)) + b"\n")
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            process.kill()
            line = b""
        listening = msgspec.json.decode(line, type=Listening) if line else Listening()
        if listening.problem:
            raise SetupError(listening.problem)
        if not line and not self.port:
            raise SetupError(f"the server of the run's files did not start; see {self.folder.output_of(NAME)}")
        self.port = self.port or listening.port
