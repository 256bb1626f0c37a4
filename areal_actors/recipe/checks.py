"""Validates a well-formed recipe: settings must be consistent, and named files must exist. All problems are reported, not just the first.

Cheap checks only: files are parsed but not run, and nothing is downloaded or imported.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import msgspec

from areal_actors.core.settings import CONCURRENT, SEVERAL
from areal_actors.gateway.sessions.keys import weakness
from areal_actors.generation.settings import ENGINES
from areal_actors.recipe.agent_checks import agent_problems, dotted_parts
from areal_actors.recipe.chaos_checks import chaos_problems
from areal_actors.recipe.complaints import nearest, toml_value
from areal_actors.recipe.example_checks import example_problems, length_problems, served_problems
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.reward_checks import reward_problems
from areal_actors.recipe.source import Key
from areal_actors.recipe.supervision import tree_problems
from areal_actors.rewards import MODEL
from areal_actors.rollout.runners import is_script
from areal_actors.tasks import huggingface as library
from areal_actors.tasks import sources
from areal_actors.training.algorithms.base import INITIAL
from areal_actors.training.distributed.layout import layout_problem

DATASETS = ("arithmetic", sources.GSM8K)
EMBEDDED = "embedded"
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 60.0
"""Bounds of a work item's lease in seconds; a lease as long as an attempt at an episode is also valid."""


class RecipeProblem(msgspec.Struct, frozen=True):
    """An invalid setting of a recipe."""

    key: Key
    complaint: str
    """The value found and the remedy."""

    def sentence(self, place: str) -> str:
        """Returns the whole message, with the file and line."""
        return f"{place}: `{'.'.join(self.key)}`: {self.complaint}" if place else f"`{'.'.join(self.key)}`: {self.complaint}"


def problems(recipe: Recipe, *, serving: bool = False) -> list[RecipeProblem]:
    """Returns all problems that keep a recipe from running, or with `serving` from being served, in the order of the recipe."""
    examples = recipe.learns_from_examples()
    own_agent = not recipe.is_online() and not serving and not examples
    of_examples = served_problems(recipe) if serving else example_problems(recipe) if examples else ()
    return [
        *_model(recipe),
        *(_dataset(recipe) if own_agent or (examples and not serving) else ()),
        *(_agent_and_reward(recipe) if own_agent else ()),
        *(_online(recipe) if recipe.is_online() and not serving and not examples else ()),
        *(RecipeProblem(key, complaint) for key, complaint in (*of_examples, *length_problems(recipe))),
        *_gateway(recipe),
        *_engine(recipe),
        *(() if examples and not serving else _lengths(recipe)),
        *(() if serving or examples else _training(recipe)),
        *(() if serving else _best(recipe)),
        *(() if serving else _algorithm(recipe)),
        *(() if serving else _learning(recipe)),
        *(() if serving else _ranks(recipe)),
        *(RecipeProblem(key, complaint) for key, complaint in chaos_problems(recipe)),
        *_amounts(recipe),
        *_placement(recipe, serving=serving),
        *(RecipeProblem(("supervisors", *key), complaint) for key, complaint in tree_problems(recipe.supervisors, recipe.actors)),
    ]


def is_local(name: str) -> bool:
    """Returns True if a model is named by a folder rather than by a hub id."""
    return name.startswith(("/", "./", "../", "~", "runs/")) or Path(name).is_dir() or name.count("/") > 1


def _model(recipe: Recipe) -> Iterator[RecipeProblem]:
    if recipe.model != EMBEDDED:
        yield from _hugging_face(("model",), recipe.model, f'"{EMBEDDED}"')


def _hugging_face(key: Key, model: str, or_else: str) -> Iterator[RecipeProblem]:
    """Check a model named by its hub id or its folder."""
    if is_local(model):
        if not (folder := Path(model).expanduser()).is_dir():
            remedy = f"name a checkpoint (runs/NAME/checkpoints/step-N), a hub id, or {or_else}"
            yield RecipeProblem(key, f"found {toml_value(model)}, but there is no such folder (looked in {Path.cwd()}); {remedy}")
        elif not (folder / "config.json").is_file():
            yield RecipeProblem(key, f"found {toml_value(model)}, but no config.json in that folder; name a Hugging Face model folder")
    elif model.count("/") != 1 or not all(model.split("/")):
        yield RecipeProblem(
            key, f'found {toml_value(model)}; write {or_else}, a hub id such as "Qwen/Qwen2.5-1.5B-Instruct", or an existing folder'
        )
    elif not _installed("huggingface_hub"):
        yield RecipeProblem(
            key,
            f"found {toml_value(model)}, but huggingface_hub is not installed; "
            f"pip install huggingface_hub, or write a local folder or {or_else}",
        )


