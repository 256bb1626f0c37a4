"""Configurations of verl: `ppo_trainer.yaml`, and the overrides of its command line in a script."""

from __future__ import annotations

import re
from typing import Any

from areal_actors.compat.convert.conversion import Conversion, Converter, Fate, KeyRule, with_reason
from areal_actors.compat.convert.foreign_file import ForeignFile
from areal_actors.compat.convert.trl import FILL_STEPS
from areal_actors.core.command import COMMAND

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
OPTIMIZER = "trainer.optimizer."


def _first(files: Any) -> str:
    """Returns the one file of a list, or of the text of a list."""
    text = files[0] if isinstance(files, list) and files else files
    return str(text).strip("[]'\" ")


RULES = {
    f"{MODEL}path": KeyRule("model"),
    f"{MODEL}enable_gradient_checkpointing": KeyRule("trainer.recompute_activations"),
    f"{ACTOR}ppo_max_token_len_per_gpu": KeyRule("trainer.microbatch_tokens"),
    f"{ACTOR}grad_clip": KeyRule(f"{OPTIMIZER}grad_clip", float),
    f"{ACTOR}optim.lr": KeyRule(f"{OPTIMIZER}lr", float),
    f"{ACTOR}optim.weight_decay": KeyRule(f"{OPTIMIZER}weight_decay", float),
    f"{ACTOR}optim.betas": KeyRule(f"{OPTIMIZER}betas"),
    f"{ACTOR}optim.min_lr_ratio": KeyRule(f"{OPTIMIZER}minimum_ratio", float),
    f"{ACTOR}optim.lr_warmup_steps": KeyRule(f"{OPTIMIZER}warmup_steps", lambda value: max(int(value), 0)),
    f"{ACTOR}clip_ratio": KeyRule("algorithm.clip", float),
    f"{ACTOR}clip_ratio_low": KeyRule("algorithm.clip", float),
    f"{ACTOR}clip_ratio_high": KeyRule("algorithm.clip_higher", float),
    f"{ACTOR}clip_ratio_c": KeyRule("algorithm.dual_clip", float),
    f"{ACTOR}entropy_coeff": KeyRule("algorithm.entropy_coefficient", float),
    f"{ACTOR}ulysses_sequence_parallel_size": KeyRule("trainer.sequence_parallel", remark="takes `trainer.ranks`, too"),
    f"{ROLLOUT}n": KeyRule("algorithm.group_size"),
    f"{ROLLOUT}name": KeyRule("generation.engine", lambda value: "transformers" if value == "hf" else value),
    f"{ROLLOUT}temperature": KeyRule("sampling.temperature", float),
    f"{ROLLOUT}top_p": KeyRule("sampling.top_p", float),
    f"{ROLLOUT}top_k": KeyRule("sampling.top_k", lambda value: max(int(value), 0)),
    f"{ROLLOUT}tensor_model_parallel_size": KeyRule("generation.tensor_parallel"),
    f"{ROLLOUT}gpu_memory_utilization": KeyRule("generation.memory_fraction", float),
    f"{ROLLOUT}max_num_seqs": KeyRule("generation.max_num_seqs"),
    f"{ROLLOUT}max_model_len": KeyRule("generation.max_model_len"),
    "data.train_batch_size": KeyRule("trainer.batch_size"),
    "data.max_response_length": KeyRule("sampling.max_tokens", remark="of one call; an agent may make several"),
    "data.seed": KeyRule("seed"),
    "data.train_files": KeyRule("task.dataset", _first, "rows have `question` and `answer`: task.columns"),
    "data.val_files": KeyRule("task.held_out", _first),
    "trainer.default_local_dir": KeyRule("folder", str),
    "trainer.save_freq": KeyRule("checkpoint.every_steps", lambda value: max(int(value), 0)),
    "trainer.test_freq": KeyRule("evaluation.every_steps", lambda value: max(int(value), 0)),
    "trainer.val_before_train": KeyRule("evaluation.baseline"),
    "trainer.max_actor_ckpt_to_keep": KeyRule("checkpoint.keep_last"),
    "trainer.resume_mode": KeyRule("", remark=f"`{COMMAND} resume RUN`"),
    "reward_model.model.path": KeyRule("task.reward", lambda value: f"model:{value}"),
}
IGNORED = {
    **with_reason(
        f"{ACTOR}fsdp_config {ACTOR}megatron {ACTOR}strategy actor_rollout_ref.ref.fsdp_config"
        " actor_rollout_ref.ref.megatron critic.model.fsdp_config critic.strategy critic.megatron"
        " trainer.n_gpus_per_node trainer.nnodes trainer.device actor_rollout_ref.hybrid_engine ray_init ray_kwargs"
        " trainer.ray_wait_register_center_timeout",
        f"`trainer.ranks`, `trainer.devices`; `{COMMAND} check` places processes",
    ),
    **with_reason(
        "logger log_val_generations rollout_data_dir validation_data_dir balance_batch",
        "everything is in the log; docs/tracking.md",
        "trainer.",
    ),
    **with_reason(
        f"{ACTOR}ppo_micro_batch_size_per_gpu {ACTOR}ppo_micro_batch_size {ACTOR}use_dynamic_bsz"
        f" {ACTOR}use_torch_compile {ROLLOUT}log_prob_micro_batch_size_per_gpu {ROLLOUT}log_prob_micro_batch_size"
        f" {ROLLOUT}log_prob_use_dynamic_bsz {ROLLOUT}log_prob_max_token_len_per_gpu"
        " actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu actor_rollout_ref.ref.log_prob_micro_batch_size"
        " actor_rollout_ref.ref.log_prob_use_dynamic_bsz actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"
        " critic.ppo_micro_batch_size_per_gpu critic.ppo_micro_batch_size critic.use_dynamic_bsz"
        f" {MODEL}use_remove_padding critic.model.use_remove_padding critic.ppo_max_token_len_per_gpu"
        " critic.forward_micro_batch_size_per_gpu",
        "sequences are packed by tokens: `trainer.microbatch_tokens`",
    ),
    **with_reason(
        "enforce_eager free_cache_engine load_format enable_chunked_prefill max_num_batched_tokens dtype mode"
        " ignore_eos disable_log_stats engine_kwargs layered_summon prompt_length response_length do_sample seed",
        "`generation.options` of the engine",
        ROLLOUT,
    ),
    **with_reason(
        "shuffle truncation filter_overlong_prompts prompt_key return_raw_chat val_batch_size dataloader_num_workers"
        " filter_overlong_prompts_workers reward_fn_key image_key tokenizer trust_remote_code return_raw_input_ids"
        " validation_shuffle",
        "docs/data.md",
        "data.",
    ),
    **with_reason(
        f"{MODEL}trust_remote_code {MODEL}use_shm {MODEL}external_lib critic.model.path critic.model.tokenizer_path"
        " trainer.critic_warmup trainer.val_only trainer.del_local_ckpt_after_load trainer.default_hdfs_dir"
        " reward_model.enable reward_model.launch_reward_fn_async",
        "no counterpart is needed",
    ),
}
"""Keys, with all below them, without effect, each with its reason."""
ESTIMATORS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo"},
    "gae": {"name": "ppo"},
    "rloo": {"name": "rloo"},
    "reinforce_plus_plus": {"name": "reinforce_plus_plus"},
    "reinforce_plus_plus_baseline": {"name": "reinforce_plus_plus", "baseline": "group"},
}
KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
AGGREGATIONS = {"token-mean": "token_mean", "seq-mean-token-mean": "seq_mean", "seq-mean-token-sum-norm": "constant"}


