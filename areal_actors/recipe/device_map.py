"""CUDA devices of a run: which process gets which devices, with which share of their memory.

Each rank of the trainer has a device of its own, each inference worker `generation.tensor_parallel` of them. Counts
that a recipe leaves open are derived from the machine's devices: half of them train, the others generate. On a machine
with one device, trainer and inference worker share it; on others, processes share a device only where the recipe names
it for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from areal_actors.core.actor_settings import processes_of
from areal_actors.core.devices import MEMORY_FRACTION, VISIBLE, CudaDevices, visibility
from areal_actors.core.durable_files import GIBIBYTE
from areal_actors.core.layers import Key, is_stated
from areal_actors.core.problems import Problems
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.generation.engines import describe_engine
from areal_actors.recipe.model_size import engine_bytes, rank_bytes
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL

USABLE = 0.9
"""Share of a device's memory that is given away; CUDA contexts and libraries take the rest."""
REWARD_MODEL = 0.15
"""GPU memory fraction of a colocated reward model."""
TRAINER = 5 / 9
"""Part that a trainer gets of what it shares with inference workers."""
TRAINS, GENERATES, SCORES = "trainer", "generation", "reward model"


class DeviceUse(NamedTuple):
    """The devices of one process."""

    process: str
    role: str
    """`trainer`, `generation` or `reward model`."""
    devices: tuple[int, ...]
    """Numbers of the devices, in the order of the ranks."""
    fraction: float = 1.0
    """Share of each device's memory; 1 without a limit."""


