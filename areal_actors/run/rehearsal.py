"""Rehearses a recipe for `areal-actors check`.

Its data is opened, and agent and reward play a task with given answers, not a model's.
Agent, gateway and reward are those of a run, on an in-memory bus in this process; nothing is written and no weights are
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.core.model_config import has_vision
from areal_actors.core.problems import is_installed
from areal_actors.core.proxies import exempt_from_proxies
from areal_actors.core.values import Interaction, Task, WeightsLocation
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.messages import EpisodeAbandoned, RunEpisode, TrajectoryExported, WeightsPublished
from areal_actors.processes.actor_host import ActorHost
from areal_actors.processes.cpu_actors import acceptance_of
from areal_actors.processes.fold_actors import open_tasks
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL
from areal_actors.rewards.judge.settings import has_judge
from areal_actors.rewards.reward_pool import RewardPool
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.rollout.runners import runner_of
from areal_actors.run.answer_lengths import describe_cut, describe_long_answers
from areal_actors.tasks.attempts import first_attempt
from areal_actors.tasks.environment_tasks import list_environment
from areal_actors.tasks.sources import is_on_hub
from areal_actors.tokenization.byte_pairs import byte_characters
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_bus.memory import MemoryBus

if TYPE_CHECKING:
    import huggingface_hub
else:
    huggingface_hub = LazyModule("huggingface_hub")

LEASE_SECONDS = 3600.0
SPARE_SECONDS = 60.0
"""Time for processes to start and for the reward, beyond the timeout of an episode."""
OTHER_ANSWER = "I do not know."
NO_ACTION = "NoActionInAnswer"
"""Error of an environment that works, and finds no action in a given answer."""
BYTES = 2**20
"""Longest completion in bytes where the model's tokenizer is not known."""
TOKEN_BYTES = 16
"""No tokenizer has more bytes per token of text, so that no prompt is refused that the model's would take."""
END = "<|end|>"
TEMPLATE = """\
{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
{% for message in messages %}{{ message.role }}: {{ message.content or '' }}\
{% for call in message.tool_calls or [] %}<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
"""Chat template where the model is not on this machine."""


class Played(msgspec.Struct, frozen=True):
    """One rehearsed episode."""

    answer: str
    """Text of every model answer."""
    calls: int
    """Number of model calls that would be trained."""
    reward: float
    failure: str
    """Reason for which the episode was abandoned; empty if it was scored."""
    cut: str = ""
    """Limit that cut the answer; empty if it was given whole."""
    prompt_tokens: int = 0
    """Tokens of all prompts, those of earlier calls counted once; 0 where the model's tokenizer is not known."""


def rehearse(recipe: Recipe) -> Generator[str, None, list[Played]]:
    """Yields lines about a task that was played, of each source of a mixture; returns the episodes.

    It is played once with the task's own `answer`, once with another text.

    Raises:
        SetupError: both episodes failed; the message has the reason.
    """
    played: list[Played] = []
    for name, source in source_recipes(recipe).items():
        if name:
            yield f"source {name}:"
        played += yield from _rehearse_source(source)
    return played


def _rehearse_source(recipe: Recipe) -> Generator[str, None, list[Played]]:
    if reason := _unplayable(recipe):
        yield f"not played: {reason}"
        return []
    exempt_from_proxies(recipe.gateway.url(0))
    with _tasks_folder(recipe) as folder:
        tasks = open_tasks(recipe, folder).train
        task = tasks.task(0)
    tokenizer = model_tokenizer(recipe.model)
    own = own_answer(task)
    played = asyncio.run(_play(recipe, task, [*([own] if own else []), OTHER_ANSWER], tokenizer))
    if all(episode.failure and NO_ACTION not in episode.failure for episode in played):
        field = "task.environment: " if recipe.plays_environment() else ""
        raise SetupError(f"{field}task '{task.id}', played with the answer '{played[-1].answer}': {played[-1].failure}")
    yield from (_describe_task(task, one) for one in played)
    if tokenizer is not None and not recipe.plays_environment():
        rows = (tasks.task(number) for number in range(len(tasks)))
        yield from filter(None, [describe_long_answers(rows, tokenizer, recipe.sampling.max_tokens)])
    return played


@contextmanager
def _tasks_folder(recipe: Recipe) -> Iterator[RunFolder]:
    """The folder that has the recipe's tasks: a temporary one, to which its environment lists them, or that of the run.

    Raises:
        SetupError: the environment is missing, fails, or has no tasks.
    """
    if not recipe.plays_environment():
        yield RunFolder(Path(recipe.folder) / recipe.run)
        return
    with TemporaryDirectory(prefix="areal-check-") as place:
        folder = RunFolder(Path(place))
        list_environment(recipe.task, folder.tasks, Path.cwd())
        yield folder


def own_answer(task: Task) -> str:
    """Return the answer that a task has, itself or in the data of its environment; empty if it has none."""
    inner = task.data.get("task")
    answers = (task.data.get("answer"), inner.get("answer") if isinstance(inner, Mapping) else None)
    return next((answer for answer in answers if isinstance(answer, str) and answer), "")


def _unplayable(recipe: Recipe) -> str:
    """Returns the reason for which nothing can be played here; empty if something can."""
    if recipe.learns_from_examples():
        return "there are no episodes"
    if recipe.is_online():
        return "agents are external"
    if is_on_hub(recipe.task.dataset):
        return f"{recipe.task.dataset} would be downloaded"
    if has_vision(recipe.model):
        return "the model has vision, and the given answers come from an engine that sees no images"
    if has_judge(recipe.task.reward, recipe.task.reward_options):
        return "the reward asks a judge"
    return "the reward is a model" if recipe.task.reward.startswith(MODEL) else ""


