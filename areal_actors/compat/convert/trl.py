"""Configurations of TRL: `GRPOConfig`, `RLOOConfig`, `SFTConfig`, `DPOConfig` and `RewardConfig`."""

from __future__ import annotations

import re
from typing import Any

from areal_actors.compat.convert.conversion import Conversion, Converter, Fate, KeyRule, with_reason
from areal_actors.compat.convert.foreign_file import Expression, ForeignFile
from areal_actors.core.command import COMMAND

TRAINER = "trainer.optimizer."
FILL_STEPS = 100
NOT_HERE = {
    **with_reason(
        "report_to run_name logging_steps logging_strategy logging_first_step log_completions num_completions_to_print"
        " wandb_log_unique_prompts logging_dir",
        "everything is in the log; docs/tracking.md",
    ),
    **with_reason("push_to_hub hub_model_id hub_strategy hub_private_repo", "docs/tracking.md"),
    **with_reason(
        "use_vllm vllm_mode vllm_server_host vllm_server_port vllm_server_timeout vllm_server_base_url"
        " vllm_enable_sleep_mode vllm_group_port",
        "`generation.engine`; engines are processes of their own",
    ),
    **with_reason(
        "deepspeed fsdp fsdp_config ddp_timeout ddp_find_unused_parameters gradient_checkpointing_kwargs"
        " ds3_gather_for_generation",
        "`trainer.ranks`; docs/rank-groups.md",
    ),
    **with_reason(
        "dataloader_num_workers dataloader_pin_memory dataloader_drop_last remove_unused_columns dataset_num_proc"
        " disable_tqdm do_train do_eval overwrite_output_dir save_only_model tf32 log_level attn_implementation"
        " trust_remote_code processing_class tokenizer save_safetensors model_revision eval_on_start"
        " per_device_eval_batch_size dataset_config dataset_train_split dataset_test_split label_names callbacks",
        "no counterpart is needed",
    ),
}
"""Keys without effect, each with its reason."""
COMMON = {
    "model": KeyRule("model"),
    "model_name_or_path": KeyRule("model"),
    "seed": KeyRule("seed"),
    "learning_rate": KeyRule(f"{TRAINER}lr", float),
    "weight_decay": KeyRule(f"{TRAINER}weight_decay", float),
    "adam_epsilon": KeyRule(f"{TRAINER}epsilon", float),
    "max_grad_norm": KeyRule(f"{TRAINER}grad_clip", float),
    "warmup_steps": KeyRule(f"{TRAINER}warmup_steps"),
    "gradient_checkpointing": KeyRule("trainer.recompute_activations"),
    "max_steps": KeyRule("steps"),
    "save_steps": KeyRule("checkpoint.every_steps"),
    "save_total_limit": KeyRule("checkpoint.keep_last"),
    "eval_steps": KeyRule("evaluation.every_steps"),
    "resume_from_checkpoint": KeyRule("", remark=f"`{COMMAND} resume RUN`"),
}
SAMPLING = {
    "max_completion_length": KeyRule("sampling.max_tokens", remark="of one call; an agent may make several"),
    "temperature": KeyRule("sampling.temperature", float),
    "top_p": KeyRule("sampling.top_p", float),
    "top_k": KeyRule("sampling.top_k", lambda value: max(int(value), 0)),
    "min_p": KeyRule("sampling.min_p", float),
    "vllm_max_model_length": KeyRule("generation.max_model_len"),
    "vllm_max_model_len": KeyRule("generation.max_model_len"),
    "vllm_gpu_memory_utilization": KeyRule("generation.memory_fraction", float),
    "vllm_tensor_parallel_size": KeyRule("generation.tensor_parallel"),
    "mask_truncated_completions": KeyRule("algorithm.shaping.truncated", lambda masks: "mask" if masks else "keep"),
    "epsilon": KeyRule("algorithm.clip", float),
    "epsilon_high": KeyRule("algorithm.clip_higher", float),
    "delta": KeyRule("algorithm.dual_clip", float),
}
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
LOSSES = {
    "dapo": {"name": "grpo", "loss_aggregation": "token_mean"},
    "bnpo": {"name": "grpo", "loss_aggregation": "token_mean"},
    "grpo": {"name": "grpo", "loss_aggregation": "seq_mean"},
    "dr_grpo": {"name": "dr_grpo"},
    "cispo": {"name": "cispo"},
    "sapo": {"name": "sapo"},
}
"""Settings of `[algorithm]` by `loss_type`."""
OFFLINE = {"sft": "sft", "dpo": "dpo", "reward": "reward_model"}


