"""One server for several policies: the worker that owns it writes its address into a file, the others read it there.

The owner is an inference worker of the run whose agents call the policies: it starts the server, starts it again, and
ends it. Workers of the other policies load their adapters beside its own. After each start the server has another
address and no adapters, so an engine keeps the address that it found first: requests at a server that is gone fail, and
the next engine looks the address up again.
"""

from __future__ import annotations

import filecmp
from pathlib import Path

import msgspec
import psutil

from areal_actors.core.durable_files import PRIVATE_MODE, atomic_write
from areal_actors.core.errors import EngineUnavailable, SetupError
from areal_actors.generation.servers.server_process import OK, ServerClient, message_of

MODEL_SUFFIXES = (".json", ".safetensors")
MODELS_SECONDS = 60.0
"""Time limit of a server for the list of its adapters."""


class ServerFile(msgspec.Struct, frozen=True):
    """Content of the file with a server's address."""

    url: str
    model: str
    """Folder of the model that it was started with."""
    pid: int
    """Process id of the server's guard, which lives as long as the server."""
    began: float
    """Start of that process, in seconds since 1970: process ids are used again."""


def write_address(file: Path, url: str, model: str, pid: int) -> None:
    """Publish the address of a server that this process has just started."""
    file.parent.mkdir(exist_ok=True)
    content = ServerFile(url, str(Path(model).resolve()), pid, _start_of(pid))
    atomic_write(file, msgspec.json.encode(content), mode=PRIVATE_MODE)


class SharedServerClient(ServerClient):
    """Requests to a server that another run's worker owns."""

    def __init__(self, name: str, file: Path, model: str) -> None:
        """`file` has its address, once it has been started; `model` is the folder that it must have loaded."""
        super().__init__(name, f"the address in {file}")
        self._file = file
        self._model = self._same_model = str(Path(model).resolve())
        """Folder of the model, and the one in which the server has it."""

    def find_address(self) -> None:
        """Look the address up in the file.

        Raises:
            EngineUnavailable: the owner has not started the server, or not again.
            SetupError: the server has another model.
        """
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=ServerFile)
        except (OSError, msgspec.DecodeError) as error:
            raise EngineUnavailable(f"{self.name} has not been started: {error}") from error
        if _start_of(found.pid) != found.began:
            raise EngineUnavailable(f"{self.name} at {found.url} has ended, and has not been started again")
        if found.model != self._same_model:
            self._refuse_other_model(found)
        self.url = found.url

    def has_copy(self, model: str) -> bool:
        """Returns True if the server was started with this model folder; as far as its address has been found."""
        return str(Path(model).resolve()) == self._same_model

    def _refuse_other_model(self, found: ServerFile) -> None:
        """Raises SetupError if the server's model differs from that of this policy, which may be a copy of it."""
        own = Path(self._model)
        names = sorted(file.name for file in own.iterdir() if file.suffix in MODEL_SUFFIXES)
        if any(not _is_equal(own / name, Path(found.model, name)) for name in names):
            fault = f"{self.name} at {found.url} has the model {found.model}, which differs from {own}"
            raise SetupError(f'{fault}: give the policy the model of the run, or write engine = "own"')
        self._same_model = found.model


async def adapters_at(server: ServerClient, prefix: str) -> list[str]:
    """Returns the names of a server's adapters that begin with `prefix`.

    Raises:
        EngineUnavailable: it is gone, or does not answer.
    """
    status, answer = await server.get("/v1/models", seconds=MODELS_SECONDS)
    if status != OK:
        raise EngineUnavailable(f"{server.name} at {server.url} lists no adapters ({status}): {message_of(answer)}")
    return [model["id"] for model in answer["data"] if model["id"].startswith(prefix)]


def _is_equal(file: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(file, other, shallow=False)


def _start_of(pid: int) -> float:
    """Returns the time at which a process of this machine was started; 0 if it has ended."""
    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return 0.0
