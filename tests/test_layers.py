"""The code has layers; a lower one never imports a higher one."""

import ast
import graphlib
from functools import cache
from pathlib import Path

import pytest
from support.regions import TOPS, TORCH_FREE, WITH_TORCH, is_base, is_one_of, module_of

ROOT = Path(__file__).parent.parent
FILES = sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py"))
LONGEST = 400

ORDER = (
    *("core", "messages", "runtime"),
    *("client", "containers", "sandbox", "tokenization", "weights", "vision", "sequences"),
    *(
        "staleness",
        "tasks",
        "rewards",
        "rollout",
        "gateway",
        "generation",
        "batching",
        "training",
        "evaluation",
        "metrics",
    ),
    *("audit", "supervised", "embedded", "calibration", "chaos", "history", "policies", "privacy"),
    *("feedback", "canary"),
    *(
        "recipe",
        "lint",
        "reward_hacking",
        "scaling",
        "folder",
        "models",
        "display",
        "processes",
        "supervision",
        "recovery",
        "hosts",
        "proof",
        "reader",
        "replay",
        "testing",
        "track",
        "export",
        "imports",
        "stages",
        "learn",
        "promote",
        "fork",
        "web",
        "run",
        "contracts",
        "library",
        "compat",
        "tinker",
        "cli",
        "mcp_server",
        "__main__",
    ),
)
"""Folders and files of the package; each imports only from those before it."""
FOUNDATION = frozenset({"core", "messages", "runtime"})
"""Every station may import from these."""
SHARED = frozenset({"client", "containers", "sandbox", "tokenization", "weights", "vision", "sequences"})
"""Folders that several stations share; without actors."""
STATIONS = {
    "staleness": set(),
    "tasks": set(),
    "rewards": {"sandbox", "tokenization", "weights"},
    "rollout": {"client", "containers", "rewards"},
    "gateway": {"rewards", "sequences", "tokenization", "vision"},
    "generation": {"tokenization", "vision", "weights"},
    "batching": {"sequences"},
    "training": {"sequences", "vision", "weights"},
    "evaluation": {"sequences", "tasks"},
    "metrics": set(),
}
"""Stations on the path of a sample, and what each needs besides the foundation."""
WINGS = {
    "supervised",
    "embedded",
    "calibration",
    "library",
    "compat",
    "tinker",
    "chaos",
    "audit",
    "history",
    "policies",
    "privacy",
    "feedback",
    "canary",
    "reader",
} | {*("replay", "track", "export", "imports", "stages", "learn", "promote", "fork", "web")}
"""Beside the path: these import stations, no station imports them."""

PURE = (
    *(
        "audit.audit",
        "audit.fault",
        "audit.groups",
        "audit.sequences",
        "batching.assembler",
        "canary.assignment",
        "canary.comparison",
        "canary.sequential_test",
        "canary.served_versions",
        "canary.trial",
        "canary.verdict",
        "core.column_check",
        "core.values",
        "gateway.conversations",
        "gateway.protocols",
        "gateway.sessions",
    ),
    *(
        f"history.{name}"
        for name in ("attempts", "episode_rows", "fold", "parts", "row", "run_rows", "schema", "severity")
    ),
    *(
        "messages",
        "sequences",
        "staleness.ledger",
        "staleness.off_policy_guard",
        "tokenization.tool_parsers",
        "training.algorithms",
        "training.checkpoint_retention",
    ),
    *("privacy.known_kinds", "scaling"),
    *("training.engine_mismatch", "training.packing.prefix_tree", "web.rows"),
)
"""Modules that only compute."""
WITHOUT_BUS = ("embedded", "generation", "training", "weights")
"""Folders of engines: besides actors, their files use messages but never the bus."""
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


def folder_of(module):
    """Returns the folder below the package, or the file beside the folders; empty for the package, `areal_bus` for the
    bus."""
    top, _, rest = module.partition(".")
    return "areal_bus" if top == "areal_bus" else rest.partition(".")[0]


def imports(tree):
    """Every project module that is imported anywhere in this tree, with its line; what only a type checker sees is left
    out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in ("areal_bus", "areal_actors") and is_module(name):
                yield name, node.lineno


@cache
def is_module(name):
    place = (ROOT / "bus" if name.startswith("areal_bus") else ROOT) / Path(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def touches(tree):
    """Modules and calls in this tree by which a program reaches what is outside it, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif (
            isinstance(node, ast.Call)
            and (name := getattr(node.func, "attr", getattr(node.func, "id", ""))) in FILE_CALLS
        ):
            yield name, node.lineno
            continue
        else:
            continue
        yield from ((name, node.lineno) for name in names if name.partition(".")[0] in OUTSIDE)


@cache
def trees():
    """The parsed files, read when the first test needs them: a run that only collects the tests does not."""
    return {path: ast.parse(path.read_text()) for path in FILES}


@cache
def imported_by():
    """Imported project modules of each module; of `from package import module` both names."""
    return {module_of(path): {name for name, _ in imports(tree)} for path, tree in trees().items()}


@cache
def actors():
    """Modules that define an actor."""
    return {module_of(path) for path, tree in trees().items() if defines_actor(tree)}


def defines_actor(tree):
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return any(isinstance(base, ast.Name) and base.id == "Actor" for node in classes for base in node.bases)


def test_pure_logic_touches_neither_files_nor_processes_nor_the_clock():
    pure = [path for path in FILES if is_one_of(module_of(path), PURE)]
    assert len(pure) > 80
    assert {f"{path}:{line}: {name}" for path in pure for name, line in touches(trees()[path])} == set()


