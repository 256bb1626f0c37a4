"""Certificates that a run makes for itself, one at each start; clients know it by its fingerprint (`bus/tls.py`)."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bus.tls import Certificate, fingerprint_of

_NAME: Final = "areal-run"
_DAYS: Final = 3650


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate and its key, in a folder that only this user can read. Raises OSError if they cannot be written."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    encoding = serialization.Encoding
    private = key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate = Certificate(
        certificate=folder / "certificate.pem", key=folder / "key.pem", fingerprint=fingerprint_of(made.public_bytes(encoding.DER))
    )
    for file, content in ((certificate.certificate, made.public_bytes(encoding.PEM)), (certificate.key, private)):
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
    return certificate
