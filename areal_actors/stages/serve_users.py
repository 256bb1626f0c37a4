"""Serves a model to a program of users, until the program ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from areal_actors.core.free_ports import find_free_ports

READY_SECONDS = 1200.0
"""Time until the model is served; a model may be made or fetched first."""
END_SECONDS = 120.0


def serve_users(words: Sequence[str], place: Path, program: Sequence[str]) -> int:
    """Serve a recipe's model to a program; returns the first exit status that is not 0.

    Args:
        words: recipe and settings.
        place: folder of the served model.
        program: Python file and its words; it gets the gateway's address, admin key and feedback key before them.
    """
    port = find_free_ports(1, "127.0.0.1")
    address = f"http://127.0.0.1:{port}"
    serving = subprocess.Popen([sys.executable, "-m", "areal_actors", "serve", *words, f"gateway.port={port}"])
    try:
        if not _is_ready(serving, address):
            if serving.poll() is None:
                sys.stderr.write(f"the model was not served at {address} within {READY_SECONDS:g} s\n")
            return serving.poll() or 1
        file, *arguments = program
        keys = [(place / name).read_text(encoding="utf-8") for name in ("admin_key", "feedback_key")]
        code = subprocess.call([sys.executable, file, address, *keys, *arguments])
        return _end(serving) or code
    finally:
        if serving.poll() is None:
            _end(serving)


def _is_ready(serving: subprocess.Popen[bytes], address: str) -> bool:
    """Returns True once the gateway has capacity, False if it ended or did not become ready in time."""
    end = time.monotonic() + READY_SECONDS
    while serving.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):  # noqa: S310 - an address of this machine
                return True
        except OSError:
            time.sleep(0.2)
    return False


def _end(serving: subprocess.Popen[bytes]) -> int:
    """End the served model as Ctrl-C does; returns its exit status."""
    if serving.poll() is None:
        serving.send_signal(signal.SIGINT)
    try:
        return serving.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        serving.kill()
        return serving.wait()
