"""Converts the configuration of an AReaL program to a recipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from areal_actors.compat.areal.algorithms import algorithm_table
from areal_actors.compat.areal.config import BaseExperimentConfig, OptimizerConfig, PPOConfig, TrainEngineConfig
from areal_actors.compat.areal.generation import ANY_TOP_K
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.core.model_config import context_of
from areal_actors.generation.engines import describe_engine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.recipe.checks import RecipeProblem, problems
from areal_actors.recipe.device_map import device_problems, with_device_counts
from areal_actors.recipe.limits import with_derived
from areal_actors.recipe.recipe import Recipe

DTYPES = ("float32", "bfloat16")
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}
ONLINE = '`rollout.agent.mode`: programs have no online mode here; write a recipe with `task.agent = "online"`'


def recipe_of(config: PPOConfig, *, steps: int, cuda: CudaDevices, discounts: bool = False) -> Recipe:
    """Returns the recipe for this machine.

    Args:
        config: the configuration.
        steps: optimizer steps.
        cuda: CUDA devices of the machine.
        discounts: True for an agent with `run`, whose rewards `rollout.agent.turn_discount` discounts; a
            `RolloutWorkflow` discounts its own.

    Raises:
        RecipeError: a setting has no counterpart; the message lists all.
    """
    stated = recipe_tables(config, steps=steps, cuda=cuda, discounts=discounts)
    recipe, violations = checked_recipe(stated, cuda)
    if recipe is None or violations:
        raise RecipeError("\n".join(violations))
    return recipe


def checked_recipe(stated: dict[str, Any], cuda: CudaDevices) -> tuple[Recipe | None, list[str]]:
    """Returns the recipe of these tables, None if they are invalid, and what a check finds besides the task."""
    try:
        recipe = msgspec.convert(stated, Recipe)
    except msgspec.ValidationError as error:
        return None, [f"the recipe of this configuration is invalid: {error}"]
    recipe = with_derived(with_device_counts(recipe, stated, cuda), stated)
    violations = [*problems(recipe), *(RecipeProblem(*problem) for problem in device_problems(recipe, cuda))]
    # the program has agent and dataset
    return recipe, [problem.sentence("") for problem in violations if problem.key[0] != "task"]


def recipe_tables(config: PPOConfig, *, steps: int, cuda: CudaDevices, discounts: bool = False) -> dict[str, Any]:
    """Returns the tables of the recipe as written in TOML; raises like `recipe_of`."""
    converted = convert_config(config, steps=steps, cuda=cuda, discounts=discounts)
    online = (ONLINE,) if config.rollout.agent.mode == "online" else ()
    if complaints := (*online, *converted.complaints):
        raise RecipeError("\n".join(complaints))
    return converted.tables


def run_name(config: BaseExperimentConfig) -> str:
    """Returns the name of a program's run."""
    return re.sub(r"[^a-z0-9]+", "-", f"{config.experiment_name}-{config.trial_name}".lower()).strip("-") or "areal"


class ConvertedConfig(NamedTuple):
    """The tables of a recipe, and what they leave out."""

    tables: dict[str, Any]
    complaints: tuple[str, ...]
    """Settings that change training and have no counterpart."""
    differences: tuple[str, ...]
    """Settings that the closest counterpart stands for."""


def convert_config(config: PPOConfig, *, steps: int, cuda: CudaDevices, discounts: bool = False) -> ConvertedConfig:
    """Returns the tables of the recipe as written in TOML, as far as settings have a counterpart."""
    complaints, differences = _complaints(config), list[str]()
    rollout, actor, batch_size = config.rollout, config.actor, config.train_dataset.batch_size
    engine = rollout.backend.partition(":")[0]
    concurrent = rollout.max_concurrent_rollouts or batch_size
    if concurrent < batch_size:
        differences.append(
            f"`rollout.max_concurrent_rollouts`: found {concurrent}, less than a batch; {batch_size} groups at once"
        )
    context = _context(config, differences.append)
    tables = {
        "run": run_name(config),
        "seed": config.seed,
        "steps": steps,
        "model": actor.path,
        "folder": config.cluster.fileroot,
        "task": _task(config, discounts=discounts),
        "sampling": _sampling(config, context.get("max_model_len"), differences.append),
        "algorithm": algorithm_table(config, complaints.append, differences.append),
        "staleness_gate": {
            "max_staleness": rollout.max_head_offpolicyness,
            "max_concurrent": max(concurrent, batch_size),
        },
        "batcher": {"dynamic_batch": config.dynamic_bs},
        "trainer": {
            **trainer_table(actor, batch_size, steps),
            **({"routing_replay": "on"} if rollout.return_routed_experts else {}),
        },
        "generation": {
            "engine": engine if describe_engine(engine).is_server and cuda.count else GenerationSettings().engine,
            "dtype": actor.dtype,
            **context,
        },
        "evaluation": {"tasks": 0},
    }
    return ConvertedConfig(tables, tuple(complaints), tuple(differences))


