"""Default limits follow from each other, and `areal-actors check` and the summary show the limit that was reached."""

from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.limits import limits, lowest_limit
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import plan, to_toml

ROOT = Path(__file__).parent.parent
NO_CUDA, CUDA = CudaDevices(0, "none"), CudaDevices(1, "one")
MAIN = ROOT / "recipes" / "gsm8k_grpo.toml"
BARE = """\
run   = "bare"
steps = 3
model = "embedded"

[task]
dataset = "arithmetic"
agent   = "agents/gsm8k.py:Gsm8kAgent"
reward  = "gsm8k"

[algorithm]
name = "grpo"
"""


@pytest.fixture
def main(monkeypatch):
    monkeypatch.chdir(ROOT)
    return lambda *settings, cuda=NO_CUDA: load([MAIN], ["task.dataset=arithmetic", *settings], cuda).recipe


@pytest.fixture
def bare(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "bare.toml"
    file.write_text(BARE)
    return lambda *settings: load([file], settings, NO_CUDA).recipe


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("actors.rollout_worker.count=5",),
        ("actors.inference_worker.count=3",),
        ("staleness_gate.max_concurrent=200", "algorithm.group_size=16"),
        ("staleness_gate.max_concurrent=16", "algorithm.group_size=2"),
        ("staleness_gate.max_concurrent=300", "evaluation.max_concurrent=64"),
    ],
)
def test_no_default_limit_is_below_what_the_gate_allows(main, settings):
    recipe = main(*settings)
    allowed, *others = [limit for limit in limits(recipe) if limit.setting != "staleness_gate.max_staleness"]
    assert allowed.episodes == recipe.staleness_gate.max_concurrent * recipe.algorithm.group_size
    assert [limit.setting for limit in others if limit.episodes < allowed.episodes] == []
    assert {"actors.rollout_worker.concurrency", "actors.session_manager.concurrency", "generation.max_num_seqs"} <= {
        one.setting for one in others
    }


def test_workers_share_out_what_the_gate_allows(main):
    recipe = main("actors.rollout_worker.count=5", "actors.inference_worker.count=2")
    assert recipe.actors.rollout_worker.concurrency == 77, "384 episodes over 5 workers"
    assert recipe.generation.max_num_seqs == 200, "384 and 16 of evaluation over 2 workers"


def test_what_is_stated_holds_and_is_named_where_it_binds(main):
    recipe = main("actors.rollout_worker.concurrency=64", "generation.max_num_seqs=128")
    assert (recipe.actors.rollout_worker.concurrency, recipe.generation.max_num_seqs) == (64, 128)
    sentence = (
        "actors.rollout_worker.concurrency = 64 is the lowest limit: 64 episodes at once, of the 384 "
        "that staleness_gate.max_concurrent = 48 allows; "
        "raise it (then generation.max_num_seqs), or lower staleness_gate.max_concurrent"
    )
    assert lowest_limit(recipe) == sentence
    assert f"limit       {sentence}" in list(plan(recipe))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ((), "staleness_gate.max_concurrent = 48 is the lowest limit: 48 groups × 8 = 384 episodes at once"),
        (
            ("generation.max_num_seqs=128",),
            "generation.max_num_seqs = 128 is the lowest limit: 128 completions at once, of the 384 that",
        ),
        (("task.runner=subprocess",), "task.processes = 4 is the lowest limit: 4 processes at once, of the 384 that"),
        (
            ("task.runner=subprocess", "task.processes=8", "actors.rollout_worker.count=4"),
            "task.processes = 8 is the lowest limit: 4 workers × 8 = 32 processes at once, of the 384 that",
        ),
        (
            ("staleness_gate.max_staleness=0", "staleness_gate.max_concurrent=48"),
            (
                "staleness_gate.max_staleness = 0 is the lowest limit: (0 + 1) × 16 groups × 8 = 128 episodes ahead of"
                " the weights at once"
            ),
        ),
        (
            ("generation.engine=scripted", "generation.max_num_seqs=1"),
            "staleness_gate.max_concurrent = 48 is the lowest limit",
        ),
    ],
)
def test_the_limit_that_binds_is_named_with_its_number(main, settings, sentence):
    assert lowest_limit(main(*settings)).startswith(sentence)


