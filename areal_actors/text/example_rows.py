"""From examples to rows: conversations as the model's own chat template writes them, trained where the assistant speaks.

Text is tokenized turn by turn as the gateway does it, what is sampled apart from what is given, so that a model sees in
training the very tokens that it sees when it is served.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Container, Iterator, Sequence

import msgspec
import numpy as np

from areal_actors.datasets.examples import Example, ExampleConversation, Examples
from areal_actors.errors import RequestError, SetupError
from areal_actors.messages import ExamplesDropped
from areal_actors.text.tokenizer import ChatTokenizer, context_of
from areal_actors.values import PROMPT_VERSION, Row

CHOSEN, REJECTED = 1.0, 0.0
"""Rewards of the two rows of a pair."""

OF_SAMPLED_ROWS = frozenset({"groups", "groups_without_signal", "max_logprob_difference", "parity_tokens"})
OF_REWARDS = ("reward_", "advantage_")
"""What metrics begin with that say nothing of examples."""

Part = tuple[list[int], list[bool]]
"""Token ids, and which of them are learned."""


class LengthLimit(msgspec.Struct, frozen=True):
    """How long a row may be, and what becomes of examples with longer ones."""

    tokens: int = 0
    """0 for as many as the model's context has, which no row may exceed."""
    drop: bool = False
    """Leave them out, instead of refusing them."""
    least: int = 1
    """So many must be left to train on."""


UNBOUNDED = LengthLimit()


class ExampleRows:
    """The rows of examples by their number, and those held out; what the trainer learns from when there are no episodes."""

    def __init__(
        self,
        train: Examples,
        held_out: Examples,
        *,
        scored: bool = False,
        due: Callable[[int], int] = lambda _: 0,
        limit: LengthLimit = UNBOUNDED,
    ) -> None:
        """Take the examples.

        Args:
            train: what is learned.
            held_out: what is not.
            scored: rows are scored as a whole, at their last token, instead of learned token by token.
            due: of a weight version: on how many of the held-out examples it is measured.
            limit: how long a row may be.
        """
        self.train = train
        self.kept = held_out
        self.scored = scored
        self.due = due
        self.limit = limit
        self.tokenizer: ChatTokenizer | None = None

    def begin(self, model_folder: str) -> ExamplesDropped | None:
        """Take tokenizer and chat template from this Hugging Face folder, and see that every example fits into the model's context.

        Returns:
            How many do not fit and are left out from now on, if the limit says so; numbers then count those that are left.

        Raises:
            SetupError: the folder has none, or examples are too long; the first of them is named, and how many there are.
        """
        self.tokenizer = tokenizer = ChatTokenizer.load(model_folder)
        context = context_of(model_folder)
        limit = min(filter(None, (self.limit.tokens, context)), default=0)
        if not limit:
            return None
        longer = [dict(longer_than(limit, examples, tokenizer, scored=self.scored)) for examples in (self.train, self.kept)]
        if not any(longer):
            return None
        if not self.limit.drop:
            raise SetupError(_refusal(self.train if longer[0] else self.kept, longer, limit, of_model=limit == context))
        self.train, self.kept = Left.of(self.train, longer[0]), Left.of(self.kept, longer[1])
        if len(self.train) < self.limit.least:
            raise SetupError(
                f"task.too_long: without the {len(longer[0])} of more than {limit:,} tokens, the {len(self.train)} examples that are left "
                f"are fewer than a batch of {self.limit.least}; raise task.max_length, or take other examples or a smaller batch"
            )
        return ExamplesDropped(dropped=len(longer[0]), held_out_dropped=len(longer[1]), left=len(self.train), limit=limit)

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """The rows of these examples; each example is a group of its own.

        Raises:
            SetupError: the chat template cannot write one of them; it is named.
        """
        return self._rows([self.train.example(number) for number in numbers])

    def held_out(self, weight_version: int) -> list[Row]:
        """The rows that this version is measured on; empty when it is not."""
        return self._rows([self.kept.example(number) for number in range(min(self.due(weight_version), len(self.kept)))])

    def _rows(self, examples: Sequence[Example]) -> list[Row]:
        if self.tokenizer is None:
            raise RuntimeError("examples were asked for before there was a model whose template writes them")
        return [
            row for group, example in enumerate(examples) for row in rows_of_example(example, group, self.tokenizer, scored=self.scored)
        ]


def rows_of_example(example: Example, group: int, tokenizer: ChatTokenizer, *, scored: bool = False) -> list[Row]:
    """The rows of a demonstration or a pair.

    Raises:
        SetupError: the chat template cannot write it, or rewrites earlier turns of a pair; the example is named.
    """
    rows: list[Row] = []
    for number, conversation in enumerate(example.conversations):
        try:
            parts = [scored_part(conversation, tokenizer)] if scored else learned_parts(conversation, tokenizer)
        except (RequestError, SetupError) as error:
            raise SetupError(f"{example.place}: {error}") from error
        if len(example.conversations) > 1 and len(parts) > 1:
            raise SetupError(
                f"{example.place}: the model's chat template rewrites earlier turns, so that several answers of one conversation "
                "do not stand in one row; put all but the last of `chosen` and `rejected` into `prompt`"
            )
        rows += [row(*part, group, reward=CHOSEN if number == 0 else REJECTED) for part in parts]
    return rows


class Left(msgspec.Struct, frozen=True):
    """What is left of examples when some are dropped, in their order."""

    examples: Examples
    numbers: Sequence[int]

    @classmethod
    def of(cls, examples: Examples, dropped: Container[int]) -> Left:
        """Leave out those of these numbers."""
        return cls(examples, array("I", (number for number in range(len(examples)) if number not in dropped)))

    def __len__(self) -> int:
        return len(self.numbers)

    def example(self, number: int) -> Example:
        """See `Examples`."""
        return self.examples.example(self.numbers[number])


