"""Characters of a completion that each of its sampled tokens writes, without tokenizing any text again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from areal_actors.tokenization.tokenizer import ChatTokenizer, IncrementalDecoder


class TokenCharacters(msgspec.Struct, frozen=True):
    """The text of a completion without special tokens, and the characters of each token in it."""

    text: str
    starts: tuple[int, ...]
    """First character of each token."""
    ends: tuple[int, ...]
    """End of its characters, exclusive; equal to its start for a special token, which writes none."""

    @classmethod
    def of(cls, chat: ChatTokenizer, ids: Sequence[int]) -> TokenCharacters:
        """Decode tokens one by one; a character that several tokens write belongs to each of them."""
        decoder, parts, starts, ends, written = IncrementalDecoder(chat, special=False), list[str](), [], [], 0
        for token_id in ids:
            piece = decoder.push(token_id)
            parts.append(piece)
            starts.append(written)
            written += len(piece)
            ends.append(written if piece or chat.is_hidden(token_id) else written + 1)
        text = "".join([*parts, decoder.finish()])
        return cls(text, tuple(starts), tuple(min(end, len(text)) for end in ends))

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the first token of a range of characters and the end of its tokens; None if it has none.

        A token of which the range has a part is in it as a whole.
        """
        inside = [
            place
            for place, (first, last) in enumerate(zip(self.starts, self.ends, strict=True))
            if first < end and last > start
        ]
        return (inside[0], inside[-1] + 1) if inside else None

    def ranges_of(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields every range of characters that has a text, without overlaps."""
        place = self.text.find(text)
        while place >= 0:
            yield place, place + len(text)
            place = self.text.find(text, place + len(text))
