"""The contracts of the parts that `--areal-part` names."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from areal_actors.contracts import engine, tool_format, tracker
from areal_actors.core.installed_parts import installed_parts, load_part
from areal_actors.core.model_config import context_of
from areal_actors.core.module_command import load_module
from areal_actors.generation.named import engine_factory
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.base import AnswerFormat
from areal_actors.tokenization.tool_parsers.stream_parser import DelimitedFormat
from areal_actors.tokenization.tool_parsers.syntax import THINK, CallSyntax
from areal_actors.track.sender import TrackedRun

CASES: dict[str, tuple[Any, ...]] = {"engine": engine.CASES, "tool_format": tool_format.CASES, "tracker": tracker.CASES}
CONTEXT = 96
EXAMPLES = "TOOL_CALL_EXAMPLES"
"""Name in a module with formats of tool calls: texts of calls by the name of the format, each with the call's name and arguments."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the parts of its kind, and their cases."""
    named = [spec.partition(":")[::2] for spec in metafunc.config.getoption("--areal-part")]
    if unknown := [kind for kind, _ in named if kind not in CASES]:
        raise pytest.UsageError(f"--areal-part: there is no contract for `{unknown[0]}`; write KIND:NAME with {', '.join(CASES)}")
    kind = metafunc.function.__name__.removeprefix("test_").removesuffix("_keeps_its_contract")
    pairs = [(name, case) for part_kind, name in named if part_kind == kind for case in CASES[kind]]
    metafunc.parametrize(("name", "case"), pairs, ids=[f"{name}-{case.__name__}" for name, case in pairs])


@pytest.fixture(scope="session")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Folder of the model, and the location of its next weights."""
    random_model = load_module("areal_actors.contracts.random_model")
    folder = request.config.getoption("--areal-model") or random_model.write_random_model(tmp_path_factory.mktemp("model"))
    return folder, random_model.write_next_version(folder, tmp_path_factory.mktemp("weights") / "v3")


def test_engine_keeps_its_contract(name: str, case: engine.Case, model: tuple[str, Any]) -> None:
    """An engine, made as a run makes it."""
    folder, location = model
    context = min(CONTEXT, context_of(Path(folder)) or CONTEXT)
    make = engine_factory(GenerationSettings(engine=name, device="cpu", max_num_seqs=8, max_model_len=context), {}, Path.cwd())
    harness = engine.EngineHarness(lambda: make(folder), ChatTokenizer.load(folder).vocabulary_size, context, location)
    asyncio.run(case(harness))  # type: ignore[arg-type]


def test_tool_format_keeps_its_contract(name: str, case: tool_format.Case) -> None:
    """A format: an `AnswerFormat`, or a `CallSyntax`, whose module has examples of its calls."""
    part = load_part("tool_format", name, Path.cwd())
    installed = installed_parts("tool_format").get(name)
    module = load_module(installed.target.partition(":")[0]) if installed else sys.modules[part.read.__module__]
    examples = getattr(module, EXAMPLES, {}).get(name)
    assert examples, f"{module.__name__} has no examples: write {EXAMPLES} = {{{name!r}: [(TEXT, NAME, ARGUMENTS), …]}}"
    form: AnswerFormat = DelimitedFormat(name, part, THINK) if isinstance(part, CallSyntax) else part
    case(tool_format.FormatHarness(form, examples, Random(0)))


def test_tracker_keeps_its_contract(name: str, case: tracker.Case, tmp_path: Path) -> None:
    """A tracker: a function, or class, of the run."""
    run = TrackedRun("first-1700000000000", "first", str(tmp_path / "first"), str(tmp_path), "", {"run": "first", "seed": 0}, 1.7e9)
    case(load_part("tracker", name, Path.cwd()), run)
