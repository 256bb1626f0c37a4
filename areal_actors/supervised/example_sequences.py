"""Supervised examples as sequences: conversations in the model's chat template, with a loss mask on assistant text.

Text is tokenized turn by turn as in the gateway, sampled text apart from given text, so that training uses the same
tokens as serving.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from areal_actors.core.errors import RequestError, SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.core.model_config import context_of
from areal_actors.core.values import PROMPT_VERSION, TrainingSequence
from areal_actors.messages import ExamplesDropped
from areal_actors.supervised.examples import Example, ExampleConversation, Examples, LengthLimit
from areal_actors.supervised.recorded_session import RecordedRow, check_tokens
from areal_actors.supervised.tokenized_conversation import TokenizedConversation
from areal_actors.tokenization.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")


CHOSEN, REJECTED = 1.0, 0.0
"""Rewards of the two sequences of a pair."""


Segment = tuple[list[int], list[bool]]
"""Token ids and their loss mask."""


NO_LIMIT = LengthLimit()


class ExampleSequences:
    """Sequences of training and held-out examples by number: the trainer's data in supervised runs."""

    def __init__(
        self,
        train: Examples,
        held_out: Examples,
        *,
        scored: bool = False,
        due: Callable[[int], int] = lambda _: 0,
        limit: LengthLimit = NO_LIMIT,
    ) -> None:
        """Set the examples.

        Args:
            train: training examples.
            held_out: evaluation examples.
            scored: sequences have one scored token, their last, instead of a loss mask on assistant text.
            due: maps a weight version to the number of held-out examples to evaluate it on.
            limit: largest length of a sequence.
        """
        self.train = train
        self.kept = held_out
        self.scored = scored
        self.due = due
        self.limit = limit
        self.tokenizer: ChatTokenizer | None = None

    def begin(self, model_folder: str) -> ExamplesDropped | None:
        """Load tokenizer and chat template from a Hugging Face folder, and check the length of every example.

        Returns:
            Counts of dropped examples, if `limit.drop` is set and some are too long; numbers then count the rest.

        Raises:
            SetupError: the folder has neither, or examples are too long; names the first and their number.
        """
        self.tokenizer = tokenizer = ChatTokenizer.load(model_folder)
        context = context_of(model_folder)
        limit = min(filter(None, (self.limit.tokens, context)), default=0)
        if not limit:
            return None
        longer = [
            dict(too_long_examples(limit, examples, tokenizer, scored=self.scored))
            for examples in (self.train, self.kept)
        ]
        if not any(longer):
            return None
        if not self.limit.drop:
            raise SetupError(
                _too_long_message(self.train if longer[0] else self.kept, longer, limit, of_model=limit == context)
            )
        self.train, self.kept = FilteredExamples.of(self.train, longer[0]), FilteredExamples.of(self.kept, longer[1])
        if len(self.train) < self.limit.min_examples:
            raise SetupError(
                f"task.overlong: after dropping {len(longer[0])} examples of more than {limit:,} tokens,"
                f" {len(self.train)} are left, fewer than a batch of {self.limit.min_examples}; raise task.max_length,"
                " or use other examples or a smaller batch"
            )
        return ExamplesDropped(
            dropped=len(longer[0]), held_out_dropped=len(longer[1]), left=len(self.train), limit=limit
        )

    def sequences(self, numbers: Sequence[int]) -> list[TrainingSequence]:
        """Sequences of these examples; each example is a separate group.

        Raises:
            SetupError: the chat template cannot render one of them; names it.
        """
        return self._sequences([self.train[number] for number in numbers])

    def held_out_sequences(self, weight_version: int) -> list[TrainingSequence]:
        """Sequences to evaluate a weight version on; empty if it is not evaluated."""
        return self._sequences([self.kept[number] for number in range(min(self.due(weight_version), len(self.kept)))])

    def _sequences(self, examples: Sequence[Example]) -> list[TrainingSequence]:
        if self.tokenizer is None:
            raise RuntimeError("sequences were requested before begin() loaded a tokenizer")
        return [
            sequence
            for group, example in enumerate(examples)
            for sequence in sequences_of_example(example, group, self.tokenizer, scored=self.scored)
        ]


