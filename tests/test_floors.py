"""The code has layers (floors); a lower one never imports a higher one."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path for top in ("bus", "areal_actors") for path in (ROOT / top).rglob("*.py"))
LONGEST = 400

FLOORS = {
    0: ["bus"],
    1: ["", "agent_host", "config", "devices", "durable_files", "errors", "message_ids", "messages", "run_lock", "settings", "values"],
    2: ["algorithms", "conversations", "datasets", "dialects", "loading", "rewards", "sandbox", "sessions", "steps", "tool_parsers"],
    3: ["engines", "text"],
    4: [
        *("actor", "agent_runners", "chaos", "fold_keeper", "gateway", "named_wait", "runtime", "snapshots", "tool_schema", "tooling"),
        *("work_items", "workflow"),
    ],
    5: ["actors"],
    6: ["display", "recipe", "replay", "run", "run_folder"],
    7: ["__main__", "cli", "controllers"],
}
"""The package itself has the empty name."""

IN_TOUCH = ("datasets", "rewards", "loading", "sandbox")
"""Modules of floor 2 that read files, run programs or import the user's code; the rest only computes."""
OUTSIDE = {
    *(
        "aiohttp",
        "asyncio",
        "concurrent",
        "http",
        "httpx",
        "huggingface_hub",
        "io",
        "multiprocessing",
        "nats",
        "os",
        "requests",
        "resource",
    ),
    *("select", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time"),
}
"""Modules for files, processes, the network and the clock."""
FILE_CALLS = {"open", "read_bytes", "read_text", "write_bytes", "write_text"}


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def floor_of(module):
    """The floor of one of our modules, or None when no floor has it."""
    top, _, rest = module.partition(".")
    name = "bus" if top == "bus" else rest.partition(".")[0]
    return next((number for number, names in FLOORS.items() if name in names), None)


def imports(tree):
    """Every project module that is imported anywhere in this tree, with its line; what only a type checker sees is left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in ("bus", "areal_actors") and is_module(name):
                yield name, node.lineno


def is_module(name):
    place = ROOT / Path(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def touches(tree):
    """Modules and calls in this tree by which a program reaches what is outside it, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and (name := getattr(node.func, "attr", getattr(node.func, "id", ""))) in FILE_CALLS:
            yield name, node.lineno
            continue
        else:
            continue
        yield from ((name, node.lineno) for name in names if name.partition(".")[0] in OUTSIDE)


@pytest.mark.parametrize("path", [path for path in FILES if floor_of(module_of(path)) == 2], ids=module_of)
def test_pure_thought_touches_neither_files_nor_processes_nor_the_clock(path):
    if module_of(path).split(".")[1] not in IN_TOUCH:
        assert list(touches(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("code", ["import os.path", "from subprocess import run", "import time", "open('x')", "path.read_text()"])
def test_the_check_of_pure_thought_can_fail(code):
    assert len(list(touches(ast.parse(code)))) == 1


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_every_module_has_a_floor_and_imports_point_down(path):
    module = module_of(path)
    floor = floor_of(module)
    assert floor is not None, f"{module} has no floor: give it one in tests/test_floors.py, see docs/architecture.md"
    for imported, line in imports(ast.parse(path.read_text())):
        if imported != "areal_actors":
            assert floor_of(imported) is not None, f"{path}:{line} imports {imported}, which has no floor"
            assert floor_of(imported) <= floor, f"{path}:{line}: {module} (floor {floor}) imports {imported} (floor {floor_of(imported)})"


def test_no_folders_import_each_other_in_a_circle():
    needs = {}
    for path in FILES:
        folder = folder_of(module_of(path))
        imported = {folder_of(name) for name, _ in imports(ast.parse(path.read_text()))}
        needs.setdefault(folder, set()).update(imported - {folder, "areal_actors"})
    order = graphlib.TopologicalSorter(needs)
    order.prepare()  # raises CycleError, which names the circle
    assert order.get_ready()


def folder_of(module):
    """`areal_actors.steps` of all that lies in it; files beside the folders stand for themselves."""
    return ".".join(module.split(".")[: 1 if module.startswith("bus") else 2])


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_project_import_hides_in_a_function(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            assert list(imports(node)) == [], f"{path}:{node.lineno}: imports stand at the top of the file"


@pytest.mark.parametrize("path", sorted((ROOT / "areal_actors/actors").glob("*.py")), ids=module_of)
def test_no_actor_imports_another(path):
    module = module_of(path)
    actors = {module_of(other) for other in (ROOT / "areal_actors/actors").glob("*.py") if defines_actor(other)} - {module}
    assert [found for found in imports(ast.parse(path.read_text())) if found[0] in actors] == []


def defines_actor(path):
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return any(isinstance(base, ast.Name) and base.id == "Actor" for node in classes for base in node.bases)


def test_engines_never_touch_the_bus():
    for path in (ROOT / "areal_actors/engines").rglob("*.py"):
        imported = {name for name, _ in imports(ast.parse(path.read_text()))}
        assert {name for name in imported if name.startswith("bus")} <= {"bus", "bus.message"}, path


@pytest.mark.parametrize(
    "path", [*FILES, *sorted((ROOT / "tests").glob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))], ids=lambda p: p.name
)
def test_no_file_is_longer_than_400_lines(path):
    lines = len(path.read_text().splitlines())
    assert lines <= LONGEST, f"{path} has {lines} lines; it tells more than one story"


def test_a_floor_names_only_modules_that_exist():
    for names in FLOORS.values():
        for name in names:
            assert name in ("", "bus") or is_module(f"areal_actors.{name}"), f"tests/test_floors.py names {name}, which does not exist"