def convert_trl(file: ForeignFile) -> Conversion:
    """Returns the recipe of a configuration of TRL; what it leaves unstated has TRL's defaults where they differ."""
    converter = Converter(file.values)
    method = file.method or guess_method(file.values)
    _run_name(converter)
    (_online if method in ("grpo", "rloo") else _offline)(converter, method)
    _shared(converter)
    rules = {**COMMON, **(SAMPLING if method in ("grpo", "rloo") else {})}
    converter.apply(rules)
    converter.ignore(NOT_HERE)
    return Conversion(f"TRL ({method})", converter.tables, converter.rows([*rules, *NOT_HERE]))


def guess_method(values: dict[str, Any]) -> str:
    """Returns the method that a file's keys belong to: those of GRPO, else of DPO, else of SFT."""
    if any(key in values for key in ("num_generations", "max_completion_length", "reward_funcs", "reward_weights")):
        return "grpo"
    return "dpo" if any(key in values for key in ("beta", "label_smoothing", "precompute_ref_log_probs")) else "sft"


def _run_name(converter: Converter) -> None:
    output = str(converter.get("output_dir", "trl"))
    name = re.sub(r"[^a-z0-9]+", "-", output.rstrip("/").rpartition("/")[2].lower()).strip("-")[:64] or "trl"
    converter.carry(
        "output_dir", "run", name, "the folder of a run is `folder`/`run`" if "output_dir" in converter.values else ""
    )


def _shared(converter: Converter) -> None:
    """Optimizer, precision, adapters, data: keys whose values have another form here."""
    schedule = str(converter.get("lr_scheduler_type", "linear"))
    known = SCHEDULES.get(schedule)
    remark = "" if known else "no such schedule here; linear"
    converter.carry("lr_scheduler_type", f"{TRAINER}schedule", known or "linear", remark)
    beta1, beta2 = float(converter.get("adam_beta1", 0.9)), float(converter.get("adam_beta2", 0.999))
    for key in ("adam_beta1", "adam_beta2"):
        converter.carry(key, f"{TRAINER}betas", [beta1, beta2])
    converter.put(f"{TRAINER}lr", float(converter.get("learning_rate", _default_rate(converter))))
    for key in ("bf16", "dtype", "torch_dtype"):
        if key in converter.values:
            is_half = converter.values[key] in (True, "bfloat16", "auto")
            dtype = "bfloat16" if is_half else "float32"
            converter.put("generation.dtype", dtype)
            converter.carry(key, "trainer.dtype", dtype, "and `generation.dtype`")
    if "fp16" in converter.values:
        converter.note(
            "fp16",
            Fate.DIFFERS if converter.values["fp16"] else Fate.WITHOUT_EFFECT,
            "trainer.dtype",
            "float32 or bfloat16",
        )
    if converter.get("use_peft", default=False):
        targets = converter.get("lora_target_modules", [])
        chosen = (
            []
            if targets in ("all-linear", ["all-linear"])
            else [targets]
            if isinstance(targets, str)
            else list(targets)
        )
        adapter = {"rank": converter.get("lora_r", 16), "alpha": converter.get("lora_alpha", 32), "targets": chosen}
        converter.put("trainer.lora", adapter)
    for key in ("use_peft", "lora_r", "lora_alpha", "lora_target_modules"):
        converter.note(key, Fate.CARRIED, "trainer.lora")
    _data(converter)
    _steps(converter)


