"""Checks of this machine against a recipe, before anything starts."""

from __future__ import annotations

from areal_actors.core.devices import CudaDevices, detect_cuda
from areal_actors.core.errors import SetupError
from areal_actors.generation.settings import TENSOR_ENGINES
from areal_actors.recipe.recipe import Recipe

CUDA = "cuda"


def check_devices(recipe: Recipe, found: CudaDevices | None = None) -> None:
    """Refuse a recipe that names CUDA devices if there are none; `found` are the detected devices, detected here if None.

    Raises:
        SetupError: no CUDA device; the message names the setting.
    """
    named = {
        "trainer.device": recipe.trainer.device if recipe.actors.trainer.count and not recipe.trainer.ranks_address else "",
        "generation.device": recipe.generation.device if recipe.generation.engine in TENSOR_ENGINES else "",
    }
    asking = [setting for setting, device in named.items() if device.startswith(CUDA)]
    if not asking or (found := found or detect_cuda()).count:
        return
    devices = " and ".join(f'{setting} = "{named[setting]}"' for setting in asking)
    raise SetupError(f'{devices}: {found.reason}; write "cpu" or "auto", or start the run on a machine with one')
