"""Abilities of generation engines: optional fields of a request; `engines.py` describes the engines that have them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

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
NEAREST = 3
"""Number of known names that an error names."""


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
