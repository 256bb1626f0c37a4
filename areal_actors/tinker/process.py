"""The process of `areal-actors serve tinker`: makes or finds the model, and serves it until Ctrl-C. Loads torch.

Started by `command.py` as `python -m areal_actors.tinker.process OPTIONS`, with the options as JSON.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, cast

import msgspec
import uvloop
from aiohttp import web

from areal_actors.core.durable_files import read_only, write_refusal
from areal_actors.core.errors import ArealError, SetupError
from areal_actors.core.private_folders import make_private
from areal_actors.embedded.kept_models import kept_model
from areal_actors.embedded.settings import EMBEDDED, WarmStart
from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.folder.run_lock import LockHeld, lock_file
from areal_actors.supervision.run_session import on_interrupt
from areal_actors.tinker.access import ANY_KEY, TinkerAccess
from areal_actors.tinker.checkpoints import TinkerCheckpoints
from areal_actors.tinker.command import TinkerOptions
from areal_actors.tinker.samplers import ModelSampler
from areal_actors.tinker.server import TinkerRoutes
from areal_actors.tinker.service import CHECKPOINTS, TinkerService
from areal_actors.weights.model_hub import model_folder

ENDED, FAILED = 0, 1
DEVICES = ("auto", "cpu", "cuda")
WARM_START = WarmStart(skills=("boxed",))
"""The embedded model's: it knows the cookbook's questions, besides bare ones."""
SHOWN_EVERY = 100
"""Supervised steps between two progress lines."""
LOCK, TEMPORARY = ".lock", ".temporary"
"""Files of the state folder: of the server that has it, and weights that it samples from and does not keep."""
BANNER = """\
serving {name} at {root}; checkpoints in {state}; Ctrl-C ends
in the shell of a client:

    export TINKER_BASE_URL={root} TINKER_API_KEY={key}
"""


def main(arguments: list[str]) -> int:
    """Serve until interrupted; returns the exit status."""
    log_to_terminal()
    options = msgspec.json.decode(arguments[0], type=TinkerOptions)
    state = Path(options.state).absolute()
    try:
        check_options(options, state)
        with listening_socket(options) as listening, held_state(state) as temporary:
            folder = find_model(options, state)
            if options.name:
                link_name(options.name, folder, state)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run_server(options, folder, state, temporary, listening))
    except ArealError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        return ENDED
    return ENDED


async def run_server(
    options: TinkerOptions, folder: str, state: Path, temporary: Path, listening: socket.socket
) -> None:
    """Serve the model of a folder until SIGINT or SIGTERM.

    Raises:
        SetupError: the embedded engine cannot run the model, or there is no such device.
    """
    interrupted = asyncio.Event()
    on_interrupt(interrupted, lambda name: sys.stderr.write(f"{name}: requests in progress are ended\n"))
    names = model_names(options, folder)
    device = cast(Literal["auto", "cpu", "cuda"], options.device)
    sampler = ModelSampler(folder, device, options.threads)
    service = TinkerService(names, folder, state, temporary, sampler, device, options.threads)
    sweep = asyncio.create_task(service.sessions.sweep())
    access = TinkerAccess(options.host)
    runner = TinkerRoutes(service, access).runner()
    try:
        await runner.setup()
        await web.SockSite(runner, listening).start()
        root = f"http://{options.host}:{listening.getsockname()[1]}"
        sys.stdout.write(BANNER.format(name=" or ".join(names), root=root, state=state, key=access.key or ANY_KEY))
        sys.stdout.flush()
        await interrupted.wait()
    finally:
        sweep.cancel()
        with suppress(asyncio.CancelledError):
            await sweep
        await service.close()
        await runner.cleanup()


def check_options(options: TinkerOptions, state: Path) -> None:
    """Check the options before anything starts.

    Raises:
        SetupError: names the option and the remedy.
    """
    if options.device not in DEVICES:
        raise SetupError(f"--device {options.device}: write {', '.join(DEVICES)}")
    if options.threads < 1:
        raise SetupError(f"--threads {options.threads}: write a positive number")
    link = state / options.name
    if options.name and link.exists() and not link.is_symlink():
        raise SetupError(
            f"--name {options.name}: {link} exists and is no link; choose another name, or another --state"
        )


@contextmanager
def held_state(state: Path) -> Iterator[Path]:
    """Lock the state folder, and remove what a killed server has left in it; yields a folder for temporary weights.

    Raises:
        SetupError: another server has this folder, or it cannot be written.
    """
    temporary = state / TEMPORARY
    try:
        if not state.exists():
            make_private(state)
        refusal = write_refusal(state)
    except OSError as error:
        refusal = str(error)
    if refusal:
        raise read_only(f"--state {state}", state, refusal, "start again, or set another --state")
    try:
        with lock_file(state / LOCK):
            shutil.rmtree(temporary, ignore_errors=True)
            TinkerCheckpoints(state / CHECKPOINTS).remove_unfinished()
            temporary.mkdir(mode=0o700)
            try:
                yield temporary
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except LockHeld as held:
        raise SetupError(
            f"--state {state}: another server has this folder (process {held.pid}); end it, or set --state"
        ) from held


def listening_socket(options: TinkerOptions) -> socket.socket:
    """Returns a socket on the port, so that a port that is taken is found before the model is made.

    Raises:
        SetupError: the port is taken, or there is no such address.
    """
    try:
        return socket.create_server((options.host, options.port))
    except (OSError, OverflowError) as error:
        raise SetupError(
            f"cannot listen on {options.host}:{options.port} ({error}); set --port, or 0 for a free one"
        ) from error


def find_model(options: TinkerOptions, state: Path) -> str:
    """Returns the Hugging Face folder of the model.

    The embedded one is made in the state folder if it is not there yet.

    Raises:
        SetupError: there is no such model.
    """
    if options.model != EMBEDDED:
        return model_folder(options.model)
    return kept_model(state / "models", WARM_START, 0, options.threads, _show)


def model_names(options: TinkerOptions, folder: str) -> tuple[str, ...]:
    """Names of the model, without repetitions: that of `--name`, that of `--model`, its folder."""
    named = [options.name, options.model, folder]
    return tuple(dict.fromkeys(name for name in named if name))


def link_name(name: str, folder: str, state: Path) -> None:
    """Make `STATE/NAME` a link to the model: programs in the state folder find its tokenizer by its name."""
    link = state / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder)


def _show(done: int, total: int, metrics: dict[str, float]) -> None:
    if done % SHOWN_EVERY == 0 or done == total:
        sys.stdout.write(f"making the embedded model: {done} of {total} steps, loss {metrics['loss']:.3f}\n")
        sys.stdout.flush()
