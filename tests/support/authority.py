"""An authority for tests, which issues certificates for hosts."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from areal_bus.tls import Certificate


class Authority:
    """An authority, which issues certificates for hosts."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = signed("authority", self.key, "authority", self.key, dt.timedelta(days=10), ca=True)

    def file(self, folder: Path) -> Path:
        """A file that names this authority only."""
        (folder / "authority.pem").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return folder / "authority.pem"

    def issue(self, folder: Path, host: str, days: int = 10) -> Certificate:
        """A certificate for a host, for this number of days from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = signed(host, key, "authority", self.key, dt.timedelta(days=days), ca=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "host.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (folder / "host.key").write_bytes(private)
        return Certificate(certificate=folder / "host.pem", key=folder / "host.key", fingerprint="")


def signed(host: str, key: Any, issuer: str, issuer_key: Any, lasting: dt.timedelta, *, ca: bool) -> x509.Certificate:
    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])

    now = dt.datetime.now(dt.UTC)
    usage = dict.fromkeys(
        ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name(host))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=30))
        .not_valid_after(now + lasting)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_encipherment=False, key_cert_sign=ca, crl_sign=ca, **usage),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
