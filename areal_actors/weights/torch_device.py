"""The torch device of a process, by the word in a recipe, with its share of the device's memory."""

from __future__ import annotations

import torch

from areal_actors.core.devices import memory_fraction
from areal_actors.core.errors import SetupError


def torch_device(name: str, setting: str, number: int = 0) -> torch.device:
    """Returns the device for `cpu`, `cuda` or `auto` (cuda if available).

    Of several visible devices it is the one with this number. The process's allocations on a CUDA device are limited to
    its share of the memory (`areal_actors.core.devices.memory_fraction`).

    Args:
        name: the word in the recipe.
        setting: dotted name of the setting, for errors.
        number: rank of this process on its host.

    Raises:
        SetupError: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SetupError(f'{setting} = "{name}" is not a device: write "cpu", "cuda" or "auto"') from error
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise SetupError(
            f'{setting} = "{name}", but torch finds no CUDA device: write "cpu" or "auto", or install torch for CUDA'
        )
    if number >= (device_count := torch.cuda.device_count()):
        raise SetupError(
            f"{setting}: rank {number} of this host has no CUDA device: {device_count} are visible; write fewer ranks,"
            ' or "cpu"'
        )
    device = torch.device("cuda", number)
    if (fraction := memory_fraction()) < 1:
        torch.cuda.set_per_process_memory_fraction(fraction, device)
    return device
