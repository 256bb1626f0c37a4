"""Rows of recorded sessions, written by `areal-actors learn`: tokens with the log-probabilities of their sampling.

    {"input_ids", "completion_mask", "logprobs", "versions", "calls", "reward"}      a session, or a branch of it
    {"input_ids", "completion_mask"}                                                 an edited answer
    {"prompt_ids", "chosen_ids", "rejected_ids", "chosen_logprobs", "rejected_logprobs", "versions"}    a preference

Each row has the `log` and the `session` that it is of, and a `source` if it is rehearsed. `calls` has
`[start, end, reward, baseline, truncated, temperature]` for each call of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.core.values import PROMPT_VERSION, SequenceCall, TrainingSequence
from areal_actors.tokenization.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

CHOSEN, REJECTED = 1.0, 0.0
"""Rewards of the two sequences of a preference."""


class CallColumns(msgspec.Struct, frozen=True, array_like=True):
    """A call of a row."""

    start: int
    """Position of its first sampled token."""
    end: int
    """Position after its last sampled token."""
    reward: float
    baseline: float
    """Expected reward, fitted to other sessions."""
    truncated: bool = False
    """True if it was cut by length."""
    temperature: float | None = None
    """Temperature of its log-probabilities, if it is not the row's."""


class RecordedRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of recorded tokens; its fields show what was judged."""

    log: str
    """Folder of the run that recorded it."""
    session: str
    episode: str = ""
    input_ids: list[int] = []
    completion_mask: list[int] = []
    logprobs: list[float] = []
    """Log-probability of each token; 0 for prompts."""
    versions: list[int] = []
    """Weight version of each token; -1 for prompts. Of a preference: those of the two answers."""
    calls: list[CallColumns] = []
    reward: float | None = None
    temperature: float | None = None
    """Temperature of its log-probabilities; None of an edited answer."""
    prompt_ids: list[int] = []
    chosen_ids: list[int] = []
    rejected_ids: list[int] = []
    chosen_logprobs: list[float] = []
    rejected_logprobs: list[float] = []
    source: str = ""
    """Run that is rehearsed with it; empty for a session that is learned from."""

    @property
    def prompt(self) -> list[int]:
        """Tokens before the first that was sampled."""
        return self.prompt_ids or self.input_ids[: self.completion_mask.index(1)]

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence."""
        return len(self.input_ids) or len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))

    def is_preference(self) -> bool:
        """Returns True if it is of two answers."""
        return bool(self.prompt_ids)

    def sequences(self, group: int) -> Iterator[TrainingSequence]:
        """Yields its sequence, or both of a preference, as a group of their own."""
        if not self.is_preference():
            yield _sequence(self, group)
            return
        sides = ((self.chosen_ids, self.chosen_logprobs, CHOSEN), (self.rejected_ids, self.rejected_logprobs, REJECTED))
        for number, (answer, logprobs, reward) in enumerate(sides):
            prompt = len(self.prompt_ids)
            side = RecordedRow(
                log=self.log,
                session=self.session,
                input_ids=[*self.prompt_ids, *answer],
                completion_mask=[0] * prompt + [1] * len(answer),
                logprobs=[0.0] * prompt + logprobs,
                versions=[PROMPT_VERSION] * prompt + [self.versions[number]] * len(answer),
                temperature=self.temperature,
                source=self.source,
            )
            yield msgspec.structs.replace(_sequence(side, group), reward=reward)


def _sequence(row: RecordedRow, group: int) -> TrainingSequence:
    size = len(row.input_ids)
    calls = row.calls or [CallColumns(row.completion_mask.index(1), size, 0.0, 0.0)]
    return TrainingSequence(
        token_ids=np.array(row.input_ids, dtype=np.int64),
        loss_mask=np.array(row.completion_mask, dtype=bool),
        logprobs=np.array(row.logprobs or [0.0] * size, dtype=np.float32),
        versions=np.array(row.versions or [PROMPT_VERSION] * size, dtype=np.int32),
        group=group,
        reward=row.reward or 0.0,
        truncated=calls[-1].truncated,
        source=row.source,
        calls=tuple(
            SequenceCall(
                start=call.start,
                end=call.end,
                reward=call.reward,
                truncated=call.truncated,
                temperature=row.temperature if call.temperature is None else call.temperature,
                baseline=call.baseline,
            )
            for call in calls
        ),
    )


def read_recorded_row(row: dict[str, Any], place: str) -> RecordedRow:
    """Returns a row with its columns checked.

    Raises:
        SetupError: a column is missing or of another length; names it and the remedy.
    """
    remedy = "write the file again with `areal-actors learn`"
    try:
        recorded = msgspec.convert(row, RecordedRow)
    except msgspec.ValidationError as error:
        raise SetupError(f"{place}: {error}; {remedy}") from error
    for name, found, expected in _lengths(recorded):
        if found != expected:
            raise SetupError(f"{place}: `{name}` has {found} entries, expected {expected}; {remedy}")
    if not recorded.is_preference() and (1 not in recorded.completion_mask[1:] or recorded.completion_mask[0] == 1):
        raise SetupError(f"{place}: it has no sampled token after a prompt; {remedy}")
    return recorded


def _lengths(row: RecordedRow) -> Iterator[tuple[str, int, int]]:
    """Yields each column with its length and the expected one."""
    if row.is_preference():
        yield "chosen_logprobs", len(row.chosen_logprobs), max(1, len(row.chosen_ids))
        yield "rejected_logprobs", len(row.rejected_logprobs), max(1, len(row.rejected_ids))
        yield "versions", len(row.versions), 2
        return
    size, sampled = len(row.input_ids), len(row.input_ids) if row.calls else 0
    yield "completion_mask", len(row.completion_mask), size
    yield "logprobs", len(row.logprobs), sampled
    yield "versions", len(row.versions), sampled


def check_tokens(row: RecordedRow, tokenizer: ChatTokenizer, place: str) -> None:
    """Check that the tokens are of this tokenizer.

    Raises:
        SetupError: one is not.
    """
    if max(*row.input_ids, *row.prompt_ids, *row.chosen_ids, *row.rejected_ids, 0, 0) > tokenizer.largest_id:
        raise SetupError(f"{place}: its token ids are of another model's tokenizer; name the model that was served")
