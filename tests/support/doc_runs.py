"""Blocks of the documentation as commands and programs, in a copy of what they name."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from support.doc_blocks import BLOCKS, ROOT, SMALL, SMALL_EXAMPLES, Block, program

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.paths import find_recipe

SECONDS = 600.0
"""Time limit of a block that takes seconds on an idle machine."""
FIRST_HOUR = {"README.md", "bring-a-model.md", "first-agent.md", "first-run.md", "troubleshooting.md", "web-page.md"}
"""Pages whose commands are a file of tests of their own: a file is what one worker of the tests runs."""
COPIED = ("agents", "recipes", "benchmarks", "tests/support/mcp_server.py", "tests/recordings/log-2.xz")
ENVIRONMENTS = ("camel", "frameworks", "gymnasium", "openenv", "verifiers")
TOOL = """\
#!{python}
import subprocess, sys
sys.path.insert(0, {tests!r})
from support.doc_runs import small_command
raise SystemExit(subprocess.run(small_command({name!r}, sys.argv[1:], {settings!r})).returncode)
"""


def runnable(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and not block.not_run]


def shell_blocks(*, first_hour: bool) -> list[Block]:
    return [block for block in runnable("sh") if (block.page.name in FIRST_HOUR) is first_hour]


def whole_recipes() -> list[Block]:
    return [block for block in runnable("toml") if "run" in tomllib.loads(block.text)]


def scripts() -> list[Block]:
    return [block for block in runnable("python") if '__name__ == "__main__"' in program(block)]


def copy_repository(folder: Path) -> Path:
    """`folder` with the files that the blocks name; `.environments` have this interpreter."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for interpreter in (".venv", *(f".environments/{name}" for name in ENVIRONMENTS)):
        (folder / interpreter).parent.mkdir(exist_ok=True)
        (folder / interpreter).symlink_to(sys.prefix)
    return folder


def small_command(name: str, words: list[str], settings: Iterable[str]) -> list[str]:
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
    """Standard output of a command that ends well within `SECONDS`; `path` stands before PATH."""
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


def run_shell_block(block: Block, folder: Path) -> None:
    """The commands of a block in a copy of the repository, each run of it a small one that ends with a summary."""
    copy_repository(folder)
    tools = folder / "tools"
    tools.mkdir()
    for name in ("just", "areal-actors", "pip"):
        tool = tools / name
        tool.write_text(
            TOOL.format(python=sys.executable, tests=str(ROOT / "tests"), name=name, settings=[*block.settings])
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    run_in(folder, ["bash", "-euo", "pipefail", "-c", block.text], tools)
    assert list(folder.glob("runs/*/summary.txt")) or "just run" not in block.text
