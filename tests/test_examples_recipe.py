from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.process import actors_of_process
from areal_actors.recipe.examples import check_examples
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import explain, plan
from areal_actors.recipe.run_actors import NOT_WITH_EXAMPLES
from areal_actors.supervised.examples import arithmetic_examples
from areal_actors.supervision.restarts import Restarts

ROOT = Path(__file__).parent.parent
CUDA, NO_CUDA = CudaDevices(1, "one"), CudaDevices(0, "none")
RECIPE = """\
run   = "taught"
steps = 3
model = "embedded"

[task]
dataset = "arithmetic"

[algorithm]
name = "dpo"
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(*overrides, text=RECIPE, **options):
        Path("recipe.toml").write_text(text)
        return load([Path("recipe.toml")], overrides, NO_CUDA, **options)

    return read


def test_only_what_learning_from_examples_needs_is_started(read):
    recipe = read().recipe
    assert recipe.learns_from_examples()
    assert recipe.examples() == "pairs"
    processes = Restarts(recipe.supervisors, recipe.actors).start_order()
    assert set(processes) == {"control", "trainer"}
    started = {kind for process in processes for kind in actors_of_process(recipe, process).values()}
    assert started == set(recipe.actors.__struct_fields__) - NOT_WITH_EXAMPLES


def test_a_recipe_of_episodes_has_no_example_source():
    recipe = load([ROOT / "recipes" / "gsm8k_grpo.toml"], (), NO_CUDA).recipe
    assert not recipe.learns_from_examples()
    assert recipe.actors.example_source.count == 0


def test_what_such_a_recipe_resolves_to_reads_back_as_the_same(read):
    resolved = read()
    Path("resolved.toml").write_text(explain(resolved))
    assert load([Path("resolved.toml")], [], NO_CUDA).recipe == resolved.recipe


def test_the_plan_lists_the_examples_and_no_episodes(read):
    plan_text = "\n".join(plan(read("trainer.batch_size=8", "evaluation.tasks=50", "task.held_out=50").recipe))
    for part in (
        "examples    pairs: arithmetic, generated from seed 0; held out: 50",
        "steps       3 steps × 8 pairs = 24, each epoch reshuffled",
        "reference   the initial model, frozen",
        "evaluation  the loss of 50 held-out pairs, before and after, and of 50 every 10 steps",
        "processes   2, besides this one and nats-server",
    ):
        assert part in plan_text
    assert not any(word in plan_text for word in ("episodes", "gateway", "staleness"))
    assert "a sequence classifier with one label" in "\n".join(plan(read("algorithm.name=reward_model").recipe))
    untrained = read("warm_start.steps=0", "warm_start.tail_steps=0").recipe
    assert "model       created locally: a small model, untrained; nothing is downloaded" in "\n".join(plan(untrained))


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "task.agent=agents/gsm8k.py:Gsm8kAgent",
            '`task.agent`: found "agents/gsm8k.py:Gsm8kAgent", but algorithm.name = "dpo" learns',
        ),
        ("task.agent=online", '`task.agent`: found "online", but algorithm.name = "dpo" learns from examples'),
        (
            "task.reward=gsm8k",
            '`task.reward`: found "gsm8k", but algorithm.name = "dpo" learns from examples and runs no episodes; leave',
        ),
        ("sampling.max_tokens=64", "`sampling.max_tokens`: found 64, but"),
        ("staleness_gate.max_staleness=4", "`staleness_gate.max_staleness`: found 4, but"),
        ("batcher.exit_policy=drop", '`batcher.exit_policy`: found "drop", but'),
        ("generation.dtype=bfloat16", '`generation.dtype`: found "bfloat16", but'),
        ("gateway.port=8080", "`gateway.port`: found 8080, but"),
        ("trainer.logprob_check_sequences=4", "`trainer.logprob_check_sequences`: found 4, but"),
        ("evaluation.periodic_mode=greedy", '`evaluation.periodic_mode`: found "greedy", but'),
        ("evaluation.baseline=concurrent", '`evaluation.baseline`: found "concurrent", but'),
        ("evaluation.tasks=201", "`evaluation.tasks`: found 201, but task.held_out keeps only 200"),
        (
            "actors.rollout_worker.count=1",
            "`actors.rollout_worker.count`: found 1, but one that learns from examples has no rollout_worker",
        ),
        ("actors.example_source.count=0", "found 0, but a run needs its example_source; write `count = 1`"),
        (
            "task.dataset=openai/gsm8k",
            'found "openai/gsm8k", but algorithm.name = "dpo" learns from pairs; write "arithmetic", or the path',
        ),
        (
            "algorithm.group_size=4",
            "`algorithm.group_size`: found 4, but a preference pair has 2 answers; leave it out",
        ),
        ("algorithm.variant=kto", '`algorithm.variant`: found "kto", expected one of'),
    ],
)
def test_what_makes_no_sense_for_such_a_run_is_refused_by_name(read, override, complaint):
    with pytest.raises(RecipeError) as caught:
        read(override)
    assert complaint in str(caught.value)


def test_a_run_of_episodes_refuses_an_example_source():
    with pytest.raises(
        RecipeError, match=r"`actors.example_source.count`: found 1, but one that runs episodes has no example_source"
    ):
        load([ROOT / "recipes" / "gsm8k_grpo.toml"], ("actors.example_source.count=1",), NO_CUDA)


def test_what_was_learned_is_served_by_the_same_recipe(read):
    recipe = read("sampling.max_tokens=64", "algorithm.name=sft", serving=True).recipe
    started = {name for name in recipe.actors.__struct_fields__ if getattr(recipe.actors, name).count}
    assert started == {"session_manager", "inference_worker"}
    with pytest.raises(RecipeError, match="found a reward model, which scores conversations and generates no text"):
        read("sampling.max_tokens=64", "algorithm.name=reward_model", serving=True)


def test_every_example_is_looked_at_before_anything_starts(read):
    Path("pairs.jsonl").write_text(
        '{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 3 + '{"prompt": "a", "chosen": "b"}\n'
    )
    recipe = read("task.dataset=pairs.jsonl", "task.held_out=0", "evaluation.tasks=0", "trainer.batch_size=2").recipe
    with pytest.raises(
        SetupError, match=r"pairs.jsonl, row 4: expected `chosen` and `rejected`; the row has `prompt`, `chosen`"
    ):
        check_examples(recipe)


def test_a_batch_is_not_larger_than_the_dataset(read):
    Path("pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 3)
    recipe = read("task.dataset=pairs.jsonl", "task.held_out=0", "evaluation.tasks=0", "trainer.batch_size=4").recipe
    with pytest.raises(
        RecipeError, match=r"`trainer.batch_size`: found 4, but pairs.jsonl has 3 pairs besides those held out"
    ):
        check_examples(recipe)


@pytest.mark.parametrize("cuda", [CUDA, NO_CUDA], ids=["cuda", "no cuda"])
@pytest.mark.parametrize("name", ["sft", "dpo", "reward_model"])
def test_the_recipes_are_short_and_sensible(name, cuda):
    path = ROOT / "recipes" / f"{name}.toml"
    assert len(path.read_text().splitlines()) < 40
    recipe = load([path], (), cuda).recipe
    assert recipe.algorithm.__struct_config__.tag == name


def test_the_example_source_is_built_from_the_recipe(read, tmp_path):
    recipe = read("trainer.batch_size=4", "seed=3").recipe
    folder = RunFolder(tmp_path / "run")
    folder.create(recipe)
    source = CPU_ACTORS["example_source"](BuildContext(recipe=recipe, folder=folder, instance="example_source-0"))
    assert (source.order.length, source.order.seed, source.batch_size) == (
        len(arithmetic_examples("pairs", "train", 10_000, 3)),
        3,
        4,
    )
