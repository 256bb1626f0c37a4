"""The keys of AReaL's YAML files, and their check.

Some have a counterpart here, others are read and reported; any further key is refused.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from areal_actors.core.command import COMMAND
from areal_actors.core.problems import nearest


class KeyMapping(NamedTuple):
    """A key of AReaL and its counterpart."""

    areal: str
    ours: str
    note: str = ""


MAPPED = (
    KeyMapping("experiment_name", "run", "joined with `trial_name`"),
    KeyMapping("trial_name", "run"),
    KeyMapping("seed", "seed"),
    KeyMapping("total_train_epochs", "steps", "times the batches of the training set"),
    KeyMapping("total_train_steps", "steps", "if it is less"),
    KeyMapping("cluster.fileroot", "folder"),
    KeyMapping("actor.path", "model", "`embedded` makes the small model"),
    KeyMapping("gconfig.n_samples", "algorithm.group_size"),
    KeyMapping("gconfig.max_new_tokens", "sampling.max_tokens"),
    KeyMapping("gconfig.temperature", "sampling.temperature", "`actor.temperature` must be the same"),
    KeyMapping("gconfig.top_p", "sampling.top_p"),
    KeyMapping("gconfig.top_k", "sampling.top_k"),
    KeyMapping("gconfig.stop", "sampling.stop"),
    KeyMapping("gconfig.frequency_penalty", "sampling.frequency_penalty"),
    KeyMapping("train_dataset.batch_size", "trainer.batch_size"),
    KeyMapping("rollout.max_head_offpolicyness", "staleness_gate.max_staleness"),
    KeyMapping("rollout.max_concurrent_rollouts", "staleness_gate.max_concurrent", "null is one batch"),
    KeyMapping("rollout.dump_to_file", "task.dump_to_file"),
    KeyMapping("rollout.agent.mode", "task.runner", "`inline`, or `subproc`"),
    KeyMapping("rollout.agent.subproc_max_workers", "task.processes"),
    KeyMapping("rollout.agent.session_timeout_seconds", "task.timeout_seconds"),
    KeyMapping(
        "rollout.agent.turn_discount", "task.turn_discount", "of agents with `run`; workflows discount themselves"
    ),
    KeyMapping("rollout.agent.export_style", "task.export_style"),
    KeyMapping("rollout.backend", "generation.engine", "with a CUDA device; else `transformers`"),
    KeyMapping("rollout.return_routed_experts", "trainer.routing_replay", "`on`"),
    KeyMapping("sglang.context_length", "generation.max_model_len", "at most the model's positions"),
    KeyMapping("vllm.max_model_len", "generation.max_model_len", "at most the model's positions"),
    KeyMapping("actor.dtype", "trainer.dtype", "and `generation.dtype`"),
    KeyMapping("actor.gradient_checkpointing", "trainer.recompute_activations"),
    KeyMapping(
        "actor.mb_spec.max_tokens_per_mb",
        "trainer.microbatch_tokens",
        "and the limit of a sequence, `generation.max_model_len`: AReaL fails at a longer one",
    ),
    KeyMapping("actor.optimizer.type", "trainer.optimizer.name", "`adam` is `adamw`"),
    KeyMapping("actor.optimizer.lr", "trainer.optimizer.lr"),
    KeyMapping("actor.optimizer.weight_decay", "trainer.optimizer.weight_decay"),
    KeyMapping("actor.optimizer.beta1", "trainer.optimizer.betas"),
    KeyMapping("actor.optimizer.beta2", "trainer.optimizer.betas"),
    KeyMapping("actor.optimizer.eps", "trainer.optimizer.epsilon"),
    KeyMapping("actor.optimizer.gradient_clipping", "trainer.optimizer.grad_clip"),
    KeyMapping("actor.optimizer.lr_scheduler_type", "trainer.optimizer.schedule"),
    KeyMapping("actor.optimizer.warmup_steps_proportion", "trainer.optimizer.warmup_steps", "times the steps"),
    KeyMapping("actor.optimizer.min_lr_ratio", "trainer.optimizer.minimum_ratio"),
    KeyMapping("actor.use_lora", "trainer.lora"),
    KeyMapping("actor.lora_rank", "trainer.lora"),
    KeyMapping("actor.lora_alpha", "trainer.lora"),
    KeyMapping("actor.target_modules", "trainer.lora"),
    KeyMapping("actor.reward_norm", "algorithm", "chooses the algorithm, with the next four"),
    KeyMapping("critic", "algorithm", "`ppo`"),
    KeyMapping("actor.use_sapo_loss", "algorithm", "`sapo`, with `sapo_tau_pos` and `sapo_tau_neg`"),
    KeyMapping("actor.importance_sampling_level", "algorithm", "`sequence` is `gspo`"),
    KeyMapping("actor.m2_threshold", "algorithm", "`m2po`"),
    KeyMapping("actor.adv_norm", "algorithm", "batch/batch is `normalize_advantages`"),
    KeyMapping("actor.ppo_n_minibatches", "algorithm", "`minibatches`"),
    KeyMapping(
        "actor.eps_clip", "algorithm", "`clip`, with `eps_clip_higher` and `c_clip`: `clip_higher`, `dual_clip`"
    ),
    KeyMapping(
        "actor.reward_bias", "algorithm", "`shaping.bias`, with `reward_scaling` and `reward_clip`: `scale`, `clip`"
    ),
    KeyMapping("actor.overlong_reward_penalty", "algorithm", "`dapo` and its `overlong`"),
    KeyMapping("actor.kl_ctl", "algorithm", "`kl.coefficient` with `kl_estimator` and `ref.path`; in the reward"),
    KeyMapping("actor.use_decoupled_loss", "algorithm", "`correction.decoupled`"),
    KeyMapping("actor.prox_logp_method", "algorithm", "`correction.proximal`"),
    KeyMapping(
        "actor.rejection_sampling",
        "algorithm",
        "`correction.importance_sampling`, `level`, `aggregation`, `highest`, `lowest`",
    ),
    KeyMapping("actor.behav_imp_weight_cap", "algorithm", "earlier name of `rejection_sampling.upper`"),
    KeyMapping("actor.discount", "algorithm", "`discount` of `ppo`, with `gae_lambda`"),
    KeyMapping(
        "teacher", "algorithm", "`distillation`, with `distill_loss_weight` and `rl_loss_weight`; see its formula"
    ),
    KeyMapping("recover", "checkpoint", "the place of the loop, in `RUN-recover` beside the run's folder"),
    KeyMapping("dynamic_bs", "batcher.dynamic_batch"),
)
"""Keys with a counterpart."""

REPORTED: Mapping[str, str] = {
    "actor._version": "",
    "actor.attn_impl": "",
    "actor.scheduling_spec": f"processes are placed by `{COMMAND} check`",
    "actor.scheduling_strategy": f"processes are placed by `{COMMAND} check`",
    "actor.weight_update_mode": "weights are published as files in shared memory",
    "actor.fsdp": "see [trainer] ranks, tensor_parallel and so on",
    "actor.megatron": "see [trainer] ranks, tensor_parallel and so on",
    "actor.archon": "see [trainer] ranks, tensor_parallel and so on",
    "actor.pad_to_maximum": "sequences are packed",
    "actor.grad_reduce_dtype": "",
    "actor.offload": "",
    "actor.optimizer.hysteresis": "losses are not scaled: bfloat16 or float32",
    "actor.optimizer.initial_loss_scale": "losses are not scaled: bfloat16 or float32",
    "actor.optimizer.loss_scale_window": "losses are not scaled: bfloat16 or float32",
    "actor.optimizer.min_loss_scale": "losses are not scaled: bfloat16 or float32",
    "actor.packing_algorithm": "sequences are packed",
    "actor.use_kernels": "",
    "actor.enable_tree_training": "trainer.prefix_sharing decides",
    "actor.tree_training_mode": "trainer.prefix_sharing decides",
    "actor.lora_delta_sync": "an adapter alone is published: trainer.lora.published",
    "actor.log_agent_stats": "",
    "actor.log_agent_stats_keys": "",
    "actor.admin_api_key": "",
    "actor.log_level": "",
    "actor.request_timeout": "",
    "actor.setup_timeout": "",
    "allocation_mode": f"processes are placed by `{COMMAND} check`",
    "async_training": "always; `rollout.max_head_offpolicyness: 0` waits for each step",
    "cluster": f"one machine; processes are placed by `{COMMAND} check`",
    "enable_offload": "",
    "launcher": f"processes are placed by `{COMMAND} check`",
    "memory_profiler": "",
    "perf_tracer": "",
    "rollout._version": "",
    "rollout.admin_api_key": "",
    "rollout.agent": "",
    "rollout.api_url": "the gateway is this machine's",
    "rollout.provider_api_key": "the gateway is this machine's",
    "rollout.check_trajectory_format": "returned tokens are always checked",
    "rollout.enable_rollout_tracing": "",
    "rollout.model": "",
    "rollout.pause_grace_period": "",
    "rollout.poll_interval": "",
    "rollout.queue_size": "",
    "rollout.request_retries": "",
    "rollout.routing_strategy": "calls of an episode go to the worker with its prefix cache",
    "rollout.scheduling_spec": f"processes are placed by `{COMMAND} check`",
    "rollout.scheduling_strategy": f"processes are placed by `{COMMAND} check`",
    "rollout.setup_timeout": "",
    "scheduler": f"processes are placed by `{COMMAND} check`",
    "sglang": "see [generation] and generation.options",
    "stats_logger": "metrics are written to metrics.jsonl",
    "train_dataset.num_workers": "",
    "train_dataset.num_dataset_workers": "",
    "train_dataset.pin_memory": "",
    "train_dataset.scheduling_spec": "",
    "train_dataset.setup_timeout": "",
    "vllm": "see [generation] and generation.options",
}
"""Keys, with all below them, that do not change what is trained: they are read and reported. `ref` and `critic` have
those of `actor`, `valid_dataset` those of `train_dataset`."""
LIKE = {"ref": "actor", "critic": "actor", "teacher": "actor", "valid_dataset": "train_dataset"}

WITHOUT_EFFECT = frozenset({"allocation_mode", "scheduler"})
"""Keys of `REPORTED` that the configuration classes have, because programs read them."""


class UnusedKeys(NamedTuple):
    """Keys of a file that no field has."""

    reported: tuple[str, ...]
    unknown: tuple[str, ...]
    """Messages, with the closest known key."""
    own: tuple[str, ...] = ()
    """Keys at the top that AReaL's classes lack: those of a program's own class, or mistyped."""


def unused_keys(data: Mapping[str, Any], kind: type[Any]) -> UnusedKeys:
    """Sort the keys of a file that a configuration class has no field for."""
    reported: list[str] = []
    unknown: list[str] = []
    own: list[str] = []
    for key, siblings in _extra(data, kind, ()):
        section, _, rest = key.partition(".")
        looked_up = f"{LIKE.get(section, section)}.{rest}" if rest else section
        if (reason := _reason(looked_up)) is not None:
            reported.append(f"{key} ({reason})" if reason else key)
        else:
            own += [] if rest else [key]
            unknown.append(
                f"`{key}`: AReaL's key has no counterpart here, or does not exist;"
                f" {nearest(key.rpartition('.')[2], siblings)}"
            )
    return UnusedKeys(tuple(reported), tuple(unknown), tuple(own))


def _reason(key: str) -> str | None:
    """The reason of the longest listed key that contains this one; None if none does."""
    parts = key.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((REPORTED[prefix] for prefix in prefixes if prefix in REPORTED), None)


def _extra(data: Mapping[str, Any], kind: type[Any], path: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield keys without a field, and the fields beside them."""
    hints = typing.get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    for key, value in data.items():
        full = ".".join([*path, key])
        if key not in fields or full in WITHOUT_EFFECT:
            yield full, fields
        elif (section := _section(hints[key])) is not None and isinstance(value, Mapping):
            yield from _extra(value, section, (*path, key))


def _section(hint: Any) -> type[Any] | None:
    """The dataclass of a field, if it has one."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)), None)
