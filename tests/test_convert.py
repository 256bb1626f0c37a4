"""Recipes of configurations of TRL, verl and AReaL: every key of the file has a row, and the recipe is valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.areal_programs import CONFIG

from areal_actors.cli import main
from areal_actors.compat.convert.command import convert_file
from areal_actors.compat.convert.conversion import Fate, describe
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError

CPU = CudaDevices(0, "none")
GRPO = """
from trl import GRPOConfig, GRPOTrainer
from peft import LoraConfig

def length(completions, **_):
    return [float(len(each)) for each in completions]

args = GRPOConfig(
    output_dir="out/My GRPO",
    learning_rate=2e-5,
    num_generations=4,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    max_completion_length=48,
    beta=0.04,
    max_steps=3,
    loss_type="grpo",
    scale_rewards="none",
    epsilon_high=0.3,
    logging_steps=1,
    learning_rte=3,
)
trainer = GRPOTrainer(
    model="embedded", reward_funcs=length, args=args, train_dataset=rows(),
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
)
"""
VERL = """#!/bin/bash
export HYDRA_FULL_ERROR=1
model=${MODEL:-x}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=gae algorithm.lam=0.95 data.train_batch_size=8 \\
    data.max_prompt_length=64 data.max_response_length=48 \\
    actor_rollout_ref.model.path=embedded actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.entropy_coeff=0.001 \\
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.top_k=-1 critic.optim.lr=1e-5 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False trainer.total_training_steps=5 \\
    trainer.experiment_name='My PPO' trainer.nothing_known=1 $@