@pytest.mark.parametrize(("bound", "batch", "groups"), [(0, 16, 16), (2, 16, 48), (4, 16, 80), (2, 64, 192)])
def test_groups_that_run_at_once_follow_from_the_staleness_bound(main, bound, batch, groups):
    recipe = main(f"staleness_gate.max_staleness={bound}", f"trainer.batch_size={batch}")
    assert recipe.staleness_gate.max_concurrent == groups
    assert {limit.episodes for limit in limits(recipe)[:2]} == {groups * 8}
    assert recipe.actors.rollout_worker.concurrency == groups * 8


def test_the_last_steps_have_a_surplus_where_it_costs_the_trainer_nothing(main):
    surplus = {
        words: main(*words, cuda=cuda).staleness_gate.surplus_groups
        for words, cuda in {(): NO_CUDA, ("seed=1",): CUDA, ("staleness_gate.max_staleness=0",): CUDA}.items()
    }
    assert list(surplus.values()) == [0, 16, 0]
    assert main("staleness_gate.surplus_groups=5").staleness_gate.surplus_groups == 5


def test_a_server_that_shares_out_its_memory_takes_every_episode(main):
    assert main(cuda=CUDA).generation.max_num_seqs == 400
    assert main("trainer.batch_size=256", cuda=CUDA).generation.max_num_seqs == 1024
    assert lowest_limit(main(cuda=CUDA)).startswith("staleness_gate.max_concurrent = 48 is the lowest limit")


def test_the_memory_of_key_values_bounds_the_slots_of_a_model_that_is_not_made_here(main):
    engine = "generation.engine=transformers"
    assert main(engine, cuda=CUDA).generation.max_num_seqs == 128
    assert (
        main(engine, "generation.max_model_len=512", "sampling.max_tokens=256", cuda=CUDA).generation.max_num_seqs
        == 256
    )
    assert lowest_limit(main(engine, cuda=CUDA)).startswith("generation.max_num_seqs = 128 is the lowest limit")


def test_a_reward_model_has_conversations_to_batch(main):
    assert main().actors.reward_worker.concurrency == 8
    assert main("task.reward=model:somebody/judge").actors.reward_worker.concurrency == 64


def test_what_a_recipe_resolves_to_states_its_limits(main, tmp_path):
    recipe = main("actors.inference_worker.count=3")
    file = tmp_path / "resolved.toml"
    file.write_text(to_toml(recipe))
    assert load([file], [], NO_CUDA).recipe == recipe


@pytest.mark.parametrize(
    ("settings", "longest", "context", "microbatch"),
    [
        ((), 512, 1024, 4096),
        (("generation.max_model_len=256",), 128, 256, 4096),
        (("sampling.max_tokens=2000",), 2000, 4000, 4096),
        (("sampling.max_tokens=64",), 64, 1024, 4096),
        (("generation.max_model_len=8192",), 512, 8192, 8192),
        (("sampling.max_tokens=700", "generation.max_model_len=800", "trainer.microbatch_tokens=900"), 700, 800, 900),
    ],
)
def test_default_lengths_agree_with_the_set_ones(bare, settings, longest, context, microbatch):
    recipe = bare(*settings)
    assert (recipe.sampling.max_tokens, recipe.generation.max_model_len, recipe.trainer.microbatch_tokens) == (
        longest,
        context,
        microbatch,
    )