def sequences_of_example(
    example: Example, group: int, tokenizer: ChatTokenizer, *, scored: bool = False
) -> list[TrainingSequence]:
    """Sequences of a demonstration or a pair.

    Raises:
        SetupError: the chat template cannot render it, or rewrites earlier turns of a pair, or a scored one has
            weights; names the example.
    """
    sequences: list[TrainingSequence] = []
    for number, conversation in enumerate(example.conversations):
        if isinstance(conversation, RecordedRow):
            check_tokens(conversation, tokenizer, example.place)
            sequences += conversation.sequences(group)
            continue
        if isinstance(conversation, TokenizedConversation):
            reward = CHOSEN if number == 0 else REJECTED
            sequences.append(_sequence_of_tokens(conversation, group, tokenizer, example.place, reward, scored=scored))
            continue
        if scored and conversation.unlearned:
            raise SetupError(
                f"{example.place}: message {min(conversation.unlearned)} has weight 0, which has no meaning where a"
                " reward model scores the whole conversation; leave the weight out"
            )
        try:
            parts = [scored_segment(conversation, tokenizer)] if scored else trained_segments(conversation, tokenizer)
        except (RequestError, SetupError) as error:
            raise SetupError(f"{example.place}: {error}") from error
        if len(example.conversations) > 1 and len(parts) > 1:
            raise SetupError(
                f"{example.place}: the model's chat template rewrites earlier turns, so that several answers of one"
                " conversation do not stand in one sequence; put all but the last of `chosen` and `rejected` into"
                " `prompt`"
            )
        sequences += [sequence(*part, group, reward=CHOSEN if number == 0 else REJECTED) for part in parts]
    return sequences


def _sequence_of_tokens(
    tokens: TokenizedConversation, group: int, tokenizer: ChatTokenizer, place: str, reward: float, *, scored: bool
) -> TrainingSequence:
    try:
        tokens.check(tokenizer)
    except SetupError as error:
        raise SetupError(f"{place}: {error}") from error
    part = scored_ids(tokens.ids) if scored else (tokens.ids, tokens.learned)
    return sequence(*part, group, reward=reward)


class FilteredExamples(msgspec.Struct, frozen=True):
    """The remaining examples when some are dropped, in order."""

    examples: Examples
    numbers: Sequence[int]

    @classmethod
    def of(cls, examples: Examples, dropped: Container[int]) -> FilteredExamples:
        """Drop the examples with these numbers."""
        return cls(examples, array("I", (number for number in range(len(examples)) if number not in dropped)))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Example:
        return self.examples[self.numbers[number]]


def too_long_examples(
    limit: int, examples: Examples, tokenizer: ChatTokenizer, *, scored: bool
) -> Iterator[tuple[int, int]]:
    """Yield number and length of each example with a sequence of more than `limit` tokens.

    The token after a scored sequence is never fed, and does not count.

    Raises:
        SetupError: see `sequences_of_example`.
    """
    for number in range(len(examples)):
        example = examples[number]
        if not _is_short(example, limit, tokenizer):
            longest = (
                max(len(sequence.token_ids) for sequence in sequences_of_example(example, 0, tokenizer, scored=scored))
                - scored
            )
            if longest > limit:
                yield number, longest


def _is_short(example: Example, limit: int, tokenizer: ChatTokenizer) -> bool:
    """True if the example fits by its size in bytes, without tokenization: a token has at least one byte.

    With templates that rewrite earlier turns, sequences may contain text that the whole conversation lacks, so messages
    count twice.
    """
    try:
        return all(_most_tokens(conversation, tokenizer) <= limit for conversation in example.conversations)
    except (RequestError, SetupError):
        return False


def _most_tokens(
    conversation: ExampleConversation | TokenizedConversation | RecordedRow, tokenizer: ChatTokenizer
) -> int:
    if isinstance(conversation, TokenizedConversation):
        return len(conversation.ids)
    if isinstance(conversation, RecordedRow):
        return conversation.longest
    rendered = tokenizer.render(conversation.messages, conversation.tools, add_generation_prompt=False)
    return len(rendered.encode()) + len(msgspec.json.encode(conversation.messages))


