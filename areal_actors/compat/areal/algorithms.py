"""Chooses the algorithm of a recipe by the settings of AReaL's `actor`.

AReaL has one loss with flags, this package one algorithm for each of their combinations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from areal_actors.compat.areal.config import NormConfig, PPOActorConfig, PPOConfig, RejectionSamplingConfig

Complain = Callable[[str], None]
Levels = tuple[str | None, str | None, bool]
"""Level of the mean and of the standard deviation, and True if the mean leaves one out."""

NARROWEST_CLIP = 1e-6
"""Bound of the ratio in place of 0."""
BY_REWARD_NORM: dict[Levels | None, dict[str, Any]] = {
    ("group", "group", False): {"name": "grpo"},
    ("group", None, False): {"name": "dr_grpo", "loss_aggregation": "token_mean"},
    ("group", "batch", False): {"name": "lite_ppo", "std_around": "group"},
    ("group", None, True): {"name": "rloo", "loss_aggregation": "token_mean"},
    None: {"name": "reinforce_plus_plus"},
}
"""Algorithms without a flag of their own, by `reward_norm`; all of AReaL's losses are means over tokens."""


def algorithm_table(config: PPOConfig, complain: Complain, report: Complain) -> dict[str, Any]:
    """Returns the recipe's `[algorithm]`.

    Args:
        config: the configuration.
        complain: takes a setting that changes training and has no counterpart.
        report: takes a setting that the closest counterpart stands for.
    """
    actor = config.actor
    table: dict[str, Any] = {"group_size": config.gconfig.n_samples, "minibatches": actor.ppo_n_minibatches}
    table |= _choose_algorithm(config, complain, report)
    table |= _clipping(actor, str(table["name"]), complain, report)
    table |= _convert_normalization(actor, str(table["name"]), complain)
    table["shaping"] = {"bias": actor.reward_bias, "scale": actor.reward_scaling, "clip": actor.reward_clip}
    table |= _kl(config, complain) | _convert_correction(actor, str(table["name"]), complain, report)
    if actor.mask_no_eos_with_zero:
        complain("`actor.mask_no_eos_with_zero`: truncated episodes keep their reward here; write false")
    return table


def _levels(norm: NormConfig | None) -> Levels | None:
    return None if norm is None or norm.mean_level is None else (norm.mean_level, norm.std_level, norm.mean_leave1out)


def _algorithms_by_flag(config: PPOConfig) -> dict[str, dict[str, Any]]:
    """Returns the algorithms that a setting other than `reward_norm` chooses, by this setting."""
    actor, tables = config.actor, dict[str, dict[str, Any]]()
    if config.critic is not None:
        model = "initial" if config.critic.path in ("", actor.path) else config.critic.path
        rate = {"lr": config.critic.optimizer.lr} if config.critic.optimizer else {}
        critic = {"model": model, "clip": config.critic.eps_clip, **rate}
        tables["critic"] = {"name": "ppo", "discount": actor.discount, "gae_lambda": actor.gae_lambda, "critic": critic}
    if (teacher := config.teacher) is not None:
        weights = {"teacher_weight": teacher.distill_loss_weight, "reward_weight": teacher.rl_loss_weight}
        tables["teacher"] = {"name": "distillation", "teacher": teacher.path, **weights}
    if actor.use_sapo_loss:
        temperatures = {"temperature_positive": actor.sapo_tau_pos, "temperature_negative": actor.sapo_tau_neg}
        tables["use_sapo_loss"] = {"name": "sapo", "loss_aggregation": "token_mean", **temperatures}
    if actor.importance_sampling_level == "sequence":
        tables["importance_sampling_level"] = {"name": "gspo", "loss_aggregation": "token_mean"}
    if actor.m2_threshold is not None:
        tables["m2_threshold"] = {"name": "m2po", "threshold": actor.m2_threshold}
    if actor.overlong_reward_penalty:
        overlong = {
            "longest": actor.max_new_tokens,
            "buffer": actor.overlong_tokens,
            "factor": actor.overlong_penalty_factor,
        }
        tables["overlong_reward_penalty"] = {"name": "dapo", "overlong": overlong}
    return tables


def _choose_algorithm(config: PPOConfig, complain: Complain, report: Complain) -> dict[str, Any]:
    """Returns the name of the algorithm, and the settings that only it has."""
    levels, tables = _levels(config.actor.reward_norm), _algorithms_by_flag(config)
    if config.rollout.agent.mode == "online" and config.gconfig.n_samples == 1 and levels:
        report(f"`actor.reward_norm`: found {levels} of groups of one; rewards are compared over the batch")
        return {"name": "reinforce_plus_plus"}
    if len(tables) > 1:
        complain(
            f"`actor.{list(tables)[1]}`: found beside `{next(iter(tables))}`, but they are two algorithms here; keep"
            " one of them"
        )
    if config.critic is None and (config.actor.discount, config.actor.gae_lambda) != (1.0, 1.0):
        complain("`actor.discount`, `gae_lambda`: without a critic they must be 1.0")
    if tables:
        chosen = next(iter(tables.values()))
        wanted = None if chosen["name"] == "ppo" else ("group", "group", False)
        if levels != wanted:
            complain(
                f"`actor.reward_norm`: found {levels}, but {chosen['name']} needs {'group/group' if wanted else 'none'}"
            )
        return chosen
    if levels not in BY_REWARD_NORM:
        choices = "; ".join(str(choice) for choice in BY_REWARD_NORM)
        complain(f"`actor.reward_norm`: found mean, std, leave-one-out = {levels}; known are {choices}")
    return dict(BY_REWARD_NORM.get(levels, {"name": "grpo"}))


