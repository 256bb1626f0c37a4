from pathlib import Path

import pytest

from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.load import load
from areal_actors.recipe.plan import explain, plan, to_toml
from areal_actors.recipe.source import read_override
from areal_actors.training.algorithms import Grpo

NO_CUDA = CudaDevices(0, "no CUDA device: libcuda.so.1 not found")
CUDA = CudaDevices(2, "2 CUDA devices")

RECIPE = """\
run   = "first-run"
steps = 3
model = "embedded"

[task]
dataset = "arithmetic"
agent   = "agents/adder.py:Adder"
reward  = "gsm8k"

[algorithm]
name       = "grpo"
group_size = 4

[trainer]
batch_size = 16
optimizer  = { lr = 1e-3, schedule = "cosine" }

[staleness_gate]
max_staleness = 2

[sampling]
max_tokens = 64
"""

PROFILES = """
[profiles.big]
when          = "cuda"
steps         = 300
trainer.dtype = "bfloat16"

[profiles.small]
when = "no cuda"

[profiles.tiny]
steps = 1
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Load a recipe text, standing in a folder with one agent and one reward function."""
    (tmp_path / "agents").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents/adder.py").write_text("class Adder:\n    pass\n")
    (tmp_path / "scores.py").write_text("async def score(task, output):\n    return 1.0\n\nsame = score\n")

    def read(text, *overrides, cuda=NO_CUDA):
        Path("recipe.toml").write_text(text)
        return load([Path("recipe.toml")], overrides, cuda)

    return read


@pytest.fixture
def complaints(read):
    """Load a recipe that is wrong; every complaint, one string each."""

    def complaints(text, *overrides, cuda=NO_CUDA):
        with pytest.raises(RecipeError) as caught:
            read(text, *overrides, cuda=cuda)
        return str(caught.value).splitlines()

    return complaints


def test_a_recipe_decodes_into_the_objects_that_are_used(read):
    recipe = read(RECIPE).recipe
    assert isinstance(recipe.algorithm, Grpo)
    assert (recipe.algorithm.group_size, recipe.trainer.optimizer.lr, recipe.trainer.optimizer.schedule) == (
        4,
        1e-3,
        "cosine",
    )
    assert recipe.actors.rollout_worker.concurrency == 48 * 4


def test_the_resolved_recipe_reads_back_as_the_same_recipe(read):
    recipe = read(RECIPE, 'sampling.stop=["\\n\\n", "a\\"b", "ü"]', "actors.rollout_worker.count=3").recipe
    assert read(to_toml(recipe)).recipe == recipe


def test_what_check_prints_reads_back_as_the_same_recipe(read):
    resolved = read(RECIPE + PROFILES)
    assert read(explain(resolved)).recipe == resolved.recipe


@pytest.mark.parametrize(
    ("written", "instead", "complaint"),
    [
        (
            "max_staleness",
            "max_stalness",
            "recipe.toml:19: `staleness_gate.max_stalness` is not a setting; did you mean `max_staleness`?",
        ),
        ("lr = 1e-3", "lrr = 1e-3", "recipe.toml:16: `trainer.optimizer.lrr` is not a setting; did you mean `lr`?"),
        ("lr = 1e-3", "zzz = 1", "recipe.toml:16: `trainer.optimizer.zzz` is not a setting; known: lr, betas,"),
        (
            "group_size = 4",
            "gruop_size = 4",
            'recipe.toml:12: `algorithm.gruop_size` is not a setting of name = "grpo"; did you mean `group',
        ),
        ("[trainer]", "[trianer]", "recipe.toml:14: `trianer` is not a setting; did you mean `trainer`?"),
        ("model =", "profles =", "recipe.toml:3: `profles` is not a setting; did you mean `profiles`?"),
        ("steps = 3", 'steps = "3"', 'recipe.toml:2: `steps`: found "3", expected a whole number'),
        ("steps = 3", "steps = 0", "recipe.toml:2: `steps`: found 0, expected a whole number >= 1"),
        ("lr = 1e-3", "lr = -1.0", "recipe.toml:16: `trainer.optimizer.lr`: found -1.0, expected a number >= 0.0"),
        (
            '"cosine"',
            '"cosin"',
            'recipe.toml:16: `trainer.optimizer.schedule`: found "cosin", expected one of "constant"',
        ),
        (
            '"grpo"',
            '"gpro"',
            'recipe.toml:11: `algorithm.name`: found "gpro", expected one of "grpo", "dr_grpo", "dapo"',
        ),
        (
            '"first-run"',
            '"First run"',
            'recipe.toml:1: `run`: found "First run", expected text of lowercase letters, digits and hyphens',
        ),
        ('dataset = "arithmetic"', "", "recipe.toml:5: `task.dataset`: found none; write `dataset = …` under `[task]`"),
        ('model = "embedded"', "", "recipe.toml: `model` is missing; write `model = …` at the top"),
        ("[task]", "[task]\nretries = true", "recipe.toml:6: `task.retries`: found true, expected a whole number"),
    ],
)
def test_a_complaint_has_place_value_and_remedy(complaints, written, instead, complaint):
    assert written in RECIPE
    assert complaints(RECIPE.replace(written, instead))[0].startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("run = first", "recipe.toml:1: not valid TOML at column 7: invalid value; write text in double quotes"),
        (
            "run: 'first'",
            "recipe.toml:1: not valid TOML at column 4: expected '=' after a key in a key/value pair; TOML writes",
        ),
        ("a = 1\na = 2", "recipe.toml:2: not valid TOML: cannot overwrite a value; a line is `key = value`"),
        ("a = 1\n\nb = [1,", "recipe.toml:3: not valid TOML: invalid value"),
    ],
)
def test_what_is_not_toml_is_refused_with_its_line(complaints, text, complaint):
    assert complaints(text)[0].startswith(complaint)


