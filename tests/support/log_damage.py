"""Ways to damage a nats-server's store, as disks, power failures and people do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

Damage = Callable[[Path], object]
"""Done to the folder of a stream's blocks."""


def blocks_of(store: Path, stream: str) -> Path:
    """The folder in which a server keeps the blocks of a stream."""
    (blocks,) = (store / "store" / "jetstream").glob(f"*/streams/{stream}/msgs")
    return blocks


def newest(blocks: Path) -> Path:
    """The block that is written to."""
    return max(blocks.glob("*.blk"), key=lambda path: int(path.stem))


def second(blocks: Path) -> Path:
    return sorted(blocks.glob("*.blk"), key=lambda path: int(path.stem))[1]


def flip(path: Path, share: float) -> None:
    """Change one byte at this share of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path, by: int = 1000) -> None:
    """Leave out the end of a file."""
    os.truncate(path, path.stat().st_size - by)


def without_index(blocks: Path) -> None:
    """A server that is killed leaves an index that is older than the blocks, or none."""
    (blocks / "index.db").unlink(missing_ok=True)


def both(first: Damage, then: Damage) -> Damage:
    """One after the other."""

    def damage(blocks: Path) -> None:
        first(blocks)
        then(blocks)

    return damage


def flipped_middle(blocks: Path) -> None:
    flip(second(blocks), 0.5)


def flipped_tail(blocks: Path) -> None:
    flip(newest(blocks), 0.9999)


def torn_tail(blocks: Path) -> None:
    cut(newest(blocks))


def second_missing(blocks: Path) -> None:
    second(blocks).unlink()


def newest_missing(blocks: Path) -> None:
    newest(blocks).unlink()


def all_missing(blocks: Path) -> None:
    for path in blocks.glob("*.blk"):
        path.unlink()


HOLES: Mapping[str, Damage] = {
    "flipped in the middle": flipped_middle,
    "flipped in the middle, no index": both(flipped_middle, without_index),
    "flipped at the tail": flipped_tail,
    "torn tail": torn_tail,
    "second block missing": second_missing,
    "second block missing, no index": both(second_missing, without_index),
    "newest block missing": newest_missing,
    "newest block emptied": lambda blocks: os.truncate(newest(blocks), 0),
    "oldest block missing": lambda blocks: min(blocks.glob("*.blk"), key=lambda path: int(path.stem)).unlink(),
    "all blocks missing": all_missing,
}
"""Damage that loses messages which the server still counts."""

SHORTER: Mapping[str, Damage] = {
    "torn tail, no index": both(torn_tail, without_index),
    "flipped at the tail, no index": both(flipped_tail, without_index),
    "newest block missing, no index": both(newest_missing, without_index),
}
"""Damage that the server takes for a log that was never longer."""

HARMLESS: Mapping[str, Damage] = {
    "index missing": without_index,
    "index damaged": lambda blocks: flip(blocks / "index.db", 0.5),
}

GONE: Mapping[str, Damage] = {
    "stream missing": lambda blocks: shutil.rmtree(blocks.parent),
    "description missing": lambda blocks: (blocks.parent / "meta.inf").unlink(),
    "description damaged": lambda blocks: flip(blocks.parent / "meta.inf", 0.5),
}
"""Damage that leaves no stream at all."""
