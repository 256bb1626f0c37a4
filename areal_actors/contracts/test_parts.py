"""The contracts of the parts that `--areal-part` names."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from areal_actors.contracts import engine, reader, reward, tool_format, tracker
from areal_actors.core.installed_parts import PartKind, installed_parts, load_part
from areal_actors.core.model_config import context_of
from areal_actors.core.module_command import load_module
from areal_actors.generation.named import engine_factory
from areal_actors.generation.settings import GenerationSettings
from areal_actors.rewards import resolve_reward
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.base import AnswerFormat
from areal_actors.tokenization.tool_parsers.stream_parser import DelimitedFormat
from areal_actors.tokenization.tool_parsers.syntax import THINK, CallSyntax
from areal_actors.track.sender import TrackedRun

CASES: dict[str, tuple[Any, ...]] = {
    "engine": engine.CASES,
    "reader": reader.CASES,
    "reward": reward.CASES,
    "tool_format": tool_format.CASES,
    "tracker": tracker.CASES,
}
ALGORITHM = "algorithm"
"""Kind whose contract needs torch."""
CONTEXT = 96
EXAMPLES = {
    "tool_format": ("TOOL_CALL_EXAMPLES", "[(TEXT, NAME, ARGUMENTS), …]"),
    "reward": ("REWARD_EXAMPLES", "[(TASK, OUTPUT, REWARD), …]"),
    "reader": ("READER_EXAMPLES", "(BYTES OF A FILE, [ROW, …])"),
}
"""Attribute of a part's module with its examples, by the name of the part, and what they are."""


def cases_of(kind: str) -> tuple[Any, ...]:
    """Returns the cases of a kind of parts; those of algorithms are loaded when they are asked for."""
    if kind == ALGORITHM:
        cases: tuple[Any, ...] = load_module("areal_actors.contracts.algorithm").CASES
        return cases
    return CASES[kind]


def examples_of(kind: PartKind, name: str, part: Any) -> Any:
    """Returns the examples of a part, which its module has."""
    attribute, form = EXAMPLES[kind]
    installed = installed_parts(kind).get(name)
    module = load_module(installed.target.partition(":")[0]) if installed else sys.modules[part.__module__]
    examples = getattr(module, attribute, {}).get(name)
    assert examples, f"{module.__name__} has no examples: write {attribute} = {{{name!r}: {form}}}"
    return examples


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the parts of its kind, and their cases."""
    named = [spec.partition(":")[::2] for spec in metafunc.config.getoption("--areal-part")]
    kinds = (ALGORITHM, *CASES)
    if unknown := [kind for kind, _ in named if kind not in kinds]:
        raise pytest.UsageError(
            f"--areal-part: there is no contract for `{unknown[0]}`; write KIND:NAME with {', '.join(kinds)}"
        )
    kind = metafunc.function.__name__.removeprefix("test_").removesuffix("_keeps_its_contract")
    pairs = [(name, case) for part_kind, name in named if part_kind == kind for case in cases_of(kind)]
    metafunc.parametrize(("name", "case"), pairs, ids=[f"{name}-{case.__name__}" for name, case in pairs])


@pytest.fixture(scope="session")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Folder of the model, and the location of its next weights."""
    random_model = load_module("areal_actors.contracts.random_model")
    folder = request.config.getoption("--areal-model") or random_model.write_random_model(
        tmp_path_factory.mktemp("model")
    )
    return folder, random_model.write_next_version(folder, tmp_path_factory.mktemp("weights") / "v3")


def test_engine_keeps_its_contract(name: str, case: engine.Case, model: tuple[str, Any]) -> None:
    """An engine, made as a run makes it."""
    folder, location = model
    context = min(CONTEXT, context_of(Path(folder)) or CONTEXT)
    make = engine_factory(
        GenerationSettings(engine=name, device="cpu", max_num_seqs=8, max_model_len=context), Path.cwd()
    )
    harness = engine.EngineHarness(lambda: make(folder), ChatTokenizer.load(folder).vocabulary_size, context, location)
    asyncio.run(case(harness))  # type: ignore[arg-type]


def test_tool_format_keeps_its_contract(name: str, case: tool_format.Case) -> None:
    """A format: an `AnswerFormat`, or a `CallSyntax`, whose module has examples of its calls."""
    part = load_part("tool_format", name, Path.cwd())
    examples = examples_of("tool_format", name, part.read if isinstance(part, CallSyntax) else type(part))
    form: AnswerFormat = DelimitedFormat(name, part, THINK) if isinstance(part, CallSyntax) else part
    case(tool_format.FormatHarness(form, examples, Random(0)))


def test_tracker_keeps_its_contract(name: str, case: tracker.Case, tmp_path: Path) -> None:
    """A tracker: a function, or class, of the run."""
    run = TrackedRun(
        "first-1700000000000", "first", str(tmp_path / "first"), str(tmp_path), "", {"run": "first", "seed": 0}, 1.7e9
    )
    case(load_part("tracker", name, Path.cwd()), run)


def test_reward_keeps_its_contract(name: str, case: reward.Case) -> None:
    """A reward, with its options as they are by default; its module has examples of what it scores."""
    part = load_part("reward", name, Path.cwd())
    case(reward.RewardHarness(resolve_reward(name, Path.cwd()), examples_of("reward", name, part), Random(0)))


def test_reader_keeps_its_contract(name: str, case: reader.Case, tmp_path: Path) -> None:
    """A reader of data files; its module has a file and the rows in it."""
    part = load_part("reader", name, Path.cwd())
    content, rows = examples_of("reader", name, part)
    file = tmp_path / f"example{name}"
    file.write_bytes(content)
    case(reader.ReaderHarness(part, file, rows))


def test_algorithm_keeps_its_contract(name: str, case: Any) -> None:
    """An algorithm, with its options as they are by default."""
    case(load_module("areal_actors.contracts.algorithm").harness_of(load_part("algorithm", name, Path.cwd())()))
