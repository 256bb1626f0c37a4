"""Serves an OpenEnv environment on this machine; runs in the environment's own interpreter.

As a program, `openenv_server.py FOLDER MODULE:APP`, it imports the environment's own application, prints one line with
{"port"} or {"error"} as JSON, and serves until its standard input ends, which it does with the process that started it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
MANIFEST = "openenv.yaml"
"""File of an environment's folder that names its application."""


class OpenEnvServer:
    """A server process of an environment, for the process that plays it."""

    def __init__(self, environment: str) -> None:
        """Start the server of `environment`: a folder with an openenv.yaml, or `PATH.py:APP`.

        Raises:
            FileNotFoundError: there is no such file or folder.
            RuntimeError: the server did not start; the text has the reason.
        """
        folder, application = find_application(environment)
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(folder), application],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"it ended with exit status {self.process.wait()}"}
        if "error" in answer:
            self.close()
            raise RuntimeError(f"the server of {environment} did not start: {answer['error']}")
        self.url = f"http://{LOOPBACK}:{answer['port']}"

    def close(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.communicate()


def find_application(environment: str) -> tuple[Path, str]:
    """Return the folder from which the application is imported, and `MODULE:APP`.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: the openenv.yaml of the folder names no application.
    """
    path, is_file, name = environment.rpartition(".py:")
    if is_file:
        file = Path(f"{path}.py").resolve(strict=True)
        return file.parent, f"{file.stem}:{name}"
    folder = Path(environment).resolve(strict=True)
    import yaml  # noqa: PLC0415 - only the folders of packages have YAML

    application = (yaml.safe_load((folder / MANIFEST).read_text(encoding="utf-8")) or {}).get("app")
    if not application:
        raise ValueError(f"{folder / MANIFEST} has no `app`; write `app: MODULE:APP`")
    return folder, str(application)


def _serve(folder: str, application: str) -> None:
    """Serve an application until standard input ends."""
    printed = os.fdopen(os.dup(1), "w", encoding="utf-8")  # the application prints to standard error
    os.dup2(2, 1)
    answer: dict[str, Any] = {}
    try:
        import uvicorn  # noqa: PLC0415 - the process that plays needs no server
        from uvicorn.importer import import_from_string  # noqa: PLC0415

        sys.path.insert(0, folder)
        config = uvicorn.Config(import_from_string(application), log_level="warning")
        config.load()
        listening = socket.create_server((LOOPBACK, 0))
        answer["port"] = listening.getsockname()[1]
    except BaseException as error:  # noqa: BLE001 - the environment is the user's code and may raise anything
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), file=printed, flush=True)
    if "error" in answer:
        sys.exit(1)
    threading.Thread(target=_end_with_input, daemon=True).start()
    uvicorn.Server(config).run(sockets=[listening])


def _end_with_input() -> None:
    """End this process when the one that started it closes its standard input, or is killed."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
