"""Python code that a recipe names as `path.py:Name`: agents and reward functions, loaded where they run."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import traceback
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_actors.errors import RecipeError


def load_named(spec: str, root: Path) -> Any:
    """Run the file and return what it calls `Name`; a relative path counts from `root`.

    Raises:
        RecipeError: the spec is not of the form `path.py:Name`, the file is missing or raises, or the name is not in it.
    """
    path_text, colon, name = spec.rpartition(":")
    if not colon or not path_text.endswith(".py") or not name.isidentifier():
        raise RecipeError(f"`{spec}` must have the form `path.py:Name`, such as `agents/gsm8k.py:Gsm8kAgent`")
    path = (root / path_text).resolve()
    if not path.is_file():
        raise RecipeError(f"`{spec}`: there is no file {path}; the path counts from {root.resolve()}")
    module = _run(path, spec)
    if hasattr(module, name):
        return getattr(module, name)
    defined = [other for other in vars(module) if not other.startswith("_")]
    near = difflib.get_close_matches(name, defined, n=1, cutoff=0.5)
    remedy = f"did you mean `{near[0]}`?" if near else f"it defines: {', '.join(defined) or 'nothing'}"
    raise RecipeError(f"`{spec}`: {path} has no `{name}`; {remedy}")


def _run(path: Path, spec: str) -> ModuleType:
    """The file as a module of its own name, so that it never shadows an installed package such as `agents`."""
    module_name = f"loaded_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    if module_spec is None or module_spec.loader is None:
        raise RecipeError(f"`{spec}`: {path} cannot be loaded as Python code")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses and pickle look their module up there
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise RecipeError(f"`{spec}`: {path}:{_line(error, path)} raised {type(error).__name__}: {error}") from error
    return module


def _line(error: BaseException, path: Path) -> int:
    """The line of the file that an error goes back to."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or 0
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else 0
