"""Weights & Biases: offline in `wandb/` of the run's folder, unless WANDB_MODE or WANDB_API_KEY is set."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from areal_actors.track.sender import TrackedRun


class WandbRun:
    """Metrics over the axis `step`.

    Evaluations arrive later than steps that follow them, which W&B's own axis refuses. Offline, the library cannot
    return what it has: the last steps are in a file beside its own.
    """

    def __init__(self, run: TrackedRun) -> None:
        wandb = import_module("wandb")
        folder = Path(os.environ.get("WANDB_DIR", "") or run.folder)
        mode = os.environ.get("WANDB_MODE", "") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=run.project_name("WANDB_PROJECT"),
            name=run.name,
            id=run.id,
            resume="allow" if mode == "online" else None,
            dir=str(folder),
            config=run.config,
            mode=mode,
            settings=wandb.Settings(console="off", x_disable_stats=True),  # of this process, which is not the run
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self._memo = folder / "wandb" / f"sent-{run.id}.json"
        self.sent: dict[str, int] = json.loads(self._memo.read_text()) if self._memo.exists() else {}
        self.place = self._run.url if mode == "online" else self._run.settings.sync_dir

    def send(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._run.log({**metrics, "step": step, "_timestamp": time})

    def flush(self) -> None:
        """Note the last steps; the library writes in a process of its own."""
        partial = self._memo.with_suffix(".partial")
        partial.write_text(json.dumps(self.sent))
        partial.replace(self._memo)

    def finish(self, status: str, error: str) -> None:
        """End the run; W&B shows one that has not finished as failed."""
        self._run.summary.update({"status": status, "error": error} if status else {})
        self._run.finish(exit_code=0 if status in {"finished", ""} else 1)


open_run = WandbRun