def _algorithm(recipe: Recipe) -> Iterator[RecipeProblem]:
    """Check the algorithm's own table, and the models that it needs beside the trained one."""
    algorithm = recipe.algorithm
    yield from (RecipeProblem(("algorithm", *key), complaint) for key, complaint in algorithm.problems())
    for role, model in algorithm.models.items():
        if model and model != INITIAL:
            table = () if role in algorithm.__struct_fields__ else ("kl",)
            yield from _hugging_face(("algorithm", *table, role), model, f'"{INITIAL}"')
    if algorithm.critic is not None and algorithm.critic.model != INITIAL:
        yield from _hugging_face(("algorithm", "critic", "model"), algorithm.critic.model, f'"{INITIAL}"')


def _dataset(recipe: Recipe) -> Iterator[RecipeProblem]:
    dataset, held_out = recipe.task.dataset, recipe.task.held_out
    key = ("task", "dataset")
    if not dataset:
        yield RecipeProblem(key, 'found none; write `dataset = …` under `[task]`, or `agent = "online"` for agents that bring their tasks')
    elif dataset != "arithmetic":
        yield from _source(key, dataset, f"; {nearest(dataset, DATASETS)}, or the path of a .jsonl file")
    if isinstance(held_out, str):
        yield from _source(("task", "held_out"), held_out, "; write how many tasks to hold out, or the path of a .jsonl file")
    elif held_out < recipe.evaluation.tasks:
        yield RecipeProblem(
            ("evaluation", "tasks"),
            f"found {recipe.evaluation.tasks}, but task.held_out keeps only {held_out}; write at most {held_out}, or hold out more",
        )


def _source(key: Key, spec: str, remedy: str) -> Iterator[RecipeProblem]:
    missing = sources.is_on_disk(spec) and not sources.has_files(spec)
    if Path(spec).is_file() if missing else not sources.is_on_disk(spec) and not sources.is_on_hub(spec):
        yield RecipeProblem(key, f"found {toml_value(spec)}{remedy}")
    elif missing:
        yield RecipeProblem(key, f"found {toml_value(spec)}, but there is no such file (looked in {Path.cwd()}){remedy}")
    elif sources.needs_library(spec) and not _installed("datasets"):
        yield RecipeProblem(
            key,
            f"found {toml_value(spec)}, but the `datasets` library is not installed; {library.NEEDED}, "
            'or name a local .jsonl file, or "arithmetic"',
        )


def _agent_and_reward(recipe: Recipe) -> Iterator[RecipeProblem]:
    agent, accept, reward = recipe.task.agent, recipe.task.should_accept, recipe.task.reward
    if agent and not is_script(agent) and not dotted_parts(agent):
        yield from _named_in_file(("task", "agent"), agent, "class", "agents/gsm8k.py:Gsm8kAgent")
    yield from (RecipeProblem(key, complaint) for key, complaint in agent_problems(recipe))
    if accept and not dotted_parts(accept):
        yield from _named_in_file(("task", "should_accept"), accept, "function", "accept.py:should_accept")
    if ":" in reward and not reward.startswith(MODEL):
        yield from _named_in_file(("task", "reward"), reward, "function", "rewards.py:reward")
    yield from (RecipeProblem(key, complaint) for key, complaint in reward_problems(recipe))


def _online(recipe: Recipe) -> Iterator[RecipeProblem]:
    """Reject settings that an online run does not use, instead of ignoring them."""
    for name in ("dataset", "reward", "should_accept"):
        if found := getattr(recipe.task, name):
            yield RecipeProblem(
                ("task", name), f"found {toml_value(found)}, but external agents bring their own tasks and rewards; leave it out"
            )
    if recipe.evaluation.tasks:
        yield RecipeProblem(
            ("evaluation", "tasks"), f"found {recipe.evaluation.tasks}, but an online run has no held-out tasks; write `tasks = 0`"
        )
    for name in sorted(recipe.absent()):
        if count := getattr(recipe.actors, name).count:
            yield RecipeProblem(("actors", name, "count"), f"found {count}, but an online run has no {name}; leave it out")


def _gateway(recipe: Recipe) -> Iterator[RecipeProblem]:
    if problem := weakness(recipe.gateway.admin_key, recipe.gateway.host):
        yield RecipeProblem(("gateway", "admin_key"), f"found {problem}; leave it out to generate one, or write a long random one")