def _clipping(actor: PPOActorConfig, name: str, complain: Complain, report: Complain) -> dict[str, Any]:
    """Returns the bounds of the ratio; soft gates have none."""
    if name == "sapo":
        return {}
    if not actor.eps_clip:
        report(f"`actor.eps_clip`: found {actor.eps_clip}; {NARROWEST_CLIP:g}")
    eps_clip = actor.eps_clip or NARROWEST_CLIP
    if name in ("rloo", "m2po", "distillation"):
        if actor.eps_clip_higher is not None or actor.c_clip is not None:
            complain(f"`actor.eps_clip_higher`, `c_clip`: {name} has one bound here; leave them out")
        return {"clip": eps_clip}
    bounds = {"clip": eps_clip, "clip_higher": actor.eps_clip_higher, "dual_clip": actor.c_clip}
    if name in ("gspo", "dapo") and actor.eps_clip_higher is None:
        bounds["clip_higher"] = eps_clip  # their own default is wider upwards
    return {key: value for key, value in bounds.items() if value is not None}


def _convert_normalization(actor: PPOActorConfig, name: str, complain: Complain) -> dict[str, Any]:
    """Returns the normalization of advantages over the step."""
    norm = actor.adv_norm
    wanted = norm is not None
    if norm is not None and (norm.mean_level, norm.std_level, norm.mean_leave1out) != ("batch", "batch", False):
        complain(
            f"`actor.adv_norm`: found mean_level {norm.mean_level}, std_level {norm.std_level}; write batch and batch,"
            " or null"
        )
    if name == "reinforce_plus_plus":
        if not wanted:
            complain(
                "`actor.adv_norm`: without reward_norm advantages are normalized over the batch here; write batch and"
                " batch"
            )
        return {}
    return {"normalize_advantages": wanted}


def _kl(config: PPOConfig, complain: Complain) -> dict[str, Any]:
    actor, ref = config.actor, config.ref
    if not actor.kl_ctl:
        return {}
    if ref is None:
        complain(f"`actor.kl_ctl`: found {actor.kl_ctl} without a reference model; add a `ref` section, or write 0.0")
        return {}
    reference = "initial" if ref.path in ("", actor.path) else ref.path
    return {
        "kl": {
            "coefficient": actor.kl_ctl,
            "apply_to": "reward",
            "estimator": actor.kl_estimator,
            "reference": reference,
        }
    }


def _convert_correction(actor: PPOActorConfig, name: str, complain: Complain, report: Complain) -> dict[str, Any]:
    """Returns the off-policy correction; algorithms whose own ratio bounds stale tokens have none."""
    bounds = _rejection_bounds(actor)
    if name in ("sapo", "m2po"):
        return {}
    if not actor.use_decoupled_loss:
        return {"correction": {"importance_sampling": "off"} if actor.recompute_logprob else {"decoupled": False}}
    table: dict[str, Any] = {"proximal": "loglinear" if actor.prox_logp_method == "loglinear" else "recomputed"}
    if bounds is None:
        return {"correction": {**table, "importance_sampling": "truncate", "highest": 0.0}}
    if bounds.metric != "ratio" or bounds.action not in ("mask", "clamp") or bounds.agg not in ("mean", "sum"):
        complain(
            f"`actor.rejection_sampling`: found {bounds}; expected metric ratio, action mask or clamp, agg mean or sum"
        )
    table |= {"importance_sampling": "truncate" if bounds.action == "clamp" else "mask", "highest": bounds.upper}
    table |= {"lowest": bounds.lower or 0.0, "level": bounds.level}
    if bounds.level == "token" and name == "gspo":
        report("`actor.rejection_sampling.level`: found token; the weight of gspo is of the sequence here, its mean")
    if bounds.level == "sequence" or name == "gspo":
        table |= {"level": "sequence", "aggregation": "product" if bounds.agg == "sum" else "geometric"}
    return {"correction": table}


def _rejection_bounds(actor: PPOActorConfig) -> RejectionSamplingConfig | None:
    """Returns `rejection_sampling`, or what its earlier names state."""
    highest = actor.behav_imp_weight_cap or actor.behave_imp_weight_cap
    if actor.rejection_sampling is not None or highest is None:
        return actor.rejection_sampling
    clamps = "truncate" in actor.behave_imp_weight_mode
    return RejectionSamplingConfig(action="clamp" if clamps else "mask", upper=highest)
