"""`areal-actors serve` as a process whose parts are killed, and started again when all of it is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
from support.live_run import PATIENT, ROOT

from areal_actors.core.free_ports import find_free_ports

SMALL = ("profile=embedded", "warm_start.steps=40", "warm_start.tail_steps=10")
"""A model that is made in seconds."""
KINDS = ("gateway", "inference_worker", "nats-server")
"""Processes that are killed by themselves."""


class ServedRun:
    """A served model on one port."""

    def __init__(self, folder, *words, run="talks", recipe="recipes/online.toml"):
        self.folder, self.port = folder, find_free_ports(1, "127.0.0.1")
        self.words = ["serve", recipe, f"folder={folder}", f"gateway.port={self.port}", f"run={run}", *SMALL, *words]
        self.place = folder / f"{run}-serve"
        self.output = (folder / "output.txt").open("ab")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "areal_actors", *self.words],
            cwd=ROOT,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.until_ready()

    def until_ready(self):
        end = time.monotonic() + PATIENT
        while self.post("/rl/start_session", {"task_id": "ready"}, self.key("admin_key"))[0] != 200:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.2)

    def text(self):
        return (self.folder / "output.txt").read_text()

    def key(self, name):
        path = self.place / name
        return path.read_text() if path.is_file() else ""

    def post(self, path, body, key):
        """Status and answer; 0 if nothing answers."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, {}
        except OSError:
            return 0, {}

    def kill(self, randomness):
        """Kill the gateway, an engine or the nats-server, or everything; returns which."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        by_kind = {kind: [child for child in children if is_of_kind(child, kind)] for kind in KINDS}
        kind = randomness.choice([*(kind for kind in KINDS if by_kind[kind]), "all"])
        if kind != "all":
            randomness.choice(by_kind[kind]).send_signal(signal.SIGKILL)
            return kind
        for process in (psutil.Process(self.process.pid), *children):
            process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start()
        return kind

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENT)
        finally:
            self.output.close()
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def is_of_kind(process, kind):
    """True for a process of the run that is named so, or numbered; its name is its last argument."""
    words = process.cmdline()
    return bool(words) and (kind in words[0] or words[-1] == kind or words[-1].startswith(f"{kind}-"))
