"""Validates a well-formed recipe: settings must be consistent, and named files must exist.

All problems are reported, not just the first.
Cheap checks only: files are parsed but not run, and nothing is downloaded or imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from areal_actors.core.installed_parts import installed_parts
from areal_actors.core.model_config import context_of
from areal_actors.core.settings import CONCURRENT, COUNTED, SEVERAL
from areal_actors.core.values import HIGHEST_TEMPERATURE
from areal_actors.embedded.settings import CONTEXT as EMBEDDED_CONTEXT
from areal_actors.generation.abilities import ENGINE_ABILITIES, ROUTES, UNROUTED_REMEDY, WEIGHT_CHANNELS
from areal_actors.generation.settings import (
    ENGINES,
    SERVER_ENGINES,
    SLEEPING_ENGINES,
    TENSOR_ENGINES,
    VLLM_RANK,
    GenerationSettings,
    ServerSettings,
    is_here,
)
from areal_actors.recipe.agent_checks import agent_problems, dotted_parts
from areal_actors.recipe.autoscale_checks import autoscale_problems
from areal_actors.recipe.bus_checks import bus_problems
from areal_actors.recipe.chaos_checks import chaos_problems
from areal_actors.recipe.environment_checks import environment_problems, misplaced_problems
from areal_actors.recipe.errors import Problems, is_installed, nearest, toml_value
from areal_actors.recipe.example_checks import example_problems, length_problems, served_problems
from areal_actors.recipe.gateway_checks import gateway_problems
from areal_actors.recipe.host_checks import host_problems
from areal_actors.recipe.model_checks import is_local_model, model_problems
from areal_actors.recipe.part_checks import part_problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.reward_checks import reward_problems
from areal_actors.recipe.source import Key
from areal_actors.recipe.supervision import tree_problems
from areal_actors.recipe.track_checks import track_problems
from areal_actors.recipe.trainer_checks import trainer_problems
from areal_actors.rewards import MODEL
from areal_actors.tasks import huggingface as library
from areal_actors.tasks import sources
from areal_actors.training.algorithms.base import INITIAL
from areal_actors.training.algorithms.custom import CustomAlgorithm

DATASETS = ("arithmetic", sources.GSM8K)
EMBEDDED = "embedded"


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
    """Returns all problems that keep a recipe from running, or with `serving` from being served, in the order of the recipe."""
    examples = recipe.learns_from_examples() and not serving
    episodes = not recipe.learns_from_examples() and not serving
    return [
        RecipeProblem(*problem)
        for checked, sentences in (
            (recipe.model != EMBEDDED, model_problems(("model",), recipe.model, f'"{EMBEDDED}"')),
            (examples or (episodes and not recipe.is_online()), _dataset(recipe)),
            (episodes and not recipe.is_online(), _agent_and_reward(recipe)),
            (episodes and recipe.is_online(), _online(recipe)),
            (serving, served_problems(recipe)),
            (examples, example_problems(recipe)),
            (True, length_problems(recipe)),
            (True, gateway_problems(recipe)),
            (True, _engine(recipe)),
            (not examples, _lengths(recipe)),
            (episodes, _training(recipe)),
            (not serving, _best(recipe)),
            (not serving, _algorithm(recipe)),
            (not serving, _learning(recipe)),
            (True, chaos_problems(recipe)),
            (not serving, host_problems(recipe)),
            (not serving, track_problems(recipe.track)),
            (not serving, autoscale_problems(recipe)),
            (True, _amounts(recipe)),
            (True, _placement(recipe, serving=serving)),
            (True, tree_problems(recipe.supervisors, recipe.actors)),
        )
        if checked
        for problem in sentences
    ]


def is_local(name: str) -> bool:
    """Returns True if a model is named by a path rather than by a hub id."""
    return is_local_model(name)


def _algorithm(recipe: Recipe) -> Problems:
    """Check the algorithm's own table, and the models that it needs beside the trained one."""
    problems_of = list(recipe.algorithm.problems())
    yield from ((("algorithm", *key), complaint) for key, complaint in problems_of)
    is_custom = isinstance(recipe.algorithm, CustomAlgorithm)
    if is_custom and problems_of:
        return
    algorithm = recipe.algorithm.resolve()
    models: dict[Key, str] = {
        (role,) if role in algorithm.__struct_fields__ else ("kl", role): model
        for role, model in algorithm.models.items()
    }
    if algorithm.critic is not None:
        models["critic", "model"] = algorithm.critic.model
    for key, model in models.items():
        if model and model != INITIAL:
            yield from model_problems(("algorithm", *(("options",) if is_custom else ()), *key), model, f'"{INITIAL}"')


