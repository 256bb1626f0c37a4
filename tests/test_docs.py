"""The documentation runs as it is written: every block of README.md and docs/*.md with a language, in a copy of the
repository. Here are the rules, and the blocks that take seconds.

tests/support/doc_blocks.py has the directives for running a block. Shell blocks (test_docs_first_hour.py,
test_docs_commands.py) are run by `bash` with stand-ins for `just`, `areal-actors` and `pip`: `just COMMAND` is the
command of .venv, with the settings of a small run behind those of the block. Programs: test_docs_programs.py.
"""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path

import pytest
import torch
from support.algorithm_cases import batch_of, flat, step_of, stories
from support.controller_harness import ROWS, controller, recipe_for, task_settings
from support.doc_blocks import BLOCKS, MAIN, PAGES, ROOT, Block, blocks_of
from support.doc_runs import SECONDS, copy_repository, runnable, scripts

from areal_actors.core.devices import CudaDevices
from areal_actors.recipe.load import load
from areal_actors.training.algorithms import Algorithm

LANGUAGES = {"", "sh", "toml", "python", "sql"}  # SQL of the history is run by test_history_reference.py
MOST_NOT_RUN = 10
ASKS_FOR_A_SHELL = re.compile(r"^\s*\$?\s*(just|areal|python3?|pip|torchrun) [\w./-]")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    monkeypatch.chdir(copy_repository(tmp_path))
    return tmp_path


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


@pytest.mark.parametrize("block", runnable("toml"), ids=str)
def test_recipes_and_fragments_are_checked(block, copy):
    (copy / "block.toml").write_text(block.text)
    whole = "run" in tomllib.loads(block.text)
    for devices in (CudaDevices(0, "none"), CudaDevices(8, "eight")):
        files = [Path("block.toml")] if whole else [Path(block.over), Path("block.toml")]
        settings = ["task.dataset=arithmetic"] * (not whole)
        if not (whole and devices.count):
            load(files, [*settings, *block.settings], devices)


def defined(block: Block, *methods: str) -> str:
    """The class of a block that has one of these methods."""
    for node in ast.parse(block.text).body:
        if isinstance(node, ast.ClassDef) and {getattr(one, "name", "") for one in node.body} & set(methods):
            return node.name
    return ""


AGENTS = [block for block in runnable("python") if defined(block, "run", "arun_episode")]
ALGORITHMS = [block for block in runnable("python") if "(Algorithm" in block.text]


def test_every_block_of_python_is_of_a_kind_that_is_run():
    assert set(map(str, runnable("python"))) == set(map(str, [*AGENTS, *scripts(), *ALGORITHMS]))


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
