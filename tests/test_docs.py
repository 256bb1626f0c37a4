"""The documentation runs as it is written: every block of README.md and docs/*.md with a language, in a copy of the
repository.

tests/support/doc_blocks.py has the directives for running a block. Shell blocks are run by `bash` with stand-ins for
`just`, `areal-actors` and `pip`: `just COMMAND` is the command of .venv, with the settings of a small run behind those
of the block.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from support.algorithm_cases import batch_of, flat, step_of, stories
from support.controller_harness import ROWS, controller, recipe_for, task_settings
from support.doc_blocks import BLOCKS, MAIN, PAGES, ROOT, SMALL, SMALL_EXAMPLES, Block, blocks_of, program

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.paths import find_recipe
from areal_actors.training.algorithms import Algorithm

LANGUAGES = {"", "sh", "toml", "python", "sql"}  # SQL of the history is run by test_history_reference.py
MOST_NOT_RUN = 10
SECONDS = 600.0
"""Time limit of a block that takes seconds on an idle machine."""
COPIED = ("agents", "recipes", "benchmarks", "tests/support/mcp_server.py", "tests/recordings/log-2.xz")
TOOL = """\
#!{python}
import subprocess, sys
sys.path.insert(0, {tests!r})
from test_docs import small_command
raise SystemExit(subprocess.run(small_command({name!r}, sys.argv[1:], {settings!r})).returncode)
"""
ASKS_FOR_A_SHELL = re.compile(r"^\s*\$?\s*(just|areal|python3?|pip|torchrun) [\w./-]")


def runnable(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and not block.not_run]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Files that the blocks name, in a folder of its own; `.environments` have this interpreter."""
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for interpreter in (
        ".venv",
        *(f".environments/{name}" for name in ("camel", "frameworks", "gymnasium", "openenv", "verifiers")),
    ):
        (tmp_path / interpreter).parent.mkdir(exist_ok=True)
        (tmp_path / interpreter).symlink_to(sys.prefix)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small_command(name: str, words: list[str], settings: list[str]) -> list[str]:
    """Stand-in for `just`, `areal-actors` or `pip`: the command itself, and for a run a small one."""
    if name == "pip":
        return [sys.executable, "-c", ""]
    command, *rest = words
    recipes = (ROOT / "justfile").read_text(encoding="utf-8")
    if name == "just" and not re.search(rf"^{command}( \*?\w+)*:", recipes, re.MULTILINE):
        raise SystemExit(f"just: there is no recipe `{command}`")
    made = [sys.executable, "-m", "areal_actors", command, *rest]
    if command not in {"run", "check"}:
        return made
    for small in (SMALL, SMALL[1:], SMALL_EXAMPLES):
        try:
            load(
                [find_recipe(word) for word in rest if "=" not in word],
                [*(word for word in rest if "=" in word), *small],
                CudaDevices(0, "none"),
            )
        except RecipeError:
            continue
        return [*made, *small, "steps=1", *settings]
    return made


def run_in(folder: Path, command: list[str], path: Path | None = None) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PATH": os.pathsep.join([*([str(path)] if path else []), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
    }
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout


# ------------------------------------------------------------ the rule


def test_every_runnable_block_names_its_language():
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block}: `{block.language}` is not run; write one of {sorted(LANGUAGES)}"
        if not block.language:
            assert not any(map(ASKS_FOR_A_SHELL.match, block.text.splitlines())), (
                f"{block} has commands; write its language behind the fence"
            )
    for page in PAGES:
        fenced = {
            line for block in blocks_of(page) for line in range(block.line, block.line + block.text.count("\n") + 2)
        }
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            if line.startswith("    ") and number not in fenced:
                assert not ASKS_FOR_A_SHELL.match(line), (
                    f"{page.name}:{number}: put commands into a fence, with a language"
                )


def test_few_blocks_are_not_run_and_each_has_a_reason():
    illustrative = [block for block in BLOCKS if block.not_run]
    assert len(illustrative) <= MOST_NOT_RUN, "run it, or take it out: " + ", ".join(map(str, illustrative))
    assert all(len(block.not_run.split()) >= 4 for block in illustrative), "a reason is a sentence"
    assert len(BLOCKS) - len(illustrative) >= 15


def test_an_unknown_directive_of_a_comment_is_refused():
    with pytest.raises(ValueError, match=r"README.md:1: `quickly` is nothing that a comment above a block may say"):
        Block(ROOT / "README.md", 1, "sh", "").marked("with steps=1; quickly")


