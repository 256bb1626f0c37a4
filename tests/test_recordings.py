"""Recordings: a log in one file, and the tape of one actor."""

from __future__ import annotations

import gzip
import resource
import signal
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import msgspec
import psutil
import pytest
from support.bus_cases import Ended, Happened, open_buses, stamp

from areal_bus import Envelope, MemoryBus, Tape, TapeEntry, export_log, read_log, read_tape
from areal_bus.errors import MessageTooLarge, RecordingDamaged
from areal_bus.recorded import Header, LogWriter, read_header


def entry(n: int, kind: str = "received") -> TapeEntry:
    envelope = Envelope.seal(Happened(n=n), stamp(), "test")
    return TapeEntry(kind=kind, cause="a-cause", time=2.5, envelope=envelope)  # type: ignore[arg-type]


def unfinished(folder: Path) -> list[Path]:
    return list(folder.glob("*.unfinished"))


@pytest.mark.parametrize("which", ["memory", "nats"])
async def test_an_exported_log_reads_back_as_it_was(which: str, tmp_path: Path) -> None:
    async with open_buses(which, tmp_path) as buses:
        for n in range(20):
            await buses.here.publish(Happened(n=n, load=bytes(40_000 * n)) if n % 2 else Ended(n=n), stamp())
        path = tmp_path / "run.log"
        assert await export_log(buses.there, path) == 20
        there = [envelope async for envelope in buses.there.log()]
    assert list(read_log(path)) == there
    assert [envelope.sequence for envelope in there] == list(range(1, 21))
    assert there[19].open(Happened).load == bytes(40_000 * 19)
    assert read_header(path) == Header(holds="log", run="test")
    assert not unfinished(tmp_path)


async def test_an_empty_log_is_a_recording_too(tmp_path: Path) -> None:
    assert await export_log(MemoryBus(), tmp_path / "run.log") == 0
    assert list(read_log(tmp_path / "run.log")) == []


def test_a_tape_reads_back_in_its_own_order(tmp_path: Path) -> None:
    written = [entry(n, kind) for n, kind in enumerate(["received", "asked", "answered", "emitted"])]
    written.append(TapeEntry(kind="failed", cause="a-cause", time=3.0, error="AgentError", text="it raised"))
    with Tape.record(tmp_path / "gate.tape", run="test") as tape:
        for one in written:
            tape.write(one)
    assert list(read_tape(tmp_path / "gate.tape")) == written
    assert read_header(tmp_path / "gate.tape") == Header(holds="tape", run="test")


def test_a_recording_cut_anywhere_gives_its_whole_entries_and_then_an_error(tmp_path: Path) -> None:
    path = tmp_path / "gate.tape"
    ends = []
    with Tape.record(path) as tape:
        ends.append(path.stat().st_size)
        for n in range(3):
            tape.write(entry(n))
            ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for count, (start, end) in enumerate(pairwise(ends)):
        for cut in {start + 1, start + 3, start + 4, start + 5, end - 1}:
            path.write_bytes(whole[:cut])
            read: list[TapeEntry] = []
            with pytest.raises(
                RecordingDamaged, match=rf"gate\.tape ends in the middle of an entry; the {count} entries before it"
            ):
                read.extend(read_tape(path))
            assert [one.envelope.open(Happened).n for one in read if one.envelope] == list(range(count))


def test_the_tape_of_a_killed_process_holds_all_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "gate.tape"
    script = textwrap.dedent(f"""
        import os, pathlib, signal
        from areal_bus import Tape, TapeEntry

        tape = Tape.record(pathlib.Path({str(path)!r}))
        for n in range(5):
            tape.write(TapeEntry(kind="failed", cause=str(n), time=0.0))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[1], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [one.cause for one in read_tape(path)] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04 something else altogether", b"\x00\x00\x00\x01\x80"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RecordingDamaged, match="is not a recording"):
        list(read_log(path))


@pytest.mark.parametrize("place", ["header", "entry"])
def test_a_frame_that_would_take_all_memory_is_refused_before_it_is_read(tmp_path: Path, place: str) -> None:
    with LogWriter(path := tmp_path / "log.gz", "test") as log:
        log.write(Envelope.seal(Happened(n=1), stamp(), "test"))
    size = 1 << 30
    with gzip.open(path) as file:
        content = b"" if place == "header" else file.read()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(content + size.to_bytes(4, "big"))
        for _ in range(64):  # less than announced, and more than there is memory for
            file.write(bytes(1 << 22))
    assert path.stat().st_size < 2 << 20
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (128 << 20), hard))
    try:
        with pytest.raises(
            RecordingDamaged,
            match="is not a recording" if place == "header" else "entry 2 announces 1,073,741,824 bytes",
        ):
            list(read_log(path))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_an_entry_that_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("areal_bus.recorded.MAX_FRAME_BYTES", 300)
    with LogWriter(tmp_path / "log", "test") as log:
        log.write(Envelope.seal(Happened(n=1), stamp(), "test"))
        with pytest.raises(MessageTooLarge, match="exceeds the largest that can be read again, 300"):
            log.write(msgspec.structs.replace(Envelope.seal(Happened(n=2), stamp(), "test"), body=bytes(300)))
    assert len(list(read_log(tmp_path / "log"))) == 1


def test_a_tape_is_not_taken_for_a_log(tmp_path: Path) -> None:
    Tape.record(tmp_path / "gate.tape").close()
    with pytest.raises(RecordingDamaged, match="holds a tape, not a log"):
        list(read_log(tmp_path / "gate.tape"))


def test_a_recording_of_a_newer_program_asks_for_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tape.record(tmp_path / "gate.tape").close()
    monkeypatch.setattr("areal_bus.recorded.FORMAT_VERSION", 0)
    with pytest.raises(RecordingDamaged, match="format version 3, but this program supports versions up to 0; upgrade"):
        list(read_tape(tmp_path / "gate.tape"))
