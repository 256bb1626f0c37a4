"""Starts an SGLang server whose adapters can be unloaded after requests were aborted.

Run as a program by the interpreter of the server's environment; nothing of this project is imported. SGLang 0.5.20
counts the requests of each adapter and unloads it when there are none left, but does not count down for a request that
is aborted while it waits in the queue: unloading its adapter then never ends, and neither does loading the next.
Versions that count down themselves are left as they are.
"""

import asyncio
import functools
import inspect
import sys
from typing import Any

COUNTED_DOWN = (500, 503)
"""Statuses of aborts for which SGLang counts down elsewhere."""


def mend() -> None:
    """Count down for requests that are aborted in the queue."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    handle = TokenizerManager._handle_abort_req
    if "lora_registry" in inspect.getsource(handle):
        return

    @functools.wraps(handle)
    def handle_and_release(self: Any, aborted: Any) -> None:
        state = self.rid_to_state.get(aborted.rid)
        handle(self, aborted)
        ended = state is not None and aborted.rid not in self.rid_to_state
        if (
            ended
            and self.enable_lora
            and state.obj.lora_path
            and (aborted.finished_reason or {}).get("status_code") not in COUNTED_DOWN
        ):
            asyncio.get_running_loop().create_task(self.lora_registry.release(state.obj.lora_id))

    TokenizerManager._handle_abort_req = handle_and_release


if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    mend()
    run_server(prepare_server_args(sys.argv[1:]))
