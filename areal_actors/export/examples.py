"""Episodes as rows of data sets for supervised learning and preference learning, with the tokens as they were sampled.

Columns are those that this project's `sft` and `dpo` read, and TRL's trainers: `input_ids` and `completion_mask`, or
`prompt_ids`, `chosen_ids` and `rejected_ids`. Texts stand beside them where the run has its tokenizer, for readers and
for trainers with another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from areal_actors.core.values import unpack_ids
from areal_actors.export.selection import reward_of, trajectory_of
from areal_actors.reader.records import EndedEpisode
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.credit import Credit

Decode = Callable[[list[int]], str | None]
"""Returns the text of token ids with special tokens; None without a tokenizer."""

ANY_AGE = -1
"""Oldest weight version of a learned token: tokens of every version are learned."""


def demonstration_rows(attempt: EndedEpisode, credit: Credit, decode: Decode) -> Iterator[dict[str, Any]]:
    """Yields a row for each sequence of an episode that has sampled tokens, as training would build it.

    `completion_mask` is 1 at sampled tokens; prompts, tool results and calls that are only context have 0.
    """
    for sequence in sequences_of(trajectory_of(attempt), 0, ANY_AGE, credit):
        mask = sequence.loss_mask.astype(int).tolist()
        if not any(mask) or sequence.images:
            continue
        ids = sequence.token_ids.tolist()
        first = mask.index(1)
        yield {
            "input_ids": ids,
            "completion_mask": mask,
            **text_columns({"prompt": ids[:first], "completion": ids[first:]}, decode),
            **_source(attempt),
        }


def preference_row(better: EndedEpisode, worse: EndedEpisode, decode: Decode) -> dict[str, Any]:
    """Returns the row of two answers to one prompt."""
    chosen, rejected = trajectory_of(better).interactions[0], trajectory_of(worse).interactions[0]
    ids = {
        "prompt": unpack_ids(chosen.prompt_suffix),
        "chosen": chosen.completion.ids_array().tolist(),
        "rejected": rejected.completion.ids_array().tolist(),
    }
    return {
        **{f"{name}_ids": tokens for name, tokens in ids.items()},
        **text_columns(ids, decode),
        **_source(better),
        "rejected_episode": worse.episode,
        "rejected_reward": reward_of(worse),
    }


def text_columns(ids: dict[str, list[int]], decode: Decode) -> dict[str, str]:
    """Returns the texts of named token ids; empty without a tokenizer."""
    texts = {name: decode(tokens) for name, tokens in ids.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _source(attempt: EndedEpisode) -> dict[str, Any]:
    trajectory = trajectory_of(attempt)
    return {
        "episode": trajectory.episode,
        "task": trajectory.task,
        "reward": trajectory.reward,
        **({"rewards": trajectory.metrics} if trajectory.metrics else {}),
        "weight_version": trajectory.oldest_version(),
    }
