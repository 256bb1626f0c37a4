"""A real OpenSSH server on this machine, with keys of its own, for tests of other hosts."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

START_SECONDS = 10.0


@contextmanager
def ssh_server(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the host and the command `ssh` that reaches it; the test is skipped without OpenSSH's server."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("`apt-get install openssh-server`")
    for name in ("host", "client"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    (folder / "authorized").write_bytes((folder / "client.pub").read_bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lines = (
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"MaxStartups 200\nMaxSessions 200\nPidFile none\nSetEnv PATH={os.environ['PATH']}\n"
    )
    (folder / "config").write_text(lines)
    with suppress(PermissionError):
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "config")], stderr=subprocess.DEVNULL)
    options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")
    ssh = ("ssh", "-p", str(port), "-i", str(folder / "client"), "-o", "BatchMode=yes", *options)
    host = f"{getpass.getuser()}@127.0.0.1"
    try:
        until = time.monotonic() + START_SECONDS
        while subprocess.run([*ssh, host, "true"], check=False, capture_output=True).returncode:
            if server.poll() is not None or time.monotonic() > until:
                pytest.skip("OpenSSH's server does not start here")
            time.sleep(0.1)
        yield host, ssh
    finally:
        server.kill()
        server.wait()
