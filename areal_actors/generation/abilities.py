"""Abilities of generation engines: the optional fields of a request, and which of the built-in engines supports each.

This module does not load an engine, so that `areal-actors doctor` and the documentation have the same table as the
engines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from areal_actors.core.errors import RequestError

JSON_SCHEMA, REGEX, GRAMMAR = "constraint:json_schema", "constraint:regex", "constraint:grammar"
CONSTRAINT_ABILITIES: Mapping[str, str] = {"json_schema": JSON_SCHEMA, "regex": REGEX, "lark": GRAMMAR}
"""The ability that a constraint needs, by `Constraint.kind`."""
SAMPLING_ABILITIES = frozenset(
    {
        *CONSTRAINT_ABILITIES.values(),
        *(
            "frequency_penalty",
            "logit_bias",
            "min_p",
            "presence_penalty",
            "seed",
            "stop",
            "top_k",
            "top_logprobs",
            "top_p",
        ),
    }
)
"""Optional fields of `SamplingParams`, which an engine may not support, the constraint by its kinds; every engine
supports temperature and max_tokens."""
ROUTES = "routed_experts"
"""Ability to report the experts of each position: see `RoutingEngine`."""
IMAGES = "images"
"""Ability to see the images of a prompt, if the model has vision."""
ABILITIES = SAMPLING_ABILITIES | {ROUTES, IMAGES}
"""All abilities."""
ADVISORY_ABILITIES = frozenset({"seed"})
"""Fields that every engine accepts: one that does not support them samples as if they were not set. With the ability
`seed`, equal requests with equal seeds give equal tokens."""
ENGINE_ABILITIES: Mapping[str, frozenset[str]] = {
    "transformers": ABILITIES,
    "sglang": ABILITIES - {"seed"},
    "vllm": SAMPLING_ABILITIES - {"seed"},
    "scripted": SAMPLING_ABILITIES - {*CONSTRAINT_ABILITIES.values(), "top_logprobs"},
}
"""Abilities of the built-in engines by their names in a recipe."""

WEIGHT_CHANNELS: Mapping[str, tuple[str, ...]] = {
    "transformers": ("folder",),
    "sglang": ("folder", "broadcast", "tensors", "delta"),
    "vllm": ("folder", "broadcast", "tensors", "delta"),
    "scripted": ("folder",),
}
"""Ways of new weights to the built-in engines; see `generation.server.weights`."""

FIELD_OF = {IMAGES: "messages", JSON_SCHEMA: "response_format", REGEX: "response_format", GRAMMAR: "tool_choice"}
"""Fields of the client API whose name is not that of the ability."""
UNROUTED_REMEDY = 'set generation.engine to transformers or sglang, or write "auto"'
GRAMMAR_USES = (
    "`required` and a named function need it, and so does 'response_format' beside tools or reasoning; send `auto`"
)
NEAREST = 3
"""Number of known names that an error names."""


def ability_rows() -> list[tuple[str, ...]]:
    """Returns the table of abilities.

    A row of column titles comes first, then one row for each ability, with `yes` or `no` for each engine.
    """
    able = {engine: engine_abilities(engine) for engine in ENGINE_ABILITIES}
    abilities = sorted({ability for has in able.values() for ability in has})
    return [
        ("ability", *able),
        *((ability, *("yes" if ability in has else "no" for has in able.values())) for ability in abilities),
    ]


def engine_abilities(engine: str) -> frozenset[str]:
    """Returns the abilities of a built-in engine, with its ways of new weights as `weights:NAME`."""
    return ENGINE_ABILITIES[engine] | {f"weights:{channel}" for channel in WEIGHT_CHANNELS[engine]}


def missing_ability_error(ability: str, title: str) -> RequestError:
    """Returns the error for a request that needs an ability which the engine with this title does not have."""
    field, kind = FIELD_OF.get(ability, ability), ability.partition(":")[2]
    fault = (
        f"'{field}': {f'a constraint of kind {kind} is ' if kind else ''}not supported by {title}, the engine of"
        " this run"
    )
    if ability == IMAGES:
        fault = f"'messages' has images, which are not seen by {title}, the engine of this run"
    remedy = (
        f"{GRAMMAR_USES} and leave the latter out"
        if ability == GRAMMAR
        else f"leave {'them' if ability == IMAGES else 'it'} out"
    )
    able = " or ".join(name for name, has in ENGINE_ABILITIES.items() if ability in has)
    return RequestError(f"{fault}; {remedy}, or set generation.engine to {able}", field)


def no_routes_error(engine: str) -> str:
    """Returns the error for `trainer.routing_replay = "on"` with an engine that does not report experts."""
    return f'trainer.routing_replay = "on": the engine {engine} reports no experts; {UNROUTED_REMEDY}'


def unknown_abilities(abilities: Iterable[str]) -> str:
    """Returns a sentence about abilities that are not in `ABILITIES`, with the nearest known names.

    Empty if there are none.
    """
    unknown = sorted(set(abilities) - ABILITIES)
    return "; ".join(f"unknown ability {name!r}, {_nearest(name)}" for name in unknown)


def _nearest(name: str) -> str:
    names = sorted(ABILITIES)
    near = difflib.get_close_matches(name, names, n=NEAREST)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
