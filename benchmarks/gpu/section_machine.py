"""Section `machine`: versions, device, and the speed of a matrix product."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
import tomllib
from collections.abc import Iterator
from itertools import chain

import torch
from options import ROOT, Options
from report import Figures, Report

REPEATS = 10
EXTRAS = ("train", "embedded")


def measure(report: Report, options: Options) -> None:
    """Report versions, device and a matrix product."""
    report.case("versions", versions)
    report.case("packages", packages)
    report.case("device", lambda: [device(options.device)])
    report.case("matrix product", lambda: [matrix_product(options)])


def versions() -> Iterator[Figures]:
    """Yield the versions of Python, torch, transformers and CUDA."""
    yield {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "cuda": torch.version.cuda or "none",
        "cores": os.cpu_count() or 0,
    }


def packages() -> Iterator[Figures]:
    """Yield the dependencies of the package in this repository, with its extra `embedded`, that are not installed."""
    described = [ROOT / "pyproject.toml", ROOT / "bus" / "pyproject.toml"]
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in described if file.exists()]
    extras = (project.get("optional-dependencies", {}) for project in projects)
    wanted = [
        *chain(*(project["dependencies"] for project in projects)),
        *chain(*(extra.get(name, ()) for extra in extras for name in EXTRAS)),
    ]
    names = {re.split(r"[^A-Za-z0-9._-]", requirement)[0] for requirement in wanted} - {
        project["name"] for project in projects
    }
    missing = sorted(name for name in names if not _is_installed(name))
    yield {"required": len(names), "missing": ", ".join(missing) or "none"}


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def device(wanted: str) -> Figures:
    """Return name, memory in bytes and bf16 support of the device.

    Raises:
        RuntimeError: CUDA is wanted and torch finds no device.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return {"device": "cpu", "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
    if not torch.cuda.is_available():
        raise RuntimeError(f"--device {wanted}, but torch finds no CUDA device")
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory": properties.total_memory,
        "devices": torch.cuda.device_count(),
        "capability": f"{properties.major}.{properties.minor}",
        "bf16": str(torch.cuda.is_bf16_supported()),
    }


def matrix_product(options: Options) -> Figures:
    """Return the TFLOP/s of a product of square matrices in bfloat16."""
    on_cuda = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    size = options.sizes.matmul
    left, right = (torch.randn(size, size, device="cuda" if on_cuda else "cpu", dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        torch.mm(left, right)
        if on_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return {"rows": size, "tflops": 2 * size**3 / best / 1e12}
