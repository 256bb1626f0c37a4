"""`areal-actors serve promote`: compares the candidate of a served model with the served version, and decides."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from areal_actors.canary.report import describe_comparison
from areal_actors.canary.trial import EVENTS, CandidateTrial
from areal_actors.canary.verdict import CandidateVerdict, decided_event, judge_candidate
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.folder.connections import connect_to_run, open_log, open_store
from areal_actors.folder.run_folder import RunFolder, find_run
from areal_actors.messages import CandidateDecided
from areal_actors.promote.evidence import CandidateEvidence
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.served_log import has_served_log
from areal_bus.base import Bus, Stamp
from areal_bus.message import Message
from areal_bus.nats import NatsBus

SENDER = "operator"
DONE, REFUSED = 0, 1
KINDS = {kind.subject: kind for kind in EVENTS}


def promote(
    run: str,
    *,
    folder: Path,
    reward: str,
    most_divergence: float | None,
    is_rollback: bool,
    is_dry_run: bool,
    as_json: bool,
) -> int:
    """Print the comparison, and promote the candidate if it is shown to be at least as good, or roll it back.

    Returns the exit status: 1 if it is not promoted. `is_dry_run` prints only.

    Raises:
        SetupError: there is no served model of this name, or it has no candidate.
        BusError: its log cannot be read or written.
    """
    place = _served_folder(run, folder)
    recipe = place.recipe()
    trial = CandidateTrial(recipe.seed)
    evidence = CandidateEvidence(recipe, place.path)
    asyncio.run(_read_log(place, trial.fold, evidence.fold))
    if trial.published is not None and reward:
        evidence.judge_shadow(trial, reward)
    verdict = _verdict(trial, recipe.run, is_rollback=is_rollback)
    if most_divergence is not None and trial.decided is None and not is_rollback:
        verdict = evidence.limit_divergence(trial, verdict, most_divergence)
    sys.stdout.write(describe_comparison(trial, verdict, evidence.sentences, as_json=as_json))
    if verdict.decision is None or is_dry_run or _is_decided(trial, is_rollback=is_rollback):
        return DONE if verdict.decision == "promoted" or is_rollback else REFUSED
    decided = msgspec.structs.replace(decided_event(trial, verdict.decision, verdict.reason), by="operator")
    asyncio.run(_publish(place, recipe, decided))
    if not as_json:
        sys.stdout.write(_describe_effect(place, trial, decided))
    return DONE if verdict.decision == "promoted" or is_rollback else REFUSED


def _served_folder(run: str, folder: Path) -> RunFolder:
    place, hint = find_run(run, folder)
    if place is None or not has_served_log(place):
        name = place.path.name if place is not None else run
        remedy = f"`{COMMAND} serve RECIPE` makes one, as NAME-serve"
        raise SetupError(f"'{name}' is no served model of {folder.absolute()} ({hint}); {remedy}")
    return place


async def _read_log(place: RunFolder, *folds: Callable[[Message], None]) -> None:
    async with open_log(place) as bus:
        last = (await bus.span()).last
        async for envelope in bus.log():
            if (kind := KINDS.get(envelope.subject)) is not None:
                event = envelope.open(kind)
                for fold in folds:
                    fold(event)
            if envelope.sequence >= last:
                break


def _verdict(trial: CandidateTrial, run: str, *, is_rollback: bool) -> CandidateVerdict:
    if trial.published is None:
        remedy = "serve it with gateway.candidate.model=FOLDER and actors.inference_worker.count=2"
        raise SetupError(f"'{run}' has no candidate; {remedy}")
    if trial.decided is not None and _is_decided(trial, is_rollback=is_rollback):
        return CandidateVerdict(trial.decided.decision, trial.decided.reason)
    return CandidateVerdict("rolled back", "by the operator") if is_rollback else judge_candidate(trial)


def _is_decided(trial: CandidateTrial, *, is_rollback: bool) -> bool:
    if trial.decided is None:
        return False
    return not (is_rollback and trial.decided.decision == "promoted")


async def _publish(place: RunFolder, recipe: Recipe, event: CandidateDecided) -> None:
    """Publish a decision on the live bus, or write it into the log of a model that is not served now."""
    async with _writable_bus(place, recipe) as bus:
        await bus.publish(event, Stamp(id=uuid.uuid4().hex, sender=SENDER, time=time.time()))


@asynccontextmanager
async def _writable_bus(place: RunFolder, recipe: Recipe) -> AsyncIterator[Bus]:
    bus: NatsBus
    if place.live_supervisor():
        async with connect_to_run(place.server(), place) as bus:
            yield bus
        return
    with place.hold():
        async with open_store(place.nats, place, recipe.run) as bus:
            yield bus


def _describe_effect(place: RunFolder, trial: CandidateTrial, event: CandidateDecided) -> str:
    is_live = bool(place.live_supervisor())
    if event.decision == "rolled back" and trial.serving == event.weight_version:
        again = "end it, and serve it again" if is_live else f"use `{COMMAND} serve`"
        return f"rolled back: all workers have version {event.weight_version}; {again} to have the recipe's model\n"
    which = event.weight_version if event.decision == "promoted" else event.serving_version
    when = "new sessions have" if is_live else f"`{COMMAND} serve` starts with"
    return f"{event.decision}: {when} version {which} from now on; open sessions keep theirs\n"
