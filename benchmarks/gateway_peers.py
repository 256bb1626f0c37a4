"""Proxies of others for the benchmark `gateway.py`.

LiteLLM's and SGLang's router, before a server that answers immediately.
They need an interpreter of their own:

    uv venv .environments/peers
    uv pip install --python .environments/peers/bin/python -r benchmarks/environments/peers.txt

Both forward requests: neither has token ids, a tokenizer, sessions or a record.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from gateway_load import Endpoint
from gateway_system import REST_CORE, SERVER_CORE, pin, process_of
from history import ROOT

from areal_actors.core.free_ports import find_free_ports

PROGRAMS = ROOT / ".environments" / "peers" / "bin"
PEERS = ("litellm", "sglang-router") if (PROGRAMS / "litellm").is_file() else ()
START_SECONDS = 120.0
KEY = "sk-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"


class Peer:
    """A proxy in a process of its own."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self._port = port

    async def endpoints(self, count: int) -> list[Endpoint]:
        """Return the proxy's address `count` times."""
        return [Endpoint(host="127.0.0.1", port=self._port, path="/v1", key=KEY)] * count


@contextmanager
def peer(kind: str, model: Path) -> Iterator[Peer]:
    """Start a proxy on the servers' core, and the server that it forwards to on the other one.

    Raises:
        RuntimeError: it does not answer in time.
    """
    with (
        process_of("gateway_floor.py", "echo", str(model), "0", core=REST_CORE) as upstream,
        tempfile.TemporaryDirectory() as folder,
    ):
        assert upstream.stdout is not None
        command = _command(kind, int(upstream.stdout.readline()), port := find_free_ports(), Path(folder))
        variables = {**os.environ, "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        log = Path(folder) / "log.txt"
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=variables) as process,
        ):
            pin(SERVER_CORE, process.pid)
            try:
                _wait_until_ready(process, port, log)
                yield Peer(process.pid, port)
            finally:
                process.terminate()


def _command(kind: str, upstream: int, port: int, folder: Path) -> list[str]:
    address = f"http://127.0.0.1:{upstream}"
    if kind == "sglang-router":
        options = ["--worker-urls", address, "--prometheus-port", str(find_free_ports()), "--log-level", "error"]
        return [
            str(PROGRAMS / "python"),
            "-m",
            "sglang_router.launch_router",
            "--host=127.0.0.1",
            f"--port={port}",
            *options,
        ]
    model = {"model": "openai/default", "api_base": f"{address}/v1", "api_key": "none"}
    config = folder / "litellm.json"
    config.write_bytes(msgspec.json.encode({"model_list": [{"model_name": "default", "litellm_params": model}]}))
    return [str(PROGRAMS / "litellm"), f"--config={config}", "--host=127.0.0.1", f"--port={port}", "--telemetry=False"]


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait for an answer to a call: a router answers 503 until it knows its workers."""
    body = b'{"model":"default","messages":[{"role":"user","content":"hello"}]}'
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, headers)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(request, timeout=5),  # noqa: S310
        ):
            return
        time.sleep(0.2)
    raise RuntimeError(
        f"{process.args} did not answer within {START_SECONDS:g} s: {log.read_text(errors='replace')[-2000:]}"
    )
