"""Kubernetes: manifests of core kinds only.

There is a Job for the run, one for each role of its workers, and one for each role that decisions may add. The recipe
and the files of its agent are in a ConfigMap; the workers get them from the run, as everywhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.hosts.launchers.kubernetes_certificates import FOLDER, secret_files, without_certificates, words_for
from areal_actors.hosts.launchers.plan import LaunchPlan, Place, render_template
from areal_actors.hosts.portable_recipe import PortableRecipe
from areal_actors.recipe.paths import LONGEST_PATH, NAMED, SHIPPED
from areal_actors.recipe.recipe import Recipe

BUS_PORT, OBJECTS_PORT, GATEWAY_PORT = 4222, 4280, 8080
RUNS = "/runs"
LONGEST_RUN = 40
"""Characters of a run's name; names of Kubernetes have at most 63."""
MOST_BYTES = 900_000
"""Size of the files; a ConfigMap has at most 1 MiB."""


def manifests(plan: LaunchPlan, files: Sequence[Path], folder: Path, *, shown: bool = False) -> str:
    """Returns the manifests of a plan, of which the recipe was read from `files` in `folder`.

    They have no keys if they are `shown`.

    Raises:
        RecipeError: `[hosts]` names no image, or the run's name is too long.
        SetupError: files of the recipe cannot be in a ConfigMap.
    """
    recipe = plan.recipe
    if not recipe.hosts.image:
        raise RecipeError(
            "`hosts.image`: found none; name an image for Kubernetes, as `docker build --tag REGISTRY/areal .` makes it"
        )
    if len(recipe.run) > LONGEST_RUN:
        raise RecipeError(
            f"`run`: found {len(recipe.run)} characters; Kubernetes takes at most {LONGEST_RUN} for the names of its"
            " objects"
        )
    name, bus = f"areal-{recipe.run}", recipe.bus
    ports = {
        "bus": bus.port or BUS_PORT,
        "objects": bus.objects_port or OBJECTS_PORT,
        "gateway": recipe.gateway.port or GATEWAY_PORT,
    }
    ports |= {
        f"gateway-{number}": ports["gateway"] + number for number in range(1, recipe.actors.session_manager.count)
    }
    certificates = secret_files(recipe, shown=shown)
    contents = _contents(without_certificates(recipe), files, folder)
    words = [_inside(file, folder) for file in files]
    after = plan.run.words[1 + len(files) :]
    addresses = (
        "bus.host=0.0.0.0",
        *(f"bus.{key}={ports[name]}" for key, name in (("port", "bus"), ("objects_port", "objects"))),
    )
    advertised = recipe.gateway.advertise or f"{name}-run"
    gateway = (
        "gateway.host=0.0.0.0",
        f"gateway.port={ports['gateway']}",
        f"gateway.advertise={advertised}",
        *words_for(certificates),
    )
    address = plan.address(f"{name}-run", ports["bus"])
    return render_template(
        "kubernetes.yaml.jinja",
        plan=plan,
        name=name,
        token=secrets.token_hex(16),
        files=contents,
        certificates=certificates,
        certificates_folder=FOLDER,
        ports=ports,
        requests=_requests,
        limits=_limits,
        run_command=(COMMAND, "run", *words, *after, f"folder={RUNS}", *addresses, *gateway),
        join_command=lambda place: (COMMAND, "join", address, *place.words),
    )


def _contents(recipe: Recipe, files: Sequence[Path], folder: Path) -> Mapping[str, str]:
    """Returns the recipe's files and those of its agent, by their path below the folder.

    The package's own are in the image.
    """
    agent = PortableRecipe(recipe, folder).files.values()
    paths = {
        path.absolute()
        for path in (*files, *agent, *_named_files(msgspec.to_builtins(recipe)))
        if not _is_shipped(path, folder)
    }
    contents: dict[str, str] = {}
    for path in sorted(paths):
        try:
            contents[_inside(path, folder)] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise SetupError(
                f"{path}: a ConfigMap has text only; move it out of the folder of the agent, and into the image"
            ) from None
    if (size := sum(len(content.encode()) for content in contents.values())) > MOST_BYTES:
        largest = max(contents, key=lambda name: len(contents[name]))
        raise SetupError(
            f"the recipe's files have {size:,} bytes, the largest is {largest}; a ConfigMap takes {MOST_BYTES:,}: build"
            " them into the image"
        )
    return contents


def _named_files(value: Any) -> Iterator[Path]:
    """Yields the files that settings name: tasks, a chat template, an algorithm."""
    if isinstance(value, dict | list | tuple):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _named_files(entry)
    elif isinstance(value, str) and "." in value and len(value) < LONGEST_PATH and (match := NAMED.fullmatch(value)):
        path = Path(match["path"])
        if path.suffix and not path.is_absolute() and path.is_file():
            yield path


def _inside(file: Path, folder: Path) -> str:
    """Returns how a container names a file: by its path below the folder, or as a recipe of the package."""
    if _is_shipped(file, folder):
        return file.stem
    path = Path.cwd() / file
    if not path.is_relative_to(folder):
        raise SetupError(
            f"{file} is not below {folder}: start `{COMMAND} run --on` in a folder with the recipe and its agent"
        )
    return path.relative_to(folder).as_posix()


def _is_shipped(file: Path, folder: Path) -> bool:
    """Returns True for a file of the package, unless the folder is that of its sources."""
    path = file.absolute()
    return path.is_relative_to(SHIPPED.parent) and not path.is_relative_to(folder)


def _requests(place: Place) -> dict[str, Any]:
    return {"cpu": str(place.cpus), **_limits(place)}


def _limits(place: Place) -> dict[str, Any]:
    memory = {"memory": f"{place.memory_gb}Gi"} if place.memory_gb else {}
    return {**memory, **({"nvidia.com/gpu": str(place.gpus)} if place.gpus else {})}