def _default_rate(converter: Converter) -> float:
    """Returns the learning rate of TRL's class."""
    rates = {"sft": 2e-5, "reward_model": 1e-4}
    return rates.get(converter.tables["algorithm"]["name"], 1e-6)


def _data(converter: Converter) -> None:
    for key in ("dataset_name", "train_dataset"):
        if (dataset := converter.get(key)) is not None:
            if isinstance(dataset, Expression):
                converter.note(
                    key,
                    Fate.DIFFERS,
                    "task.dataset",
                    "made by the program; write its rows to a .jsonl file, or name it",
                )
            else:
                converter.carry(key, "task.dataset", dataset)
    converter.note("eval_dataset", Fate.DIFFERS, "task.held_out", "a number of rows, or a dataset")
    converter.note("eval_strategy", Fate.WITHOUT_EFFECT, "evaluation.every_steps", "evaluated where it is above 0")
    converter.note("save_strategy", Fate.WITHOUT_EFFECT, "checkpoint.every_steps", "saved where it is above 0")


def _steps(converter: Converter) -> None:
    if int(converter.get("max_steps", -1)) <= 0:
        converter.put("steps", FILL_STEPS)
        converter.note("max_steps", Fate.WITHOUT_EFFECT, "steps", "not above 0")
        epochs = converter.get("num_train_epochs", 3)
        remark = f"write {epochs} × rows ÷ trainer.batch_size; {FILL_STEPS} until then"
        converter.note("num_train_epochs", Fate.DIFFERS, "steps", remark)
    else:
        converter.note("num_train_epochs", Fate.WITHOUT_EFFECT, "steps", "max_steps decides")
    if ratio := float(converter.get("warmup_ratio", 0.0)):
        steps = int(ratio * converter.get("max_steps", FILL_STEPS))
        converter.carry("warmup_ratio", f"{TRAINER}warmup_steps", max(steps, 0), "of `steps`")
    converter.note(
        "warmup_ratio",
        Fate.CARRIED if not ratio else Fate.DIFFERS,
        f"{TRAINER}warmup_steps",
        "" if not ratio else "of `steps`",
    )


def _batch(converter: Converter) -> int:
    """Returns the rows of an optimizer step on one process, and notes the keys that they come from."""
    per_device = int(converter.get("per_device_train_batch_size", 8))
    accumulated = int(converter.get("gradient_accumulation_steps", 1))
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        converter.note(key, Fate.DIFFERS, "trainer.batch_size", "of one process; multiply by their number")
    return per_device * accumulated


def _offline(converter: Converter, method: str) -> None:
    converter.put("algorithm.name", OFFLINE[method])
    converter.put("trainer.batch_size", _batch(converter))
    if method == "dpo":
        converter.carry("beta", "algorithm.beta", float(converter.get("beta", 0.1)))
        variant = converter.get("loss_type", "sigmoid")
        name = next(iter(variant), "sigmoid") if isinstance(variant, list) else variant
        known = name if name in ("sigmoid", "ipo") else "sigmoid"
        converter.carry("loss_type", "algorithm.variant", known, "" if known == variant else "sigmoid and ipo are here")
        converter.carry("label_smoothing", "algorithm.label_smoothing", float(converter.get("label_smoothing", 0.0)))
        for key in ("ref_model", "model_adapter_name", "precompute_ref_log_probs"):
            converter.note(key, Fate.DIFFERS, "algorithm.reference", "the model that the run begins with")
    if (longest := converter.get("max_length", converter.get("max_seq_length"))) is not None:
        for key in ("max_length", "max_seq_length"):
            converter.carry(
                key, "task.max_length", int(longest), "longer examples are an error; `task.overlong` drops them"
            )
    converter.note("max_prompt_length", Fate.WITHOUT_EFFECT, "task.max_length", "of prompt and answer together")
    converter.note("packing", Fate.WITHOUT_EFFECT, "", "sequences are always packed, and do not see each other")
    for key in ("completion_only_loss", "assistant_only_loss", "dataset_text_field"):
        converter.note(
            key, Fate.DIFFERS, "", "only the assistant's messages are trained; docs/supervised.md has the forms of rows"
        )


