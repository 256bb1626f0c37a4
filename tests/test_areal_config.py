"""Configurations of AReaL's programs: YAML files, overrides, and the recipes that they become."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import yaml
from support.areal_programs import CONFIG

from areal_actors.compat.areal import __main__ as command
from areal_actors.compat.areal import aliases, names
from areal_actors.compat.areal.config import GRPOConfig, PPOConfig
from areal_actors.compat.areal.keys import MAPPED, REPORTED
from areal_actors.compat.areal.load_config import load_expr_config, read_config
from areal_actors.compat.areal.to_recipe import recipe_of
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.recipe.recipe import Recipe

ROOT = Path(__file__).parent.parent
CPU = CudaDevices(0, "none")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG % {"folder": tmp_path / "runs", "model": tmp_path / "model", "dataset": "arithmetic"})
    return str(path)


def recipe(file, *overrides, steps=10, **options):
    return recipe_of(read_config(file, overrides, GRPOConfig)[0], steps=steps, cuda=CPU, **options)


def test_a_file_of_areal_becomes_a_recipe(file):
    made = recipe(file, discounts=True)
    assert (made.run, made.seed, made.steps, made.model) == (
        "gsm8k-grpo-trial0",
        1,
        10,
        str(Path(file).parent / "model"),
    )
    algorithm = made.algorithm
    assert (algorithm.__struct_config__.tag, algorithm.group_size, algorithm.minibatches) == ("grpo", 4, 1)
    assert (algorithm.clip, algorithm.normalize_advantages, algorithm.kl.coefficient) == (0.4, True, 0.0)
    assert (algorithm.shaping.bias, algorithm.shaping.scale, algorithm.shaping.clip) == (-0.5, 10.0, 20.0)
    correction = algorithm.correction
    assert (correction.decoupled, correction.importance_sampling, correction.level) == (True, "mask", "token")
    assert (correction.highest, correction.lowest) == (5.0, 0.0)
    assert (made.staleness_gate.max_staleness, made.staleness_gate.max_concurrent, made.trainer.batch_size) == (
        2,
        16,
        4,
    )
    assert (made.sampling.temperature, made.sampling.max_tokens, made.sampling.top_k) == (1.0, 64, 0)
    optimizer = made.trainer.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.betas, optimizer.epsilon) == ("adamw", 1.7e-4, (0.9, 0.999), 1e-8)
    assert (optimizer.weight_decay, optimizer.grad_clip, optimizer.schedule) == (0.017, 1.0, "constant")
    assert (made.generation.engine, made.generation.max_model_len, made.task.turn_discount) == (
        "transformers",
        256,
        1.0,
    )
    assert recipe(file).task.turn_discount is None


NORM = "actor.reward_norm={mean_level: group, std_level: null}"


@pytest.mark.parametrize(
    ("overrides", "tag", "settings"),
    [
        ((NORM,), "dr_grpo", {"loss_aggregation": "token_mean", "normalize_advantages": True}),
        (("actor.reward_norm={mean_level: group, std_level: batch}",), "lite_ppo", {"std_around": "group"}),
        (("actor.reward_norm={mean_level: group, std_level: null, mean_leave1out: true}",), "rloo", {"clip": 0.4}),
        (("actor.reward_norm=null",), "reinforce_plus_plus", {"clip": 0.4}),
        (
            ("actor.importance_sampling_level=sequence",),
            "gspo",
            {"clip_higher": 0.4, "normalize_advantages": True},
        ),
        (("+actor.use_sapo_loss=true",), "sapo", {"temperature_negative": 1.05, "normalize_advantages": True}),
        (("actor.m2_threshold=0.05", "actor.eps_clip=0"), "m2po", {"threshold": 0.05, "clip": 1e-6}),
        (
            (
                "actor.overlong_reward_penalty=true",
                "actor.overlong_tokens=8",
                "actor.overlong_penalty_factor=0.5",
                "actor.adv_norm=null",
            ),
            "dapo",
            {"clip": 0.4, "clip_higher": 0.4},
        ),
        (
            (
                "critic={optimizer: {lr: 1e-4}, path: ''}",
                "actor.reward_norm=null",
                "actor.gae_lambda=0.9",
                "actor.eps_clip=0.2",
            ),
            "ppo",
            {"gae_lambda": 0.9, "discount": 1.0},
        ),
        (
            ("teacher={path: other/model, rl_loss_weight: 0.5, distill_loss_weight: 0.1}",),
            "distillation",
            {"teacher": "other/model", "teacher_weight": 0.1, "reward_weight": 0.5},
        ),
        (("actor.eps_clip_higher=0.5", "actor.c_clip=3"), "grpo", {"clip_higher": 0.5, "dual_clip": 3.0}),
    ],
)
def test_the_settings_of_the_actor_choose_the_algorithm(file, overrides, tag, settings):
    algorithm = recipe(file, *overrides).algorithm
    assert algorithm.__struct_config__.tag == tag
    assert {name: getattr(algorithm, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("overrides", "decoupled", "importance_sampling", "highest"),
    [
        (("actor.rejection_sampling=null",), True, "truncate", 0.0),
        (("actor.rejection_sampling.action=clamp", "actor.rejection_sampling.upper=2"), True, "truncate", 2.0),
        (("actor.use_decoupled_loss=false",), True, "off", 5.0),
        (("actor.use_decoupled_loss=false", "actor.recompute_logprob=false"), False, "truncate", 5.0),
    ],
)
def test_the_off_policy_correction_is_that_of_the_file(file, overrides, decoupled, importance_sampling, highest):
    correction = recipe(file, *overrides).algorithm.correction
    assert (correction.decoupled, correction.importance_sampling, correction.highest) == (
        decoupled,
        importance_sampling,
        highest,
    )


def test_kl_and_lora_are_those_of_the_file(file):
    made = recipe(
        file,
        "actor.kl_ctl=0.1",
        "ref={path: '${actor.path}', optimizer: null}",
        "actor.use_lora=true",
        "actor.lora_rank=8",
    )
    kl = made.algorithm.kl
    assert (kl.coefficient, kl.apply_to, kl.estimator, kl.reference) == (0.1, "reward", "k1", "initial")
    assert (made.trainer.lora.rank, made.trainer.lora.alpha, made.trainer.lora.targets) == (8, 16, ())


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("actor.kl_ctl=0.1", "`actor.kl_ctl`: found 0.1 without a reference model"),
        ("actor.init_from_scratch=true", "`actor.init_from_scratch`: models are loaded"),
        ("actor.dtype=float16", "`actor.dtype`: found float16; write one of float32, bfloat16"),
        ("actor.temperature=0.5", "`actor.temperature`: found 0.5, but gconfig.temperature is 1.0"),
        ("gconfig.greedy=true", "`gconfig.greedy`: episodes for training are sampled"),
        ("rollout.consumer_batch_size=3", "`rollout.consumer_batch_size`: found 3; write train_dataset.batch_size"),
        ("rollout.agent.mode=online", "programs have no online mode here"),
        ("actor.mask_no_eos_with_zero=true", "`actor.mask_no_eos_with_zero`: truncated episodes keep their reward"),
        ("actor.gae_lambda=0.9", "without a critic they must be 1.0"),
        (
            "actor.adv_norm={mean_level: group}",
            "`actor.adv_norm`: found mean_level group, std_level batch; write batch and batch",
        ),
        ("actor.reward_norm={mean_level: batch}", "`actor.reward_norm`: found mean, std, leave-one-out = "),
        ("actor.rejection_sampling.metric=kl", "`actor.rejection_sampling`: found .* expected metric ratio"),
        ("gconfig.n_samples=1", "`algorithm.group_size`: found 1, but an advantage compares an episode"),
        ("actor.optimizer.type=adam_bf16", "`actor.optimizer.type`: write one of adam, adamw, sgd"),
    ],
)
def test_a_setting_that_changes_training_and_has_no_counterpart_is_an_error(file, override, complaint):
    with pytest.raises(RecipeError, match=complaint):
        recipe(file, override)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["+actor.epsclip=0.3"],
            r"config.yaml: `actor.epsclip`: AReaL's key has no counterpart here, or does not exist; .*eps_clip",
        ),
        (["teachers.path=x"], "`teachers`: AReaL's key has no counterpart here"),
        (["actor.optimizer.lr=fast"], "config.yaml: `actor.optimizer.lr`: expected `float`"),
        (["actor.path"], "`actor.path`: expected `key=value`"),
        (["actor.path=${nothing.here}"], "there is no key `nothing.here`"),
        (["seed=${seed}"], "refers to itself"),
        (["seed=${oc.env:HOME}"], "only references to keys are supported"),
    ],
)
def test_an_unknown_key_or_value_is_an_error_that_names_it(file, words, complaint):
    with pytest.raises(RecipeError, match=complaint):
        load_expr_config(["--config", file, *words], GRPOConfig)


def test_a_program_adds_fields_of_its_own_and_overrides_values(file):
    @dataclass
    class AgentConfig(PPOConfig):
        workflow: str = field(default="", metadata={"help": "a name"})
        max_turns: int = 10
        agent_run_args: dict = field(default_factory=dict)

    words = [
        "train.py",
        "--config",
        file,
        "workflow=my.Agent",
        "+agent_run_args.depth=2",
        "~recover",
        "actor.optimizer.lr=1e-6",
    ]
    config, path = load_expr_config(words, AgentConfig)
    assert (path, config.workflow, config.max_turns, config.agent_run_args) == (file, "my.Agent", 10, {"depth": 2})
    assert (config.actor.optimizer.lr, config.tokenizer_path, config.rollout.consumer_batch_size) == (
        1e-6,
        config.actor.path,
        4,
    )
    assert (config.gconfig.new(temperature=0.6).temperature, config.gconfig.temperature) == (0.6, 1.0)


def test_the_recipe_of_a_file_can_be_printed(file, capsys):
    assert command.main(["--recipe", file, "total_train_steps=7"]) == 0
    written = tomllib.loads(text := capsys.readouterr().out)
    assert "# without effect here: scheduler (processes are placed by `areal-actors check`)\n" in text
    assert (written["steps"], written["algorithm"]["name"], written["task"]["dataset"]) == (7, "grpo", "arithmetic")
    assert msgspec.convert(written, Recipe).trainer.optimizer.lr == 1.7e-4
    assert command.main(["--recipe", file, "actor.kl_ctl=1"]) == 1
    assert "`actor.kl_ctl`" in capsys.readouterr().err


# ---------------------------------------------------------------- the tables


def type_at(kind, key):
    """The type of a dotted key in the configuration classes, or in the recipe's tables."""
    for name in key.split("."):
        hints = typing.get_type_hints(kind)
        assert name in hints, f"{key}: {kind} has no {name}"
        options = typing.get_args(hints[name]) or (hints[name],)
        kind = next(
            (one for one in options if dataclasses.is_dataclass(one) or hasattr(one, "__struct_fields__")), None
        )
    return kind


