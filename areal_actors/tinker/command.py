"""`areal-actors serve tinker`: starts the server in an interpreter that loads torch, in place of this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.module_command import module_command
from areal_actors.embedded.settings import EMBEDDED

PORT = 8423
MODULE = "areal_actors.tinker.process"


class TinkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command."""

    model: str = EMBEDDED
    """`embedded`, a Hugging Face folder, or an id of the hub."""
    name: str = ""
    """Further name of the model, which clients may use."""
    host: str = "127.0.0.1"
    port: int = PORT
    """0 takes a free one."""
    state: str = "runs/tinker"
    """Folder of checkpoints and of the embedded model."""
    device: str = "auto"
    threads: int = 1
    """CPU threads of training, and of sampling."""


def serve(options: TinkerOptions) -> int:
    """Become the server, which ends with Ctrl-C.

    Raises:
        SetupError: the name cannot be that of a model.
    """
    if options.name and (Path(options.name).is_absolute() or ".." in Path(options.name).parts):
        raise SetupError(f"--name {options.name}: write a model's name, as in Qwen/Qwen3-8B")
    arguments = module_command(MODULE, msgspec.json.encode(options).decode())
    os.execv(sys.executable, arguments)  # noqa: S606 - this interpreter, with arguments written here
