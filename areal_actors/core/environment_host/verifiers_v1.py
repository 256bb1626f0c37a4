"""Lists the tasks of a `verifiers` environment and plays them: one with tasksets and agents, the interface from 0.2 on.

As a program it reads {"environment", "args", "limit", "path"} as JSON from standard input and writes the tasks to
`path`, one JSON object a line: {"key", "question", "task"}. As an agent, `VerifiersAgent` plays one task per episode:
the environment's own rollout, with the episode's session as the model's endpoint and the environment's rewards as the
result.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))  # the harness `areal-chat` is a module of this folder

import aiohttp
import verifiers.v1 as vf
from listing import write_tasks
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import env_config_type, harness_class, load_environment
from verifiers.v1.utils.memory import trim_memory_periodically

KEY_VARIABLE = "AREAL_SESSION_API_KEY"
"""Environment variable with the session's key; verifiers hides variables with `API_KEY` in their name from the programs
that it starts."""
MODEL = "default"
SHOWN_CHARACTERS = 2000
DESCRIBE_SECONDS = 30.0
"""Time limit of the gateway's description of the session."""
LOCAL = {"type": "subprocess"}
"""Runtime of agents for which the environment names none: verifiers' own default is a paid sandbox."""


class EpisodeFailed(Exception):
    """The environment did not produce a scored episode."""


def load(environment: str, args: Mapping[str, Any]) -> vf.Env[Any]:
    """Load an environment: the name of an installed package, the folder of one, or a module's file.

    Args:
        environment: name, folder or file.
        args: verifiers' `[env]` block without the taskset's id.

    Raises:
        ValueError: an agent would execute the model's commands on this machine although no runtime is named.
        Exception: whatever the environment raises.
    """
    _put_programs_on_path()
    place = Path(environment).resolve()
    if place.is_dir() or place.suffix == ".py":
        _make_importable(place.parent)
        environment = place.name.removesuffix(".py")
    config = copy.deepcopy(dict(args))
    config["taskset"] = {**config.get("taskset", {}), "id": environment}
    config_type = env_config_type(environment, config.get("id") or "")
    unnamed = [seat for seat, default in _seats(config_type) if not _names_runtime(default, config.get(seat))]
    for seat in unnamed:
        config[seat] = {**config.get(seat, {}), "runtime": LOCAL}
    resolved = config_type.model_validate(config)
    for seat, harness in resolved.agent_harnesses().items():
        if seat in unnamed and harness_class(harness.id).EXECUTES_CODE:
            raise ValueError(
                f"agent `{seat}` has the harness `{harness.id}`, which executes the model's commands, and no runtime is"
                " named; write under "
                f'[task.environment_args] `{seat}.harness.id = "null"` (a chat with the tools of the task), or '
                f'`{seat}.runtime.type = "docker"`, or "subprocess" for this machine'
            )
    return load_environment(resolved)


def _put_programs_on_path() -> None:
    """Add the programs of this interpreter's environment to the path: verifiers starts its own harnesses with `uv`."""
    programs, entries = str(Path(sys.executable).parent), os.environ.get("PATH", "").split(os.pathsep)
    if programs not in entries:
        os.environ["PATH"] = os.pathsep.join([*entries, programs])


def _make_importable(folder: Path) -> None:
    """Add a folder to the module path of this process and of its children, such as tool servers."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(folder) not in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join([*entries, str(folder)])


def _seats(config_type: type[vf.EnvConfig]) -> Iterator[tuple[str, vf.AgentConfig]]:
    """The environment's agents with their defaults, by name."""
    for name, field in config_type.model_fields.items():
        if isinstance(field.default, vf.AgentConfig):
            yield name, field.default


def _names_runtime(default: vf.AgentConfig, stated: Mapping[str, Any] | None) -> bool:
    return "runtime" in default.model_fields_set or "runtime" in (stated or {})


# ---------------------------------------------------------------- tasks


def rows(environment: vf.Env[Any], limit: int) -> Iterator[dict[str, Any]]:
    """The environment's first `limit` tasks, in its order.

    Raises:
        ValueError: a field of its tasks is left out of their JSON, with which they are played.
    """
    fields = type(environment.taskset).task_type().data_type().model_fields
    if excluded := [name for name, field in fields.items() if field.exclude]:
        raise ValueError(
            f"the tasks exclude {', '.join(excluded)} from their JSON, so they cannot be sent to an episode"
        )
    for task in itertools.islice(environment.taskset, limit):
        data = task.data.model_dump(mode="json", exclude_none=True)
        content = json.dumps({name: value for name, value in data.items() if name != "idx"}, sort_keys=True)
        yield {
            "key": hashlib.sha256(content.encode()).hexdigest(),
            "question": task.data.prompt_text or content,
            "task": data,
        }


def list_tasks(request: Mapping[str, Any]) -> None:
    """Write the tasks of an environment to a file; whatever it raises ends the program with its text."""
    write_tasks(request, load, rows)


# ---------------------------------------------------------------- episodes