def _dataset(recipe: Recipe) -> Problems:
    dataset, held_out = recipe.task.dataset, recipe.task.held_out
    key = ("task", "dataset")
    if recipe.plays_environment():
        pass  # environment_checks.py
    elif not dataset:
        yield (
            key,
            'found none; write `dataset = …` under `[task]`, or `agent = "online"` for agents that bring their tasks',
        )
    elif dataset != "arithmetic":
        yield from _source(key, dataset, f"; {nearest(dataset, DATASETS)}, or the path of a .jsonl file")
    if isinstance(held_out, str) and not recipe.plays_environment():
        yield from _source(
            ("task", "held_out"), held_out, "; write how many tasks to hold out, or the path of a .jsonl file"
        )
    elif isinstance(held_out, int) and held_out < recipe.evaluation.tasks:
        fault = f"found {recipe.evaluation.tasks}, but task.held_out keeps only {held_out}"
        yield ("evaluation", "tasks"), f"{fault}; write at most {held_out}, or hold out more"


def _source(key: Key, spec: str, remedy: str) -> Problems:
    fault = f"found {toml_value(spec)}"
    if sources.is_in_code(spec):
        yield from _check_name_in_file(key, spec, "function", "tasks.py:rows")
        return
    missing = sources.is_on_disk(spec) and not sources.has_files(spec)
    if Path(spec).is_file() if missing else not sources.is_on_disk(spec) and not sources.is_on_hub(spec):
        yield key, f"{fault}{remedy}"
    elif missing:
        yield key, f"{fault}, but there is no such file (looked beside the recipe and in {Path.cwd()}){remedy}"
    elif sources.needs_library(spec) and not is_installed("datasets"):
        yield (
            key,
            (
                f"{fault}, but the `datasets` library is not installed; {library.NEEDED}, or name a local .jsonl file,"
                ' or "arithmetic"'
            ),
        )


def _agent_and_reward(recipe: Recipe) -> Problems:
    agent, accept, reward = recipe.task.agent, recipe.task.should_accept, recipe.task.reward
    if accept and not dotted_parts(accept):
        yield from _check_name_in_file(("task", "should_accept"), accept, "function", "accept.py:should_accept")
    if recipe.plays_environment():
        yield from environment_problems(recipe)
        return
    yield from misplaced_problems(recipe)
    if agent and not recipe.task.is_script() and not dotted_parts(agent):
        yield from _check_name_in_file(("task", "agent"), agent, "class", "agents/gsm8k.py:Gsm8kAgent")
    yield from agent_problems(recipe)
    if ":" in reward and not reward.startswith(MODEL):
        yield from _check_name_in_file(("task", "reward"), reward, "function", "rewards.py:reward")
    yield from reward_problems(recipe)


def _online(recipe: Recipe) -> Problems:
    """Reject settings that an online run does not use, instead of ignoring them."""
    for name in ("environment", "dataset", "reward", "should_accept"):
        if value := getattr(recipe.task, name):
            yield (
                ("task", name),
                f"found {toml_value(value)}, but external agents bring their own tasks and rewards; leave it out",
            )
    if tasks := recipe.evaluation.tasks:
        yield ("evaluation", "tasks"), f"found {tasks}, but an online run has no held-out tasks; write `tasks = 0`"


