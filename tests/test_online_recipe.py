from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext
from areal_actors.processes.process import actors_of_process
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import explain, plan, to_json
from areal_actors.recipe.run_actors import NOT_ONLINE, ONLY_WITH_EXAMPLES
from areal_actors.supervision.restarts import Restarts

NO_CUDA = CudaDevices(0, "none")
RECIPE = """\
run   = "outside"
steps = 3
model = "embedded"

[task]
agent = "online"

[algorithm]
name       = "grpo"
group_size = 4

[sampling]
max_tokens = 64
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(*overrides, **options):
        Path("recipe.toml").write_text(RECIPE)
        return load([Path("recipe.toml")], overrides, NO_CUDA, **options)

    return read


def test_an_online_recipe_needs_neither_dataset_nor_reward_nor_workers(read):
    recipe = read().recipe
    assert recipe.is_online()
    assert not recipe.is_served()
    assert recipe.evaluation.tasks == 0
    assert {
        name for name in recipe.actors.__struct_fields__ if getattr(recipe.actors, name).count == 0
    } == NOT_ONLINE | ONLY_WITH_EXAMPLES
    processes = Restarts(recipe.supervisors, recipe.actors).start_order()
    started = {kind for process in processes for kind in actors_of_process(recipe, process).values()}
    assert started == set(recipe.actors.__struct_fields__) - recipe.absent()


def test_the_plan_of_an_online_run_names_the_source_of_tasks(read):
    resolved = read()
    text = "\n".join(plan(resolved.recipe))
    assert "brought to the gateway by external agents" in text
    assert "3 steps × 16 groups × 4 sessions = 192 sessions" in text
    assert "rollout_worker ×" not in explain(resolved)


def test_what_check_prints_has_no_password_and_no_key(read):
    resolved = read("bus.url=nats://areal:abracadabra@10.0.0.1:4222", "gateway.admin_key=open-sesame-123456")
    for shown in (explain(resolved), to_json(resolved)):
        assert "nats://10.0.0.1:4222" in shown
        assert "abracadabra" not in shown
        assert "open-sesame" not in shown


def test_what_an_online_recipe_resolves_to_reads_back_as_the_same(read):
    resolved = read()
    Path("resolved.toml").write_text(explain(resolved))
    assert load([Path("resolved.toml")], [], NO_CUDA).recipe == resolved.recipe


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "task.dataset=arithmetic",
            '`task.dataset`: found "arithmetic", but external agents bring their own tasks and rewards; leave it out',
        ),
        ("task.reward=gsm8k", '`task.reward`: found "gsm8k", but external agents bring'),
        (
            "evaluation.tasks=10",
            "`evaluation.tasks`: found 10, but an online run has no held-out tasks; write `tasks = 0`",
        ),
        (
            "actors.rollout_worker.count=2",
            "`actors.rollout_worker.count`: found 2, but an online run has no rollout_worker; leave it out",
        ),
        ("actors.batcher.count=0", "`actors.batcher.count`: found 0, but a run needs its batcher; write `count = 1`"),
        ("actors.trainer.count=0", "found 0, but a run needs its trainer"),
        ("task.turn_discount=1.5", "`task.turn_discount`: found 1.5, expected a number"),
        ("task.export_style=tree", 'found "tree", expected one of "concat", "individual"'),
    ],
)
def test_settings_that_do_not_fit_an_online_run_are_reported(read, override, complaint):
    with pytest.raises(RecipeError) as caught:
        read(override)
    assert complaint in str(caught.value)


def test_a_known_admin_key_is_refused_where_others_can_reach_the_gateway(read):
    assert read("gateway.admin_key=admin").recipe.gateway.admin_key == "admin"
    with pytest.raises(
        RecipeError, match=r"found a well-known key, on 0\.0\.0\.0, which other machines can reach; leave it out"
    ):
        read("gateway.admin_key=admin", "gateway.host=0.0.0.0")


@pytest.mark.parametrize(
    ("overrides", "serving", "size", "slots"),
    [((), False, 4, 0), (("staleness_gate.max_concurrent=20",), True, 1, 80)],
)
def test_the_gateway_has_room_for_what_the_gate_grants_or_for_its_slots(
    read, tmp_path, overrides, serving, size, slots
):
    recipe = read(*overrides, serving=serving).recipe
    folder = RunFolder(tmp_path / "run")
    folder.create(recipe)
    manager = CPU_ACTORS["session_manager"](BuildContext(recipe=recipe, folder=folder, instance="session_manager-0"))
    assert (manager.external.slots.capacity.group_size, manager.external.slots.capacity.slots) == (size, slots)
    assert folder.admin_key(recipe) == (folder.path / "admin_key").read_text()