def _context(config: PPOConfig, report: Callable[[str], None]) -> dict[str, int]:
    """Returns the limit of prompt and answer together: what engine, trainer and model take."""
    serving = config.vllm if config.rollout.backend.startswith("vllm") else config.sglang
    stated = serving.max_model_len or serving.context_length
    folder = Path(config.actor.path).expanduser()
    positions = context_of(folder) if (folder / "config.json").is_file() else None
    limits = [limit for limit in (stated, config.actor.mb_spec.max_tokens_per_mb, positions) if limit]
    if not limits:
        return {}
    if stated and min(limits) < stated:
        report(
            f"`sglang.context_length`, `vllm.max_model_len`: found {stated}; a conversation ends at {min(limits)}"
            " tokens, the longest that actor.mb_spec.max_tokens_per_mb and the model take"
        )
    return {"max_model_len": min(limits)}


def shared_complaints(config: BaseExperimentConfig, actor: TrainEngineConfig) -> list[str]:
    """Messages for settings of every program that must have a certain value here."""
    optimizer = actor.optimizer
    checks = (
        (not actor.path, "`actor.path`: found none; name a model folder or hub id"),
        (
            actor.init_from_scratch,
            "`actor.init_from_scratch`: models are loaded, never initialized at random; write false",
        ),
        (actor.dtype not in DTYPES, f"`actor.dtype`: found {actor.dtype}; write one of {', '.join(DTYPES)}"),
        (optimizer is None, "`actor.optimizer`: found none; add one"),
        (
            optimizer is not None and optimizer.type not in OPTIMIZERS,
            f"`actor.optimizer.type`: write one of {', '.join(OPTIMIZERS)}",
        ),
        (actor.peft_type != "lora", f"`actor.peft_type`: found {actor.peft_type}; write lora"),
        (
            config.total_train_n_seqs is not None,
            "`total_train_n_seqs`: set total_train_steps or total_train_epochs instead",
        ),
    )
    return [message for is_wrong, message in checks if is_wrong]


def _complaints(config: PPOConfig) -> list[str]:
    """Messages for settings that must have a certain value here."""
    actor, gconfig, agent = config.actor, config.gconfig, config.rollout.agent
    checks = (
        (
            gconfig.greedy,
            "`gconfig.greedy`: episodes for training are sampled; write false, and set it in eval_gconfig",
        ),
        (
            actor.temperature != gconfig.temperature,
            (
                f"`actor.temperature`: found {actor.temperature}, but gconfig.temperature is {gconfig.temperature};"
                " write the same"
            ),
        ),
        (gconfig.n_samples < 1, f"`gconfig.n_samples`: found {gconfig.n_samples}; write at least 1"),
        (
            config.rollout.consumer_batch_size not in (1, config.train_dataset.batch_size),
            (
                f"`rollout.consumer_batch_size`: found {config.rollout.consumer_batch_size}; write"
                " train_dataset.batch_size"
            ),
        ),
        (
            agent.mode not in ("inline", "subproc", "online"),
            f"`rollout.agent.mode`: found {agent.mode}; write inline or subproc",
        ),
    )
    return [*shared_complaints(config, actor), *(message for is_wrong, message in checks if is_wrong)]


def _task(config: PPOConfig, *, discounts: bool) -> dict[str, Any]:
    agent = config.rollout.agent
    if agent.mode == "online":
        return {"agent": "online", "timeout_seconds": float(agent.session_timeout_seconds)}
    return {
        "runner": "subprocess" if agent.mode == "subproc" else "inline",
        "processes": agent.subproc_max_workers,
        "timeout_seconds": float(agent.session_timeout_seconds),
        "dump_to_file": config.rollout.dump_to_file,
        "export_style": agent.export_style,
        **({"turn_discount": agent.turn_discount} if discounts else {}),
    }


def _sampling(config: PPOConfig, context: int | None, report: Callable[[str], None]) -> dict[str, Any]:
    own = config.gconfig
    longest = own.max_new_tokens if context is None else min(own.max_new_tokens, context - 1)
    if longest < own.max_new_tokens:
        report(f"`gconfig.max_new_tokens`: found {own.max_new_tokens}; an answer ends after {longest} tokens")
    return {
        "temperature": own.temperature,
        "max_tokens": longest,
        "top_p": own.top_p,
        "top_k": 0 if own.top_k >= ANY_TOP_K else own.top_k,
        "frequency_penalty": own.frequency_penalty,
        "stop": tuple(own.stop or ()),
    }


def trainer_table(actor: TrainEngineConfig, batch_size: int, steps: int) -> dict[str, Any]:
    """Returns the recipe's `[trainer]`."""
    optimizer = actor.optimizer or OptimizerConfig()
    table: dict[str, Any] = {
        "batch_size": batch_size,
        "dtype": actor.dtype,
        "recompute_activations": actor.gradient_checkpointing,
        "optimizer": {
            "name": OPTIMIZERS.get(optimizer.type, "adamw"),
            "lr": optimizer.lr,
            "betas": (optimizer.beta1, optimizer.beta2),
            "epsilon": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
            "grad_clip": optimizer.gradient_clipping,
            "schedule": optimizer.lr_scheduler_type,
            "warmup_steps": int(optimizer.warmup_steps_proportion * steps),
            "minimum_ratio": optimizer.min_lr_ratio,
        },
    }
    if actor.mb_spec.max_tokens_per_mb:
        table["microbatch_tokens"] = actor.mb_spec.max_tokens_per_mb
    if actor.use_lora:
        targets = () if actor.target_modules in ([], ["all-linear"]) else tuple(actor.target_modules)
        table["lora"] = {"rank": actor.lora_rank, "alpha": actor.lora_alpha, "targets": targets}
    return table