@pytest.mark.parametrize("mapping", MAPPED, ids=lambda mapping: mapping.areal)
def test_a_mapped_key_exists_on_both_sides(mapping):
    type_at(PPOConfig, mapping.areal)
    type_at(Recipe, mapping.ours)


def test_the_page_has_every_key():
    page = (ROOT / "docs/areal.md").read_text()
    tables = page.partition("## Keys")[2]
    assert re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \| (.*?) ?\|$", tables, re.MULTILINE) == [
        tuple(mapping) for mapping in MAPPED
    ]
    assert re.findall(r"^\| `([\w.]+)` \| ([^|]*?) ?\|$", tables, re.MULTILINE) == list(REPORTED.items())


def test_every_name_is_where_the_tables_have_it():
    listed = {name for members in names.MODULES.values() for name in members}
    assert listed == set(names.MEMBERS)
    page = (ROOT / "docs/areal.md").read_text()
    assert [name for name in listed if f"`{name}`" not in page and not name.endswith(("Config", "Worker"))] == []


def test_the_documented_keys_of_areal_are_all_known(file):
    """Sections and keys that the sample file has, other than those that are mapped, are reported one by one."""
    data = yaml.safe_load(Path(file).read_text())
    assert set(data) <= {key.partition(".")[0] for key in [*(mapping.areal for mapping in MAPPED), *REPORTED]} | {
        *("tokenizer_path", "valid_dataset", "saver", "evaluator")
    }


def test_an_alias_has_the_names_of_its_module_and_refuses_others(monkeypatch):
    monkeypatch.setattr(aliases.sys, "path", list(aliases.sys.path))
    monkeypatch.setattr(aliases.sys, "modules", dict(aliases.sys.modules))
    monkeypatch.setattr(aliases.sys, "meta_path", list(aliases.sys.meta_path))
    aliases.install()
    modules = aliases.sys.modules
    assert modules["areal.utils"].stats_tracker is modules["areal.utils.stats_tracker"]
    assert modules["areal.api.cli_args"].GRPOConfig is GRPOConfig
    with pytest.raises(AttributeError, match="areal has no Trainer here; it has DPOTrainer, PPOTrainer, "):
        _ = modules["areal"].Trainer
    with pytest.raises(AttributeError, match=r"areal\.infra\.sandbox is not here: a hosted service"):
        _ = modules["areal.infra"].sandbox
    with pytest.raises(ModuleNotFoundError, match=r"areal\.infra\.rpc is not here: calls between"):
        importlib.import_module("areal.infra.rpc.rtensor")
