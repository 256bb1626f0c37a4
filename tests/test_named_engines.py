"""Engines by name: the embedded one, the scripted one and anybody's keep one contract."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from support.tiny_engine import CONTEXT, VOCABULARY, random_qwen, save

from areal_actors.contracts.engine import CASES, EngineHarness, chunks_of, running
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import Constraint, SamplingParams
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.abilities import CONSTRAINT_ABILITIES, SAMPLING_ABILITIES
from areal_actors.generation.engines import ability_rows, engine_descriptions
from areal_actors.generation.named import engine_factory
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.generation.servers.sglang.dialect import SGLang
from areal_actors.generation.servers.vllm.dialect import VLLM
from areal_actors.generation.settings import GenerationSettings, ScriptedSettings
from areal_actors.recipe.checks import problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.training.algorithms import Grpo
from areal_actors.weights.transfer import write_weights

SUPPORT = Path(__file__).with_name("support")
VOCABULARIES = {"transformers": VOCABULARY, "scripted": 259, "path_engine.py:BackwardsEngine": 300}


def settings_of(engine: str, **scripted: float) -> GenerationSettings:
    return GenerationSettings(
        engine=engine, device="cpu", max_num_seqs=8, max_model_len=CONTEXT, scripted=ScriptedSettings(**scripted)
    )


@pytest.fixture(scope="module", params=VOCABULARIES)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineHarness:
    folder = save(random_qwen(0), tmp_path_factory.mktemp("model"))
    location = write_weights(random_qwen(1).state_dict(), tmp_path_factory.mktemp("weights") / "v3", folder)
    make = engine_factory(settings_of(request.param, shortest=25, longest=60), SUPPORT)
    return EngineHarness(lambda: make(folder), VOCABULARIES[request.param], CONTEXT, location)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_every_engine_keeps_the_contract(harness: EngineHarness, case) -> None:
    await case(harness)


async def test_the_scripted_engine_generates_ordinary_tokens_and_ends_its_turns(tmp_path: Path) -> None:
    folder = save(random_qwen(0), tmp_path)
    tokenizer = ChatTokenizer.load(folder)
    make = engine_factory(settings_of("scripted", shortest=3, longest=9, token_seconds=0.001), SUPPORT)
    lengths = set()
    async with running(EngineHarness(lambda: make(folder), 259, CONTEXT, None)) as engine:
        for seed in range(80):
            (chunk,) = await chunks_of(engine, [5, 6], SamplingParams(max_tokens=20, seed=seed))
            *words, end = chunk.columns.ids_array().tolist()
            assert end in tokenizer.stop_ids
            assert not any(
                tokenizer.tokenizer.id_to_token(word).startswith("<p") or word in tokenizer.stop_ids for word in words
            )
            lengths.add(len(chunk.columns))
    assert lengths == set(range(3, 10))


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("path_engine.py:Backwards", "did you mean `BackwardsEngine`"),
        ("nowhere.py:Engine", "no file"),
        ("transformer", r"path\.py:Name"),
    ],
)
def test_an_engine_that_is_not_there_is_refused_by_field(engine: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"generation\.engine: .*{message}"):
        engine_factory(settings_of(engine), SUPPORT)


async def test_an_engine_that_lacks_a_part_is_refused_when_it_is_made() -> None:
    make = engine_factory(settings_of("path_engine.py:IncompleteEngine"), SUPPORT)
    with pytest.raises(
        SetupError, match="IncompleteEngine has no abilities, generate, load_weights, take_counters, close"
    ):
        await asyncio.to_thread(make, "model")


async def test_an_engine_with_an_unknown_ability_is_refused_when_it_is_made() -> None:
    make = engine_factory(settings_of("path_engine.py:UnknownAbilityEngine"), SUPPORT)
    with pytest.raises(SetupError) as refused:
        await asyncio.to_thread(make, "model")
    found = str(refused.value)
    assert found.startswith(
        "generation.engine: path_engine.py:UnknownAbilityEngine has the unknown ability 'beams', known:"
        " constraint:grammar, "
    )
    for part in (
        "unknown ability 'constraint', did you mean constraint:regex or constraint:grammar or constraint:json_schema?",
        "unknown ability 'stops', did you mean stop or top_p or top_k?",
    ):
        assert part in found
    assert "'top_k'" not in found


def test_every_built_in_engine_has_the_abilities_of_the_table() -> None:
    classes = {"transformers": TransformersEngine, "sglang": SGLang, "vllm": VLLM, "scripted": ScriptedEngine}
    described = {name: engine.abilities for name, engine in engine_descriptions().items()}
    assert {name: engine.abilities for name, engine in classes.items()} == described
    assert set(CONSTRAINT_ABILITIES) == set(get_args(get_type_hints(Constraint)["kind"]))
    assert {ability.partition(":")[0] for ability in SAMPLING_ABILITIES} | {"temperature", "max_tokens"} == set(
        SamplingParams.__struct_fields__
    )


def test_the_page_of_engines_has_the_table_of_abilities() -> None:
    page = (SUPPORT.parents[1] / "docs/engines.md").read_text()
    titles, *rows = ability_rows()
    lines = [f"| {titles[0]} | {' | '.join(f'`{engine}`' for engine in titles[1:])} |", f"|{'---|' * len(titles)}"]
    lines += [f"| `{ability}` | {' | '.join(cells)} |" for ability, *cells in rows]
    table = "\n".join(lines)
    assert f"\n\n{table}\n\n" in page, f"docs/engines.md needs this table:\n{table}"


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("transformer", r'found "transformer".*transformers.*path\.py:Class'),
        ("tests/nowhere.py:Engine", "there is no file"),
        (f"{SUPPORT}/path_engine.py:Backwards", "BackwardsEngine"),
        (f"{SUPPORT}/path_engine.py:BackwardsEngine", ""),
        ("scripted", ""),
    ],
)
def test_a_recipe_that_names_an_engine_is_checked_before_anything_starts(engine: str, message: str) -> None:
    task = TaskSettings(dataset="arithmetic", agent=f"{SUPPORT}/path_engine.py:BackwardsEngine", reward="gsm8k")
    recipe = Recipe(run="r", steps=1, model="embedded", task=task, algorithm=Grpo(), generation=settings_of(engine))
    complaints = [problem.complaint for problem in problems(recipe) if problem.key == ("generation", "engine")]
    assert bool(complaints) == bool(message)
    assert not message or re.search(message, complaints[0])
