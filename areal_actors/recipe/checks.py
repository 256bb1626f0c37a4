"""Validates a well-formed recipe: settings must be consistent, and named files must exist.

Each part checks its own tables, see `part_checks.py`; here is what crosses parts. All problems are reported, not just
the first. Cheap checks only: files are parsed but not run, and nothing is downloaded or imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from areal_actors.core.layers import Key
from areal_actors.core.mix_settings import OF_A_SOURCE
from areal_actors.core.model_config import context_of
from areal_actors.core.model_names import model_problems
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.values import HIGHEST_TEMPERATURE
from areal_actors.embedded.settings import CONTEXT as EMBEDDED_CONTEXT
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.generation.abilities import ROUTES
from areal_actors.generation.engines import describe_engine, no_routes_complaint
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.part_checks import facts_of, part_checks
from areal_actors.recipe.policies import policy_recipe
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import CONCURRENT, COUNTED, SEVERAL
from areal_actors.recipe.supervision import tree_problems
from areal_actors.rewards import MODEL


class RecipeProblem(NamedTuple):
    """An invalid setting of a recipe."""

    key: Key
    complaint: str
    """The value found and the remedy."""

    def sentence(self, place: str) -> str:
        """Returns the whole message, with the file and line."""
        return (
            f"{place}: `{'.'.join(self.key)}`: {self.complaint}"
            if place
            else f"`{'.'.join(self.key)}`: {self.complaint}"
        )


def problems(recipe: Recipe, *, serving: bool = False) -> list[RecipeProblem]:
    """Returns what keeps a recipe from running, or with `serving` from being served, in the order of the recipe."""
    yielded = list(_problems_of_mixture(recipe, serving=serving) if recipe.task.mix else _find(recipe, serving=serving))
    yielded += _problems_of_policies(recipe, yielded)
    return sorted((RecipeProblem(*problem) for problem in yielded), key=lambda problem: _place(recipe, problem.key))


def _find(recipe: Recipe, *, serving: bool) -> Problems:
    facts = facts_of(recipe, serving=serving)
    yield from _crossing(recipe, facts)
    for check in part_checks():
        yield from check.problems(recipe, facts)


def _problems_of_mixture(recipe: Recipe, *, serving: bool) -> Problems:
    """Yields the problems of a recipe with a mixture, and those of the tasks of each source as if it were the only one.

    What `[task]` leaves to its sources is no problem of the recipe.
    """
    whole = [problem for problem in _find(recipe, serving=serving) if not _is_of_sources(problem[0])]
    yield from whole
    try:
        sources = source_recipes(recipe)
    except msgspec.ValidationError:
        return  # of sampling settings, which their check names
    for number, (name, source) in enumerate(sources.items()):
        for key, complaint in _find(source, serving=serving):
            if key[0] in ("task", "sampling") and (key, complaint) not in whole:
                place = key if key[0] == "sampling" else key[1:]
                yield ("task", "mix", str(number), *place), f"of source {name}: {complaint}"
    held_out = [source.task.held_out for source in sources.values()]
    counts = [count for count in held_out if isinstance(count, int)]
    if len(counts) == len(held_out) and sum(counts) < recipe.evaluation.tasks:
        fault = f"found {recipe.evaluation.tasks}, but the sources of task.mix keep only {sum(counts)} together"
        yield ("evaluation", "tasks"), f"{fault}; write at most {sum(counts)}, or hold out more"


def _problems_of_policies(recipe: Recipe, own: list[tuple[Key, str]]) -> Problems:
    """Yields the problems of the recipes of its policies, but not its own."""
    for name, settings in recipe.policies.items():
        if not settings.has_processes():
            continue
        try:
            changed = policy_recipe(recipe, name)
        except msgspec.ValidationError as error:
            yield ("policies", name, "settings"), f"found a setting that the recipe refuses: {error}; correct it"
            continue
        schedule = changed.trainer.optimizer.schedule
        if settings.kind == "trained" and schedule != "constant":
            place: Key = ("policies", name, "settings", "trainer", "optimizer", "schedule")
            fault = f"found {toml_value(schedule)}, but the number of a policy's steps is not known before"
            yield place, f'{fault}; write "constant" here, for this policy'
        for key, complaint in _find(changed, serving=changed.is_served()):
            if (key, complaint) not in own:
                yield ("policies", name, "settings", *key), complaint


def _is_of_sources(key: Key) -> bool:
    """Returns True for a problem that each source is asked for."""
    of_mixture = key[1:2] in {("mix",), ("curriculum",)} or key[1:2] in {(name,) for name in OF_A_SOURCE}
    return key == ("evaluation", "tasks") or (key[0] == "task" and not of_mixture)


def _place(recipe: Recipe, key: Key) -> list[int]:
    """Returns the place of a setting in the recipe: the number of its field in each table on the way to it."""
    numbers, table = list[int](), recipe
    for name in key:
        fields: tuple[str, ...] = getattr(table, "__struct_fields__", ())
        if name not in fields:
            break
        numbers.append(fields.index(name))
        table = getattr(table, name)
    return numbers


def _crossing(recipe: Recipe, facts: RunFacts) -> Problems:
    """Yields the problems that are of no part alone."""
    if not 0 <= recipe.seed < 2**63:
        yield ("seed",), f"found {recipe.seed}; write a whole number from 0 to 2**63 - 1"
    if recipe.model != EMBEDDED:
        yield from model_problems(("model",), recipe.model, f'"{EMBEDDED}"')
    yield from _engine_problems(recipe)
    if not facts.trains_examples():
        yield from _lengths(recipe)
    if facts.has_episodes():
        yield from _training(recipe)
        yield from _reward_model_problems(recipe, facts)
    if not facts.is_serving:
        yield from _best(recipe)
        engine = recipe.generation.engine
        if recipe.trainer.routing_replay == "on" and ROUTES not in describe_engine(engine).abilities:
            yield ("trainer", "routing_replay"), f'found "on", but {no_routes_complaint(engine)}'
    yield from _placement(recipe, serving=facts.is_serving)
    yield from tree_problems(recipe.supervisors, recipe.actors)


def _engine_problems(recipe: Recipe) -> Problems:
    """Yields what the trainer's settings demand of the engine that it cannot do."""
    engine, stale = describe_engine(recipe.generation.engine), recipe.staleness_gate.max_staleness
    if recipe.generation.sleep == "on" and stale:
        fault = f'found "on", but with staleness_gate.max_staleness = {stale} completions are sampled during every step'
        yield ("generation", "sleep"), f'{fault}; write staleness_gate.max_staleness = 0, or "off"'
    lora, channel = recipe.trainer.lora, recipe.generation.server.weights
    if lora is None or lora.published != "adapter":
        return
    if engine.largest_adapter_rank is not None and lora.rank > engine.largest_adapter_rank:
        fault = f"found {lora.rank}, but {engine.title} takes adapters up to rank {engine.largest_adapter_rank}"
        yield ("trainer", "lora", "rank"), f'{fault}; write a smaller one, or trainer.lora.published = "merged"'
    if engine.is_server and channel != "folder":
        fault = f"found {toml_value(channel)}, but adapters are loaded by name from their folder"
        remedy = 'write "folder", or trainer.lora.published = "merged"'
        yield ("generation", "server", "weights"), f"{fault}; {remedy}"
    if (library := lora.quantize_base) != "off" and recipe.generation.server.urls:
        fault = f'found "{library}", but servers that were started elsewhere have the base that is not rounded'
        yield ("trainer", "lora", "quantize_base"), f'{fault}; write trainer.lora.published = "merged"'