@pytest.mark.parametrize(
    "settings",
    [
        ("sampling.max_tokens=600", "generation.max_model_len=512"),
        ("trainer.microbatch_tokens=512", "generation.max_model_len=1024"),
    ],
)
def test_lengths_that_are_stated_and_contradict_each_other_are_refused(bare, settings):
    with pytest.raises(
        RecipeError,
        match=r"but (generation\.max_model_len is 512|one sequence may have generation\.max_model_len = 1024)",
    ):
        bare(*settings)


@pytest.mark.parametrize(
    ("settings", "published"),
    [
        ((), "float32"),
        (("generation.dtype=bfloat16",), "bfloat16"),
        (("generation.dtype=bfloat16", "trainer.published_dtype=float32"), "float32"),
    ],
)
def test_weights_are_published_in_the_precision_of_the_engines(main, settings, published):
    assert main(*settings).trainer.published_dtype == published


def test_servers_started_elsewhere_are_given_an_adapter_merged_and_others_the_adapter(main):
    elsewhere = ("generation.engine=sglang", 'generation.server.urls=["http://127.0.0.1:30000"]')
    assert main("trainer.lora.rank=4").trainer.lora.published == "adapter"
    assert main("trainer.lora.rank=4", "generation.engine=vllm").trainer.lora.published == "adapter"
    assert main("trainer.lora.rank=4", *elsewhere).trainer.lora.published == "merged"
    assert main("trainer.lora.rank=4", *elsewhere, "trainer.lora.published=adapter").trainer.lora.published == "adapter"
    with pytest.raises(RecipeError, match=r"`trainer.lora.rank`: found 1024, but vLLM takes adapters up to rank 512"):
        main("trainer.lora.rank=1024", "generation.engine=vllm")


def test_weights_go_to_servers_on_other_hosts_without_a_folder_unless_it_is_stated(main):
    near, far = (
        ("generation.engine=vllm", f'generation.server.urls=["http://{host}:8000"]')
        for host in ("localhost", "10.0.0.7")
    )
    assert main(*near).generation.server.weights == "folder"
    assert main(*far).generation.server.weights == "broadcast"
    assert main(*far, "generation.server.weights=folder").generation.server.weights == "folder"
    assert main(*far, "trainer.lora.rank=4", "trainer.lora.published=adapter").generation.server.weights == "folder"
    with pytest.raises(
        RecipeError, match=r'`generation.server.weights`: found "tensors", but http://10.0.0.7:8000 is on another host'
    ):
        main(*far, "generation.server.weights=tensors")
    with pytest.raises(
        RecipeError,
        match=r'found "delta", but adapters are loaded by name from their folder; write "folder", or trainer.lora',
    ):
        main("generation.engine=sglang", "generation.server.weights=delta", "trainer.lora.rank=4")


HUB = "model=someone/large"


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ([], 8e-4),
        ([HUB], 1e-6),
        ([HUB, "trainer.optimizer.lr=3e-6"], 3e-6),
        ([HUB, "trainer.lora.rank=8"], 2e-5),
        ([HUB, "algorithm.name=ppo"], 1e-6),
        ([HUB, "algorithm.name=dpo", "task.agent=", "task.reward=", "task.dataset=arithmetic"], 5e-7),
    ],
)
def test_the_learning_rate_of_a_pretrained_model_is_not_that_of_the_embedded_one(bare, settings, rate):
    assert bare(*settings).trainer.optimizer.lr == pytest.approx(rate)


def test_a_critic_of_a_pretrained_model_has_its_own_rate(bare):
    assert bare("algorithm.name=ppo").algorithm.critic.lr == 8e-4
    assert bare("algorithm.name=ppo", HUB).algorithm.critic.lr == 1e-5
    assert bare("algorithm.name=ppo", HUB, "algorithm.critic.lr=2e-5").algorithm.critic.lr == 2e-5


def test_an_algorithm_without_a_name_is_grpo(bare):
    assert type(bare("algorithm.group_size=4").algorithm).__name__ == "Grpo"
