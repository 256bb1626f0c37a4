"""Finished embedded models: the one that the package has, and others in folders named by what determines their weights.

A warm start takes from seconds to minutes and always has the same result, so it runs once for a seed and its skills,
and never on this machine for the seed and the settings that most runs have.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

import msgspec
import tokenizers
import torch
import transformers

import areal_actors
from areal_actors.core.errors import CheckpointError, SetupError
from areal_actors.core.private_folders import make_private
from areal_actors.embedded.embedded_model import make_embedded_model
from areal_actors.embedded.settings import WarmStart, is_shipped
from areal_actors.embedded.warm_start import Progress
from areal_actors.weights.manifest import MANIFEST, verify, write_manifest

SOURCES = ("core", "embedded", "sequences", "supervised", "tasks", "tokenization", "training")
"""Folders of the package whose code determines the weights: with a changed line, the model is made again."""
SHIPPED = Path(__file__).parent / "shipped_model"
"""The embedded model of the default warm start; `scripts/shipped_model.py` makes it."""
ABANDONED_SECONDS = 86_400.0
"""Unfinished folders of this age were left by killed processes."""


def kept_model(models: Path, warm_start: WarmStart, seed: int, threads: int, progress: Progress) -> str:
    """Returns the Hugging Face folder of an embedded model, made in `models` if it is missing or damaged.

    That of the default `[warm_start]` and seed is in the package: it is the same with any version of torch, and any
    number of threads. Processes that make the same model at once do not disturb each other: the first finished one is
    kept.

    Args:
        models: the folder of all kept models.
        warm_start: the recipe's table.
        seed: seeds the initial weights and the demonstrations.
        threads: torch's CPU threads; sums depend on them.
        progress: called after every supervised step; never if there is no step to take.

    Raises:
        SetupError: the folder cannot be written.
    """
    if is_shipped(warm_start, seed) and _is_intact(SHIPPED):
        return str(SHIPPED)
    folder = models / f"embedded-{_digest(warm_start, seed, threads)}"
    if _is_intact(folder):
        return str(folder)
    try:
        make_private(models)
        _remove_abandoned(models)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", suffix=".partial", dir=models))
    except OSError as error:
        raise SetupError(
            f"the embedded model cannot be kept in {models} ({error}); make it writable, or set another `folder`"
        ) from error
    try:
        model_folder = partial / "model"
        make_embedded_model(str(model_folder), warm_start, seed, threads, progress)
        write_manifest(model_folder)
        _put(model_folder, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return str(folder)


def copy_model(kept: str, folder: Path) -> None:
    """Copy a kept model to a new folder of a run, which may be moved and outlives the kept one."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(kept, partial, ignore=shutil.ignore_patterns(MANIFEST))
    partial.rename(folder)


def _digest(warm_start: WarmStart, seed: int, threads: int) -> str:
    versions = (str(torch.__version__), transformers.__version__, tokenizers.__version__)
    digest = blake2b(msgspec.json.encode((warm_start, seed, threads, versions)), digest_size=4)
    package = Path(areal_actors.__file__).parent
    for source in sorted(path for name in SOURCES for path in (package / name).rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _is_intact(folder: Path) -> bool:
    try:
        verify(folder)
    except CheckpointError:
        return False
    return True


def _put(source: Path, folder: Path) -> None:
    """Move a finished model into place; one that another process finished meanwhile stays, a damaged one does not."""
    if folder.exists() and not _is_intact(folder):
        folder.rename(source.with_name("damaged"))
    try:
        source.rename(folder)
    except OSError:
        if not _is_intact(folder):
            raise


def _remove_abandoned(models: Path) -> None:
    for partial in models.glob("embedded-*.partial"):
        if time.time() - partial.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(partial, ignore_errors=True)