def _engine(recipe: Recipe) -> Iterator[RecipeProblem]:
    key, engine, scripted = ("generation", "engine"), recipe.generation.engine, recipe.generation.scripted
    if engine not in ENGINES and ":" not in engine:
        yield RecipeProblem(key, f"found {toml_value(engine)}; {nearest(engine, ENGINES)}, or write `path.py:Class`")
    elif engine not in ENGINES:
        yield from _named_in_file(key, engine, "class", "engines/mine.py:MyEngine")
    if scripted.longest < scripted.shortest:
        yield RecipeProblem(
            ("generation", "scripted", "longest"),
            f"found {scripted.longest}, but generation.scripted.shortest is {scripted.shortest}; write at least {scripted.shortest}",
        )


def _named_in_file(key: Key, spec: str, what: str, example: str) -> Iterator[RecipeProblem]:
    """Check that `path.py:Name` names a class or function at the top of that file."""
    file, _, name = spec.rpartition(":")
    path = Path(file).expanduser()
    if not name.isidentifier() or path.suffix != ".py":
        yield RecipeProblem(key, f"found {toml_value(spec)}; write the {what} as `path.py:Name`, as in `{example}`")
        return
    try:
        body = ast.parse(path.read_text(encoding="utf-8"), filename=file).body
    except OSError:
        yield RecipeProblem(key, f"found {toml_value(spec)}, but there is no file {path} to read (looked in {Path.cwd()}); fix the path")
        return
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        yield RecipeProblem(key, f"found {toml_value(spec)}, but {path}{line} is not valid Python: {error.args[0]}; fix that file")
        return
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    wanted = functions if what == "function" else functions | ast.ClassDef if key == ("task", "agent") else ast.ClassDef
    defined = [node.name for node in body if isinstance(node, wanted)]
    if name not in (*defined, *_assigned(body)):
        known = nearest(name, defined) if defined else f"it defines none; write `{'class' if what == 'class' else 'def'} {name}` there"
        yield RecipeProblem(key, f"found {toml_value(spec)}, but {path} has no {what} `{name}`; {known}")


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yields names that a file imports or assigns at its top; their types are known only at run time."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _lengths(recipe: Recipe) -> Iterator[RecipeProblem]:
    sampling, context = recipe.sampling, recipe.generation.max_model_len
    if sampling.max_tokens >= context:
        yield RecipeProblem(
            ("sampling", "max_tokens"),
            f"found {sampling.max_tokens}, but generation.max_model_len is {context} for prompt and completion together; "
            f"write less than {context}, or raise generation.max_model_len",
        )
    if not 0 < sampling.top_p <= 1:
        yield RecipeProblem(("sampling", "top_p"), f"found {sampling.top_p}; write a share above 0 and at most 1")


def _training(recipe: Recipe) -> Iterator[RecipeProblem]:
    context = recipe.generation.max_model_len
    if recipe.sampling.temperature <= 0:
        yield RecipeProblem(("sampling", "temperature"), "found 0, but greedy answers of one task are all the same; write a number above 0")
    if recipe.trainer.microbatch_tokens < context:
        yield RecipeProblem(
            ("trainer", "microbatch_tokens"),
            f"found {recipe.trainer.microbatch_tokens}, but one sequence may have generation.max_model_len = {context} tokens; "
            f"write at least {context}",
        )
    yield from _filter(recipe)
    batch, concurrent = recipe.trainer.batch_size, recipe.staleness_gate.max_concurrent
    if concurrent < batch:
        yield RecipeProblem(
            ("staleness_gate", "max_concurrent"),
            f"found {concurrent} groups at once, but one batch (trainer.batch_size) takes {batch}; write at least {batch}",
        )


def _learning(recipe: Recipe) -> Iterator[RecipeProblem]:
    """Check for optimizer settings without effect, and for an unsupported adapter."""
    optimizer = recipe.trainer.optimizer
    if optimizer.momentum and optimizer.name != "sgd":
        yield RecipeProblem(
            ("trainer", "optimizer", "momentum"),
            f'found {optimizer.momentum:g}, which {optimizer.name} does not use; leave it out, or write name = "sgd"',
        )
    if optimizer.minimum_ratio and optimizer.schedule == "constant":
        yield RecipeProblem(
            ("trainer", "optimizer", "minimum_ratio"),
            f'found {optimizer.minimum_ratio:g}, but schedule = "constant" never falls; leave it out, or write "linear" or "cosine"',
        )
    if recipe.trainer.lora is not None and recipe.algorithm.head == "value":
        yield RecipeProblem(
            ("trainer", "lora"), "found a table, but an adapter has no scalar head, which this algorithm trains; leave it out"
        )


def _ranks(recipe: Recipe) -> Iterator[RecipeProblem]:
    if problem := layout_problem(recipe.trainer):
        yield RecipeProblem(("trainer", problem[0]), problem[1])


