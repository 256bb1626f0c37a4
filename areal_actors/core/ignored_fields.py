"""Fields of clients' requests without effect: bookkeeping, and those that change an answer where they are honoured."""

from __future__ import annotations

import re
from collections.abc import Iterable

BOOKKEEPING = frozenset(
    {
        *(
            "metadata",
            "client_metadata",
            "user",
            "safety_identifier",
            "service_tier",
            "inference_geo",
            "billing_policy",
            "diagnostics",
        ),
        *(
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "prompt_cache_breakpoint",
            "cache_control",
        ),
        *("anthropic-beta", "include_obfuscation", "include", "access_programs", "fallback_credit_token", "display"),
        *(
            "annotations",
            "parsed",
            "parsed_arguments",
            "provider_specific_fields",
            "thinking_blocks",
            "reasoning_details",
            "extra_content",
        ),
        *(
            "id",
            "index",
            "status",
            "timestamp",
            "phase",
            "caller",
            "created_by",
            "logprobs",
            "acknowledged_safety_checks",
        ),
        *("pending_safety_checks", "current_url", "..."),
        "seed",
    }
)
"""Names of fields that describe, identify or cache a request, or choose among answers that are equally likely."""
KIND = re.compile(r"^(?P<path>.*?)(?:\[[^\]]*\])?(?P<kind> \(.*\))?$", re.DOTALL)


def effective_fields(ignored: Iterable[str]) -> list[str]:
    """Return those of the ignored fields, tools and items of a request that are no bookkeeping."""
    return [field for field in ignored if not _is_bookkeeping(field)]


def _is_bookkeeping(field: str) -> bool:
    match = KIND.match(field)
    assert match is not None
    name = match["path"].rpartition(".")[2]
    return name in BOOKKEEPING and (match["kind"] is None or name == "include")
