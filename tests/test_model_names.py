"""`model = …` in a recipe: names of fetched models, and values that are none, each answered with the command that
helps."""

import json
import shutil

import pytest
from support.tiny_gguf import END_OF_TEXT, tiny_model, write_gguf

from areal_actors.calibration import calibrate
from areal_actors.cli import main
from areal_actors.core.known_models import fetched_folder, hub_id_of, is_fetchable, models_folder
from areal_actors.models.convert import convert_gguf
from areal_actors.recipe import model_size

RECIPE = """\
run   = "names"
steps = 1
task.agent     = "agent.py:Agent"
task.dataset   = "arithmetic"
task.reward    = "gsm8k"
sampling.max_tokens      = 200
generation.max_model_len = 500
evaluation.tasks         = 2
trainer.batch_size       = 1
"""
AGENT = """\
from openai import AsyncOpenAI

class Agent:
    async def run(self, task, *, base_url, api_key):
        asked = [{"role": "user", "content": task["question"]}]
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            completion = await client.chat.completions.create(model="default", messages=asked)
            return completion.choices[0].message.content or ""
"""
TEXT_AGENT = """\
from openai import AsyncOpenAI

class Agent:
    async def run(self, task, *, base_url, api_key):
        async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            return (await client.completions.create(model="default", prompt=task["question"])).choices[0].text
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with a recipe, and a models folder of its own; no hub answers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AREAL_MODELS", str(tmp_path / "fetched"))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a tiny model with a chat template, and of a base model."""
    folder = tmp_path_factory.mktemp("models")
    convert_gguf(write_gguf(folder / "a.gguf", tiny_model("llama"), "llama"), folder / "chat", report=print)
    base = write_gguf(folder / "b.gguf", tiny_model("llama"), "llama", template="", eos=END_OF_TEXT)
    convert_gguf(base, folder / "base", report=print)
    return folder


def check(model, *words):
    return main(["check", "recipe.toml", f"model={model}", *words])


# ------------------------------------------------------------ names of fetched models


def test_the_models_folder_is_the_variable_or_in_the_users_cache(tmp_path):
    assert models_folder({"AREAL_MODELS": "/data/models", "XDG_CACHE_HOME": "/c"}).as_posix() == "/data/models"
    assert models_folder({"XDG_CACHE_HOME": "/c"}).as_posix() == "/c/areal/models"
    assert models_folder({}).as_posix().endswith("/.cache/areal/models")


def test_short_names_and_hub_ids_can_be_fetched_and_paths_cannot():
    names = ("smollm2", "owner/name", "a/b/c", "/x", "embedded", "qwen")
    assert [name for name in names if is_fetchable(name)] == ["smollm2", "owner/name"]


def test_a_recipe_finds_a_fetched_model_by_its_name(place, models, capsys):
    shutil.copytree(models / "chat", place / "fetched" / "smollm2")
    assert check("smollm2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["model"] == str(place / "fetched" / "smollm2")
    assert check("smollm2") == 0
    shown = capsys.readouterr().out
    assert f"read from {place}/fetched/smollm2" in shown
    assert "reward 1, 1 model calls" in shown


def test_the_card_of_a_checkpoint_names_the_hub_id_of_a_fetched_model(place):
    assert hub_id_of(str(place / "fetched" / "smollm2")) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert hub_id_of(str(place / "fetched" / "owner" / "name")) == "owner/name"
    assert [hub_id_of(model) for model in ("/data/mine", "owner/name", "embedded")] == [
        "/data/mine",
        "owner/name",
        "embedded",
    ]


def test_a_folder_of_the_current_directory_comes_before_a_fetched_model(place, models):
    shutil.copytree(models / "chat", place / "fetched" / "smollm2")
    (place / "smollm2").mkdir()
    assert fetched_folder("smollm2") is None


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_model_that_was_not_fetched_is_answered_with_its_command(place, capsys, command):
    assert main([command, "recipe.toml", "model=smollm2"]) == 1
    error = capsys.readouterr().err
    assert "model 'smollm2' is not on this machine yet: `" in error
    assert "model get smollm2` fetches it (HuggingFaceTB/SmolLM2-135M-Instruct)" in error
    assert not (place / "runs" / "names" / "recipe.json").exists()


# ------------------------------------------------------------ what is no model


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_gguf_file_is_answered_with_the_conversion(place, capsys, command):
    (place / "small.gguf").write_bytes(b"GGUF")
    assert main([command, "recipe.toml", "model=small.gguf"]) == 2
    error = capsys.readouterr().err
    assert '`model`: found "small.gguf", which is a GGUF file, and a run needs a folder; `' in error
    assert 'areal-actors model convert small.gguf` makes it once, then write model = "small"' in error


def test_a_gguf_file_that_is_converted_is_answered_with_its_folder(place, models, capsys):
    (place / "small.gguf").write_bytes(b"GGUF")
    shutil.copytree(models / "chat", place / "small")
    assert check("small.gguf") == 2
    assert 'which is a GGUF file; it is converted: write model = "small"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["a.gguf"], 'and a.gguf; `{}areal-actors model convert models/x/a.gguf`, then write model = "models/x/a"'),
        (["adapter_config.json"], "which holds an adapter (adapter_config.json); name the folder of a whole model"),
        (
            ["model.safetensors"],
            "beside the weights; copy the other files of the model into it: config.json, tokenizer.json",
        ),
        (["step-2/config.json"], 'a model is in models/x/step-2: write model = "models/x/step-2"'),
        (["snapshots/abc/config.json"], 'a model is in models/x/snapshots/abc: write model = "models/x/snapshots/abc"'),
        (["notes.txt"], "but no config.json in that folder; name a Hugging Face model folder"),
    ],
)
def test_a_folder_without_configuration_is_answered_with_what_is_in_it(place, capsys, files, sentence):
    for name in files:
        file = place / "models" / "x" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    assert check("models/x") == 2
    error = capsys.readouterr().err
    assert '`model`: found "models/x", but no config.json in that folder' in error
    assert all(part in error for part in sentence.split("{}"))


