"""Starts an SGLang server that reports the checksum of weights which it receives over a process group or as tensors.

Run as a program by the interpreter of the server's environment; nothing of this project is imported. SGLang 0.5.20
answers such orders without what arrived, ends when tensors have wrong shapes, and waits 30 minutes for a sender that is
gone. Here each is an answer.
"""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

REPORT = " areal_weights="
"""Before the report in the answer's message."""
SECONDS = "AREAL_WEIGHTS_SECONDS"
"""Environment variable with the time limit of a process group; absent if weights come from folders only."""


def receive() -> None:
    """Report and verify weights, if any are sent.

    The processes of the scheduler, which import the main module again, do so.
    """
    if SECONDS not in os.environ:
        return
    from sglang.srt.model_executor.model_runner_components import weight_updater

    seconds = timedelta(seconds=float(os.environ[SECONDS]))
    weight_updater.init_custom_process_group = functools.partial(
        weight_updater.init_custom_process_group, timeout=seconds
    )
    updater = weight_updater.WeightUpdater
    for name in ("update_weights_from_distributed", "update_weights_from_tensor"):
        setattr(updater, name, _reporting(getattr(updater, name)))


class _Loading:
    """A model whose `load_weights` passes through `ReceivedWeights`."""

    def __init__(self, model: Any) -> None:
        from areal_weights import ReceivedWeights

        if not hasattr(model, "areal_received"):
            model.areal_received = ReceivedWeights()
        self.model, self.received = model, model.areal_received

    def load_weights(self, weights: Any) -> None:
        if loaded := self.received.take(list(weights)):
            self.model.load_weights(loaded)


def _reporting(update: Callable[..., tuple[bool, str]]) -> Callable[..., tuple[bool, str]]:
    @functools.wraps(update)
    def update_and_report(self: Any, *args: Any, **named: Any) -> tuple[bool, str]:
        loading = _Loading(self.get_model())
        try:
            success, message = update(dataclasses.replace(self, get_model=lambda: loading), *args, **named)
        except Exception as error:  # noqa: BLE001 - the scheduler ends with any exception
            return False, f"{type(error).__name__}: {error}"
        return success, f"{message}{REPORT}{json.dumps(loading.received.report)}" if success else message

    return update_and_report


if __name__ == "__mp_main__":
    receive()

if __name__ == "__main__":
    import sglang_adapters
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    sglang_adapters.mend()
    run_server(prepare_server_args(sys.argv[1:]))