# ------------------------------------------------------------ the blocks


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("block", runnable("sh"), ids=str)
def test_commands_do_what_the_page_describes(block, copy):
    tools = copy / "tools"
    tools.mkdir()
    for name in ("just", "areal-actors", "pip"):
        tool = tools / name
        tool.write_text(
            TOOL.format(python=sys.executable, tests=str(ROOT / "tests"), name=name, settings=[*block.settings])
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    run_in(copy, ["bash", "-euo", "pipefail", "-c", block.text], tools)
    assert list(copy.glob("runs/*/summary.txt")) or "just run" not in block.text


@pytest.mark.parametrize("block", runnable("toml"), ids=str)
def test_recipes_and_fragments_are_checked(block, copy):
    (copy / "block.toml").write_text(block.text)
    whole = "run" in tomllib.loads(block.text)
    for devices in (CudaDevices(0, "none"), CudaDevices(8, "eight")):
        files = [Path("block.toml")] if whole else [Path(block.over), Path("block.toml")]
        settings = ["task.dataset=arithmetic"] * (not whole)
        if not (whole and devices.count):
            load(files, [*settings, *block.settings], devices)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("block", [block for block in runnable("toml") if "run" in tomllib.loads(block.text)], ids=str)
def test_a_whole_recipe_trains(block, copy):
    (copy / "block.toml").write_text(block.text)
    lengths = load([Path("block.toml")], [], CudaDevices(0, "none")).recipe
    assert lengths.sampling.max_tokens < lengths.generation.max_model_len
    run_in(copy, [sys.executable, "-m", "areal_actors", "run", "block.toml", *SMALL, "steps=1", *block.settings])


def defined(block: Block, *methods: str) -> str:
    """The class of a block that has one of these methods."""
    for node in ast.parse(block.text).body:
        if isinstance(node, ast.ClassDef) and {getattr(one, "name", "") for one in node.body} & set(methods):
            return node.name
    return ""


def is_script(block: Block) -> bool:
    return '__name__ == "__main__"' in program(block)


AGENTS = [block for block in runnable("python") if defined(block, "run", "arun_episode")]
SCRIPTS = [block for block in runnable("python") if is_script(block)]
ALGORITHMS = [block for block in runnable("python") if "(Algorithm" in block.text]


def test_every_block_of_python_is_of_a_kind_that_is_run():
    assert set(map(str, runnable("python"))) == set(map(str, [*AGENTS, *SCRIPTS, *ALGORITHMS]))


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # clients left open
@pytest.mark.parametrize("block", AGENTS, ids=str)
async def test_an_agent_plays_episodes_that_can_be_trained(block, copy, tmp_path):
    (copy / "block.py").write_text(block.text)
    name = f"block.py:{defined(block, 'run', 'arun_episode')}"
    (copy / "reward.py").write_text("def reward(task, output):\n    return float(len(output) % 2)\n")
    recipe = recipe_for(tmp_path, task=task_settings(reward="reward.py:reward", timeout_seconds=SECONDS, retries=9))
    async with controller(recipe, root=copy) as rollouts:
        batch = await rollouts.rollout_batch(ROWS[:2], name)
        assert [abandoned.detail for abandoned in rollouts.abandoned] == []
        assert len(batch.references()) == 4


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_a_program_runs_to_its_end(block, copy):
    (copy / "program.py").write_text(program(block))
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(block.ranks)] * (block.ranks > 1)
    run_in(copy, [sys.executable, *ranks, "program.py"])


@pytest.mark.parametrize("block", ALGORITHMS, ids=str)
def test_an_algorithm_has_a_loss_of_every_token(block, copy):
    (copy / "block.py").write_text(block.text)
    names = runpy.run_path("block.py")
    kind = next(
        value
        for value in names.values()
        if isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm
    )
    rows = stories()
    advantages = kind(group_size=4).advantages(step_of(rows))
    logp = flat(rows, "logp")
    losses = kind(group_size=4).loss(batch_of(rows)[0], logp)
    assert losses.losses.shape == logp.shape
    assert advantages.tokens.shape == (sum(len(row.behaviour) for row in rows),)
    assert torch.isfinite(losses.losses).all()


def test_the_main_recipe_is_what_fragments_are_laid_over():
    assert {block.over for block in BLOCKS} == {MAIN, "recipes/customer_service.toml"}