def test_missing_folders_and_misspelt_names_are_answered_with_the_nearest(capsys):
    assert check("models/smollm2") == 2
    assert "areal-actors model get smollm2 --folder models` fetches it" in capsys.readouterr().err
    assert check("models/none") == 2
    assert "there is no such folder (looked beside the recipe and in /" in capsys.readouterr().err
    assert check("smolm2") == 2
    assert 'found "smolm2"; did you mean "smollm2"? Or write "embedded", a hub id' in capsys.readouterr().err


def test_a_folder_without_tokenizer_or_weights_is_refused_by_name(place, models, capsys):
    shutil.copytree(models / "chat", place / "own")
    (place / "own" / "tokenizer.json").unlink()
    assert check("./own") == 1
    assert (
        "model: own has no tokenizer.json; copy the missing files from where the model came from"
        in capsys.readouterr().err
    )
    (place / "own" / "model.safetensors").unlink()
    assert check("./own") == 1
    assert "model: own has no weights (*.safetensors) and no tokenizer.json" in capsys.readouterr().err


def test_a_teacher_is_looked_up_by_its_short_name_too(place, capsys):
    assert (
        main(
            ["check", "recipe.toml", "model=embedded", "algorithm.kl.reference=x.gguf", "algorithm.kl.coefficient=0.1"]
        )
        == 2
    )
    (place / "x.gguf").write_bytes(b"GGUF")
    capsys.readouterr()
    assert (
        main(
            ["check", "recipe.toml", "model=embedded", "algorithm.kl.reference=x.gguf", "algorithm.kl.coefficient=0.1"]
        )
        == 2
    )
    assert '`algorithm.kl.reference`: found "x.gguf", which is a GGUF file' in capsys.readouterr().err


# ------------------------------------------------------------ base models


@pytest.mark.parametrize("command", ["check", "run", "serve"])
def test_a_base_model_is_answered_with_the_command_for_a_template(place, models, capsys, command):
    assert main([command, "recipe.toml", f"model={models}/base"]) == 1
    error = capsys.readouterr().err
    assert f"model {models}/base has no chat template, as base models have none, and agents send messages: `" in error
    assert f"areal-actors model template {models}/base` writes one, or set gateway.chat_template" in error


def test_a_base_model_runs_with_a_template_of_the_recipe_and_without_one_for_plain_text(place, models, capsys):
    (place / "chat.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    assert check(models / "base", "gateway.chat_template=chat.jinja") == 0
    assert "reward 1, 1 model calls" in capsys.readouterr().out
    (place / "agent.py").write_text(TEXT_AGENT)
    assert check(models / "base", "gateway.chat_template=none") == 0
    assert "reward 1, 1 model calls" in capsys.readouterr().out


def test_a_measurement_that_took_too_long_is_reported_where_the_budget_would_be(models, capsys, monkeypatch):
    monkeypatch.setattr(calibrate, "DEADLINE_SECONDS", 0.0)
    monkeypatch.setattr(model_size, "SMALL_MODEL", 0)
    assert check(models / "chat") == 0
    shown = capsys.readouterr()
    assert "of decode on this machine took more than 0 s" in shown.err
    assert "Budget on this machine\n# not measured" in shown.out
