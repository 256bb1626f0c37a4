"""Unsupported fields of requests that change what is sampled, by their values without effect.

Clients and servers send many of them at their defaults. Such a value is accepted and listed; any other is refused by
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.fields import unsupported_error

CONSTRAINTS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "structural_tag",
    "regex",
    "ebnf",
)
TEMPLATE = "set it in chat_template_kwargs"
FORMAT = "send response_format with a JSON schema"
REQUEST: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),
        "allowed_token_ids": ([],),
        "audio": (),
        "bad_words": ([],),
        "best_of": (1,),
        "chat_template": ("",),
        "continue_final_message": (False,),
        "custom_logit_processor": ("",),
        "documents": ([],),
        "dry_multiplier": (0,),
        "dynatemp_range": (0,),
        "early_stopping": (False,),
        "echo": (False,),
        "enable_thinking": (),
        "epsilon_cutoff": (0,),
        "eta_cutoff": (0,),
        "frequency_penalty": (0,),
        "function_call": ("auto", "none"),
        "functions": ([],),
        "grammar": ("",),
        "ignore_eos": (False,),
        "include_stop_str_in_output": (False,),
        "json_schema": ({}, ""),
        "length_penalty": (0, 1),
        "logit_bias": ({},),
        "logits_processors": ([],),
        "lora_path": ("",),
        "max_completion_tokens": (),
        "max_new_tokens": (),
        "max_output_tokens": (),
        "max_tokens": (),
        "min_new_tokens": (0,),
        "min_tokens": (0,),
        "mirostat": (0,),
        "mirostat_mode": (0,),
        "n": (1,),
        "no_repeat_ngram_size": (0,),
        "no_stop_trim": (False,),
        "penalty_alpha": (0,),
        "presence_penalty": (0,),
        "reasoning": ({},),
        "reasoning_effort": (),
        "repeat_penalty": (1,),
        "repetition_penalty": (1,),
        "response_format": ({"type": "text"},),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "stop": ([], ""),
        "stop_regex": ([], ""),
        "stop_sequences": ([],),
        "stop_token_ids": ([],),
        "tfs_z": (1,),
        "thinking": ({},),
        "thinking_budget": (),
        "thinking_token_budget": (),
        "tools": ([],),
        "top_a": (0,),
        "truncate_prompt_tokens": (-1,),
        "typical_p": (1,),
        "use_beam_search": (False,),
        "xtc_probability": (0,),
        **dict.fromkeys(CONSTRAINTS, ({}, "", [])),
    }
)
"""Fields of the request itself."""
NESTED: Mapping[str, tuple[object, ...]] = MappingProxyType({"prefix": (False,), "partial": (False,)})
"""Fields of objects in a request: a message of the model that is to be continued."""
REMEDIES = {
    "enable_thinking": TEMPLATE,
    "documents": TEMPLATE,
    "thinking": f"{TEMPLATE}, as enable_thinking",
    "thinking_budget": "limit the answer with max_tokens",
    "thinking_token_budget": "limit the answer with max_tokens",
    "reasoning": "send reasoning_effort",
    "max_new_tokens": "send max_tokens",
    "chat_template": "set gateway.chat_template in the recipe",
    "prefix": "end the messages with a user message",
    "partial": "end the messages with a user message",
    "json_schema": FORMAT,
    **dict.fromkeys(CONSTRAINTS, FORMAT),
}


def check_neutral(name: str, value: object, where: str) -> None:
    """Check that a field that the request's type lacks has no effect on what is sampled.

    `where` is the path of its object.

    Raises:
        RequestError: it would have one.
    """
    field = f"{where}.{name}" if where else name
    neutral = (NESTED if where else REQUEST).get(name)
    if neutral is None or value is None or value in neutral:
        return
    raise _effective(field, REMEDIES.get(name, "leave it out"))


def _effective(field: str, remedy: str) -> RequestError:
    return unsupported_error(field, f"it changes what is sampled: {remedy}")