def _too_long_message(examples: Examples, longer: Sequence[dict[int, int]], limit: int, *, of_model: bool) -> str:
    """Error text that names the first example that is too long and the number of others."""
    number, tokens = next(lengths for every in longer for lengths in every.items())
    other_count = sum(map(len, longer)) - 1
    more = f" ({other_count} more {'is' if other_count == 1 else 'are'} too long, too)" if other_count else ""
    bound, remedy = (
        ("the model's context has", "use a model with a longer context")
        if of_model
        else ("task.max_length is", "raise that")
    )
    return (
        f"{examples[number].place}: {tokens:,} tokens as the model's chat template writes it, but {bound}"
        f" {limit:,}{more}; "
        f'shorten or split such sequences, set task.overlong = "drop" to drop them, or {remedy}'
    )


def trained_segments(conversation: ExampleConversation, tokenizer: ChatTokenizer) -> list[Segment]:
    """Segments with each trained answer, through the token that ends its turn, and the context before it.

    Answers share a segment as long as the template only appends; where it rewrites earlier text, a new segment begins.
    """
    messages, tools = conversation.messages, conversation.tools
    parts: list[Segment] = []
    text = ""
    for index in range(conversation.first, len(messages)):
        if messages[index]["role"] != "assistant":
            continue
        context = tokenizer.render(messages[:index], tools, add_generation_prompt=False)
        whole = tokenizer.render(messages[: index + 1], tools, add_generation_prompt=False)
        # Some templates open an answer with text that they drop afterwards.
        prompt = _shared_beginning(tokenizer.render(messages[:index], tools), whole)
        if len(prompt) < len(context):
            raise SetupError(f"the model's chat template does not append message {index} to the messages before it")
        if not parts or not prompt.startswith(text):
            parts.append(([], []))
            text = ""
        answered = whole[: _end_of_turn(whole, len(prompt), tokenizer)]
        ids, learned = parts[-1]
        for piece, trained in (
            (prompt[len(text) :], False),
            (answered[len(prompt) :], index not in conversation.unlearned),
        ):
            encoded = tokenizer.encode(piece)
            ids += encoded
            learned += [trained] * len(encoded)
        text = answered
    return parts


def _shared_beginning(first: str, second: str) -> str:
    differing = (place for place, (left, right) in enumerate(zip(first, second, strict=False)) if left != right)
    return first[: next(differing, min(len(first), len(second)))]


def _end_of_turn(text: str, start: int, tokenizer: ChatTokenizer) -> int:
    """End of the answer that starts here: after its last end-of-turn token, or the end of the text without one."""
    stops = [tokenizer.decode([stop], skip_special=False) for stop in tokenizer.stop_ids]
    ends = [place + len(stop) for stop in stops if stop and (place := text.rfind(stop, start)) >= 0]
    return max(ends, default=len(text))


def scored_segment(conversation: ExampleConversation, tokenizer: ChatTokenizer) -> Segment:
    """The whole rendered conversation and one more token, which is never fed to the model.

    A position scores the token after it: to be scored at its last token, as in Hugging Face sequence classifiers, a
    sequence needs one more.
    """
    text = tokenizer.render(conversation.messages, conversation.tools, add_generation_prompt=False)
    return scored_ids(tokenizer.encode(text))


def scored_ids(ids: list[int]) -> Segment:
    """The tokens of a scored sequence, and the one that is never fed."""
    return [*ids, 0], [False] * len(ids) + [True]


def sequence(ids: list[int], learned: list[bool], group: int, *, reward: float) -> TrainingSequence:
    """A segment as a training sequence without sampled tokens."""
    return TrainingSequence(
        token_ids=np.array(ids, dtype=np.int64),
        loss_mask=np.array(learned, dtype=bool),
        logprobs=np.zeros(len(ids), dtype=np.float32),
        versions=np.full(len(ids), PROMPT_VERSION, dtype=np.int32),
        group=group,
        reward=reward,
        truncated=False,
    )