class VerifiersAgent:
    """Plays one task of the environment per episode."""

    def __init__(self, environment: str, args: Mapping[str, Any], *, rewards_last_call: bool = False) -> None:
        """Load the environment.

        `rewards_last_call` gives the reward of an agent to its last call only, which discounts it backwards.
        """
        self.environment = load(environment, args)
        self.rewards_last_call = rewards_last_call
        self._base_url = ""
        self._set_up = self.environment.setup
        self.environment.setup = self._prepare

    async def _prepare(self, agents: vf.Agents) -> None:
        """Run the environment's own `setup`.

        Calls of agents that it marks as untrainable are sent with `store: false`.
        """
        await self._set_up(agents)
        for name in agent_config_fields(self.environment.config):
            agent = getattr(agents, name)
            if not agent.trainable and agent.ctx.client.base_url == self._base_url:
                sampling = {**agent.ctx.sampling.model_dump(exclude_none=True), "store": False}
                agent.ctx = replace(agent.ctx, sampling=vf.Sampling(**sampling))

    async def run(self, task: Mapping[str, Any], *, base_url: str, api_key: str) -> dict[str, Any]:
        """Play a task; returns {"reward" or "rewards", "metrics"}.

        Raises:
            EpisodeFailed: the environment, its scoring or a model call failed, or an agent has no reward.
        """
        os.environ[KEY_VARIABLE] = api_key
        self._base_url = base_url
        context = vf.ModelContext(model=MODEL, client=vf.EvalClientConfig(base_url=base_url, api_key_var=KEY_VARIABLE))
        discarded: list[vf.Trace] = []
        async with self.environment.serving():
            episode = await self.environment.run_episode(self._task(task["task"]), context, on_discard=discarded.append)
        await trim_memory_periodically()  # without it fragments of memory grow by about 60 KB an episode
        if not self.environment.complete(episode):
            raise EpisodeFailed(_reason(episode))
        if discarded:
            raise EpisodeFailed(
                "an agent was run again after a failure, and the calls of its first attempt have no reward; set its"
                " retries to 0"
            )
        trained = [
            trace
            for trace in episode.traces
            if trace.agent.trainable and trace.agent.config.client.base_url == base_url
        ]
        if not trained:
            raise EpisodeFailed("no agent that the environment trains called the model of this run")
        rewards = {trace.id: _reward(trace) for trace in trained}
        metrics = _metrics(episode.traces)
        if len(episode.traces) == 1:
            return {"reward": rewards[trained[0].id], "metrics": metrics}
        return {"rewards": await self._by_call(rewards, base_url, api_key), "metrics": metrics}

    def _task(self, row: Mapping[str, Any]) -> vf.Task[Any]:
        kind = type(self.environment.taskset).task_type()
        task: vf.Task[Any] = kind(kind.data_type().model_validate(row), self.environment.config.taskset.task)
        return task

    async def _by_call(self, rewards: Mapping[str, float], base_url: str, api_key: str) -> dict[str, float]:
        """Rewards by interaction id.

        Verifiers sends the id of an agent's trace with each of its calls, and the gateway keeps it.
        """
        url, headers = f"{base_url.removesuffix('/v1')}/rl/session", {"Authorization": f"Bearer {api_key}"}
        timeout = aiohttp.ClientTimeout(DESCRIBE_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as client,
            client.get(url, headers=headers) as answer,
        ):
            described = await answer.json()
        calls: dict[str, list[str]] = defaultdict(list)
        for call in described["interactions"]:
            calls[call["client_session"]].append(call["id"])
        if silent := [trace for trace in rewards if not calls[trace]]:
            raise EpisodeFailed(
                f"{len(silent)} of the {len(rewards)} agents that the environment trains made no completed model call"
            )
        first = -1 if self.rewards_last_call else 0
        return {call: reward for trace, reward in rewards.items() for call in calls[trace][first:]}


def _reason(episode: vf.Episode) -> str:
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not errors:
        return "the environment reports an incomplete episode, and no error"
    return "; ".join(dict.fromkeys(f"{error.type}: {error.message}"[:SHOWN_CHARACTERS] for error in errors))


def _reward(trace: vf.Trace) -> float:
    """The weighted sum of a trace's rewards.

    Raises:
        EpisodeFailed: there is none, or one was not computed.
    """
    if missing := [name for name, reward in trace.rewards.items() if reward is None]:
        stopped = f" (it stopped with `{trace.stop_condition}`)" if trace.stop_condition else ""
        raise EpisodeFailed(
            f"the environment did not compute the rewards {', '.join(missing)} of agent {trace.agent.name}{stopped}"
        )
    if not trace.rewards:
        raise EpisodeFailed(
            f"the environment gave agent {trace.agent.name} no reward; its task needs a @vf.reward, or its Env a"
            " record_reward"
        )
    return float(trace.reward)


def _metrics(traces: list[vf.Trace]) -> dict[str, float]:
    """Named rewards, without their weights, and metrics.

    Those of several agents are named `AGENT/NAME` and are means over the agent's traces.
    """
    by_name: dict[str, list[float]] = defaultdict(list)
    several = len({trace.agent.name for trace in traces}) > 1
    for trace in traces:
        prefix = f"{trace.agent.name}/" if several else ""
        scores = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        for name, value in {**scores, **trace.metrics}.items():
            if value is not None:
                by_name[f"{prefix}{name}"].append(float(value))
    return {name: fmean(values) for name, values in by_name.items()}
