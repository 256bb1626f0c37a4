"""Before a run: checks of the machine, removal of what killed runs have left, and a new, locked folder.

A killed run leaves weights in shared memory and bus credentials; the next command removes them. Only the locks decide
if a run is dead: files of a live run are never touched.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

from areal_actors.batching.assembler import group_filter
from areal_actors.core.command import COMMAND
from areal_actors.core.devices import CudaDevices, detect_cuda
from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import AgentError, SetupError
from areal_actors.core.programs import program
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.folder.certificate_files import named_certificate
from areal_actors.folder.run_folder import RunFolder
from areal_actors.folder.run_lock import LockHeld, holder, lock_file
from areal_actors.gateway.settings import NO_TEMPLATE
from areal_actors.gateway.template_settings import apply_template_settings
from areal_actors.generation.engines import describe_engine
from areal_actors.generation.servers.server_process import interpreter
from areal_actors.processes.fold_actors import open_tasks
from areal_actors.recipe.checks import RecipeProblem
from areal_actors.recipe.device_map import device_problems
from areal_actors.recipe.examples import check_examples
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.model_size import one_checkpoint_bytes, published_bytes
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL, describe_reward, resolve_reward
from areal_actors.rollout.agent_process import AgentProgram
from areal_actors.rollout.runners import program_of
from areal_actors.rollout.subprocess_runner import process_of
from areal_actors.run.judge_check import calibrate_judges
from areal_actors.run.reference_check import check_references
from areal_actors.supervision.disk_watch import refuse_full_disk
from areal_actors.supervision.process_limits import check_limits
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.training.checkpoint_store import folder_bytes
from areal_actors.weights.folders import (
    check_room,
    has_shared_room,
    lock_path,
    locked_folders,
    remove_all,
    shared_memory_path,
)
from areal_bus.errors import BusError, LogUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import find_binary, resolve_server

CUDA = "cuda"
MODEL_HUB = "areal_actors.weights.model_hub"
TOKENIZER = "tokenizer.json"
MODEL_FILES = {"weights (*.safetensors)": ("*.safetensors", "*.bin"), TOKENIZER: (TOKENIZER,)}
"""Files that a model's folder needs besides config.json."""
BUS_CHECK_SECONDS = 5.0
"""Time for an external bus server to answer."""


def check_devices(recipe: Recipe, cuda: CudaDevices | None = None) -> None:
    """Refuse a recipe that asks for CUDA devices that the machine lacks.

    `found` are its devices, detected here if None.

    Raises:
        SetupError: no CUDA device, or too few; the message names the setting.
    """
    cuda = cuda or detect_cuda()
    engine = describe_engine(recipe.generation.engine)
    named = {
        "trainer.device": (
            recipe.trainer.device if recipe.actors.trainer.count and not recipe.trainer.ranks_address else ""
        ),
        "generation.device": (recipe.generation.device if engine.loads_torch or engine.is_server else ""),
    }
    asking = [setting for setting, device in named.items() if device.startswith(CUDA)]
    if problems := [RecipeProblem(*problem).sentence("") for problem in device_problems(recipe, cuda)]:
        raise SetupError("; ".join(problems))
    if not asking or cuda.count:
        return
    devices = " and ".join(f'{setting} = "{named[setting]}"' for setting in asking)
    raise SetupError(f'{devices}: {cuda.reason}; write "cpu" or "auto", or start the run on a machine with one')


def check_inference_server(recipe: Recipe) -> None:
    """Check that an inference server can be started, if the recipe asks for one.

    Raises:
        SetupError: no interpreter has its package; states the remedy.
    """
    generation = recipe.generation
    if (
        describe_engine(generation.engine).is_server
        and not generation.server.urls
        and recipe.actors.inference_worker.count
    ):
        interpreter(generation.engine, generation.server, Path.cwd())


def check_agent(recipe: Recipe) -> None:
    """Load the agent in a process, if it has processes of its own: it may need programs that this machine lacks.

    Raises:
        SetupError: it cannot be loaded or created; the message has its reason.
    """
    task = recipe.task
    if not task.has_processes() or not task.agent or task.is_script():
        return
    try:
        asyncio.run(_load_agent(program_of(task, Path.cwd())))
    except AgentError as error:
        raise SetupError(f"task.agent: {error}") from error


async def _load_agent(program: AgentProgram) -> None:
    process = process_of(program)
    await process.start()
    await process.close()


