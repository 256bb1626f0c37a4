"""Settings and values that had another name in an earlier release: a recipe that has one is refused with the new name."""

from __future__ import annotations

from collections.abc import Mapping

SETTINGS: Mapping[str, str] = {
    "tapes": "record_actor_io",
    "task.too_long": "task.overlong",
    "gateway.lease_seconds": "gateway.idle_timeout_seconds",
    "gateway.grant_seconds": "gateway.reservation_ttl_seconds",
    "gateway.kept_sessions": "gateway.finished_sessions_cached",
    "watchdog.mismatch_vetoed_share": "watchdog.mismatch_vetoed_frac",
    "batcher.lost_sample": "batcher.incomplete_groups",
    "trainer.rank_seconds": "trainer.rank_timeout_seconds",
    "trainer.parity_rows": "trainer.logprob_check_sequences",
    "generation.slots": "generation.max_num_seqs",
    "generation.context": "generation.max_model_len",
    "warm_start.direct_share": "warm_start.shortcut_fraction",
    "warm_start.tail_direct_share": "warm_start.tail_shortcut_fraction",
    "evaluation.tasks_between": "evaluation.periodic_tasks",
    "evaluation.mode_between": "evaluation.periodic_mode",
    "evaluation.exact_between": "evaluation.periodic_exact",
    "algorithm.reduction": "algorithm.loss_aggregation",
    "algorithm.whiten": "algorithm.normalize_advantages",
    "algorithm.kl.place": "algorithm.kl.apply_to",
    "algorithm.correction.weight": "algorithm.correction.importance_sampling",
    "algorithm.correction.mismatch.weight": "algorithm.correction.mismatch.importance_sampling",
}
"""Old name to new name."""

_BOUNDS = {"capped": "truncate", "masked": "mask", "clipped": "clip"}
VALUES: Mapping[str, Mapping[str, str]] = {
    "task.overlong": {"refuse": "error"},
    "batcher.incomplete_groups": {"train_without": "train_partial"},
    "evaluation.baseline": {"beside": "concurrent"},
    "algorithm.loss_aggregation": {"token": "token_mean", "sequence": "seq_mean"},
    "algorithm.correction.importance_sampling": _BOUNDS,
    "algorithm.correction.mismatch.importance_sampling": _BOUNDS,
}
"""For a setting under its present name: old value to new value."""


def renamed_setting(name: str, value: object) -> str:
    """Returns the line to write instead of a setting's old name, or nothing if it never had this name."""
    new = SETTINGS.get(name, "")
    value_now = VALUES.get(new, {}).get(str(value), "")
    return new and f"`{name}` is now `{new}`" + (f'; write {new} = "{value_now}"' if value_now else "")


def renamed_value(name: str, value: object) -> str:
    """Returns the present name of an old value of a setting, or nothing."""
    return VALUES.get(name, {}).get(str(value), "")
