"""Reads a model's folder for its chat template, its special tokens, and the tokens that end a turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from areal_actors.core.durable_files import read_json


def chat_template_of(folder: Path, config: Mapping[str, Any]) -> str:
    """Chat template of a folder; empty if there is none.

    It is in its own file, or in the configuration's entry (the default of several).
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template") or ""
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default", "")
    return str(template)


def text_of_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like, as templates see them."""
    tokens = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    return {name: value for name, value in tokens.items() if isinstance(value, str)}


def stop_ids_of(folder: Path, tokenizer: Tokenizer, special_tokens: Mapping[str, str]) -> list[int]:
    """End-of-sequence ids of the model's generation settings and configuration, and of the tokenizer."""
    stops: set[int] = set()
    for file in ("generation_config.json", "config.json"):
        value = read_json(folder / file).get("eos_token_id")
        stops.update(value if isinstance(value, list) else [] if value is None else [value])
    of_tokenizer = tokenizer.token_to_id(special_tokens.get("eos_token", ""))
    return sorted(stops | ({of_tokenizer} if of_tokenizer is not None else set()))
