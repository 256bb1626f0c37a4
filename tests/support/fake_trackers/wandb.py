"""Stands for W&B's library: writes what it is given, one JSON line each, to `fake-wandb.jsonl` in its folder.

FAKE_WANDB=hang never returns from the second call of `log`; FAKE_WANDB=raise fails there.
"""

import json
import os
import threading
from pathlib import Path


class Settings:
    def __init__(self, **settings):
        self.sync_dir = "fake"


class Run:
    def __init__(self, folder):
        self.file = Path(folder) / "fake-wandb.jsonl"
        self.settings = Settings()
        self.summary = {}
        self.calls = 0
        (self.file.parent / "wandb").mkdir(exist_ok=True)

    def write(self, **line):
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def define_metric(self, *_, **__):
        pass

    def log(self, metrics):
        self.calls += 1
        if self.calls > 1 and os.environ.get("FAKE_WANDB") == "hang":
            threading.Event().wait()
        if self.calls > 1 and os.environ.get("FAKE_WANDB") == "raise":
            raise ConnectionError("no route to the cloud")
        self.write(log=metrics)

    def finish(self, exit_code):
        self.write(finish=exit_code, summary=self.summary)


def init(**options):
    run = Run(options["dir"])
    run.write(init={name: options[name] for name in ("project", "name", "id", "config", "mode")}, pid=os.getpid())
    return run