def with_device_counts(recipe: Recipe, stated: Mapping[str, Any], cuda: CudaDevices) -> Recipe:
    """Returns the recipe with as many ranks and inference workers as the devices allow, unless it states them."""
    if not cuda.count or recipe.model == EMBEDDED:
        return recipe
    trainer, generation, width = recipe.trainer, recipe.generation, recipe.generation.tensor_parallel
    unit = trainer.tensor_parallel * trainer.sequence_parallel * trainer.pipeline_parallel
    ranks, workers = trainer.ranks, recipe.actors.inference_worker.count
    trains, generates = _trains_here(recipe), _generates_here(recipe)
    one_rank = trainer.optimizer.name in {"adafactor", "muon"} or (
        trainer.lora is not None and trainer.lora.quantize_base != "off"
    )
    more_ranks = trains and not is_stated(stated, ("trainer", "ranks")) and not one_rank
    more_workers = generates and not is_stated(stated, ("actors", "inference_worker", "count"))
    if more_ranks and trainer.devices:
        ranks, more_ranks = len(trainer.devices), False
    if more_workers and generation.devices:
        workers, more_workers = len(generation.devices) // width, False
    if more_ranks:
        engine_devices = 0 if not generates else cuda.count // 2 if more_workers else workers * width
        ranks = max((cuda.count - engine_devices) // unit, 1) * unit
    if more_workers:
        workers = max((cuda.count - (ranks if trains else 0)) // width, 1)
    placement = replace(recipe.actors.inference_worker, count=workers)
    counted = replace(
        recipe, trainer=replace(trainer, ranks=ranks), actors=replace(recipe.actors, inference_worker=placement)
    )
    return replace(counted, generation=replace(generation, sleep=_sleep(counted, cuda)))


def _sleep(recipe: Recipe, cuda: CudaDevices) -> Literal["auto", "on", "off"]:
    """Returns the recipe's `generation.sleep`.

    `auto` is `on` where a worker of synchronous training shares a device with the trainer.
    """
    if recipe.generation.sleep != "auto" or not _generates_here(recipe):
        return recipe.generation.sleep
    trainer, workers = _assign_devices(recipe, cuda)
    shared = not {device for devices in workers for device in devices}.isdisjoint(trainer)
    able = describe_engine(recipe.generation.engine).can_sleep and recipe.staleness_gate.max_staleness == 0
    able = able and not recipe.has_shared_engine()  # other policies sample during the step
    return "on" if shared and able else "off"


def device_problems(recipe: Recipe, cuda: CudaDevices) -> Problems:
    """Yields what keeps a machine with these devices from running the recipe.

    Nothing if it has none, since `auto` is the CPU then.
    """
    if not cuda.count:
        return
    if named := list(_named_problems(recipe, cuda)):
        yield from named
        return
    ranks, width, workers = _ranks(recipe), recipe.generation.tensor_parallel, _workers(recipe)
    shares = cuda.count == 1 and ranks <= 1 and width == 1
    training, generating = _named_devices(recipe)
    needed = (0 if training else ranks) + (0 if generating else workers * width)
    free = cuda.count - len({*training, *generating})
    if needed > free and not shares:
        yield _too_few(recipe, cuda, needed, free)
        return
    uses = device_uses(recipe, cuda)
    yield from _crowding_problems(recipe, uses, cuda)
    yield from _too_small(recipe, uses, cuda)


def device_uses(recipe: Recipe, cuda: CudaDevices) -> list[DeviceUse]:
    """Returns the processes that have devices, for a recipe without `device_problems`."""
    if not cuda.count:
        return []
    trainer, workers = _assign_devices(recipe, cuda)
    uses = [DeviceUse(recipe.actors.trainer.process, TRAINS, trainer)] if trainer else []
    processes = processes_of(recipe.actors.inference_worker)
    uses += [
        DeviceUse(process, GENERATES, devices) for process, devices in zip(processes, workers, strict=bool(workers))
    ]
    if recipe.task.reward.startswith(MODEL) and recipe.actors.reward_worker.count:
        beside = (workers[-1:] or [trainer])[0][-1:] or (0,)
        uses += [DeviceUse(process, SCORES, beside) for process in processes_of(recipe.actors.reward_worker)]
    return [use._replace(fraction=_fraction(recipe, use, uses)) for use in uses]


def device_variables(recipe: Recipe, process: str, cuda: CudaDevices) -> dict[str, str]:
    """Returns the environment variables that give a process its devices; none on a machine without any."""
    if not cuda.count:
        return {}
    uses = [use for use in device_uses(recipe, cuda) if use.process == process]
    devices = dict.fromkeys(device for use in uses for device in use.devices)
    return {
        VISIBLE: visibility(tuple(devices)),
        MEMORY_FRACTION: f"{min(sum(use.fraction for use in uses), 1.0):g}" if uses else "1",
    }


def describe_devices(recipe: Recipe, cuda: CudaDevices) -> Iterator[tuple[str, str]]:
    """Yields label and text of each line of `areal-actors check` about devices.

    Each device with its processes and their memory.
    """
    size = f", each of {cuda.memory[0] / GIBIBYTE:.0f} GiB" if len(set(cuda.memory)) == 1 else ""
    yield "devices", f"{cuda.reason}{size}" if cuda.count else f"CPU ({cuda.reason})"
    uses = device_uses(recipe, cuda)
    for device in range(cuda.count):
        names = [_on_device(use, device, cuda) for use in uses if device in use.devices]
        yield "", f"{device}  {'; '.join(names) or 'unused'}"


def _on_device(use: DeviceUse, device: int, cuda: CudaDevices) -> str:
    """Returns one process on a device with its memory, such as `trainer rank 1: all of its memory`."""
    several = len(use.devices) > 1
    place = f" {'rank' if use.role == TRAINS else 'part'} {use.devices.index(device)}" if several else ""
    size = f" ({use.fraction * cuda.memory[device] / GIBIBYTE:.0f} GiB)" if cuda.memory else ""
    share = f"{use.fraction:.0%} of its memory{size}" if use.fraction < 1 else f"all of its memory{size}"
    return f"{use.process}{place}: {share}"


def _trains_here(recipe: Recipe) -> bool:
    return bool(recipe.actors.trainer.count) and recipe.trainer.device != "cpu" and not recipe.trainer.ranks_address


def _generates_here(recipe: Recipe) -> bool:
    generation = recipe.generation
    on_device = generation.device != "cpu" and not generation.server.urls and not recipe.shares_engine()
    computes = bool(recipe.actors.inference_worker.count) and describe_engine(generation.engine).has_model
    return computes and on_device


def _ranks(recipe: Recipe) -> int:
    return recipe.trainer.ranks if _trains_here(recipe) else 0


def _workers(recipe: Recipe) -> int:
    return recipe.actors.inference_worker.count if _generates_here(recipe) else 0


def _named_devices(recipe: Recipe) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the devices that the recipe names for ranks and for inference workers.

    None for what does not run on this machine's.
    """
    return recipe.trainer.devices if _trains_here(recipe) else (), (
        recipe.generation.devices if _generates_here(recipe) else ()
    )


def _assign_devices(recipe: Recipe, cuda: CudaDevices) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Returns the trainer's devices and those of each inference worker.

    Named ones first, then the free ones in their order.
    """
    training, generating = _named_devices(recipe)
    free = [device for device in range(cuda.count) if device not in {*training, *generating}]
    ranks, width, workers = _ranks(recipe), recipe.generation.tensor_parallel, _workers(recipe)
    trainer = training or tuple(free[:ranks])
    left: Sequence[int] = generating or (free if training else free[ranks:])
    if recipe.actors.trainer.process == recipe.actors.inference_worker.process and trainer:
        left = trainer
    if len(left) < workers * width:  # one device for all
        left = [0] * workers * width
    return trainer, [tuple(left[place * width : (place + 1) * width]) for place in range(workers)]


def _fraction(recipe: Recipe, use: DeviceUse, uses: Sequence[DeviceUse]) -> float:
    return min(_share(recipe, use, [other for other in uses if device in other.devices]) for device in use.devices)


def _share(recipe: Recipe, use: DeviceUse, beside: Sequence[DeviceUse]) -> float:
    """Returns a process's share of the memory of one device, given all processes on it."""
    roles = [other.role for other in beside]
    if use.role == SCORES:
        return REWARD_MODEL / roles.count(SCORES)
    stated = {TRAINS: recipe.trainer.memory_fraction, GENERATES: recipe.generation.memory_fraction}
    if stated[use.role]:
        return stated[use.role]
    rest = USABLE - (REWARD_MODEL if SCORES in roles else 0)
    if use.role == TRAINS:
        if len(roles) == 1:
            return 1.0
        generated = stated[GENERATES] * roles.count(GENERATES) or (rest * (1 - TRAINER) if GENERATES in roles else 0)
        return max(rest - generated, 0.0)
    trained = (stated[TRAINS] or rest * TRAINER) if TRAINS in roles else 0
    return max(rest - trained, 0.0) / roles.count(GENERATES)


def _named_problems(recipe: Recipe, cuda: CudaDevices) -> Problems:
    """Yields devices that a recipe names and that do not exist, twice or in the wrong number."""
    width = recipe.generation.tensor_parallel
    needed = {
        "trainer": (_ranks(recipe), "trainer.ranks = {}"),
        "generation": (_workers(recipe) * width, "{} for all inference workers"),
    }
    for table, devices in (("trainer", recipe.trainer.devices), ("generation", recipe.generation.devices)):
        number, what = needed[table]
        key: Key = (table, "devices")
        if not devices or not number:
            continue
        if outside := [device for device in devices if device >= cuda.count]:
            yield (
                key,
                f"found {outside[0]}, but this machine has {cuda.reason}; write numbers from 0 to {cuda.count - 1}",
            )
        if len(devices) != number:
            yield key, f"found {len(devices)} devices, but {what.format(number)}; write as many, each once"
        elif table == "trainer" and len(set(devices)) < len(devices):
            yield key, "found a device twice; write each once, since ranks do not share a device"


def _too_few(recipe: Recipe, cuda: CudaDevices, needed: int, free: int) -> tuple[Key, str]:
    """Returns the complaint about a recipe that needs more devices than there are."""
    width, ranks, workers = recipe.generation.tensor_parallel, _ranks(recipe), _workers(recipe)
    parts = [f"{ranks} ranks of the trainer"] if ranks and not recipe.trainer.devices else []
    parts += [f"{workers} inference workers of {width}"] if workers and not recipe.generation.devices else []
    key: Key = ("trainer", "ranks") if ranks > 1 or not workers else ("actors", "inference_worker", "count")
    if not recipe.generation.devices and width > 1 and width >= cuda.count:
        key = ("generation", "tensor_parallel")
    remedy = (
        "lower trainer.ranks, actors.inference_worker.count or generation.tensor_parallel, name devices that they"
        " share in "
    )
    remedy += 'trainer.devices and generation.devices, or write device = "cpu"'
    return (
        key,
        (
            f"{' and '.join(parts)} need {needed} CUDA devices, but this machine has {free} for them ({cuda.reason});"
            f" {remedy}"
        ),
    )


def _kept_share(recipe: Recipe, use: DeviceUse, memory: int) -> float:
    """Returns the share of a device's memory that a process holds while the others have theirs.

    Where engines sleep during a step, the trainer holds only weights, gradients and optimizer state while they serve.
    """
    if use.role == TRAINS and recipe.generation.sleep == "on" and memory and (resident := rank_bytes(recipe)):
        return min(resident / memory, use.fraction)
    return use.fraction


def _crowding_problems(recipe: Recipe, uses: Sequence[DeviceUse], cuda: CudaDevices) -> Problems:
    """Yields devices whose processes were given more than all of their memory, or nothing."""
    stated: Key = (
        ("generation", "memory_fraction") if recipe.generation.memory_fraction else ("trainer", "memory_fraction")
    )
    for device in sorted({device for use in uses for device in use.devices}):
        uses_here = [use for use in uses if device in use.devices]
        total = sum(_kept_share(recipe, use, cuda.memory[device] if cuda.memory else 0) for use in uses_here)
        if total > 1.001 or min(use.fraction for use in uses_here) <= 0:
            shares = ", ".join(f"{use.process} {use.fraction:.0%}" for use in uses_here)
            yield (
                stated,
                f"the processes on device {device} would have these shares of its memory: {shares}; write a lower one",
            )
            return


def _too_small(recipe: Recipe, uses: Sequence[DeviceUse], cuda: CudaDevices) -> Problems:
    """Yields processes whose weights alone do not fit into their share of a device's memory, where both are known."""
    if not cuda.memory:
        return
    for use in uses:
        needed = {TRAINS: rank_bytes, GENERATES: engine_bytes}.get(use.role, lambda _: 0)(recipe)
        room = use.fraction * min(cuda.memory[device] for device in use.devices)
        if needed > room:
            what = "weights, gradients and optimizer state take" if use.role == TRAINS else "weights take"
            key: Key = ("trainer", "ranks") if use.role == TRAINS else ("generation", "tensor_parallel")
            fault = (
                f"{use.process}: {what} {needed / GIBIBYTE:,.2f} GiB of {room / GIBIBYTE:,.2f} GiB on each of its"
                " devices"
            )
            yield key, f"{fault}; write a higher one, a higher {use.role}.memory_fraction, or another model"
            return
