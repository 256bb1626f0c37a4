"""The extras of this distribution: what each of them brings, and errors that name the one that is missing.

`pip install areal-actors` is the control plane: bus, gateway, rollout, batching, recipes, runs, engines over HTTP. It
brings no torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Final

from areal_actors.core.errors import SetupError

DISTRIBUTION: Final = "areal-actors"
TRAIN: Final = "train"
EMBEDDED: Final = "embedded"
TINKER: Final = "tinker"
INSPECT: Final = "inspect"

_TRAIN: Final = ("torch", "transformers", "peft", "safetensors", "matplotlib")
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    TRAIN: _TRAIN,
    EMBEDDED: (*_TRAIN, "llguidance"),
    TINKER: (*_TRAIN, "llguidance"),
    INSPECT: ("matplotlib", "pandas", "pyarrow", "opentelemetry"),
}
"""Modules that the code imports, by the extra that brings them. pyproject.toml has the distributions and their
versions."""


def absent_modules(extra: str) -> list[str]:
    """Returns the modules of an extra that cannot be imported here."""
    return [module for module in EXTRAS[extra] if importlib.util.find_spec(module) is None]


def extra_of(module: str) -> str:
    """Returns the smallest extra that brings the module of this dotted name; empty if none does."""
    top = module.partition(".")[0]
    having = [extra for extra, modules in EXTRAS.items() if top in modules]
    return min(having, key=lambda extra: len(EXTRAS[extra]), default="")


def install_command(extras: Iterable[str]) -> str:
    """Returns the command that installs extras into this environment."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


def require_extra(extra: str, what: str) -> None:
    """Refuse `what`, the setting, command or option that needs an extra, if a module of it is absent.

    Raises:
        SetupError: a module is absent; the message has the command that installs it.
    """
    if absent := absent_modules(extra):
        raise SetupError(f"{what} needs {', '.join(absent)}, which this installation lacks: {install_command([extra])}")


def require_module(module: str, what: str) -> None:
    """Refuse `what`, the command or option that needs a module of an extra, if it is absent.

    Raises:
        SetupError: it is absent; the message has the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise SetupError(f"{what} needs {module}, which this installation lacks: {install_command([extra_of(module)])}")


def missing_module(error: ModuleNotFoundError) -> SetupError | None:
    """Returns the error that names the extra of a module that was not found; None if no extra brings it."""
    if not (extra := extra_of(error.name or "")):
        return None
    return SetupError(f"this needs {error.name}, which this installation lacks: {install_command([extra])}")
