"""Finished embedded models, each in a folder named by a digest of everything that determines its weights.

A warm start takes from seconds to minutes and always has the same result, so it runs once for a seed and its skills.
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
from areal_actors.embedded.settings import WarmStart
from areal_actors.embedded.warm_start import Progress
from areal_actors.weights.manifest import MANIFEST, verify, write_manifest

SOURCES = ("core", "embedded", "sequences", "supervised", "tasks", "tokenization", "training")
"""Folders of the package whose code determines the weights: with a changed line, the model is made again."""
ABANDONED_SECONDS = 86_400.0
"""Unfinished folders of this age were left by killed processes."""


def kept_model(models: Path, warm_start: WarmStart, seed: int, threads: int, progress: Progress) -> str:
    """Returns the Hugging Face folder of an embedded model in `models`; it is made if it is missing or damaged.

    Processes that make the same model at once do not disturb each other: the first finished one is kept.

    Args:
        models: the folder of all kept models.
        warm_start: the recipe's table.
        seed: seeds the initial weights and the demonstrations.
        threads: torch's CPU threads; sums depend on them.
        progress: called after every supervised step; never if the model is there.

    Raises:
        SetupError: the folder cannot be written.
    """
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
