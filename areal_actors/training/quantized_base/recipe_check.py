"""Validates `trainer.lora.quantize_base`: its library, and what cannot carry a packed base."""

from __future__ import annotations

from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.extras import install_command
from areal_actors.core.problems import Problems, is_installed
from areal_actors.core.run_facts import RunFacts
from areal_actors.training.settings import TrainerSettings

KEY = ("trainer", "lora", "quantize_base")
LIBRARIES = ("bitsandbytes", "torchao")
"""Those for 4 bits; FP8 needs none."""


def find_problems(trainer: TrainerSettings, bus: BusSettings, facts: RunFacts) -> Problems:
    """Yields what keeps the frozen base from being held in 4 or 8 bits."""
    if facts.is_serving or (lora := trainer.lora) is None or (form := lora.quantize_base) == "off":
        return
    fault = f'found "{form}", but'
    if form in LIBRARIES and not is_installed(form):
        installed = [f'write "{other}", which is' for other in LIBRARIES if is_installed(other)]
        remedy = ", or ".join([install_command([form]), *installed])
        yield KEY, f"{fault} {form} is not installed: {remedy}"
    if trainer.ranks > 1:
        yield (
            KEY,
            f'{fault} trainer.ranks = {trainer.ranks} would have to split packed matrices; write ranks = 1, or "off"',
        )
    if trainer.compile:
        yield KEY, f'{fault} packed layers are not compiled; write trainer.compile = false, or "off"'
    if lora.published == "adapter" and bus.host and not trainer.weights_folder:
        lacks = "joined hosts (bus.host) do not have the folder of the rounded base"
        yield KEY, f'{fault} {lacks}; write trainer.lora.published = "merged", or name a shared trainer.weights_folder'
