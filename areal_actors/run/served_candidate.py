"""The candidate of a served model at a start: published, gone on with, or withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from areal_actors.canary.served_versions import ServedVersions
from areal_actors.core.errors import SetupError
from areal_actors.core.values import WeightsLocation
from areal_actors.messages import CandidateDecided, CandidatePublished, WeightsPublished
from areal_actors.recipe.recipe import Recipe
from areal_actors.tokenization.tokenizer import ChatTokenizer


def candidate_events(
    recipe: Recipe, versions: ServedVersions, serving: WeightsPublished, location: WeightsLocation | None
) -> Iterator[CandidateDecided | CandidatePublished]:
    """Yields what the log needs so that it has the candidate of the recipe, or none.

    Args:
        recipe: that which is served.
        versions: those of the log.
        serving: weights that are served.
        location: candidate of the recipe; None if it has none.
    """
    at, is_open = versions.candidate, versions.candidate is not None and versions.decided is None
    if location is None or location == serving.location:
        if is_open and at is not None:
            yield _withdraw(at, "the recipe no longer has it")
        return
    wanted = published_candidate(recipe, location, serving.weight_version, versions.newest + 1)
    if at is not None and _is_same(at, wanted):
        if is_open and at.share != wanted.share:
            yield msgspec.structs.replace(at, share=wanted.share)
        return
    if is_open and at is not None:
        yield _withdraw(at, "the recipe has another candidate, other bounds, or another served model")
    if serving.weight_version > versions.newest:
        wanted = msgspec.structs.replace(wanted, weight_version=serving.weight_version + 1)
    yield wanted


def published_candidate(
    recipe: Recipe, location: WeightsLocation, serving_version: int, weight_version: int
) -> CandidatePublished:
    """Returns the event of a candidate with the settings of a recipe."""
    settings = recipe.gateway.candidate
    limits = {
        "length": settings.most_length,
        "truncated": settings.most_truncated,
        "tool_errors": settings.most_tool_errors,
    }
    return CandidatePublished(
        weight_version=weight_version,
        location=location,
        serving_version=serving_version,
        mode=settings.mode,
        share=settings.share,
        least_difference=settings.least_difference,
        significance=settings.significance,
        reward_range=settings.reward_range,
        least_sessions=settings.least_sessions,
        limits={name: limit for name, limit in limits.items() if limit is not None},
        max_tokens=recipe.sampling.max_tokens,
    )


def _is_same(at: CandidatePublished, wanted: CandidatePublished) -> bool:
    return at == msgspec.structs.replace(wanted, weight_version=at.weight_version, share=at.share)


def _withdraw(at: CandidatePublished, reason: str) -> CandidateDecided:
    return CandidateDecided(
        weight_version=at.weight_version,
        serving_version=at.serving_version,
        decision="withdrawn",
        reason=reason,
        by="recipe",
    )


async def refuse_other_tokens(serving: WeightsLocation, candidate: WeightsLocation) -> None:
    """Check that one tokenizer and one chat template serve both.

    Raises:
        SetupError: they differ, so that the prompts of the candidate would not be its own; or both are one model.
    """
    if candidate == serving:
        raise SetupError(f"gateway.candidate.model: {candidate.folder} is the served model itself; name another")
    ours, its = [await asyncio.to_thread(ChatTokenizer.load, location.model) for location in (serving, candidate)]
    vocabularies = [chat.tokenizer.get_vocab(with_added_tokens=True) for chat in (ours, its)]
    what = "tokenizer" if vocabularies[0] != vocabularies[1] else ""
    what = what or ("chat template" if ours.template.source != its.template.source else "")
    if what:
        raise SetupError(
            f"gateway.candidate.model: the {what} of {candidate.model} is not that of {serving.model}, which both need"
            " to be served by one gateway; name a checkpoint of the served model"
        )
