from __future__ import annotations

import msgspec
import pytest
from support.live_run import ROOT

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import SetupError
from areal_actors.recipe.load import load
from areal_actors.run.preflight import check_devices

NONE = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")


def recipe(*settings):
    return load([ROOT / "recipes" / "gsm8k_grpo.toml"], ["profile=embedded", *settings], NONE).recipe


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["trainer.device=cuda"],
            'trainer.device = "cuda": no CUDA device: libcuda.so.1 not found; write "cpu" or "auto"',
        ),
        (["generation.device=cuda"], 'generation.device = "cuda": no CUDA device'),
        (
            ["trainer.device=cuda", "generation.device=cuda"],
            'trainer.device = "cuda" and generation.device = "cuda": no CUDA device',
        ),
    ],
)
def test_a_cuda_device_that_is_asked_for_and_absent_is_named_before_anything_starts(settings, words):
    with pytest.raises(SetupError) as raised:
        check_devices(recipe(*settings), NONE)
    assert words in str(raised.value)


def test_devices_that_are_there_or_not_asked_for_are_no_problem():
    check_devices(recipe("trainer.device=cuda"), CudaDevices(1, "1 CUDA device"))
    check_devices(recipe(), NONE)
    check_devices(recipe("generation.device=cuda", "generation.engine=scripted"), NONE)
    elsewhere = recipe("trainer.device=cuda")
    check_devices(
        msgspec.structs.replace(elsewhere, trainer=msgspec.structs.replace(elsewhere.trainer, ranks_address="host:1")),
        NONE,
    )