def longer_than(limit: int, examples: Examples, tokenizer: ChatTokenizer, *, scored: bool) -> Iterator[tuple[int, int]]:
    """The numbers of those with a row of more tokens, and how many that has.

    The token behind a scored row is never fed, and does not count.

    Raises:
        SetupError: see `rows_of_example`.
    """
    for number in range(len(examples)):
        example = examples.example(number)
        if not _is_short(example, limit, tokenizer):
            longest = max(len(row.token_ids) for row in rows_of_example(example, 0, tokenizer, scored=scored)) - scored
            if longest > limit:
                yield number, longest


def _is_short(example: Example, limit: int, tokenizer: ChatTokenizer) -> bool:
    """Whether it need not be tokenized to know that it fits: a token has a byte or more.

    The rows of templates that rewrite earlier turns may say what the whole conversation does not, so messages count again.
    """
    try:
        return all(
            len(tokenizer.render(conversation.messages, conversation.tools, add_generation_prompt=False).encode())
            + len(msgspec.json.encode(conversation.messages))
            <= limit
            for conversation in example.conversations
        )
    except (RequestError, SetupError):
        return False


def _refusal(examples: Examples, longer: Sequence[dict[int, int]], limit: int, *, of_model: bool) -> str:
    """Names the first of these examples that is too long, of all that are."""
    number, tokens = next(found for every in longer for found in every.items())
    others = sum(map(len, longer)) - 1
    more = f" ({others} more {'is' if others == 1 else 'are'} too long, too)" if others else ""
    bound, remedy = ("the model's context has", "take a model with a longer context") if of_model else ("task.max_length is", "raise that")
    return (
        f"{examples.example(number).place}: {tokens:,} tokens as the model's chat template writes it, but {bound} {limit:,}{more}; "
        f'shorten or split such rows, write task.too_long = "drop" to leave them out, or {remedy}'
    )


def learned_parts(conversation: ExampleConversation, tokenizer: ChatTokenizer) -> list[Part]:
    """Each answer that is learned, up to the token that ends its turn, below what stands before it.

    Answers share a row as far as the template only appends; where it rewrites what came before, a new row begins.
    """
    messages, tools = conversation.messages, conversation.tools
    parts: list[Part] = []
    text = ""
    for index in range(conversation.first, len(messages)):
        if messages[index]["role"] != "assistant":
            continue
        context = tokenizer.render(messages[:index], tools, add_generation_prompt=False)
        whole = tokenizer.render(messages[: index + 1], tools, add_generation_prompt=False)
        # Some templates open an answer with what they do not keep of it afterwards.
        prompt = _shared_beginning(tokenizer.render(messages[:index], tools), whole)
        if len(prompt) < len(context):
            raise SetupError(f"the model's chat template does not write message {index} behind what it answers")
        if not parts or not prompt.startswith(text):
            parts.append(([], []))
            text = ""
        answered = whole[: _end_of_turn(whole, len(prompt), tokenizer)]
        ids, learned = parts[-1]
        for piece, said in ((prompt[len(text) :], False), (answered[len(prompt) :], index not in conversation.unlearned)):
            encoded = tokenizer.encode(piece)
            ids += encoded
            learned += [said] * len(encoded)
        text = answered
    return parts


def _shared_beginning(one: str, other: str) -> str:
    differing = (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    return one[: next(differing, min(len(one), len(other)))]


def _end_of_turn(text: str, start: int, tokenizer: ChatTokenizer) -> int:
    """Where the answer that starts here ends: after its last end-of-turn token, or with the text if the template writes none."""
    stops = [tokenizer.decode([stop], skip_special=False) for stop in tokenizer.stop_ids]
    ends = [found + len(stop) for stop in stops if stop and (found := text.rfind(stop, start)) >= 0]
    return max(ends, default=len(text))


def scored_part(conversation: ExampleConversation, tokenizer: ChatTokenizer) -> Part:
    """The whole conversation as the template writes it, and one more token, which is never fed to the model.

    A position scores the token after it: to be scored at its last token, as sequence classifiers of Hugging Face are, a row
    needs one behind it.
    """
    text = tokenizer.render(conversation.messages, conversation.tools, add_generation_prompt=False)
    ids = [*tokenizer.encode(text), 0]
    return ids, [False] * (len(ids) - 1) + [True]


def row(ids: list[int], learned: list[bool], group: int, *, reward: float) -> Row:
    """A part as the trainer takes it: nothing in it was sampled."""
    return Row(
        token_ids=np.array(ids, dtype=np.int64),
        loss_mask=np.array(learned, dtype=bool),
        logprobs=np.zeros(len(ids), dtype=np.float32),
        versions=np.full(len(ids), PROMPT_VERSION, dtype=np.int32),
        group=group,
        reward=reward,
        truncated=False,
    )


def example_metrics(metrics: dict[str, float], rows: Sequence[Row]) -> dict[str, float]:
    """What an engine says of a step or an evaluation, without what makes sense of sampled rows only."""
    kept = {name: value for name, value in metrics.items() if name not in OF_SAMPLED_ROWS and not name.startswith(OF_REWARDS)}
    return {**kept, "examples": float(len({row.group for row in rows}))}


def checksum(rows: Sequence[Row]) -> str:
    """CRC-32 of the ids of all rows and of which are learned, in row order."""
    value = 0
    for row in rows:
        value = zlib.crc32(row.token_ids.astype("<u4").tobytes(), value)
        value = zlib.crc32(row.loss_mask.tobytes(), value)
    return f"{value:08x}"