def test_all_errors_are_reported_at_once(complaints):
    lines_found = complaints(
        RECIPE.replace("steps = 3", "steps = 0").replace('"grpo"', '"gprpo"').replace("max_staleness", "max_stalness"),
        "actors.trainer.count=-1",
        "supervisors.left.restart=never",
        "supervisors.right.children=[3]",
        "sampling.stop=[1]",
    )
    for name in (
        "`steps`",
        "`algorithm.name`",
        "`staleness_gate.max_stalness`",
        "`actors.trainer.count`",
        "`supervisors.left.restart`",
        "`supervisors.left.children`",
        "`supervisors.right.children.0`",
        "`sampling.stop.0`",
    ):
        assert sum(name in line for line in lines_found) == 1, (name, lines_found)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "algorithm.gruop_size=3",
            'override `algorithm.gruop_size=3`: `algorithm.gruop_size` is not a setting of name = "grpo"; did you mean',
        ),
        ("steps=many", 'override `steps=many`: `steps`: found "many", expected a whole number'),
        ("=3", "override `=3`: found no setting in it; write `table.key=value`"),
        ("steps.more=3", "override `steps.more=3`: `steps`: found { more = 3 }, expected a whole number"),
        ("task.agent=agents/adder.py:Other", "override `task.agent=agents/adder.py:Other`: `task.agent`: found"),
    ],
)
def test_a_wrong_override_is_named(complaints, override, complaint):
    assert complaints(RECIPE, override)[0].startswith(complaint)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("a.b=3", 3),
        ("a.b=1e-3", 1e-3),
        ("a.b=true", True),
        ("a.b=embedded", "embedded"),
        ('a.b="3"', "3"),
        ("a.b=x=y", "x=y"),
        ("a.b=[1, 2]", [1, 2]),
    ],
)
def test_an_override_is_a_toml_value_or_a_bare_word(written, value):
    assert read_override(written).data == {"a": {"b": value}}


def test_a_later_file_lies_over_an_earlier_one_and_overrides_over_both(read):
    read(RECIPE)
    Path("overlay.toml").write_text("steps = 7\n[trainer.optimizer]\nlr = 2.0\n[algorithm]\nclp = 1\n")
    with pytest.raises(RecipeError, match=r"overlay.toml:5: `algorithm.clp` is not a setting"):
        load([Path("recipe.toml"), Path("overlay.toml")], [], NO_CUDA)
    Path("overlay.toml").write_text("steps = 7\n[trainer.optimizer]\nlr = 2.0\n")
    recipe = load([Path("recipe.toml"), Path("overlay.toml")], ["steps=9"], NO_CUDA).recipe
    assert (recipe.steps, recipe.trainer.optimizer.lr, recipe.trainer.optimizer.schedule) == (9, 2.0, "cosine")