def _reward_model_problems(recipe: Recipe, facts: RunFacts) -> Problems:
    """Check that a local reward model reads whole episodes."""
    if facts.is_online or facts.plays_environment or not recipe.task.reward.startswith(MODEL):
        return
    folder, context = Path(recipe.task.reward.removeprefix(MODEL)).expanduser(), recipe.generation.max_model_len
    longest = context_of(folder) if (folder / "config.json").is_file() else None
    if longest and context > longest:
        reads = f"found {context}, but the reward model reads at most {longest} tokens"
        yield ("generation", "max_model_len"), f"{reads}; write at most {longest}"


def _lengths(recipe: Recipe) -> Problems:
    sampling, context = recipe.sampling, recipe.generation.max_model_len
    if sampling.max_tokens >= context:
        fault = (
            f"found {sampling.max_tokens}, but generation.max_model_len is {context} for prompt and completion together"
        )
        yield ("sampling", "max_tokens"), f"{fault}; write less than {context}, or raise generation.max_model_len"
    folder = Path(recipe.model).expanduser()
    longest = (
        EMBEDDED_CONTEXT
        if recipe.model == EMBEDDED
        else context_of(folder)
        if (folder / "config.json").is_file()
        else None
    )
    if longest and context > longest:
        fault = (
            f"found {context} (unstated, it is at least twice sampling.max_tokens), but the model has {longest}"
            " positions"
        )
        yield ("generation", "max_model_len"), f"{fault}; write at most {longest}, and a lower sampling.max_tokens"
    if sampling.temperature > HIGHEST_TEMPERATURE:
        fault = f"found {sampling.temperature:g}, at which every token is almost as likely as any other"
        yield ("sampling", "temperature"), f"{fault}; write at most {HIGHEST_TEMPERATURE:g}"
    if not 0 < sampling.top_p <= 1:
        yield ("sampling", "top_p"), f"found {sampling.top_p}; write a share above 0 and at most 1"