def _online(converter: Converter, method: str) -> None:
    size = int(converter.get("num_generations", 8 if method == "grpo" else 2))
    converter.carry("num_generations", "algorithm.group_size", size)
    _algorithm(converter, method)
    accumulated = int(converter.get("gradient_accumulation_steps", 1))
    generated = int(converter.get("steps_per_generation", accumulated))
    rows = int(converter.get("generation_batch_size", _batch(converter) // accumulated * generated))
    converter.put("trainer.batch_size", max(rows // size, 1))
    converter.put("algorithm.minibatches", max(generated // accumulated, 1))
    remark = f"completions there, groups here: ÷ num_generations = {max(rows // size, 1)}, of one process"
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size"):
        converter.note(key, Fate.DIFFERS, "trainer.batch_size", remark)
    converter.note("steps_per_generation", Fate.DIFFERS, "algorithm.minibatches", "÷ gradient_accumulation_steps")
    converter.put("sampling.max_tokens", int(converter.get("max_completion_length", 256)))
    if int(converter.get("num_iterations", 1)) > 1:
        converter.note("num_iterations", Fate.DIFFERS, "", "a batch is trained once")
    converter.note("max_prompt_length", Fate.DIFFERS, "generation.max_model_len", "of prompt and completion together")
    converter.note("shuffle_dataset", Fate.WITHOUT_EFFECT, "", "rows are drawn in an order of the seed")
    for key in ("vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_cap"):
        converter.note(
            key, Fate.DIFFERS, "algorithm.correction", "docs/algorithms.md has its correction of stale tokens"
        )
    _rewards(converter)


def _algorithm(converter: Converter, method: str) -> None:
    loss = str(converter.get("loss_type", "dapo"))
    chosen: dict[str, Any] = dict(LOSSES.get(loss, LOSSES["dapo"])) if method == "grpo" else {"name": "rloo"}
    converter.note(
        "loss_type",
        Fate.CARRIED if loss in LOSSES else Fate.DIFFERS,
        "algorithm.name",
        "" if loss in LOSSES else "as dapo",
    )
    level = str(converter.get("importance_sampling_level", "token"))
    if level in ("sequence", "sequence_token"):
        chosen = {"name": "gspo" if level == "sequence" else "gspo_token"}
    converter.note("importance_sampling_level", Fate.CARRIED, "algorithm.name")
    scale = converter.get("scale_rewards", "group")
    if scale == "batch":
        chosen["name"] = "lite_ppo"
    elif chosen["name"] == "grpo":
        chosen["scale_by_std"] = scale in (True, "group")
    converter.note(
        "scale_rewards", Fate.CARRIED, "algorithm.scale_by_std" if "scale_by_std" in chosen else "algorithm.name"
    )
    if chosen["name"] == "dr_grpo":
        chosen["constant_length"] = int(converter.get("max_completion_length", 256))
    for name, value in chosen.items():
        converter.put(f"algorithm.{name}", value)
    if beta := float(converter.get("beta", 0.0 if method == "grpo" else 0.05)):
        place = "loss" if method == "grpo" else "reward"
        converter.put(
            "algorithm.kl", {"coefficient": beta, "apply_to": place, "estimator": "k3" if method == "grpo" else "k1"}
        )
    converter.note("beta", Fate.CARRIED, "algorithm.kl.coefficient")


def _rewards(converter: Converter) -> None:
    remark = "`function(task, output)` of one episode, not of a batch; docs/rewards.md"
    for key in ("reward_funcs", "reward_model_name_or_path"):
        converter.note(key, Fate.DIFFERS, "task.reward", remark)
    converter.note("reward_weights", Fate.DIFFERS, "task.reward_weights", "by the names of the rewards")
