"""Dry run of a recipe: the resolved recipe, the profile, the supervision tree, the plan."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.actor_settings import processes_of
from areal_actors.core.command import COMMAND
from areal_actors.core.model_names import is_local_model
from areal_actors.core.policy_settings import PolicySettings
from areal_actors.core.problems import toml_key, toml_value
from areal_actors.core.proxies import describe_proxies
from areal_actors.embedded.settings import EMBEDDED, is_shipped
from areal_actors.recipe.changed_settings import describe_changes
from areal_actors.recipe.device_map import describe_devices
from areal_actors.recipe.limits import lowest_limit
from areal_actors.recipe.load import Resolved
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.recipe import Recipe, recorded_recipe, redact_recipe
from areal_actors.recipe.shown_settings import shown_settings
from areal_actors.recipe.supervision import draw_tree
from areal_actors.tasks.sources import is_on_hub
from areal_actors.training.algorithms.base import INITIAL
from areal_actors.weights.training_notes import training_notes
from areal_bus.users import without_credentials

TEMPLATE_MODULES = ("areal_actors.gateway.template_settings", "areal_actors.tokenization.tokenizer")
INLINE_TABLES = ("supervisors", "actors")
"""Tables whose entries are one line each."""


def explain(resolved: Resolved) -> str:
    """Returns the output of `areal-actors check --full`: every setting, the supervision tree and the plan.

    Valid TOML without keys and passwords, with all that is no setting in comments.
    """
    resolved = _without_secrets(resolved)
    parts = {
        "The recipe with all defaults": to_toml(resolved.recipe),
        "Profile": _comment_lines(profile_line(resolved)),
        "Supervision": _comment_lines(draw_tree(resolved.recipe.supervisors, resolved.recipe.actors)),
        "Plan": _comment_lines("\n".join((*plan(resolved.recipe), *device_plan(resolved)))),
    }
    return "\n\n".join(f"# ---- {title}\n{text}" for title, text in parts.items())


def summarize(resolved: Resolved, stated: Collection[str] = ()) -> str:
    """Returns the output of `areal-actors check`: settings that differ from their defaults, and the plan.

    Settings whose dotted names are in `stated`, those of the command line, are marked. Without keys and passwords.
    """
    resolved = _without_secrets(resolved)
    title = "Settings that differ from their defaults; --full prints all"
    parts = {
        title + "; * of the command line" * bool(stated): "\n".join(describe_changes(resolved.recipe, stated)),
        "Plan": "\n".join(
            (f"{'profile':<11} {profile_line(resolved)}", *plan(resolved.recipe, full=False), *device_plan(resolved))
        ),
    }
    return "\n\n".join(f"# ---- {title}\n{_comment_lines(text)}" for title, text in parts.items())


def profile_line(resolved: Resolved) -> str:
    """Returns the chosen profile and the reason."""
    return f"{resolved.profile or 'none'}: {resolved.reason}"


def plan(recipe: Recipe, *, full: bool = True) -> Iterator[str]:
    """Yields one line for each thing that a run would download, create or start.

    Without `full` processes are on one line, without the names of their actors.
    """
    learns_from_examples = recipe.learns_from_examples()
    for label, text in (_examples if learns_from_examples else _of_episodes)(recipe):
        yield f"{label:<11} {text}"
    gateway = "" if learns_from_examples else f"{recipe.gateway.host}, {_ports(recipe)}"
    for label, text in _processes(recipe, gateway, full=full):
        yield f"{label:<11} {text}"
    for text in exhausted_bounds(recipe):
        yield f"{'autoscale':<11} {text}"


def device_plan(resolved: Resolved) -> Iterator[str]:
    """Yields one line for each CUDA device, with its processes and their memory."""
    for label, text in describe_devices(resolved.recipe, resolved.cuda):
        yield f"{label:<11} {text}"


def _of_episodes(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields label and text of each line of a run with agents and gateway."""
    yield "model", _model(recipe)
    yield from (("", note) for note in training_notes(Path(recipe.model).expanduser()) if recipe.actors.trainer.count)
    yield from _tool_calls(recipe)
    yield from _other_models(recipe)
    yield "tasks", _tasks(recipe)
    yield "episodes", _episodes(recipe)
    yield "staleness", _staleness(recipe)
    yield "limit", lowest_limit(recipe)
    yield "evaluation", _evaluation(recipe)
    yield "checkpoint", _checkpoint(recipe)


