"""Import names that other packages use too, and how we keep out of their way."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import areal_bus

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["agents", "recipes", "tests", "benchmarks", "docs"])
def test_folders_beside_the_packages_are_no_packages(folder):
    assert list((ROOT / folder).rglob("__init__.py")) == []


def test_tests_are_in_one_folder_and_their_helpers_in_another():
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert {folder for folder in folders if ROOT / "tests/support" not in folder.parents} == {
        ROOT / "tests",
        ROOT / "tests/support",
    }


def test_bus_is_ours():
    assert Path(areal_bus.__file__).parent == ROOT / "bus" / "areal_bus"


def test_an_installed_package_called_agents_is_not_shadowed(tmp_path):
    package = tmp_path / "agents"
    package.mkdir()
    (package / "__init__.py").write_text("class Agent: ...\n")
    program = (
        f"import sys; sys.path.append({str(tmp_path)!r}); from agents import Agent;"
        " print(sys.modules['agents'].__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == str(package / "__init__.py")


OF_OURS = {"coding_agent.py", "mcp_tools.py", "python_tools.py"}
"""The agents that show `areal_actors.library.tooling` and `areal_actors.sandbox`, and one that tests repositories
there."""


def test_agents_import_at_most_our_client():
    for path in (path for path in (ROOT / "agents").glob("*.py") if path.name not in OF_OURS):
        lines = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
        imported = {line.split()[1] for line in lines} - {"areal_actors.client"}
        assert not [name for name in imported if name.partition(".")[0] in ("areal_actors", "areal_bus")], path


@pytest.mark.slow
def test_the_name_of_the_command_is_a_constant():
    """In messages and hints; docstrings, and programs of other interpreters, write it out."""
    apart = (
        "core/agent_host",
        "core/environment_host",
        "generation/servers/server_side",
        "sandbox",
        "track",
        "core/command.py",
    )
    written = re.compile(r"\bareal(-actors)? (run|check|join|resume|model)\b")
    found = []
    for path in sorted((ROOT / "areal_actors").rglob("*.py")):
        if not written.search(text := path.read_text()):
            continue
        tree = ast.parse(text)
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        strings = (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        )
        if not path.relative_to(ROOT / "areal_actors").as_posix().startswith(apart):
            found += [f"{path}:{node.lineno}" for node in strings if written.search(node.value)]
    assert found == []