def check_chat_template(recipe: Recipe) -> None:
    """Check that the model has a chat template, if agents call it, and that the gateway's settings fit the template.

    Of a model that is not on this machine only the presence of a template is checked.

    Raises:
        SetupError: there is none, or a setting does not fit it; states the remedy.
    """
    folder, gateway = Path(recipe.model).expanduser(), recipe.gateway
    if not recipe.actors.session_manager.count or recipe.model == EMBEDDED:
        return
    if not folder.is_dir():
        if not gateway.chat_template and not _model_hub().has_chat_template_on_hub(recipe.model):
            raise SetupError(_no_template(recipe.model, f"model get {recipe.model}", "FOLDER"))
    elif (folder / TOKENIZER).is_file():
        chat = ChatTokenizer.load(folder)
        apply_template_settings(chat, gateway)
        if not chat.template.source and gateway.chat_template != NO_TEMPLATE:
            raise SetupError(_no_template(recipe.model, "", shlex.quote(str(folder))))


def _no_template(model: str, fetch: str, folder: str) -> str:
    areal = program(COMMAND)
    command = f"`{areal} model template {folder}` writes one"
    write = f"`{areal} {fetch}` fetches it, then {command}" if fetch else command
    return (
        f"model {model} has no chat template, as base models have none, and agents send messages: {write}, "
        f'or set gateway.chat_template to the path of one; "{NO_TEMPLATE}" is for agents that send plain text'
        " (docs/bring-a-model.md)"
    )


def check_model(recipe: Recipe) -> None:
    """Check that the model's folder is whole, or that the hub has the model; nothing large is read or downloaded.

    Raises:
        SetupError: a file is missing, or the hub does not have the model, refuses it, or cannot be reached.
    """
    folder = Path(recipe.model).expanduser()
    if recipe.model == EMBEDDED:
        return
    if not folder.exists():
        _model_hub().check_on_hub(recipe.model)
        return
    if missing := [
        what for what, patterns in MODEL_FILES.items() if not any(any(folder.glob(pattern)) for pattern in patterns)
    ]:
        raise SetupError(
            f"model: {folder} has no {' and no '.join(missing)}; copy the missing files from where the model came from"
        )


def _model_hub() -> ModuleType:
    return importlib.import_module(MODEL_HUB)  # only where it is needed: importing it takes half a second


def check_folder(recipe: Recipe) -> None:
    """Check that the run's folder can be made in the recipe's place, on a disk with enough space.

    Raises:
        SetupError: a file is in the way, it cannot be written, or the disk is full.
    """
    folder = Path(recipe.folder).absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        reason = "cannot be written" if existing.is_dir() else "is a file"
        raise SetupError(
            f"folder: the run cannot be kept in {folder} ({existing} {reason}); set folder to one that can be written"
        )
    refuse_full_disk(recipe.disk, existing, one_checkpoint_bytes(recipe))


def check_bus_server(recipe: Recipe) -> None:
    """Check that the bus server of the recipe answers, or that there is one to start.

    Raises:
        SetupError: it does not, or there is none; states the remedy.
    """
    try:
        if url := resolve_server(recipe.bus.url or None):
            asyncio.run(_reach_bus(url, recipe.run, recipe.bus.replicas))
        elif recipe.bus.replicas > 1:
            raise SetupError(
                f"bus.replicas: found {recipe.bus.replicas} for a single server; name a cluster in bus.url, or set 1"
            )
        else:
            find_binary()
    except BusError as error:
        raise SetupError(f"bus.url: {error}" if recipe.bus.url else f"bus: {error}") from error


async def _reach_bus(url: str, run: str, replicas: int) -> None:
    bus = await NatsBus.connect(url, run, name="check", connect_timeout=BUS_CHECK_SECONDS)
    try:
        if replicas > 1:
            await bus.streams.check_replicas(replicas)
    except LogUnavailable as error:
        remedy = f"start {replicas} servers of one cluster with JetStream, or set bus.replicas to at most their number"
        raise SetupError(f"bus.replicas: {error}; {remedy} (docs/scaling.md)") from error
    finally:
        await bus.close()