def _describe_task(task: Task, played: Played) -> str:
    shown = played.answer if len(played.answer) <= 40 else f"…{played.answer[-40:]}"
    result = f"failed: {played.failure}" if played.failure else f"reward {played.reward:g}, {played.calls} model calls"
    return (
        f"task {task.id} with the answer {' '.join(shown.split())!r}: {'; '.join(filter(None, (result, played.cut)))}"
    )


async def _play(
    recipe: Recipe, task: Task, answers: Sequence[str], chat_tokenizer: ChatTokenizer | None
) -> list[Played]:
    """Play the task once for each answer; `arun_group` workflows play it as a group of one.

    Where the model's tokenizer is not `known`, a token is a byte, and the recipe's limits, which count the model's
    tokens, cut nothing.
    """
    tokenizer, settings = chat_tokenizer or _byte_tokenizer(), msgspec.structs.replace(recipe.task, processes=1)
    spoken: list[str] = []
    sampling, context = recipe.sampling, recipe.generation.max_model_len
    if chat_tokenizer is None:
        sampling, context = msgspec.structs.replace(sampling, max_tokens=BYTES), context * TOKEN_BYTES + BYTES
    engine = ScriptedEngine(
        lambda *_: [(token, -0.1) for token in (*tokenizer.encode(spoken[-1]), tokenizer.stop_ids[0])],
        vocabulary_size=max(tokenizer.vocabulary_size, max(tokenizer.stop_ids) + 1),
        context=context,
    )
    host = ActorHost(
        MemoryBus(recipe.run, lease_seconds=LEASE_SECONDS), recipe, RunFolder(Path(recipe.folder) / recipe.run)
    )
    pool = RewardPool(settings.reward, 1, settings.reward_timeout_seconds, options=settings.reward_options)
    runner = runner_of(settings, Path.cwd(), group_size=1)
    gateway = msgspec.structs.replace(recipe.gateway, port=0)
    try:
        await host.serve(
            "inference_worker-0", InferenceWorker(lambda _: engine, name="inference_worker-0", concurrency=64)
        )
        manager = SessionManager(
            gateway, lambda _: tokenizer, secret=b"rehearsal", max_model_len=context, sampling=sampling
        )
        await host.serve("session_manager", manager)
        await host.serve("reward_worker-0", RewardWorker(pool, concurrency=1, acceptance=acceptance_of(settings)))
        worker = RolloutWorker(
            runner,
            concurrency=1,
            timeout_seconds=settings.timeout_seconds,
            acceptance=acceptance_of(settings),
            overflow_reward=settings.overflow_reward,
            plays_environment=recipe.plays_environment(),
        )
        await host.serve("rollout_worker-0", worker)
        location = WeightsLocation(folder=recipe.model, checksum="", model=recipe.model)
        await host.publish(WeightsPublished(weight_version=0, location=location))
        played = []
        for number, answer in enumerate(answers):
            spoken.append(answer)
            work = first_attempt(str(number), 0, task, sampling, 0)
            episode, calls = await _episode(host, recipe, work, answer)
            cut = describe_cut(
                len(tokenizer.encode(answer)), calls, sampling.max_tokens, "tokens" if chat_tokenizer else "bytes"
            )
            prompts = sum(len(call.prompt_suffix) // 4 for call in calls) if chat_tokenizer else 0
            played.append(msgspec.structs.replace(episode, cut=cut, prompt_tokens=prompts))
        return played
    finally:
        await host.stop()


async def _episode(
    host: ActorHost, recipe: Recipe, work: RunEpisode, answer: str
) -> tuple[Played, Sequence[Interaction]]:
    """Play an episode; returns what came of it, and its model calls."""
    seconds = recipe.task.timeout_seconds + recipe.task.reward_timeout_seconds + SPARE_SECONDS
    async with host.bus.events(
        TrajectoryExported, EpisodeAbandoned, consumer=f"rehearsal-{work.group}", history="new"
    ) as ended:
        await host.publish(work)
        try:
            async with asyncio.timeout(seconds):
                async for delivery in ended:
                    match delivery.message:
                        case TrajectoryExported(trajectory=trajectory) if trajectory.episode == work.episode:
                            calls = trajectory.interactions
                            return Played(answer, len(calls), trajectory.reward, ""), calls
                        case EpisodeAbandoned(work=lost, reason=reason, detail=detail) if lost.episode == work.episode:
                            return Played(answer, 0, 0.0, f"{reason}: {detail}"), ()
        except TimeoutError:
            pass
    return Played(answer, 0, 0.0, f"timeout: the episode did not end within {seconds:g} s"), ()


def model_tokenizer(model: str) -> ChatTokenizer | None:
    """Returns the model's tokenizer if it is on this machine, in a folder or in the cache of the hub; else None."""
    folder = Path(model).expanduser()
    if not folder.is_dir() and model.count("/") == 1 and is_installed("huggingface_hub"):
        cached = huggingface_hub.try_to_load_from_cache(model, "tokenizer.json")
        folder = Path(cached).parent if isinstance(cached, str) else folder
    return ChatTokenizer.load(folder) if (folder / "tokenizer.json").is_file() else None


def _byte_tokenizer() -> ChatTokenizer:
    """Returns a tokenizer with a token per byte."""
    tokenizer = Tokenizer(models.BPE({character: byte for byte, character in byte_characters().items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return ChatTokenizer(tokenizer, TEMPLATE, {}, [tokenizer.get_vocab()[END]])
