"""Each process of a run gets its CUDA devices and its share of their memory, on pretended machines and in processes
that run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file
from support.live_run import ROOT

from areal_actors.core.devices import MEMORY_FRACTION, VISIBLE, CudaDevices, pretended_cuda, visibility
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.recipe.device_map import device_uses, device_variables
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import device_plan
from areal_actors.run.preflight import check_devices

RECIPE = ROOT / "recipes" / "gsm8k_grpo.toml"
DRIVER = """
#include <stddef.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 4; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceTotalMem_v2(size_t *size, int device) { *size = (size_t) 80 << 30; return 0; }
"""
"""A driver that reports four devices; torch, which was built without CUDA, does not ask it."""


def resolved(devices: str, *settings: str, serving: bool = False):
    return load([RECIPE], [*settings], pretended_cuda(devices), serving=serving)


def placed(devices: str, *settings: str, serving: bool = False) -> dict[str, tuple[tuple[int, ...], float]]:
    found = resolved(devices, *settings, serving=serving)
    return {use.process: (use.devices, round(use.fraction, 3)) for use in device_uses(found.recipe, found.cuda)}


@pytest.mark.parametrize(
    ("devices", "settings", "expected"),
    [
        ("0", [], {}),
        ("1", [], {"trainer": ((0,), 0.5), "inference_worker": ((0,), 0.4)}),
        ("2", [], {"trainer": ((0,), 1.0), "inference_worker": ((1,), 0.9)}),
        (
            "8",
            [],
            {
                "trainer": ((0, 1, 2, 3), 1.0),
                **{f"inference_worker-{place}": ((4 + place,), 0.9) for place in range(4)},
            },
        ),
        ("8", ["trainer.ranks=7"], {"trainer": (tuple(range(7)), 1.0), "inference_worker": ((7,), 0.9)}),
        (
            "8",
            ["actors.inference_worker.count=1"],
            {"trainer": (tuple(range(7)), 1.0), "inference_worker": ((7,), 0.9)},
        ),
        (
            "8",
            ["generation.tensor_parallel=2"],
            {"trainer": ((0, 1, 2, 3), 1.0), "inference_worker-0": ((4, 5), 0.9), "inference_worker-1": ((6, 7), 0.9)},
        ),
        ("4", ["trainer.device=cpu"], {f"inference_worker-{place}": ((place,), 0.9) for place in range(4)}),
        (
            "4",
            ["trainer.devices=[3, 1]"],
            {"trainer": ((3, 1), 1.0), "inference_worker-0": ((0,), 0.9), "inference_worker-1": ((2,), 0.9)},
        ),
        ("4", ["generation.devices=[0]"], {"trainer": ((1, 2, 3), 1.0), "inference_worker": ((0,), 0.9)}),
        ("1", ["trainer.memory_fraction=0.3"], {"trainer": ((0,), 0.3), "inference_worker": ((0,), 0.6)}),
        ("1", ["generation.memory_fraction=0.7"], {"trainer": ((0,), 0.2), "inference_worker": ((0,), 0.7)}),
        (
            "2",
            ["trainer.devices=[0, 1]", "generation.devices=[1]"],
            {"trainer": ((0, 1), 0.5), "inference_worker": ((1,), 0.4)},
        ),
        ("2", ["profile=embedded"], {"trainer": ((0,), 1.0), "inference_worker": ((1,), 0.9)}),
        (
            "2",
            ["generation.server.urls=['http://a:1', 'http://b:1']", "actors.inference_worker.count=2"],
            {"trainer": ((0, 1), 1.0)},
        ),
    ],
)
def test_devices_are_shared_out(devices, settings, expected):
    assert placed(devices, *settings) == expected


def test_two_workers_on_the_only_device_divide_what_the_trainer_leaves():
    found = placed("1", "actors.inference_worker.count=2")
    assert found == {"trainer": ((0,), 0.5), "inference_worker-0": ((0,), 0.2), "inference_worker-1": ((0,), 0.2)}


def test_ranks_of_other_hosts_leave_all_devices_to_the_workers():
    found = placed("2", "trainer.ranks=2", "trainer.ranks_address=host:1")
    assert found == {"inference_worker-0": ((0,), 0.9), "inference_worker-1": ((1,), 0.9)}


def test_a_served_model_is_on_every_device():
    everywhere = {f"inference_worker-{place}": ((place,), 0.9) for place in range(3)}
    assert placed("3", serving=True) == everywhere
    assert placed("3", "trainer.devices=[0]", serving=True) == everywhere, (
        "devices of a trainer that does not run are free"
    )
    assert placed("3", "trainer.device=cpu", "trainer.devices=[0]") == everywhere


def test_a_reward_model_is_beside_the_last_worker(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForSequenceClassification"]}')
    found = placed("2", f"task.reward=model:{tmp_path}")
    assert found == {"trainer": ((0,), 1.0), "inference_worker": ((1,), 0.75), "reward_worker": ((1,), 0.15)}


@pytest.mark.parametrize(
    ("devices", "settings", "key", "words"),
    [
        (
            "4",
            ["trainer.ranks=4", "actors.inference_worker.count=2"],
            "trainer.ranks",
            "need 6 CUDA devices, but this machine has 4",
        ),
        ("2", ["generation.tensor_parallel=2", "trainer.ranks=1"], "generation.tensor_parallel", "need 3 CUDA devices"),
        ("2", ["actors.inference_worker.count=3"], "actors.inference_worker.count", "need 4 CUDA devices"),
        ("2", ["trainer.devices=[0, 2]"], "trainer.devices", "found 2, but this machine has 2 CUDA devices"),
        ("2", ["trainer.devices=[1, 1]"], "trainer.devices", "a device twice"),
        (
            "4",
            ["trainer.devices=[1, 2]", "trainer.ranks=3"],
            "trainer.devices",
            "found 2 devices, but trainer.ranks = 3",
        ),
        (
            "4",
            ["generation.devices=[1]", "actors.inference_worker.count=2"],
            "generation.devices",
            "found 1 devices, but 2 for all",
        ),
        (
            "1",
            ["generation.memory_fraction=0.7", "trainer.memory_fraction=0.6"],
            "generation.memory_fraction",
            "trainer 60%",
        ),
        ("1", ["generation.memory_fraction=0.95"], "generation.memory_fraction", "trainer 0%"),
        (
            "2",
            ["generation.engine=transformers", "generation.tensor_parallel=2"],
            "generation.tensor_parallel",
            "uses one device",
        ),
        ("2", ["generation.device=cuda:1"], "generation.device", 'did you mean "cuda"'),
    ],
)
def test_what_the_machine_cannot_place_is_refused_with_the_setting_to_change(devices, settings, key, words):
    with pytest.raises(RecipeError) as raised:
        resolved(devices, *settings)
    assert f"`{key}`: " in str(raised.value)
    assert words in str(raised.value)


def test_a_resumed_run_on_a_smaller_machine_is_refused_before_it_starts():
    recipe = resolved("4").recipe
    check_devices(recipe, pretended_cuda("4"))
    with pytest.raises(SetupError, match=r"`trainer.ranks`: .* need 4 CUDA devices, but this machine has 2"):
        check_devices(recipe, pretended_cuda("2"))


def test_weights_that_exceed_a_device_are_refused_before_the_start(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file(
        {"weight": np.zeros((4096, 4096), np.uint8)}, tmp_path / "model.safetensors"
    )  # the count of parameters is what matters
    settings = [f"model={tmp_path}", "task.dataset=arithmetic"]
    resolved("1x1", *settings)
    with pytest.raises(
        RecipeError, match=r"`trainer.ranks`: trainer: weights, gradients and optimizer state take 0.25 GiB of 0.20 GiB"
    ):
        resolved("2x0.2", *settings)
    assert resolved("4x0.2", *settings).recipe.trainer.ranks == 2
    with pytest.raises(
        RecipeError, match=r"`generation.tensor_parallel`: inference_worker-0: weights take 0.03 GiB of 0.02 GiB"
    ):
        resolved("2x0.02", *settings, "trainer.device=cpu")


@pytest.mark.parametrize(
    ("devices", "staleness", "sleep"),
    [("1", 0, "on"), ("1", 2, "off"), ("2", 0, "off"), ("0", 0, "auto")],
)
def test_engines_sleep_where_synchronous_training_shares_their_device(devices, staleness, sleep):
    assert resolved(devices, f"staleness_gate.max_staleness={staleness}").recipe.generation.sleep == sleep


def test_beside_an_engine_that_sleeps_the_trainer_counts_with_what_it_keeps_between_steps(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"weight": np.zeros((4096, 4096), np.uint8)}, tmp_path / "model.safetensors")
    settings = [
        f"model={tmp_path}",
        "task.dataset=arithmetic",
        "staleness_gate.max_staleness=0",
        "trainer.memory_fraction=0.9",
    ]
    assert resolved("1x1", *settings, "generation.memory_fraction=0.7").recipe.generation.sleep == "on"
    for crowding in (["generation.memory_fraction=0.8"], ["generation.memory_fraction=0.7", "generation.sleep=off"]):
        with pytest.raises(
            RecipeError, match=r"would have these shares of its memory: trainer 90%, inference_worker [78]0%"
        ):
            resolved("1x1", *settings, *crowding)


@pytest.mark.parametrize(
    ("profile", "parameters", "ranks", "workers"),
    [
        ("cuda", 1.54e9, 1, 1),
        ("qwen3-4b", 4.02e9, 2, 2),
        ("qwen3-8b", 8.19e9, 4, 4),
        ("qwen3-8b-lora", 8.19e9, 1, 1),
    ],
)
def test_the_models_of_the_main_recipe_fit_the_machines_that_it_names(profile, parameters, ranks, workers):
    """With as many GPUs of 80 GB: weights, gradients and optimizer state leave half of a rank's memory to
    activations."""
    files = [RECIPE] if profile == "cuda" else [RECIPE, RECIPE.with_name("qwen3.toml")]
    found = load(files, [f"profile={profile}"], pretended_cuda(f"{ranks + workers}x80"), serving=False)
    trainer, generation = found.recipe.trainer, found.recipe.generation
    assert (trainer.ranks, found.recipe.actors.inference_worker.count) == (ranks, workers)
    assert (trainer.dtype, generation.dtype, trainer.published_dtype) == ("bfloat16",) * 3
    trained = 0 if trainer.lora else 12
    assert parameters * (4 + trained) / ranks < 0.5 * 80e9
    assert parameters * 2 / generation.tensor_parallel < 0.5 * 80e9
    assert found.recipe.trainer.lora is None or found.recipe.trainer.lora.published == "adapter"


def test_the_plan_names_every_device_with_its_processes():
    lines = list(device_plan(resolved("3x80", "trainer.ranks=2", "generation.devices=[1]")))
    assert lines == [
        "devices     3 CUDA devices (--devices), each of 80 GiB",
        "            0  trainer rank 0: all of its memory (80 GiB)",
        "            1  inference_worker: 90% of its memory (72 GiB)",
        "            2  trainer rank 1: all of its memory (80 GiB)",
    ]


@pytest.mark.parametrize(
    ("inherited", "expected"), [(None, "2,0"), ("4,5,6", "6,4"), ("GPU-a, GPU-b ,GPU-c", "GPU-c,GPU-a"), ("", "")]
)
def test_devices_are_numbered_as_the_launching_process_sees_them(inherited, expected):
    devices = (2, 0) if expected else ()
    assert visibility(devices, {} if inherited is None else {VISIBLE: inherited}) == expected


def test_a_process_without_devices_sees_none():
    found = resolved("2")
    variables = {
        process: device_variables(found.recipe, process, found.cuda)
        for process in ("trainer", "inference_worker", "gateway")
    }
    assert variables == {
        "trainer": {VISIBLE: "0", MEMORY_FRACTION: "1"},
        "inference_worker": {VISIBLE: "1", MEMORY_FRACTION: "0.9"},
        "gateway": {VISIBLE: "", MEMORY_FRACTION: "1"},
    }
    assert device_variables(found.recipe, "trainer", CudaDevices(0, "none")) == {}


def test_check_prints_the_map_of_another_machine():
    command = [sys.executable, "-m", "areal_actors", "check", str(RECIPE), "--devices"]
    shown = subprocess.run([*command, "8x80"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
    assert "# profile     cuda: 8 CUDA devices (--devices)" in shown
    assert "inference_worker-3: 90% of its memory (72 GiB)" in shown
    wrong = subprocess.run([*command, "many"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert wrong.returncode == 2
    assert "found 'many'; write COUNT, as 8, or COUNTxGIB, as 8x80" in wrong.stderr
    printed = subprocess.run(
        [*command, "2", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    ).stdout
    assert json.loads(printed)["cuda"]["count"] == 2


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler makes the pretended driver")
def test_every_process_of_a_run_has_its_own_devices(tmp_path: Path):
    """The driver is pretended, the processes and their environments are real; what they compute, they compute on the
    CPU."""
    source, driver = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, source], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), VISIBLE: "4,5,6,7"}
    settings = [
        "profile=embedded",
        "steps=100000",
        "trainer.ranks=2",
        "actors.inference_worker.count=2",
        f"folder={tmp_path}",
    ]
    command = [
        sys.executable,
        "-m",
        "areal_actors",
        "run",
        str(RECIPE),
        *settings,
        "evaluation.tasks=0",
        "warm_start.steps=2",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            seen = devices_of_processes(run)
        finally:
            run.terminate()
            errors = run.communicate(timeout=300)[1]
    assert seen == {
        **{key: {""} for key in ("control", "gateway", "rollout_worker", "reward_worker")},
        "trainer": {"4,5"},
        "rank": {"4,5"},
        "inference_worker-0": {"6"},
        "inference_worker-1": {"7"},
    }, errors


def devices_of_processes(run: subprocess.Popen[str]) -> dict[str, set[str]]:
    """Returns the visible devices of each process of a run, once all of them and two ranks have started."""
    names = {
        "control",
        "gateway",
        "rollout_worker",
        "reward_worker",
        "trainer",
        "inference_worker-0",
        "inference_worker-1",
        "rank",
    }
    while run.poll() is None:
        seen: dict[str, set[str]] = {}
        ranks = 0
        for process in psutil.Process(run.pid).children(recursive=True):
            try:
                words, variables = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            if "areal_actors.training.distributed.rank_process" in words:
                ranks += 1
                seen.setdefault("rank", set()).add(variables.get(VISIBLE, "unset"))
            elif words and words[-1] in names:
                seen.setdefault(words[-1], set()).add(variables.get(VISIBLE, "unset"))
        if seen.keys() == names and ranks == 2:
            return seen
        time.sleep(0.2)
    raise AssertionError(f"the run ended: {run.communicate()[1]}")
