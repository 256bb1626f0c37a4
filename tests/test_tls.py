"""Encrypted connections of the bus and of the run's files: known by fingerprint or authority, and refused with the
cause otherwise."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.authority import Authority

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.objects import CODE, FileAccess, RemoteObjects
from areal_actors.folder.run_folder import ServerAddress
from areal_actors.hosts.join_address import join_address
from areal_actors.hosts.object_server import ObjectServer
from areal_actors.messages import KINDS, ActorFailed
from areal_actors.recipe.load import load
from areal_bus.base import Stamp
from areal_bus.certificates import make_certificate
from areal_bus.claims import blob_name
from areal_bus.errors import ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.server import EmbeddedServer
from areal_bus.tls import Certificate

RECIPE = Path(__file__).parent.parent / "recipes" / "gsm8k_grpo.toml"
WORD = "a word that a listener looks for"


async def test_a_handshake_that_is_cut_is_tried_again(tmp_path: Path) -> None:
    cut = 0

    async with serving(tmp_path, make_certificate(tmp_path / "tls")) as server:

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal cut
            if 0 < cut < 3:
                cut += 1
                await reader.read(16)
                writer.close()
                return
            there, back = await asyncio.open_connection("127.0.0.1", server.port)
            copies = [asyncio.ensure_future(copy(reader, back)), asyncio.ensure_future(copy(there, writer))]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for end in (writer, back):
                end.close()

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)

        proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        url = f"tls://{server.token}@127.0.0.1:{port}#{server.url.partition('#')[2]}"
        bus = await NatsBus.connect(url, "run", name="here", kinds=KINDS)
        sequence = await bus.publish(failed(), Stamp(id="1", sender="a", time=0.0))
        cut = 1
        again = await server.restart()
        assert await bus.publish(failed(), Stamp(id="2", sender="a", time=0.0)) == sequence + 1
        assert cut == 3
        await bus.close()
        proxy.close()
        await again.stop()


async def test_an_encrypted_bus_carries_messages_of_which_nothing_is_readable(tmp_path: Path) -> None:
    async with serving(tmp_path, make_certificate(tmp_path / "tls")) as server, listening(server.port) as (port, seen):
        url = f"tls://{server.token}@127.0.0.1:{port}#{server.url.partition('#')[2]}"
        bus = await NatsBus.connect(url, "run", name="here", kinds=KINDS)
        sequence = await bus.publish(failed(), Stamp(id="1", sender="a", time=0.0))
        assert (await bus.read([sequence]))[0].open(ActorFailed) == failed()
        assert seen
        assert not any(
            known in bytes(seen) for known in (WORD.encode(), server.token.encode(), b"INFO", b"CONNECT", b"areal.")
        )
        before = server.port
        again = await server.restart()
        assert again.port == before
        assert await bus.publish(failed(), Stamp(id="2", sender="a", time=0.0)) == sequence + 1
        await bus.close()
        await again.stop()


async def test_another_server_and_one_that_does_or_does_not_encrypt_are_named(tmp_path: Path) -> None:
    certificate, plain = make_certificate(tmp_path / "tls"), await EmbeddedServer.start(tmp_path / "plain")
    async with serving(tmp_path, certificate) as server:
        place = f"127.0.0.1:{server.port}"
        for url, cause in (
            (
                f"tls://{server.token}@{place}#{'0' * 64}",
                "has the fingerprint .*take the address, or join.json, of this start",
            ),
            (f"tls://{server.token}@127.0.0.1:{plain.port}#{'0' * 64}", "it does not encrypt: write nats://"),
            (f"nats://{server.token}@{place}", r"encrypts \(bus.tls\): take its address, tls://"),
        ):
            with pytest.raises(ServerUnavailable, match=cause):
                await NatsBus.connect(url, "run", name="here", connect_timeout=3)
    with pytest.raises(ServerUnavailable, match="the server does not encrypt: write nats://"):
        await NatsBus.connect(f"tls://{plain.token}@127.0.0.1:{plain.port}", "run", name="here", connect_timeout=3)
    await plain.stop()


@pytest.mark.parametrize(
    ("host", "days", "known", "cause"),
    [
        ("localhost", 10, True, ""),
        ("localhost", -1, True, "expired.*renew the certificate"),
        ("elsewhere", 10, True, "write a host name that the certificate has"),
        ("localhost", 10, False, "SSL_CERT_FILE"),
    ],
)
async def test_a_server_without_a_fingerprint_is_verified_by_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, days: int, known: object, cause: str
) -> None:
    authority = Authority()
    monkeypatch.setenv("SSL_CERT_FILE", str((authority if known else Authority()).file(tmp_path)))
    async with serving(tmp_path, authority.issue(tmp_path, host, days), first=False) as server:
        url = f"tls://{server.token}@localhost:{server.port}"
        if cause:
            with pytest.raises(ServerUnavailable, match=cause):
                await NatsBus.connect(url, "run", name="here", connect_timeout=30)
        else:
            await (await NatsBus.connect(url, "run", name="here")).close()


def test_files_of_a_run_are_served_encrypted_to_those_who_know_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(WORD)
    certificate, server = (
        make_certificate(tmp_path / "tls"),
        ObjectServer("run", tmp_path, {"agent.py": tmp_path / "agent.py"}),
    )
    server.start("127.0.0.1", 0, certificate)
    server.access["token"] = FileAccess(
        reads=frozenset({"a.body"}), writes=frozenset({"a.body"}), folders=frozenset({CODE})
    )
    url = f"https://127.0.0.1:{server.port}"
    objects = RemoteObjects(f"{url}#{certificate.fingerprint}", "token", retry_for_seconds=0)
    objects.pull(CODE, tmp_path / "there")
    assert (tmp_path / "there" / "agent.py").read_text() == WORD
    body = blob_name("a.body", "id", WORD.encode() * 100_000)
    objects.write(body, WORD.encode() * 100_000)
    assert objects.read(body) == WORD.encode() * 100_000
    with pytest.raises(PermissionError, match="is not the server of the run"):
        RemoteObjects(f"{url}#{'0' * 64}", "token", retry_for_seconds=60).read(body)
    with pytest.raises(ConnectionError):
        RemoteObjects(f"http://127.0.0.1:{server.port}", "token", retry_for_seconds=0).read(body)


def test_a_certificate_and_its_key_are_readable_by_their_user_only(tmp_path: Path) -> None:
    made = make_certificate(tmp_path / "tls")
    again = make_certificate(tmp_path / "tls")
    assert made.fingerprint != again.fingerprint
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "tls", again.certificate, again.key)} == {0}


def test_the_address_of_an_encrypted_run_has_its_fingerprint(tmp_path: Path) -> None:
    given, file = (
        ServerAddress(url=f"tls://areal-join:pw@10.0.0.1:4000#{'a' * 64}", run="run", pid=7),
        tmp_path / "join.json",
    )
    file.write_text(f'{{"url":"{given.url}","run":"run","pid":7}}')
    assert join_address("", credential=file).url == given.url
    assert join_address("tls://host:9/run", credential=file).url == f"tls://areal-join:pw@host:9#{'a' * 64}"
    assert join_address(f"tls://host:9/run#{'b' * 64}", token="t").url == f"tls://areal-join:t@host:9#{'b' * 64}"
    assert join_address("tls://me:own@host:9/run").url == "tls://me:own@host:9"
    with pytest.raises(SetupError, match="a token does not show whether its server is that of the run"):
        join_address("tls://host:9/run", token="t")
    with pytest.raises(SetupError, match="copy all 64 digits"):
        join_address("tls://host:9/run#abc", token="t")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["bus.tls=true"], "`bus.tls`: found true, but without bus.host no other host reaches the bus"),
        (
            ["bus.tls=true", "bus.host=127.0.0.1", "bus.url=nats://h:1"],
            "`bus.tls`: found true, but the server of bus.url encrypts by its own",
        ),
        (
            ["bus.tls=true", "bus.host=127.0.0.1", "bus.certificate_key=a.pem"],
            "`bus.certificate`: certificate and certificate_key belong together; name both files, or neither",
        ),
        (
            ["bus.certificate=a.pem", "bus.certificate_key=b.pem"],
            "`bus.certificate`: found a file, but the run does not encrypt",
        ),
        (
            ["bus.tls=true", "bus.host=127.0.0.1", "chaos.enabled=true", "chaos.partition.per_minute=1"],
            "a link to a server with TLS cannot be cut",
        ),
        (["gateway.certificate=a.pem"], "`gateway.certificate`: certificate and certificate_key belong together"),
    ],
)
def test_settings_that_do_not_encrypt_what_they_promise_are_refused(settings: list[str], problem: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(problem)):
        load([RECIPE], ["profile=embedded", *settings], detect_cuda())


def failed() -> ActorFailed:
    return ActorFailed(actor="a", process="a", reason=WORD)


class FirstGreeting(Certificate):
    """As that of a server which is not a run's own: it greets before it encrypts."""

    def config(self) -> dict[str, object]:
        return {**super().config(), "handshake_first": False}


@asynccontextmanager
async def serving(tmp_path: Path, certificate: Certificate, *, first: bool = True) -> AsyncIterator[EmbeddedServer]:
    kind = Certificate if first else FirstGreeting
    made = kind(certificate=certificate.certificate, key=certificate.key, fingerprint=certificate.fingerprint)
    server = await EmbeddedServer.start(tmp_path / "nats", certificate=made)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def listening(port: int) -> AsyncIterator[tuple[int, bytearray]]:
    """A listener between client and server: yields its port, and what passes in both directions."""
    seen = bytearray()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, back), copy(there, writer))
        except OSError:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()
