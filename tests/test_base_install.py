"""A base install, without torch and the other packages of extras: its modules load, its commands work, and what it
lacks is named."""

import json
import subprocess
import sys
import tomllib
from importlib import metadata

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.regions import ABSENT, ROOT, base_environment, base_modules
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from areal_actors.core.extras import EXTRAS, extra_of
from areal_actors.tokenization.byte_pairs import byte_characters

HEAVY = ("torch", "transformers", "peft", "matplotlib")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}<|end|>{% endfor %}assistant: "
AGENT = """
from openai import AsyncOpenAI

async def run(task, *, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        messages = [{"role": "user", "content": task["question"]}]
        answer = await client.chat.completions.create(model="default", messages=messages)
    return answer.choices[0].message.content

def reward(task, output):
    return float(output == task["answer"])
"""
RECIPE = """
run   = "far"
steps = 2
model = "model"

[task]
agent   = "agent.py:run"
reward  = "agent.py:reward"
dataset = "tasks.jsonl"

[generation]
engine      = "vllm"
server.urls = ["http://engine.example:8000"]

[trainer]
device = "cpu"
"""


def python(*words, cwd=ROOT):
    """A process of a base install."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=base_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def areal(*words, cwd):
    return python("-m", "areal_actors", *words, cwd=cwd)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE({character: byte for byte, character in byte_characters().items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>"}))
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    save_file({"weight": np.zeros((4, 4), np.float32)}, folder / "model.safetensors")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text(
        "\n".join(json.dumps({"question": f"{number}+0", "answer": str(number)}) for number in range(400))
    )
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def test_every_module_of_the_base_loads_without_the_packages_of_extras():
    modules = base_modules()
    assert len(modules) > 500
    program = f"import importlib, sys\nfor module in {modules!r}:\n    importlib.import_module(module)\n"
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def test_no_module_of_the_base_loads_torch_where_it_is_installed():
    program = (
        "import importlib, sys\n"
        f"for module in {base_modules()!r}:\n"
        "    importlib.import_module(module)\n"
        f"    for heavy in {HEAVY!r}:\n"
        "        if heavy in sys.modules: sys.exit(f'{module} loads {heavy}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["areal_actors.training.torch_trainer", "areal_actors.embedded.transformers"])
def test_the_check_can_fail(module):
    done = python("-c", f"import {module}")
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr


def test_help_of_every_command_needs_no_extra(tmp_path):
    done = areal("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_recipe_with_an_engine_over_http_is_checked_and_its_task_played(project):
    done = areal("check", "recipe.toml", cwd=project)
    assert done.returncode == 0, done.stderr
    assert (
        'a run cannot start on this machine: the trainer and generation.server.weights = "broadcast": this installation'
        " lacks torch" in done.stdout
    )
    assert ": reward 1, 1 model calls" in done.stdout.partition("# ---- Rehearsal")[2]


def test_a_run_is_refused_before_anything_starts_with_the_extra_of_what_it_lacks(project):
    done = areal("run", "recipe.toml", cwd=project)
    assert done.returncode == 1
    assert done.stderr.endswith(
        'SetupError: the trainer and generation.server.weights = "broadcast": this installation lacks torch,'
        " transformers, peft, safetensors, matplotlib: pip install 'areal-actors[train]'\n"
    )
    assert not (project / "runs").exists() or list((project / "runs").iterdir()) == []


def test_the_embedded_model_is_refused_with_both_extras(project):
    done = areal("run", "gsm8k_grpo", "profile=embedded", cwd=project)
    assert done.returncode == 1
    assert (
        'the trainer and model = "embedded" and generation.engine = "transformers": this installation lacks torch, '
        in done.stderr
    )
    assert done.stderr.endswith("pip install 'areal-actors[train,embedded]'\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("what-if", "run", "task.turn_discount=0.9", "--train"), "--train needs torch, "),
        (("serve", "tinker", "--port", "0"), "tinker needs torch, "),
        (("audit", "run", "--recompute"), "--recompute needs torch, "),
        (
            ("compare", "one", "two", "--plot", "x.png"),
            "--plot needs matplotlib, which this installation lacks: pip install 'areal-actors[",
        ),
    ],
    ids=lambda value: value[0],
)
def test_a_command_names_the_extra_that_it_needs(tmp_path, words, complaint):
    done = areal(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("SetupError: ")
    assert complaint in done.stderr


def test_doctor_lists_the_extras_and_what_they_lack(tmp_path):
    done = areal("doctor", cwd=tmp_path)
    assert done.returncode == 1
    for extra, modules in EXTRAS.items():
        (line,) = [line for line in done.stdout.splitlines() if f"  extra {extra} " in line]
        assert line.endswith(f"not installed: {', '.join(modules)}")


def test_the_table_of_extras_is_that_of_the_distribution():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        stated = " ".join(required(declared["optional-dependencies"], extra))
        for module in modules:
            assert any(name.lower() in stated.lower() for name in packages[module]), (
                f"[{extra}] does not bring {module}"
            )
    base = " ".join(declared["dependencies"])
    assert [module for module in ABSENT if f"{module}>" in base] == []


def required(optional, extra):
    """The distributions of an extra, also through the others that it names."""
    for line in optional[extra]:
        if line.startswith("areal-actors["):
            for name in line.removeprefix("areal-actors[").rstrip("]").split(","):
                yield from required(optional, name)
        else:
            yield line


def test_a_module_has_the_smallest_extra_that_brings_it():
    assert extra_of("torch.nn") == "train"
    assert extra_of("matplotlib.figure") == "inspect"
    assert extra_of("llguidance") == "embedded"
    assert extra_of("numpy") == ""
