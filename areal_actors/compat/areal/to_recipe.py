"""Converts the configuration of an AReaL program to a recipe."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from areal_actors.compat.areal.algorithms import algorithm_table
from areal_actors.compat.areal.config import PPOConfig
from areal_actors.compat.areal.generation import ANY_TOP_K
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError
from areal_actors.generation.engines import describe_engine
from areal_actors.generation.settings import GenerationSettings
from areal_actors.recipe.checks import RecipeProblem, problems
from areal_actors.recipe.device_map import device_problems, with_device_counts
from areal_actors.recipe.limits import with_derived
from areal_actors.recipe.recipe import Recipe

DTYPES = ("float32", "bfloat16")
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd"}


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
    try:
        recipe = msgspec.convert(stated, Recipe)
    except msgspec.ValidationError as error:
        raise RecipeError(f"the recipe of this configuration is invalid: {error}") from error
    recipe = with_derived(with_device_counts(recipe, stated, cuda), stated)
    violations = [*problems(recipe), *(RecipeProblem(*problem) for problem in device_problems(recipe, cuda))]
    if complaints := [
        problem.sentence("") for problem in violations if problem.key[0] != "task"
    ]:  # the program has agent and dataset
        raise RecipeError("\n".join(complaints))
    return recipe


def recipe_tables(config: PPOConfig, *, steps: int, cuda: CudaDevices, discounts: bool = False) -> dict[str, Any]:
    """Returns the tables of the recipe as written in TOML; raises like `recipe_of`."""
    if complaints := _complaints(config):
        raise RecipeError("\n".join(complaints))
    rollout, actor = config.rollout, config.actor
    engine = rollout.backend.partition(":")[0]
    serving = config.vllm if engine == "vllm" else config.sglang
    length = serving.max_model_len or serving.context_length
    return {
        "run": (
            re.sub(r"[^a-z0-9]+", "-", f"{config.experiment_name}-{config.trial_name}".lower()).strip("-") or "areal"
        ),
        "seed": config.seed,
        "steps": steps,
        "model": actor.path,
        "folder": config.cluster.fileroot,
        "task": _task(config, discounts=discounts),
        "sampling": _sampling(config),
        "algorithm": algorithm_table(config),
        "staleness_gate": {
            "max_staleness": rollout.max_head_offpolicyness,
            "max_concurrent": rollout.max_concurrent_rollouts or config.train_dataset.batch_size,
        },
        "batcher": {"dynamic_batch": config.dynamic_bs},
        "trainer": _trainer(config, steps),
        "generation": {
            "engine": engine if describe_engine(engine).is_server and cuda.count else GenerationSettings().engine,
            "dtype": actor.dtype,
            **({"max_model_len": length} if length else {}),
        },
        "evaluation": {"tasks": 0},
    }


def _complaints(config: PPOConfig) -> list[str]:
    """Messages for settings that must have a certain value here."""
    actor, gconfig, agent = config.actor, config.gconfig, config.rollout.agent
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
            agent.mode == "online",
            '`rollout.agent.mode`: programs have no online mode here; write a recipe with `task.agent = "online"`',
        ),
        (
            agent.mode not in ("inline", "subproc", "online"),
            f"`rollout.agent.mode`: found {agent.mode}; write inline or subproc",
        ),
        (
            config.total_train_n_seqs is not None,
            "`total_train_n_seqs`: set total_train_steps or total_train_epochs instead",
        ),
    )
    return [message for is_wrong, message in checks if is_wrong]


def _task(config: PPOConfig, *, discounts: bool) -> dict[str, Any]:
    agent = config.rollout.agent
    return {
        "runner": "subprocess" if agent.mode == "subproc" else "inline",
        "processes": agent.subproc_max_workers,
        "timeout_seconds": float(agent.session_timeout_seconds),
        "dump_to_file": config.rollout.dump_to_file,
        "export_style": agent.export_style,
        **({"turn_discount": agent.turn_discount} if discounts else {}),
    }


def _sampling(config: PPOConfig) -> dict[str, Any]:
    own = config.gconfig
    return {
        "temperature": own.temperature,
        "max_tokens": own.max_new_tokens,
        "top_p": own.top_p,
        "top_k": 0 if own.top_k >= ANY_TOP_K else own.top_k,
        "frequency_penalty": own.frequency_penalty,
        "stop": tuple(own.stop or ()),
    }


def _trainer(config: PPOConfig, steps: int) -> dict[str, Any]:
    actor, optimizer = config.actor, config.actor.optimizer
    assert optimizer is not None, "checked before"
    table: dict[str, Any] = {
        "batch_size": config.train_dataset.batch_size,
        "dtype": actor.dtype,
        "recompute_activations": actor.gradient_checkpointing,
        "optimizer": {
            "name": OPTIMIZERS[optimizer.type],
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
