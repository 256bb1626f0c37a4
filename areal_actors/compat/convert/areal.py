"""Configurations of AReaL's training programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_actors.compat.areal.config import PPOConfig
from areal_actors.compat.areal.keys import LIKE, MAPPED, REPORTED
from areal_actors.compat.areal.load_config import read_known_keys
from areal_actors.compat.areal.to_recipe import convert_config
from areal_actors.compat.convert.conversion import Conversion, Fate, KeyRow
from areal_actors.compat.convert.foreign_file import flatten
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError

PER_EPOCH = "times the batches of the training set"


def convert_areal(file: Path, overrides: list[str], cuda: CudaDevices) -> Conversion:
    """Returns the recipe of a configuration of `PPOTrainer`'s programs.

    Raises:
        RecipeError: it is no such configuration, or a value is invalid.
    """
    config, unused, data = read_known_keys(str(file), overrides, PPOConfig)
    if "gconfig" not in data and "rollout" not in data:
        raise RecipeError(
            f"--from {file}: found neither `gconfig` nor `rollout`; SFT, DPO and RW programs run as they are"
        )
    steps = config.total_train_steps or config.total_train_epochs
    converted = convert_config(config, steps=steps, cuda=cuda, discounts=True)
    tables = converted.tables
    if "agent" not in tables["task"] and config.train_dataset.path:
        tables["task"]["dataset"] = config.train_dataset.path
    remarks = dict(_by_key(sentence) for sentence in (*converted.complaints, *converted.differences))
    unknown = dict(_by_key(sentence) for sentence in unused.unknown)
    rows = [_row(key, value, unused.own, unknown, remarks) for key, value in flatten(data).items()]
    shown = {row.key for row in rows}
    extra = [KeyRow(key, None, Fate.DIFFERS, "", remark) for key, remark in remarks.items() if key not in shown]
    return Conversion("AReaL", tables, (*rows, *extra))


def _by_key(sentence: str) -> tuple[str, str]:
    """Returns the key and the text of a sentence "`key`: text"."""
    key, _, text = sentence.removeprefix("`").partition("`")
    return key, text.removeprefix(", ").removeprefix(":").strip()


def _row(key: str, value: Any, own: tuple[str, ...], unknown: dict[str, str], remarks: dict[str, str]) -> KeyRow:
    setting, note = _counterpart(key)
    if any(key == name or key.startswith(f"{name}.") for name in own):
        near = unknown[key.partition(".")[0]].partition("; ")[2]
        hint = f" ({near})" if near.startswith("did you") else ""
        return KeyRow(
            key,
            value,
            Fate.UNKNOWN,
            "",
            f"a key of the program's own class{hint}; pass it to the agent: task.agent_options",
        )
    if (prefix := next((name for name in unknown if key == name or key.startswith(f"{name}.")), None)) is not None:
        return KeyRow(key, value, Fate.UNKNOWN, "", unknown[prefix])
    if (
        remark := next((text for name, text in remarks.items() if key == name or key.startswith(f"{name}.")), None)
    ) is not None:
        return KeyRow(key, value, Fate.DIFFERS, setting, remark)
    if setting:
        return KeyRow(key, value, Fate.DIFFERS if note == PER_EPOCH else Fate.CARRIED, setting, note)
    return KeyRow(key, value, Fate.WITHOUT_EFFECT, "", _reason(key))


def _counterpart(key: str) -> tuple[str, str]:
    """Returns the setting and the note of the longest mapped key that contains this one; empty if none does."""
    for prefix in _prefixes(key):
        for mapping in MAPPED:
            if mapping.areal == prefix:
                return mapping.ours, mapping.note
    if key.startswith("actor.") and any(key.startswith(f"actor.{name}") for name in ALGORITHM):
        return "algorithm", ""
    return "", ""


ALGORITHM = (
    *(
        "eps_clip_higher",
        "c_clip",
        "reward_scaling",
        "reward_clip",
        "overlong_",
        "kl_estimator",
        "sapo_tau",
        "gae_lambda",
    ),
    *("recompute_logprob", "max_new_tokens", "mask_no_eos_with_zero", "ppo_n_minibatches"),
)
"""Keys of `actor` beside those that `keys.py` maps, which the algorithm's settings are made of."""


def _reason(key: str) -> str:
    section, _, rest = key.partition(".")
    looked_up = f"{LIKE.get(section, section)}.{rest}" if rest else section
    return next((REPORTED[prefix] for prefix in _prefixes(looked_up) if prefix in REPORTED), "")


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