def test_the_profile_that_fits_the_machine_is_chosen_with_a_reason(read):
    small, big = read(RECIPE + PROFILES), read(RECIPE + PROFILES, cuda=CUDA)
    assert (small.profile, small.reason, small.recipe.steps) == ("small", NO_CUDA.reason, 3)
    assert (big.profile, big.reason, big.recipe.steps, big.recipe.trainer.dtype) == (
        "big",
        "2 CUDA devices",
        300,
        "bfloat16",
    )


def test_a_named_profile_is_chosen_whatever_the_machine(read):
    tiny = read(RECIPE + PROFILES, "profile=tiny", cuda=CUDA)
    assert (tiny.profile, tiny.reason, tiny.recipe.steps) == ("tiny", "named by override `profile=tiny`", 1)
    assert read(RECIPE + PROFILES, "profile=tiny", "steps=5").recipe.steps == 5


def test_without_a_profile_that_fits_the_recipe_holds_as_written(read):
    assert read(RECIPE).reason == "the recipe has no profiles"
    resolved = read(
        RECIPE
        + PROFILES.replace('"no cuda"', '"cuda"').replace('[profiles.big]\nwhen          = "cuda"', "[profiles.big]")
    )
    assert (resolved.profile, resolved.recipe.steps) == ("", 3)
    assert resolved.reason == 'no profile has `when = "no cuda"` (no CUDA device: libcuda.so.1 not found)'


@pytest.mark.parametrize(
    ("text", "override", "complaint"),
    [
        (
            RECIPE + PROFILES,
            "profile=smal",
            'override `profile=smal`: `profile`: found no profile "smal"; did you mean `small`?',
        ),
        (RECIPE, "profile=cuda", 'override `profile=cuda`: `profile`: found no profile "cuda"; known: auto'),
        (
            RECIPE + PROFILES.replace('"no cuda"', '"no gpu"'),
            "seed=1",
            'recipe.toml:30: `profiles.small.when`: found "no gpu", expected one of',
        ),
        (
            RECIPE + PROFILES.replace('"cuda"', '"no cuda"'),
            "seed=1",
            'recipe.toml:29: `profiles`: found `when = "no cuda"` in big and small',
        ),
        (
            RECIPE + PROFILES.replace("trainer.dtype", "trainer.detype"),
            "seed=1",
            "recipe.toml:27: `trainer.detype` is not a setting; did you",
        ),
        (RECIPE + "[profiles]\nbig = 3\n", "seed=1", "recipe.toml:23: `profiles`: found { big = 3 }, expected tables"),
        (
            RECIPE + PROFILES + 'profile = "tiny"\n',
            "seed=1",
            "recipe.toml:34: `profiles.tiny.profile`: found a profile within a profile",
        ),
    ],
)
def test_a_wrong_profile_is_found_on_every_machine(complaints, text, override, complaint):
    assert complaints(text, override)[0].startswith(complaint)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            ["task.agent=agents/none.py:Adder"],
            '`task.agent`: found "agents/none.py:Adder", but there is no file agents/none.py to read',
        ),
        (["task.agent=agents/adder.py:Addr"], "but agents/adder.py has no class `Addr`; did you mean `Adder`?"),
        (["task.agent=Adder"], "write the class as `path.py:Name`, as in `agents/gsm8k.py:Gsm8kAgent`"),
        (["task.reward=gsm9k"], 'found "gsm9k"; did you mean `gsm8k`?, or write `path.py:function`'),
        (["task.reward=scores.py:scoer"], "but scores.py has no function `scoer`; did you mean `score`?"),
        (["task.dataset=gsm8k"], 'found "gsm8k"; did you mean `openai/gsm8k`?, or the path of a .jsonl file'),
        (
            ["task.dataset=rows.jsonl"],
            'found "rows.jsonl", but there is no such file (looked beside the recipe and in /',
        ),
        (["task.held_out=rows.txt"], 'found "rows.txt"; write how many tasks to hold out'),
        (["task.held_out=10"], "`evaluation.tasks`: found 200, but task.held_out keeps only 10"),
        (["model=./nowhere"], 'found "./nowhere", but there is no such folder (looked beside the recipe and in /'),
        (["model=qwen"], 'found "qwen"; write "embedded", a hub id'),
        (["staleness_gate.max_concurrent=8"], "found 8 groups at once, but one batch (trainer.batch_size) takes 16"),
        (["sampling.temperature=0"], "greedy answers of one task are all the same; write a number above 0"),
        (["sampling.max_tokens=600", "generation.max_model_len=512"], "found 600, but generation.max_model_len is 512"),
        (["trainer.microbatch_tokens=99"], "`trainer.microbatch_tokens`: found 99, but one sequence may have"),
        (["sampling.top_p=0.0"], "`sampling.top_p`: found 0.0; write a share"),
        (["bus.url=http://localhost"], "write `nats://host:port`"),
        (["actors.trainer.count=2"], "found 2, but a run has one trainer; write `count = 1`"),
        (["actors.batcher.concurrency=2"], "found 2, but batcher handles one message at a time"),
        (
            ["actors.reward_worker.count=2", "actors.reward_worker.process=gateway"],
            "shared with session_manager, for 2 of them",
        ),
        (["supervisors.run.children=[]"], "`supervisors`: found no supervisor of staleness_gate, task_source"),
    ],
)
def test_what_cannot_run_is_found_before_anything_starts(complaints, overrides, complaint):
    assert complaint in complaints(RECIPE, *overrides)[0]