"""


def converted(tmp_path, name, text, *overrides):
    path = tmp_path / name
    path.write_text(text)
    return convert_file(path, overrides, CPU)


def fates(conversion):
    return {row.key: row.fate for row in conversion.rows}


def checked(tmp_path, monkeypatch, capsys, name, text):
    """The recipe as `init --from` writes it and `check` resolves it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert main(["init", "mine", "--from", name]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith((tmp_path / "mine/conversion.md").read_text())
    assert main(["check", "mine/recipe.toml", "--devices", "0", "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)["recipe"]


def test_a_program_of_trl_becomes_a_recipe_that_check_accepts(tmp_path, monkeypatch, capsys):
    recipe = checked(tmp_path, monkeypatch, capsys, "train.py", GRPO)
    algorithm, trainer = recipe["algorithm"], recipe["trainer"]
    assert (algorithm["name"], algorithm["loss_aggregation"], algorithm["scale_by_std"]) == ("grpo", "seq_mean", False)
    assert (algorithm["group_size"], trainer["batch_size"], algorithm["minibatches"]) == (4, 8, 2)  # 32 completions
    assert (algorithm["clip_higher"], algorithm["kl"]["coefficient"], algorithm["kl"]["apply_to"]) == (
        0.3,
        0.04,
        "loss",
    )
    assert (trainer["optimizer"]["lr"], trainer["optimizer"]["schedule"], recipe["steps"]) == (2e-5, "linear", 3)
    assert (trainer["lora"]["rank"], recipe["sampling"]["max_tokens"], recipe["model"]) == (8, 48, "embedded")


def test_every_key_of_a_program_of_trl_has_a_fate(tmp_path):
    conversion = converted(tmp_path, "train.py", GRPO)
    found = fates(conversion)
    assert found["learning_rte"] is Fate.UNKNOWN
    assert "did you mean `learning_rate`?" in describe(conversion)
    assert found["logging_steps"] is Fate.WITHOUT_EFFECT
    assert found["reward_funcs"] is found["train_dataset"] is Fate.DIFFERS
    assert found["num_generations"] is found["beta"] is Fate.CARRIED
    stated = {"model", "max_steps", "epsilon_high", "lora_r", "lora_alpha", "steps_per_generation", "output_dir"}
    assert stated <= found.keys()


def test_files_of_trl_without_episodes_keep_their_method(tmp_path, monkeypatch, capsys):
    program = "from trl import DPOConfig\nargs = DPOConfig(beta=0.2, loss_type='ipo', max_steps=4, max_length=256)\n"
    recipe = checked(tmp_path, monkeypatch, capsys, "dpo.py", f"{program}DPOTrainer(model='embedded', args=args)\n")
    algorithm = recipe["algorithm"]
    assert (algorithm["name"], algorithm["beta"], algorithm["variant"]) == ("dpo", 0.2, "ipo")
    assert recipe["task"]["max_length"] == 256
    table = {"model_name_or_path": "m", "learning_rate": 1e-5, "packing": True, "num_train_epochs": 2}
    conversion = converted(tmp_path, "sft.json", json.dumps(table))
    assert conversion.system == "TRL (sft)"
    assert fates(conversion) == {
        "model_name_or_path": Fate.CARRIED,
        "learning_rate": Fate.CARRIED,
        "packing": Fate.WITHOUT_EFFECT,
        "num_train_epochs": Fate.DIFFERS,
    }


def test_a_script_of_verl_becomes_a_recipe_that_check_accepts(tmp_path, monkeypatch, capsys):
    recipe = checked(tmp_path, monkeypatch, capsys, "run.sh", VERL)
    algorithm, trainer = recipe["algorithm"], recipe["trainer"]
    assert (algorithm["name"], algorithm["gae_lambda"], algorithm["critic"]["lr"]) == ("ppo", 0.95, 1e-5)
    assert (trainer["batch_size"], algorithm["minibatches"], algorithm["group_size"]) == (8, 2, 4)
    assert (recipe["sampling"]["top_k"], recipe["generation"]["max_model_len"], recipe["steps"]) == (0, 112, 5)
    assert recipe["staleness_gate"]["max_staleness"] == 0


def test_every_key_of_a_script_of_verl_has_a_fate_and_overrides_follow_it(tmp_path):
    conversion = converted(
        tmp_path, "run.sh", VERL, "data.train_batch_size=16", "actor_rollout_ref.actor.use_kl_loss=true"
    )
    found = fates(conversion)
    assert found["trainer.nothing_known"] is Fate.UNKNOWN
    assert found["actor_rollout_ref.actor.fsdp_config.param_offload"] is Fate.WITHOUT_EFFECT
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] is Fate.DIFFERS
    assert found["actor_rollout_ref.actor.use_kl_loss"] is Fate.CARRIED
    assert (conversion.tables["trainer"]["batch_size"], conversion.tables["algorithm"]["minibatches"]) == (16, 4)
    assert conversion.tables["algorithm"]["kl"] == {"coefficient": 0.001, "apply_to": "loss", "estimator": "k3"}


def test_a_file_of_areal_lists_the_keys_of_a_program_s_own_class(tmp_path, monkeypatch, capsys):
    text = CONFIG % {"folder": tmp_path / "runs", "model": "embedded", "dataset": "arithmetic"}
    own = "max_turns: 3\nworkflow: areal.workflow.openai.math_agent.MathAgent\nexport_style: ${gconfig.lora_name}\n"
    recipe = checked(tmp_path, monkeypatch, capsys, "config.yaml", text + own)
    assert (recipe["algorithm"]["normalize_advantages"], recipe["task"]["dataset"]) == (True, "arithmetic")
    conversion = converted(tmp_path, "config.yaml", text + own, "actor.mask_no_eos_with_zero=true")
    found = fates(conversion)
    assert found["max_turns"] is found["workflow"] is found["export_style"] is Fate.UNKNOWN
    assert found["actor.mask_no_eos_with_zero"] is Fate.DIFFERS
    assert found["sglang.mem_fraction_static"] is Fate.WITHOUT_EFFECT
    assert next(row.value for row in conversion.rows if row.key == "export_style") == "default_lora"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.py", "print(1)", "a.py: found no call of GRPOConfig"),
        ("a.py", "def", "a.py: line 1: not valid Python"),
        ("a.yaml", "- 1", "a.yaml: found list, expected keys and values"),
        ("a.yaml", "{", "a.yaml: not valid YAML"),
        ("a.sh", "echo 'x", "a.sh: not a shell script"),
        ("a.yaml", "actor: {path: x}\ncluster: {fileroot: y}", "found neither `gconfig` nor `rollout`"),
    ],
)
def test_a_file_without_a_configuration_is_refused_with_what_is_expected(tmp_path, name, text, complaint):
    with pytest.raises(RecipeError, match=complaint):
        converted(tmp_path, name, text)


def test_a_wrong_override_or_a_missing_file_writes_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("learning_rate: 1")
    assert main(["init", "mine", "--from", "a.yaml", "learning_rate"]) == 2
    assert "--from: `learning_rate`: expected key=value" in capsys.readouterr().err
    assert main(["init", "mine", "--from", "none.yaml"]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err
    assert not Path("mine").exists()