def _training(recipe: Recipe) -> Problems:
    context, microbatch = recipe.generation.max_model_len, recipe.trainer.microbatch_tokens
    if recipe.sampling.temperature <= 0:
        yield (
            ("sampling", "temperature"),
            "found 0, but greedy answers of one task are all the same; write a number above 0",
        )
    if microbatch < context:
        fault = f"found {microbatch}, but one sequence may have generation.max_model_len = {context} tokens"
        yield ("trainer", "microbatch_tokens"), f"{fault}; write at least {context}"
    batch, concurrent = recipe.trainer.batch_size, recipe.concurrent_groups()
    if concurrent < batch:
        fault = f"found {concurrent} groups at once, but one batch (trainer.batch_size) takes {batch}"
        yield ("staleness_gate", "max_concurrent"), f"{fault}; write at least {batch}"


def _best(recipe: Recipe) -> Problems:
    """Check that an evaluation can select the best checkpoint."""
    key, by, evaluation = ("checkpoint", "keep_best"), recipe.checkpoint.keep_best, recipe.evaluation
    fault = f"found {toml_value(by)}, but"
    if by and (by == "loss") != recipe.learns_from_examples():
        evaluated, modes = (
            ("a loss", '"loss"') if recipe.learns_from_examples() else ("answers", '"greedy" or "sampled"')
        )
        yield key, f"{fault} this run evaluates {evaluated}; write {modes}"
    elif by and not evaluation.tasks:
        yield key, f"{fault} nothing is evaluated; write evaluation.tasks above 0, or leave keep_best out"
    elif by and by != "loss" and evaluation.every_steps and evaluation.periodic_mode != by:
        yield key, f"{fault} evaluation.periodic_mode is {toml_value(evaluation.periodic_mode)}; write the same in both"


def _placement(recipe: Recipe, *, serving: bool) -> Problems:
    kind = "one that learns from examples" if recipe.learns_from_examples() else "one that runs episodes"
    run = "an online run" if recipe.is_online() and not recipe.learns_from_examples() else kind
    placements = msgspec.structs.asdict(recipe.actors)
    for name, placement in placements.items():
        count, concurrency, process = placement.count, placement.concurrency, placement.process
        key, absent = ("actors", name), name in recipe.absent()
        if count and absent and not serving:
            yield (*key, "count"), f"found {count}, but {run} has no {name}; leave it out"
        if count == 0 and not (absent or serving or (recipe.bus.host and name in SEVERAL)):
            yield (*key, "count"), f"found 0, but a run needs its {name}; write `count = 1`"
        if count > 1 and name not in COUNTED:
            yield (*key, "count"), f"found {count}, but a run has one {name}; write `count = 1`"
        if concurrency > 1 and name not in CONCURRENT:
            yield (
                (*key, "concurrency"),
                f"found {concurrency}, but {name} handles one message at a time; write `concurrency = 1`",
            )
        sharing = [other for other, its in placements.items() if its.process == process and other != name]
        if count > 1 and sharing:
            fault = f"found {toml_value(process)}, shared with {', '.join(sharing)}, for {count} of them"
            yield (*key, "process"), f"{fault}; write `process = {toml_value(name)}`"
