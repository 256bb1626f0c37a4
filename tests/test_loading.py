import dataclasses
import sys
from pathlib import Path

import pytest

from areal_actors.core.errors import RecipeError
from areal_actors.core.loading import load_named

ROOT = Path(__file__).parent.parent


def test_the_example_agent_loads_and_imports_nothing_of_ours_but_the_light_client():
    agent = load_named("agents/gsm8k.py:Gsm8kAgent", ROOT)
    assert callable(agent.run)
    source = (ROOT / "agents" / "gsm8k.py").read_text()
    assert "areal" not in source.replace("from areal_actors.client import LightClient\n", "")


def test_a_loaded_file_has_a_name_of_its_own(tmp_path):
    (tmp_path / "json.py").write_text(
        "from __future__ import annotations\nimport dataclasses\n\n@dataclasses.dataclass\nclass Point:\n    x: int\n"
    )
    point = load_named("json.py:Point", tmp_path)
    assert dataclasses.asdict(point(x=3)) == {"x": 3}
    assert point.__module__ != "json"
    assert sys.modules["json"].loads("1") == 1


def test_a_file_imports_those_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "rules_of_mine.py").write_text("two = 2\n")
    (tmp_path / "json.py").write_text("")
    (tmp_path / "agent.py").write_text("import json\nfrom rules_of_mine import two\n\ndumped = json.dumps(two)\n")
    assert load_named("agent.py:dumped", tmp_path) == "2"
    del sys.modules["rules_of_mine"]


def test_an_absolute_path_needs_no_root(tmp_path):
    (tmp_path / "numbers.py").write_text("one = 1\n")
    assert load_named(f"{tmp_path}/numbers.py:one", Path("/nowhere")) == 1


@pytest.mark.parametrize("spec", ["kit_of_agents.solvers:one", "kit_of_agents.solvers.one"])
def test_a_dotted_name_is_installed_or_counts_from_the_root(tmp_path, monkeypatch, spec):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "kit_of_agents").mkdir(exist_ok=True)
    (tmp_path / "kit_of_agents/solvers.py").write_text("one = 1\n")
    assert load_named(spec, tmp_path) == 1
    assert load_named("json:loads", tmp_path)("2") == 2
    for name in [name for name in sys.modules if name.startswith("kit_of_agents")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("spec", "text", "complaint"),
    [
        ("mine.py", "", "`mine.py` must have the form `path.py:Name`"),
        ("mine:my agent", "", "must have the form"),
        ("Agent", "", "must have the form"),
        ("no.such:Agent", "", "finds no module `no.such`, neither installed nor in /"),
        ("no.such.Agent", "", "finds no module `no.such`, neither installed nor in /"),
        ("json:Agent", "", "`json:Agent`: /.*/json/__init__.py has no `Agent`; it defines: "),
        ("mine.py:my agent", "", "must have the form"),
        ("other.py:Agent", "", r"there is no file /.*/other.py; paths are relative to /"),
        ("mine.py:Agnet", "class Agent: ...\n", "has no `Agnet`; did you mean `Agent`?"),
        ("mine.py:Agent", "class Solver: ...\n", "has no `Agent`; it defines: Solver"),
        ("mine.py:Agent", "", "has no `Agent`; it defines: nothing"),
        ("mine.py:Agent", "one = 1\n\ntwo = 1 / 0\n", r"mine.py:3 raised ZeroDivisionError: division by zero"),
        ("mine.py:Agent", "def half(x):\n    return x / 0\n\nhalf(1)\n", r"mine.py:2 raised ZeroDivisionError"),
        ("mine.py:Agent", "one = 1\ntwo = (\n", r"mine.py:2 raised SyntaxError: '\(' was never closed"),
        (
            "mine.py:Agent",
            "import no_such_package\n",
            r"mine.py:1 raised ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("mine.py:Agent", "import sys\nsys.exit(3)\n", r"mine.py:2 raised SystemExit: 3"),
    ],
)
def test_an_import_that_fails_is_reported_with_its_place(tmp_path, spec, text, complaint):
    (tmp_path / "mine.py").write_text(text)
    before = set(sys.modules)
    with pytest.raises(RecipeError, match=complaint):
        load_named(spec, tmp_path)
    left = {name for name in set(sys.modules) - before if name.startswith("loaded_")}
    assert all("raised" not in complaint for _ in left)