def _filter(recipe: Recipe) -> Iterator[RecipeProblem]:
    key, keeps, size = ("batcher", "filter"), recipe.batcher.filter, recipe.algorithm.group_size
    if recipe.batcher.dynamic_sampling and size < 2:
        found = f"found true, but a group of {size} has no two rewards that differ"
        yield RecipeProblem(("batcher", "dynamic_sampling"), f"{found}; write algorithm.group_size = 2 or more")
    if keeps == "signal":
        yield RecipeProblem(key, 'found "signal", which is now `dynamic_sampling = true`')
    elif keeps and not dotted_parts(keeps):
        yield from _named_in_file(key, keeps, "function", "filters.py:keep")


def _best(recipe: Recipe) -> Iterator[RecipeProblem]:
    """Check that an evaluation can select the best checkpoint."""
    key, by, evaluation = ("checkpoint", "keep_best"), recipe.checkpoint.keep_best, recipe.evaluation
    found = f"found {toml_value(by)}, but"
    if by and (by == "loss") != recipe.learns_from_examples():
        known = '"loss"' if recipe.learns_from_examples() else '"greedy" or "sampled"'
        yield RecipeProblem(key, f"{found} this run evaluates {'a loss' if recipe.learns_from_examples() else 'answers'}; write {known}")
    elif by and not evaluation.tasks:
        yield RecipeProblem(key, f"{found} nothing is evaluated; write evaluation.tasks above 0, or leave keep_best out")
    elif by and by != "loss" and evaluation.every_steps and evaluation.periodic_mode != by:
        yield RecipeProblem(key, f"{found} evaluation.periodic_mode is {toml_value(evaluation.periodic_mode)}; write the same in both")


def _amounts(recipe: Recipe) -> Iterator[RecipeProblem]:
    if not 0 <= recipe.seed < 2**63:
        yield RecipeProblem(("seed",), f"found {recipe.seed}; write a whole number from 0 to 2**63 - 1")
    if recipe.bus.url and not recipe.bus.url.startswith(("nats://", "tls://")):
        yield RecipeProblem(
            ("bus", "url"), f'found {toml_value(recipe.bus.url)}; write `nats://host:port`, or "" for a server of this run\'s own'
        )
    yield from _lease(recipe)


def _lease(recipe: Recipe) -> Iterator[RecipeProblem]:
    """Check the lease: if too short, items of live workers are redelivered; if too long, items of dead workers wait."""
    key, lease, attempt = ("bus", "lease_seconds"), recipe.bus.lease_seconds, recipe.task.timeout_seconds
    if lease < MIN_LEASE_SECONDS:
        yield RecipeProblem(
            key,
            f"found {lease:g}, but a busy worker may renew its leases a second late, and its episodes would run twice; "
            f"write at least {MIN_LEASE_SECONDS:g}",
        )
    elif lease > (most := max(attempt, MAX_LEASE_SECONDS)):
        yield RecipeProblem(
            key,
            f"found {lease:g}, but after a worker's death its episodes wait for the whole lease, and an attempt takes at most "
            f"task.timeout_seconds = {attempt:g}; write at most {most:g}",
        )


def _placement(recipe: Recipe, *, serving: bool) -> Iterator[RecipeProblem]:
    placements = msgspec.structs.asdict(recipe.actors)
    for name, placement in placements.items():
        if placement.count and name in recipe.absent() and not serving and not recipe.is_online():
            whose = "one that learns from examples" if recipe.learns_from_examples() else "one that runs episodes"
            yield RecipeProblem(("actors", name, "count"), f"found {placement.count}, but {whose} has no {name}; leave it out")
        if placement.count == 0 and not serving and name not in recipe.absent():
            yield RecipeProblem(("actors", name, "count"), f"found 0, but a run needs its {name}; write `count = 1`")
        if placement.count > 1 and name not in SEVERAL:
            yield RecipeProblem(("actors", name, "count"), f"found {placement.count}, but a run has one {name}; write `count = 1`")
        if placement.concurrency > 1 and name not in CONCURRENT:
            yield RecipeProblem(
                ("actors", name, "concurrency"),
                f"found {placement.concurrency}, but {name} handles one message at a time; write `concurrency = 1`",
            )
        sharing = [other for other, there in placements.items() if there.process == placement.process and other != name]
        if placement.count > 1 and sharing:
            yield RecipeProblem(
                ("actors", name, "process"),
                f"found {toml_value(placement.process)}, shared with {', '.join(sharing)}, for {placement.count} of them; "
                f"write `process = {toml_value(name)}`",
            )


def _installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
