"""The log of a served model: `serve` goes on with it, so that feedback finds the sessions of earlier days."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

import msgspec

from areal_actors.canary.served_versions import KINDS, ServedVersions
from areal_actors.core.errors import SetupError
from areal_actors.core.values import WeightsLocation
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import RunResumed, WeightsPublished
from areal_actors.recipe.recipe import Recipe, redact_recipe
from areal_actors.recovery.log_recovery import recover_log
from areal_actors.run.preflight import fresh_folder, holding_weights, report_clean_up
from areal_actors.supervision.disk_watch import refuse_full_disk
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_bus.base import Bus

ASKED = "served.asked"
"""Key of the model that was asked for when the served weights were published."""
VOCABULARY = "served.vocabulary"
"""Key of the digest of the tokenizer of the models that the log has."""


class AskedModel(msgspec.Struct):
    """Facts about the published weights that a log whose beginning was deleted no longer has."""

    weight_version: int
    asked: WeightsLocation | None
    newest: int
    """Highest version of any weights."""


async def keep_asked_model(bus: Bus, versions: ServedVersions) -> None:
    """Keep beside the log what its next start asks of the beginning, which is about to be deleted."""
    version = versions.published.weight_version if versions.published is not None else -1
    kept = AskedModel(weight_version=version, asked=versions.asked, newest=versions.newest)
    await bus.put(ASKED, msgspec.json.encode(kept))


async def _recall_asked_model(bus: Bus, versions: ServedVersions) -> None:
    if (value := await bus.get(ASKED)) is None:
        return
    kept = msgspec.json.decode(value, type=AskedModel)
    versions.newest = max(versions.newest, kept.newest)
    if versions.published is not None and versions.published.weight_version == kept.weight_version:
        versions.asked = kept.asked


def has_served_log(folder: RunFolder) -> bool:
    """Returns True if the folder is that of a served model, with its log."""
    try:
        recipe = folder.recipe()
    except (OSError, SetupError, msgspec.DecodeError):
        return False
    return recipe.is_served() and folder.nats.is_dir() and any(folder.nats.iterdir())


@contextmanager
def served_folder(recipe: Recipe, folder: RunFolder, check: Callable[[Recipe], Recipe]) -> Iterator[Recipe]:
    """Lock the folder, and create it unless its log goes on; yields the recipe that `check` returns.

    Raises:
        SetupError: a model of this name is served, the disk is full or not writable, or `check` raised it.
    """
    if not has_served_log(folder):
        with fresh_folder(recipe, folder, check) as chosen:
            yield chosen
        return
    report_clean_up(folder.path.parent)
    with folder.hold():
        chosen = check(recipe)
        refuse_full_disk(chosen.disk, folder.path)
        folder.check_writable()
        with holding_weights(chosen, folder):
            earlier = folder.recipe()
            folder.keep(chosen)
            try:
                yield chosen
            except SetupError:  # nothing was served by it
                folder.keep(earlier)
                raise


async def continued_log(recipe: Recipe, folder: RunFolder, place: str) -> RunResumed:
    """Check the log of a served model; returns the event with which it goes on.

    Raises:
        SetupError: the log is unusable.
        BusError: the server cannot be started or does not answer.
    """
    recovery = await recover_log(recipe, folder)
    return RunResumed(recipe=redact_recipe(recipe), reason=recovery.problem, folder=place)


async def next_weights(bus: Bus, run: str, location: WeightsLocation) -> tuple[WeightsPublished, ServedVersions]:
    """Returns the weights to serve for a recipe's model, and those that the log has.

    They are the log's own if it has this model as published last, or a candidate that was promoted in its place.

    Raises:
        SetupError: the log is of a model with another tokenizer, so that its sessions have other tokens.
    """
    versions = ServedVersions()
    async for envelope in bus.log():  # a training loop may have joined the model, and published weights of its own
        if (kind := KINDS.get(envelope.subject)) is not None:
            versions.fold(envelope.open(kind))
    await _recall_asked_model(bus, versions)
    vocabulary = (await asyncio.to_thread(vocabulary_digest, location.model)).encode()
    if versions.published is not None and await bus.get(VOCABULARY) not in {None, vocabulary}:
        raise SetupError(
            f"run: the log of '{run}' has sessions of {versions.published.location.model}, whose tokenizer is not that"
            f" of {location.model}; run=NAME begins another log"
        )
    await bus.put(VOCABULARY, vocabulary)
    return versions.locate(location), versions


def vocabulary_digest(folder: str) -> str:
    """Returns a digest of the tokens of a model's tokenizer with their ids, which a saved copy has, too."""
    vocabulary = ChatTokenizer.load(folder).tokenizer.get_vocab(with_added_tokens=True)
    return blake2b(msgspec.json.encode(sorted(vocabulary.items())), digest_size=16).hexdigest()