def convert_verl(file: ForeignFile) -> Conversion:
    """Returns the recipe of a configuration of verl."""
    converter = Converter(file.values)
    project, experiment = (converter.get(f"trainer.{name}_name", "") for name in ("project", "experiment"))
    name = re.sub(r"[^a-z0-9]+", "-", f"{project}-{experiment}".lower()).strip("-")[:64] or "verl"
    for key in ("trainer.project_name", "trainer.experiment_name"):
        converter.carry(key, "run", name, "the two are joined")
    _algorithm(converter)
    _kl(converter)
    _batch(converter)
    _rewards(converter)
    converter.apply(RULES)
    converter.ignore(IGNORED)
    converter.put("staleness_gate.max_staleness", 0)  # verl's trainer waits for its rollouts
    return Conversion("verl", converter.tables, converter.rows([*RULES, *IGNORED]))


def _algorithm(converter: Converter) -> None:
    estimator = str(converter.get("algorithm.adv_estimator", "gae"))
    known = ESTIMATORS.get(estimator, {"name": "grpo"})
    remark = "" if estimator in ESTIMATORS else "no such estimator here; grpo"
    for name, value in known.items():
        converter.put(f"algorithm.{name}", value)
    converter.carry("algorithm.adv_estimator", "algorithm.name", known["name"], remark)
    mode = str(converter.get(f"{ACTOR}loss_agg_mode", "token-mean"))
    remark = "" if mode in AGGREGATIONS else "no such mean here; token_mean"
    converter.carry(f"{ACTOR}loss_agg_mode", "algorithm.loss_aggregation", AGGREGATIONS.get(mode, "token_mean"), remark)
    if known["name"] == "grpo":
        scales = bool(converter.get("algorithm.norm_adv_by_std_in_grpo", default=True))
        converter.carry("algorithm.norm_adv_by_std_in_grpo", "algorithm.scale_by_std", scales)
    if known["name"] == "ppo":
        converter.apply(
            {
                "algorithm.gamma": KeyRule("algorithm.discount", float),
                "algorithm.lam": KeyRule("algorithm.gae_lambda", float),
                "critic.optim.lr": KeyRule("algorithm.critic.lr", float),
                "critic.cliprange_value": KeyRule("algorithm.critic.clip", float),
            }
        )
    reason = "of `ppo`, its advantage with a critic"
    converter.ignore(
        dict.fromkeys(("algorithm.gamma", "algorithm.lam", "critic", "algorithm.norm_adv_by_std_in_grpo"), reason)
    )
    loss = str(converter.get(f"{ACTOR}policy_loss.loss_mode", "vanilla"))
    if loss in ("gspo", "gmpo", "cispo", "sapo"):
        converter.put("algorithm.name", loss)
    fate = Fate.CARRIED if loss in ("vanilla", "gspo", "gmpo", "cispo", "sapo") else Fate.DIFFERS
    converter.note(
        f"{ACTOR}policy_loss.loss_mode",
        fate,
        "algorithm.name",
        "" if fate is Fate.CARRIED else "not here; the clipped ratio",
    )


