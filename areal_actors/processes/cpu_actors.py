"""Builders of the actors that need no tensors, from the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from areal_actors.core.gateways import GatewayShare
from areal_actors.core.lazy import LazyModule
from areal_actors.core.task_settings import TaskSettings
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.generation.engines import describe_engine
from areal_actors.metrics.episode_log import EpisodeLog
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.processes.candidate_workers import worker_class
from areal_actors.processes.engine_place import engine_place
from areal_actors.processes.fold_actors import FOLDS, BuildContext, Builder
from areal_actors.processes.remote_environment import gateway_files, pullers_of
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.policies import POLICIES
from areal_actors.runtime.actor import Actor
from areal_actors.training.checkpointer import Checkpointer

if TYPE_CHECKING:
    from areal_actors.chaos import corruption
    from areal_actors.folder.run_folder import RunFolder
    from areal_actors.gateway import session_manager
    from areal_actors.generation import named
    from areal_actors.policies import policy_judge
    from areal_actors.processes import feedback_sessions, policy_sessions, recipe_model
    from areal_actors.recipe.recipe import Recipe
    from areal_actors.rewards import acceptance, bounded_rule, reward_pool, reward_worker, sourced_reward_worker
    from areal_actors.rewards.judge import engine_model, judge_client, panel
    from areal_actors.rewards.judge import settings as judge_settings
    from areal_actors.rollout import rollout_worker, runners, sourced_rollout_worker
    from areal_actors.tokenization import tokenizer
else:  # with the actors that need them: a process, and the supervisor, load nothing else
    corruption = LazyModule("areal_actors.chaos.corruption")
    session_manager = LazyModule("areal_actors.gateway.session_manager")
    named = LazyModule("areal_actors.generation.named")
    acceptance = LazyModule("areal_actors.rewards.acceptance")
    reward_pool = LazyModule("areal_actors.rewards.reward_pool")
    reward_worker = LazyModule("areal_actors.rewards.reward_worker")
    sourced_reward_worker = LazyModule("areal_actors.rewards.sourced_reward_worker")
    bounded_rule = LazyModule("areal_actors.rewards.bounded_rule")
    judge_settings = LazyModule("areal_actors.rewards.judge.settings")
    panel = LazyModule("areal_actors.rewards.judge.panel")
    judge_client = LazyModule("areal_actors.rewards.judge.judge_client")
    policy_judge = LazyModule("areal_actors.policies.policy_judge")
    engine_model = LazyModule("areal_actors.rewards.judge.engine_model")
    feedback_sessions = LazyModule("areal_actors.processes.feedback_sessions")
    policy_sessions = LazyModule("areal_actors.processes.policy_sessions")
    recipe_model = LazyModule("areal_actors.processes.recipe_model")
    rollout_worker = LazyModule("areal_actors.rollout.rollout_worker")
    sourced_rollout_worker = LazyModule("areal_actors.rollout.sourced_rollout_worker")
    runners = LazyModule("areal_actors.rollout.runners")
    tokenizer = LazyModule("areal_actors.tokenization.tokenizer")


def _checkpointer(context: BuildContext) -> Actor:
    recipe = context.recipe
    return Checkpointer(
        recipe.checkpoint,
        folder=context.folder.checkpoints,
        steps=recipe.steps,
        evaluated_every=recipe.evaluation.every_steps,
        synced=(context.folder.path,),
    )


def _session_manager(context: BuildContext) -> Actor:
    """Returns the session manager, with capacity for external agents in an online or served run only.

    The gate grants it in an online run; it is fixed when a model is only served. That of a policy has the sessions of
    the run whose agents call it.
    """
    recipe, group_size = context.recipe, context.recipe.algorithm.group_size
    share = GatewayShare(number=int(context.instance.rpartition("-")[2]), count=recipe.actors.session_manager.count)
    locate_model, images = gateway_files(context.folder, context.process)
    make: Callable[..., Actor] = session_manager.SessionManager
    slots = recipe.concurrent_groups() * group_size if recipe.is_served() else 0
    options: dict[str, Any] = {
        "capacity": ExternalCapacity(group_size if recipe.is_served() or recipe.is_online() else 0, slots=slots),
        "acceptance": acceptance_of(recipe.task) if recipe.is_online() else None,
    }
    if recipe.policy is not None or recipe.policies:
        make, options = policy_sessions.manager_of_policies(recipe, context.folder, options)
    elif recipe.takes_feedback():
        make, options = feedback_sessions.manager_with_feedback(recipe, context.folder, options)
    return make(
        recipe.gateway.with_number(share.number),
        tokenizer.ChatTokenizer.load,
        secret=context.folder.secret(),
        max_model_len=recipe.generation.max_model_len,
        concurrency=recipe.actors.session_manager.concurrency,
        sampling=recipe.sampling,
        seed=recipe.seed,
        run_folder=context.folder.path,
        records_routes=recipe.trainer.routing_replay != "off" and not recipe.is_served(),
        share=share,
        locate_model=locate_model,
        images=images,
        conversations=recipe.log.conversations,
        **options,
    )


def _rollout_worker(context: BuildContext) -> Actor:
    if context.recipe.task.mix:
        workers = build_by_source(context, _rollout_worker)
        return sourced_rollout_worker.SourcedRolloutWorker(cast("Mapping[str, rollout_worker.RolloutWorker]", workers))
    recipe, task = context.recipe, context.recipe.task
    apart = task.has_processes() and recipe.evaluation.tasks > 0
    processes = task.processes + 1 if apart else task.processes
    return rollout_worker.RolloutWorker(
        runners.runner_of(
            msgspec.structs.replace(task, processes=processes), Path.cwd(), group_size=recipe.algorithm.group_size
        ),
        concurrency=runners.episodes_at_once(task, recipe.actors.rollout_worker.concurrency),
        timeout_seconds=task.timeout_seconds,
        rule=bounded_rule.bounded_rule(task.reward),
        acceptance=acceptance_of(task),
        retry_rejected=task.retry_rejected,
        overflow_reward=task.overflow_reward,
        plays_environment=recipe.plays_environment(),
        evaluations=processes - task.processes,
        gateway_seconds=(
            recipe.watchdog.max_stall_seconds if recipe.gateway.joined else rollout_worker.GATEWAY_PATIENCE_SECONDS
        ),
    )


def build_by_source(context: BuildContext, build: Builder, *, scored: bool = False) -> dict[str, Actor]:
    """Returns the actor of each source of a mixture, built as for a run of that source alone.

    With `scored` without sources whose environment scores.
    """
    return {
        name: build(msgspec.structs.replace(context, recipe=recipe))
        for name, recipe in source_recipes(context.recipe).items()
        if not (scored and recipe.plays_environment())
    }


def reward_worker_by_source(context: BuildContext, build: Builder) -> Actor:
    """Returns the reward worker of a mixture, with one of each source."""
    workers = cast("Mapping[str, reward_worker.RewardWorker]", build_by_source(context, build, scored=True))
    return sourced_reward_worker.SourcedRewardWorker(workers)


def _reward_worker(context: BuildContext) -> Actor:
    if context.recipe.task.mix:
        return reward_worker_by_source(context, _reward_worker)
    task = context.recipe.task
    seconds, options = task.reward_timeout_seconds, task.reward_options
    pool = reward_pool.RewardPool(task.reward, REWARD_PROCESSES, seconds, options=options, cached=task.reward_cache)
    asks_engines = judge_settings.asks_engines(task.reward, options)
    worker = reward_worker.JudgingRewardWorker if asks_engines else reward_worker.RewardWorker
    return worker(
        pool,
        concurrency=context.recipe.actors.reward_worker.concurrency,
        acceptance=acceptance_of(task),
        judges=_judges(context.recipe, context.folder),
    )


def _judges(recipe: Recipe, folder: RunFolder) -> panel.JudgePanel | None:
    """Returns the judges of a reward; None if it has none."""
    if not (judges := judge_settings.judges_of(recipe.task.reward, recipe.task.reward_options)):
        return None

    def model_of(judge: judge_settings.ModelJudge) -> judge_client.JudgeModel:
        if judge.url:
            return judge_client.UrlModel(judge)
        if judge.policy:
            place, seconds = folder.path / POLICIES, recipe.gateway.completion_seconds
            return policy_judge.PolicyModel(judge, recipe.policies[judge.policy], place, seconds)
        locate = partial(recipe_model.model_of, recipe)
        return engine_model.EngineModel(judge, locate, recipe.generation.max_model_len)

    return panel.JudgePanel(judges, seed=recipe.seed, group_size=recipe.algorithm.group_size, model_of=model_of)


def acceptance_of(task: TaskSettings) -> acceptance.Acceptance | None:
    """Returns the filter of scored episodes; None if all are accepted."""
    return (
        acceptance.Acceptance(task.should_accept, Path.cwd(), retry=task.retry_rejected) if task.should_accept else None
    )


def _inference_worker(context: BuildContext) -> Actor:
    recipe, run_folder = context.recipe, context.folder.path
    place = engine_place(recipe, context.folder, context.instance)
    locate, pull_images = pullers_of(context.folder, context.instance)
    make = named.engine_factory(recipe.engine_settings(), Path.cwd(), place)
    is_server = describe_engine(recipe.generation.engine).is_server
    return worker_class(recipe, context.instance)(
        (
            (lambda model: corruption.SpoilingEngine(make(model), run_folder, context.instance))
            if recipe.chaos.injects("bad_completion")
            else make
        ),
        name=context.instance,
        concurrency=recipe.actors.inference_worker.concurrency,
        load_seconds=recipe.watchdog.load_seconds,
        start_seconds=recipe.generation.server.start_seconds if is_server else 0.0,
        run_folder=run_folder,
        reports_load=place.watches_usage,
        locate=locate,
        pull_images=pull_images,
    )


REWARD_PROCESSES = 1
"""Processes per reward worker. A hung process is killed and replaced; raise the worker's count for slow reward
functions."""


CPU_ACTORS: Mapping[str, Builder] = {
    **FOLDS,
    "checkpointer": _checkpointer,
    "metrics": lambda context: Metrics(context.folder.metrics),
    "episode_log": lambda context: EpisodeLog(
        context.folder.episodes, tokenizer.ChatTokenizer.load, group_size=context.recipe.algorithm.group_size
    ),
    "session_manager": _session_manager,
    "rollout_worker": _rollout_worker,
    "reward_worker": _reward_worker,
    "inference_worker": _inference_worker,
}
"""Builders of actors that need no tensors: their processes never load torch."""
