"""Examples that are token ids already: episodes of a run, written by `areal-actors export --sft` or `--preferences`.

    {"input_ids": [...], "completion_mask": [...]}                       a sequence; tokens with mask 1 are learned
    {"prompt_ids": [...], "chosen_ids": [...], "rejected_ids": [...]}    a pair

They are trained as they were sampled, and no chat template is applied. Texts beside them (`prompt`, `completion`,
`chosen`, `rejected`) have to be what the model's tokenizer makes of the ids: another tokenizer is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.tokenization.tokenizer import ChatTokenizer

SEQUENCE = ("input_ids", "completion_mask")
PAIR = ("prompt_ids", "chosen_ids", "rejected_ids")


class TokenizedConversation(msgspec.Struct, frozen=True):
    """Tokens of a sequence, some of which are learned."""

    ids: list[int]
    learned: list[bool]
    texts: tuple[str, str] | None = None
    """Texts of the prompt and of the rest, with special tokens; None if the row has none."""

    @property
    def prompt(self) -> list[int]:
        """Tokens before the first that is learned."""
        return self.ids[: self.learned.index(True)]

    def check(self, tokenizer: ChatTokenizer) -> None:
        """Check that the tokens are of this tokenizer.

        Raises:
            SetupError: they are not.
        """
        prompt = self.prompt
        parts = (prompt, self.ids[len(prompt) :])
        if max(self.ids) > tokenizer.largest_id or (
            self.texts is not None and tuple(tokenizer.decode(part, skip_special=False) for part in parts) != self.texts
        ):
            raise SetupError(
                "its token ids are of another model's tokenizer; name that model, or export messages for this one and"
                f" leave `{SEQUENCE[0]}` and `{'`, `'.join(PAIR)}` out"
            )


def read_sequence(row: dict[str, Any], place: str) -> TokenizedConversation:
    """Returns the sequence of a row.

    Raises:
        SetupError: the columns are no token ids and mask of equal length, or nothing is learned.
    """
    ids, mask = _ids(row, SEQUENCE[0], place), row[SEQUENCE[1]]
    if not isinstance(mask, list) or len(mask) != len(ids) or not set(mask) <= {0, 1}:
        raise SetupError(f"{place}: `completion_mask` must be a list of 0 and 1, as long as `input_ids` ({len(ids)})")
    if 1 not in mask[1:] or mask[0] == 1:
        raise SetupError(f"{place}: `completion_mask` has to be 0 at the first token and 1 at a later one")
    return TokenizedConversation(ids, [entry == 1 for entry in mask], _texts(row, "completion"))


def read_pair(row: dict[str, Any], place: str) -> tuple[TokenizedConversation, TokenizedConversation]:
    """Returns the chosen and the rejected sequence of a row.

    Raises:
        SetupError: a column is no list of token ids, or both answers are the same.
    """
    prompt, chosen, rejected = (_ids(row, name, place) for name in PAIR)
    if chosen == rejected:
        raise SetupError(f"{place}: `chosen_ids` and `rejected_ids` are the same; leave the row out")
    sides = (("chosen", chosen), ("rejected", rejected))
    first, second = (
        TokenizedConversation(prompt + answer, [False] * len(prompt) + [True] * len(answer), _texts(row, name))
        for name, answer in sides
    )
    return first, second


def _ids(row: dict[str, Any], name: str, place: str) -> list[int]:
    ids = row[name]
    if not isinstance(ids, list) or not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise SetupError(f"{place}: `{name}` must be a list of token ids with at least one, got {ids!r:.60}")
    return ids


def _texts(row: dict[str, Any], answer: str) -> tuple[str, str] | None:
    prompt, rest = row.get("prompt"), row.get(answer)
    return (prompt, rest) if isinstance(prompt, str) and isinstance(rest, str) else None
