"""Certificates with their keys: those that a run makes for itself, and those of files.

Clients know them by fingerprint (`tls.py`).
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from areal_bus.errors import CertificateUnusable
from areal_bus.product import current_product
from areal_bus.tls import Certificate, fingerprint_of

_DAYS: Final = 3650
CERTIFICATE_FILE: Final = "certificate.pem"
KEY_FILE: Final = "key.pem"


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate and its key, in a folder that only this user can read.

    Raises OSError if they cannot be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    owner = f"{current_product().prefix}-run"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, owner)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(owner)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding
    private = key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return _write_files(
        folder, builder.public_bytes(encoding.PEM), private, fingerprint_of(builder.public_bytes(encoding.DER))
    )


def read_certificate(certificate: Path, key: Path) -> Certificate:
    """Returns the certificate of a file, the first of a chain, with the key of another.

    Raises:
        CertificateUnusable: one of them cannot be read or used, or they do not belong together.
    """
    first = _parse_file("certificate", certificate, x509.load_pem_x509_certificates)[0]
    private = _parse_file(
        "certificate_key", key, lambda content: serialization.load_pem_private_key(content, password=None)
    )
    if private.public_key() != first.public_key():
        raise CertificateUnusable(
            "certificate_key", f"{key} is not the key of {certificate}; name the key that belongs to it"
        )
    now = dt.datetime.now(dt.UTC)
    if not first.not_valid_before_utc <= now < first.not_valid_after_utc:
        valid = f"from {first.not_valid_before_utc:%Y-%m-%d %H:%M} to {first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        state = "expired" if now >= first.not_valid_after_utc else "not valid yet"
        raise CertificateUnusable("certificate", f"{certificate} is {state} (valid {valid}); renew it")
    return Certificate(
        certificate=certificate, key=key, fingerprint=fingerprint_of(first.public_bytes(serialization.Encoding.DER))
    )


def copy_certificate(given: Certificate, folder: Path) -> Certificate:
    """Copy a certificate and its key to a folder that only this user can read.

    Raises OSError if they cannot be read or written.
    """
    return _write_files(folder, given.certificate.read_bytes(), given.key.read_bytes(), given.fingerprint)


def _parse_file(part: str, file: Path, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(file.read_bytes())
    except OSError as error:
        reason = f"{file} cannot be read ({error.strerror}); name a PEM file that this host has, and this user can read"
        raise CertificateUnusable(part, reason) from error
    except TypeError:
        raise CertificateUnusable(part, f"{file} has a password; name a file without one") from None
    except (ValueError, UnsupportedAlgorithm):
        what = "a certificate" if part == "certificate" else "a key"
        raise CertificateUnusable(part, f"{file} is no PEM file of {what}; name another") from None


def _write_files(folder: Path, certificate: bytes, key: bytes, fingerprint: str) -> Certificate:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    files = Certificate(certificate=folder / CERTIFICATE_FILE, key=folder / KEY_FILE, fingerprint=fingerprint)
    for file, content in ((files.certificate, certificate), (files.key, key)):
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
    return files
