"""The code has layers; a lower one never imports a higher one."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path for top in ("bus", "areal_actors") for path in (ROOT / top).rglob("*.py"))
LONGEST = 400

LAYERS = {
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
"""Modules of layer 2 that read files, run programs or import the user's code; the rest only computes."""
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


def layer_of(module):
    """Returns the layer of one of the project's modules; None if it has none."""
    top, _, rest = module.partition(".")
    name = "bus" if top == "bus" else rest.partition(".")[0]
    return next((number for number, names in LAYERS.items() if name in names), None)


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


TREES = {path: ast.parse(path.read_text()) for path in FILES}


def test_pure_logic_touches_neither_files_nor_processes_nor_the_clock():
    pure = [path for path in FILES if layer_of(module_of(path)) == 2 and module_of(path).split(".")[1] not in IN_TOUCH]
    assert len(pure) > 50
    assert {f"{path}:{line}: {name}" for path in pure for name, line in touches(TREES[path])} == set()


@pytest.mark.parametrize("code", ["import os.path", "from subprocess import run", "import time", "open('x')", "path.read_text()"])
def test_the_check_of_pure_logic_can_fail(code):
    assert len(list(touches(ast.parse(code)))) == 1


def upward_imports(path):
    """Imports of a file that its layer does not allow."""
    module = module_of(path)
    layer = layer_of(module)
    for imported, line in imports(TREES[path]):
        if imported != "areal_actors" and (layer_of(imported) is None or layer_of(imported) > layer):
            yield f"{path}:{line}: {module} (layer {layer}) imports {imported} (layer {layer_of(imported)})"


def test_every_module_has_a_layer_and_imports_point_down():
    without = [module_of(path) for path in FILES if layer_of(module_of(path)) is None]
    assert not without, "add them to a layer in tests/test_layers.py, see docs/architecture.md"
    assert [found for path in FILES for found in upward_imports(path)] == []


def test_no_folders_import_each_other_in_a_circle():
    needs = {}
    for path in FILES:
        folder = folder_of(module_of(path))
        imported = {folder_of(name) for name, _ in imports(TREES[path])}
        needs.setdefault(folder, set()).update(imported - {folder, "areal_actors"})
    order = graphlib.TopologicalSorter(needs)
    order.prepare()  # raises CycleError, which names the circle
    assert order.get_ready()


def folder_of(module):
    """Returns `areal_actors.steps` for everything in it; a file beside the folders is its own folder."""
    return ".".join(module.split(".")[: 1 if module.startswith("bus") else 2])


def test_imports_are_at_the_top_of_their_files():
    functions = (
        (path, node)
        for path in FILES
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    )
    assert [f"{path}:{line}: {name}" for path, node in functions for name, line in imports(node)] == []


def test_no_actor_imports_another():
    files = sorted((ROOT / "areal_actors/actors").glob("*.py"))
    actors = {module_of(path) for path in files if defines_actor(path)}
    assert len(actors) > 10
    found = [(path, name, line) for path in files for name, line in imports(TREES[path]) if name in actors - {module_of(path)}]
    assert [f"{path}:{line}: {name}" for path, name, line in found] == []


def defines_actor(path):
    classes = [node for node in TREES[path].body if isinstance(node, ast.ClassDef)]
    return any(isinstance(base, ast.Name) and base.id == "Actor" for node in classes for base in node.bases)


def test_engines_never_touch_the_bus():
    for path in (ROOT / "areal_actors/engines").rglob("*.py"):
        imported = {name for name, _ in imports(TREES[path])}
        assert {name for name in imported if name.startswith("bus")} <= {"bus", "bus.message"}, path


def test_no_file_is_longer_than_400_lines():
    files = [*FILES, *(ROOT / "tests").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    lengths = {str(path): len(path.read_text().splitlines()) for path in files}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}


def test_layers_name_only_modules_that_exist():
    for names in LAYERS.values():
        for name in names:
            assert name in ("", "bus") or is_module(f"areal_actors.{name}"), f"tests/test_layers.py names {name}, which does not exist"
