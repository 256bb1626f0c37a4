"""`proof.json` of a checkpoint: the head of the log's hash chain there, and digests of what the run was made of."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.durable_files import atomic_write
from areal_actors.core.errors import SetupError
from areal_actors.recipe.paths import LONGEST_PATH, NAMED
from areal_actors.weights.manifest import PROOF
from areal_bus.message import FrozenMeta

FORMAT = "areal-actors proof 1"


class Proof(msgspec.Struct, metaclass=FrozenMeta):
    """`proof.json`."""

    format: str
    run: str
    step: int
    """Step of the checkpoint."""
    first: int
    """First event in the chain; above 1 if the log had been trimmed before the chain began."""
    sequence: int
    """Last event in the chain: the one that committed the checkpoint."""
    head: str
    """SHA-256 of the chain, as the digests below in hexadecimal."""
    manifest: str
    """Digest of the checkpoint's manifest, which has that of every file."""
    recipe: str
    """Digest of the resolved recipe."""
    program: str
    """Digest of the source files of areal-actors."""
    files: dict[str, str] = {}
    """Digests of the files that the recipe names (agent, reward, data), by their paths in it."""
    model: str = ""
    """Digest of the initial weights in the run's folder; empty if the model is elsewhere."""

    def digest(self) -> str:
        """Returns the digest of the whole proof, which a third party can be given beforehand."""
        return sha256(msgspec.json.encode(self)).hexdigest()


def write_proof(folder: Path, proof: Proof) -> None:
    """Write the proof of a checkpoint.

    Raises:
        OSError: it cannot be written.
    """
    atomic_write(folder / PROOF, msgspec.json.format(msgspec.json.encode(proof), indent=1))


def read_proof(folder: Path) -> Proof:
    """Returns the proof of a checkpoint.

    Raises:
        SetupError: there is none, or it cannot be read.
    """
    try:
        return msgspec.json.decode((folder / PROOF).read_bytes(), type=Proof)
    except FileNotFoundError as error:
        raise SetupError(
            f"{folder} has no {PROOF}: it is no checkpoint of a run, or one of an earlier version of areal-actors,"
            " whose log `areal-actors audit RUN --recompute` checks"
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise SetupError(f"{folder / PROOF} cannot be read: {error}") from error


def digest_of_recipe(recipe: Mapping[str, Any]) -> str:
    """Returns the digest of a resolved recipe."""
    return sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Returns the digest of a file; empty if there is none.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def files_of_recipe(recipe: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Returns the digests of the files that a recipe names, by their paths in it, relative to `root`."""
    return {path: digest_of_file(root / path) for path in sorted(set(_named_files(recipe, root)))}


def _named_files(value: Any, root: Path) -> Iterator[str]:
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _named_files(entry, root)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _named_files(entry, root)
    elif isinstance(value, str) and 0 < len(value) <= LONGEST_PATH:
        match = NAMED.fullmatch(value)
        if match and os.path.isfile(root / match["path"]):  # noqa: PTH113 - a Path raises for a text that is no name
            yield match["path"]
