"""Encryption of connections: servers with a certificate, and clients that know it by its fingerprint.

The fingerprint is the fragment of an address, `tls://host:4222#FINGERPRINT`, so that a client with the address can
verify the server: neither files nor authorities are needed, and host names do not matter. An address without one is
verified by the authorities of the system, or of the file in the variable `SSL_CERT_FILE`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from areal_bus.message import FrozenMeta

SCHEME: Final = "tls"
FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")
_PROBE_SECONDS: Final = 2.0


class Certificate(msgspec.Struct, metaclass=FrozenMeta):
    """A certificate with its key."""

    certificate: Path
    key: Path
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""

    def config(self) -> dict[str, object]:
        """Returns the `tls` block of the server's configuration.

        With the handshake first, not even its greeting is readable.
        """
        return {"cert_file": str(self.certificate), "key_file": str(self.key), "handshake_first": True}

    def context(self) -> ssl.SSLContext:
        """Returns a context for servers of this process."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # asks for none on the terminal
        return context


class PinnedContext(ssl.SSLContext):
    """A context for clients of the one server whose certificate has this fingerprint."""

    fingerprint: str = ""


class _PinnedObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        _check_fingerprint(self.context, self.getpeercert(binary_form=True))


class _PinnedSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the library
        super().do_handshake(block)
        _check_fingerprint(self.context, self.getpeercert(binary_form=True))


def client_context(url: str) -> ssl.SSLContext | None:
    """Returns the context with which a client verifies the server of an address `tls://` or `https://`.

    None for other schemes.
    """
    parts = urlsplit(url)
    if parts.scheme not in (SCHEME, "https"):
        return None
    if not parts.fragment:
        return ssl.create_default_context()
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname, context.verify_mode = (
        False,
        ssl.CERT_NONE,
    )  # the fingerprint is compared instead, within each handshake
    context.fingerprint = parts.fragment
    context.sslobject_class, context.sslsocket_class = _PinnedObject, _PinnedSocket
    return context


def cause_of(error: BaseException, url: str) -> str:
    """Returns the cause and remedy of a failed handshake, as the end of a sentence; empty for other errors."""
    pinned = urlsplit(url).fragment
    if isinstance(error, ssl.SSLCertVerificationError):
        if pinned:
            return (
                f"{error.args[-1]}: take the address, or join.json, of this start of the run; if it is of this one,"
                " another server answers"
            )
        cause = getattr(error, "verify_message", "") or str(error)
        remedy = (
            "name the file of its authority in SSL_CERT_FILE; for a run's own server, add its fingerprint to the"
            " address, as in join.json"
        )
        if "expired" in cause:
            remedy = "renew the certificate of the server"
        elif "match" in cause or "mismatch" in cause:
            remedy = "write a host name that the certificate has"
        return f"its certificate is refused ({cause}): {remedy}"
    if isinstance(error, ssl.SSLError) and "WRONG_VERSION" in str(error).upper():
        return "it does not encrypt: write nats:// in place of tls://, or have it encrypt (bus.tls)"
    return ""


def encrypts(url: str) -> bool:
    """True if the first server of an address begins with a TLS handshake.

    A client without TLS waits for it in vain. Blocks.
    """
    parts = urlsplit(url.partition(",")[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    place = (parts.hostname or "", parts.port or 4222)
    with (
        suppress(OSError, ValueError),
        socket.create_connection(place, _PROBE_SECONDS) as raw,
        context.wrap_socket(raw),
    ):
        return True
    return False


def fingerprint_of(certificate: bytes) -> str:
    """Returns the fingerprint of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def _check_fingerprint(context: ssl.SSLContext, certificate: bytes | None) -> None:
    """Compare a server's certificate.

    Raises:
        SSLCertVerificationError: it is another one.
    """
    expected = context.fingerprint if isinstance(context, PinnedContext) else ""
    actual = fingerprint_of(certificate or b"")
    if not hmac.compare_digest(actual, expected):
        raise ssl.SSLCertVerificationError(
            1, f"its certificate has the fingerprint {actual[:16]}…, not {expected[:16]}…"
        )
