"""Validates `[gateway.candidate]`: a served model, workers for both sets of weights, bounds that can be reached."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.candidate_settings import CandidateSettings
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.gateway.settings import GatewaySettings

TABLE = ("gateway", "candidate")


def find_problems(gateway: GatewaySettings, actors: ActorsSettings, facts: RunFacts) -> Problems:
    """Yields every problem that keeps a candidate from being compared with the served model."""
    settings, workers = gateway.candidate, actors.inference_worker.count
    if not settings.model:
        if settings != CandidateSettings():
            yield (*TABLE, "model"), 'found none; name the candidate\'s folder, as "runs/sft/checkpoints/step-60"'
        return
    if not facts.is_serving:
        fault = f"found {toml_value(settings.model)}, but only a served model has a candidate"
        yield (*TABLE, "model"), f"{fault}; use `areal-actors serve`, or leave the table out"
        return
    if workers <= settings.workers:
        fault = f"found {workers}, of which {settings.workers} have the candidate's weights and none the served ones"
        yield ("actors", "inference_worker", "count"), f"{fault}; write at least {settings.workers + 1}"
    if not 0 < settings.share < 1 and not (settings.mode == "shadow" and settings.share == 1):
        whole = "above 0 and at most 1" if settings.mode == "shadow" else "above 0 and below 1"
        yield (*TABLE, "share"), f"found {settings.share:g}, with which nothing is compared; write a number {whole}"
    low, high = settings.reward_range
    if low >= high:
        yield (*TABLE, "reward_range"), f"found [{low:g}, {high:g}]; write the lowest reward first, as in [0, 1]"
    elif abs(settings.least_difference) >= high - low:
        fault = f"found {settings.least_difference:g}, but rewards are between {low:g} and {high:g}"
        yield (*TABLE, "least_difference"), f"{fault}; write a smaller difference, or another reward_range"
    for name in ("most_length", "most_truncated", "most_tool_errors"):
        limit = getattr(settings, name)
        if limit is not None and not -1 < limit < 1:
            yield (*TABLE, name), f"found {limit:g}, but the difference of two shares is between -1 and 1; write less"


def unused_settings(gateway: GatewaySettings) -> Iterator[Key]:
    """Yields the table where there is no candidate."""
    if not gateway.candidate.model:
        yield TABLE