def _engine(recipe: Recipe) -> Problems:
    key, engine, scripted = ("generation", "engine"), recipe.generation.engine, recipe.generation.scripted
    installed = installed_parts("engine")
    if engine not in ENGINES and engine in installed:
        yield from part_problems(installed[engine], recipe, recipe.generation.options, key, ("generation", "options"))
    elif engine not in ENGINES and ":" not in engine:
        yield key, f"found {toml_value(engine)}; {nearest(engine, (*ENGINES, *installed))}, or write `path.py:Class`"
    elif engine not in ENGINES:
        yield from _check_name_in_file(key, engine, "class", "engines/mine.py:MyEngine")
    if engine in SERVER_ENGINES:
        yield from _servers(recipe)
    elif engine in ENGINES:
        yield from _without_servers(recipe.generation)
    if recipe.generation.sleep == "on":
        yield from _sleep(recipe)
    if scripted.longest < (least := scripted.shortest):
        fault = f"found {scripted.longest}, but generation.scripted.shortest is {least}"
        yield ("generation", "scripted", "longest"), f"{fault}; write at least {least}"


def _sleep(recipe: Recipe) -> Problems:
    """Yields why engines cannot release their memory during a step."""
    key, engine, stale = ("generation", "sleep"), recipe.generation.engine, recipe.staleness_gate.max_staleness
    if stale:
        fault = f'found "on", but with staleness_gate.max_staleness = {stale} completions are sampled during every step'
        yield key, f'{fault}; write staleness_gate.max_staleness = 0, or "off"'
    if engine in ENGINES and engine not in SLEEPING_ENGINES:
        yield key, f'found "on", but generation.engine = {toml_value(engine)} holds no memory to release; write "off"'
    if recipe.generation.server.urls:
        yield (
            key,
            (
                'found "on", but servers that were started elsewhere keep their memory; write "off", or leave'
                " generation.server.urls out"
            ),
        )


def _servers(recipe: Recipe) -> Problems:
    key, urls, workers = (
        ("generation", "server", "urls"),
        recipe.generation.server.urls,
        recipe.actors.inference_worker.count,
    )
    for url in urls:
        if not url.startswith(("http://", "https://")):
            yield key, f"found {toml_value(url)}; write `http://host:port`"
    if urls and len(urls) != workers:
        fault = (
            f"found {len(urls)} servers for actors.inference_worker.count = {workers}, and each worker has one of"
            " its own"
        )
        yield key, f"{fault}; write {workers}, or actors.inference_worker.count = {len(urls)}"
    lora = recipe.trainer.lora
    if (
        recipe.generation.engine == "vllm"
        and lora is not None
        and lora.published == "adapter"
        and lora.rank > VLLM_RANK
    ):
        fault = f"found {lora.rank}, but vLLM takes adapters up to rank {VLLM_RANK}"
        yield ("trainer", "lora", "rank"), f'{fault}; write a smaller one, or trainer.lora.published = "merged"'
    yield from _weights(recipe)


def _weights(recipe: Recipe) -> Problems:
    """Check the way of new weights to the servers."""
    key, server, engine = ("generation", "server", "weights"), recipe.generation.server, recipe.generation.engine
    fault = f"found {toml_value(server.weights)}, but"
    if server.weights not in (able := WEIGHT_CHANNELS[engine]):
        yield key, f"{fault} {engine} takes {', '.join(able)}; write one of them"
    if server.weights == "tensors" and (far := [url for url in server.urls if not is_here(url)]):
        yield (
            key,
            (
                f'{fault} {far[0]} is on another host, which does not have this one\'s memory; write "broadcast" or'
                ' "delta"'
            ),
        )
    lora = recipe.trainer.lora
    if server.weights != "folder" and lora is not None and lora.published == "adapter":
        yield (
            key,
            (
                f'{fault} adapters are loaded by name from their folder; write "folder", or trainer.lora.published ='
                ' "merged"'
            ),
        )


def _without_servers(generation: GenerationSettings) -> Problems:
    for name, stated in (("server", generation.server != ServerSettings()), ("options", bool(generation.options))):
        if stated:
            fault = f"found a table, but generation.engine = {toml_value(generation.engine)} has no use for it"
            yield ("generation", name), f"{fault}; leave it out"
    if (width := generation.tensor_parallel) > 1 and generation.engine in TENSOR_ENGINES:
        fault = f"found {width}, but generation.engine = {toml_value(generation.engine)} uses one device"
        yield ("generation", "tensor_parallel"), f"{fault}; write 1, or an engine that is a server"


