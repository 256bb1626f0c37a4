"""Tensors live in trainer and inference processes only; every other process stays light and starts fast."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers")

WITH_TENSORS = (
    "replay.what_if",
    *("replay.trained_columns", "replay.episode_trace", "replay.trace", "replay.trace_page"),
    "cli.asking",
    "training",
    "embedded",
    "weights",
    "library.controllers",
    "compat",
    "tinker",
    "rewards.reward_model",
    "vision.embedding",
    "models.convert",
    "calibration.measure",
    "run.tensor_process",
    "run.recompute",
    "run.served_model",
    "run.recipe_model",
    "run.training_engine",
    "__main__",
    "core.environment_host",
    "generation.servers.server_side",
)
"""Folders and modules that may load torch: `__main__` runs the command line when it is imported, `environment_host` and `server_side` are
for other interpreters."""
LIGHT = {
    *("embedded.settings", "training.checkpoint_retention", "training.checkpoint_store", "training.checkpointer", "training.engine"),
    *("training.engine_mismatch", "training.settings", "weights.folders", "weights.manifest", "weights.weight_files"),
    *("tinker", "tinker.command"),
}
"""Modules in these folders that a gateway, rollout, reward, control, monitor or cli process imports."""


def modules():
    for path in sorted([*(ROOT / "areal_actors").rglob("*.py"), *(ROOT / "bus").rglob("*.py")]):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        name = module.removeprefix("areal_actors.")
        if name in LIGHT or not f"{name}.".startswith(tuple(f"{heavy}." for heavy in WITH_TENSORS)):
            yield module


def test_no_process_without_tensors_loads_torch():
    program = (
        "import importlib, sys\n"
        f"for module in {list(modules())!r}:\n"
        "    importlib.import_module(module)\n"
        f"    for heavy in {HEAVY!r}:\n"
        "        if heavy in sys.modules: sys.exit(f'{module} loads {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["areal_actors.training.torch_trainer"])
def test_the_check_can_fail(module):
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=300, check=False)
    assert done.returncode == 1