def check_parts(recipe: Recipe) -> list[str]:
    """Check everything that can be missing before anything starts.

    That is devices, servers, model, data, reward, agent, filter and folder. Returns sentences about the reward and the
    references of the data.

    Raises:
        SetupError: something is missing; the message names the setting.
        ArealError: the error of the part itself, as a dataset's with its line.
    """
    check_limits()
    check_devices(recipe)
    check_inference_server(recipe)
    check_bus_server(recipe)
    named_certificate(recipe.bus)
    named_certificate(recipe.gateway)
    check_folder(recipe)
    check_model(recipe)
    check_chat_template(recipe)
    notices: list[str] = []
    if recipe.trainer.optimizer.lr == 0:
        notices.append("trainer.optimizer.lr = 0: nothing is learned; the run samples and scores only")
    if recipe.learns_from_examples():
        check_examples(recipe)
        return notices
    for source in source_recipes(recipe).values():
        if not source.is_online() and not source.plays_environment():
            notices += _check_tasks(source)
            notices += [f"judge       {event.sentence()}" for event in asyncio.run(calibrate_judges(source))]
    group_filter(recipe.batcher, Path.cwd())
    return notices


def _check_tasks(recipe: Recipe) -> list[str]:
    """Open the dataset, the reward and the agent of a recipe, or of a source; returns sentences about them."""
    notices: list[str] = []
    dataset = open_tasks(recipe, RunFolder(Path(recipe.folder) / recipe.run))
    if dataset.recognised:
        sys.stderr.write(
            f"{recipe.task.dataset}: columns recognised: {dataset.recognised} (task.columns names others)\n"
        )
    if not recipe.task.reward.startswith(MODEL):
        notices += describe_reward(resolve_reward(recipe.task.reward, options=recipe.task.reward_options))
    notices += check_references(recipe.task, dataset)
    check_agent(recipe)
    return notices


@contextmanager
def fresh_folder(recipe: Recipe, folder: RunFolder, check: Callable[[Recipe], Recipe]) -> Iterator[Recipe]:
    """Lock and create the folder; yields the recipe that `check` returns, which is called before anything is created.

    Raises:
        SetupError: a run of this name is live, the disk is full or not writable, or `check` raised it.
    """
    report_clean_up(folder.path.parent)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.hold())
            recipe = check(recipe)
            refuse_full_disk(recipe.disk, folder.path.parent, one_checkpoint_bytes(recipe))
            check_room(recipe.run, folder.path, published_bytes(recipe), recipe.trainer.weights_folder)
            folder.create(recipe)
            stack.enter_context(holding_weights(recipe, folder))
        except OSError as error:
            raise SetupError(
                f"folder: the run cannot be kept in {folder.path} ({error.strerror}); set folder to one that can be"
                " written"
            ) from error
        yield recipe


def clean_up(runs: Path) -> list[str]:
    """Remove the shared-memory weights of dead runs, and the credentials of dead runs in this folder.

    Returns one line for each removal.
    """
    return [*_weights(), *_secrets(runs)]


def report_clean_up(runs: Path) -> None:
    """Remove leftovers of dead runs, and print what was removed."""
    for line in clean_up(runs):
        sys.stderr.write(f"{line}\n")


@contextmanager
def holding_weights(recipe: Recipe, folder: RunFolder) -> Iterator[None]:
    """Lock this run's weights as in use, and remove them at the end.

    Raises:
        SetupError: there is no room for them, or shared memory does not support locks.
    """
    needed = published_bytes(recipe)
    check_room(recipe.run, folder.path, needed, recipe.trainer.weights_folder)
    lock = lock_path(shared_memory_path(recipe.run, folder.path))
    try:
        if not has_shared_room(
            max(needed, MEBIBYTE)
        ):  # the weights are kept on the disk, and a full file system takes no lock
            yield
            return
        with lock_file(lock, remove=True):
            yield
    finally:
        remove_all(recipe.run, folder.path, recipe.trainer.weights_folder)
        folder.remove_secrets()


def _weights() -> Iterator[str]:
    for place in locked_folders():
        try:
            with lock_file(lock_path(place), seconds=0, remove=True):
                if place.is_dir():
                    size = folder_bytes(place)
                    shutil.rmtree(place, ignore_errors=True)
                    yield f"removed the weights of a killed run in {place} ({size / MEBIBYTE:,.1f} MiB)"
        except (LockHeld, OSError):
            continue


def _secrets(runs: Path) -> Iterator[str]:
    for announced in sorted({*runs.glob("*/bus.json"), *runs.glob("*/nats/nats-server.conf")}):
        folder = RunFolder(runs / announced.relative_to(runs).parts[0])
        if folder.live_supervisor() or holder(folder.nats / "nats-server.lock") is not None:
            continue
        if names := folder.remove_secrets():
            yield f"removed bus credentials of run '{folder.path.name}', which has ended: {', '.join(names)}"
