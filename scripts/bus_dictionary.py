"""Trains a dictionary for compressed messages, in areal_actors/messages/dictionaries.

`python scripts/bus_dictionary.py FILE LOG ...`.
Each LOG is that of a run of another recipe (`areal-actors export RUN LOG`). Texts are replaced by the documentation's
prose, so that the dictionary has no task's sentences. A dictionary that was released is never written again.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import zstandard

from areal_actors.messages import KINDS
from areal_bus.base import Envelope
from areal_bus.recorded import read_log

DICTIONARY_BYTES = 64 << 10
SEGMENT_BYTES, MATCH_BYTES = 1024, 8
"""Parameters of the training: segments as long as a message, of which most is the same in each of its kind."""
SAMPLES_A_KIND = 400
LEAST_SHARE = 0.01
"""Share of a log's messages that a kind has at least."""
LEVEL = 5
"""Level of `bus/areal_bus/payload.py`."""
SHORT_WORD = re.compile(r"[\w.-]{0,20}")
BY_SUBJECT = {kind.subject: kind for kind in KINDS}


class Prose:
    """Replaces the texts of messages."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._random = Random(0)

    def replaced(self, value: Any) -> Any:
        """Returns a value with other texts of the same lengths; names, numbers and short words stay."""
        if isinstance(value, dict):
            return {key: self.replaced(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.replaced(one) for one in value]
        if isinstance(value, str) and not SHORT_WORD.fullmatch(value):
            begin = self._random.randrange(max(len(self._text) - len(value), 1))
            return self._text[begin : begin + len(value)]
        return value

    def sample(self, envelope: Envelope) -> bytes:
        """Returns an envelope as it is compressed, with other texts."""
        message = msgspec.to_builtins(envelope.open(BY_SUBJECT[envelope.subject]).pack(), builtin_types=(bytes,))
        body = msgspec.msgpack.encode(self.replaced(message))
        return msgspec.msgpack.encode(
            msgspec.structs.replace(envelope, body=body, checksum=zlib.crc32(body), sequence=0)
        )


def samples(log: Path, prose: Prose) -> Iterator[bytes]:
    """Yield a log's messages of frequent kinds, of each evenly over the log."""
    of_kind: dict[str, list[Envelope]] = {}
    for envelope in read_log(log):
        if envelope.subject in BY_SUBJECT and not envelope.claim:
            of_kind.setdefault(envelope.subject, []).append(envelope)
    least = LEAST_SHARE * sum(map(len, of_kind.values()))
    for envelopes in of_kind.values():
        if len(envelopes) < least:
            continue
        step = max(1, len(envelopes) // SAMPLES_A_KIND)
        yield from (prose.sample(one) for one in envelopes[::step])


def main(dictionary: Path, logs: list[Path]) -> None:
    """Write a dictionary."""
    if dictionary.exists():
        sys.exit(f"{dictionary} exists: logs need it as it is")
    prose = Prose(" ".join(page.read_text() for page in sorted(Path("docs").glob("*.md"))))
    content = [sample for log in logs for sample in samples(log, prose)]
    trained = zstandard.train_dictionary(DICTIONARY_BYTES, content, k=SEGMENT_BYTES, d=MATCH_BYTES, level=LEVEL)
    dictionary.write_bytes(trained.as_bytes())
    print(f"{dictionary}: {dictionary.stat().st_size} bytes, of {len(content)} messages")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(log) for log in sys.argv[2:]])