def _kl(converter: Converter) -> None:
    in_loss = bool(converter.get(f"{ACTOR}use_kl_loss", default=False))
    in_reward = bool(converter.get("algorithm.use_kl_in_reward", default=False))
    loss_keys = (f"{ACTOR}use_kl_loss", f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type")
    reward_keys = (
        "algorithm.use_kl_in_reward",
        "algorithm.kl_ctrl.kl_coef",
        "algorithm.kl_penalty",
        "algorithm.kl_ctrl.type",
    )
    if in_loss or in_reward:
        coefficient = converter.get(f"{ACTOR}kl_loss_coef" if in_loss else "algorithm.kl_ctrl.kl_coef", 0.001)
        kind = str(
            converter.get(
                f"{ACTOR}kl_loss_type" if in_loss else "algorithm.kl_penalty", "low_var_kl" if in_loss else "kl"
            )
        )
        converter.put(
            "algorithm.kl",
            {
                "coefficient": float(coefficient),
                "apply_to": "loss" if in_loss else "reward",
                "estimator": KL.get(kind, "k3"),
            },
        )
    for key in loss_keys:
        converter.note(
            key,
            Fate.CARRIED if in_loss else Fate.WITHOUT_EFFECT,
            "algorithm.kl",
            "" if in_loss else "use_kl_loss is false",
        )
    for key in reward_keys:
        used = in_reward and not in_loss
        converter.note(
            key,
            Fate.CARRIED if used else Fate.WITHOUT_EFFECT,
            "algorithm.kl",
            "" if used else "use_kl_in_reward is false, or the loss has it",
        )
    if str(converter.get("algorithm.kl_ctrl.type", "fixed")) != "fixed" and in_reward:
        converter.note("algorithm.kl_ctrl.type", Fate.DIFFERS, "algorithm.kl.coefficient", "constant")


def _batch(converter: Converter) -> None:
    batch = int(converter.get("data.train_batch_size", 1024))
    mini = int(converter.get(f"{ACTOR}ppo_mini_batch_size", 256))
    converter.put("trainer.batch_size", batch)
    converter.carry(
        f"{ACTOR}ppo_mini_batch_size", "algorithm.minibatches", max(batch // mini, 1), "their number, not their size"
    )
    converter.note(
        f"{ACTOR}ppo_epochs",
        Fate.DIFFERS if int(converter.get(f"{ACTOR}ppo_epochs", 1)) > 1 else Fate.CARRIED,
        "",
        "a batch is trained once",
    )
    converter.note("critic.ppo_mini_batch_size", Fate.WITHOUT_EFFECT, "algorithm.minibatches", "as the policy's")
    prompt, answer = (int(converter.get(f"data.max_{part}_length", 512)) for part in ("prompt", "response"))
    converter.put("sampling.max_tokens", answer)
    converter.carry(
        "data.max_prompt_length",
        "generation.max_model_len",
        prompt + answer,
        "prompt and answers of a conversation together",
    )
    converter.put(f"{OPTIMIZER}lr", float(converter.get(f"{ACTOR}optim.lr", 1e-6)))
    style = converter.get(f"{ACTOR}optim.lr_scheduler_type", converter.get(f"{ACTOR}optim.warmup_style", "constant"))
    for key in (f"{ACTOR}optim.lr_scheduler_type", f"{ACTOR}optim.warmup_style"):
        converter.carry(key, f"{OPTIMIZER}schedule", style)
    steps = converter.get("trainer.total_training_steps", converter.get(f"{ACTOR}optim.total_training_steps"))
    converter.put("steps", int(steps) if steps and int(steps) > 0 else FILL_STEPS)
    for key in ("trainer.total_training_steps", f"{ACTOR}optim.total_training_steps"):
        converter.note(key, Fate.CARRIED, "steps")
    remark = (
        f"write epochs × rows ÷ trainer.batch_size; {FILL_STEPS} until then"
        if not steps
        else "total_training_steps decides"
    )
    converter.note("trainer.total_epochs", Fate.DIFFERS, "steps", remark)
    if ratio := float(converter.get(f"{ACTOR}optim.lr_warmup_steps_ratio", 0.0)):
        warmup = int(ratio * converter.tables["steps"])
        converter.carry(f"{ACTOR}optim.lr_warmup_steps_ratio", f"{OPTIMIZER}warmup_steps", warmup, "of `steps`")
    converter.note(
        f"{ACTOR}optim.lr_warmup_steps_ratio",
        Fate.DIFFERS if ratio else Fate.CARRIED,
        f"{OPTIMIZER}warmup_steps",
        "of `steps`" if ratio else "",
    )
    rank = int(converter.get(f"{MODEL}lora_rank", 0))
    if rank:
        targets = converter.get(f"{MODEL}target_modules", "all-linear")
        converter.put(
            "trainer.lora",
            {
                "rank": rank,
                "alpha": int(converter.get(f"{MODEL}lora_alpha", 16)),
                "targets": [] if targets == "all-linear" else targets,
            },
        )
    for key in ("lora_rank", "lora_alpha", "target_modules"):
        converter.note(
            f"{MODEL}{key}", Fate.CARRIED if rank else Fate.WITHOUT_EFFECT, "trainer.lora", "" if rank else "rank 0"
        )


def _rewards(converter: Converter) -> None:
    path, name = (converter.get(f"custom_reward_function.{part}") for part in ("path", "name"))
    if path:
        converter.put("task.reward", f"{path}:{name or 'compute_score'}")
    remark = "`function(task, output)`, not of (data_source, solution_str, ground_truth); docs/rewards.md"
    for part in ("path", "name", "reward_kwargs"):
        converter.note(
            f"custom_reward_function.{part}",
            Fate.DIFFERS if path else Fate.WITHOUT_EFFECT,
            "task.reward",
            remark if path else "no path",
        )
