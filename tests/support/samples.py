"""Small messages and values that the tests of actors are made of."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from areal_actors.core.values import (
    Interaction,
    SamplingParams,
    Task,
    TokenColumns,
    Trajectory,
    WeightsLocation,
    pack_ids,
)
from areal_actors.messages import (
    BatchFormed,
    EpisodeAbandoned,
    RunEpisode,
    TrajectoryExported,
    TrajectoryRef,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.tokenization.byte_pairs import byte_characters
from areal_actors.tokenization.tokenizer import ChatTokenizer

SAMPLING = SamplingParams(max_tokens=20)


LETTERS_TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] + ':' + (message.content or '') + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
TOOLS_TEMPLATE = LETTERS_TEMPLATE.replace(
    "+ '\\n' }}",
    "}}{% for call in message.tool_calls or [] %}<tool_call>{{ {'name': call.function.name, 'arguments':"
    " call.function.arguments} | tojson }}</tool_call>{% endfor %}{{ '\\n' }}",
)
"""The same with tool calls."""
END = ord("\n")


def letters(*merges: str, template: str = LETTERS_TEMPLATE) -> ChatTokenizer:
    """A real tokenizer of one token per byte, its id the byte itself; a message ends with a newline, which is special.

    Each of `merges`, two letters, is a token of its own, too.
    """
    vocabulary = {character: byte for byte, character in byte_characters().items() if byte != END}
    vocabulary |= {"\n": END} | {merge: 300 + place for place, merge in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(merge[0], merge[1]) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["\n"])
    return ChatTokenizer(tokenizer, template, {}, [END])


def work(
    episode: str = "0.0",
    *,
    attempt: int = 1,
    attempts_left: int = 0,
    purpose: Any = "train",
    sampling: SamplingParams = SAMPLING,
) -> RunEpisode:
    group = episode.rpartition(".")[0]
    return RunEpisode(
        episode=episode,
        group=group,
        attempt=attempt,
        attempts_left=attempts_left,
        task=Task(id=f"task-{group}", data={"question": "why?"}),
        purpose=purpose,
        sampling=sampling,
    )


def columns(text: str, *versions: int) -> TokenColumns:
    """One token per letter; versions for each, or one for all."""
    made_by = versions * len(text) if len(versions) == 1 else versions
    return TokenColumns.of([ord(letter) for letter in text], [-0.5 - place / 8 for place in range(len(text))], made_by)


def interaction(
    identifier: str,
    text: str,
    *versions: int,
    parent: str = "",
    prefix: str | None = None,
    prompt: str = "?",
    finish_reason: str = "stop",
) -> Interaction:
    """A call of one token for each letter; where no prefix is named it extends its parent's tokens."""
    return Interaction(
        id=identifier,
        parent=parent,
        prefix=parent if prefix is None else prefix,
        prompt_suffix=pack_ids([ord(letter) for letter in prompt]),
        completion=columns(text, *(versions or (0,))),
        finish_reason=finish_reason,
    )


def trajectory(episode: str, *turns: Interaction, reward: float = 1.0) -> Trajectory:
    return Trajectory(
        episode=episode,
        group=episode.partition(".")[0],
        attempt=1,
        task="task",
        reward=reward,
        interactions=turns or (interaction(f"{episode}-1", "ab", 0),),
    )


def exported(episode: str, *versions: int) -> TrajectoryExported:
    """A trajectory of one call, a token for each version."""
    made_by = versions or (0,)
    return TrajectoryExported(trajectory=trajectory(episode, interaction(f"{episode}-1", "x" * len(made_by), *made_by)))


def abandoned(
    episode: str, *, attempt: int = 1, attempts_left: int = 0, purpose: Any = "train", reason: str = "agent"
) -> EpisodeAbandoned:
    return EpisodeAbandoned(
        work=work(episode, attempt=attempt, attempts_left=attempts_left, purpose=purpose),
        reason=reason,
        detail="as it happens",
    )


def published(version: int) -> WeightsPublished:
    location = WeightsLocation(folder=f"v{version}", checksum=f"sum-{version}", model="toy")
    return WeightsPublished(weight_version=version, location=location)


def loaded(worker: str, version: int) -> WeightsLoaded:
    return WeightsLoaded(worker=worker, weight_version=version, checksum=f"sum-{version}")


def batch(step: int, *groups: int, members: int = 1) -> BatchFormed:
    return BatchFormed(
        step=step,
        groups=tuple(
            tuple(TrajectoryRef(episode=f"{number}.{member}", sequence=1) for member in range(members))
            for number in groups
        ),
        oldest_version=0,
        trained_trajectories=1,
        trained_tokens=1,
        dropped_trajectories=0,
        dropped_tokens=0,
    )
