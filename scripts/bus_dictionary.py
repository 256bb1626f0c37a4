"""Writes a dictionary for deflated messages: `python scripts/bus_dictionary.py tests/recordings/log-3.xz bus/dictionary_2.bin`.

It has one message of each frequent kind of a recorded log, without texts and token columns; the most frequent are last, where zlib finds
them at the least cost. A dictionary that was released is never written again.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.messages import (
    CapacityGranted,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    Generate,
    Generated,
    InteractionRecorded,
    SessionOpened,
    TrajectoryExported,
)
from bus.base import Envelope
from bus.message import Message
from bus.recorded import read_log

REQUESTS: tuple[type[Message], ...] = (SessionOpened, Generate, Generated)
"""Frequent kinds that no log has: their names and fields."""
EVENTS: tuple[type[Message], ...] = (
    EpisodeAbandoned,
    EpisodeEvaluated,
    CapacityGranted,
    EpisodeScored,
    TrajectoryExported,
    InteractionRecorded,
)
TRAINED = {kind.subject for kind in (EpisodeAbandoned, EpisodeScored, InteractionRecorded)}
"""Kinds with a purpose, of which evaluation has few."""
TRAIN = msgspec.msgpack.encode("train")
NAME = re.compile(r"[\w.-]{0,20}")


def without_content(value: Any) -> Any:
    """Returns a value with only names, numbers and short words in it."""
    if isinstance(value, dict):
        return {key: without_content(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_content(one) for one in value]
    if isinstance(value, bytes) or (isinstance(value, str) and not NAME.fullmatch(value)):
        return value[:0]
    return value


def main(recording: Path, dictionary: Path) -> None:
    """Write a dictionary."""
    if dictionary.exists():
        sys.exit(f"{dictionary} exists: logs need it as it is")
    content = [msgspec.msgpack.encode({kind.subject: kind.__struct_fields__}) for kind in REQUESTS]
    seen = {envelope.subject: envelope for envelope in read_log(recording) if TRAIN in envelope.body or envelope.subject not in TRAINED}
    for kind in EVENTS:
        if envelope := seen.get(kind.subject):
            message = msgspec.to_builtins(envelope.open(kind), builtin_types=(bytes,))
            body = msgspec.msgpack.encode(without_content(message))
            fields = {"id": "", "run": "", "cause": "", "checksum": 0, "body": body}
            content.append(msgspec.msgpack.encode(msgspec.structs.replace(envelope, **fields, sequence=0)))
    dictionary.write_bytes(b"".join(content))
    print(f"{dictionary}: {dictionary.stat().st_size} bytes, for {Envelope.__name__}s of {len(content)} kinds")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
