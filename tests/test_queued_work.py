"""The rest of a work queue of which the server's disk has lost a part."""

from __future__ import annotations

from support.log_damage import blocks_of, without_index
from support.samples import work

from areal_actors.messages import KINDS, EvaluateEpisode, ScoreEpisode
from areal_actors.recovery.log_answers import queued_attempts
from areal_bus.base import Stamp
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer

ITEMS = [
    *(work(f"{number}.0") for number in range(40)),
    EvaluateEpisode(work=work("evaluation-0-greedy.0", purpose="evaluate")),
    ScoreEpisode(work=work("50.0", attempt=2), session="s", output="42"),
    work("0.0", attempt=2),
]


async def queued(folder, publish=()):
    """The attempts that a server finds in its store."""
    server = await EmbeddedServer.start(folder / "nats")
    try:
        bus = await NatsBus.connect(
            server.url, "test", name="tester", token=server.token, kinds=KINDS, blobs=folder / "blobs"
        )
        try:
            for number, item in enumerate(publish):
                await bus.publish(item, Stamp(id=f"item-{number}", sender="test", time=0.0))
            return await queued_attempts(bus.streams)
        finally:
            await bus.close()
    finally:
        await server.stop()


async def test_what_a_damaged_block_has_lost_is_not_there(tmp_path):
    whole = await queued(tmp_path, ITEMS)
    assert whole == {"0.0": 2, **{f"{number}.0": 1 for number in range(1, 40)}, "evaluation-0-greedy.0": 1, "50.0": 2}
    blocks = blocks_of(tmp_path / "nats", "AREAL_test_WORK")
    (block,) = blocks.glob("*.blk")
    content = bytearray(block.read_bytes())
    content[content.index(b"item-7") + len(b"item-7") + 40] ^= 0xFF
    block.write_bytes(content)
    without_index(blocks)
    left = await queued(tmp_path)
    assert left.keys() < whole.keys()
    assert "7.0" not in left
