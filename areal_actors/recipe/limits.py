"""Concurrency limits: limits that are not set are derived from each other, and the lowest one is reported.

The gate allows as many groups as the staleness bound, unless `staleness_gate.max_concurrent` is set. Rollout workers,
the gateway, inference workers and their slots each have their own limit; one below the gate's leaves the trainer
waiting. A derived limit is never lower, except where memory limits the slots. Lengths of prompts and completions are
derived from each other, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from areal_actors.calibration.calibrate import Calibration
from areal_actors.core.actor_settings import Placement
from areal_actors.core.layers import is_stated
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.generation.abilities import ROUTES
from areal_actors.generation.engines import describe_engine
from areal_actors.generation.settings import is_here
from areal_actors.recipe.learning_rate import with_learning_rate
from areal_actors.recipe.measured import with_measured
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL
from areal_actors.rewards.judge.settings import has_judge
from areal_actors.rewards.judge_host import is_coroutine_reward

SLOT_TOKENS = 2**17
"""Maximum KV cache tokens over all slots of an inference worker for derived slots; unlimited for an embedded model."""
SERVER_SLOTS = 1024
"""Maximum of derived slots of an inference server, which shares its KV cache out by itself, and queues what has no
place in it."""
MIN_SLOTS = 128
MIN_CALLS = 256
"""Minimum concurrent messages of a gateway or an inference worker: a few episodes may send many requests."""
SCORED_TOGETHER = 64
"""Conversations that a reward model may receive at once, to batch them."""
JUDGED_TOGETHER = 128
"""Scores that a coroutine reward may compute at once, which mostly waits for others."""
MAX_DEFAULT_COMPLETION = 512
"""Maximum of a derived `sampling.max_tokens`, which is at most half of the context."""


class Limit(msgspec.Struct, frozen=True):
    """One setting that limits concurrent episodes."""

    setting: str
    value: int
    episodes: int
    """Number of episodes that it allows, over all workers."""
    count: str
    """Derivation of that number, as text."""


def with_derived(recipe: Recipe, stated: Mapping[str, Any], calibration: Calibration | None = None) -> Recipe:
    """Returns the recipe with settings missing in `stated` derived from the others, and from measurements if any."""
    recipe = with_learning_rate(recipe, stated)
    if recipe.learns_from_examples() and not recipe.is_served():
        return recipe
    recipe = _with_lengths(recipe, stated)
    if calibration is not None:
        recipe, stated = with_measured(recipe, stated, calibration)
    return _with_routing_replay(_with_published(_with_limits(_with_groups(recipe, stated), stated), stated))


def limits(recipe: Recipe) -> list[Limit]:
    """Returns all limits of concurrent episodes, in the order in which an episode meets them."""
    gate, size, actors = recipe.staleness_gate, recipe.algorithm.group_size, recipe.actors
    concurrent = recipe.concurrent_groups()
    allowed = concurrent * size
    groups = f"{concurrent} groups × {size} = {allowed} episodes"
    listed = [Limit("staleness_gate.max_concurrent", concurrent, allowed, groups)]
    if not recipe.is_served():
        ahead = (gate.max_staleness + 1) * recipe.trainer.batch_size * size
        groups = (
            f"({gate.max_staleness} + 1) × {recipe.trainer.batch_size} groups × {size} = {ahead} episodes ahead of the"
            " weights"
        )
        listed.append(Limit("staleness_gate.max_staleness", gate.max_staleness, ahead, groups))

    def add(setting: str, value: int, workers: int, what: str) -> None:
        count = f"{value} {what}" if workers == 1 else f"{workers} workers × {value} = {workers * value} {what}"
        listed.append(Limit(setting, value, value * workers, count))

    rollouts, inference = actors.rollout_worker, actors.inference_worker
    if rollouts.count and recipe.task.has_processes() and recipe.task.processes < rollouts.concurrency:
        add("task.processes", recipe.task.processes, rollouts.count, "processes")
    elif rollouts.count:
        add("actors.rollout_worker.concurrency", rollouts.concurrency, rollouts.count, "episodes")
    add("actors.session_manager.concurrency", actors.session_manager.concurrency, 1, "calls")
    if inference.count:
        add("actors.inference_worker.concurrency", inference.concurrency, inference.count, "calls")
    if inference.count and describe_engine(recipe.generation.engine).has_model:
        add("generation.max_num_seqs", recipe.generation.max_num_seqs, inference.count, "completions")
    return listed


def lowest_limit(recipe: Recipe) -> str:
    """Describes the lowest limit in one sentence."""
    listed = limits(recipe)
    allowed, lowest = listed[0], min(listed, key=lambda limit: limit.episodes)
    if lowest.episodes == allowed.episodes:
        return f"{allowed.setting} = {allowed.value} is the lowest limit: {allowed.count} at once"
    equal = sorted({limit.setting for limit in listed if limit.episodes < allowed.episodes} - {lowest.setting})
    also = f" (then {', '.join(equal)})" if equal else ""
    return (
        f"{lowest.setting} = {lowest.value} is the lowest limit: {lowest.count} at once, of the {allowed.episodes} that"
        f" {allowed.setting} = {allowed.value} allows; raise it{also}, or lower {allowed.setting}"
    )


def _with_lengths(recipe: Recipe, stated: Mapping[str, Any]) -> Recipe:
    """Derive lengths: completions up to half of the context, two completions per context, a context per micro-batch."""
    context, longest = recipe.generation.max_model_len, recipe.sampling.max_tokens
    if not is_stated(stated, ("generation", "max_model_len")) and is_stated(stated, ("sampling", "max_tokens")):
        context = max(context, 2 * longest)
    if not is_stated(stated, ("sampling", "max_tokens")):
        longest = max(min(MAX_DEFAULT_COMPLETION, context // 2), 1)
    microbatch = recipe.trainer.microbatch_tokens
    if not is_stated(stated, ("trainer", "microbatch_tokens")):
        microbatch = max(microbatch, context)
    return replace(
        recipe,
        generation=replace(recipe.generation, max_model_len=context),
        sampling=replace(recipe.sampling, max_tokens=longest),
        trainer=replace(recipe.trainer, microbatch_tokens=microbatch),
    )


def _with_published(recipe: Recipe, stated: Mapping[str, Any]) -> Recipe:
    """Publish weights as the engines take them, unless it is stated.

    In their precision, and whole to servers started elsewhere.
    Servers on other hosts do not have the folders of this one.
    """
    trainer, lora = recipe.trainer, recipe.trainer.lora
    if not is_stated(stated, ("trainer", "published_dtype")):
        trainer = replace(trainer, published_dtype=recipe.generation.dtype)
    if lora is not None and recipe.generation.server.urls and not is_stated(stated, ("trainer", "lora", "published")):
        trainer = replace(trainer, lora=replace(lora, published="merged"))
    server = recipe.generation.server
    adapters = trainer.lora is not None and trainer.lora.published == "adapter"
    if adapters or is_stated(stated, ("generation", "server", "weights")) or all(is_here(url) for url in server.urls):
        return replace(recipe, trainer=trainer)
    return replace(
        recipe, trainer=trainer, generation=replace(recipe.generation, server=replace(server, weights="broadcast"))
    )


def _with_routing_replay(recipe: Recipe) -> Recipe:
    """Replay no routes where the engine does not report them, or may have been started without."""
    able = ROUTES in describe_engine(recipe.generation.engine).abilities and not recipe.generation.server.urls
    if able or recipe.trainer.routing_replay != "auto":
        return recipe
    return replace(recipe, trainer=replace(recipe.trainer, routing_replay="off"))


def _with_groups(recipe: Recipe, stated: Mapping[str, Any]) -> Recipe:
    """Derive the groups that run at once, all that the staleness bound allows, and the surplus at the end, a batch."""
    gate, batch = recipe.staleness_gate, recipe.trainer.batch_size
    if not is_stated(stated, ("staleness_gate", "max_concurrent")) and not recipe.is_served():
        gate = replace(gate, max_concurrent=(gate.max_staleness + 1) * batch)
    costs = gate.max_staleness == 0 or recipe.model == EMBEDDED or recipe.is_online() or recipe.is_served()
    if not is_stated(stated, ("staleness_gate", "surplus_groups")):
        gate = replace(gate, surplus_groups=0 if costs else batch)
    return replace(recipe, staleness_gate=gate)


def _scores_together(recipe: Recipe, episodes: int) -> int:
    """Returns the number of scores that a reward worker takes at once; a judge may wait for whole groups of them."""
    reward = recipe.task.reward
    if has_judge(reward, recipe.task.reward_options):
        return max(JUDGED_TOGETHER, episodes)
    if reward.startswith(MODEL):
        return SCORED_TOGETHER
    return JUDGED_TOGETHER if is_coroutine_reward(reward, Path.cwd()) else recipe.actors.reward_worker.concurrency


def _with_limits(recipe: Recipe, stated: Mapping[str, Any]) -> Recipe:
    """Derive limits: every worker gets its share of the gate's limit, and the gateway all of it."""
    episodes = recipe.concurrent_groups() * recipe.algorithm.group_size
    held_out = min(recipe.evaluation.max_concurrent, recipe.evaluation.tasks)
    actors = recipe.actors
    calls = _share(episodes + held_out, actors.inference_worker)
    wanted = {
        "session_manager": max(MIN_CALLS, episodes + held_out),
        "rollout_worker": _share(episodes, actors.rollout_worker),
        "inference_worker": max(MIN_CALLS, calls),
        "reward_worker": _scores_together(recipe, episodes + held_out),
    }
    placements = {
        name: replace(getattr(actors, name), concurrency=concurrency)
        for name, concurrency in wanted.items()
        if not is_stated(stated, ("actors", name, "concurrency"))
    }
    server = describe_engine(recipe.generation.engine).is_server
    most = (
        calls
        if recipe.model == EMBEDDED
        else SERVER_SLOTS
        if server
        else SLOT_TOKENS // recipe.generation.max_model_len
    )
    slots = (
        recipe.generation.max_num_seqs
        if is_stated(stated, ("generation", "max_num_seqs"))
        else max(MIN_SLOTS, min(calls, most))
    )
    return replace(
        recipe, actors=replace(actors, **placements), generation=replace(recipe.generation, max_num_seqs=slots)
    )


def _share(episodes: int, workers: Placement) -> int:
    return -(-episodes // max(workers.count, 1))
