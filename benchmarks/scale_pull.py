"""The HTTP pull of weights.

CPU time of the publisher's server for each gigabyte that it sends, over the loopback interface.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from areal_actors.core.objects import CODE, FOLDERS
from areal_actors.hosts.object_access import access_of
from areal_actors.hosts.object_server import ObjectServer

ACCESS = "benchmark"
PIECE = 1 << 22
NAME = "weights.safetensors"
PULLS = 4


def pull(port: int) -> None:
    """Receive the file, and drop it."""
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"{FOLDERS}{CODE}/{NAME}", headers={"Authorization": f"Bearer {ACCESS}"})
    answer, buffer = connection.getresponse(), bytearray(PIECE)
    while answer.readinto(buffer):
        pass


def measure(megabytes: int) -> dict[str, Any]:
    """Have several processes pull a file, one after the other."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / NAME
        path.write_bytes(os.urandom(1 << 20) * megabytes)
        server = ObjectServer("scale", Path(temporary), {NAME: path})
        server.access[ACCESS] = access_of("inference_worker")
        server.start("127.0.0.1", 0)
        began, before = time.perf_counter(), time.process_time()
        for _ in range(PULLS):
            process = multiprocessing.get_context("fork").Process(target=pull, args=(server.port,))
            process.start()
            process.join()
        gigabytes = PULLS * megabytes * 2**20 / 1e9
        cpu, seconds = time.process_time() - before, time.perf_counter() - began
    return {"pull_cpu_s_per_gb": round(cpu / gigabytes, 4), "pull_gb_per_second": round(gigabytes / seconds, 2)}