@pytest.mark.parametrize(
    "code", ["import os.path", "from subprocess import run", "import time", "open('x')", "path.read_text()"]
)
def test_the_check_of_pure_logic_can_fail(code):
    assert len(list(touches(ast.parse(code)))) == 1


def test_folders_import_only_from_those_before_them():
    place = {name: number for number, name in enumerate(ORDER)}
    folders = {folder_of(module) for module in imported_by()} - {"", "areal_bus"}
    assert folders == set(ORDER), "add a new folder to tests/test_layers.py and docs/architecture.md"
    found = [(module, name) for module, names in imported_by().items() for name in names if folder_of(module) in place]
    upward = [
        f"{module} imports {name}"
        for module, name in found
        if place.get(folder_of(name), -1) > place[folder_of(module)]
    ]
    assert upward == []


def test_the_bus_imports_nothing_of_the_package():
    assert [
        module
        for module, names in imported_by().items()
        if folder_of(module) == "areal_bus" and any(folder_of(name) != "areal_bus" for name in names)
    ] == []


def test_a_station_imports_the_foundation_and_what_its_line_names():
    for station, needs in STATIONS.items():
        used = {
            folder_of(name) for module, names in imported_by().items() if folder_of(module) == station for name in names
        }
        assert used - {"", "areal_bus", station} - FOUNDATION == needs, station


def test_no_station_imports_a_wing():
    inside = FOUNDATION | SHARED | set(STATIONS)
    found = [(module, name) for module, names in imported_by().items() if folder_of(module) in inside for name in names]
    assert [pair for pair in found if folder_of(pair[1]) in WINGS] == []


def test_no_files_import_each_other_in_a_circle():
    packages = {name.rpartition(".")[0] for name in imported_by()}
    needs = {
        module: {name for name in names if name not in packages or name not in ancestors(module)}
        for module, names in imported_by().items()
    }
    order = graphlib.TopologicalSorter(needs)
    order.prepare()  # raises CycleError, which names the circle
    assert order.get_ready()


def ancestors(module):
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def test_only_modules_of_tensors_import_torch():
    # What lies in server_side runs in the interpreter of an inference server.
    by_module = {module_of(path): tree for path, tree in trees().items() if "server_side" not in path.parts}
    users = {
        module
        for module, tree in by_module.items()
        for name in imported_names(tree)
        if name.partition(".")[0] == "torch"
    }
    assert len(users) > 30
    assert [module for module in users if not is_one_of(module, WITH_TORCH)] == []


def test_the_base_imports_nothing_with_torch():
    """Except while types are checked, and by name where a setting or a command asks for it."""
    base = {module_of(path): tree for path, tree in trees().items() if is_base(module_of(path))}
    assert len(base) > 500
    found = {(module, name) for module, tree in base.items() for name, _ in imports(without_checked_types(tree))}
    packages = {name.rpartition(".")[0] for name in imported_by()}
    assert [(module, name) for module, name in found if name not in packages and not is_base(name)] == []


def test_whatever_opens_a_bus_has_declared_the_product():
    """Else its subjects have no prefix of this product, and its log no dictionary."""
    opens = {
        f"areal_bus.{name}"
        for name in ("memory", "nats", "payload", "permissions", "recorded", "server", "subjects", "users")
    }
    needs = {
        module_of(path): {name for name, _ in imports(without_checked_types(tree))} for path, tree in trees().items()
    }
    users = [module for module, names in needs.items() if module.startswith("areal_actors.") and names & opens]
    assert len(users) > 30
    assert [module for module in users if "areal_actors.core.product" not in reached(module, needs)] == []


def reached(module, needs):
    """Modules that are loaded with this one."""
    found, left = set(), [module]
    while left:
        for name in needs.get(left.pop(), ()):
            if name not in found:
                found.add(name)
                left.append(name)
    return found


def without_checked_types(tree):
    """The tree without what only a type checker reads."""
    body = [
        node for node in tree.body if not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING")
    ]
    return ast.Module(body=body, type_ignores=[])


def imported_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_imports_are_at_the_top_of_their_files():
    functions = (
        (path, node)
        for path in FILES
        for node in ast.walk(trees()[path])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    )
    assert [f"{path}:{line}: {name}" for path, node in functions for name, line in imports(node)] == []


def test_no_actor_imports_another():
    assert len(actors()) > 10
    assert [(module, name) for module in actors() for name in imported_by()[module] & actors() - {module}] == []


def test_a_station_has_its_actors_at_its_top():
    assert {folder_of(module) for module in actors()} == {*STATIONS, "supervised"}
    assert [module for module in actors() if module.count(".") != 2] == []


def test_engines_never_touch_the_bus():
    files = [path for path in FILES if is_one_of(module_of(path), WITHOUT_BUS) and not path.name.startswith("trainer_")]
    for path in files:
        if module_of(path) not in actors():
            assert {name for name in imported_by()[module_of(path)] if name.startswith("areal_bus")} <= {
                "areal_bus",
                "areal_bus.message",
            }, path


def test_no_file_is_longer_than_400_lines():
    files = [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    lengths = {str(path): len(path.read_text().splitlines()) for path in files}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}


def test_the_tables_name_only_modules_that_exist():
    for name in (*PURE, *WITH_TORCH, *TORCH_FREE):
        assert is_module(f"areal_actors.{name}"), f"tests/test_layers.py names {name}, which does not exist"