def test_several_senseless_settings_are_reported_at_once(complaints):
    lengths = ("sampling.max_tokens=600", "generation.max_model_len=512")
    assert len(complaints(RECIPE, "task.dataset=x", "task.reward=y", *lengths, "seed=-1")) == 4


def test_a_reward_of_ones_own_and_a_file_of_rows_are_found(read):
    read(RECIPE)
    Path("rows.jsonl").write_text("{}\n")
    task = read(RECIPE, "task.reward=scores.py:same", "task.dataset=rows.jsonl", "task.held_out=rows.jsonl").recipe.task
    assert (task.reward, task.held_out) == ("scores.py:same", "rows.jsonl")


ACTORS = (
    '"trainer", "batcher", "task_source", "evaluator", "checkpointer", "metrics", "session_manager", "inference_worker"'
)


@pytest.mark.parametrize(
    ("supervisors", "complaint"),
    [
        (
            "a = {{ children = [{all}, 'rollout_worker', 'stalness_gate'] }}",
            "recipe.toml:24: `supervisors.a.children`: found `stalness_gate`, which is nei",
        ),
        (
            "a = {{ children = [{all}] }}\nb = {{ children = [{rest}] }}",
            "recipe.toml:25: `supervisors.b`: found several supervisors without a parent: a, b",
        ),
        (
            "a = {{ children = [{all}, 'b'] }}\nb = {{ children = [{rest}, 'trainer'] }}",
            "found `trainer`, which a has already; name it once",
        ),
        (
            "a = {{ children = [{all}, 'b'] }}\nb = {{ children = [{rest}, 'a'] }}",
            "found a cycle: a, b supervise each other",
        ),
        ("trainer = {{ children = [{all}, {rest}] }}", "found a supervisor with the name of an actor"),
        (
            "a = {{ children = [{all}, 'reward_worker'] }}",
            "`supervisors`: found no supervisor of staleness_gate, rollout_worker",
        ),
    ],
)
def test_supervisors_must_be_one_tree_over_all_actors(complaints, supervisors, complaint):
    text = supervisors.format(all=ACTORS, rest='"staleness_gate", "rollout_worker", "reward_worker"')
    assert any(complaint in line for line in complaints(f"{RECIPE}[supervisors]\n{text}\n"))


def test_a_tree_in_the_recipe_takes_the_place_of_the_default(read):
    rest = '"staleness_gate", "rollout_worker", "reward_worker"'
    text = f'{RECIPE}[supervisors]\nall = {{ restart = "one_for_all", children = [{ACTORS}, {rest}] }}\n'
    shown = explain(read(text, "actors.rollout_worker.count=2"))
    assert "# all [one_for_all, at most 5 restarts in 60 s]\n#   trainer ×1 in trainer\n" in shown
    assert "#   rollout_worker ×2, 96 at once in rollout_worker-0 rollout_worker-1\n" in shown


def test_the_plan_reports_the_amount_of_work(read):
    text = "\n".join(plan(read(RECIPE).recipe))
    assert "3 steps × 16 groups × 4 episodes = 192 episodes" in text
    assert "(2 + 1) × 16 = 48 groups ahead of the weights" in text
    assert "runs/first-run" in text