def _ports(recipe: Recipe) -> str:
    port, count = recipe.gateway.port, recipe.actors.session_manager.count
    if count > 1:
        return f"ports {port} to {port + count - 1}" if port else f"{count} free ports"
    return f"port {port}" if port else "a free port"


def _examples(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields label and text of each line of a run without them."""
    yield "model", _model(recipe)
    yield from (("", note) for note in training_notes(Path(recipe.model).expanduser()))
    batch, kind, evaluation = recipe.trainer.batch_size, recipe.examples(), recipe.evaluation
    yield "examples", f"{kind}: {_tasks(recipe)}"
    yield "steps", f"{recipe.steps} steps × {batch} {kind} = {recipe.steps * batch}, each epoch reshuffled"
    yield from _other_models(recipe)
    between = f", and of {min(evaluation.tasks, evaluation.periodic_tasks)} every {evaluation.every_steps} steps"
    when = "after" if evaluation.baseline == "none" else "before and after"
    measured = f"the loss of {evaluation.tasks} held-out {kind}, {when}{between if evaluation.every_steps else ''}"
    yield "evaluation", measured if evaluation.tasks else "none"
    yield (
        "checkpoint",
        _checkpoint(recipe) + (", a sequence classifier with one label" if recipe.algorithm.head == "value" else ""),
    )


def _other_models(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields the models that the algorithm needs beside the trained one."""
    for name, model in recipe.algorithm.models.items():
        yield name, f"{_name_model(model)}, frozen"
    yield from (("policy", f"{name}, {_describe_policy(recipe, one)}") for name, one in recipe.policies.items())
    if recipe.algorithm.critic is not None:
        yield "critic", f"from {_name_model(recipe.algorithm.critic.model)}, trained beside it"


def _describe_policy(recipe: Recipe, policy: PolicySettings) -> str:
    """Returns what answers the calls of another policy, and what it is trained on."""
    model = policy.model or recipe.model
    engine = ", by the servers of this run under adapters of its own" if policy.shares_engine() else ""
    match policy.kind:
        case "remote":
            return f"answered by {policy.url}"
        case "past":
            versions = f"every {policy.every_versions}th version of the model"
            return f"one of the last {policy.keep_versions} of {versions}{engine}"
        case "frozen":
            return f"from {model}, not trained{', by the servers of this run' if engine else ''}"
        case "trained":
            return f"from {model}, trained beside it by its own processes{engine}; reward: {policy.reward}"


def _name_model(model: str) -> str:
    return "the initial model" if model == INITIAL else model


def _model(recipe: Recipe) -> str:
    if recipe.model == EMBEDDED:
        steps = recipe.warm_start.steps + recipe.warm_start.tail_steps
        origin = "part of the package" if is_shipped(recipe.warm_start, recipe.seed) else "created locally"
        trained = f"warmed up by {steps} supervised steps" if steps else "untrained"
        return f"{origin}: a small model, {trained}; nothing is downloaded"
    if is_local_model(recipe.model):
        return f"read from {recipe.model}"
    if "/" not in recipe.model:
        return f"{recipe.model}, which `{COMMAND} model get {recipe.model}` fetches"
    return f"{recipe.model}, downloaded from the Hugging Face hub unless cached"


def _tool_calls(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields the result of the test of the model's tool calls, if its tokenizer is on this machine."""
    folder = Path(recipe.model).expanduser()
    if is_local_model(recipe.model) and (folder / "tokenizer.json").is_file():
        # Only here are tokenizers needed: other checks of settings answer faster without them.
        templates, tokenizers = map(importlib.import_module, TEMPLATE_MODULES)
        yield (
            "tool calls",
            str(templates.apply_template_settings(tokenizers.ChatTokenizer.load(folder), recipe.gateway)),
        )


def _tasks(recipe: Recipe) -> str:
    if recipe.is_online():
        return "brought to the gateway by external agents"
    if recipe.task.mix:
        return _mixture(recipe)
    dataset, held_out = recipe.task.dataset, recipe.task.held_out
    if recipe.task.environment:
        return (
            f"at most {recipe.task.environment_tasks} of {recipe.task.environment}, listed when the run starts; held"
            f" out: {held_out}"
        )
    if is_on_hub(dataset):
        source = f"{dataset}, downloaded from the Hugging Face hub unless cached"
    else:
        source = f"{dataset}, generated from seed {recipe.seed}" if dataset == "arithmetic" else f"read from {dataset}"
    return f"{source}; held out: {held_out}"


def _mixture(recipe: Recipe) -> str:
    total = sum(source.weight for source in recipe.task.mix)
    weights = {source.name: source.weight / total for source in recipe.task.mix}
    return "; ".join(f"{weights[name]:.0%} {name}: {_tasks(source)}" for name, source in source_recipes(recipe).items())


def _episodes(recipe: Recipe) -> str:
    batch, group = recipe.trainer.batch_size, recipe.algorithm.group_size
    if recipe.is_online():
        episodes = f"{recipe.steps} steps × {batch} groups × {group} sessions = {recipe.steps * batch * group} sessions"
        return f"{episodes}, each abandoned when unused for {recipe.gateway.idle_timeout_seconds:g} s"
    return (
        f"{recipe.steps} steps × {batch} groups × {group} episodes = {recipe.steps * batch * group} episodes, "
        f"each of at most {recipe.task.timeout_seconds:g} s and {1 + recipe.task.retries} attempts"
    )


def _staleness(recipe: Recipe) -> str:
    bound = recipe.staleness_gate.max_staleness
    if bound == 0:
        return f"0 versions: synchronous, at most {recipe.trainer.batch_size} groups ahead of the weights"
    ahead = (bound + 1) * recipe.trainer.batch_size
    adapted = recipe.staleness_gate.max_concurrent == "auto"
    running = (
        f"as many as the engines have room for, at first {recipe.trainer.batch_size},"
        if adapted
        else recipe.concurrent_groups()
    )
    return (
        f"{bound} versions: at most ({bound} + 1) × {recipe.trainer.batch_size} = {ahead} groups ahead of the weights, "
        f"{running} of them running; older tokens: {recipe.batcher.exit_policy}"
    )


def _evaluation(recipe: Recipe) -> str:
    tasks, every = recipe.evaluation.tasks, recipe.evaluation.every_steps
    if not tasks:
        return "none"
    between = (
        f"; {min(tasks, recipe.evaluation.periodic_tasks)} of them, {recipe.evaluation.periodic_mode}, every {every}"
        " steps"
        if every
        else ""
    )
    return f"{tasks} held-out tasks, sampled and greedy, before and after{between}"


def _checkpoint(recipe: Recipe) -> str:
    every = recipe.checkpoint.every_steps
    best = f"; and the best of those evaluated ({recipe.checkpoint.keep_best})" if recipe.checkpoint.keep_best else ""
    return (
        f"every {every} steps and at the end, the last {recipe.checkpoint.keep_last} kept" if every else "at the end"
    ) + best


def _processes(recipe: Recipe, gateway: str, *, full: bool) -> Iterator[tuple[str, str]]:
    yield "bus", without_credentials(recipe.bus.url) or "a nats-server of this run, on a free port of 127.0.0.1"
    if gateway:
        yield "gateway", gateway
        if proxies := describe_proxies(os.environ):
            yield "", f"{proxies}: agents reach the gateway without them (no_proxy)"
    yield "folder", str(Path(recipe.folder) / recipe.run)
    faults = recipe.chaos.describe()
    yield (
        "chaos",
        (
            f"ON: FAULTS ARE INJECTED INTO THIS RUN: {faults}; killed processes count against [supervisors]"
            if faults
            else "none"
        ),
    )
    hosted: dict[str, list[str]] = {}
    for actor, placement in msgspec.structs.asdict(recipe.actors).items():
        for process in processes_of(placement):
            hosted.setdefault(process, []).append(actor)
    names = "" if full else f": {', '.join(hosted)}"
    yield "processes", f"{len(hosted)}, besides this one and nats-server{names}"
    if not full:
        return
    width = max(map(len, hosted))
    for process, actors in hosted.items():
        yield "", f"{process:<{width}}  {', '.join(actors)}"


def to_toml(recipe: Recipe) -> str:
    """Returns the resolved recipe as TOML, in the order of its tables; reading it gives the same recipe."""
    return "\n".join(_table((), msgspec.to_builtins(recipe))).strip()


def to_json(resolved: Resolved, *, full: bool = False) -> str:
    """Returns the resolved recipe without keys and passwords, the profile and its reason as JSON.

    Without `full` also the names of settings without effect in such a run, which are not in the recipe then.
    """
    answer: dict[str, Any] = msgspec.to_builtins(_without_secrets(resolved))
    if not full:
        answer["recipe"], left_out = shown_settings(_without_secrets(resolved).recipe, resolved.cuda)
        answer["left_out"] = [".".join(key) for key in left_out]
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def _without_secrets(resolved: Resolved) -> Resolved:
    """Returns the recipe as it may be shown: output of a terminal ends up in logs and bug reports."""
    return msgspec.structs.replace(resolved, recipe=recorded_recipe(redact_recipe(resolved.recipe)))


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(map(toml_key, path))}]"
    inline = path in {(name,) for name in INLINE_TABLES}
    plain = {
        name: value
        for name, value in table.items()
        if value is not None and (inline or not (isinstance(value, dict) or _is_array(value)))
    }
    width = max((len(toml_key(name)) for name in plain), default=0)
    for name, value in plain.items():
        yield f"{toml_key(name):<{width}} = {toml_value(value)}"
    for name, value in table.items():
        if isinstance(value, dict) and not inline:
            yield from _table((*path, name), value)
        for entry in value if _is_array(value) else ():
            yield f"\n[[{'.'.join(map(toml_key, (*path, name)))}]]"
            stated = {key: inside for key, inside in entry.items() if inside is not None}
            width = max(map(len, stated))
            yield from (f"{toml_key(key):<{width}} = {toml_value(inside)}" for key, inside in stated.items())


def _is_array(value: Any) -> bool:
    """Returns True for tables of an `[[array]]`."""
    return bool(value) and isinstance(value, list | tuple) and all(isinstance(entry, dict) for entry in value)


def _comment_lines(text: str) -> str:
    return "\n".join(f"# {line}" for line in text.splitlines())


def exhausted_bounds(recipe: Recipe) -> Iterator[str]:
    """Yields a sentence for each role that begins with as many workers as it may have."""
    hosts = recipe.hosts.joined_hosts()
    for role, bounds in recipe.autoscale.bounds().items() if recipe.autoscale.enabled else ():
        if role in hosts and hosts[role].count * hosts[role].workers == bounds.max:
            yield f"hosts.{role} starts {bounds.max}, as many as autoscale.{role}.max allows: no decision can add one"
        elif role not in hosts and getattr(recipe.actors, role).count == bounds.max:
            yield (
                f"actors.{role}.count = {bounds.max} is as many as autoscale.{role}.max allows: no decision can add one"
            )