def _check_name_in_file(key: Key, spec: str, what: str, example: str) -> Problems:
    """Check that `path.py:Name` names a class or function at the top of that file."""
    file, _, name = spec.rpartition(":")
    path, fault = Path(file).expanduser(), f"found {toml_value(spec)}"
    if not name.isidentifier() or path.suffix != ".py":
        yield key, f"{fault}; write the {what} as `path.py:Name`, as in `{example}`"
        return
    try:
        body = ast.parse(path.read_text(encoding="utf-8"), filename=file).body
    except OSError:
        yield (
            key,
            (
                f"{fault}, but there is no file {path} to read (looked beside the recipe and in {Path.cwd()}); fix the"
                " path"
            ),
        )
        return
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        yield key, f"{fault}, but {path}{line} is not valid Python: {error.args[0]}; fix that file"
        return
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    wanted = functions if what == "function" else functions | ast.ClassDef if key == ("task", "agent") else ast.ClassDef
    defined = [node.name for node in body if isinstance(node, wanted)]
    if name not in (*defined, *_assigned_names(body)):
        hint = (
            nearest(name, defined)
            if defined
            else f"it defines none; write `{'class' if what == 'class' else 'def'} {name}` there"
        )
        yield key, f"{fault}, but {path} has no {what} `{name}`; {hint}"


def _assigned_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yields names that a file imports or assigns at its top; their types are known only at run time."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


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
    keeps, size = recipe.batcher.filter, recipe.algorithm.group_size
    if recipe.batcher.dynamic_sampling and size < 2:
        fault = f"found true, but a group of {size} has no two rewards that differ"
        yield ("batcher", "dynamic_sampling"), f"{fault}; write algorithm.group_size = 2 or more"
    if keeps and not dotted_parts(keeps):
        yield from _check_name_in_file(("batcher", "filter"), keeps, "function", "filters.py:keep")
    batch, concurrent = recipe.trainer.batch_size, recipe.concurrent_groups()
    if concurrent < batch:
        fault = f"found {concurrent} groups at once, but one batch (trainer.batch_size) takes {batch}"
        yield ("staleness_gate", "max_concurrent"), f"{fault}; write at least {batch}"


def _learning(recipe: Recipe) -> Problems:
    """Check for optimizer settings without effect, for an unsupported adapter, and for an impossible layout of ranks."""
    optimizer, table = recipe.trainer.optimizer, ("trainer", "optimizer")
    if (momentum := optimizer.momentum) and optimizer.name != "sgd":
        fault = f"found {momentum:g}, which {optimizer.name} does not use"
        yield (*table, "momentum"), f'{fault}; leave it out, or write name = "sgd"'
    if (ratio := optimizer.minimum_ratio) and optimizer.schedule == "constant":
        fault = f'found {ratio:g}, but schedule = "constant" never falls'
        yield (*table, "minimum_ratio"), f'{fault}; leave it out, or write "linear" or "cosine"'
    if recipe.trainer.lora is not None and recipe.algorithm.head == "value":
        yield (
            ("trainer", "lora"),
            "found a table, but an adapter has no scalar head, which this algorithm trains; leave it out",
        )
    if recipe.trainer.routing_replay == "on" and ROUTES not in ENGINE_ABILITIES.get(
        engine := recipe.generation.engine, {ROUTES}
    ):
        yield (
            ("trainer", "routing_replay"),
            f'found "on", but the engine {engine} reports no experts; {UNROUTED_REMEDY}',
        )
    yield from trainer_problems(recipe.trainer)


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


def _amounts(recipe: Recipe) -> Problems:
    if not 0 <= recipe.seed < 2**63:
        yield ("seed",), f"found {recipe.seed}; write a whole number from 0 to 2**63 - 1"
    yield from bus_problems(recipe)


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
